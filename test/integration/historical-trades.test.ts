/**
 * The trade and kline routes of all exchanges, whose columns, days and ids differ: long
 * histories of few trades a day, with gaps.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import { type AnyTrade, alignedKlines, type Kline, nativeKlines } from '../support/kline-oracle.ts';
import { DAY_MS, round } from '../support/load-rows.ts';
import { alignedOfTrades, type FileDay, loadFileDays } from '../support/load-trades.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const EXCHANGES = [...DATASETS.values()].filter(({ trades }) => trades).map(({ sources }) => sources[0]);
const FIRST_DAY = Date.parse('2023-11-20T00:00:00Z');
const DAYS = 80;
/** Not proved: a day, and more than a week. */
const GAPS = [10, 40, 41, 42, 43, 44, 45, 46, 47, 48];
const TRADES_A_DAY = 12;

const datasetOf = (exchange: string) => DATASETS.get(`${exchange}_spot_trades`)!;

/** File days of the dataset; ids begin anew every day where the exchange's do. */
function fileDays(dataset: DatasetDefinition): FileDay[] {
  const random = seededRandom(dataset.number);
  const days: FileDay[] = [];
  for (let day = 0; day < DAYS; day++) {
    const key = new Date(FIRST_DAY + day * DAY_MS).toISOString().slice(0, 10);
    const { fromMs } = windowOf(dataset, key);
    const times = Array.from({ length: TRADES_A_DAY }, () => fromMs + Math.floor(random() * DAY_MS)).sort(
      (a, b) => a - b,
    );
    const base = dataset.offset.unique ? 1 + day * TRADES_A_DAY : 1000 - (day % 7) * 100;
    const trades = times.map((timestamp, index): AnyTrade => {
      // Neighbours in time with ids the other way round: what is first goes by id.
      const place = index % 4 === 1 ? index + 1 : index % 4 === 2 ? index - 1 : index;
      return {
        trade_id: base + place,
        timestamp,
        price: round(30_000 + 1000 * random(), 2),
        quantity: round(random() + 1e-6, 6),
        is_buyer_maker: random() < 0.5 ? 0 : 1,
      };
    });
    if (!GAPS.includes(day)) days.push({ key, trades });
  }
  return days;
}

let env: TestEnv;
let serving: Serving;
const loaded = new Map<string, FileDay[]>();

beforeAll(async () => {
  env = await createMigratedEnv();
  for (const exchange of EXCHANGES) {
    loaded.set(exchange, fileDays(datasetOf(exchange)));
    await loadFileDays(env.databaseUrl, datasetOf(exchange), loaded.get(exchange)!);
  }
  serving = await startServing({ databaseUrl: env.databaseUrl });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

async function ask(path: string, body: object) {
  const answer = await serving.send({ path: `/v1/historical/${path}`, body: JSON.stringify(body) });
  expect(answer.status, answer.text.slice(0, 500)).toBe(200);
  return answer.json;
}

const SIZES = {
  '1': 1,
  '7': 7,
  '60': 60,
  '3600': 3600,
  '"1d"': 86_400,
  '100000': 100_000,
  '"1w"': 604_800,
  '"31d"': 2_678_400,
};

describe.each(EXCHANGES)('%s', (exchange) => {
  const dataset = datasetOf(exchange);
  const within = (from: string | undefined, to: string | undefined) => {
    const start = from ? Date.parse(from) : 0;
    const end = to ? Date.parse(to) + DAY_MS : Number.POSITIVE_INFINITY;
    const all = loaded.get(exchange)!.flatMap(({ trades }) => trades);
    return all.filter(({ timestamp }) => timestamp >= start && timestamp < end);
  };

  test('trades have the columns that all exchanges have', async () => {
    const { rows, schema } = await ask(`${exchange}/spot/trades`, { start_date: '2023-11-25', end_date: '2023-12-03' });
    expect(schema).toEqual([
      { name: 'trade_id', dtype: 'int64' },
      { name: 'timestamp', dtype: 'int64' },
      { name: 'price', dtype: 'float64' },
      { name: 'quantity', dtype: 'float64' },
      { name: 'is_buyer_maker', dtype: 'bool01' },
      { name: 'datetime', dtype: 'timestamp_utc' },
    ]);
    const expected = within('2023-11-25', '2023-12-03').map(
      ({ trade_id, timestamp, price, quantity, is_buyer_maker }) => {
        const datetime = new Date(timestamp).toISOString();
        return { trade_id, timestamp, price, quantity, is_buyer_maker, datetime };
      },
    );
    expect(rows).toEqual(expected.sort((a, b) => a.timestamp - b.timestamp || a.trade_id - b.trade_id));
    expect(new Set(rows.map((row: AnyTrade) => row.is_buyer_maker))).toEqual(new Set([0, 1]));
  });

  test('fields and filters name these, and every column of its own', async () => {
    const names = [...new Set([...dataset.trades!.unified, ...dataset.native.fields].map(({ name }) => name))];
    const { rows } = await ask(`${exchange}/spot/trades`, { n_latest_rows: 30, fields: names });
    expect(Object.keys(rows[0])).toEqual(names);
    for (const row of rows) {
      expect(row.quantity).toBe(row.size ?? row.quantity);
      if ('side' in row) expect(row.is_buyer_maker).toBe(row.side === 'sell' ? 1 : 0);
    }
    const all = (await ask(`${exchange}/spot/trades`, { fields: names })).rows;
    for (const name of names) {
      const value = rows[7][name];
      const filters = [{ field: name, op: 'eq', value }];
      expect((await ask(`${exchange}/spot/trades`, { fields: names, filters })).rows, name).toEqual(
        all.filter((row: Record<string, unknown>) => row[name] === value),
      );
    }
  });

  test('the newest rows are warned of by the selector of their own route, whatever route asked before', async () => {
    const selectorIn = (json: { warnings: { code: string; details: object }[] }) =>
      json.warnings.find(({ code }) => code === 'WINDOW_LATEST_ROWS_MUTABLE')?.details;
    // The first read notes what is proved, the others are sent with its plan.
    for (let round = 0; round < 3; round++) {
      const { json } = await serving.query({ sources: [dataset.key], mode: 'aligned_1s', n_rows: 4 });
      expect(selectorIn(json)).toEqual({ n_rows: 4 });
      const historical = await ask(`${exchange}/spot/trades`, { mode: 'aligned_1s', n_latest_rows: 4 });
      expect(selectorIn(historical)).toEqual({ n_latest_rows: 4 });
    }
  });

  test.each(Object.entries(SIZES))('klines of %s, over slices, gaps and days', async (size, seconds) => {
    const kline_size = JSON.parse(size);
    // Ids that begin anew come after those of the day before.
    const rank = (trade: AnyTrade) =>
      (dataset.offset.unique ? 0 : Math.floor(trade.timestamp / DAY_MS) * 1e6) + trade.trade_id;
    for (const [start_date, end_date] of [
      [undefined, undefined],
      ['2023-11-29', '2024-01-20'],
      ['2023-12-29', '2023-12-30'],
    ]) {
      const body = { kline_size, ...(start_date && { start_date, end_date }) };
      const trades = within(start_date, end_date);
      const native = nativeKlines(trades, seconds * 1000, rank);
      const { rows } = await ask(`${exchange}/spot/klines`, body);
      expect(rows).toEqual(native.map((row) => ({ ...row, std: expect.closeTo(row.std as number, 5) })));
      const aligned = alignedKlines(alignedOfTrades(trades), seconds * 1000);
      expect((await ask(`${exchange}/spot/klines`, { ...body, mode: 'aligned_1s' })).rows).toEqual(aligned);
    }
    const { rows } = await ask(`${exchange}/spot/klines`, { kline_size, n_latest_rows: 3 });
    expect(rows.map((row: Kline) => row.datetime)).toEqual(
      nativeKlines(within(undefined, undefined), seconds * 1000, rank)
        .slice(-3)
        .map((row) => row.datetime),
    );
  });
});
