/** Large answers, slow and absent readers, and limits. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { request as httpRequest } from 'node:http';
import { type AddressInfo, connect as connectSocket, createServer, type Socket } from 'node:net';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { PARKED_PER_SLOT } from '../../serving/limits/concurrency-limiter.ts';
import { DATASET, loadBulk } from '../support/load-rows.ts';
import { API_KEY, eventually, OWN_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const ROWS_PER_DAY = 750_000;
const DAYS = 3;
const ALL = { sources: [DATASET] };
/** 140 MB as JSON: more than sockets and buffers hold, and than memory may grow by. */
const ONE_DAY = { ...ALL, time_range: ['2024-05-02T00:00:00Z', '2024-05-03T00:00:00Z'] };
/** 70 MB: still more than sockets and buffers hold. */
const HALF_A_DAY = { ...ALL, time_range: ['2024-05-02T00:00:00Z', '2024-05-02T12:00:00Z'] };
/** Nobody is cut off, or refused, because this machine is busy. */
const PATIENT = { queueMs: 120_000, stallMs: 600_000 };

let env: TestEnv;
beforeAll(async () => {
  env = await createMigratedEnv();
  await loadBulk(env.databaseUrl, { fromDay: '2024-05-01', days: DAYS, rowsPerDay: ROWS_PER_DAY, firstId: 1 });
});
afterAll(() => env[Symbol.asyncDispose]());

const post = (body: unknown) => ({ body: JSON.stringify(body) });

/** Backends of the service in this file's database. */
async function backends(more = ''): Promise<number> {
  const found = await execute(
    env.databaseUrl,
    `select count(*) from pg_stat_activity where application_name = 'tidemark serving' and datname = current_database()
     ${more}`,
  );
  return Number(found.rows[0].count);
}

/** Those that are doing anything. */
const busyBackends = () => backends(`and state <> 'idle'`);

const isFree = (serving: Serving) => async () => {
  const { plain, aligned } = serving.app.limiters;
  const waiting = [plain, aligned].flatMap((slots) => [slots.load.running, slots.load.waiting]);
  return waiting.every((count) => count === 0) && serving.app.pool.open.busy === 0 && (await busyBackends()) === 0;
};

/** Rows of this database that statements have looked at so far. */
async function rowsRead(): Promise<number> {
  // A backend tells what it has read when it ends, at the latest.
  await eventually(async () => (await backends()) === 0, 'backends of earlier services have ended');
  const { rows } = await execute(
    env.databaseUrl,
    'select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) as n from pg_stat_user_tables',
  );
  return Number(rows[0].n);
}

/** Another session keeps the table to itself until the returned function is called. */
async function lockTable(table: string): Promise<() => Promise<void>> {
  const client = new pg.Client({ connectionString: env.databaseUrl });
  await client.connect();
  await client.query(`begin; lock table ${table} in access exclusive mode`);
  return () => client.end();
}

describe('large answers', () => {
  test('millions of rows in flat memory, complete and in order', async () => {
    await using server = await startProcess();
    const small = await count(await server.post({ ...ALL, n_rows: 10 }));
    expect(small.rows).toBe(10);
    const before = await server.residentBytes();
    const all = await count(await server.post(ALL));
    expect(all.rows).toBe(DAYS * ROWS_PER_DAY);
    expect(all.tail).toContain(`"row_count":${DAYS * ROWS_PER_DAY}}`);
    expect(all.ordered).toBe(true);
    const aligned = await count(await server.post({ ...ALL, mode: 'aligned_1s' }));
    expect(aligned.tail).toContain(`"row_count":${DAYS * 86_400}}`);
    const peak = await server.peakBytes();
    // 430 MB went through; what grows is the collector's room and the buffers in turn.
    expect(peak - before).toBeLessThan(150 * 2 ** 20);
  });

  // A writer of rows and one of batches, each behind a coding, which has buffers of its own.
  test.for([
    ['text/csv', 'gzip'],
    ['application/vnd.apache.arrow.stream', 'zstd'],
  ])('millions of rows in %s as %s in flat memory, counted by their trailer', async ([mediaType, coding]) => {
    await using server = await startProcess();
    await count(await server.post({ ...ALL, n_rows: 10 }));
    const before = await server.residentBytes();
    const response = await server.post(ALL, { Accept: mediaType, 'Accept-Encoding': coding });
    for await (const _ of response);
    expect(response.trailers['x-svc-row-count']).toBe(String(DAYS * ROWS_PER_DAY));
    expect((await server.peakBytes()) - before).toBeLessThan(150 * 2 ** 20);
  });

  test('a reader that does not read holds neither memory nor more than a few buffers', async () => {
    await using server = await startProcess();
    await count(await server.post({ ...ALL, n_rows: 10 }));
    const before = await server.residentBytes();
    const stalled = await Promise.all(Array.from({ length: 2 }, () => server.post(ONE_DAY)));
    for (const response of stalled) response.pause();
    await new Promise((resolve) => setTimeout(resolve, 1000));
    expect((await server.residentBytes()) - before).toBeLessThan(100 * 2 ** 20);
    // The others are served meanwhile.
    expect((await count(await server.post({ ...ALL, n_rows: 10 }))).rows).toBe(10);
    const rows = await Promise.all(stalled.map(async (response) => (await count(response)).rows));
    expect(rows).toEqual(stalled.map(() => ROWS_PER_DAY));
  });

  test('as many slow readers as there are slots do not keep others from being served', async () => {
    await using serving = await startServing({
      databaseUrl: env.databaseUrl,
      settings: { SVC_QUERY_MAX_CONCURRENCY: '2' },
      limits: PATIENT,
    });
    const { plain } = serving.app.limiters;
    const slow = await Promise.all([1, 2].map(() => serving.open(post(HALF_A_DAY))));
    for (const response of slow) response.pause();
    await expect.poll(() => plain.load).toEqual({ running: 0, waiting: 0, parked: 2 });
    const quick = await Promise.all([1, 2, 3, 4].map(() => serving.query({ ...ALL, n_rows: 1 })));
    expect(quick.map(({ status }) => status)).toEqual([200, 200, 200, 200]);
    // They go on, in a slot like any other, and get all of it.
    expect(await Promise.all(slow.map(async (response) => (await count(response)).rows))).toEqual(
      slow.map(() => ROWS_PER_DAY / 2),
    );
    await expect.poll(() => plain.load).toEqual({ running: 0, waiting: 0, parked: 0 });
  });

  test('of more slow readers than may be parked, one is cut off, and the others get all of it', async () => {
    await using serving = await startServing({
      databaseUrl: env.databaseUrl,
      settings: { SVC_QUERY_MAX_CONCURRENCY: '1' },
      limits: PATIENT,
    });
    const { plain } = serving.app.limiters;
    const slow: IncomingMessage[] = [];
    for (let reader = 0; reader <= PARKED_PER_SLOT; reader++) {
      const response = await serving.open(post(HALF_A_DAY));
      response.pause();
      slow.push(response);
    }
    await expect.poll(() => plain.load).toEqual({ running: 0, waiting: 0, parked: PARKED_PER_SLOT });
    // Which one is for the slots to say (turns.test.ts): sockets that take a little more park a reader again, as the last.
    const outcomes = await Promise.all(
      slow.map((response) =>
        count(response).then(
          ({ rows }) => rows,
          (error: NodeJS.ErrnoException) => error.code,
        ),
      ),
    );
    expect(outcomes.toSorted()).toEqual([...Array(PARKED_PER_SLOT).fill(ROWS_PER_DAY / 2), 'ECONNRESET']);
    await expect.poll(() => plain.load).toEqual({ running: 0, waiting: 0, parked: 0 });
    expect((await serving.query({ ...ALL, n_rows: 1 })).status).toBe(200);
  });

  test('n_rows of more than a day starts where it should', async () => {
    await using serving = await startServing({ databaseUrl: env.databaseUrl });
    const n_rows = ROWS_PER_DAY + 12_345;
    const answer = await count(await serving.open(post({ ...ALL, n_rows, fields: ['trade_id'] })));
    expect(answer.rows).toBe(n_rows);
    expect(answer.head).toContain(`[{"trade_id":${DAYS * ROWS_PER_DAY - n_rows + 1}}`);
  });

  test.each(['native', 'aligned_1s'])('n_random of 100 reads few rows however long the history: %s', async (mode) => {
    const before = await rowsRead();
    {
      await using serving = await startServing({ databaseUrl: env.databaseUrl });
      const answer = await serving.query({ ...ALL, mode, n_random: 100, random_seed: 1 });
      expect(answer.json.row_count).toBe(100);
    }
    const history = DAYS * (mode === 'native' ? ROWS_PER_DAY : 86_400);
    expect((await rowsRead()) - before).toBeLessThan(history / 20);
  });
});

describe('readers that go away', () => {
  test('mid-stream: slot and backend are free at once', async () => {
    await using serving = await startServing({ databaseUrl: env.databaseUrl });
    for (let i = 0; i < 10; i++) {
      const response = await serving.open(post(ALL));
      await once(response, 'data');
      response.destroy();
    }
    await eventually(isFree(serving), 'everything is free');
    expect((await serving.query({ ...ALL, n_rows: 5 })).json.row_count).toBe(5);
  });

  test('before the first row: the statement that computes is cancelled', async () => {
    await using database = await countedCancels(env.databaseUrl);
    await using serving = await startServing({ databaseUrl: database.url });
    const unlock = await lockTable('exchange_a_spot_trades');
    try {
      const hanging = httpRequest(`${serving.url}/v1/raw/query`, { method: 'POST', headers: { 'X-API-Key': API_KEY } });
      hanging.on('error', () => {});
      hanging.end(JSON.stringify(ALL));
      // Between its statements nothing is to be cancelled: it is seen at the lock, not merely at work.
      const waiting = () => backends(`and wait_event_type = 'Lock'`);
      await eventually(async () => (await waiting()) >= 1, 'the read waits in the database');
      hanging.destroy();
      // By itself the database looks for lost clients every 5 s.
      // On both connections, where the second one waits, too.
      await eventually(() => database.cancels >= 1, 'the database is told');
      await eventually(isFree(serving), 'everything is free');
    } finally {
      await unlock();
    }
  });

  test('one that takes nothing is cut after the stall time-out', async () => {
    await using serving = await startServing({
      databaseUrl: env.databaseUrl,
      limits: { stallMs: 1000 },
    });
    const response = await serving.open(post(ALL));
    response.pause();
    await eventually(isFree(serving), 'everything is free');
    const broken = once(response, 'error');
    response.resume();
    expect(((await broken)[0] as NodeJS.ErrnoException).code).toBe('ECONNRESET');
  });
});

describe('failures after the first byte', () => {
  test('break the connection: never a well-formed short answer', async () => {
    await using serving = await startServing({ databaseUrl: env.databaseUrl });
    const response = await serving.open(post(ALL));
    await once(response, 'data');
    response.pause();
    await execute(
      env.databaseUrl,
      `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tidemark serving'
       and datname = current_database()`,
    );
    const outcome = await count(response).catch((error: NodeJS.ErrnoException) => error.code);
    expect(outcome).toBe('ECONNRESET');
    await eventually(isFree(serving), 'everything is free');
    expect((await serving.query({ ...ALL, n_rows: 5 })).json.row_count).toBe(5);
  });
});

describe('limits', () => {
  test('slots, then the queue, then 503 at once; aligned reads have their own', async () => {
    await using serving = await startServing({
      databaseUrl: env.databaseUrl,
      settings: { SVC_QUERY_MAX_CONCURRENCY: '2', SVC_QUERY_MAX_QUEUE: '1' },
      limits: { queueMs: 60_000 },
    });
    const unlock = await lockTable('exchange_a_spot_trades');
    const read = { ...ALL, n_rows: 20_000 };
    const { plain } = serving.app.limiters;
    const running = [serving.query(read), serving.query(read)];
    await eventually(() => plain.load.running === 2, 'two reads run');
    const waiting = serving.query(read);
    await eventually(() => plain.load.waiting === 1, 'one waits');
    const refused = await serving.query(read);
    expect([refused.status, refused.json.code]).toEqual([503, 'QUERY_QUEUE_LIMIT_REACHED']);
    expect(Number(refused.headers['retry-after'])).toBeGreaterThan(0);
    expect((await serving.query({ ...ALL, mode: 'aligned_1s', n_rows: 1 })).status).toBe(200);
    // Faults of the contract and strict refusals that need no look need no slot.
    expect((await serving.query({ ...ALL, n_rows: 0 })).json.code).toBe('QUERY_CONTRACT_ERROR');
    expect((await serving.query({ ...read, strict: true })).json.code).toBe('STRICT_MODE_WARNING_FAILURE');
    await unlock();
    for (const answer of await Promise.all([...running, waiting])) expect(answer.json.row_count).toBe(20_000);
    await eventually(isFree(serving), 'everything is free');
  });

  test('a full aligned queue has its own code; a long wait ends; a waiter that leaves frees its place', async () => {
    await using serving = await startServing({
      databaseUrl: env.databaseUrl,
      settings: {
        SVC_ALIGNED_QUERY_MAX_CONCURRENCY: '1',
        SVC_ALIGNED_QUERY_MAX_QUEUE: '1',
      },
      limits: { queueMs: 3000 },
    });
    const unlock = await lockTable('canonical_aligned_1s_aggregates');
    const read = { ...ALL, mode: 'aligned_1s', time_range: ['2024-05-01T00:00:00Z', '2024-05-01T00:01:00Z'] };
    const { aligned } = serving.app.limiters;
    const first = serving.query(read);
    await eventually(() => aligned.load.running === 1, 'one runs');
    const leaver = httpRequest(`${serving.url}/v1/raw/query`, { method: 'POST', headers: { 'X-API-Key': API_KEY } });
    leaver.on('error', () => {});
    leaver.end(JSON.stringify(read));
    await eventually(() => aligned.load.waiting === 1, 'one waits');
    const refused = await serving.query(read);
    expect([refused.status, refused.json.code]).toEqual([503, 'ALIGNED_QUERY_QUEUE_LIMIT_REACHED']);
    leaver.destroy();
    await eventually(() => aligned.load.waiting === 0, 'it left');
    const late = await serving.query(read);
    expect([late.status, late.json.code]).toEqual([503, 'ALIGNED_QUERY_QUEUE_LIMIT_REACHED']);
    await unlock();
    expect((await first).json.row_count).toBe(60);
    await eventually(isFree(serving), 'everything is free');
  });

  test('no waiting at all is a queue of 0, not a closed door', async () => {
    await using serving = await startServing({
      databaseUrl: env.databaseUrl,
      settings: { SVC_QUERY_MAX_CONCURRENCY: '1', SVC_QUERY_MAX_QUEUE: '0' },
    });
    expect((await serving.query({ ...ALL, n_rows: 1 })).status).toBe(200);
  });

  test('a read without a first row in time is 503 and its backend is free', async () => {
    await using serving = await startServing({
      databaseUrl: env.databaseUrl,
      limits: { firstRowMs: 300 },
    });
    const unlock = await lockTable('exchange_a_spot_trades');
    try {
      for (const window of [{}, { n_rows: 5 }, { n_random: 5 }]) {
        const answer = await serving.query({ ...ALL, ...window });
        expect([answer.status, answer.json.code]).toEqual([503, 'QUERY_TIMEOUT']);
        expect(answer.headers['retry-after']).toBeDefined();
      }
      await eventually(isFree(serving), 'everything is free');
    } finally {
      await unlock();
    }
    // A new connection may take longer than that on a busy machine.
    await eventually(async () => (await serving.query({ ...ALL, n_rows: 5 })).status === 200, 'rows are served again');
  });
});

/** Stands before the database, and counts how often it is told to cancel what it does. */
async function countedCancels(databaseUrl: string): Promise<AsyncDisposable & { url: string; cancels: number }> {
  const url = new URL(databaseUrl);
  const to = { host: url.hostname, port: Number(url.port) };
  const sockets = new Set<Socket>();
  const server = createServer((client) => {
    const upstream = connectSocket(to);
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ]) {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => other.destroy());
    }
    client.once('data', (first) => {
      if (first.length === 16 && first.readInt32BE(4) === CANCEL_REQUEST) counted.cancels++;
    });
    client.pipe(upstream).pipe(client);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  url.port = String((server.address() as AddressInfo).port);
  url.hostname = '127.0.0.1';
  const counted = {
    url: url.href,
    cancels: 0,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
  return counted;
}

/** PostgreSQL's number for it. */
const CANCEL_REQUEST = 80877102;

interface Counted {
  readonly rows: number;
  readonly ordered: boolean;
  readonly head: string;
  readonly tail: string;
}

const ID = '"trade_id":';

/** Reads an answer to its end, keeping little of it. Bytes are searched, not parsed: it must not take longer than the answer. */
async function count(response: IncomingMessage): Promise<Counted> {
  let rows = 0;
  let last = -1;
  let ordered = true;
  let rest: Buffer = Buffer.alloc(0);
  let head = '';
  for await (const chunk of response) {
    const bytes = Buffer.concat([rest, chunk as Buffer]);
    if (head.length < 5000) head += bytes.toString('latin1', 0, 5000);
    const cut = bytes.lastIndexOf('{') + 1;
    for (let at = bytes.indexOf(ID); at >= 0 && at < cut; at = bytes.indexOf(ID, at + ID.length)) {
      const id = numberAt(bytes, at + ID.length);
      rows++;
      ordered &&= id > last;
      last = id;
    }
    rest = bytes.subarray(cut);
  }
  const tail = rest.toString('latin1');
  rows += tail.split(ID).length - 1;
  return { rows, ordered, head, tail };
}

function numberAt(bytes: Buffer, start: number): number {
  let value = 0;
  for (let at = start; bytes[at] >= 48 && bytes[at] <= 57; at++) value = value * 10 + bytes[at] - 48;
  return value;
}

interface ServerProcess extends AsyncDisposable {
  post(body: unknown, headers?: Record<string, string>): Promise<IncomingMessage>;
  residentBytes(): Promise<number>;
  peakBytes(): Promise<number>;
}

/** `serving/main.ts` as a process, so that its memory is its own. */
async function startProcess(): Promise<ServerProcess> {
  const child: ChildProcess = spawn(process.execPath, ['serving/main.ts', '--stdin'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const settings = {
    SVC_DATABASE_URL: env.databaseUrl,
    SVC_INTERNAL_API_KEY: API_KEY,
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    SVC_HTTP_PORT: '0',
    SVC_LOG_LEVEL: 'warn',
  };
  child.stdin!.end(JSON.stringify({ settings }));
  const [line] = await once(child.stdout!, 'data');
  const { url } = JSON.parse(String(line));
  const status = async (name: string) => {
    const text = await readFile(`/proc/${child.pid}/status`, 'utf8');
    return Number(new RegExp(`${name}:\\s+(\\d+) kB`).exec(text)![1]) * 1024;
  };
  return {
    post: (body, headers) =>
      new Promise((resolve, reject) => {
        const outgoing = httpRequest(
          `${url}/v1/raw/query`,
          { method: 'POST', headers: { 'X-API-Key': API_KEY, ...headers } },
          resolve,
        );
        outgoing.on('error', reject);
        outgoing.end(JSON.stringify(body));
      }),
    residentBytes: () => status('VmRSS'),
    peakBytes: () => status('VmHWM'),
    async [Symbol.asyncDispose]() {
      child.kill();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}
