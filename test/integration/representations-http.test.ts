/** Representations, content codings and proofs of completeness, over real sockets. */
import { spawn } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, get, type IncomingMessage } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { createGunzip, createZstdDecompress, gunzipSync, zstdDecompressSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { REPRESENTATIONS } from '../../serving/render/representations.ts';
import { BufferPool, CODINGS, ResponseBody } from '../../serving/render/response.ts';
import { type Client, connect as connectDatabase } from '../../shared/db/connect.ts';
import type { Json } from '../support/command.ts';
import { DATASET, loadBulk, loadDays, randomDay } from '../support/load-rows.ts';
import { READERS } from '../support/read-back.ts';
import { API_KEY, eventually, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const SMALL = { sources: [DATASET], time_range: ['2024-05-01T00:00:00Z', '2024-05-02T00:00:00Z'] };
/** With a filter that all rows pass, so that one statement reads them: of two connections the sockets hold all that is read ahead. */
const LARGE = {
  sources: [DATASET],
  time_range: ['2024-05-03T00:00:00Z', '2024-05-04T00:00:00Z'],
  filters: [{ field: 'price', op: 'gt', value: 0 }],
};
/** Enough to be streamed. */
const MEDIUM = { sources: [DATASET], time_range: ['2024-05-03T00:00:00Z', '2024-05-03T00:36:00Z'] };
const SMALL_ROWS = 500;
/**
 * Of some 60 bytes each on their way from the database. The kernel holds 4 MB of them where they are sent, and more where they are
 * received the busier the machine is: 0.5 MB when idle, 2 MB beside four busy loops, at most what net.ipv4.tcp_rmem allows, such
 * as 32 MB. An answer that has room there and in what is under way to the reader holds no database back: of 130,000 rows, the smallest has.
 */
const LARGE_ROWS = 800_000;
const MEDIUM_ROWS = LARGE_ROWS / 40;
const NOW = Date.parse('2024-05-04T06:00:00Z');

const ROWS_ONLY = REPRESENTATIONS.filter(({ rowsOnly }) => rowsOnly);
const ARROW = 'application/vnd.apache.arrow.stream';
const DECODERS: Readonly<Record<string, (body: Buffer) => Buffer>> = { gzip: gunzipSync, zstd: zstdDecompressSync };
const FORMS = REPRESENTATIONS.flatMap(({ mediaType, rowsOnly }) =>
  [undefined, ...CODINGS.map(({ name }) => name)].map((coding) => ({
    mediaType,
    rowsOnly,
    coding: coding ?? 'identity',
  })),
);

let env: TestEnv;
let serving: Serving;
/** Looks at the service's backends, again and again: a connection for each look is most of the work of it. */
let watcher: Client;
let now = NOW;

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-05-01', SMALL_ROWS, 1000, 1)]);
  await loadBulk(env.databaseUrl, { fromDay: '2024-05-03', days: 1, rowsPerDay: LARGE_ROWS, firstId: 1_000_000 });
  serving = await startServing({ databaseUrl: env.databaseUrl, now: () => now });
  watcher = await connectDatabase({ url: env.databaseUrl, name: 'test watches' });
});
afterAll(async () => {
  await watcher[Symbol.asyncDispose]();
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

interface Whole {
  readonly response: IncomingMessage;
  readonly body: Buffer;
}

const KLINES = '/v1/historical/exchange_a/spot/klines';
const KLINE_QUERY = { start_date: '2024-05-01', end_date: '2024-05-01', kline_size: '10m' };
/** What is asked, of which route. */
const SUBJECTS: readonly (readonly [what: string, path: string, query: object])[] = [
  ['query, native', '/v1/raw/query', SMALL],
  ['query, aligned', '/v1/raw/query', { ...SMALL, mode: 'aligned_1s' }],
  ['klines, native', KLINES, KLINE_QUERY],
  ['klines, aligned', KLINES, { ...KLINE_QUERY, mode: 'aligned_1s' }],
];

async function ask(query: unknown, headers: Record<string, string>, from = serving, path?: string): Promise<Whole> {
  const response = await from.open({ body: JSON.stringify(query), headers, path });
  return { response, body: await buffer(response) };
}

const sha256 = (body: Buffer) => createHash('sha256').update(body).digest('hex');
const dtypes = (schema: readonly { name: string; dtype: string }[]) =>
  new Map(schema.map(({ name, dtype }) => [name, dtype]));

describe.for(ROWS_ONLY)('$mediaType', ({ mediaType, contentType }) => {
  test.for(SUBJECTS)('%s: rows are those of JSON, the envelope is in headers', async ([, path, query]) => {
    const json = await ask(query, {}, serving, path);
    const { rows: _, row_count, ...envelope } = JSON.parse(json.body.toString());
    const { response, body } = await ask(query, { Accept: mediaType }, serving, path);
    expect([response.statusCode, response.headers['content-type']]).toEqual([200, contentType]);
    const read = READERS[mediaType](body, dtypes(envelope.schema));
    expect(read).toEqual(READERS['application/json'](json.body, new Map()));
    expect(read.rows).toHaveLength(row_count);
    const said = Object.fromEntries(
      Object.entries(envelope).map(([name, value]) => [
        `x-svc-${name.replaceAll('_', '-')}`,
        typeof value === 'string' ? value : JSON.stringify(value),
      ]),
    );
    expect(response.headers).toMatchObject(said);
  });

  test('a small answer proves itself in trailers, and in headers for clients that cannot read those', async () => {
    const { response, body } = await ask(SMALL, { Accept: mediaType });
    const proof = { 'x-svc-row-count': String(SMALL_ROWS), 'x-svc-sha256': sha256(body) };
    expect(response.headers.trailer).toBe('X-Svc-Row-Count, X-Svc-Sha256');
    expect(response.trailers).toEqual(proof);
    expect(response.headers).toMatchObject(proof);
  });

  test('a streamed answer proves itself in trailers', async () => {
    const { response, body } = await ask(MEDIUM, { Accept: mediaType });
    expect(response.headers.trailer).toBe('X-Svc-Row-Count, X-Svc-Sha256');
    expect(response.headers).not.toHaveProperty('x-svc-row-count');
    expect(response.trailers).toEqual({ 'x-svc-row-count': String(MEDIUM_ROWS), 'x-svc-sha256': sha256(body) });
  });

  test('the same proved window is the same bytes at another time', async () => {
    const query = { ...SMALL, mode: 'aligned_1s' };
    const first = await ask(query, { Accept: mediaType });
    now = NOW + 86_400_000;
    const second = await ask(query, { Accept: mediaType });
    now = NOW;
    expect(second.response.headers['x-svc-freshness']).not.toBe(first.response.headers['x-svc-freshness']);
    expect(second.response.trailers).toEqual(first.response.trailers);
  });
});

describe.for(FORMS.filter(({ coding }) => coding !== 'identity'))(
  '$mediaType as $coding',
  ({ mediaType, coding, rowsOnly }) => {
    test.for([SMALL, MEDIUM])('is what it is without it', async (query) => {
      const plain = await ask(query, { Accept: mediaType });
      const coded = await ask(query, { Accept: mediaType, 'Accept-Encoding': coding });
      expect(plain.response.headers).not.toHaveProperty('content-encoding');
      expect(coded.response.headers['content-encoding']).toBe(coding);
      expect(coded.body.length).toBeLessThan(plain.body.length / 1.5);
      expect(DECODERS[coding](coded.body).equals(plain.body)).toBe(true);
      // The digest is of the body, not of its coding.
      if (rowsOnly) expect(coded.response.trailers['x-svc-sha256']).toBe(sha256(plain.body));
      expect(coded.response.trailers).toEqual(plain.response.trailers);
    });
  },
);

/** Each representation, each coding, and all codings of the one that writes in batches. */
const SOME_FORMS = FORMS.filter(
  ({ mediaType, coding }, index) =>
    mediaType === ARROW || coding === ['identity', 'zstd', 'gzip'][Math.floor(index / 3)],
);

describe('a reader that is slow and takes all', () => {
  const digests = new Map<string, Promise<string>>();
  /** Read quickly, as it is, once for each representation. */
  function digestOf(mediaType: string): Promise<string> {
    const known = digests.get(mediaType) ?? ask(LARGE, { Accept: mediaType }).then(({ body }) => sha256(body));
    digests.set(mediaType, known);
    return known;
  }

  test.for(SOME_FORMS)(
    'of $mediaType as $coding holds the database back, and gets all of it',
    { tags: ['nightly'] },
    async ({ mediaType, coding }) => {
      const response = await serving.open({
        body: JSON.stringify(LARGE),
        headers: { Accept: mediaType, 'Accept-Encoding': coding },
        unix: true,
      });
      response.pause();
      await untilHeldBack();
      const coded = await buffer(response);
      const body = DECODERS[coding]?.(coded) ?? coded;
      expect(response.complete).toBe(true);
      expect(sha256(body)).toBe(await digestOf(mediaType));
    },
  );
});

describe('a reader that is slow', () => {
  test('is cut off when it takes nothing of a coded answer', { tags: ['nightly'] }, async () => {
    await using impatient = await startServing({
      databaseUrl: env.databaseUrl,
      limits: { stallMs: 1000 },
    });
    for (const coding of CODINGS) {
      const response = await impatient.open({
        body: JSON.stringify(LARGE),
        headers: { 'Accept-Encoding': coding.name },
        unix: true,
      });
      response.pause();
      const { plain } = impatient.app.limiters;
      // Parked first, as it is behind, and then gone.
      await eventually(() => plain.load.running + plain.load.parked === 0, 'the read has ended');
      const broken = once(response, 'error');
      response.resume();
      expect(((await broken)[0] as NodeJS.ErrnoException).code).toBe('ECONNRESET');
    }
  });

  test('sees that a slow read lives, coded or not', async () => {
    for (const coding of [undefined, ...CODINGS]) {
      await using server = await answering(async (body) => {
        body.write(Buffer.from('first\n'));
        while (!server.arrived.includes('first')) {
          await new Promise((resolve) => setTimeout(resolve, 5));
          body.flush();
        }
        body.end(Buffer.from('last\n'), 2);
      }, coding);
      const decoder =
        coding === undefined ? undefined : coding.name === 'gzip' ? createGunzip() : createZstdDecompress();
      const response = await server.open();
      const decoded = decoder ? response.pipe(decoder) : response;
      for await (const chunk of decoded) server.arrived += chunk;
      expect(server.arrived).toBe('first\nlast\n');
    }
  });
});

describe('an answer that fails midway', () => {
  test.for(SOME_FORMS)('of $mediaType as $coding is broken: no trailers, no end', async ({ mediaType, coding }) => {
    const response = await serving.open({
      body: JSON.stringify(LARGE),
      headers: { Accept: mediaType, 'Accept-Encoding': coding },
      unix: true,
    });
    expect(response.statusCode).toBe(200);
    response.pause();
    await untilHeldBack();
    await endBackends();
    const parts: Buffer[] = [];
    const failure = await (async () => {
      for await (const chunk of response) parts.push(chunk as Buffer);
    })().catch((error: NodeJS.ErrnoException) => error.code);
    expect(failure).toBe('ECONNRESET');
    expect([response.complete, response.trailers]).toEqual([false, {}]);
    const received = Buffer.concat(parts);
    if (coding !== 'identity') expect(() => DECODERS[coding](received)).toThrow();
    else if (mediaType === ARROW) expect(received.subarray(-8).toString('hex')).not.toBe('ffffffff00000000');
    else if (mediaType === 'application/json') expect(() => JSON.parse(received.toString())).toThrow();
  });

  test('is reset also over HTTP/1.0, where the end of a body is the end of the connection', async () => {
    const exchange = speak(LARGE, ['Accept: application/json']);
    await exchange.arrives;
    await untilHeldBack();
    await endBackends();
    await expect(exchange.whole()).rejects.toMatchObject({ code: 'ECONNRESET' });
  });
});

describe('HTTP/1.0 has no trailers', () => {
  test('a small answer has its proof in headers', async () => {
    const whole = (await speak(SMALL, ['Accept: text/csv']).whole()).toString();
    const [head, body] = whole.split('\r\n\r\n');
    expect(head).toContain(`X-Svc-Row-Count: ${SMALL_ROWS}`);
    expect(head).toContain(`X-Svc-Sha256: ${sha256(Buffer.from(body))}`);
    expect(head).toContain(`Content-Length: ${body.length}`);
    expect(head).not.toMatch(/^(Trailer|Transfer-Encoding):/im);
  });

  test('one of up to 8 MiB has its length and its proof in headers', async () => {
    const whole = await speak(MEDIUM, ['Accept: text/csv', 'Accept-Encoding: gzip']).whole();
    const end = whole.indexOf('\r\n\r\n');
    const head = whole.subarray(0, end).toString();
    const body = gunzipSync(whole.subarray(end + 4));
    expect(head).not.toMatch(/^(Trailer|Transfer-Encoding):/im);
    expect(head).toContain(`Content-Length: ${whole.length - end - 4}`);
    expect(head).toContain(`X-Svc-Row-Count: ${MEDIUM_ROWS}`);
    expect(head).toContain(`X-Svc-Sha256: ${sha256(body)}`);
    expect(sha256(body)).toBe(sha256((await ask(MEDIUM, { Accept: 'text/csv' })).body));
  });

  test.for(ROWS_ONLY)('a longer one of $mediaType is 505, and its read ends', async ({ mediaType }) => {
    const whole = (await speak(LARGE, [`Accept: ${mediaType}`]).whole()).toString();
    expect(whole).toMatch(/^HTTP\/1\.1 505 /);
    const problem = JSON.parse(whole.split('\r\n\r\n')[1]);
    expect(problem.code).toBe('HTTP_VERSION_UNSUPPORTED');
    expect(problem.detail).toMatch(/8388608 bytes.*HTTP\/1\.1.*proxy_http_version 1\.1/);
    const { plain } = serving.app.limiters;
    await eventually(() => plain.load.running + plain.load.parked === 0, 'the read has ended');
    const isIdle = async () => (await watcher.query(`select 1 ${mine} and state = 'active'`)).rows.length === 0;
    await eventually(isIdle, 'the database has stopped');
  });

  test('a client that takes none of a gathered answer gives its slot to others, and gets all of it later', async () => {
    const path = join(tmpdir(), `tidemark-${randomUUID()}.sock`);
    // The kernel holds less of a body for a client on a Unix socket than this answer has.
    const server = createServer(serving.app.koa.callback()).listen(path);
    await once(server, 'listening');
    const exchange = speak(MEDIUM, ['Accept: text/csv'], connect(path));
    const { plain } = serving.app.limiters;
    await eventually(() => plain.load.parked === 1, 'the slot is given to others');
    const whole = await exchange.whole();
    const body = whole.subarray(whole.indexOf('\r\n\r\n') + 4);
    expect(sha256(body)).toBe(sha256((await ask(MEDIUM, { Accept: 'text/csv' })).body));
    await eventually(() => plain.load.running + plain.load.parked === 0, 'the read has ended');
    server.close();
  });

  test('JSON shows its own end and is sent as it is read', async () => {
    const whole = await speak(LARGE, ['Accept: application/json']).whole();
    const end = whole.indexOf('\r\n\r\n');
    expect(whole.subarray(0, end).toString()).not.toMatch(/^(Content-Length|Transfer-Encoding):/im);
    expect(JSON.parse(whole.subarray(end + 4).toString()).row_count).toBe(LARGE_ROWS);
  });
});

describe('negotiation', () => {
  test('what cannot be served is 406, and every answer says what it depends on', async () => {
    const refused: Record<string, string>[] = [{ Accept: 'text/html' }, { 'Accept-Encoding': 'br, identity;q=0' }];
    for (const headers of refused) {
      const answer = await serving.query(SMALL, headers);
      expect([answer.status, answer.json.code]).toEqual([406, 'NOT_ACCEPTABLE']);
      expect(answer.headers.vary).toBe('Accept, Accept-Encoding');
      expect(answer.headers).not.toHaveProperty('content-encoding');
    }
    for (const { mediaType } of REPRESENTATIONS) {
      const { response } = await ask(SMALL, { Accept: mediaType });
      expect(response.headers.vary).toBe('Accept, Accept-Encoding');
    }
  });

  test('problems are JSON whatever is accepted, and never coded', async () => {
    for (const { mediaType } of REPRESENTATIONS) {
      const headers = { Accept: mediaType, 'Accept-Encoding': 'gzip' };
      const wrong = await serving.query({ ...SMALL, n_rows: 0 }, headers);
      expect([wrong.status, wrong.headers['content-type']]).toEqual([409, 'application/problem+json']);
      expect(wrong.json.code).toBe('QUERY_CONTRACT_ERROR');
      const empty = await serving.query({ ...SMALL, filters: [{ field: 'trade_id', op: 'eq', value: 7 }] }, headers);
      expect([empty.status, empty.json.code]).toEqual([404, 'QUERY_NO_DATA']);
      expect(empty.headers).not.toHaveProperty('trailer');
    }
  });
});

describe('docs/representations.md', () => {
  const page = readFileSync(new URL('../../docs/representations.md', import.meta.url), 'utf8');

  test('lists the headers there are, and no other', async () => {
    const listed = [...page.matchAll(/^- `(X-Svc-[\w-]+)`/gm)].map(([, name]) => name.toLowerCase());
    const filters = [{ field: 'price', op: 'gt', value: 0 }];
    const { response } = await ask({ ...SMALL, filters }, { Accept: 'text/csv' });
    const served = Object.keys(response.headers).filter((name) => name.startsWith('x-svc-'));
    // Three are not of these rows: they are real and of the default instrument, and no process signs a checkpoint here.
    const others = ['x-svc-synthetic', 'x-svc-checkpoint', 'x-svc-instrument'];
    expect(listed.toSorted()).toEqual([...served, ...others].toSorted());
  });

  test('has examples that do what they say', async () => {
    for (const [, script] of page.matchAll(/^```sh\n([\s\S]*?)^```$/gm)) {
      const run = spawn('bash', ['-euo', 'pipefail', '-c', script], {
        cwd: env.dir,
        env: { ...process.env, TIDEMARK_URL: serving.url, TIDEMARK_KEY: API_KEY },
      });
      const [stdout, stderr, [exit]] = await Promise.all([text(run.stdout), text(run.stderr), once(run, 'exit')]);
      expect(exit, stderr).toBe(0);
      expect(stdout).toMatch(/^trade_id,price,datetime\n(.+\n){3}$|^trades.csv: OK\n$/);
    }
  });
});

const mine = `from pg_stat_activity where application_name = 'tidemark serving' and datname = current_database()`;

/** Waits until the service's backend has rows that nobody takes, and goes on having them. */
async function untilHeldBack(): Promise<void> {
  let found: Json[] = [];
  const isHeldBack = async () => {
    for (let look = 0; look < 5; look++) {
      found = (await watcher.query(`select state, wait_event, query ${mine}`)).rows;
      const active = found.filter(({ state }) => state === 'active');
      if (active.length !== 1 || active[0].wait_event !== 'ClientWrite') return false;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return true;
  };
  await eventually(isHeldBack, 'the database waits for the reader').catch((cause) => {
    throw new Error(`the database does not wait for the reader: ${JSON.stringify(found)}`, { cause });
  });
}

const endBackends = () => watcher.query(`select pg_terminate_backend(pid) ${mine}`);

function connectTo(url: string) {
  const { hostname, port } = new URL(url);
  return connect(Number(port), hostname);
}

/** A POST in HTTP/1.0. */
function speak(query: unknown, headers: readonly string[], socket = connectTo(serving.url)) {
  const body = JSON.stringify(query);
  const head = ['POST /v1/raw/query HTTP/1.0', `X-API-Key: ${API_KEY}`, `Content-Length: ${body.length}`, ...headers];
  socket.write(`${head.join('\r\n')}\r\n\r\n${body}`);
  return { arrives: once(socket, 'readable'), whole: () => buffer(socket) };
}

/** A server that answers with a body of ours and nothing else. */
async function answering(answer: (body: ResponseBody) => Promise<void>, coding: (typeof CODINGS)[number] | undefined) {
  const server = createServer((_, response) => {
    const options = { headers: () => ({}), buffers: new BufferPool(), stallTimeoutMs: 600_000, coding, proved: true };
    answer(new ResponseBody(response, options));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return {
    arrived: '',
    open: () => new Promise<IncomingMessage>((resolve) => get({ port, host: '127.0.0.1' }, resolve)),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
