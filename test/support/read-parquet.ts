/** Parquet files read by DuckDB, each cell as the text JSON shows, or null. */
import { type DuckDBConnection, DuckDBInstance, DuckDBTimestampTZValue, type DuckDBValue } from '@duckdb/node-api';

export interface DuckDb extends Disposable {
  /** Rows as objects of plain values. */
  rows(sql: string): Promise<Record<string, DuckDBValue>[]>;
  /** Rows of cells as texts. */
  texts(sql: string): Promise<(string | null)[][]>;
}

export async function openDuckDb(): Promise<DuckDb> {
  const instance = await DuckDBInstance.create();
  const connection: DuckDBConnection = await instance.connect();
  await connection.run(`set timezone = 'UTC'`);
  return {
    rows: async (sql) => (await connection.runAndReadAll(sql)).getRowObjects(),
    texts: async (sql) => (await connection.runAndReadAll(sql)).getRows().map((row) => row.map(textOf)),
    [Symbol.dispose]() {
      connection.closeSync();
      instance.closeSync();
    },
  };
}

function textOf(value: DuckDBValue): string | null {
  if (value === null) return null;
  if (value instanceof DuckDBTimestampTZValue) {
    if (value.micros % 1000n !== 0n) throw new Error(`${value.micros} us are no whole milliseconds`);
    return new Date(Number(value.micros / 1000n)).toISOString();
  }
  if (typeof value === 'number') return JSON.stringify(value);
  if (typeof value === 'string' || typeof value === 'bigint') return String(value);
  throw new Error(`a ${typeof value} is none of our types`);
}
