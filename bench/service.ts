/** The service as a process, requests to it over connections that stay open, and the product's commands. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Agent, request as httpRequest, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import type { SettingName } from '../shared/config/settings.ts';
import { OWN_MATRIX } from '../test/support/rights.ts';
import { ROOT } from './lab.ts';

export const API_KEY = 'bench';
export const QUERY = '/v1/raw/query';
export const ARROW = { Accept: 'application/vnd.apache.arrow.stream' };

/** The options of Node with which `./tidemark up` starts the service. */
const NODE_OPTIONS = ['--initial-old-space-size=512'];

export type Settings = Partial<Record<SettingName, string>>;

export interface Service extends AsyncDisposable {
  readonly pid: number;
  readonly url: string;
  /** SIGKILL. Resolves when the process has ended. */
  kill(): Promise<void>;
  /** Sends a POST, or a GET without a body. The answer has any status. */
  post(path: string, body?: object, headers?: Record<string, string>): Promise<IncomingMessage>;
  /** Sends a POST and parses the JSON of its answer. @throws Error unless the status is 200 */
  // biome-ignore lint/suspicious/noExplicitAny: the shape of an answer is the caller's.
  json(path: string, body: object): Promise<any>;
  /** Sends a POST and reads the answer to its last byte. @throws Error unless the status is 200 */
  drain(path: string, body: object, headers?: Record<string, string>): Promise<IncomingMessage>;
}

export async function startService(databaseUrl: string, settings: Settings = {}): Promise<Service> {
  const child = startMain('serving/main.ts', {
    SVC_DATABASE_URL: databaseUrl,
    SVC_INTERNAL_API_KEY: API_KEY,
    SVC_HTTP_PORT: '0',
    SVC_LOG_LEVEL: 'error',
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    ...settings,
  });
  const [line] = await once(child.stdout!, 'data');
  return serviceOf(child, (JSON.parse(String(line)) as { url: string }).url);
}

/** Starts a program of the service as `./tidemark up` does. */
export function startMain(program: string, settings: Settings): ChildProcess {
  const child = spawn(process.execPath, [...NODE_OPTIONS, join(ROOT, program), '--stdin'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  child.stdin.end(JSON.stringify({ cwd: ROOT, parent: process.pid, settings }));
  return child;
}

/** Starts the least server that answers with the rows of a statement (bare-server.ts). */
export async function startBareServer(databaseUrl: string, sql: string, connections: number): Promise<Service> {
  const program = fileURLToPath(new URL('bare-server.ts', import.meta.url));
  return startServer(process.execPath, [...NODE_OPTIONS, program, databaseUrl, sql, String(connections)]);
}

/** Starts a server that prints its URL first. */
export async function startServer(program: string, args: readonly string[]): Promise<Service> {
  const child = spawn(program, [...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [url] = await Promise.race([once(child.stdout, 'data'), once(child, 'exit').then(() => [])]);
  if (url === undefined) throw new Error(`${program} ended before it printed its URL`);
  return serviceOf(child, String(url).trim());
}

export function serviceOf(child: ChildProcess, url: string): Service {
  const agent = new Agent({ keepAlive: true });
  const post: Service['post'] = (path, body, more = {}) =>
    new Promise((resolve, reject) => {
      const bytes = Buffer.from(body ? JSON.stringify(body) : '');
      const headers = { 'X-API-Key': API_KEY, 'Content-Length': bytes.length, ...more };
      const outgoing = httpRequest(`${url}${path}`, { agent, method: body ? 'POST' : 'GET', headers }, resolve);
      outgoing.on('error', reject);
      outgoing.end(bytes);
    });
  const good: Service['post'] = async (path, body, headers) => {
    const response = await post(path, body, headers);
    if (response.statusCode !== 200) throw new Error(`${path} answered with ${await text(response)}`);
    return response;
  };
  const end = async (signal?: NodeJS.Signals) => {
    child.kill(signal);
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  };
  return {
    pid: child.pid!,
    url,
    post,
    json: async (path, body) => JSON.parse(String(await buffer(await good(path, body)))),
    async drain(path, body, headers) {
      const response = await good(path, body, headers);
      response.resume();
      await once(response, 'end');
      return response;
    },
    kill: () => end('SIGKILL'),
    async [Symbol.asyncDispose]() {
      agent.destroy();
      await end();
    },
  };
}

export async function ended(child: ChildProcess): Promise<void> {
  const [code] = await once(child, 'exit');
  if (code !== 0) throw new Error(`${child.spawnfile} ended with ${code}`);
}

/** Starts a command of the product on the servers of a state folder. */
export const startCommand = (
  stateDir: string,
  argv: readonly string[],
  settings: Settings = {},
  stdout: 'ignore' | 'pipe' = 'ignore',
): ChildProcess =>
  spawn(join(ROOT, 'tidemark'), [...argv], {
    stdio: ['ignore', stdout, 'inherit'],
    env: { ...process.env, SVC_STATE_DIR: stateDir, SVC_LOG_LEVEL: 'warn', ...settings },
  });
