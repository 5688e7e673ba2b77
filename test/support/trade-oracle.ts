/** DuckDB as the judge of trades: the vendors' files read by another program, beside what is stored. */
import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { DuckDBInstance } from '@duckdb/node-api';
import { to as copyTo } from 'pg-copy-streams';
import type { Client } from '../../shared/db/connect.ts';
import { datasetOf } from '../../shared/registry/index.ts';

export async function duckdb(sql: string): Promise<(string | null)[][]> {
  const instance = await DuckDBInstance.create();
  const connection = await instance.connect();
  try {
    const reader = await connection.runAndReadAll(sql);
    return reader.getRows().map((row) => row.map((cell) => (cell === null ? null : String(cell))));
  } finally {
    connection.closeSync();
    instance.closeSync();
  }
}

interface Oracle {
  /** One file's rows: `id`, `ms`, and exact decimals `price`, `qty`, `quote`, beside what `native` needs. */
  readonly read: (path: string) => string;
  /** Stored columns of it, floats as DuckDB parses their text; a column left out is judged by the exact sums alone. */
  readonly native: Readonly<Record<string, string>>;
}

const EXCHANGE_A = 'exchange_a_spot_trades';
const csv = (path: string) => `read_csv('${path}', header = true, all_varchar = true)`;
const ORACLES: Readonly<Record<string, Oracle>> = {
  [EXCHANGE_A]: {
    read: (path) => `select id, price, qty, quote, maker, best,
      case when time >= 100000000000000 then time // 1000 else time end as ms
      from read_csv('${path}', header = false, columns = {id: 'bigint', price: 'decimal(18,8)', qty: 'decimal(18,8)',
        quote: 'decimal(18,8)', time: 'bigint', maker: 'boolean', best: 'boolean'})`,
    native: {
      timestamp: 'ms',
      trade_id: 'id',
      price: 'price::double',
      quantity: 'qty::double',
      quote_quantity: 'quote::double',
      is_buyer_maker: 'maker',
      is_best_match: 'best',
    },
  },
  exchange_b_spot_trades: {
    read: (path) => `select trade_id::bigint as id, created_time::bigint as ms, price::decimal(6,1) as price,
      size::decimal(32,22) as qty, price::decimal(6,1) * size::decimal(32,22) as quote, price as price_text,
      size as size_text, lower(side) as side, instrument_name from ${csv(path)}`,
    native: {
      timestamp: 'ms',
      trade_id: 'id',
      price: 'price_text::double',
      size: 'size_text::double',
      side: 'side',
      instrument_name: 'instrument_name',
    },
  },
  exchange_c_spot_trades: {
    // What the rows do not state: products of decimals, and the last change of price in the order of ids.
    read: (path) => `select *, case when sign is null then '' else (case when price = before then 'Zero' else '' end)
        || (case when sign > 0 then 'PlusTick' else 'MinusTick' end) end as tick
      from (select *, last_value(nullif(sign(price - before), 0) ignore nulls) over (order by id) as sign
        from (select id::bigint as id, timestamp::bigint as ms, price::decimal(12,4) as price, volume::decimal(20,8) as qty,
          price::decimal(12,4) * volume::decimal(20,8) as quote, price as price_text, volume as volume_text,
          lower(side) as side, lag(price::decimal(12,4)) over (order by id::bigint) as before from ${csv(path)}))`,
    native: {
      timestamp: 'ms',
      trade_id: 'id',
      price: 'price_text::double',
      size: 'volume_text::double',
      gross_value: '(quote * 100000000)::varchar::double',
      home_notional: 'volume_text::double',
      foreign_notional: 'quote::varchar::double',
      side: 'side',
      tick_direction: 'tick',
      symbol: `'BTCUSDT'`,
      trd_match_id: `'m-' || id`,
    },
  },
  exchange_c_trading: {
    // Rounded before it is multiplied: as decimals beyond 18 digits half a million times take 8 s.
    read: (path) => `select trdMatchID[3:]::bigint as id, (round(timestamp::decimal(18,6), 3) * 1000)::bigint as ms,
      price::decimal(12,2) as price, size::decimal(32,20) as qty, foreignNotional::decimal(32,20) as quote,
      price as price_text, size as size_text, grossValue, homeNotional, foreignNotional, lower(side) as side,
      tickDirection, symbol, trdMatchID from ${csv(path)}`,
    native: {
      timestamp: 'ms',
      trade_id: 'id',
      price: 'price_text::double',
      size: 'size_text::double',
      gross_value: 'grossValue::double',
      home_notional: 'homeNotional::double',
      foreign_notional: 'foreignNotional::double',
      side: 'side',
      tick_direction: 'tickDirection',
      symbol: 'symbol',
      trd_match_id: 'trdMatchID',
    },
  },
};

/** The vendor's files as DuckDB reads them: decimals exact, times in ms. */
export const tradesOf = (csvPaths: readonly string[], layout = EXCHANGE_A): string =>
  `(${csvPaths.map((path) => `(${ORACLES[layout].read(path)})`).join(' union all ')})`;

const DUCKDB_TYPES: Record<string, string> = { int8: 'bigint', float8: 'double', bool: 'boolean', text: 'varchar' };

interface Stored {
  readonly client: Client;
}

/** Native rows that one side has and the other has not, [in the files, in the database, only files, only database]. */
export async function compareNative(
  { client }: Stored,
  csvPaths: readonly string[],
  dir: string,
  dataset = EXCHANGE_A,
  layout = dataset,
): Promise<number[]> {
  const path = join(dir, 'native.csv');
  const { native } = datasetOf(dataset);
  const judged = native.columns.filter(({ name }) => ORACLES[layout].native[name] !== undefined);
  const names = judged.map(({ name }) => `"${name}"`).join(', ');
  await pipeline(
    client.query(copyTo(`copy (select ${names} from ${native.table}) to stdout with (format csv)`)),
    createWriteStream(path),
  );
  const files = judged.map(({ name }) => `${ORACLES[layout].native[name]} as "${name}"`).join(', ');
  const types = judged.map(({ name, pg }) => `'${name}': '${DUCKDB_TYPES[pg]}'`).join(', ');
  const [counts] = await duckdb(`
    with files as materialized (select ${files} from ${tradesOf(csvPaths, layout)}),
    stored as materialized (select * from read_csv('${path}', header = false, allow_quoted_nulls = false, columns = {${types}}))
    select (select count(*) from files), (select count(*) from stored),
      (select count(*) from (from files except all from stored)), (select count(*) from (from stored except all from files))`);
  return counts.map(Number);
}

/** Aligned rows out of the files, [second, count, open, high, low, close, quantity, quote]: exact decimal text, rounded once by Number(). */
export async function secondsOfFiles(csvPaths: readonly string[], layout = EXCHANGE_A): Promise<number[][]> {
  const rows = await duckdb(`select (ms // 1000)::bigint as second, count(*), arg_min(price, id)::varchar,
    max(price)::varchar, min(price)::varchar, arg_max(price, id)::varchar, sum(qty)::varchar, sum(quote)::varchar
    from ${tradesOf(csvPaths, layout)} group by 1 order by 1`);
  return rows.map((row) => row.map(Number));
}

/** Aligned rows as stored, in the same terms. */
export async function secondsStored({ client }: Stored, dataset = EXCHANGE_A): Promise<number[][]> {
  const { rows } = await client.query({
    text: `select extract(epoch from aligned_at_utc)::int8, trade_count, open_price, high_price, low_price, close_price,
      quantity_sum, quote_volume_sum from canonical_aligned_1s_aggregates where dataset_id = $1 order by 1`,
    values: [datasetOf(dataset).number],
    rowMode: 'array',
  });
  return rows.map((row: unknown[]) => row.map(Number));
}
