/** DuckDB as what one would use instead: the rows of a service as a Parquet file, and statements in this process. */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { type DuckDBConnection, DuckDBInstance } from '@duckdb/node-api';
import type { Stack } from '../shared/stack/stack.ts';
import { drained } from './query-subjects.ts';

/** A CSV file of `SAME_FIELDS` as a table. */
export const readCsv = (file: string) => `read_csv('${file}', header = true, columns = {'trade_id': 'bigint',
  'timestamp': 'bigint', 'price': 'double', 'quantity': 'double', 'quote_quantity': 'double',
  'is_buyer_maker': 'tinyint', 'is_best_match': 'tinyint', 'datetime': 'timestamptz'})`;

export async function psqlToCsv(stack: Stack, select: string, file: string): Promise<void> {
  const psql = join(stack.runtime?.postgresBin ?? '/usr/bin', 'psql');
  // A backslash command must be one line.
  const copy = `\\copy (${select.replaceAll(/\s+/g, ' ')}) to '${file}' with (format csv, header)`;
  await drained(spawn(psql, [stack.databaseUrl, '-c', copy], { stdio: ['ignore', 'ignore', 'inherit'] }));
}

export async function csvToParquet(csv: string, parquet: string): Promise<void> {
  await inDuckDb(`copy (select * from ${readCsv(csv)}) to '${parquet}' (format parquet, compression zstd)`);
}

/** Runs one statement in an instance of its own. */
export async function inDuckDb(sql: string) {
  using duckdb = await openDuckDb();
  return (await duckdb.connection.runAndReadAll(sql)).getRowObjects();
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
