/**
 * A frame beside DuckDB: minutes over ten columns (seven of trades, three of states), from thin days. The service sends Arrow over HTTP,
 * and DuckDB has all chunks of the same frame in memory: it aggregates a Parquet file of the trades and joins states by ASOF JOIN. Both
 * must find as many rows and the same closing prices first. Ours are exact sums; DuckDB adds doubles, or with `--sums decimals`
 * decimals.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { DAY_MS } from '../shared/dates.ts';
import { loadWorld } from '../test/support/load-worlds.ts';
import { chainWorlds, etfWorld, movedBy, type World } from '../test/support/worlds.ts';
import { ingestHistory, iso } from './days.ts';
import { residentMib, timed } from './measure.ts';
import { csvToParquet, DATASET, openDuckDb, psqlToCsv, sameFields } from './others.ts';
import { ARROW, startService } from './service.ts';
import { subject } from './subject.ts';

const FROM_MS = Date.parse('2022-03-01');
const GRID_MS = 60_000;
const FRAME = '/v1/frame';
const HASHRATE = 'bitcoin_network_hashrate_estimate';
const ETF = 'etf_daily_metrics';
const FUND = { source_id: 'etf_ishares_ibit_daily', metric_name: 'btc_units' };
/** Blocks a day, about as many as there are. */
const BLOCKS_A_DAY = 280;

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

export const frame = subject({
  name: 'frame',
  compares: 'a frame of minutes over ten columns, beside DuckDB over Parquet',
  options: { rows: 50_000, days: 120, sums: ['doubles', 'decimals'] },
  rounds: 5,
  smallest: '--rows 2000 --days 4',
  async run(lab, { rows, days, sums }) {
    const { directory, stack, note } = lab;
    const window = { fromMs: FROM_MS, toMs: FROM_MS + days * DAY_MS };
    await ingestHistory(lab, { ...window, rows });
    note('loading blocks and funds');
    const worlds = [hashrates(FROM_MS, days), startingAt(FROM_MS, etfWorld(7, days))];
    for (const world of worlds) await loadWorld(stack.databaseUrl, world);
    note('writing the same trades as Parquet');
    const [csv, parquet] = ['rows.csv', 'rows.parquet'].map((name) => join(directory, name));
    await psqlToCsv(stack, sameFields(window), csv);
    await csvToParquet(csv, parquet);
    await rm(csv);

    using duckdb = await openDuckDb();
    const { connection } = duckdb;
    await connection.run(`create view trades as select * from '${parquet}'`);
    await connection.run('create table hashrates (ms bigint, hashrate double, interval bigint)');
    await connection.run('create table funds (ms bigint, units double)');
    for (const [table, values] of statesOf(worlds))
      await connection.run(`insert into ${table} values ${values.join(', ')}`);

    await using service = await startService(stack.databaseUrl);
    const body = {
      columns: [...COLUMNS, ...STATES],
      grid: '1m',
      time_range: [iso(window.fromMs), iso(window.toMs)],
    };
    const sql = frameSql(window.fromMs, window.toMs, sums === 'decimals');
    const served: { last: number | null }[] = (await service.json(FRAME, body)).rows;
    const theirs = (await connection.runAndReadAll(sql)).getRowObjectsJS();
    if (served.length !== theirs.length || served.some(({ last }, index) => last !== theirs[index].last)) {
      throw new Error(`${served.length} rows were served, DuckDB found ${theirs.length}, or prices differ`);
    }
    await lab.compare(`${served.length.toLocaleString('en-US')} minutes of ${body.columns.length} columns as Arrow`, {
      tidemark: timed(() => service.drain(FRAME, body, ARROW)),
      [`DuckDB, ${sums}`]: timed(async () => (await connection.run(sql)).fetchAllChunks()),
    });
    lab.fact('peak memory of the service, MiB', residentMib(service.pid, 'VmHWM'));
  },
});

const startingAt = (fromMs: number, world: World) => movedBy(world, fromMs - world.rows[0].ms);

/** Hashrates of as many blocks as days have. */
export const hashrates = (fromMs: number, days: number): World =>
  startingAt(fromMs, chainWorlds(7, { blocks: days * BLOCKS_A_DAY }).find(({ dataset }) => dataset.key === HASHRATE)!);

const isProved = ({ partition }: World['rows'][number]) => partition.state === 'proved';

/** The proved hashrates and intervals, one for each time: the highest block's. */
export const hashrateValues = ({ rows }: World): string[] =>
  [...new Map(rows.filter(isProved).map(({ ms, cells }) => [ms, cells]))].map(
    ([ms, cells]) => `(${ms}, ${cells.hashrate_hs}, ${cells.observed_interval_seconds})`,
  );

/** The values of both tables. */
function statesOf([blocks, funds]: readonly World[]): (readonly [table: string, values: string[]])[] {
  const own = funds.rows.filter(
    (row) => isProved(row) && Object.entries(FUND).every(([field, value]) => row.cells[field] === value),
  );
  const isNumber = (kind: unknown) => kind === 'float' || kind === 'int';
  return [
    ['hashrates', hashrateValues(blocks)],
    ['funds', own.map(({ ms, cells }) => `(${ms}, ${isNumber(cells.value_kind) ? cells.value_text : 'null'})`)],
  ];
}
