import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Json } from '../support/command.ts';
import { csvOf, DATASET, DAY_MS, System, writeDocument } from '../support/pipeline.ts';
import { runs } from '../support/seed.ts';
import { type Answer, type Serving, startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { statementsWith } from '../support/statements.ts';

const DAYS = ['2024-03-01', '2024-03-02', '2024-03-03', '2024-03-05'];
const FROM_MS = Date.parse(`${DAYS[0]}T00:00:00Z`);
/** Frames of some 60 rows. */
const SMALL_FRAMES = limitsEnv({ frameRawBytes: 4096 });
const FIELDS = ['price', 'quantity', 'quote_quantity'] as const;

type Row = Readonly<Record<(typeof FIELDS)[number] | 'trade_id' | 'timestamp', number>>;

let system: System;
let serving: Serving;
let rows: readonly Row[];

const document = (index: number, seed: number) =>
  csvOf({ day: DAYS[index], rows: 1500, seed, firstId: index * 1500 + 1, timeUnit: 'ms' });
const storedRows = () =>
  system.rows<Row>(
    `select trade_id::float8, "timestamp"::float8, price, quantity, quote_quantity from ${DATASET} order by "timestamp", trade_id`,
  );
const ranges = () =>
  system.rows<Json>(
    `select partition_key, row_base as base, p.value_ranges as whole, f.value_ranges, granule_offsets, granule_first_ms,
       granule_last_ms, granule_ranges from partitions p join frames f using (dataset_id, partition_key) order by 1, 2`,
  );

beforeAll(async () => {
  system = await System.create();
  for (const index of DAYS.keys()) await writeDocument(system.vendor, DAYS[index], document(index, index + 1));
  // A frame of the third day holds several granules.
  expect((await system.backfill(DAYS[2], DAYS[2], limitsEnv({ frameRawBytes: 65_536 }))).exit).toBe(0);
  const { exit } = await system.backfill(DAYS[0], DAYS[3], SMALL_FRAMES);
  // 4 March has no document.
  expect(exit).toBe(1);
  serving = await startServing({ databaseUrl: system.env.databaseUrl, limits: { granuleLookupRows: 1 } });
  rows = await storedRows();
  expect(rows).toHaveLength(6000);
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await system[Symbol.asyncDispose]();
});

interface Clause {
  readonly field: (typeof FIELDS)[number];
  readonly op: string;
  readonly value: number | number[] | null;
}

const PASSES: Readonly<Record<string, (cell: number, value: never) => boolean>> = {
  eq: (cell, value) => cell === value,
  ne: (cell, value: number | null) => value === null || cell !== value,
  gt: (cell, value) => cell > value,
  gte: (cell, value) => cell >= value,
  lt: (cell, value) => cell < value,
  lte: (cell, value) => cell <= value,
  in: (cell, value: readonly number[]) => value.includes(cell),
  not_in: (cell, value: readonly number[]) => !value.includes(cell),
};
const passes = (row: Row, clauses: readonly Clause[]) =>
  clauses.every(({ field, op, value }) => PASSES[op](row[field], value as never));

const query = (body: object): Promise<Answer> => serving.query({ sources: [DATASET], ...body });
const idsOf = ({ status, json }: Answer) => (status === 404 ? [] : json.rows.map(({ trade_id }: Json) => trade_id));
const counted = ({ headers }: Answer) =>
  ['read', 'skipped'].map((what) => Number(headers[`x-svc-partitions-${what}`] ?? Number.NaN));
const iso = (ms: number) => new Date(ms).toISOString();

/** The next double above or below. */
function beside(value: number, by: 1n | -1n): number {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  view.setBigInt64(0, view.getBigInt64(0) + by);
  return view.getFloat64(0);
}

/** Values of rows, the extremes of a day above all, and their neighbours. */
const clause = fc
  .record({
    field: fc.constantFrom(...FIELDS),
    op: fc.constantFrom('eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in', 'not_in'),
    rank: fc.oneof(fc.constantFrom(0, 1, 2, -1, -2, -3), fc.integer({ min: -1500, max: 1499 })),
    day: fc.nat(3),
    by: fc.constantFrom(0n, 1n, -1n),
    other: fc.nat(5999),
  })
  .map(({ field, op, rank, day, by, other }): Clause => {
    const sorted = rows
      .slice(day * 1500, (day + 1) * 1500)
      .map((row) => row[field])
      .sort((a, b) => a - b);
    const value = by === 0n ? sorted.at(rank)! : beside(sorted.at(rank)!, by);
    return { field, op, value: op === 'in' || op === 'not_in' ? [value, rows[other][field]] : value };
  });

const window = fc.oneof(
  fc.constant({}),
  // The search for up to 10,000 rows keeps them; more are found first, and then read.
  fc.oneof(fc.integer({ min: 1, max: 7000 }), fc.constant(10_001)).map((n_rows) => ({ n_rows })),
  fc.tuple(fc.integer({ min: -1, max: 5 * DAY_MS }), fc.integer({ min: 1, max: 3 * DAY_MS })).map(([from, length]) => ({
    time_range: [iso(FROM_MS + from), iso(FROM_MS + from + length)],
  })),
);

function expected(body: { n_rows?: number; time_range?: string[] }, clauses: readonly Clause[]): number[] {
  const [from, to] = body.time_range?.map(Date.parse) ?? [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
  const found = rows.filter((row) => row.timestamp >= from && row.timestamp < to && passes(row, clauses));
  return found.slice(body.n_rows === undefined ? 0 : -body.n_rows).map((row) => row.trade_id);
}

describe('answers', () => {
  test('hold the rows that pass, whatever is ruled out', async () => {
    let skipped = 0;
    await fc.assert(
      fc.asyncProperty(window, fc.array(clause, { minLength: 1, maxLength: 3 }), async (body, filters) => {
        const answer = await query({ ...body, filters });
        expect(idsOf(answer)).toEqual(expected(body, filters));
        if (answer.status === 200) skipped += counted(answer)[1];
      }),
      { numRuns: runs(400) },
    );
    expect(skipped).toBeGreaterThan(0);
  });

  test('a null is in no range, and rules nothing out', async () => {
    const answer = await query({ filters: [{ field: 'price', op: 'ne', value: null }] });
    expect([idsOf(answer).length, ...counted(answer)]).toEqual([6000, 4, 0]);
    expect((await query({ filters: [{ field: 'price', op: 'eq', value: null }] })).status).toBe(404);
  });

  test('count the file days that are read and skipped: one row of one day, a value beyond all, no filter', async () => {
    const largest = rows.reduce((a, b) => (b.quantity > a.quantity ? b : a));
    const one = await query({ filters: [{ field: 'quantity', op: 'gte', value: largest.quantity }] });
    expect([idsOf(one), ...counted(one)]).toEqual([[largest.trade_id], 1, 3]);
    const none = await query({ filters: [{ field: 'quantity', op: 'gt', value: largest.quantity }] });
    expect([none.status, none.json.code, ...counted(none)]).toEqual([404, 'QUERY_NO_DATA', 0, 4]);
    // The window begins within a frame that is left.
    const [, second] = rows.toSorted((a, b) => b.quantity - a.quantity);
    const time_range = [iso(second.timestamp), iso(second.timestamp + 1)];
    const within = await query({ time_range, filters: [{ field: 'quantity', op: 'gte', value: second.quantity }] });
    expect([idsOf(within), ...counted(within)]).toEqual([[second.trade_id], 1, 0]);
    const whole = await query({ n_rows: 1 });
    expect(Object.keys(whole.headers).filter((name) => name.startsWith('x-svc-partitions'))).toEqual([]);
    // A sample is drawn from all rows: what it holds must not depend on ranges.
    const sample = await query({ n_random: 1, filters: [{ field: 'quantity', op: 'gte', value: largest.quantity }] });
    expect([idsOf(sample), ...counted(sample)]).toEqual([[largest.trade_id], 4, 0]);
  });

  test('are those of historical routes, too', async () => {
    const { price } = rows[2000];
    const filters = [{ field: 'price', op: 'eq', value: price }];
    const body = { start_date: DAYS[1], end_date: DAYS[2], filters };
    const answer = await serving.send({ path: '/v1/historical/exchange_a/spot/trades', body: JSON.stringify(body) });
    const matching = rows.slice(1500, 4500).filter((row) => row.price === price);
    expect(idsOf(answer)).toEqual(matching.map(({ trade_id }) => trade_id));
    expect(counted(answer).reduce((sum, count) => sum + count)).toBe(2);
  });
});

test('granules are looked up where many rows are searched', async () => {
  await using few = await startServing({ databaseUrl: system.env.databaseUrl });
  const body = { sources: [DATASET], n_rows: 7000, filters: [{ field: 'price', op: 'gt', value: 1 }] };
  expect(await statementsWith('granule_ranges', () => few.query(body))).toBe(0);
  expect(await statementsWith('granule_ranges', () => serving.query(body))).toBeGreaterThan(0);
});

test('the estimate counts partitions and frames', async () => {
  const { quantity } = rows.reduce((a, b) => (b.quantity > a.quantity ? b : a));
  const filters = [{ field: 'quantity', op: 'gte', value: quantity }];
  const request = JSON.stringify({ sources: [DATASET], filters });
  const estimate = async (body: string): Promise<Json> => (await serving.send({ path: '/v1/raw/estimate', body })).json;
  const { ruled_out, rows_searched } = await estimate(request);
  const [{ frames }] = await system.rows<{ frames: number }>('select count(*)::int4 as frames from frames');
  expect(ruled_out).toEqual({ partitions_read: 1, partitions_skipped: 3, frames_read: 1, frames_skipped: frames - 1 });
  expect(rows_searched).toBeLessThan(1500 / 4);
  const beyond = await estimate(
    JSON.stringify({ sources: [DATASET], filters: [{ ...filters[0], value: quantity + 1 }] }),
  );
  expect([beyond.rows, beyond.rows_is_exact, beyond.ruled_out.partitions_read]).toEqual([0, true, 0]);
  expect((await estimate(JSON.stringify({ sources: [DATASET] }))).ruled_out).toBeNull();
});

describe('ranges', () => {
  const verify = () => system.run(['verify', DATASET, '--from', DAYS[0], '--to', DAYS[0]]);
  const alter = (table: string, sql: string, column = 'value_ranges') =>
    system.rows(`update ${table} set ${column} = ${sql} where partition_key = '${DAYS[0]}'`);

  test.each([
    ['frames', `jsonb_set(value_ranges, '{price,1}', '1')`, 'value_ranges'],
    ['partitions', `value_ranges - 'quantity'`, 'value_ranges'],
    ['frames', 'null', 'value_ranges'],
    ['partitions', 'null', 'value_ranges'],
    ['frames', 'granule_first_ms[:1] || (granule_first_ms[2] + 1) || granule_first_ms[3:]', 'granule_first_ms'],
    ['frames', 'null', 'granule_last_ms'],
    ['frames', `'{0}'`, 'granule_offsets'],
    ['frames', 'granule_ranges[2:] || granule_ranges[1]', 'granule_ranges'],
  ])('of %s altered to %s quarantine their partition, and a replay mends them', async (table, sql, column) => {
    const before = await ranges();
    await alter(table, sql, column);
    const { json } = await verify();
    expect(json.units[0]).toMatchObject({ state: 'quarantined', reason: expect.stringContaining('value_ranges') });
    const replayed = await system.run(['replay', DATASET, '--from', DAYS[0], '--to', DAYS[0]]);
    expect(replayed.json.units[0]).toMatchObject({ state: 'replaced' });
    expect(await ranges()).toEqual(before);
    expect((await verify()).json.units[0].state).toBe('proved');
  });

  test('a replay of a proved partition mends them, too', async () => {
    const before = await ranges();
    await alter('frames', `jsonb_set(value_ranges, '{price,0}', '0')`);
    const replayed = await system.run(['replay', DATASET, '--from', DAYS[0], '--to', DAYS[0]]);
    expect(replayed.json.units[0]).toMatchObject({
      state: 'replaced',
      reason: expect.stringContaining('value_ranges'),
    });
    expect(await ranges()).toEqual(before);
  });

  test('a partition of which the log lost frames is read whole', async () => {
    const body = { n_rows: 100_000 };
    await system.rows(`delete from frames where partition_key = '${DAYS[1]}' and row_base > 700`);
    // The largest of the rows whose frames go: few frames are left, and not its own.
    const value = Math.max(...rows.slice(2400, 3000).map(({ quantity }) => quantity));
    const filters: Clause[] = [{ field: 'quantity', op: 'gte', value }];
    expect(idsOf(await query({ ...body, filters }))).toEqual(expected(body, filters));
  });

  test('a revision brings its own', async () => {
    await writeDocument(system.vendor, DAYS[1], document(1, 77));
    expect((await system.reingest(DAYS[1], DAYS[1], 'test', SMALL_FRAMES)).exit).toBe(0);
    rows = await storedRows();
    const [{ kept }] = await system.rows<Json>(
      `select value_ranges as kept from partitions where partition_key = '${DAYS[1]}'`,
    );
    const prices = rows.slice(1500, 3000).map(({ price }) => price);
    expect(kept.price).toEqual([Math.min(...prices), Math.max(...prices)]);
    const filters: Clause[] = [{ field: 'price', op: 'gte', value: kept.price[1] }];
    expect(idsOf(await query({ filters }))).toEqual(expected({}, filters));
  });
});
