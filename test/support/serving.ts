/** The serving application over real sockets, in the test's own process, and a client that speaks plain HTTP. */
import { Agent, request as httpRequest, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import { fileURLToPath } from 'node:url';
import { type App, createApp } from '../../serving/app.ts';
import { listen } from '../../serving/server.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { SettingName } from '../../shared/config/settings.ts';
import { connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { testLogger } from './stack.ts';

export const API_KEY = 'test-key';
export const SAMPLE_MATRIX = fileURLToPath(new URL('../../serving/rights/sample/matrix.json', import.meta.url));

export interface ServingOptions {
  readonly databaseUrl: string;
  readonly settings?: Partial<Record<SettingName, string>>;
  readonly rightsMatrixPath?: string;
  readonly now?: () => number;
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
  const settings = loadSettings({ cwd: '/nowhere', env: {}, flags: options.settings });
  const app = createApp({
    settings,
    databaseUrl: options.databaseUrl,
    apiKey: API_KEY,
    rightsMatrixPath: options.rightsMatrixPath ?? SAMPLE_MATRIX,
    log: testLogger(),
    now: options.now,
  });
  const server = await listen(app.koa, '127.0.0.1', 0);
  const { url } = server;
  const agent = new Agent({ keepAlive: true });

  const open = (raw: RawRequest) =>
    new Promise<IncomingMessage>((resolve, reject) => {
      const body = raw.body === undefined ? undefined : Buffer.from(raw.body);
      const key = raw.key === undefined ? API_KEY : raw.key;
      const outgoing = httpRequest(
        `${url}${raw.path ?? '/v1/raw/query'}`,
        {
          agent,
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
    const isJson = /json/.test(response.headers['content-type'] ?? '');
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
      await server.close(1000);
      await app[Symbol.asyncDispose]();
    },
  };
}

/** Until the condition holds; fails after ten seconds. */
export async function eventually(condition: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const deadline = Date.now() + 10_000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ten seconds: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
