/** Starts `serving/main.ts` as a process, and sends requests to it over connections that stay open. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Agent, request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { join } from 'node:path';
import type { SettingName } from '../shared/config/settings.ts';
import { OWN_MATRIX } from '../test/support/rights.ts';
import { ROOT } from './harness.ts';

export const API_KEY = 'bench';

export interface Reply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly bytes: number;
  readonly tail: string;
}

export interface Service extends AsyncDisposable {
  readonly pid: number;
  readonly url: string;
  /** SIGKILL. Resolves when the process has ended. */
  kill(): Promise<void>;
  /** Sends a POST and reads the answer to its last byte. */
  ask(path: string, body: object): Promise<Reply>;
}

/** The options of Node with which `./tidemark up` starts the service. */
export const NODE_OPTIONS = [
  '--initial-old-space-size=512',
  '--single-threaded-gc',
  '--no-allocation-site-pretenuring',
];
/** The last characters of an answer, which hold the number of its rows. */
const TAIL = 40;

export async function startService(
  databaseUrl: string,
  settings: Partial<Record<SettingName, string>> = {},
): Promise<Service> {
  const child = spawn(process.execPath, [...NODE_OPTIONS, join(ROOT, 'serving/main.ts'), '--stdin'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const all = {
    SVC_DATABASE_URL: databaseUrl,
    SVC_INTERNAL_API_KEY: API_KEY,
    SVC_HTTP_PORT: '0',
    SVC_LOG_LEVEL: 'error',
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    ...settings,
  };
  child.stdin.end(JSON.stringify({ settings: all }));
  const [line] = await once(child.stdout, 'data');
  const { url } = JSON.parse(String(line)) as { url: string };
  return serviceOf(child, url);
}

/** A service as `child` runs it at this URL. */
export function serviceOf(child: ChildProcess, url: string): Service {
  const agent = new Agent({ keepAlive: true });
  return {
    pid: child.pid!,
    url,
    async kill() {
      child.kill('SIGKILL');
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    },
    ask: (path, body) =>
      new Promise((resolve, reject) => {
        const text = Buffer.from(JSON.stringify(body));
        const headers = { 'X-API-Key': API_KEY, 'Content-Length': text.length };
        const outgoing = httpRequest(`${url}${path}`, { agent, method: 'POST', headers }, (response) => {
          let bytes = 0;
          let last: Buffer = Buffer.alloc(0);
          response.on('data', (chunk: Buffer) => {
            bytes += chunk.length;
            last = chunk;
          });
          response.on('error', reject);
          response.on('end', () =>
            resolve({
              status: response.statusCode!,
              headers: response.headers,
              bytes,
              tail: last.toString('latin1', Math.max(0, last.length - TAIL)),
            }),
          );
        });
        outgoing.on('error', reject);
        outgoing.end(text);
      }),
    async [Symbol.asyncDispose]() {
      agent.destroy();
      child.kill();
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    },
  };
}
