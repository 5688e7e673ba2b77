/**
 * The service behind the distribution's nginx with its defaults, which before 1.29.7 speaks HTTP/1.0 with it, and with
 * `proxy_http_version 1.1`. A client must never take a cut answer for a whole one, also when the process is killed.
 */
import type { ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { REPRESENTATIONS } from '../../serving/render/representations.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { givenTool } from '../support/given.ts';
import { DATASET, loadBulk } from '../support/load-rows.ts';
import { freePort, NGINX, startNginx } from '../support/nginx.ts';
import { API_KEY, eventually, OWN_MATRIX } from '../support/serving.ts';
import { said, startServingProcess } from '../support/serving-process.ts';
import { createMigratedEnv, rolesOf, type TestEnv } from '../support/stack.ts';

const DAY = { sources: [DATASET], time_range: ['2024-05-03T00:00:00Z', '2024-05-04T00:00:00Z'] };
const ROWS = 200_000;
const LIMIT = 8 * 1024 * 1024;
/** A kill may come when all is on its way already: so many are tried until one cuts an answer. */
const KILLS = 20;
/** Of HTTP towards the service, by the front's port. */
const VERSIONS = [
  { version: '1.0', at: 0 },
  { version: '1.1', at: 1 },
] as const;
const STREAMED = REPRESENTATIONS.filter(({ rowsOnly }) => rowsOnly).map(({ mediaType }) => mediaType);

givenTool(NGINX).describe('nginx before the service', () => {
  let env: TestEnv;
  let client: Client;
  let service: ChildProcess;
  let front: AsyncDisposable;
  let servicePort: number;
  /** The first speaks as nginx does by default, the second HTTP/1.1. */
  let ports: readonly [number, number];

  async function startService(): Promise<void> {
    const roles = rolesOf(env.databaseUrl);
    service = startServingProcess(env.dir, {
      SVC_DATABASE_URL: roles.serve,
      SVC_DATABASE_MONITOR_URL: roles.monitor,
      SVC_INTERNAL_API_KEY: API_KEY,
      SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
      SVC_HTTP_PORT: String(servicePort),
    });
    service.stderr!.resume();
    await said(service);
  }

  async function kill(): Promise<void> {
    const ended = once(service, 'exit');
    service.kill('SIGKILL');
    await ended;
  }

  beforeAll(async () => {
    env = await createMigratedEnv();
    await loadBulk(env.databaseUrl, { fromDay: '2024-05-03', days: 1, rowsPerDay: ROWS, firstId: 1_000_000 });
    client = await connect({ url: env.databaseUrl, name: 'test' });
    const [own, plain, modern] = await Promise.all([freePort(), freePort(), freePort()]);
    servicePort = own;
    ports = [plain, modern];
    await startService();
    const server = (port: number, more: string) =>
      `server { listen 127.0.0.1:${port}; location / { proxy_pass http://127.0.0.1:${servicePort}; ${more} } }`;
    front = await startNginx([server(plain, ''), server(modern, 'proxy_http_version 1.1;')]);
    const isUp = async () => (await ask(plain, '/healthz').catch(() => undefined))?.status === 200;
    await eventually(isUp, 'nginx answers');
  });
  afterAll(async () => {
    await front?.[Symbol.asyncDispose]();
    if (service && service.exitCode === null && service.signalCode === null) await kill();
    await client?.[Symbol.asyncDispose]();
    await env?.[Symbol.asyncDispose]();
  });

  async function open(port: number, path: string, headers: Record<string, string> = {}, query?: unknown) {
    const sent = request({
      ...{ host: '127.0.0.1', port, path, method: query ? 'POST' : 'GET', agent: false },
      headers: { 'X-API-Key': API_KEY, ...headers },
    });
    sent.end(query && JSON.stringify(query));
    const [response] = await once(sent, 'response');
    return response as IncomingMessage;
  }

  async function ask(port: number, path: string, headers?: Record<string, string>, query?: unknown) {
    const response = await open(port, path, headers, query);
    return { status: response.statusCode, headers: response.headers, body: await buffer(response) };
  }

  const query = (port: number, mediaType: string, body: unknown) =>
    ask(port, '/v1/raw/query', { Accept: mediaType }, body);

  /** As much of the day as fits over HTTP/1.0 in the representation, or nearly. */
  async function fitting(mediaType: string) {
    const { body } = await query(ports[1], mediaType, DAY);
    expect(body.length).toBeGreaterThan(LIMIT);
    const minutes = Math.floor((24 * 60 * 0.95 * LIMIT) / body.length);
    const [from] = DAY.time_range;
    return { ...DAY, time_range: [from, new Date(Date.parse(from) + minutes * 60_000).toISOString()] };
  }

  test('passes an answer of up to 8 MiB on whole, and a longer one as the 505 that names the remedy', async () => {
    for (const mediaType of STREAMED) {
      const short = await query(ports[0], mediaType, await fitting(mediaType));
      expect([short.status, short.headers['content-length']]).toEqual([200, String(short.body.length)]);
      expect(short.body.length).toBeGreaterThan(0.9 * LIMIT);
      const long = await query(ports[0], mediaType, DAY);
      const { code, ...problem } = JSON.parse(long.body.toString());
      expect([long.status, code]).toEqual([505, 'HTTP_VERSION_UNSUPPORTED']);
      expect(JSON.stringify(problem)).toContain('proxy_http_version 1.1');
    }
    const events = await ask(ports[0], '/v1/changes', { Accept: 'text/event-stream' });
    expect(events.status).toBe(505);
  });

  test('with proxy_http_version 1.1 passes a long answer on, and shows that one is cut', async () => {
    const whole = await query(ports[1], 'text/csv', DAY);
    expect(whole.body.toString().split('\n')).toHaveLength(ROWS + 2);
    const cut = await open(ports[1], '/v1/raw/query', { Accept: 'text/csv' }, DAY);
    cut.pause();
    const own = `from pg_stat_activity where application_name = 'tidemark serving' and datname = current_database()`;
    const ended = async () =>
      (await client.query(`select pg_terminate_backend(pid) ${own} and state = 'active'`)).rows.length > 0;
    await eventually(ended, 'the read is cut');
    await expect(buffer(cut)).rejects.toMatchObject({ code: 'ECONNRESET' });
  });

  const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

  test.for(STREAMED.flatMap((mediaType) => VERSIONS.map((one) => ({ mediaType, ...one }))))(
    'over HTTP/$version a kill in the middle of $mediaType leaves the client no answer that looks whole',
    async ({ mediaType, at }) => {
      const body = at === 0 ? await fitting(mediaType) : DAY;
      const whole = await query(ports[at], mediaType, body);
      expect(whole.status).toBe(200);
      let cuts = 0;
      for (let kills = 0; kills < KILLS && cuts === 0; kills++) {
        const response = await open(ports[at], '/v1/raw/query', { Accept: mediaType }, body);
        expect(response.statusCode).toBe(200);
        await once(response, 'readable');
        await kill();
        const read = await buffer(response).catch((error: NodeJS.ErrnoException) => error);
        if (Buffer.isBuffer(read)) {
          // All of it was on its way before the kill.
          expect(sha256(read)).toBe(sha256(whole.body));
        } else {
          expect(read.code).toBe('ECONNRESET');
          cuts++;
        }
        await startService();
      }
      expect(cuts).toBe(1);
    },
  );

  test.for(VERSIONS)('a kill before the first byte is no answer of the service, over HTTP/$version', async ({ at }) => {
    await client.query('begin');
    let answer: Awaited<ReturnType<typeof ask>>;
    try {
      await client.query(`lock table ${DATASET} in access exclusive mode`);
      const asked = query(ports[at], 'text/csv', DAY);
      const waits = `select 1 from pg_stat_activity
        where datname = current_database() and application_name = 'tidemark serving' and wait_event_type = 'Lock'`;
      await eventually(async () => (await client.query(waits)).rows.length > 0, 'the read waits');
      await kill();
      answer = await asked;
    } finally {
      await client.query('rollback');
    }
    expect(answer.status).toBe(502);
    await startService();
  });
});
