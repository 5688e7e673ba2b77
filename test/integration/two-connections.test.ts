/** Long reads take a second connection while nobody else reads: the answer is the same, and a fault of either ends it. */
import type { IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { PgConnection } from '../../serving/db/pg-connection.ts';
import type { Limits } from '../../shared/config/limits.ts';
import { given, OTHER_DATABASE } from '../support/given.ts';
import { DATASET, DAY_MS, type DayOfTrades, loadDays, randomDay, type Trade } from '../support/load-rows.ts';
import { eventually, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

/** More than sockets and bodies buffer, in many sections. */
const ROWS = 100_000;
const FIRST_MS = Date.parse('2024-05-01');
/** Every third frame has a big quantity in each of its trades, so that a filter leaves many ranges of time. */
const FRAME_ROWS = 200;
const BIG = 1000;
const isBig = ({ trade_id: id }: { readonly trade_id: number }) => Math.floor((id - 1) / FRAME_ROWS) % 3 === 0;
const ALL = { sources: [DATASET] };
const CSV = { headers: { Accept: 'text/csv' } };

let env: TestEnv;
let days: readonly DayOfTrades[];
beforeAll(async () => {
  env = await createMigratedEnv();
  // Half of the rows lie in a hundredth of the day: many have the same millisecond, wherever a cut lies.
  days = [randomDay('2024-05-01', ROWS, 1, 3), randomDay('2024-05-02', ROWS / 4, ROWS + 1, 4)].map((one) => ({
    ...one,
    trades: one.trades.map((row) => (isBig(row) ? { ...row, quantity: row.quantity + BIG } : row)),
  }));
  await loadDays(env.databaseUrl, days, { rowsPerFrame: FRAME_ROWS });
  await execute(
    env.databaseUrl,
    `update frames f set value_ranges = (select jsonb_build_object('quantity', jsonb_build_array(min(quantity), max(quantity)))
       from ${DATASET} t where t.trade_id between f.first_offset::int8 and f.last_offset::int8)`,
  );
});
afterAll(() => env[Symbol.asyncDispose]());

const serve = (limits?: Partial<Limits>) => startServing({ databaseUrl: env.databaseUrl, limits });

/** A service whose second connection is open: the first read that wants one may end before it is. */
async function serveWithTwo(limits?: Partial<Limits>): Promise<Serving> {
  const serving = await serve(limits);
  await csv(serving, FIRST_MS, FIRST_MS + DAY_MS);
  await eventually(async () => (await backends()).length === 2, 'the second connection is open');
  await eventually(isFree(serving), 'both are idle');
  return serving;
}

interface Backend {
  readonly pid: number;
  readonly state: string;
  readonly query: string;
}

/** The service's backends, the oldest first, or the one whose last statement is. */
async function backends(order = 'backend_start'): Promise<readonly Backend[]> {
  const { rows } = await execute(
    env.databaseUrl,
    `select pid, state, query from pg_stat_activity where application_name = 'tidemark serving'
     and datname = current_database() order by ${order}`,
  );
  return rows;
}

/** When the last statement of each backend began. */
async function lastStatements(): Promise<readonly string[]> {
  const { rows } = await execute(
    env.databaseUrl,
    `select query_start::text as at from pg_stat_activity where application_name = 'tidemark serving'
     and datname = current_database() order by backend_start`,
  );
  return rows.map(({ at }) => at);
}

const isFree =
  ({ app }: Serving) =>
  async () =>
    app.limiters.plain.load.running + app.limiters.plain.load.parked === 0 &&
    (await backends()).every(({ state }) => state === 'idle');

const csvOf = (fromMs: number, toMs: number, passes = (_: Trade) => true) =>
  [
    'trade_id,timestamp,price,quantity,quote_quantity,is_buyer_maker,is_best_match,datetime',
    ...days
      .flatMap(({ trades }) => trades)
      .filter((row) => row.timestamp >= fromMs && row.timestamp < toMs && passes(row))
      .map(
        (row) =>
          `${row.trade_id},${row.timestamp},${row.price},${row.quantity},${row.quote_quantity},${row.is_buyer_maker},${row.is_best_match},${new Date(row.timestamp).toISOString()}`,
      ),
    '',
  ].join('\n');

const requestOf = (fromMs: number, toMs: number, more: object = {}) => ({
  ...CSV,
  body: JSON.stringify({ ...ALL, time_range: [new Date(fromMs).toISOString(), new Date(toMs).toISOString()], ...more }),
});

async function csv(serving: Serving, fromMs: number, toMs: number, more?: object): Promise<string> {
  const response = await serving.open(requestOf(fromMs, toMs, more));
  expect(response.statusCode).toBe(200);
  return await text(response);
}

const WINDOWS = {
  'a whole day': [0, DAY_MS],
  'part of a day': [123_457, 0.9 * DAY_MS],
  'a crowd of trades': [0, DAY_MS / 100],
  'two days, the first in part': [777, 2 * DAY_MS],
} as const;

describe('a long read that is alone', () => {
  let serving: Serving;
  beforeAll(async () => {
    serving = await serveWithTwo();
  });
  afterAll(() => serving[Symbol.asyncDispose]());

  test.each(Object.entries(WINDOWS))('takes two connections for %s, and has the rows in order', async (_, window) => {
    const [fromMs, toMs] = window.map((ms) => FIRST_MS + ms);
    // Trades are far denser here than there: the first read tells the service.
    await csv(serving, fromMs, toMs);
    const before = await lastStatements();
    const body = await csv(serving, fromMs, toMs);
    // Not `toBe` alone: the difference of two such texts would be printed.
    expect(body === csvOf(fromMs, toMs)).toBe(true);
    const after = await lastStatements();
    expect(after.filter((at, index) => at !== before[index])).toHaveLength(2);
  });

  test('takes two connections to search the ranges that a filter leaves', async () => {
    const [fromMs, toMs] = [FIRST_MS, FIRST_MS + DAY_MS];
    const filters = [{ field: 'quantity', op: 'gt', value: BIG }];
    const before = await lastStatements();
    const body = await csv(serving, fromMs, toMs, { filters });
    expect(body === csvOf(fromMs, toMs, isBig)).toBe(true);
    const after = await lastStatements();
    expect(after.filter((at, index) => at !== before[index])).toHaveLength(2);
  });
});

test.each([
  ['within the second day', 20_000, {}],
  ['within the first', 110_000, {}],
  ['of those that pass', 35_000, { filters: [{ field: 'quantity', op: 'gt', value: BIG }] }],
])(
  'the newest rows begin with the first of them, and not with another of its millisecond: %s',
  async (_, least, more) => {
    await using serving = await serve();
    const passes = 'filters' in more ? isBig : () => true;
    const times = days.flatMap(({ trades }) => trades.filter(passes).map(({ timestamp }) => timestamp));
    let n_rows = least;
    while (times.at(-n_rows) !== times.at(-n_rows - 1)) n_rows++;
    const response = await serving.open({ ...CSV, body: JSON.stringify({ ...ALL, n_rows, ...more }) });
    const [head, ...lines] = csvOf(FIRST_MS, FIRST_MS + 2 * DAY_MS, passes)
      .trimEnd()
      .split('\n');
    expect((await text(response)) === [head, ...lines.slice(-n_rows), ''].join('\n')).toBe(true);
  },
);

test('a short read takes one connection, also after long ones of its dataset', async () => {
  await using serving = await serve();
  for (let i = 0; i < 2; i++) {
    const body = await csv(serving, FIRST_MS + DAY_MS / 2, FIRST_MS + 0.55 * DAY_MS);
    expect(body === csvOf(FIRST_MS + DAY_MS / 2, FIRST_MS + 0.55 * DAY_MS)).toBe(true);
    expect(await backends()).toHaveLength(1);
  }
});

test('beside another read a long one takes one connection', async () => {
  await using serving = await serve();
  const other = await serving.app.limiters.aligned.acquire(new AbortController().signal);
  expect((await csv(serving, FIRST_MS, FIRST_MS + DAY_MS)) === csvOf(FIRST_MS, FIRST_MS + DAY_MS)).toBe(true);
  expect(await backends()).toHaveLength(1);
  other.release();
});

/** The bytes of an answer, or the code of the error it broke with. */
const outcomeOf = (response: IncomingMessage) =>
  text(response).then(
    () => 'whole',
    (error: NodeJS.ErrnoException) => error.code,
  );

/** The end of a window whose rows are not counted: nothing else would notice a short answer. */
const PART_MS = FIRST_MS + 0.9 * DAY_MS;

/** An answer that nobody takes: both connections wait. The first of them is the one whose rows come first. */
async function untaken(
  serving: Serving,
  toMs = PART_MS,
): Promise<{ response: IncomingMessage; pids: readonly number[] }> {
  for (let tries = 1; ; tries++) {
    // The buffers of a Unix socket are small.
    const response = await serving.open({ ...requestOf(FIRST_MS, toMs), unix: true });
    const until = Date.now() + 2000;
    while (Date.now() < until) {
      const reading = await backends('query_start');
      const busy = reading.filter(({ state, query }) => state !== 'idle' && query.startsWith('select t.trade_id'));
      if (busy.length === 2) return { response, pids: busy.map(({ pid }) => pid) };
    }
    // A read that begins right after another has one connection.
    expect(tries, 'reads with one connection').toBeLessThan(10);
    response.destroy();
    await eventually(isFree(serving), 'everything is free');
  }
}

/** Everything is free, none of the backends is used again, and the next long read has two connections and all rows. */
async function expectRecovery(serving: Serving, pids: readonly number[]): Promise<void> {
  await eventually(isFree(serving), 'everything is free');
  const left = (await backends()).filter(({ pid }) => pids.includes(pid));
  expect(left).toEqual([]);
  const { response } = await untaken(serving);
  expect((await text(response)) === csvOf(FIRST_MS, PART_MS)).toBe(true);
  await eventually(isFree(serving), 'everything is free again');
}

describe('of a read with two connections', () => {
  test.each([0, 1])('the loss of number %i breaks the answer off and ends the other', async (index) => {
    await using serving = await serveWithTwo();
    const { response, pids } = await untaken(serving);
    await execute(env.databaseUrl, `select pg_terminate_backend(${pids[index]})`);
    expect(await outcomeOf(response)).toBe('ECONNRESET');
    await expectRecovery(serving, pids);
  });

  test.each([0, 1])('a statement of number %i that is cancelled does so, too', { tags: ['nightly'] }, async (index) => {
    await using serving = await serveWithTwo();
    // Between two statements it has no effect.
    for (let tries = 1; ; tries++) {
      const { response, pids } = await untaken(serving);
      const cancels = execute(
        env.databaseUrl,
        `do $$ begin while exists (select from pg_stat_get_activity(${pids[index]}) where state <> 'idle') loop
           perform pg_cancel_backend(${pids[index]}), pg_stat_clear_snapshot(); end loop; end $$`,
      );
      const outcome = await text(response).catch((error: NodeJS.ErrnoException) => error.code);
      await cancels;
      if (outcome === 'ECONNRESET') {
        await expectRecovery(serving, pids);
        return;
      }
      expect(outcome === csvOf(FIRST_MS, PART_MS)).toBe(true);
      expect(tries, 'cancels without effect').toBeLessThan(20);
    }
  });

  test('both end when the client goes', async () => {
    await using serving = await serveWithTwo();
    const { response, pids } = await untaken(serving);
    response.destroy();
    await expectRecovery(serving, pids);
  });

  const isLocal = given(OTHER_DATABASE === undefined, 'TIDEMARK_TEST_DATABASE_URL is set: unset it');
  for (const index of [0, 1])
    isLocal.test(`the time limit ends both when number ${index} does nothing`, async () => {
      await using serving = await serveWithTwo({ firstRowMs: 500, nextRowMs: 500 });
      const { response, pids } = await untaken(serving);
      process.kill(pids[index], 'SIGSTOP');
      try {
        expect(await outcomeOf(response)).toBe('ECONNRESET');
        await eventually(async () => (await backends()).every(({ pid }) => pid !== pids[1 - index]), 'the other ends');
      } finally {
        process.kill(pids[index], 'SIGCONT');
      }
      await expectRecovery(serving, pids);
    });

  test('rows are counted: one that is lost in any section breaks the answer off', async () => {
    await using serving = await serveWithTwo();
    const lost = `trade_id = ${Math.floor(ROWS * 0.7)}`;
    await execute(
      env.databaseUrl,
      `create table lost as select * from ${DATASET} where ${lost}; delete from ${DATASET} where ${lost}`,
    );
    const { response, pids } = await untaken(serving, FIRST_MS + DAY_MS);
    expect(await outcomeOf(response)).toBe('ECONNRESET');
    await execute(env.databaseUrl, `insert into ${DATASET} select * from lost; drop table lost`);
    await expectRecovery(serving, pids);
  });
});

describe('a second connection that does not come', () => {
  const whole = async (serving: Serving) =>
    (await csv(serving, FIRST_MS, FIRST_MS + DAY_MS)) === csvOf(FIRST_MS, FIRST_MS + DAY_MS);

  test('leaves everything to the first; the next read has two', async () => {
    await using serving = await serve();
    await csv(serving, FIRST_MS, FIRST_MS + 1000);
    const name = new URL(env.databaseUrl).pathname.slice(1);
    await execute(env.adminDatabaseUrl, `alter database ${name} allow_connections false`);
    try {
      expect(await whole(serving)).toBe(true);
    } finally {
      await execute(env.adminDatabaseUrl, `alter database ${name} allow_connections true`);
    }
    expect(await backends()).toHaveLength(1);
    await expectRecovery(serving, []);
  });

  test.each([
    ['before it has the snapshot', 'before'],
    ['when it has it', 'after'],
  ] as const)('while the read lasts is given back, %s', async (_, when) => {
    await using serving = await serve();
    const gate = Promise.withResolvers<void>();
    const { run: runOf } = PgConnection.prototype;
    const run = vi.spyOn(PgConnection.prototype, 'run').mockImplementation(async function (this: PgConnection, steps) {
      const isJoining = steps.some(({ statement: { text: sql } }) => sql.startsWith('set transaction snapshot'));
      if (isJoining && when === 'before') await gate.promise;
      await runOf.call(this, steps);
      if (isJoining && when === 'after') await gate.promise;
    });
    try {
      expect(await whole(serving)).toBe(true);
      const [, second] = await backends();
      gate.resolve();
      await eventually(isFree(serving), 'everything is free');
      const isKept = when === 'after';
      await eventually(
        async () => (await backends()).some(({ pid }) => pid === second.pid) === isKept,
        `it is ${isKept ? 'kept for others' : 'closed'}`,
      );
    } finally {
      gate.resolve();
      run.mockRestore();
    }
    await expectRecovery(serving, []);
  });
});

describe('the newest rows, more than are sorted from the end', () => {
  let serving: Serving;
  beforeAll(async () => {
    serving = await serve();
  });
  afterAll(() => serving[Symbol.asyncDispose]());

  const second = ROWS / 4;
  test.each([
    ...[10_001, second - FRAME_ROWS, second - FRAME_ROWS + 1, second - 1, second, second + 1],
    ...[second + FRAME_ROWS, second + FRAME_ROWS + 1, ROWS, ROWS + second - 1, ROWS + second, ROWS + second + 1],
  ])('%i', async (n_rows) => {
    const response = await serving.open({ ...CSV, body: JSON.stringify({ ...ALL, n_rows, fields: ['trade_id'] }) });
    const ids = days.flatMap(({ trades }) => trades.map(({ trade_id }) => trade_id)).slice(-n_rows);
    expect((await text(response)) === `trade_id\n${ids.join('\n')}\n`).toBe(true);
  });
});
