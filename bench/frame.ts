/**
 * A frame beside DuckDB: a year of minutes over ten columns (seven of trades, three of states), from thin days. The service sends
 * Arrow over HTTP, and DuckDB has all chunks of the same frame in memory: it aggregates a Parquet file of the trades and joins
 * states by ASOF JOIN. Rounds alternate, after a warm-up that checks that both find as many rows and the same closing prices.
 * DuckDB adds doubles; ours are the exact sums. With `--sums decimals` DuckDB adds
 * decimals, too.
 *
 * Options: --rows N (50,000) trades a day, --days N (365), --rounds N (5), --sums doubles|decimals, --json.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { DAY_MS } from '../shared/dates.ts';
import { loadWorld } from '../test/support/load-worlds.ts';
import { chainWorlds, etfWorld, movedBy, type World } from '../test/support/worlds.ts';
import { csvToParquet, openDuckDb, psqlToCsv } from './duckdb.ts';
import { benchHarness } from './harness.ts';
import { alternating } from './measure.ts';
import { optionsOf } from './options.ts';
import { DATASET, discard, ingestHistory, sameFieldsOf, startServer } from './query-subjects.ts';

const START = '2022-03-01';
const GRID_MS = 60_000;
const PATH = '/v1/frame';
const HASHRATE = 'bitcoin_network_hashrate_estimate';
const ETF = 'etf_daily_metrics';
const FUND = { source_id: 'etf_ishares_ibit_daily', metric_name: 'btc_units' };
/** Blocks a day, about as many as there are. */
const BLOCKS_A_DAY = 280;

const iso = (ms: number) => new Date(ms).toISOString();

const COLUMNS = [
  ...['first', 'max', 'min', 'last', 'vwap'].map((aggregate) => ({ name: aggregate, field: 'price', aggregate })),
  { name: 'volume', field: 'quantity', aggregate: 'sum' },
  { name: 'trades', field: 'price', aggregate: 'count' },
].map((column) => ({ ...column, dataset: DATASET }));
const STATES = [
  { name: 'hashrate', dataset: HASHRATE, field: 'hashrate_hs' },
  { name: 'interval', dataset: HASHRATE, field: 'observed_interval_seconds' },
  {
    name: 'units',
    dataset: ETF,
    field: 'metric_value_float',
    filter: Object.entries(FUND).map(([field, value]) => ({ field, op: 'eq', value })),
  },
];

/** The statement of the same frame. */
function frameSql(fromMs: number, toMs: number, exact: boolean): string {
  const [price, quantity] = exact ? ['price::decimal(12, 4)', 'quantity::decimal(20, 8)'] : ['price', 'quantity'];
  return `with buckets as (select unnest(range(${fromMs}, ${toMs}, ${GRID_MS})) as start),
    bars as (select "timestamp" // ${GRID_MS} * ${GRID_MS} as start, arg_min(price, trade_id) as first, max(price) as max,
      min(price) as min, arg_max(price, trade_id) as last, sum(${price} * ${quantity}) / sum(${quantity}) as vwap,
      sum(${quantity}) as volume, count(*) as trades
      from trades where "timestamp" >= ${fromMs} and "timestamp" < ${toMs} group by 1)
    select b.start, bars.* exclude (start), h.hashrate, h.interval, e.units from buckets b
    left join bars on bars.start = b.start
    asof left join hashrates h on b.start + ${GRID_MS} > h.ms
    asof left join funds e on b.start + ${GRID_MS} > e.ms order by b.start`;
}

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, days, rounds, json, ...options } = optionsOf(argv, {
    counts: { rows: [50_000, 1], days: [365, 1], rounds: [5, 1] },
    choices: { sums: ['doubles', 'decimals'] },
  });
  const exact = options.sums === 'decimals';
  await using harness = await benchHarness('frame');
  const { directory, stack, note } = harness;
  const fromMs = Date.parse(START);
  const toMs = fromMs + days * DAY_MS;
  await ingestHistory(stack, directory, { fromMs, toMs, rows }, { note });
  note('loading blocks and funds');
  const blocks = chainWorlds(7, { blocks: days * BLOCKS_A_DAY }).find(({ dataset }) => dataset.key === HASHRATE)!;
  const worlds = [blocks, etfWorld(7, days)].map((world) => movedBy(world, fromMs - world.rows[0].ms));
  for (const world of worlds) await loadWorld(stack.databaseUrl, world);
  note('writing the same trades as Parquet');
  const [csv, parquet] = ['rows.csv', 'rows.parquet'].map((name) => join(directory, name));
  await psqlToCsv(stack, sameFieldsOf(fromMs, toMs), csv);
  await csvToParquet(csv, parquet);
  await rm(csv);

  await using server = await startServer(stack);
  using duckdb = await openDuckDb();
  const { connection } = duckdb;
  await connection.run(`create view trades as select * from '${parquet}'`);
  await connection.run('create table hashrates (ms bigint, hashrate double, interval bigint)');
  await connection.run('create table funds (ms bigint, units double)');
  for (const [table, values] of statesOf(worlds))
    await connection.run(`insert into ${table} values ${values.join(', ')}`);

  const body = { columns: [...COLUMNS, ...STATES], grid: '1m', time_range: [iso(fromMs), iso(toMs)] };
  const sql = frameSql(fromMs, toMs, exact);
  const served = JSON.parse(String(await buffer(await server.postTo(PATH, body)))).rows as { last: number | null }[];
  const theirs = (await connection.runAndReadAll(sql)).getRowObjectsJS();
  if (served.length !== theirs.length || served.some(({ last }, index) => last !== theirs[index].last)) {
    throw new Error(`${served.length} rows were served, DuckDB found ${theirs.length}, or prices differ`);
  }
  const peakBefore = server.peakMib();
  await using fresh = await startServer(stack);
  const toArrow = async () =>
    discard(await fresh.postTo(PATH, body, { Accept: 'application/vnd.apache.arrow.stream' }));
  await toArrow();
  const peakOnce = fresh.peakMib();
  const times = await alternating(toArrow, async () => (await connection.run(sql)).fetchAllChunks(), rounds);
  const { first_ms: tidemark_ms, second_ms: duckdb_ms, ...ratios } = times;
  const found = {
    bench: 'frame',
    rows_a_day: rows,
    days,
    rounds,
    sums: exact ? 'decimals' : 'doubles',
    rows: served.length,
    columns: body.columns.length,
    ...{ tidemark_ms, duckdb_ms, ...ratios },
    peak_mib: { arrow: peakOnce, arrow_again: fresh.peakMib(), json: peakBefore },
  };
  const lines = [
    `a frame of ${found.rows.toLocaleString('en-US')} minutes and ${found.columns} columns, from ${(rows * days).toLocaleString('en-US')} trades`,
    `  tidemark to Arrow over HTTP  ${tidemark_ms} ms, peak memory ${found.peak_mib.arrow} MiB, after all rounds ${found.peak_mib.arrow_again} MiB (JSON ${found.peak_mib.json} MiB)`,
    `  DuckDB over Parquet${exact ? ', decimals' : ''}  ${duckdb_ms} ms  ratio ${ratios.ratio} (${ratios.ratio_min}..${ratios.ratio_max})`,
  ];
  process.stdout.write(json ? `${JSON.stringify(found)}\n` : `${lines.join('\n')}\n`);
}

/** The values of both tables, one for each time: the highest block's. */
function statesOf([blocks, funds]: readonly World[]): (readonly [table: string, values: string[]])[] {
  const isProved = ({ partition }: World['rows'][number]) => partition.state === 'proved';
  const best = new Map(blocks.rows.filter(isProved).map(({ ms, cells }) => [ms, cells]));
  const own = funds.rows.filter(
    (row) => isProved(row) && Object.entries(FUND).every(([field, value]) => row.cells[field] === value),
  );
  const isNumber = (kind: unknown) => kind === 'float' || kind === 'int';
  return [
    ['hashrates', [...best].map(([ms, cells]) => `(${ms}, ${cells.hashrate_hs}, ${cells.observed_interval_seconds})`)],
    ['funds', own.map(({ ms, cells }) => `(${ms}, ${isNumber(cells.value_kind) ? cells.value_text : 'null'})`)],
  ];
}
