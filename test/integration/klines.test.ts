/**
 * Klines against an oracle over exact decimals: every size, window, mode, field and filter. Storage also holds rows that
 * nothing has proved, in the middle of buckets that are asked for.
 */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { deviationOf } from '../../serving/read/klines/sums.ts';
import { KLINE_FIELDS } from '../../shared/registry/trades.ts';
import { compares } from '../support/comparisons.ts';
import { alignedKlines, deviation, exact, type Kline, nativeKlines, SCALE, sum } from '../support/kline-oracle.ts';
import {
  alignedOf,
  claimOther,
  DATASET,
  DAY_MS,
  insertUnproved,
  loadDays,
  loadThird,
  randomDay,
  type Trade,
} from '../support/load-rows.ts';
import { runs, SEED } from '../support/seed.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const PATH = '/v1/historical/exchange_a/spot/klines';
const NOW = Date.parse('2024-03-06T12:00:00Z');
const at = (text: string) => Date.parse(text);
const iso = (ms: number) => new Date(ms).toISOString();

/** Prices and quantities that sums of doubles, or of integers of 1e-8, get wrong. */
const HARD: readonly Partial<Trade>[] = [
  { price: 4000.25, quantity: 0.2 }, // 800.05: the middle of two decimals
  { price: 0.1, quantity: 0.5 },
  { price: 0.30000000000000004, quantity: 1 },
  { price: 12345.678901234567, quantity: 1.2345678901234567 },
  { price: 40000000.12345678, quantity: 30000000.87654321 },
  { price: 123456789.12345679, quantity: 100000000.00000001 },
  { price: 500, quantity: 90000000000.5 },
  { price: 1e-8, quantity: 1e-8 },
  { price: 7.98e-5, quantity: 3.3333333333333335e-7 },
  { price: 67000, quantity: 5000.00000001 },
];

/** Every ninth trade is one of them; two lie in one second whose sum leaves an int8 of 1e-8. */
function hardDay(day: string, rows: number, firstId: number, seed: number) {
  const { trades } = randomDay(day, rows, firstId, seed);
  return {
    day,
    trades: trades.map((trade, index) => {
      if (index === 10 || index === 11) return { ...trade, timestamp: trades[10].timestamp, quantity: 9e10 };
      return { ...trade, ...(index % 9 === 0 ? HARD[(index / 9) % HARD.length] : {}) };
    }),
  };
}

// 3 March is not proved: a gap that weeks and months reach over. 31 days from 1970 on end within 5 March.
const DAYS = [
  hardDay('2024-03-01', 400, 1000, 1),
  randomDay('2024-03-02', 300, 1400, 2),
  hardDay('2024-03-04', 500, 2100, 3),
  randomDay('2024-03-05', 200, 2600, 4),
];
const UNPROVED = [
  randomDay('2024-02-29', 300, 700, 5),
  randomDay('2024-03-03', 400, 1700, 6),
  randomDay('2024-03-06', 300, 2800, 7),
];
/** Another instrument: the same days and ids, other trades. */
const OTHER = 'ETHUSDT';
const OTHER_DAYS = [
  randomDay('2024-03-01', 300, 1000, 11),
  hardDay('2024-03-02', 400, 1400, 12),
  hardDay('2024-03-04', 300, 2100, 13),
  randomDay('2024-03-05', 300, 2600, 14),
];
const OTHER_UNPROVED = [randomDay('2024-02-29', 300, 700, 15), randomDay('2024-03-03', 400, 1700, 16)];
const storedOf = (days: typeof DAYS) => ({
  trades: days.flatMap((day) => day.trades),
  seconds: days.flatMap((day) => alignedOf(day.trades)),
});
const STORED = { '': storedOf(DAYS), [OTHER]: storedOf(OTHER_DAYS) };

type Mode = 'native' | 'aligned_1s';
const MODES: readonly Mode[] = ['native', 'aligned_1s'];

interface Body {
  readonly instrument?: typeof OTHER;
  readonly mode?: Mode;
  readonly kline_size?: number | string;
  readonly start_date?: string;
  readonly end_date?: string;
  readonly n_latest_rows?: number;
  readonly n_random_rows?: number;
  readonly random_seed?: number;
  readonly fields?: readonly string[];
  readonly filters?: readonly { field: string; op: string; value: unknown }[];
  readonly strict?: boolean;
}

const SIZES: Record<string, number> = {
  '1': 1,
  '7': 7,
  '60': 60,
  '"1m"': 60,
  '"60s"': 60,
  '420': 420,
  '"90s"': 90,
  '"7m"': 420,
  '3600': 3600,
  '"1h"': 3600,
  '"4h"': 14_400,
  '86399': 86_399,
  '"1d"': 86_400,
  '100000': 100_000,
  '"1w"': 604_800,
  '2678400': 2_678_400,
};

/** All klines of the window, before filters, `n_*` and fields. */
function klinesOf(body: Body): Kline[] {
  const { instrument = '', mode = 'native', kline_size: size = 60, start_date: start, end_date: end } = body;
  const { trades, seconds } = STORED[instrument];
  const [from, to] = [start ? at(start) : 0, end ? at(end) + DAY_MS : Number.POSITIVE_INFINITY];
  const sizeMs = SIZES[JSON.stringify(size)] * 1000;
  const isWithin = (ms: number) => ms >= from && ms < to;
  return mode === 'native'
    ? nativeKlines(
        trades.filter((trade) => isWithin(trade.timestamp)),
        sizeMs,
      )
    : alignedKlines(
        seconds.filter((row) => isWithin(row.aligned_at_ms)),
        sizeMs,
      );
}

function passes(kline: Kline, { field, op, value }: { field: string; op: string; value: unknown }): boolean {
  const of = (one: unknown) => (field === 'datetime' ? at(one as string) : (one as number));
  const cell = of(kline[field]);
  return compares(cell, op, value, of);
}

function expected(body: Body): Kline[] {
  const mode = body.mode ?? 'native';
  let klines = klinesOf(body).filter((kline) => (body.filters ?? []).every((clause) => passes(kline, clause)));
  if (body.n_latest_rows !== undefined) klines = klines.slice(-body.n_latest_rows);
  const names = body.fields ?? KLINE_FIELDS[mode].map((field) => field.name);
  return klines.map((kline) => Object.fromEntries(names.map((name) => [name, kline[name]])));
}

let env: TestEnv;
let serving: Serving;

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, DAYS);
  for (const day of UNPROVED) await insertUnproved(env.databaseUrl, day.trades);
  const dataset = await claimOther(env.databaseUrl, DATASET, OTHER);
  await loadDays(env.databaseUrl, OTHER_DAYS, { dataset });
  for (const day of OTHER_UNPROVED) await insertUnproved(env.databaseUrl, day.trades, dataset);
  await loadThird(env.databaseUrl, DAYS);
  serving = await startServing({ databaseUrl: env.databaseUrl, now: () => NOW });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const ask = (body: object) => serving.send({ path: PATH, body: JSON.stringify(body) });

async function check(body: Body): Promise<void> {
  const answer = await ask(body);
  const klines = expected(body);
  if (klines.length === 0) {
    expect([answer.status, answer.json.code]).toEqual([404, 'HISTORICAL_NO_DATA']);
    return;
  }
  expect(answer.status, answer.text.slice(0, 500)).toBe(200);
  expect(answer.json.rows).toEqual(klines);
  expect(answer.json.row_count).toBe(klines.length);
}

const sizes = fc.constantFrom(...Object.keys(SIZES)).map((text) => JSON.parse(text) as number | string);
const days = fc.integer({ min: -2, max: 7 }).map((day) => iso(at('2024-03-01') + day * DAY_MS).slice(0, 10));

const windows: fc.Arbitrary<Body> = fc.oneof(
  fc.tuple(days, days).map(([a, b]) => (a < b ? { start_date: a, end_date: b } : { start_date: b, end_date: a })),
  days.map((start_date) => ({ start_date })),
  days.map((end_date) => ({ end_date })),
  fc.integer({ min: 1, max: 1500 }).map((n_latest_rows) => ({ n_latest_rows })),
  fc.constant({}),
);

/** A value that occurs, or nearly. */
function clauses(mode: Mode, klines: readonly Kline[]) {
  const names = KLINE_FIELDS[mode].map((field) => field.name);
  return fc.constantFrom(...names).chain((field) => {
    const cell = fc.constantFrom(...klines.map((kline) => kline[field]));
    const value =
      field === 'datetime'
        ? fc.tuple(cell, fc.integer({ min: -1, max: 1 })).map(([text, shift]) => iso(at(text as string) + shift))
        : cell;
    return fc.oneof(
      fc.record({ field: fc.constant(field), op: fc.constantFrom('eq', 'ne', 'gt', 'gte', 'lt', 'lte'), value }),
      fc.record({
        field: fc.constant(field),
        op: fc.constantFrom('in', 'not_in'),
        value: fc.array(value, { minLength: 1, maxLength: 4 }),
      }),
    );
  });
}

function bodies(mode: Mode): fc.Arbitrary<Body> {
  return fc.tuple(sizes, windows, fc.constantFrom(undefined, OTHER)).chain(([kline_size, window, instrument]) => {
    const asked = { mode, kline_size, ...(instrument && { instrument }) };
    const klines = klinesOf(asked);
    return fc
      .record({
        fields: fc.option(
          fc.shuffledSubarray(
            KLINE_FIELDS[mode].map((field) => field.name),
            { minLength: 1 },
          ),
          { nil: undefined },
        ),
        filters: fc.option(fc.array(clauses(mode, klines), { maxLength: 3 }), { nil: undefined }),
      })
      .map((rest) => ({ ...asked, ...window, ...rest }));
  });
}

describe('any size, window, fields and filters', () => {
  test.each(MODES)('%s klines are those of the oracle', async (mode) => {
    await fc.assert(fc.asyncProperty(bodies(mode), check), { numRuns: runs(320) });
  });

  test.each(MODES)('%s, each size, with all columns', async (mode) => {
    for (const size of Object.keys(SIZES)) {
      await check({ mode, kline_size: JSON.parse(size) });
      await check({ mode, kline_size: JSON.parse(size), instrument: OTHER });
    }
  });
});

describe('deviations', () => {
  /** The deviations of lists of prices, in units of the oracle: the answer's SQL gets their exact sums. */
  async function check(lists: readonly (readonly bigint[])[]): Promise<void> {
    const sums = lists.map((units) => {
      const squares = sum(units.map((one) => one * one));
      return `(${units.length}, ${sum(units)}e-${SCALE}, ${squares}e-${2 * SCALE})`;
    });
    const { rows } = await execute(
      env.databaseUrl,
      `select ${deviationOf('n', 's', 'q')} as std from (values ${sums.join(', ')}) k (n, s, q)`,
    );
    expect(rows.map((row) => row.std)).toEqual(lists.map(deviation));
  }

  test('halves go up, and what is just below a half does not', async () => {
    const halves = [1, 3, 5, 999_999, 1_000_001, 123_456_789].map((odd) => [0n, exact(odd / 1e6)]);
    const below = halves.map(([zero, high]) => [zero, high - 10n ** BigInt(SCALE - 20)]);
    await check([...halves, ...below, [7n], [7n, 7n, 7n], [1n, 10n ** BigInt(SCALE + 8)]]);
  });

  test('of any prices', async () => {
    const price = fc.oneof(
      fc.double({ min: 1e-8, max: 1e8, noNaN: true }),
      fc.integer({ min: 1, max: 1e9 }).map((ticks) => ticks / 1e4),
    );
    // A sample and no property: to shrink a list of hundreds of lists takes minutes.
    const lists = fc.sample(fc.array(price, { minLength: 1, maxLength: 30 }), { seed: SEED, numRuns: 500 });
    await check(lists.map((prices) => prices.map(exact)));
  });
});

describe('edges', () => {
  test.each(MODES)('a bucket that reaches out of the window is made of the rows within, %s', async (mode) => {
    // Weeks begin on Thursdays, and the window's days are a Monday and a Tuesday.
    const body = { mode, kline_size: '1w', start_date: '2024-03-04', end_date: '2024-03-05' };
    const [kline, ...others] = expected(body);
    expect(others).toEqual([]);
    expect([kline.datetime, kline.no_of_trades]).toEqual(['2024-02-29T00:00:00.000Z', 700]);
    await check(body);
    // 100,000 s do not divide a day: both ends of the window cut a bucket.
    const cut = { mode, kline_size: 100_000, start_date: '2024-03-02', end_date: '2024-03-02' };
    expect(expected(cut).reduce((sum, row) => sum + Number(row.no_of_trades), 0)).toBe(300);
    await check(cut);
  });

  test.each(MODES)('a bucket over a gap is one row, of what is proved on both sides, %s', async (mode) => {
    const { json } = await ask({ mode, kline_size: '1w' });
    expect(json.rows.map((row: Kline) => [row.datetime, row.no_of_trades])).toEqual([
      ['2024-02-29T00:00:00.000Z', 1400],
    ]);
    expect(json.warnings.map((warning: { code: string }) => warning.code)).toEqual(['WINDOW_EXCEEDS_PROVED_COVERAGE']);
  });

  test('without a size it is a minute', async () => {
    expect((await ask({})).json.rows).toEqual((await ask({ kline_size: 60 })).json.rows);
    expect((await ask({ kline_size: '60s' })).json.rows).toEqual((await ask({ kline_size: '1m' })).json.rows);
  });
});

describe('n_latest_rows', () => {
  test.each(MODES)('counts klines, over days and gaps, %s', async (mode) => {
    for (const kline_size of [1, 60, '4h', '1w']) {
      const { length } = klinesOf({ mode, kline_size });
      for (const n_latest_rows of [1, 2, 99, length - 1, length, length + 1, Number.MAX_SAFE_INTEGER]) {
        if (n_latest_rows > 0) await check({ mode, kline_size, n_latest_rows });
      }
    }
  });

  test('comes with its warning; a gap between the klines is named, one before them is not', async () => {
    const codes = async (n_latest_rows: number) =>
      (await ask({ n_latest_rows })).json.warnings.map((warning: { code: string }) => warning.code);
    expect(await codes(1)).toEqual(['WINDOW_LATEST_ROWS_MUTABLE']);
    expect(await codes(1000)).toEqual(['WINDOW_LATEST_ROWS_MUTABLE', 'WINDOW_EXCEEDS_PROVED_COVERAGE']);
    const { json } = await ask({ n_latest_rows: 3 });
    expect(json.warnings[0].details).toEqual({ n_latest_rows: 3 });
  });
});

describe('n_random_rows', () => {
  test.each(MODES)('klines as they are, in order, replayed by the seed, %s', async (mode) => {
    for (const [kline_size, filters] of [
      [60, []],
      [1, []],
      ['4h', []],
      [60, [{ field: 'no_of_trades', op: 'gte', value: 2 }]],
      ['4h', [{ field: 'datetime', op: 'gte', value: '2024-03-04T00:00:00Z' }]],
    ] as const) {
      const all = expected({ mode, kline_size, filters });
      const n_random_rows = Math.ceil(all.length / 3);
      const { json } = await ask({ mode, kline_size, filters, n_random_rows, random_seed: 11 });
      expect(json.rows.length).toBe(n_random_rows);
      const stamps = json.rows.map((row: Kline) => row.datetime);
      expect(stamps).toEqual([...new Set(stamps)].sort());
      for (const row of json.rows) expect(row).toEqual(all.find((kline) => kline.datetime === row.datetime));
      const again = await ask({ mode, kline_size, filters, n_random_rows, random_seed: 11 });
      expect(again.json.rows).toEqual(json.rows);
      const other = await ask({ mode, kline_size, filters, n_random_rows, random_seed: 12 });
      expect(other.json.rows.length).toBe(n_random_rows);
      if (all.length > 20) expect(other.json.rows).not.toEqual(json.rows);
      if (kline_size === 1) continue;
      const more = await ask({ mode, kline_size, filters, n_random_rows: all.length + 1 });
      expect(more.json.rows).toEqual(all);
    }
  });

  test.each([
    ['by tries', 10, {}],
    ['filtered, by tries', 5, { filters: [{ field: 'no_of_trades', op: 'gte', value: 5 }] }],
  ] as const)('every kline is as likely, %s', { tags: ['nightly'] }, async (_, n_random_rows, more) => {
    const body = { kline_size: '1h', fields: ['datetime'], ...more };
    const all = expected(body).map((kline) => kline.datetime as string);
    expect(all.length).toBeGreaterThan(2 * n_random_rows);
    const hits = new Map(all.map((stamp) => [stamp, 0]));
    const draws = 150;
    for (let seed = 0; seed < draws; seed++) {
      const { json } = await ask({ ...body, n_random_rows, random_seed: seed });
      for (const row of json.rows) hits.set(row.datetime, hits.get(row.datetime)! + 1);
    }
    const mean = (draws * n_random_rows) / all.length;
    // Chi-square with all.length - 1 degrees of freedom stays below this in all but one of ten thousand runs.
    const chi = [...hits.values()].reduce((sum, count) => sum + (count - mean) ** 2 / mean, 0);
    const freedom = all.length - 1;
    expect(chi).toBeLessThan(freedom + 4 * Math.sqrt(2 * freedom) + 10);
    expect(chi).toBeGreaterThan(freedom / 8);
  });
});
