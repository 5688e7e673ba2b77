/** The service behind an nginx with its defaults, which before 1.29.7 speaks HTTP/1.0 with it. Skipped where there is no nginx. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { type AddressInfo, createServer as createNetServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Client, connect } from '../../shared/db/connect.ts';
import { DATASET, loadBulk } from '../support/load-rows.ts';
import { API_KEY, eventually, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const DAY = { sources: [DATASET], time_range: ['2024-05-03T00:00:00Z', '2024-05-04T00:00:00Z'] };
const HOURS = { sources: [DATASET], time_range: ['2024-05-03T00:00:00Z', '2024-05-03T02:24:00Z'] };
const ROWS = 200_000;
const hasNginx = spawnSync('nginx', ['-v']).status === 0;
const NO_NGINX = 'there is no nginx: install the one of the distribution';

describe('nginx before the service', () => {
  let env: TestEnv;
  let serving: Serving;
  let client: Client;
  let folder: string;
  let nginx: ChildProcess;
  /** The first speaks as nginx does by default, the second HTTP/1.1. */
  let ports: readonly number[];

  beforeAll(async () => {
    if (!hasNginx) return;
    env = await createMigratedEnv();
    await loadBulk(env.databaseUrl, { fromDay: '2024-05-03', days: 1, rowsPerDay: ROWS, firstId: 1_000_000 });
    serving = await startServing({ databaseUrl: env.databaseUrl });
    client = await connect({ url: env.databaseUrl, name: 'test' });
    folder = await mkdtemp(join(tmpdir(), 'nginx-'));
    ports = await Promise.all([freePort(), freePort()]);
    const [plain, modern] = ports;
    const server = (port: number, more: string) =>
      `server { listen 127.0.0.1:${port}; location / { proxy_pass ${serving.url}; ${more} } }`;
    const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
      (name) => `${name}_temp_path ${join(folder, name)};`,
    );
    await writeFile(
      join(folder, 'nginx.conf'),
      `daemon off; pid ${join(folder, 'pid')}; error_log stderr; events {}
      http { access_log off; ${temporary.join(' ')} ${server(plain, '')} ${server(modern, 'proxy_http_version 1.1;')} }`,
    );
    nginx = spawn('nginx', ['-e', 'stderr', '-p', folder, '-c', join(folder, 'nginx.conf')], { stdio: 'inherit' });
    const isUp = async () => (await ask(plain, '/healthz').catch(() => undefined))?.status === 200;
    await eventually(isUp, 'nginx answers');
  });
  afterAll(async () => {
    if (!hasNginx) return;
    if (nginx?.exitCode === null) {
      nginx.kill();
      await once(nginx, 'exit');
    }
    await client?.[Symbol.asyncDispose]();
    await serving?.[Symbol.asyncDispose]();
    await env?.[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });

  async function open(port: number, path: string, headers: Record<string, string> = {}, query?: unknown) {
    const sent = request({
      ...{ host: '127.0.0.1', port, path, method: query ? 'POST' : 'GET', agent: false },
      headers: { 'X-API-Key': API_KEY, ...headers },
    });
    sent.end(query && JSON.stringify(query));
    const [response] = await once(sent, 'response');
    return response as import('node:http').IncomingMessage;
  }

  async function ask(port: number, path: string, headers?: Record<string, string>, query?: unknown) {
    const response = await open(port, path, headers, query);
    return { status: response.statusCode, headers: response.headers, body: await buffer(response) };
  }

  test('passes an answer of up to 8 MiB on whole, and a longer one as the 505 that names the remedy', async ({
    skip,
  }) => {
    skip(!hasNginx, NO_NGINX);
    const csv = { Accept: 'text/csv' };
    const short = await ask(ports[0], '/v1/raw/query', csv, HOURS);
    expect([short.status, short.headers['content-length']]).toEqual([200, String(short.body.length)]);
    const long = await ask(ports[0], '/v1/raw/query', csv, DAY);
    expect([long.status, JSON.parse(long.body.toString()).code]).toEqual([505, 'HTTP_VERSION_UNSUPPORTED']);
    const events = await ask(ports[0], '/v1/changes', { Accept: 'text/event-stream' });
    expect(events.status).toBe(505);
  });

  test('with proxy_http_version 1.1 passes a long answer on, and shows that one is cut', async ({ skip }) => {
    skip(!hasNginx, NO_NGINX);
    const whole = await ask(ports[1], '/v1/raw/query', { Accept: 'text/csv' }, DAY);
    expect(whole.body.toString().split('\n')).toHaveLength(ROWS + 2);
    const cut = await open(ports[1], '/v1/raw/query', { Accept: 'text/csv' }, DAY);
    cut.pause();
    const own = `from pg_stat_activity where application_name = 'tidemark serving' and datname = current_database()`;
    const ended = async () =>
      (await client.query(`select pg_terminate_backend(pid) ${own} and state = 'active'`)).rows.length > 0;
    await eventually(ended, 'the read is cut');
    await expect(buffer(cut)).rejects.toMatchObject({ code: 'ECONNRESET' });
  });
});

async function freePort(): Promise<number> {
  const server = createNetServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  return port;
}
