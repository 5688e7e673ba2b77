/** The serving application over real sockets, in the test's own process, and a client that speaks plain HTTP. */

import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { Agent, createServer, request as httpRequest, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type App, createApp } from '../../serving/app.ts';
import type { SignIn } from '../../serving/routes/sign-in.ts';
import { type ConnectionLimits, listen } from '../../serving/server.ts';
import type { Limits } from '../../shared/config/limits.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { SettingName } from '../../shared/config/settings.ts';
import { connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { PATIENCE_MS } from './patience.ts';
import { OWN_MATRIX } from './rights.ts';
import { rolesOf, testLogger } from './stack.ts';

export { OWN_MATRIX } from './rights.ts';

export const API_KEY = 'test-key';
/** Allows synthetic rows only. */
export const SAMPLE_MATRIX = fileURLToPath(new URL('../../serving/rights/sample/matrix.json', import.meta.url));

export interface ServingOptions {
  /** A superuser's URL of the shared server is used as the role that serves. */
  readonly databaseUrl: string;
  /** Another than API_KEY. */
  readonly apiKey?: string;
  readonly settings?: Partial<Record<SettingName, string>>;
  readonly limits?: Partial<Limits>;
  readonly rightsMatrixPath?: string;
  readonly now?: () => number;
  /** How long the log may take to answer. */
  readonly logTimeoutMs?: number;
  readonly connections?: ConnectionLimits;
  /** What a link of a terminal signs in with. */
  readonly signIn?: SignIn;
}

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  // Bodies are looked into freely; what they must be is what the tests say.
  // biome-ignore lint/suspicious/noExplicitAny: see above
  readonly json: any;
}

export interface RawRequest {
  readonly method?: string;
  readonly path?: string;
  readonly headers?: Record<string, string>;
  readonly body?: string | Buffer;
  /** The key of the service unless told otherwise; null: none. */
  readonly key?: string | null;
  /** Through a Unix socket: its buffers hold 200 KiB, where those of TCP grow to tens of megabytes. */
  readonly unix?: boolean;
}

export interface Serving extends AsyncDisposable {
  readonly app: App;
  readonly url: string;
  /** POST /v1/raw/query. */
  query(body: unknown, headers?: Record<string, string>): Promise<Answer>;
  send(request: RawRequest): Promise<Answer>;
  /** The response as it begins; the caller reads or destroys it. */
  open(request: RawRequest): Promise<IncomingMessage>;
}

export async function migrated(databaseUrl: string): Promise<void> {
  await using client = await connect({ url: databaseUrl, name: 'test migrations' });
  await migrate(client);
}

export async function startServing(options: ServingOptions): Promise<Serving> {
  const roles = rolesOf(options.databaseUrl);
  const flags = { SVC_DATABASE_MONITOR_URL: roles.monitor, ...options.settings };
  const settings = loadSettings({ cwd: '/nowhere', env: {}, flags, limits: options.limits });
  const app = createApp({
    settings,
    databaseUrl: roles.serve,
    apiKey: options.apiKey ?? API_KEY,
    rightsMatrixPath: options.rightsMatrixPath ?? OWN_MATRIX,
    log: testLogger(),
    now: options.now,
    logTimeoutMs: options.logTimeoutMs,
    signIn: options.signIn,
  });
  const server = await listen(app.koa, '127.0.0.1', 0, options.connections);
  const { url } = server;
  const agent = new Agent({ keepAlive: true });
  const unixPath = join(tmpdir(), `tidemark-${randomUUID()}.sock`);
  const unix = createServer(app.koa.callback()).listen(unixPath);
  await once(unix, 'listening');

  const open = (raw: RawRequest) =>
    new Promise<IncomingMessage>((resolve, reject) => {
      const body = raw.body === undefined ? undefined : Buffer.from(raw.body);
      const key = raw.key === undefined ? API_KEY : raw.key;
      const outgoing = httpRequest(
        `${url}${raw.path ?? '/v1/raw/query'}`,
        {
          ...(raw.unix ? { socketPath: unixPath } : { agent }),
          method: raw.method ?? 'POST',
          headers: {
            ...(key !== null && { 'X-API-Key': key }),
            ...(body && { 'Content-Length': String(body.length) }),
            ...raw.headers,
          },
        },
        resolve,
      );
      outgoing.on('error', reject);
      outgoing.end(body);
    });

  const send = async (raw: RawRequest): Promise<Answer> => {
    const response = await open(raw);
    const chunks: Buffer[] = [];
    for await (const chunk of response) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString();
    const isJson = /^application\/(problem\+)?json\b/.test(response.headers['content-type'] ?? '');
    return {
      status: response.statusCode!,
      headers: response.headers,
      text,
      json: isJson && text !== '' ? JSON.parse(text) : undefined,
    };
  };

  return {
    app,
    url,
    send,
    open,
    query: (body, headers) => send({ body: typeof body === 'string' ? body : JSON.stringify(body), headers }),
    async [Symbol.asyncDispose]() {
      agent.destroy();
      unix.closeAllConnections();
      unix.close();
      await server.close(1000);
      await app[Symbol.asyncDispose]();
    },
  };
}

/** Until the condition holds; fails when patience ends. */
export async function eventually(
  condition: () => boolean | Promise<boolean>,
  what: string,
  withinMs = PATIENCE_MS,
): Promise<void> {
  const deadline = Date.now() + withinMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ${withinMs / 1000} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
