/** What one would use instead: psql, `pg`, and DuckDB in this process; and the statements that find the same rows. */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { type DuckDBConnection, DuckDBInstance } from '@duckdb/node-api';
import pg from 'pg';
import type { Stack } from '../shared/stack/stack.ts';
import { ended } from './service.ts';

/** The benches of reads ask for its rows. */
export const DATASET = 'exchange_a_spot_trades';

export interface Window {
  readonly fromMs: number;
  readonly toMs: number;
}

/** The eight fields of an answer to a window, in the form of the contract. */
export const sameFields = ({ fromMs, toMs }: Window) => `select t.trade_id, t.timestamp, t.price, t.quantity,
  t.quote_quantity, t.is_buyer_maker::int as is_buyer_maker, t.is_best_match::int as is_best_match,
  to_char(to_timestamp(t.timestamp / 1000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as datetime
  from ${DATASET} t where t.timestamp >= ${fromMs} and t.timestamp < ${toMs} order by t.timestamp, t.trade_id`;

/** The latest 100 rows of a window, in their stored form. */
export const latest100 = ({ fromMs, toMs }: Window) => `select t.trade_id, t.timestamp, t.price, t.quantity,
  t.quote_quantity, t.is_buyer_maker, t.is_best_match from ${DATASET} t
  where t.timestamp >= ${fromMs} and t.timestamp < ${toMs} order by t.timestamp desc, t.trade_id desc limit 100`;

/** Starts psql with commands of its own or of SQL, one after the other on one connection. A backslash command must be one line. */
export const startPsql = (
  { runtime, databaseUrl }: Stack,
  commands: readonly string[],
  stdout: 'ignore' | 'pipe' = 'ignore',
): ChildProcess =>
  spawn(
    join(runtime?.postgresBin ?? '/usr/bin', 'psql'),
    [databaseUrl, '-v', 'ON_ERROR_STOP=1', '-qX', ...commands.flatMap((one) => ['-c', one.replaceAll(/\s+/g, ' ')])],
    { stdio: ['ignore', stdout, 'inherit'] },
  );

export const psqlJson = (stack: Stack, select: string, stdout?: 'pipe'): ChildProcess =>
  startPsql(stack, [`copy (select row_to_json(x) from (${select}) x) to stdout`], stdout);

export const psqlToCsv = (stack: Stack, select: string, file: string): Promise<void> =>
  ended(startPsql(stack, [`\\copy (${select}) to '${file}' with (format csv, header)`]));

export async function connected(url: string): Promise<{ readonly pg: pg.Client } & AsyncDisposable> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return { pg: client, [Symbol.asyncDispose]: () => client.end() };
}

/** A CSV file of `sameFields` as a table of DuckDB. */
export const readCsv = (file: string) => `read_csv('${file}', header = true, columns = {'trade_id': 'bigint',
  'timestamp': 'bigint', 'price': 'double', 'quantity': 'double', 'quote_quantity': 'double',
  'is_buyer_maker': 'tinyint', 'is_best_match': 'tinyint', 'datetime': 'timestamptz'})`;

export async function csvToParquet(csv: string, parquet: string): Promise<void> {
  using duckdb = await openDuckDb();
  await duckdb.connection.run(
    `copy (select * from ${readCsv(csv)}) to '${parquet}' (format parquet, compression zstd)`,
  );
}

/** An instance in memory that uses all cores, as it does by default. */
export async function openDuckDb(): Promise<{ readonly connection: DuckDBConnection } & Disposable> {
  const instance = await DuckDBInstance.create();
  const connection = await instance.connect();
  return {
    connection,
    [Symbol.dispose]() {
      connection.closeSync();
      instance.closeSync();
    },
  };
}

/** @throws Error unless all tables or files hold the same trades */
export async function checkSameRows(sources: readonly string[]): Promise<void> {
  using duckdb = await openDuckDb();
  const sides = sources.map(
    (source) => `select count(*) as n, bit_xor(hash(trade_id, "timestamp", price, quantity, quote_quantity,
      is_buyer_maker::int, is_best_match::int, epoch_ms(datetime))) as h from ${source}`,
  );
  const found = await duckdb.connection.runAndReadAll(
    `select count(distinct (n, h)) as sides, min(n) as least from (${sides.join(' union all ')})`,
  );
  const [{ sides: different, least }] = found.getRowObjects();
  if (Number(different) !== 1 || Number(least) === 0) throw new Error('the files do not hold the same rows');
}
