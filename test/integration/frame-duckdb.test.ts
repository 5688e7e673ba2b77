/**
 * Frames against DuckDB over the same rows exported to Parquet: its aggregates for trades, in exact decimals, and its ASOF JOIN for
 * states. The trades went through the pipeline, so that whole buckets come from kept klines.
 *
 * Where several rows have one time, the winner is the last in the dataset's order; for a state it is the highest block.
 */
import { pathToFileURL } from 'node:url';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeDay } from '../../pipelines/sources/exchange_b/sample.ts';
import { type ArtifactLab, artifactLab } from '../support/artifacts.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { System } from '../support/pipeline.ts';
import { runs, SEED } from '../support/seed.ts';
import { FROM, SMALL_DAYS, TO, writeDays } from '../support/three-days.ts';
import { chainWorlds, etfWorld, movedBy, SECOND } from '../support/worlds.ts';

const A = 'exchange_a_spot_trades';
const B = 'exchange_b_spot_trades';
const HASHRATE = 'bitcoin_network_hashrate_estimate';
const ETF = 'etf_daily_metrics';
const MIDNIGHT = Date.parse(`${FROM}T00:00:00Z`);
const DAY = 86_400_000;

let system: System;
let lab: ArtifactLab;

beforeAll(async () => {
  system = await System.create();
  await writeDays(system, SMALL_DAYS);
  const env = { SVC_EXCHANGE_B_BASE_URL: pathToFileURL(`${system.vendor}/`).href };
  for (const [index, day] of ['2024-03-01', '2024-03-02', '2024-03-03'].entries()) {
    await writeDay({
      directory: system.vendor,
      day,
      rows: 4000,
      seed: index,
      firstId: 1 + index * 1_000_000,
      gaps: 0.05,
    });
  }
  for (const key of [A, B]) {
    expect((await system.run(['backfill', key, '--from', FROM, '--to', TO], env)).exit).toBe(0);
  }
  const hashrate = chainWorlds(3, { blocks: 400 }).find(({ dataset }) => dataset.key === HASHRATE)!;
  await loadWorld(system.env.databaseUrl, movedBy(hashrate, MIDNIGHT - hashrate.rows[0].ms - DAY / 2));
  const etf = etfWorld(3);
  await loadWorld(system.env.databaseUrl, movedBy(etf, MIDNIGHT - etf.rows[0].ms - 8 * DAY));
  lab = await artifactLab(system.env);
  for (const key of [A, B, HASHRATE, ETF]) {
    const { files } = await lab.files.write(
      { sources: [key], time_range: ['2000-01-01T00:00:00Z', '2040-01-01T00:00:00Z'] },
      'parquet',
    );
    await lab.duck.rows(`create table ${key} as select * from '${files[0].path}'`);
  }
  await lab.duck.rows('create table runs (dataset text, source text, from_ms bigint, to_ms bigint)');
  const spans = await system.rows<{ key: number; source: string; from: number; to: number }>(
    `select dataset_id as key, source_id as source, from_ms::float8 as from,
       (case dataset_id when 4 then greatest(through_ms, upper(span)) else through_ms end)::float8 as to from coverage_spans`,
  );
  for (const { key, source, from, to } of spans) {
    await lab.duck.rows(`insert into runs values ('${key === 4 ? ETF : HASHRATE}', '${source}', ${from}, ${to})`);
  }
}, 120_000);
afterAll(async () => {
  await lab?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

interface Column {
  readonly name: string;
  readonly dataset: string;
  readonly field: string;
  readonly aggregate?: string;
  readonly filter?: readonly { readonly field: string; readonly op: string; readonly value: unknown }[];
}

const QUANTITY: Readonly<Record<string, string>> = { [A]: 'quantity', [B]: 'size' };
/** The decimal that a double is written as; some of B's sizes have 20 decimals. A direct cast multiplies doubles. */
const exact = (column: string, digits = 38, scale = 24) => `${column}::varchar::decimal(${digits}, ${scale})`;

/** The value of each bucket as texts: one, or the two sums that a mean is the quotient of. */
function aggregateSql({ dataset, field, aggregate }: Column): readonly string[] {
  const value = field === 'quantity' ? QUANTITY[dataset] : field;
  switch (aggregate) {
    case 'first':
      return [`arg_min(${value}, trade_id)`];
    case 'last':
      return [`arg_max(${value}, trade_id)`];
    case 'count':
      return ['count(*)'];
    case 'sum':
      return [`sum(${exact(value)})::varchar`];
    case 'vwap':
      return [
        `sum(${exact('price', 9, 2)} * ${exact(QUANTITY[dataset], 27, 24)})::varchar`,
        `sum(${exact(QUANTITY[dataset])})::varchar`,
      ];
    default:
      return [`${aggregate}(${value})`];
  }
}

/** The nearest double to the quotient of two decimals. */
function quotient([top, bottom]: readonly string[]): number {
  const digits = (text: string) => {
    const [whole, fraction = ''] = text.split('.');
    return BigInt(whole + fraction.padEnd(30, '0'));
  };
  return Number(`${(digits(top) * 10n ** 60n) / digits(bottom)}e-60`);
}

async function bucketsOf(column: Column, from: number, to: number, gridMs: number): Promise<Map<number, number>> {
  const values = aggregateSql(column);
  const rows = await lab.duck.texts(
    `select (timestamp // ${gridMs}) * ${gridMs}, ${values.join(', ')} from ${column.dataset}
     where timestamp >= ${from} and timestamp < ${to} group by 1`,
  );
  return new Map(
    rows.map(([ms, ...cells]) => [Number(ms), cells.length === 2 ? quotient(cells as string[]) : Number(cells[0])]),
  );
}

const TIMES: Readonly<Record<string, string>> = { [HASHRATE]: 'block_timestamp', [ETF]: 'epoch_ms(observed_at_utc)' };

/** DuckDB's ASOF JOIN of the ends of buckets with the states before them, as long as those are proved to hold. */
async function statesOf({ dataset, field, filter = [] }: Column, ends: readonly number[]): Promise<(number | null)[]> {
  const tests = filter.map((clause) => `${clause.field} = '${clause.value}'`);
  const source = dataset === ETF ? 'source_id' : `'bitcoin_core'`;
  const height = dataset === ETF ? '0' : 'block_height';
  const rows = await lab.duck.texts(
    `with buckets as (select unnest([${ends.join(', ')}]) as until),
     states as (select ${TIMES[dataset]} as ms, arg_max({'v': ${field}}, ${height}).v as value, any_value(${source}) as source
       from ${dataset} ${tests.length === 0 ? '' : `where ${tests.join(' and ')}`} group by 1)
     select until, case when until <= greatest(s.ms + 1000, coalesce((select max(r.to_ms) from runs r
       where r.dataset = '${dataset}' and r.source = s.source and r.from_ms <= s.ms and s.ms < r.to_ms), 0)) then s.value end
     from buckets asof left join states s on buckets.until > s.ms order by until`,
  );
  return rows.map(([, value]) => (value === null ? null : Number(value)));
}

const trade = fc
  .tuple(
    fc.constantFrom(A, B),
    fc.constantFrom(
      ...['first', 'last', 'min', 'max', 'vwap', 'sum', 'count'].map((aggregate) => ['price', aggregate]),
      ...['sum', 'max', 'last'].map((aggregate) => ['quantity', aggregate]),
    ),
  )
  .map(([dataset, [field, aggregate]]) => ({ dataset, field, aggregate }));
const state = fc.constantFrom(
  { dataset: HASHRATE, field: 'hashrate_hs' },
  { dataset: HASHRATE, field: 'observed_interval_seconds' },
  ...['etf_ishares_ibit_daily', 'etf_invesco_btco_daily'].map((source) => ({
    dataset: ETF,
    field: 'metric_value_float',
    filter: [
      { field: 'source_id', op: 'eq', value: source },
      { field: 'metric_name', op: 'eq', value: 'btc_units' },
    ],
  })),
);

const GRIDS = [1, 13, 60, 300, 900, 1800, 3600, 14_400, 28_800, 86_400, 2 * 86_400];
const frames = fc
  .tuple(
    fc.array(fc.oneof(trade, trade, state), { minLength: 1, maxLength: 6 }),
    fc.constantFrom(...GRIDS),
    fc.integer({ min: -DAY / 2, max: 3 * DAY }),
    fc.integer({ min: 1, max: 500 }),
    fc.constantFrom(0, 0, 0, 1, 777),
  )
  .map(([columns, grid, shift, buckets, rest]) => {
    const gridMs = grid * SECOND;
    // Mostly whole buckets, which kept klines answer.
    const from = Math.floor((MIDNIGHT + shift) / gridMs) * gridMs + rest;
    return {
      columns: columns.map((column, index): Column => ({ ...column, name: `c${index}` })),
      grid,
      from,
      to: from + buckets * gridMs,
    };
  });

test('frames of random columns, grids and windows equal DuckDB’s', { tags: ['nightly'] }, async () => {
  let compared = 0;
  await fc.assert(
    fc.asyncProperty(frames, async ({ columns, grid, from, to }) => {
      const time_range = [from, to].map((ms) => new Date(ms).toISOString());
      const answer = await lab.serving.send({ path: '/v1/frame', body: JSON.stringify({ columns, grid, time_range }) });
      if (answer.status === 404) return;
      expect(answer.status, answer.text.slice(0, 500)).toBe(200);
      const { rows } = answer.json;
      const starts: number[] = rows.map((row: { datetime: string }) => Date.parse(row.datetime));
      // No later value belongs to the last bucket, wherever it is cut.
      const ends = starts.map((ms) => Math.min(ms + grid * SECOND, to));
      for (const column of columns) {
        const found = rows.map((row: Record<string, number | null>) => row[column.name]);
        if (column.aggregate) {
          const buckets = await bucketsOf(column, from, to, grid * SECOND);
          expect(found).toEqual(starts.map((ms) => buckets.get(ms) ?? null));
        } else {
          // The last bucket ends with what is proved of any column.
          expect(found.slice(0, -1)).toEqual((await statesOf(column, ends)).slice(0, -1));
        }
        compared += found.filter((value: unknown) => value !== null).length;
      }
    }),
    { numRuns: runs(300), seed: SEED },
  );
  expect(compared).toBeGreaterThan(5000);
});
