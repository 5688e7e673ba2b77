/**
 * Hypertable chunks: made on purpose, filled directly, indexed after loading. The Apache edition makes a chunk only by
 * storing a row in it, so a placeholder row is stored and truncated away in the transaction that made the chunk.
 */

import type { ClientBase } from 'pg';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition, PgType } from '../../shared/registry/index.ts';
import type { TimeWindow } from '../../shared/registry/keys.ts';

export interface LoadTarget {
  /** Holds all rows of the window: the one chunk, where the window fits one, else the hypertable. */
  readonly table: string;
  /** What can be filled directly; rows that lie in none of these go to `table`. */
  readonly chunks: readonly LoadChunk[];
}

export interface LoadChunk {
  readonly table: string;
  readonly fromMs: number;
  /** Exclusive. */
  readonly toMs: number;
  /** Has its unique index; otherwise it is built after loading. */
  readonly indexed: boolean;
  /**
   * Made by this transaction: rows are stored frozen, so that nobody has to visit them again to say that they are
   * visible. Who could see them too early reads coverage first, and finds nothing there.
   */
  readonly fresh: boolean;
}

/**
 * Where the rows of a window go. A chunk that does not exist is created in the caller's transaction, invisible to
 * others until it commits, which is why its index can wait. One that exists has its index and is loaded into with it:
 * of a file day that lies across two chunks the earlier rows, which go to the right end of the index.
 */
export async function prepareChunks(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: TimeWindow,
): Promise<LoadTarget> {
  const { table, chunkMs } = dataset.native;
  const chunks: LoadChunk[] = [];
  for (let from = Math.floor(window.fromMs / chunkMs) * chunkMs; from < window.toMs; from += chunkMs) {
    chunks.push(await prepareChunk(client, dataset, from));
  }
  return { table: chunks.length === 1 ? chunks[0].table : table, chunks };
}

async function prepareChunk(client: ClientBase, dataset: DatasetDefinition, chunkFrom: number): Promise<LoadChunk> {
  const { table, time, chunkMs } = dataset.native;
  const placeholders = dataset.native.columns.map((column) =>
    column.name === time.column ? String(chunkFrom) : PLACEHOLDERS[column.pg],
  );
  const existing = await findChunk(client, table, chunkFrom);
  const made = existing
    ? undefined
    : await createChunk(client, `insert into ${table} values (${placeholders.join(', ')})`);
  const chunk = existing ?? made!.chunk;
  const indexed = await client.query(
    'select 1 from pg_index where indrelid = $1::regclass and indisunique and indisvalid',
    [chunk],
  );
  return {
    table: chunk,
    fromMs: chunkFrom,
    toMs: chunkFrom + chunkMs,
    indexed: indexed.rowCount !== 0,
    fresh: made?.ours === true,
  };
}

/** The unique (time, identity) of loaded chunks. @throws 23505 when rows repeat. */
export async function indexChunks(client: ClientBase, dataset: DatasetDefinition, target: LoadTarget): Promise<void> {
  const columns = [dataset.native.time.column, ...dataset.native.identity].map((name) => `"${name}"`).join(', ');
  for (const { table, indexed } of target.chunks) {
    if (!indexed) await client.query(`create unique index on ${table} (${columns})`);
  }
}

/** Aligned chunks that one transaction makes: every other writer of the table waits for it, some 10 ms each. */
const CHUNKS_AT_ONCE = 16;

/**
 * Makes the aligned chunks that hold these times, where they are missing, in transactions of their own. Making one takes a
 * lock that every other writer of the hypertable waits for, so it must not happen inside a long load.
 */
export async function ensureAlignedChunks(
  client: ClientBase,
  dataset: DatasetDefinition,
  times: readonly number[],
): Promise<void> {
  const missing = await withoutChunk(client, times);
  for (let from = 0; from < missing.length; from += CHUNKS_AT_ONCE) {
    const rows = missing
      .slice(from, from + CHUNKS_AT_ONCE)
      .map((ms) => `(${dataset.number}, 0, '${new Date(ms).toISOString()}')`);
    // A chunk is made by a row that is stored: a placeholder of no series, gone before anybody could see it.
    await client.query('begin');
    try {
      const stored = await client.query<{ chunk: string; place: string }>(
        `insert into ${ALIGNED_TABLE} (dataset_id, series_id, aligned_at_utc) values ${rows.join(', ')}
         returning tableoid::regclass::text as chunk, ctid::text as place`,
      );
      const deletes = stored.rows.map(({ chunk, place }) => `delete from ${chunk} where ctid = '${place}'`);
      await client.query(deletes.join('; '));
      await client.query('commit');
    } catch (error) {
      await client.query('rollback');
      throw error;
    }
  }
}

/** Those of the times that no aligned chunk holds. */
async function withoutChunk(client: ClientBase, times: readonly number[]): Promise<number[]> {
  const { rows } = await client.query<{ ms: string }>(
    `with chunks as materialized (
       select range_start, range_end from timescaledb_information.chunks
       where hypertable_name = $1 and hypertable_schema = current_schema)
     select distinct t.ms from unnest($2::int8[]) t (ms) where not exists (
       select from chunks
       where range_start <= to_timestamp(t.ms / 1000.0) and range_end > to_timestamp(t.ms / 1000.0))`,
    [ALIGNED_TABLE, times],
  );
  return rows.map(({ ms }) => Number(ms));
}

/** The chunk that holds a point of a hypertable whose time dimension is an integer, in that dimension's unit. */
async function findChunk(client: ClientBase, hypertable: string, point: number): Promise<string | undefined> {
  const found = await client.query(
    `select format('%I.%I', chunk_schema, chunk_name) as chunk from timescaledb_information.chunks
     where hypertable_name = $1 and hypertable_schema = current_schema
       and range_start_integer <= $2 and range_end_integer > $2`,
    [hypertable, point],
  );
  return found.rows[0]?.chunk;
}

/** @returns the chunk, emptied again of the placeholder, and whether this transaction made it. */
async function createChunk(client: ClientBase, insert: string): Promise<{ chunk: string; ours: boolean }> {
  const stored = await client.query(`${insert} returning tableoid::regclass::text as chunk, ctid::text as place`);
  const { chunk, place } = stored.rows[0];
  // Somebody else may have made the chunk between our look and our insert; then it may hold rows already.
  const created = await client.query(
    `select xmin::text = (pg_current_xact_id()::text::numeric % 4294967296)::text as ours from pg_class where oid = $1::regclass`,
    [chunk],
  );
  const { ours } = created.rows[0];
  await client.query(ours ? `truncate ${chunk}` : `delete from ${chunk} where ctid = '${place}'`);
  return { chunk, ours };
}

const PLACEHOLDERS: Record<PgType, string> = {
  int2: '0',
  int4: '0',
  int8: '0',
  float8: '0',
  text: `''`,
  bool: 'false',
  timestamptz: `'epoch'`,
  uuid: `'00000000-0000-0000-0000-000000000000'`,
  bytea: `''`,
};
