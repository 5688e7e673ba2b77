/** Which granules a search leaves out: bands of values that few granules hold, rows at their ends, and what is not known of some. */
import fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { PgConnection } from '../../serving/db/pg-connection.ts';
import type { Json } from '../support/command.ts';
import { DATASET, DAY_MS, loadDays, round, type Trade } from '../support/load-rows.ts';
import { runs, SEED } from '../support/seed.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, loadRows, type TestEnv } from '../support/stack.ts';

const FIRST_MS = Date.parse('2024-05-01');
const [DAYS, ROWS, FRAME_ROWS, GRANULE] = [6, 3000, 1000, 256];
const BANDS = 12;
const COLUMNS = ['price', 'quantity', 'quote_quantity'] as const;

/** The rows of a granule, by id. */
interface Granule {
  readonly day: string;
  readonly base: number;
  readonly rows: readonly Trade[];
}

const granules: Granule[] = [];
/** In the order of time. */
let rows: readonly Trade[];
let env: TestEnv;
let serving: Serving;

/** A day whose granules have a band of prices each, and overlap in time; many rows have the same. */
function dayOf(index: number): { readonly day: string; readonly trades: readonly Trade[] } {
  const random = seededRandom(SEED + index);
  const from = FIRST_MS + index * DAY_MS;
  const day = new Date(from).toISOString().slice(0, 10);
  const trades = Array.from({ length: ROWS }, (_, at): Trade => {
    const granule = Math.floor((at % FRAME_ROWS) / GRANULE);
    const band = (7 * Math.floor(at / FRAME_ROWS) + 3 * granule + 5 * index) % BANDS;
    const near = Math.min(ROWS - 1, Math.max(0, at + Math.floor((random() - 0.5) * 120)));
    const price = round(1000 * (band + 1) + random() * 100, 2);
    const quantity = round(1 + ((band + index) % 5) + random() / 2, 5);
    return {
      trade_id: 1 + index * ROWS + at,
      timestamp: from + Math.floor((near * DAY_MS) / ROWS / 60_000) * 60_000,
      price,
      quantity,
      quote_quantity: round(price * quantity, 8),
      is_buyer_maker: 0,
      is_best_match: 1,
    };
  });
  for (let base = 0; base < ROWS; base += FRAME_ROWS) {
    const frame = trades.slice(base, base + FRAME_ROWS);
    for (let at = 0; at < FRAME_ROWS; at += GRANULE) granules.push({ day, base, rows: frame.slice(at, at + GRANULE) });
  }
  return { day, trades };
}

/** The granules by frame. */
const framesOf = () => [...Map.groupBy(granules, ({ day, base }) => `${day} ${base}`).values()];

/** The first and the last row. */
function endsOf(list: readonly Trade[]): readonly [Trade, Trade] {
  const byTime = list.toSorted((a, b) => a.timestamp - b.timestamp);
  return [byTime[0], byTime[byTime.length - 1]];
}

beforeAll(async () => {
  env = await createMigratedEnv();
  const days = Array.from({ length: DAYS }, (_, index) => dayOf(index));
  rows = days.flatMap(({ trades }) => trades).sort((a, b) => a.timestamp - b.timestamp || a.trade_id - b.trade_id);
  await loadDays(env.databaseUrl, days, { rowsPerFrame: FRAME_ROWS });
  serving = await startServing({ databaseUrl: env.databaseUrl, limits: { granuleLookupRows: 1 } });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const sql = (text: string, values: unknown[] = []) =>
  loadRows(env.databaseUrl, async (client) => {
    await client.query(text, values);
  });

// Frames of every other day have ranges, so that some stretches are left of them before their granules are asked for.
beforeEach(async () => {
  for (const frame of framesOf()) {
    const times = frame.map((one) => one.rows.map(({ timestamp }) => timestamp));
    const first = Math.min(...times.flat());
    const ranges = COLUMNS.flatMap((column) => {
      const values = frame.map((one) => one.rows.map((row) => row[column]));
      return [values.map((of) => Math.min(...of)), values.map((of) => Math.max(...of))];
    });
    const [{ day, base }] = frame;
    const [least, greatest] = [Math.min(...ranges[0]), Math.max(...ranges[1])];
    const isRanged = Number(day.slice(-2)) % 2 === 0;
    await sql(
      `update frames set granule_first_ms = $1, granule_last_ms = $2, granule_ranges = $3, value_ranges = $4
       where partition_key = $5 and row_base = $6`,
      [
        times.map((of) => Math.min(...of) - first),
        times.map((of) => Math.max(...of) - first),
        ranges.flat(),
        isRanged ? JSON.stringify({ price: [least, greatest] }) : null,
        day,
        base,
      ],
    );
  }
});

type Clause = readonly ['price' | 'quantity', 'gte' | 'lte' | 'eq', number];
interface Request {
  readonly n_rows?: number;
  readonly time_range?: readonly string[];
}

const passes = (row: Trade, [field, op, value]: Clause) =>
  op === 'eq' ? row[field] === value : op === 'gte' ? row[field] >= value : row[field] <= value;

async function check(body: Request, clauses: readonly Clause[]): Promise<void> {
  const [from, to] = body.time_range?.map(Date.parse) ?? [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
  const expected = rows
    .filter((row) => from <= row.timestamp && row.timestamp < to && clauses.every((clause) => passes(row, clause)))
    .slice(body.n_rows === undefined ? 0 : -body.n_rows)
    .map((row) => row.trade_id);
  const filters = clauses.map(([field, op, value]) => ({ field, op, value }));
  const { status, json } = await serving.query({ sources: [DATASET], ...body, filters, fields: ['trade_id'] });
  expect(status === 404 ? [] : json.rows.map((row: Json) => row.trade_id)).toEqual(expected);
}

const windows: fc.Arbitrary<Request> = fc.oneof(
  fc.constant({}),
  fc.integer({ min: 1, max: 2000 }).map((n_rows) => ({ n_rows })),
  // Borders at times of rows, too.
  fc.tuple(fc.nat(DAYS * 1440), fc.integer({ min: 200, max: 4000 })).map(([minute, minutes]) => {
    const from = FIRST_MS + minute * 60_000;
    return { time_range: [from, from + minutes * 60_000].map((ms) => new Date(ms).toISOString()) };
  }),
);
const bands = fc
  .tuple(fc.nat(BANDS - 1), fc.integer({ min: 0, max: 99 }), fc.boolean(), fc.integer({ min: 1, max: 5 }))
  .map(([band, above, hasQuantity, quantity]): Clause[] => [
    ['price', 'gte', 1000 * (band + 1) + above],
    ['price', 'lte', 1000 * (band + 1) + 100],
    ...(hasQuantity ? ([['quantity', 'lte', quantity + 0.25]] as Clause[]) : []),
  ]);

test('a row at either end of the times of its granule or frame is found by its price', async () => {
  const run = vi.spyOn(PgConnection.prototype, 'run');
  try {
    for (const { rows: own } of granules) {
      for (const { price } of endsOf(own)) await check({}, [['price', 'eq', price]]);
    }
    for (const frame of framesOf().map((of) => of.flatMap((one) => one.rows))) {
      // It is the only one of its frame that the window has.
      const [{ price: first, timestamp: from }, { price: last, timestamp: to }] = endsOf(frame);
      const window = (ms: number) => [ms, ms + DAY_MS].map((one) => new Date(one).toISOString());
      await check({ time_range: window(from + 1 - DAY_MS) }, [['price', 'eq', first]]);
      await check({ time_range: window(to) }, [['price', 'eq', last]]);
    }
    // A price is that of one granule in twelve: the others are left out.
    const texts = run.mock.calls.flatMap(([steps]) => steps.map(({ statement }) => statement.text));
    expect(texts.filter((text) => text.includes('s (from_ms, to_ms, number)')).length).toBeGreaterThan(granules.length);
  } finally {
    run.mockRestore();
  }
});

test.each<[string, () => Promise<void>]>([
  ['of all of them', async () => {}],
  [
    'none of a frame',
    () =>
      sql(`update frames set granule_first_ms = null, granule_last_ms = null,
     granule_ranges = null where partition_key = '2024-05-03' and row_base = 1000`),
  ],
  [
    'no range of prices of the first of each frame',
    () =>
      sql(`update frames set granule_ranges[1] = 'NaN',
     granule_ranges[5] = 'NaN'`),
  ],
  [
    'no range of quantities',
    () =>
      sql(`update frames set granule_ranges = granule_ranges[:8] ||
     array_fill('NaN'::float8, array[16])`),
  ],
])('the rows of a band of prices are those that pass, with times and ranges %s', async (_, alter) => {
  await alter();
  await fc.assert(fc.asyncProperty(windows, bands, check), { numRuns: runs(160) });
});

test('and of a day of which the log lost a frame', async () => {
  const at = `partition_key = '2024-05-03' and row_base = 1000`;
  await sql(`create table kept as select * from frames where ${at}; delete from frames where ${at}`);
  await fc.assert(fc.asyncProperty(windows, bands, check), { numRuns: runs(160) });
  await sql('insert into frames select * from kept; drop table kept');
});
