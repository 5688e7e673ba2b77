/** How often a read waits for the database, and whether the database parses its statements anew. */
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { PgConnection } from '../../serving/db/pg-connection.ts';
import { loadDays, randomDay } from '../support/load-rows.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const KLINES = '/v1/historical/exchange_a/spot/klines';
const DAYS = ['2024-03-01', '2024-03-02', '2024-03-03', '2024-03-04'];

let env: TestEnv;
let serving: Serving;

/** SQL that keeps the klines of an hour, with the columns that the requests below ask for. */
const KEEP = `insert into native_klines (start_ms, no_of_trades, first_id, last_id, open, high, low, close, size_s, dataset_id,
    makers, mean, std, median, iqr, volume, open_liquidity, high_liquidity, low_liquidity, close_liquidity, liquidity_sum,
    maker_volume, maker_liquidity, price_total, price_square_total, quantity_total, liquidity_total, maker_quantity_total,
    maker_liquidity_total)
  select timestamp / 3600000 * 3600000, count(*), min(trade_id), max(trade_id), first(price, trade_id), max(price), min(price),
    last(price, trade_id), 3600, 1, ${Array(19).fill(0).join(', ')} from exchange_a_spot_trades group by 1;
  update partitions set klines_sha256 = 'kept', inexact_seconds = '{}'`;

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(
    env.databaseUrl,
    DAYS.map((day, index) => randomDay(day, 500, 1 + 1000 * index, index)),
  );
  await execute(env.databaseUrl, KEEP);
  serving = await startServing({ databaseUrl: env.databaseUrl, now: () => Date.parse('2024-03-05T12:00:00Z') });
}, 120_000);
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

/** The batches of the second such request, without new sessions and without the end of the transaction, which nobody waits for. */
async function batchesOf(path: string, body: object) {
  const run = vi.spyOn(PgConnection.prototype, 'run');
  try {
    const rows: unknown[] = [];
    for (const _ of [1, 2]) {
      run.mockClear();
      const { status, json } = await serving.send({ path, body: JSON.stringify(body) });
      expect([status, json.code]).toEqual([200, undefined]);
      rows.push(json.rows);
    }
    expect(rows[1]).toEqual(rows[0]);
    const batches = run.mock.calls.map(([steps]) => steps.map(({ statement }) => statement));
    return batches.filter(([{ text }]) => text !== 'commit' && !text.startsWith('select set_config'));
  } finally {
    run.mockRestore();
  }
}

const textsOf = async (path: string, body: object) =>
  (await batchesOf(path, body)).flatMap((batch) => batch.map(({ text }) => text));

const days = { start_date: '2024-03-02', end_date: '2024-03-04' };
const fields = ['datetime', 'open', 'high'];

test.each([
  ['kept klines of a window', KLINES, { kline_size: '1h', ...days, fields }, 2],
  ['klines that are added up', KLINES, { kline_size: '2h', ...days, fields }, 2],
  ['the latest kept klines', KLINES, { kline_size: '1h', n_latest_rows: 24, fields }, 3],
  ['the latest rows', '/v1/raw/query', { mode: 'native', sources: ['exchange_a_spot_trades'], n_rows: 10 }, 1],
])('%s: prepared statements in few round trips', async (_, path, body, roundTrips) => {
  const batches = await batchesOf(path, body);
  expect(batches).toHaveLength(roundTrips);
  expect(batches.flat().filter((statement) => !statement.prepared)).toEqual([]);
});

test('klines of seconds take as few round trips', async () => {
  expect(await batchesOf(KLINES, { kline_size: 90, ...days, fields })).toHaveLength(2);
});

test.each([
  ['kept klines', { kline_size: '1h', fields }],
  ['klines that are added up', { kline_size: '2h', fields }],
])('%s of other windows have the same statements', async (_, body) => {
  const texts = await textsOf(KLINES, { ...body, ...days });
  for (const other of [
    { start_date: '2024-03-01', end_date: '2024-03-03' },
    { start_date: '2024-03-03', end_date: '2024-03-03' },
  ]) {
    expect(await textsOf(KLINES, { ...body, ...other })).toEqual(texts);
  }
});
