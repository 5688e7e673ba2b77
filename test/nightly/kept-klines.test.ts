/**
 * Klines from kept ones and from seconds against the same klines from rows, bit for bit: two databases hold the same trades, and one of
 * them holds kept klines of most days. Kept klines that nothing proves lie among the others.
 */

import { once } from 'node:events';
import fc from 'fast-check';
import type pg from 'pg';
import { from as copyFrom } from 'pg-copy-streams';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DayKlines } from '../../pipelines/rows/kept-klines.ts';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { parseMultirange, type Range } from '../../shared/ranges.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { instrumentDataset, parseInstrument, slotNumber } from '../../shared/registry/instruments.ts';
import { isWholeSize, KEPT_COLUMNS, KEPT_SIZES_MS, KLINE_TABLES } from '../../shared/registry/kept-klines.ts';
import { dayKeyOf, windowOf } from '../../shared/registry/keys.ts';
import { KLINE_FIELDS } from '../../shared/registry/trades.ts';
import { type AnyTrade, alignedKlines, exact, type Kline, nativeKlines, SCALE, sum } from '../support/kline-oracle.ts';
import { type AlignedRow, claimOther, round } from '../support/load-rows.ts';
import { alignedOfTrades, type FileDay, loadFileDays } from '../support/load-trades.ts';
import { SEED } from '../support/seed.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, loadRows, type TestEnv } from '../support/stack.ts';

const NOW = Date.parse('2024-03-16T12:00:00Z');
const [A, B, C] = ['a', 'b', 'c'].map((letter) => datasetOf(`exchange_${letter}_spot_trades`));
/** Another instrument of A, with ids of its default's: the first that a database has, so its number is known. */
const OTHER = instrumentDataset(A, parseInstrument('ETHUSDT')!, slotNumber(A, 1));
const DATASETS = [A, B, C, OTHER];
type Mode = 'native' | 'aligned_1s';
const MODES: readonly Mode[] = ['native', 'aligned_1s'];

/** After the day without kept klines come five runs of time, more than a statement compares one by one. */
const KEYS = ['01', '02', '04', '05', '06', '07', '09', '11', '13', '15'].map((day) => `2024-03-${day}`);
/** Days of which nothing is proved, and kept klines are left over. */
const LEFT_OVER = ['2024-03-03', '2024-03-08', '2024-03-12'];
/** Proved, and no klines are kept of it. */
const UNKEPT = '2024-03-05';

/** The days of B whose klines two partitions share in the revisions that are proved. */
const SHARED: readonly string[] = ['2024-03-01', '2024-03-04'];

/** Prices and quantities that sums of doubles, or of integers of 1e-8, get wrong. */
const HARD: readonly Partial<AnyTrade>[] = [
  { price: 4000.25, quantity: 0.2 },
  { price: 0.30000000000000004, quantity: 1 },
  { price: 12345.678901234567, quantity: 1.2345678901234567 },
  { price: 40000000.12345678, quantity: 30000000.87654321 },
  { price: 1e-8, quantity: 1e-8 },
  { price: 67000, quantity: 5000.00000001 },
];

const windowOfDay = (dataset: DatasetDefinition, day: string) => windowOf(dataset, dayKeyOf(dataset, day));

/** Trades of a file day, crowded at both of its ends, with one in its first and in its last millisecond. The order of ids is nearly that of the times. */
function dayOf(dataset: DatasetDefinition, key: string, index: number): FileDay {
  const random = seededRandom(SEED + 100 * dataset.number + index);
  const { fromMs, toMs } = windowOfDay(dataset, key);
  const times = Array.from({ length: 350 }, () => {
    const [share, near] = [random(), random() * 3_600_000];
    const far = random() * DAY_MS;
    return Math.floor(share < 0.3 ? fromMs + near : share < 0.6 ? toMs - near - 1 : fromMs + Math.min(far, DAY_MS - 1));
  }).sort((a, b) => a - b);
  times[0] = fromMs;
  times[times.length - 1] = toMs - 1;
  // The other instrument has lower ids again from 7 March on.
  const isAgain = dataset === OTHER && key === '2024-03-07';
  const firstId = !dataset.offset.unique ? 1 : isAgain ? 500 : 1000 * (index + 1);
  const trades = times.map((timestamp, at): AnyTrade => {
    const price = round(40_000 + 500 * Math.sin(at / 50) + random() * 10, random() < 0.9 ? 2 : 8);
    const trade = {
      trade_id: firstId + (at % 16 < 2 && at > 1 ? at ^ 1 : at),
      timestamp,
      price,
      quantity: round(random() * 0.5 + 1e-5, random() < 0.9 ? 5 : 8),
      is_buyer_maker: random() < 0.5 ? (0 as const) : (1 as const),
    };
    return { ...trade, ...(at % 41 === 0 ? HARD[Math.floor(at / 41) % HARD.length] : {}) };
  });
  return { key, trades };
}

const WORLDS = new Map(DATASETS.map((dataset) => [dataset, KEYS.map((key, index) => dayOf(dataset, key, index))]));
const dayWithKey = (dataset: DatasetDefinition, key: string) => WORLDS.get(dataset)!.find((day) => day.key === key)!;

/** SQL that makes kept klines unlike what the rows give. */
const SPOIL = `open = open + 1e6, high = high + 1e6, volume = volume + 1e6, quantity_total = quantity_total + 1000000`;

interface Side {
  readonly env: TestEnv;
  readonly serving: Serving;
}

let kept: Side;
let plain: Side;

async function sideOf(): Promise<Side> {
  const env = await createMigratedEnv();
  expect(await claimOther(env.databaseUrl, A.key, OTHER.instrument!)).toBe(OTHER);
  for (const dataset of DATASETS) await loadFileDays(env.databaseUrl, dataset, WORLDS.get(dataset)!);
  return { env, serving: await startServing({ databaseUrl: env.databaseUrl, now: () => NOW }) };
}

async function keepAll({ databaseUrl }: TestEnv): Promise<void> {
  for (const dataset of DATASETS) {
    const days = WORLDS.get(dataset)!;
    const leftOver = LEFT_OVER.map((key, index) => dayOf(dataset, key, 50 + index));
    await keepKlines(databaseUrl, dataset, [...days, ...leftOver]);
    for (const key of [UNKEPT, ...LEFT_OVER]) {
      const { fromMs, toMs } = windowOfDay(dataset, key);
      for (const table of [KLINE_TABLES.native, KLINE_TABLES.aligned]) {
        await execute(
          databaseUrl,
          `update ${table} set ${SPOIL} where dataset_id = ${dataset.number} and start_ms >= ${fromMs} and start_ms < ${toMs}`,
        );
      }
    }
    await execute(
      databaseUrl,
      `update partitions set klines_sha256 = null where dataset_id = ${dataset.number} and partition_key = '${dayKeyOf(dataset, UNKEPT)}'`,
    );
  }
  const pair = (...keys: [string, string]) => keys.map((key) => dayWithKey(B, key)) as [FileDay, FileDay];
  await keepSharedKlines(databaseUrl, B, [
    { days: pair('2024-03-01', '2024-03-02') },
    { days: pair('2024-03-04', '2024-03-05') },
    { days: pair('2024-03-05', '2024-03-06'), revisions: [2, 1] },
    { days: pair('2024-03-06', '2024-03-07'), revisions: [1, 2] },
  ]);
  await execute(databaseUrl, `update ${KLINE_TABLES.shared} set ${SPOIL} where first_revision + second_revision > 2`);
}

const SIZES: readonly (number | string)[] = [
  ...[1, 7, 45, 60, 90, 420, 997, 3600, 86_399, 100_000, 2_678_400],
  ...['2m', '5m', '7m', '15m', '30m', '1h', '2h', '4h', '6h', '8h', '12h', '1d', '2d', '1w'],
];

/** The columns that seconds determine. */
const OF_SECONDS = ['datetime', 'open', 'high', 'low', 'close', 'volume', 'no_of_trades'];

const pathOf = (dataset: DatasetDefinition) => `/v1/historical/${dataset.trades!.klinesPath}`;
const ask = ({ serving }: Side, dataset: DatasetDefinition, body: object) =>
  serving.send({ path: pathOf(dataset), body: JSON.stringify({ instrument: dataset.instrument, ...body }) });

const nameOfDataset = ({ key, instrument }: DatasetDefinition) => [key, instrument].filter(Boolean).join(':');
/** All klines from rows, by dataset, mode and size: the values that filters compare with. */
const all = new Map<string, readonly Kline[]>();
const nameOf = (dataset: DatasetDefinition, mode: Mode, size: number | string) =>
  `${nameOfDataset(dataset)} ${mode} ${size}`;

beforeAll(async () => {
  [kept, plain] = await Promise.all([sideOf(), sideOf()]);
  await keepAll(kept.env);
  for (const dataset of DATASETS) {
    for (const mode of MODES) {
      for (const kline_size of SIZES) {
        const { json } = await ask(plain, dataset, { mode, kline_size });
        all.set(nameOf(dataset, mode, kline_size), json.rows);
      }
    }
  }
}, 120_000);
afterAll(async () => {
  for (const side of [kept, plain]) {
    await side.serving[Symbol.asyncDispose]();
    await side.env[Symbol.asyncDispose]();
  }
});

async function compare(dataset: DatasetDefinition, body: object): Promise<void> {
  const [found, expected] = await Promise.all([ask(kept, dataset, body), ask(plain, dataset, body)]);
  expect([found.status, found.json.code]).toEqual([expected.status, expected.json.code]);
  expect(found.json.rows).toEqual(expected.json.rows);
  expect(found.json.warnings).toEqual(expected.json.warnings);
}

const days = fc
  .integer({ min: -2, max: 15 })
  .map((day) => new Date(Date.parse('2024-03-01') + day * DAY_MS).toISOString().slice(0, 10));

const windows: fc.Arbitrary<object> = fc.oneof(
  fc.tuple(days, days).map(([a, b]) => (a < b ? { start_date: a, end_date: b } : { start_date: b, end_date: a })),
  days.map((start_date) => ({ start_date })),
  days.map((end_date) => ({ end_date })),
  fc.integer({ min: 1, max: 2500 }).map((n_latest_rows) => ({ n_latest_rows })),
  fc.record({ n_random_rows: fc.integer({ min: 1, max: 300 }), random_seed: fc.nat() }),
  fc.constant({}),
);

/** A value that occurs, or nearly. */
function clauses(mode: Mode, klines: readonly Kline[]) {
  return fc.constantFrom(...KLINE_FIELDS[mode].map(({ name }) => name)).chain((field) => {
    const cell = fc.constantFrom(...klines.map((kline) => kline[field]));
    const shifted = (text: string, ms: number) => new Date(Date.parse(text) + ms).toISOString();
    const value =
      field === 'datetime'
        ? fc.tuple(cell, fc.integer({ min: -1, max: 1 })).map(([text, ms]) => shifted(text as string, ms))
        : cell;
    return fc.record({ field: fc.constant(field), op: fc.constantFrom('eq', 'ne', 'gt', 'gte', 'lt', 'lte'), value });
  });
}

function requests(dataset: DatasetDefinition, mode: Mode): fc.Arbitrary<object> {
  const names = KLINE_FIELDS[mode].map(({ name }) => name);
  return fc.tuple(fc.constantFrom(...SIZES), windows).chain(([kline_size, window]) => {
    const klines = all.get(nameOf(dataset, mode, kline_size))!;
    return fc
      .record({
        fields: fc.option(
          fc.oneof(fc.shuffledSubarray(names, { minLength: 1 }), fc.shuffledSubarray(OF_SECONDS, { minLength: 1 })),
          {
            nil: undefined,
          },
        ),
        filters: fc.option(fc.array(clauses(mode, klines), { maxLength: 2 }), { nil: undefined }),
      })
      .map((rest) => ({ mode, kline_size, ...window, ...rest }));
  });
}

const CASES = DATASETS.flatMap((dataset) => MODES.map((mode) => [nameOfDataset(dataset), mode, dataset] as const));

describe('with kept klines and without them the answers are equal', () => {
  test.each(CASES)('%s, %s: every size, with all columns', async (_name, mode, dataset) => {
    for (const kline_size of SIZES) {
      await compare(dataset, { mode, kline_size });
      await compare(dataset, { mode, kline_size, fields: OF_SECONDS });
    }
  });

  test.each(CASES)('%s, %s: any size, window, fields and filters', async (_name, mode, dataset) => {
    await fc.assert(
      fc.asyncProperty(requests(dataset, mode), (body) => compare(dataset, body)),
      { numRuns: 60 },
    );
  });
});

describe('kept klines are what is read', () => {
  /** Runs `check` while the highest price of all kept klines is negative, which no price is. */
  async function whileNegative(check: () => Promise<void>): Promise<void> {
    const tables = Object.values(KLINE_TABLES);
    const negate = () =>
      execute(kept.env.databaseUrl, tables.map((table) => `update ${table} set high = -high`).join('; '));
    await negate();
    try {
      await check();
    } finally {
      await negate();
    }
  }

  const UNIT_MS: Readonly<Record<string, number>> = { s: 1000, m: 60_000, h: 3_600_000, d: DAY_MS, w: 7 * DAY_MS };
  const lengthOf = (size: number | string) =>
    typeof size === 'number' ? size * 1000 : Number(size.slice(0, -1)) * UNIT_MS[size.slice(-1)];

  /** Whether the kline comes from kept ones: every proved file day that it is of has them, or two days share it. */
  function isKept(dataset: DatasetDefinition, mode: Mode, sizeMs: number, start: string, window: Range): boolean {
    if (sizeMs % 60_000 !== 0) return false;
    const from = Date.parse(start);
    const to = from + sizeMs;
    const isShared = dataset === B && mode === 'native' && sizeMs === DAY_MS;
    if (isShared && SHARED.includes(start.slice(0, 10)) && window.from <= from && to <= window.to) return true;
    return KEYS.filter((key) => key === UNKEPT).every((key) => {
      const { fromMs, toMs } = windowOfDay(dataset, key);
      return Math.max(fromMs, from, window.from) >= Math.min(toMs, to, window.to);
    });
  }

  /** Asks for klines of every size in several windows: negative are the highest prices of those that `isNegative` says. @returns how many */
  async function checkNegative(
    dataset: DatasetDefinition,
    more: object,
    isNegative: (sizeMs: number, start: string, window: Range) => boolean,
  ): Promise<number> {
    let count = 0;
    for (const kline_size of SIZES) {
      for (const [first, last] of [
        ['01', '16'],
        ['04', '05'],
        ['06', '06'],
      ]) {
        const [start_date, end_date] = [`2024-03-${first}`, `2024-03-${last}`];
        const window = { from: Date.parse(start_date), to: Date.parse(end_date) + DAY_MS };
        const body = { kline_size, start_date, end_date, fields: ['datetime', 'high'], ...more };
        const { rows } = (await ask(kept, dataset, body)).json;
        const found = rows.filter((row: Kline) => (row.high as number) < 0).map((row: Kline) => row.datetime);
        const expected = rows
          .map((row: Kline) => row.datetime as string)
          .filter((start: string) => isNegative(lengthOf(kline_size), start, window));
        expect([kline_size, start_date, found]).toEqual([kline_size, start_date, expected]);
        count += found.length;
      }
    }
    return count;
  }

  test.each(CASES)('%s, %s: wherever there are kept ones, and nowhere else', async (_name, mode, dataset) => {
    await whileNegative(async () => {
      await checkNegative(dataset, { mode }, (...of) => isKept(dataset, mode, ...of));
    });
  });

  const inexact = new Map<DatasetDefinition, readonly Range[]>();
  beforeAll(() => {
    for (const dataset of DATASETS) {
      inexact.set(
        dataset,
        WORLDS.get(dataset)!.flatMap((day) => parseMultirange(inexactSeconds(dataset, day))),
      );
    }
  });

  /** Whether the kline comes from seconds: its trades lie in file days with kept klines, whose seconds add up to it. */
  function isOfSeconds(dataset: DatasetDefinition, sizeMs: number, start: string, window: Range): boolean {
    if (sizeMs % 60_000 === 0) return false;
    const bucket = { from: Date.parse(start), to: Date.parse(start) + sizeMs };
    const overlaps = (range: Range) =>
      Math.max(range.from, bucket.from, window.from) < Math.min(range.to, bucket.to, window.to);
    const own = KEYS.filter((key) => {
      const { fromMs, toMs } = windowOfDay(dataset, key);
      return overlaps({ from: fromMs, to: toMs });
    });
    const again = Date.parse('2024-03-07');
    const isAgain = dataset === OTHER && window.from < again && again < window.to;
    if (isAgain && overlaps({ from: again - 1, to: again + 1 })) return false;
    return !own.includes(UNKEPT) && !inexact.get(dataset)!.some(overlaps);
  }

  test.each(DATASETS.map((dataset) => [nameOfDataset(dataset), dataset] as const))(
    '%s: seconds of other sizes, wherever they add up, and nowhere else',
    async (_name, dataset) => {
      const negate = () =>
        execute(
          kept.env.databaseUrl,
          `update ${ALIGNED_TABLE} set high_price = -high_price where dataset_id = ${dataset.number}`,
        );
      await negate();
      const ofSeconds = await checkNegative(dataset, {}, (...of) => isOfSeconds(dataset, ...of));
      // Other fields need rows.
      expect(await checkNegative(dataset, { fields: ['datetime', 'high', 'mean'] }, () => false)).toBe(0);
      await negate();
      expect(ofSeconds).toBeGreaterThan(1000);
    },
  );

  test('also the newest and random ones', async () => {
    await whileNegative(async () => {
      for (const window of [{ n_latest_rows: 3 }, { n_random_rows: 3, random_seed: 4 }]) {
        const days = await ask(kept, A, { kline_size: '1d', fields: ['datetime', 'high'], ...window });
        expect(days.json.rows.length).toBe(3);
        for (const { datetime, high } of days.json.rows) expect(high < 0).toBe(!datetime.startsWith(UNKEPT));
      }
    });
  });

  test('a lost one is noticed, and its partition is to be recounted', async () => {
    const { databaseUrl } = kept.env;
    const seconds = { kline_size: 7, fields: ['datetime', 'volume'], start_date: '2024-03-06', end_date: '2024-03-06' };
    const of = `dataset_id = 1 and aligned_at_utc >= '2024-03-06T12:00Z' and aligned_at_utc < '2024-03-07Z'`;
    await execute(
      databaseUrl,
      `create table saved as select * from ${ALIGNED_TABLE} where ${of} limit 1;
       delete from ${ALIGNED_TABLE} t using saved s where t.dataset_id = s.dataset_id and t.aligned_at_utc = s.aligned_at_utc`,
    );
    const answer = await ask(kept, A, seconds);
    expect([answer.status, answer.json.code]).toEqual([503, 'HISTORICAL_RUNTIME_ERROR']);
    const { rows } = await execute(databaseUrl, 'select partition_key from recount_requests');
    expect(rows).toEqual([{ partition_key: '2024-03-06' }]);
    await execute(
      databaseUrl,
      `insert into ${ALIGNED_TABLE} select * from saved; drop table saved; truncate recount_requests`,
    );
    await compare(A, seconds);
    for (const [mode, table] of [
      ['native', KLINE_TABLES.native],
      ['aligned_1s', KLINE_TABLES.aligned],
    ] as const) {
      const of = `dataset_id = 1 and size_s = 3600 and start_ms >= ${Date.parse('2024-03-06')} and start_ms < ${Date.parse('2024-03-07')}`;
      await execute(
        databaseUrl,
        `create table saved as select * from ${table} where ${of} limit 1;
        delete from ${table} k using saved s where k.dataset_id = s.dataset_id and k.size_s = s.size_s and k.start_ms = s.start_ms`,
      );
      const answer = await ask(kept, A, { mode, kline_size: '1h' });
      expect([answer.status, answer.json.code]).toEqual([503, 'HISTORICAL_RUNTIME_ERROR']);
      const { rows } = await execute(databaseUrl, 'select partition_key from recount_requests');
      expect(rows).toEqual([{ partition_key: '2024-03-06' }]);
      await execute(
        databaseUrl,
        `insert into ${table} select * from saved; drop table saved; truncate recount_requests`,
      );
      await compare(A, { mode, kline_size: '1h' });
    }
  });
});

// Kept klines as the projector leaves them, made by the oracle of klines: for tests of the serving side.

type Cells = Readonly<Record<string, number | string>>;

/** Two file days that share klines, and the revisions that these are said to be made of. */
interface SharedDays {
  readonly days: readonly [FileDay, FileDay];
  readonly revisions?: readonly [number, number];
}

const decimalOf = (units: bigint, scale = SCALE) => `${units}e-${scale}`;

/** A number for each trade that orders the trades of several days: the day first, then the id. */
function ranksOf(days: readonly FileDay[]): (trade: AnyTrade) => number {
  const ranks = new Map<AnyTrade, number>();
  for (const { trades } of days) {
    for (const trade of trades.toSorted((a, b) => a.trade_id - b.trade_id)) ranks.set(trade, ranks.size);
  }
  return (trade) => ranks.get(trade)!;
}

/** The kept native klines of the trades: the columns of the table. */
function keptNative(days: readonly FileDay[], sizeMs: number): Cells[] {
  const trades = days.flatMap((day) => day.trades);
  const rank = ranksOf(days);
  const groups = groupsOf(trades, sizeMs, (trade) => trade.timestamp);
  return nativeKlines(trades, sizeMs, rank).map((kline) => {
    const startMs = startOf(kline);
    const rows = groups.get(startMs)!.toSorted((a, b) => rank(a) - rank(b));
    const makers = rows.filter((row) => row.is_buyer_maker === 1);
    const quantities = (of: readonly AnyTrade[]) => decimalOf(sum(of.map((row) => exact(row.quantity))));
    const products = (of: readonly AnyTrade[]) =>
      decimalOf(sum(of.map((row) => exact(row.price) * exact(row.quantity))), 2 * SCALE);
    return {
      ...kline,
      start_ms: startMs,
      makers: makers.length,
      first_id: rows[0].trade_id,
      last_id: rows[rows.length - 1].trade_id,
      size_s: sizeMs / 1000,
      price_total: decimalOf(sum(rows.map((row) => exact(row.price)))),
      price_square_total: decimalOf(sum(rows.map((row) => exact(row.price) ** 2n)), 2 * SCALE),
      quantity_total: quantities(rows),
      liquidity_total: products(rows),
      maker_quantity_total: quantities(makers),
      maker_liquidity_total: products(makers),
    };
  });
}

/** The kept aligned klines of aligned rows. */
function keptAligned(rows: readonly AlignedRow[], sizeMs: number): Cells[] {
  const groups = groupsOf(rows, sizeMs, (row) => row.aligned_at_ms);
  return alignedKlines(rows, sizeMs).map((kline) => {
    const startMs = startOf(kline);
    const group = groups.get(startMs)!;
    return {
      ...kline,
      start_ms: startMs,
      rows: group.length,
      size_s: sizeMs / 1000,
      quantity_total: decimalOf(sum(group.map((row) => exact(row.quantity_sum)))),
      liquidity_total: decimalOf(sum(group.map((row) => exact(row.quote_volume_sum)))),
    };
  });
}

const startOf = (kline: Kline) => Date.parse(kline.datetime as string);

const groupsOf = <T>(rows: readonly T[], sizeMs: number, timeOf: (row: T) => number) =>
  Map.groupBy(rows, (row) => Math.floor(timeOf(row) / sizeMs) * sizeMs);

/** The seconds that do not add up, as the projector finds them. */
function inexactSeconds(dataset: DatasetDefinition, { key, trades }: FileDay): string {
  const klines = new DayKlines({ key, ...windowOfDay(dataset, key) });
  for (const one of trades) klines.add(one.timestamp, one.trade_id, one.price, one.quantity, one.is_buyer_maker);
  const ids = Map.groupBy(trades, ({ timestamp }) => Math.floor(timestamp / 1000) * 1000);
  for (const row of alignedOfTrades(trades)) {
    const own = ids.get(row.aligned_at_ms)!.map((trade) => trade.trade_id);
    const { open_price: open, high_price: high, low_price: low, close_price: close } = row;
    const { quantity_sum: quantity, quote_volume_sum: quote, trade_count: count } = row;
    const second = { open, high, low, close, quantity, quote, trades: count };
    klines.addSecond(row.aligned_at_ms, second, { firstId: Math.min(...own), lastId: Math.max(...own) });
  }
  return klines.build(dataset.number).inexactSeconds;
}

/** Stores the whole klines of the file days, which are proved, and says so in their partitions. */
async function keepKlines(url: string, dataset: DatasetDefinition, days: readonly FileDay[]): Promise<void> {
  await loadRows(url, async (client) => {
    for (const day of days) {
      for (const sizeMs of KEPT_SIZES_MS.filter((size) => isWholeSize(dataset, size))) {
        await insertKept(client, dataset, 'native', keptNative([day], sizeMs));
        await insertKept(client, dataset, 'aligned', keptAligned(alignedOfTrades(day.trades), sizeMs));
      }
      await client.query(
        `update partitions set klines_sha256 = 'kept', inexact_seconds = $3 where dataset_id = $1 and partition_key = $2`,
        [dataset.number, dayKeyOf(dataset, day.key), inexactSeconds(dataset, day)],
      );
    }
  });
}

/** Stores the native klines of a day that pairs of file days share, where two days overlap. */
async function keepSharedKlines(url: string, dataset: DatasetDefinition, pairs: readonly SharedDays[]): Promise<void> {
  await loadRows(url, async (client) => {
    for (const { days, revisions = [1, 1] } of pairs) {
      const start = Date.parse(`${days[0].key}T00:00:00Z`);
      const isWithin = ({ timestamp }: AnyTrade) => timestamp >= start && timestamp < start + DAY_MS;
      const klines = keptNative(
        days.map((day) => ({ ...day, trades: day.trades.filter(isWithin) })),
        DAY_MS,
      );
      await insertKept(client, dataset, 'shared', klines, {
        first_partition: days[0].key,
        first_revision: revisions[0],
        second_partition: days[1].key,
        second_revision: revisions[1],
      });
    }
  });
}

async function insertKept(
  client: pg.Client,
  { number }: DatasetDefinition,
  kind: keyof typeof KLINE_TABLES,
  klines: readonly Cells[],
  more: Cells = {},
): Promise<void> {
  const columns = KEPT_COLUMNS[kind === 'aligned' ? 'aligned' : 'native'].map(({ name }) => name);
  const names = [...columns, ...Object.keys(more)];
  const stream = client.query(copyFrom(`copy ${KLINE_TABLES[kind]} (${names.join(', ')}) from stdin`));
  const finished = once(stream, 'finish');
  const lines = klines.map((kline) => {
    const cells: Cells = { ...kline, dataset_id: number, ...more };
    return `${names.map((name) => cells[name]).join('\t')}\n`;
  });
  stream.end(lines.join(''));
  await finished;
}
