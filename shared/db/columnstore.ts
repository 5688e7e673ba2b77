/** The columnstore of TimescaleDB's community edition: whether the server has it, and what lies in it. */
import type { ClientBase } from 'pg';

/** Whether the server runs the edition of TimescaleDB that has the columnstore. */
export async function hasColumnstore(client: Pick<ClientBase, 'query'>): Promise<boolean> {
  const { rows } = await client.query(
    `select coalesce(current_setting('timescaledb.license', true), '') = 'timescale' as held`,
  );
  return rows[0].held;
}

/** A hypertable whose chunks go into the columnstore. */
export interface ColumnstoreTable {
  readonly table: string;
  readonly chunks: number;
  readonly compacted_chunks: number;
  /** Of the compacted chunks, with their indexes: as rows, before they were compacted. */
  readonly row_bytes: number;
  /** And as columns. */
  readonly column_bytes: number;
}

/** @returns the tables that a compaction has reached; undefined on a server without a columnstore. */
export async function readColumnstore(client: ClientBase): Promise<readonly ColumnstoreTable[] | undefined> {
  if (!(await hasColumnstore(client))) return undefined;
  const { rows } = await client.query<ColumnstoreTable>(
    `select h.hypertable_name as table, s.total_chunks::float8 as chunks, s.number_compressed_chunks::float8 as compacted_chunks,
       coalesce(s.before_compression_total_bytes, 0)::float8 as row_bytes,
       coalesce(s.after_compression_total_bytes, 0)::float8 as column_bytes
     from timescaledb_information.hypertables h
     cross join lateral hypertable_compression_stats(format('%I.%I', h.hypertable_schema, h.hypertable_name)::regclass) s
     where h.compression_enabled and h.hypertable_schema = current_schema order by 1`,
  );
  return rows;
}
