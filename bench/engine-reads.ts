/** The reads that the bench of engines compares: a request of ours, and each engine's SQL for the same answer. */
import { DAY_MS } from '../shared/dates.ts';
import { dayOf, iso } from './days.ts';
import { DATASET, type Window } from './others.ts';
import { QUERY } from './service.ts';

export type Engine = 'DuckDB' | 'ClickHouse' | 'QuestDB';

/** How rows are written; QuestDB, which has no Arrow, writes Parquet instead. */
export type Form = 'json' | 'csv' | 'arrow';

export interface Read {
  readonly what: string;
  readonly path: string;
  readonly body: object;
  readonly as?: Form;
  /** Of the engines that can answer it. */
  readonly sql: Partial<Record<Engine, string>>;
  /** The columns whose cells must be the same, in order. */
  readonly compared: readonly string[];
  /** Only their number must be the same, about. */
  readonly random?: boolean;
  /** Sent again and again in each round. */
  readonly small?: boolean;
}

interface Dialect {
  /** Units of its times in a millisecond. */
  readonly perMs: number;
  /** Makes a table of what is selected; its key begins with its time. */
  create(table: string, key: readonly [time: string, id?: string], select: string): string;
  /** Its time of a file's milliseconds. */
  readonly time: string;
  file(path: string): string;
  /** The bytes on disk of a trade, as `n`. */
  readonly bytes: string;
  /** How much is stored and cannot be read yet, as `n`. */
  readonly pending?: string;
  /** What a scan needs to keep the order of time. */
  readonly ordered: string;
  newest(where: string, count: number): string;
  sample(count: number, total: number): string;
  first(value: string): string;
  last(value: string): string;
  /** Exact, of the price. */
  quantile?(share: number): string;
  /** A group for each bucket with trades, in order; `t` is its start. */
  grouped(columns: string, where: string, seconds: number): string;
  /** Bars `b` with the last hashrate before the end of each. */
  asof(bars: string, seconds: number): string;
}

const COLUMNS = 'trade_id, timestamp, price, quantity, quote_quantity, is_buyer_maker, is_best_match';
const SELECT = `select ${COLUMNS} from trades`;
const grouped = (bucket: string, columns: string, where: string) =>
  `select ${bucket} as t, ${columns} from trades${where} group by t order by t`;
const newestBySort = (where: string, count: number) =>
  `${SELECT}${where} order by timestamp desc, trade_id desc limit ${count}`;

export const DIALECTS: Record<Engine, Dialect> = {
  DuckDB: {
    perMs: 1,
    create: (table, _, select) => `create table ${table} as ${select}; checkpoint`,
    time: 'timestamp',
    file: (path) => `read_parquet('${path}')`,
    bytes: 'select block_size * used_blocks / (select count(*) from trades) as n from pragma_database_size()',
    ordered: '',
    newest: newestBySort,
    sample: (count) => `${SELECT} using sample ${count} rows`,
    first: (value) => `arg_min(${value}, trade_id)`,
    last: (value) => `arg_max(${value}, trade_id)`,
    quantile: (share) => `quantile_disc(price, ${share})`,
    grouped: (columns, where, seconds) => grouped(`timestamp // ${seconds * 1000} * ${seconds * 1000}`, columns, where),
    asof: (bars, seconds) =>
      `select b.*, h.hashrate from (${bars}) b asof left join hashrates h on b.t + ${seconds * 1000} > h.timestamp order by t`,
  },
  ClickHouse: {
    perMs: 1,
    create: (table, key, select) =>
      `create table ${table} engine = MergeTree order by (${key}) partition by intDiv(${key[0]}, ${DAY_MS}) as ${select}`,
    time: 'timestamp',
    file: (path) => `file('${path}', Parquet)`,
    bytes: `select sum(bytes_on_disk) / sum(rows) as n from system.parts where active and table = 'trades'`,
    ordered: ' order by timestamp, trade_id',
    newest: newestBySort,
    sample: (count) => `${SELECT} order by rand() limit ${count}`,
    first: (value) => `argMin(${value}, trade_id)`,
    last: (value) => `argMax(${value}, trade_id)`,
    quantile: (share) => `quantileExact(${share})(price)`,
    grouped: (columns, where, seconds) =>
      grouped(`intDiv(timestamp, ${seconds * 1000}) * ${seconds * 1000}`, columns, where),
    asof: (bars, seconds) =>
      `select b.*, h.hashrate from (select *, 1 as k from (${bars})) b asof left join (select *, 1 as k from hashrates) h
       on b.k = h.k and b.t + ${seconds * 1000} > h.timestamp order by t`,
  },
  QuestDB: {
    perMs: 1000,
    create: (table, key, select) =>
      `create table ${table} as (${select}) timestamp(${key[0]}) partition by day wal dedup upsert keys(${key})`,
    time: 'cast(timestamp * 1000 as timestamp)',
    file: (path) => `read_parquet('${path}')`,
    // The last partition's files have room for more.
    bytes: `select 1.0 * diskSize / numRows as n from table_partitions('trades') limit 1`,
    pending: 'select count(*) as n from wal_tables() where writerTxn < sequencerTxn',
    ordered: '',
    newest: (where, count) => `${SELECT}${where} limit -${count}`,
    sample: (count, total) => `${SELECT} where rnd_double() < ${count / total}`,
    first: (value) => `first(${value})`,
    last: (value) => `last(${value})`,
    grouped: (columns, where, seconds) => `select timestamp as t, ${columns} from trades${where} sample by ${seconds}s`,
    asof: (bars, seconds) =>
      `select b.*, h.hashrate from (select *, dateadd('s', ${seconds}, t) as e from (${bars}) timestamp(e)) b lt join hashrates h`,
  },
};
const ENGINES = Object.entries(DIALECTS) as [Engine, Dialect][];

/** The statements that load an engine from Parquet. */
export function loading(engine: Engine, files: { readonly trades: string; readonly hashrates: string }): string[] {
  const { create, time, file } = DIALECTS[engine];
  const from = (columns: string, path: string) =>
    `select ${time} as timestamp, ${columns.replace('timestamp, ', '')} from ${file(path)}`;
  const kept = (size: number) => create(`klines_${size}`, ['t'], klinesSql(DIALECTS[engine], '', size)!);
  return [
    create('trades', ['timestamp', 'trade_id'], from(COLUMNS, files.trades)),
    create('hashrates', ['timestamp'], from('hashrate', files.hashrates)),
    ...[60, 3600].map(kept),
  ];
}

const FEW = ['open', 'high', 'low', 'close', 'volume'];
const ALL = [
  ...[...FEW, 'mean', 'std', 'median', 'iqr', 'maker_ratio', 'no_of_trades', 'open_liquidity', 'high_liquidity'],
  ...['low_liquidity', 'close_liquidity', 'liquidity_sum', 'maker_volume', 'maker_liquidity'],
];

function klinesSql(dialect: Dialect, where: string, seconds: number, fields = FEW): string | undefined {
  const { first, last, quantile } = dialect;
  if (fields === ALL && !quantile) return undefined;
  const turnover = 'price * quantity';
  const columns: Record<string, string | undefined> = {
    open: first('price'),
    high: 'max(price)',
    low: 'min(price)',
    close: last('price'),
    mean: 'avg(price)',
    std: 'stddev_pop(price)',
    median: quantile?.(0.5),
    iqr: `${quantile?.(0.75)} - ${quantile?.(0.25)}`,
    volume: 'sum(quantity)',
    maker_ratio: 'avg(is_buyer_maker)',
    no_of_trades: 'count(*)',
    open_liquidity: first(turnover),
    high_liquidity: `max(${turnover})`,
    low_liquidity: `min(${turnover})`,
    close_liquidity: last(turnover),
    liquidity_sum: `sum(${turnover})`,
    maker_volume: 'sum(quantity * is_buyer_maker)',
    maker_liquidity: `sum(${turnover} * is_buyer_maker)`,
  };
  return dialect.grouped(fields.map((name) => `${columns[name]} as ${name}`).join(), where, seconds);
}

/** The shares of rows that filters on price * quantity let pass. */
export const PASSING = { '0.2 %': 0.002, 'four in a million': 4e-6 };

interface Stored extends Window {
  /** Trades, with the ids from 1 on. */
  readonly total: number;
  /** The value above which each share of the rows lies. */
  readonly limits: Readonly<Record<string, number>>;
}

export function readsOf({ fromMs, toMs, total, limits }: Stored): Read[] {
  const all = { fromMs, toMs };
  const ofAll = `of ${(toMs - fromMs) / DAY_MS} days`;
  const day = { fromMs: toMs - DAY_MS, toMs };
  const hour = { fromMs: day.fromMs + DAY_MS / 2, toMs: day.fromMs + DAY_MS / 2 + 3_600_000 };
  const ids = Array.from({ length: 1000 }, (_, at) => 1 + Math.floor(((at + 0.5) * total) / 1000));
  const sources = [DATASET];
  const within = ({ fromMs: from, toMs: to }: Window) => ({ sources, time_range: [iso(from), iso(to)] });
  const during = ({ perMs }: Dialect, { fromMs: from, toMs: to }: Window) =>
    ` where timestamp >= ${from * perMs} and timestamp < ${to * perMs}`;
  const inEach = (sqlOf: (dialect: Dialect) => string | undefined): Read['sql'] =>
    Object.fromEntries(ENGINES.flatMap(([engine, dialect]) => (sqlOf(dialect) ? [[engine, sqlOf(dialect)]] : [])));
  const rows = (what: string, body: object, sqlOf: (dialect: Dialect) => string, more: Partial<Read> = {}): Read => ({
    ...{ what, path: QUERY, body: { sources, ...body }, sql: inEach(sqlOf), compared: ['trade_id', 'quote_quantity'] },
    ...more,
  });
  const scan = (what: string, window: Window, as: Form) =>
    rows(what, within(window), (dialect) => `${SELECT}${during(dialect, window)}${dialect.ordered}`, { as });
  const filtered = ([share, value]: [string, number]) => {
    const filters = [{ field: 'quote_quantity', op: 'gt', value }];
    const where = ` where price * quantity > ${value}`;
    const what = `price * quantity that ${share} pass`;
    return [
      rows(`${what}, all rows`, { filters }, ({ ordered }) => `${SELECT}${where}${ordered}`, { as: 'arrow' }),
      rows(`${what}, newest 100`, { filters, n_rows: 100 }, ({ newest }) => newest(where, 100)),
    ];
  };
  // A join with a list, as DuckDB makes it, loses the order.
  const given = (condition: string) => () => `${SELECT} where trade_id ${condition} order by timestamp, trade_id`;
  const klines = (what: string, window: Window, seconds: number, fields = FEW): Read => ({
    ...{ what, path: '/v1/historical/exchange_a/spot/klines', compared: FEW },
    body: {
      ...{ start_date: dayOf(window.fromMs), end_date: dayOf(window.toMs - 1), kline_size: seconds },
      fields: ['datetime', ...fields],
    },
    sql: inEach((dialect) => klinesSql(dialect, during(dialect, window), seconds, fields)),
  });
  const kept = (what: string, size: number): Read => ({
    ...klines(`${what}, kept by all`, all, size),
    sql: inEach(() => `select * from klines_${size} order by t`),
  });
  const prices = { open: 'first', high: 'max', low: 'min', close: 'last' };
  const frame = (grid: string, seconds: number): Read => ({
    ...{ what: `a frame of ${grid} ${ofAll} with a series`, path: '/v1/frame', compared: FEW },
    body: {
      ...{ grid, time_range: within(all).time_range },
      columns: [
        ...Object.entries(prices).map(([name, aggregate]) => ({ name, dataset: DATASET, field: 'price', aggregate })),
        { name: 'volume', dataset: DATASET, field: 'quantity', aggregate: 'sum' },
        { name: 'hashrate', dataset: 'bitcoin_network_hashrate_estimate', field: 'hashrate_hs' },
      ],
    },
    sql: inEach((dialect) => dialect.asof(klinesSql(dialect, during(dialect, all), seconds)!, seconds)),
  });
  const id = ids[300];
  return [
    rows('latest 100', { n_rows: 100 }, ({ newest }) => newest('', 100), { small: true }),
    rows('a uniform sample of 1,000', { n_random: 1000 }, ({ sample }) => sample(1000, total), { random: true }),
    rows('1,000 given ids', { filters: [{ field: 'trade_id', op: 'in', value: ids }] }, given(`in (${ids})`)),
    rows('one given id', { filters: [{ field: 'trade_id', op: 'eq', value: id }] }, given(`= ${id}`), { small: true }),
    scan('an hour as Arrow', hour, 'arrow'),
    scan('an hour as CSV', hour, 'csv'),
    scan('a day as Arrow', day, 'arrow'),
    scan('a day as CSV', day, 'csv'),
    klines('1 m klines of a day, 5 fields', day, 60),
    klines('1 m klines of a day, all fields', day, 60, ALL),
    klines(`1 h klines ${ofAll}`, all, 3600),
    klines('90 s klines of a day', day, 90),
    kept(`1 h klines ${ofAll}`, 3600),
    kept(`1 m klines ${ofAll}`, 60),
    ...Object.entries(limits).flatMap(filtered),
    frame('1h', 3600),
    frame('1m', 60),
  ];
}
