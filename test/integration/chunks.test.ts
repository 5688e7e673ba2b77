/** The chunks that loads of file days prepare: exactly the days, whatever lies beside them. */
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { indexChunks, prepareChunks } from '../../pipelines/projector/chunks.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { exchangeBSpotTrades as dataset } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { runs } from '../support/seed.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const { table } = dataset.native;
const HOUR_MS = DAY_MS / 24;
/** Its file days begin at 16:00 UTC of the day before. */
const fileDay = (index: number) => {
  const fromMs = Date.parse('2024-02-29T16:00:00Z') + index * DAY_MS;
  return { fromMs, toMs: fromMs + DAY_MS };
};

let env: TestEnv;
let client: Client;
beforeAll(async () => {
  env = await createMigratedEnv();
  client = await connect({ url: env.databaseUrl, name: 'chunks test' });
});
afterEach(async () => {
  await client.query(`select drop_chunks('${table}', older_than => 9007199254740991::int8)`);
});
afterAll(async () => {
  await client[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

async function load(window: { fromMs: number; toMs: number }) {
  await client.query('begin');
  const target = await prepareChunks(client, dataset, window);
  await indexChunks(client, dataset, target);
  await client.query('commit');
  return target;
}

const stored = async () => {
  const { rows } = await client.query<{ from: number; to: number }>(
    `select range_start_integer::float8 as from, range_end_integer::float8 as to
     from timescaledb_information.chunks where hypertable_name = $1 order by 1`,
    [table],
  );
  return rows;
};

const interval = async () => {
  const { rows } = await client.query(
    'select integer_interval::float8 as ms from timescaledb_information.dimensions where hypertable_name = $1',
    [table],
  );
  return rows[0].ms;
};

/** A chunk as TimescaleDB makes it: a day of UTC, less what its neighbours hold. */
const insertAt = async (ms: number) => {
  const columns = dataset.native.columns.map(({ name }) => name);
  const values = columns.map((name) => (name === 'timestamp' ? ms : 1));
  await client.query(`insert into ${table} (${columns.join(', ')}) values (${values.join(', ')})`);
  await client.query(`delete from ${table}`);
};

// A third of a file day lay in the chunk of the day before, and went into its index row by row.
test('a file day that begins at 16:00 UTC is one chunk, in any order of the days', async () => {
  const days = [3, 1, 2, 7, 0].map(fileDay);
  for (const { fromMs, toMs } of days) {
    const target = await load({ fromMs, toMs });
    expect(target.chunks).toMatchObject([{ table: target.table, fromMs, toMs, indexed: false, fresh: true }]);
  }
  const expected = days.map(({ fromMs, toMs }) => ({ from: fromMs, to: toMs })).sort((a, b) => a.from - b.from);
  expect([await stored(), await interval()]).toEqual([expected, dataset.native.chunkMs]);
  const again = await load(days[2]);
  expect(again.chunks).toMatchObject([{ ...days[2], indexed: true, fresh: false }]);
  const { rows } = await client.query(`select count(*)::int as rows from ${table}`);
  expect(rows).toEqual([{ rows: 0 }]);
});

test('where others made chunks of UTC days, a file day takes them and what is left', async () => {
  const [day, next] = [fileDay(1), fileDay(2)];
  await insertAt(day.fromMs + HOUR_MS);
  const target = await load(day);
  const midnight = day.fromMs + 8 * HOUR_MS;
  expect(target.table).toBe(table);
  expect(target.chunks).toMatchObject([
    { fromMs: midnight - DAY_MS, toMs: midnight, fresh: false },
    { fromMs: midnight, toMs: day.toMs, fresh: true },
  ]);
  expect((await load(next)).chunks).toMatchObject([{ ...next, fresh: true }]);
});

// A lock on the hypertable without `only` is one on each of its chunks: a load made compaction and vacuum of all days wait.
test('while a day is loaded, other days can be locked for compaction', async () => {
  const { table: earlier } = await load(fileDay(1));
  await using other = await connect({ url: env.databaseUrl, name: 'chunks test, other' });
  await client.query('begin');
  await prepareChunks(client, dataset, fileDay(2));
  await other.query(`begin; lock table ${earlier} in share row exclusive mode nowait; rollback`);
  await client.query('rollback');
});

// A transaction of another isolation looks for chunks in its own snapshot, and would empty what it does not see.
test('a chunk that another transaction has created is never emptied', async () => {
  await using other = await connect({ url: env.databaseUrl, name: 'chunks test, other' });
  const day = fileDay(1);
  await other.query('begin isolation level repeatable read; select 1');
  await insertAt(day.fromMs + HOUR_MS);
  await expect(prepareChunks(other, dataset, day)).rejects.toThrow('this transaction creates the chunk');
  await other.query('rollback');
});

test('a second load that needs a chunk waits for the first, and adjoins its chunk', async () => {
  await using other = await connect({ url: env.databaseUrl, name: 'chunks test, other' });
  await client.query('begin');
  await prepareChunks(client, dataset, fileDay(1));
  await other.query('begin');
  const second = prepareChunks(other, dataset, fileDay(2));
  await client.query('commit');
  expect((await second).chunks).toMatchObject([fileDay(2)]);
  await other.query('commit');
  expect(await stored()).toHaveLength(2);
});

test('a file day before 1970 gets the chunks of UTC days', async () => {
  const day = fileDay(-20_000);
  const { chunks } = await load(day);
  expect(chunks.map(({ fromMs }) => fromMs)).toEqual([day.fromMs - DAY_MS * (2 / 3), day.fromMs + DAY_MS / 3]);
});

test('a load that is rolled back leaves neither a chunk nor another interval', async () => {
  await client.query('begin');
  await prepareChunks(client, dataset, fileDay(1));
  await client.query('rollback');
  expect([await stored(), await interval()]).toEqual([[], dataset.native.chunkMs]);
});

test('an interval that the operator has chosen stays', async () => {
  await client.query(`select set_chunk_time_interval('${table}', ${7 * DAY_MS}::int8)`);
  try {
    await load(fileDay(1));
    expect(await interval()).toBe(7 * DAY_MS);
  } finally {
    await client.query(`select set_chunk_time_interval('${table}', ${dataset.native.chunkMs}::int8)`);
  }
});

test('chunks never overlap, and those of a window hold all of it, whatever lay there before', async () => {
  const step = fc.record({ at: fc.integer({ min: 0, max: 9 * 24 }), byInsert: fc.boolean() });
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 8 }), async (steps) => {
      for (const { at, byInsert } of steps) {
        if (byInsert) {
          await insertAt(fileDay(0).fromMs + at * HOUR_MS);
          continue;
        }
        const window = fileDay(Math.floor(at / 24));
        const { chunks } = await load(window);
        expect(chunks[0].fromMs).toBeLessThanOrEqual(window.fromMs);
        expect(chunks.at(-1)?.toMs).toBeGreaterThanOrEqual(window.toMs);
        for (const [index, chunk] of chunks.entries()) if (index > 0) expect(chunk.fromMs).toBe(chunks[index - 1].toMs);
        for (const { fresh, fromMs, toMs } of chunks) {
          if (fresh) expect(fromMs >= window.fromMs && toMs <= window.toMs).toBe(true);
        }
      }
      const all = await stored();
      for (const [index, { from }] of all.entries()) {
        if (index > 0) expect(from).toBeGreaterThanOrEqual(all[index - 1].to);
      }
      await client.query(`select drop_chunks('${table}', older_than => 9007199254740991::int8)`);
    }),
    { numRuns: runs(100) },
  );
});

// The setting was sent first, on its own: the index waited for its answer, and that for the rows that are made meanwhile.
test('the statement that builds the index is sent before the caller goes on', async () => {
  await client.query('begin');
  const target = await prepareChunks(client, dataset, fileDay(0));
  const sent = vi.spyOn(client, 'query');
  const indexing = indexChunks(client, dataset, target);
  const statements = sent.mock.calls.map(([text]) => String(text));
  sent.mockRestore();
  await indexing;
  await client.query('commit');
  expect(statements).toEqual([expect.stringContaining('create unique index')]);
});
