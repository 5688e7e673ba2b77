/**
 * Beside what one would use instead: DuckDB in this process over a Parquet file of the same rows, and the service over HTTP.
 * Rounds alternate, after a warm-up that checks that both sides find as many rows. Klines and latest rows end as JavaScript
 * objects on both sides; of Arrow, the service sends the last byte, and DuckDB has all chunks in memory. Both use all cores.
 * `n_rows` of a million is compared with the same rows by time window, and disk with the bytes of the Parquet file (zstd).
 *
 * Options: --rows N (3,500,000) a day, --days N (4), --rounds N (5), --store rows|columns, --json. Columns need a server with
 * TimescaleDB's community edition, which TIDEMARK_BENCH_DATABASE_URL names.
 */
import { rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import type { DuckDBConnection } from '@duckdb/node-api';
import pg from 'pg';
import { DAY_MS } from '../shared/dates.ts';
import { csvToParquet, openDuckDb, psqlToCsv } from './duckdb.ts';
import { benchHarness, type Note } from './harness.ts';
import { alternating, rounded } from './measure.ts';
import { optionsOf } from './options.ts';
import {
  DATASET,
  discard,
  ingestHistory,
  type QueryServer,
  STORES,
  type Store,
  sameFieldsOf,
  startServer,
  storePlace,
} from './query-subjects.ts';

const START = '2024-03-01';
const KLINES_PATH = '/v1/historical/exchange_a/spot/klines';
const ARROW = { Accept: 'application/vnd.apache.arrow.stream' };
const HOUR_MS = 3_600_000;
const MILLION = 1_000_000;

const iso = (ms: number) => new Date(ms).toISOString();
const dayOf = (ms: number) => iso(ms).slice(0, 10);

/** One side of a comparison. @returns how many rows it found. */
type Side = () => Promise<number>;

interface Case {
  readonly name: string;
  readonly ours: Side;
  readonly theirs: Side;
}

interface Compared {
  readonly name: string;
  readonly rows: number;
  readonly tidemark_ms: number;
  readonly duckdb_ms: number;
  readonly ratio: number;
  readonly ratio_min: number;
  readonly ratio_max: number;
}

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, days, rounds, json, ...options } = optionsOf(argv, {
    counts: { rows: [3_500_000, 1], days: [4, 1], rounds: [5, 1] },
    choices: { store: STORES },
  });
  const store = (options.store ?? 'rows') as Store;
  const { databaseUrl, settings, proved } = await storePlace(store, 'tidemark_bench_peers');
  await using harness = await benchHarness('peers', databaseUrl);
  const { directory, stack, note } = harness;
  const fromMs = Date.parse(START);
  const toMs = fromMs + days * DAY_MS;
  await ingestHistory(stack, directory, { fromMs, toMs, rows }, { settings, note, proved });
  note('writing the same rows as Parquet');
  const [csv, parquet] = ['rows.csv', 'rows.parquet'].map((name) => join(directory, name));
  await psqlToCsv(stack, sameFieldsOf(fromMs, toMs), csv);
  await csvToParquet(csv, parquet);
  await rm(csv);

  await using server = await startServer(stack);
  using duckdb = await openDuckDb();
  await duckdb.connection.run(`create view trades as select * from '${parquet}'`);
  const found: Compared[] = [];
  for (const one of casesOf(server, duckdb.connection, { fromMs, toMs })) found.push(await compare(one, rounds, note));
  const million = await byCount(server, stack.databaseUrl, rounds, note);
  const all = rows * days;
  const disk = {
    tidemark_bytes_a_trade: rounded((await bytesOf(stack.databaseUrl)) / all, 1),
    parquet_bytes_a_trade: rounded((await stat(parquet)).size / all, 1),
  };
  const result = {
    bench: 'peers',
    rows_a_day: rows,
    days,
    rounds,
    store,
    ratio: found.find(({ name }) => name === 'klines of 1 m of a day, all fields')?.ratio,
    cases: found,
    million_by_count: million,
    disk: { ...disk, ratio: rounded(disk.tidemark_bytes_a_trade / disk.parquet_bytes_a_trade, 2) },
  };
  process.stdout.write(json ? `${JSON.stringify(result)}\n` : `${linesOf(result).join('\n')}\n`);
}

interface Span {
  readonly fromMs: number;
  readonly toMs: number;
}

const FIRST_OF = (value: string) => `arg_min(${value}, trade_id)`;
const LAST_OF = (value: string) => `arg_max(${value}, trade_id)`;
const PRICES = `${FIRST_OF('price')} as open, max(price) as high, min(price) as low, ${LAST_OF('price')} as close,
  sum(quantity) as volume`;
const LIQUIDITY = 'price * quantity';
const ALL_FIELDS = `${PRICES}, avg(price) as mean, stddev_pop(price) as std, quantile_disc(price, 0.5) as median,
  quantile_disc(price, 0.75) - quantile_disc(price, 0.25) as iqr, avg(is_buyer_maker) as maker_ratio,
  count(*) as no_of_trades, ${FIRST_OF(LIQUIDITY)} as open_liquidity, max(${LIQUIDITY}) as high_liquidity,
  min(${LIQUIDITY}) as low_liquidity, ${LAST_OF(LIQUIDITY)} as close_liquidity, sum(${LIQUIDITY}) as liquidity_sum,
  sum(quantity) filter (where is_buyer_maker = 1) as maker_volume,
  sum(${LIQUIDITY}) filter (where is_buyer_maker = 1) as maker_liquidity`;
const within = ({ fromMs, toMs }: Span) => `"timestamp" >= ${fromMs} and "timestamp" < ${toMs}`;

function casesOf(server: QueryServer, duckdb: DuckDBConnection, span: Span): readonly Case[] {
  const objects = async (sql: string) => (await duckdb.runAndReadAll(sql)).getRowObjectsJS().length;
  const chunks = async (sql: string) =>
    (await (await duckdb.run(sql)).fetchAllChunks()).reduce((sum, { rowCount }) => sum + rowCount, 0);
  const json = async (body: object, path = '/v1/raw/query') => {
    const sources = path === KLINES_PATH ? {} : { sources: [DATASET] };
    return JSON.parse(String(await buffer(await server.postTo(path, { ...sources, ...body })))).rows.length;
  };
  const arrow = async (body: object) => {
    const response = await server.post(body, ARROW);
    await discard(response);
    return Number(response.trailers['x-svc-row-count']);
  };
  const klines = (name: string, { fromMs, toMs }: Span, sizeMs: number): Case[] => {
    const body = { start_date: dayOf(fromMs), end_date: dayOf(toMs - 1), kline_size: sizeMs / 1000 };
    const sql = (fields: string) => `select "timestamp" // ${sizeMs} * ${sizeMs} as datetime, ${fields}
      from trades where ${within({ fromMs, toMs })} group by 1 order by 1`;
    const few = ['datetime', 'open', 'high', 'low', 'close', 'volume'];
    return [
      { name: `${name}, all fields`, ours: () => json(body, KLINES_PATH), theirs: () => objects(sql(ALL_FIELDS)) },
      {
        name: `${name}, open to volume`,
        ours: () => json({ ...body, fields: few }, KLINES_PATH),
        theirs: () => objects(sql(PRICES)),
      },
    ];
  };
  const day = { ...span, toMs: span.fromMs + DAY_MS };
  const hour = { fromMs: span.fromMs + 12 * HOUR_MS, toMs: span.fromMs + 13 * HOUR_MS };
  return [
    {
      name: 'latest 100',
      ours: () => json({ n_rows: 100 }),
      theirs: () => objects('select * from trades order by "timestamp" desc, trade_id desc limit 100'),
    },
    {
      name: 'random 1,000',
      ours: () => json({ n_random: 1000 }),
      theirs: () => objects('select * from trades using sample reservoir(1000 rows)'),
    },
    {
      name: 'an hour to Arrow',
      ours: () => arrow({ time_range: [iso(hour.fromMs), iso(hour.toMs)] }),
      theirs: () => chunks(`select * from trades where ${within(hour)} order by "timestamp", trade_id`),
    },
    ...klines('klines of 1 m of a day', day, 60_000),
    ...klines('klines of 1 h of all days', span, HOUR_MS),
    {
      name: 'quantity >= 0.5 over all days, to Arrow',
      ours: () =>
        arrow({
          time_range: [iso(span.fromMs), iso(span.toMs)],
          filters: [{ field: 'quantity', op: 'gte', value: 0.5 }],
        }),
      theirs: () => chunks('select * from trades where quantity >= 0.5 order by "timestamp", trade_id'),
    },
  ];
}

async function compare({ name, ours, theirs }: Case, rounds: number, note: Note): Promise<Compared> {
  const [served, found] = [await ours(), await theirs()];
  if (served !== found || found === 0) throw new Error(`${name}: ${served} rows were served, DuckDB found ${found}`);
  const times = await alternating(ours, theirs, rounds);
  note(`${name}: ${times.first_ms} ms, DuckDB ${times.second_ms} ms`);
  const { first_ms: tidemark_ms, second_ms: duckdb_ms, ...ratios } = times;
  return { name, rows: found, tidemark_ms, duckdb_ms, ...ratios };
}

/** The newest million rows, or all where there are fewer: asked for by `n_rows`, and by the window that holds them. */
async function byCount(server: QueryServer, databaseUrl: string, rounds: number, note: Note) {
  const { rows } = await inPostgres(
    databaseUrl,
    `select min(ts)::float8 as from_ms, max(ts)::float8 as last_ms, count(*)::int4 as n
     from (select "timestamp" as ts from ${DATASET} order by "timestamp" desc, trade_id desc limit ${MILLION}) newest`,
  );
  const { from_ms, last_ms, n } = rows[0];
  const ask = async (body: object) => {
    const response = await server.post(body, ARROW);
    await discard(response);
    return Number(response.trailers['x-svc-row-count']);
  };
  const byRows = () => ask({ n_rows: n });
  const byWindow = () => ask({ time_range: [iso(from_ms), iso(last_ms + 1)] });
  const counts = [await byRows(), await byWindow()];
  // The window may begin with more rows of its first millisecond.
  if (counts[0] !== n || counts[1] < n || counts[1] > n + 1000) throw new Error(`${n} rows, served: ${counts}`);
  const { first_ms, second_ms, ...ratios } = await alternating(byRows, byWindow, rounds);
  note(`the newest ${n} rows: ${first_ms} ms by count, ${second_ms} ms by window`);
  return { rows: n, by_count_ms: first_ms, by_window_ms: second_ms, ...ratios };
}

/** Bytes of the native rows with their indexes. */
async function bytesOf(databaseUrl: string): Promise<number> {
  const { rows } = await inPostgres(databaseUrl, `select hypertable_size('${DATASET}')::float8 as bytes`);
  return rows[0].bytes;
}

async function inPostgres(databaseUrl: string, sql: string) {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    return await client.query(sql);
  } finally {
    await client.end();
  }
}

interface Result {
  readonly rows_a_day: number;
  readonly days: number;
  readonly rounds: number;
  readonly cases: readonly Compared[];
  readonly million_by_count: Awaited<ReturnType<typeof byCount>>;
  readonly disk: Readonly<Record<string, number>>;
}

function linesOf({ rows_a_day, days, rounds, cases, million_by_count: million, disk }: Result): string[] {
  const ratioOf = ({ ratio, ratio_min, ratio_max }: Omit<Compared, 'name' | 'rows' | 'tidemark_ms' | 'duckdb_ms'>) =>
    `ratio ${ratio} (${ratio_min}..${ratio_max})`;
  return [
    `${days} days of ${rows_a_day.toLocaleString('en-US')} trades, medians of ${rounds} rounds, over HTTP and DuckDB over Parquet`,
    ...cases.map(
      (one) =>
        `  ${one.name.padEnd(40)} ${one.tidemark_ms} ms, DuckDB ${one.duckdb_ms} ms  ${ratioOf(one)}, ${one.rows.toLocaleString('en-US')} rows`,
    ),
    `  newest ${million.rows.toLocaleString('en-US')} rows, to Arrow: ${million.by_count_ms} ms by count, ${million.by_window_ms} ms by window  ${ratioOf(million)}`,
    `  bytes a trade: ${disk.tidemark_bytes_a_trade}, Parquet ${disk.parquet_bytes_a_trade}  ratio ${disk.ratio}`,
  ];
}
