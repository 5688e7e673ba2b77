/** Parquet files read by DuckDB, each cell as the text JSON shows, or null. */
import { type DuckDBConnection, DuckDBInstance, DuckDBTimestampTZValue, type DuckDBValue } from '@duckdb/node-api';
import { BackpressureGate, FileSink } from '../../serving/exports/artifact/file-sink.ts';
import { formatOf } from '../../serving/exports/artifact/files.ts';
import { BufferPool } from '../../serving/render/response.ts';
import { type GeneratedRows, writeRow } from './generated-rows.ts';

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

// Generated rows as a Parquet file, written as exports are, or as files of a table are.

interface ParquetOptions {
  readonly facts?: Record<string, string>;
  readonly compression?: 'zstd' | 'snappy' | 'none';
  readonly isOfTable?: boolean;
}

export async function writeParquet(
  path: string,
  generated: GeneratedRows,
  { facts = {}, compression = 'zstd', isOfTable = false }: ParquetOptions = {},
): Promise<string> {
  // Rows come when they are let.
  let gate: PromiseWithResolvers<void> | undefined;
  const brake = new BackpressureGate();
  brake.flow = { pause: () => (gate = Promise.withResolvers()), resume: () => gate?.resolve() };
  const onFault = (error: unknown) => {
    throw error;
  };
  await using sink = await FileSink.create(path, { buffers: new BufferPool(), flow: brake.createReason(), onFault });
  const { shape } = generated;
  await using writer = formatOf('parquet', compression, { isOfTable }).open({
    sink,
    flow: brake.createReason(),
    shape,
    facts,
    onFault,
    buffers: new BufferPool(),
  });
  for (const row of generated.rows) {
    writeRow(writer, shape, row);
    if (shape.hiddenFirst) writer.resolve(row.toMs);
    await gate?.promise;
  }
  await writer.close();
  await sink.finish();
  return path;
}
