/** Granules: ids that lead to their rows, samples by rank, and bands of prices, of contiguous ids, ids with gaps, another instrument, ids that begin anew every day. */
import { pathToFileURL } from 'node:url';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { writeDay as writeA } from '../../pipelines/sources/exchange_a/sample.ts';
import { writeDay as writeB } from '../../pipelines/sources/exchange_b/sample.ts';
import { writeDay as writeC } from '../../pipelines/sources/exchange_c/sample.ts';
import { PgConnection } from '../../serving/db/pg-connection.ts';
import { Prng } from '../../serving/read/sampling/draw.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { slotNumber } from '../../shared/registry/instruments.ts';
import type { Json } from '../support/command.ts';
import { csvOf, System, writeDocument } from '../support/pipeline.ts';
import { runs } from '../support/seed.ts';
import { type Answer, type Serving, startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';

const DAYS = ['2024-03-01', '2024-03-02', '2024-03-03'];
const ROWS = 2000;

interface Row {
  readonly trade_id: number;
  readonly timestamp: number;
  readonly price: number;
}
interface Case {
  readonly key: string;
  readonly instrument?: string;
  readonly table: string;
}
const CASES: readonly Case[] = [
  { key: 'exchange_a_spot_trades', table: 'exchange_a_spot_trades' },
  { key: 'exchange_a_spot_trades', instrument: 'ETHUSDT', table: 'exchange_a_spot_trades_others' },
  { key: 'exchange_b_spot_trades', table: 'exchange_b_spot_trades' },
  { key: 'exchange_c_spot_trades', table: 'exchange_c_spot_trades' },
];

let system: System;
let serving: Serving;
const stored = new Map<Case, readonly Row[]>();

/** The day's document with times that go back and forth, by up to some hundred rows, and many that are equal. */
function jumbled(day: string, seed: number, firstId: number): string {
  const lines = csvOf({ day, rows: ROWS, seed, firstId, timeUnit: 'ms' }).trimEnd().split('\n');
  const times = lines.map((line) => Math.floor(Number(line.split(',')[4]) / 60_000) * 60_000);
  for (let at = 0; at + 300 < times.length; at += 37) [times[at], times[at + 290]] = [times[at + 290], times[at]];
  return `${lines.map((line, at) => line.split(',').with(4, String(times[at])).join(',')).join('\n')}\n`;
}

beforeAll(async () => {
  system = await System.create();
  const folder = pathToFileURL(`${system.vendor}/`).href;
  const settings = {
    SVC_EXCHANGE_A_BASE_URL: folder,
    SVC_EXCHANGE_B_BASE_URL: folder,
    SVC_EXCHANGE_C_BASE_URL: folder,
    SVC_EXCHANGE_A_ALSO: 'ETHUSDT',
  };
  for (const [index, day] of DAYS.entries()) {
    const common = { directory: system.vendor, day, rows: ROWS, seed: index + 1 };
    const firstId = 1000 + index * ROWS;
    await writeDocument(system.vendor, day, jumbled(day, index + 1, firstId));
    await writeA({ ...common, symbol: 'ETHUSDT', firstId, timeUnit: 'ms' });
    await writeB({ ...common, firstId: 1000 + index * 3 * ROWS, gaps: 0.1 });
    await writeC({ ...common, symbol: 'BTCUSDT' });
  }
  // Frames of one granule, of several that they do not fill, and whole days.
  for (const [index, frameRawBytes] of [4096, 50_000, 1024 * 1024].entries()) {
    for (const { key, instrument } of CASES) {
      const argv = [
        'backfill',
        key,
        '--from',
        DAYS[index],
        '--to',
        DAYS[index],
        ...(instrument ? ['--instrument', instrument] : []),
      ];
      expect((await system.run(argv, { ...settings, ...limitsEnv({ frameRawBytes }) })).exit).toBe(0);
    }
  }
  serving = await startServing({ databaseUrl: system.env.databaseUrl, settings, limits: { granuleLookupRows: 1 } });
  for (const one of CASES) {
    const rows = await system.rows<Json>(
      `select trade_id::float8, "timestamp"::float8, price from ${one.table} order by "timestamp", trade_id`,
    );
    expect(rows).toHaveLength(DAYS.length * ROWS);
    stored.set(one, rows);
  }
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await system[Symbol.asyncDispose]();
});

const ask = ({ key, instrument }: Case, body: object): Promise<Answer> =>
  serving.query({
    sources: [key],
    ...(instrument && { instrument }),
    fields: ['trade_id', 'timestamp', 'price'],
    ...body,
  });
const rowsOf = ({ status, json }: Answer): Row[] => (status === 404 ? [] : json.rows);

interface Clause {
  readonly field: keyof Row;
  readonly op: string;
  readonly value: number | readonly number[];
}
const PASSES: Readonly<Record<string, (cell: number, value: never) => boolean>> = {
  eq: (cell, value) => cell === value,
  gt: (cell, value) => cell > value,
  gte: (cell, value) => cell >= value,
  lt: (cell, value) => cell < value,
  lte: (cell, value) => cell <= value,
  in: (cell, value: readonly number[]) => value.includes(cell),
};
const passing = (rows: readonly Row[], clauses: readonly Clause[]) =>
  rows.filter((row) => clauses.every(({ field, op, value }) => PASSES[op](row[field], value as never)));

/** Ids of rows, of granules' first and last ones, and ids that no row has. */
const id = fc.oneof(
  fc.integer({ min: 1000, max: 1000 + 3 * ROWS }),
  fc.integer({ min: 990, max: 30_000 }),
  fc.tuple(fc.integer({ min: 0, max: 30 }), fc.integer({ min: -1, max: 1 })).map(([at, by]) => 1000 + at * 256 + by),
);
const idClause = fc.oneof(
  fc.record({
    field: fc.constant('trade_id' as const),
    op: fc.constantFrom('eq', 'gt', 'gte', 'lt', 'lte'),
    value: id,
  }),
  // A list may name an id twice.
  fc
    .array(id, { minLength: 1, maxLength: 60 })
    .map((value): Clause => ({ field: 'trade_id', op: 'in', value: [...value, value[0]] })),
);
const window = fc.oneof(
  fc.constant({}),
  fc.integer({ min: 1, max: 60 }).map((n_rows) => ({ n_rows })),
  fc.tuple(fc.nat(70), fc.integer({ min: 1, max: 30 })).map(([hour, hours]) => {
    const from = Date.parse(DAYS[0]) - 8 * 3_600_000 + hour * 3_600_000;
    return { time_range: [from, from + hours * 3_600_000].map((ms) => new Date(ms).toISOString()) };
  }),
);

describe.each(CASES)('$key $instrument', (one) => {
  test('the rows of ids are those that have them, in every window and beside other filters', async () => {
    const rows = stored.get(one)!;
    const values = rows.map(({ price }) => price).sort((a, b) => a - b);
    const price = fc.nat(rows.length - 1).map((at): Clause => ({ field: 'price', op: 'gte', value: values[at] }));
    const filters = fc.tuple(fc.array(idClause, { minLength: 1, maxLength: 2 }), fc.array(price, { maxLength: 1 }));
    await fc.assert(
      fc.asyncProperty(window, filters, async (body: Json, [ids, others]) => {
        const clauses = [...ids, ...others];
        const [from, to] = body.time_range?.map(Date.parse) ?? [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
        const inWindow = rows.filter(({ timestamp }) => from <= timestamp && timestamp < to);
        const expected = passing(inWindow, clauses).slice(body.n_rows === undefined ? 0 : -body.n_rows);
        expect(rowsOf(await ask(one, { ...body, filters: clauses }))).toEqual(expected);
      }),
      { numRuns: runs(150) },
    );
  });

  test('the first and the last ids of granules and frames lead to their rows, as bounds, too', async () => {
    const rows = stored.get(one)!;
    const byId = rows.slice(-ROWS).toSorted((a, b) => a.trade_id - b.trade_id);
    // The last day is one frame; ids of C begin anew every day.
    const ends = byId.filter((_, at) => at % 256 === 0 || at % 256 === 255 || at === ROWS - 1);
    const others = await system.rows<Json>(
      `select first_offset::float8 as first, last_offset::float8 as last from frames where dataset_id = $1
       and partition_key < $2 order by partition_key desc, row_base limit 8`,
      [one.instrument ? slotNumber(datasetOf(one.key), 1) : datasetOf(one.key).number, DAYS[2]],
    );
    const ids = [...ends.map(({ trade_id }) => trade_id), ...others.flatMap(({ first, last }) => [first, last])];
    for (const [at, value] of ids.entries()) {
      const far = ids[(at + 7) % ids.length];
      for (const clauses of [
        [{ field: 'trade_id', op: 'eq', value }],
        [{ field: 'trade_id', op: 'in', value: [value, far] }],
        [
          { field: 'trade_id', op: 'gte', value: Math.min(value, far) },
          { field: 'trade_id', op: 'lte', value: Math.max(value, far) },
        ],
      ] as const) {
        expect(rowsOf(await ask(one, { filters: clauses }))).toEqual(passing(rows, clauses));
      }
    }
  });

  test('a sample holds the rows of the drawn ranks, which count by id through the days', async () => {
    const rows = stored.get(one)!;
    // Days follow each other in time, also those that begin at 16:00 UTC.
    const offset = one.key === 'exchange_b_spot_trades' ? 8 * 3_600_000 : 0;
    const days = Map.groupBy(rows, ({ timestamp }) => Math.floor((timestamp + offset) / 86_400_000));
    const ranked = [...days.values()].flatMap((day) => day.toSorted((a, b) => a.trade_id - b.trade_id));
    const sizes = fc.oneof(fc.integer({ min: 1, max: 20 }), fc.integer({ min: 20, max: 3 * ROWS - 1 }));
    await fc.assert(
      fc.asyncProperty(sizes, fc.nat(1e9), async (n_random, random_seed) => {
        const drawn = new Set(new Prng(random_seed).distinct(n_random, rows.length).map((rank) => ranked[rank]));
        expect(rowsOf(await ask(one, { n_random, random_seed }))).toEqual(rows.filter((row) => drawn.has(row)));
      }),
      // With all rows but one come the first and the last of every granule, frame and day.
      { numRuns: runs(20), examples: [[rows.length - 1, 1]] },
    );
  });

  test('a sample of listed frames numbers no rows of a whole day', async () => {
    const run = vi.spyOn(PgConnection.prototype, 'run');
    try {
      await ask(one, { n_random: stored.get(one)!.length - 1, random_seed: 1 });
      const texts = run.mock.calls.flatMap(([steps]) => steps.map(({ statement }) => statement.text));
      expect(texts.filter((text) => text.includes('row_number()'))).toEqual([]);
    } finally {
      run.mockRestore();
    }
  });

  // Prices wander, so that few granules of the third day hold those of a narrow band.
  test('the rows of a band of prices are those that pass, whatever granules are left out', async () => {
    const rows = stored.get(one)!;
    const lasting = { time_range: [`${DAYS[2]}T00:00:00Z`, `${DAYS[2]}T23:59:59.999Z`] };
    const [from, to] = lasting.time_range.map(Date.parse);
    const windows = fc.constantFrom<Json>(lasting, lasting, {}, { n_rows: 3 }, { n_rows: 1000 });
    await fc.assert(
      fc.asyncProperty(fc.nat(1999), fc.nat(20), windows, async (at, width, body) => {
        const { price } = rows[4000 + at];
        const clauses: Clause[] = [
          { field: 'price', op: 'gte', value: price },
          { field: 'price', op: 'lte', value: price * (1 + width / 1e5) },
        ];
        const inWindow = body.time_range ? rows.filter(({ timestamp }) => from <= timestamp && timestamp < to) : rows;
        const expected = passing(inWindow, clauses).slice(body.n_rows === undefined ? 0 : -body.n_rows);
        expect(rowsOf(await ask(one, { ...body, filters: clauses }))).toEqual(expected);
      }),
      { numRuns: runs(240) },
    );
  });

  test('a sample among ids is of their rows', async () => {
    const rows = stored.get(one)!;
    const value = rows.filter((_, at) => at % 50 === 0).map(({ trade_id }) => trade_id);
    const filters: Clause[] = [{ field: 'trade_id', op: 'in', value }];
    const expected = passing(rows, filters);
    const found = rowsOf(await ask(one, { n_random: 7, random_seed: 3, filters }));
    expect(found).toHaveLength(7);
    expect(expected).toEqual(expect.arrayContaining(found));
    expect(rowsOf(await ask(one, { n_random: 100_000, filters }))).toEqual(expected);
  });
});

test('one id is searched for in a granule of one frame, many in those of theirs', async () => {
  const [one] = CASES;
  const estimate = async (value: number | number[]): Promise<Json> => {
    const filters = [{ field: 'trade_id', op: Array.isArray(value) ? 'in' : 'eq', value }];
    const body = JSON.stringify({ sources: [one.key], filters });
    return (await serving.send({ path: '/v1/raw/estimate', body })).json;
  };
  const last = 1000 + 2 * ROWS;
  const single = await estimate(last + 300);
  expect([single.rows_searched, single.ruled_out]).toMatchObject([256, { partitions_read: 1, frames_read: 1 }]);
  const several = await estimate([1000, last, last + 1, last + 300, last + ROWS - 1]);
  // The last granule of the last day has fewer rows, and the first day's first frame.
  const [{ rows }] = await system.rows<Json>('select rows from frames where dataset_id = 1 and first_offset = $1', [
    '1000',
  ]);
  expect(several.rows_searched).toBe(rows + 256 + 256 + (ROWS % 256));
  expect(several.ruled_out).toMatchObject({ partitions_read: 2, partitions_skipped: 1, frames_read: 2 });
  expect((await estimate(7)).rows_searched).toBe(0);
});

test('ids of a partition of which the log lost frames are searched for in all of it', async () => {
  const [one] = CASES;
  const rows = stored.get(one)!;
  const numbers = [datasetOf(one.key).number, slotNumber(datasetOf(one.key), 1)];
  const at = `dataset_id in (${numbers}) and partition_key like '%${DAYS[0]}' and row_base > 900`;
  // Whether they are drawn from all rows of the day, or found by a scan of the times of these ids, is not for frames to decide.
  const samples = async () => {
    const last: Clause[] = [
      { field: 'trade_id', op: 'gte', value: 2700 },
      { field: 'trade_id', op: 'lt', value: 3000 },
    ];
    const drawn = (seed: number) => ask(CASES[1], { n_random: 2, random_seed: seed, filters: last });
    return (await Promise.all([1, 2, 3, 4, 5].map(drawn))).map(rowsOf);
  };
  const sampled = await samples();
  expect(sampled.flat()).toHaveLength(10);
  await system.rows(`create table kept as select * from frames where ${at}; delete from frames where ${at}`);
  for (const value of [[2500], [1001, 2500, 2999, 3100]]) {
    const filters: Clause[] = [{ field: 'trade_id', op: 'in', value }];
    expect(rowsOf(await ask(one, { filters }))).toEqual(passing(rows, filters));
  }
  const filters: Clause[] = [{ field: 'trade_id', op: 'lte', value: 2990 }];
  expect(rowsOf(await ask(one, { filters }))).toEqual(passing(rows, filters));
  const byId = rows.toSorted((a, b) => a.trade_id - b.trade_id);
  for (const n_random of [1500, rows.length - 1]) {
    const drawn = new Set(new Prng(1).distinct(n_random, rows.length).map((rank) => byId[rank]));
    expect(rowsOf(await ask(one, { n_random, random_seed: 1 }))).toEqual(rows.filter((row) => drawn.has(row)));
  }
  expect(await samples()).toEqual(sampled);
  await system.rows('insert into frames select * from kept; drop table kept');
});

// Ids of the others follow from the first of their frame.
test('altered first ids of granules quarantine their partition, and a replay mends them', async () => {
  const { key } = CASES[2];
  const window = [key, '--from', DAYS[2], '--to', DAYS[2]];
  const frames = `frames where dataset_id = ${datasetOf(key).number} and partition_key = '${DAYS[2]}'`;
  const kept = () => system.rows<Json>(`select granule_offsets from ${frames}`);
  const before = await kept();
  expect(before[0].granule_offsets).toHaveLength(Math.ceil(ROWS / 256));
  await system.rows(`update ${frames.replace(' where', ' set granule_offsets[2] = granule_offsets[2] + 1 where')}`);
  const { json } = await system.run(['verify', ...window]);
  expect(json.units[0]).toMatchObject({ state: 'quarantined', reason: expect.stringContaining('granules') });
  expect((await system.run(['replay', ...window])).json.units[0]).toMatchObject({ state: 'replaced' });
  expect(await kept()).toEqual(before);
  expect((await system.run(['verify', ...window])).json.units[0].state).toBe('proved');
});
