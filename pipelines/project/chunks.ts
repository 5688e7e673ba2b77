/**
 * Hypertable chunks: made on purpose, filled directly, indexed after loading. The Apache edition makes a chunk only by
 * storing a row in it, so a placeholder row is stored and truncated away in the transaction that made the chunk.
 */
import type { ClientBase } from 'pg';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition, PgType } from '../../shared/registry/index.ts';
import type { Window } from '../../shared/registry/partitions.ts';

export interface LoadTarget {
  /** Qualified table to COPY into: one chunk where the window fits it, else the hypertable. */
  readonly table: string;
  /** Chunks that have no unique index yet: it is built after loading. */
  readonly unindexed: readonly string[];
  /**
   * Made by this transaction: rows are stored frozen, so that nobody has to visit them again to say that they are
   * visible. Who could see them too early reads coverage first, and finds nothing there.
   */
  readonly fresh: boolean;
}

/**
 * Where the rows of a window go. A chunk that does not exist is created in the caller's transaction, invisible to
 * others until it commits, which is why its index can wait. One that exists has its index and is loaded into with it:
 * of a file day that lies across two chunks the later rows, which go to the right end of the index.
 */
export async function prepareChunks(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: Window,
): Promise<LoadTarget> {
  const { table, chunkMs } = dataset.native;
  const chunks: Awaited<ReturnType<typeof prepareChunk>>[] = [];
  for (let from = Math.floor(window.fromMs / chunkMs) * chunkMs; from < window.toMs; from += chunkMs) {
    chunks.push(await prepareChunk(client, dataset, from));
  }
  const unindexed = chunks.filter(({ indexed }) => !indexed).map(({ chunk }) => chunk);
  const [only] = chunks;
  return chunks.length === 1 ? { table: only.chunk, unindexed, fresh: only.fresh } : { table, unindexed, fresh: false };
}

async function prepareChunk(client: ClientBase, dataset: DatasetDefinition, chunkFrom: number) {
  const { table, time } = dataset.native;
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
  return { chunk, indexed: indexed.rowCount !== 0, fresh: made?.ours === true };
}

/** The unique (time, identity) of loaded chunks. @throws 23505 when rows repeat. */
export async function indexChunks(client: ClientBase, dataset: DatasetDefinition, target: LoadTarget): Promise<void> {
  const columns = [dataset.native.time.column, ...dataset.native.identity].map((name) => `"${name}"`).join(', ');
  for (const chunk of target.unindexed) await client.query(`create unique index on ${chunk} (${columns})`);
}

/**
 * Makes the aligned chunks of a window in a transaction of their own. Creating one takes a lock that every other
 * writer of the hypertable waits for, so it must not happen inside a long load.
 */
export async function ensureAlignedChunks(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: Window,
): Promise<void> {
  // The last instant of the window may lie in another chunk than the first; a window is far shorter than a chunk.
  for (const ms of [window.fromMs, window.toMs - 1000]) {
    if (await findChunk(client, ALIGNED_TABLE, ms * 1000)) continue;
    await client.query('begin');
    try {
      await createChunk(
        client,
        `insert into ${ALIGNED_TABLE} (dataset_id, series_id, aligned_at_utc)
         values (${dataset.number}, 0, '${new Date(ms).toISOString()}')`,
      );
      await client.query('commit');
    } catch (error) {
      await client.query('rollback');
      throw error;
    }
  }
}

/** The chunk that holds a point of the hypertable's time dimension (its own unit; microseconds for timestamptz). */
async function findChunk(client: ClientBase, hypertable: string, point: number): Promise<string | undefined> {
  const found = await client.query(
    `select format('%I.%I', c.schema_name, c.table_name) as chunk
     from _timescaledb_catalog.hypertable h
     join _timescaledb_catalog.dimension d on d.hypertable_id = h.id
     join _timescaledb_catalog.dimension_slice s on s.dimension_id = d.id
     join _timescaledb_catalog.chunk_constraint k on k.dimension_slice_id = s.id
     join _timescaledb_catalog.chunk c on c.id = k.chunk_id and not c.dropped
     where h.table_name = $1 and h.schema_name = current_schema and s.range_start <= $2 and s.range_end > $2`,
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
