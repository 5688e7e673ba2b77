/**
 * Chunks of hypertables: created in advance, filled directly and indexed after loading. The Apache edition of
 * TimescaleDB creates a chunk only when a row is stored in it, so a placeholder row is stored and removed in the
 * same transaction.
 */

import type { ClientBase } from 'pg';
import { hasColumnstore } from '../../shared/db/connect.ts';
import { assert } from '../../shared/errors.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition, PgType } from '../../shared/registry/index.ts';
import {
  hasInstruments,
  INSTRUMENT_COLUMN,
  othersTable,
  SLOTS,
  slotNumber,
} from '../../shared/registry/instruments.ts';
import type { TimeWindow } from '../../shared/registry/keys.ts';

export interface LoadTarget {
  /** The table that holds all rows of the window: its only chunk, or the hypertable. */
  readonly table: string;
  /** Chunks that are filled directly; rows that lie in none of these go to `table`. */
  readonly chunks: readonly LoadChunk[];
}

export interface LoadChunk {
  readonly table: string;
  readonly fromMs: number;
  /** Exclusive. */
  readonly toMs: number;
  /** Whether the unique index exists; otherwise it is built after loading. */
  readonly indexed: boolean;
  /** Whether rows of it lie in columns. */
  readonly compacted: boolean;
  /**
   * Whether this transaction created it: then COPY stores rows frozen, so that no later read or vacuum marks them as
   * visible. Other transactions could see such rows too early, but they read coverage first and find none.
   */
  readonly fresh: boolean;
}

/**
 * The tables for the rows of a window. The part of it that no chunk holds gets one with exactly its bounds, so that a file
 * day is one chunk even where it does not begin at midnight UTC. A chunk is created in the caller's transaction; it is
 * invisible to others until the commit, so its index can be built last. An existing chunk keeps its index during the load.
 */
export async function prepareChunks(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: TimeWindow,
): Promise<LoadTarget> {
  const { table } = dataset.native;
  let existing = await chunksIn(client, table, window);
  if (existing.reduce((held, chunk) => held + overlapMs(chunk, window), 0) < window.toMs - window.fromMs) {
    // TimescaleDB takes this lock when it creates a chunk, so nobody else does between this look-up and that. Without `only`
    // every chunk would be locked, and compaction and vacuum of other days would wait for the load.
    await client.query(`lock table only ${table} in share update exclusive mode`);
    existing = await chunksIn(client, table, window);
  }
  const chunks: LoadChunk[] = [];
  for (let at = window.fromMs; at < window.toMs; at = chunks[chunks.length - 1].toMs) {
    const later = existing.find(({ toMs }) => toMs > at);
    const gap = { fromMs: at, toMs: Math.min(later?.fromMs ?? window.toMs, window.toMs) };
    const chunk = later && later.fromMs <= at ? later : await createChunk(client, dataset, gap);
    if (chunk.compacted) await openRowStore(client, dataset, chunk, at);
    chunks.push(chunk);
  }
  return { table: chunks.length === 1 ? chunks[0].table : table, chunks };
}

const overlapMs = (chunk: TimeWindow, { fromMs, toMs }: TimeWindow): number =>
  Math.min(chunk.toMs, toMs) - Math.max(chunk.fromMs, fromMs);

/** The chunks of a hypertable of native rows that hold a part of the window, in the order of time. */
async function chunksIn(client: ClientBase, hypertable: string, window: TimeWindow): Promise<LoadChunk[]> {
  const { rows } = await client.query<Omit<LoadChunk, 'fresh'>>(
    `select chunk as "table", from_ms as "fromMs", to_ms as "toMs", exists (
       select from pg_index where indrelid = chunk::regclass and indisunique and indisvalid) as indexed, compacted
     from (
       select format('%I.%I', chunk_schema, chunk_name) as chunk, is_compressed as compacted,
         range_start_integer::float8 as from_ms, range_end_integer::float8 as to_ms
       from timescaledb_information.chunks
       where hypertable_name = $1 and hypertable_schema = current_schema
         and range_start_integer < $3 and range_end_integer > $2) c
     order by from_ms`,
    [hypertable, window.fromMs, window.toMs],
  );
  return rows.map((chunk) => ({ ...chunk, fresh: false }));
}

/**
 * Creates a chunk without an index where none is: of exactly this window, or of one interval before 1970.
 *
 * TimescaleDB's function that takes bounds is not in the Apache edition. A chunk that is created for a row begins and ends at
 * multiples of the interval, less what its neighbours hold. So the end is taken as the interval, which makes it the
 * first multiple above the row, and where no chunk ends at the beginning, one that does is created before and dropped after.
 */
async function createChunk(client: ClientBase, dataset: DatasetDefinition, window: TimeWindow): Promise<LoadChunk> {
  const { table } = dataset.native;
  const { fromMs, toMs } = window;
  const setInterval = (ms: number) =>
    client.query(`select set_chunk_time_interval($1::regclass, $2::int8)`, [table, ms]);
  const { rows } = await client.query<{ interval_ms: number; adjoins: boolean }>(
    `select integer_interval::float8 as interval_ms, exists (
       select from timescaledb_information.chunks
       where hypertable_name = $1 and hypertable_schema = current_schema and range_end_integer = $2) as adjoins
     from timescaledb_information.dimensions
     where hypertable_name = $1 and hypertable_schema = current_schema and dimension_number = 1`,
    [table, fromMs],
  );
  const [{ interval_ms, adjoins }] = rows;
  const isExact = fromMs > 0 && (fromMs % interval_ms !== 0 || toMs - fromMs !== interval_ms);
  let neighbour: string | undefined;
  if (isExact && !adjoins) {
    await setInterval(fromMs);
    neighbour = await storePlaceholder(client, dataset, fromMs - 1);
  }
  if (isExact) await setInterval(toMs);
  const chunk = await storePlaceholder(client, dataset, fromMs);
  if (isExact) await setInterval(interval_ms);
  if (neighbour) await client.query(`drop table ${neighbour}`);
  await client.query(`truncate ${chunk}`);
  const [created] = await chunksIn(client, table, { fromMs, toMs: fromMs + 1 });
  assert(
    created && (!isExact || (created.fromMs === fromMs && created.toMs === toMs)),
    `TimescaleDB creates the chunk of ${table} from ${fromMs} to ${toMs}`,
  );
  return { ...created, fresh: true };
}

const placeholder = ({ columns, time }: DatasetDefinition['native'], ms: number): string =>
  columns.map(({ name, pg }) => (name === time.column ? `${ms}` : PLACEHOLDERS[pg])).join(', ');

/** Stores a row that is not data, which creates the chunk of its time. @returns that chunk, for the caller to empty or drop. */
async function storePlaceholder(client: ClientBase, { native }: DatasetDefinition, ms: number): Promise<string> {
  const stored = await client.query<{ chunk: string }>(
    `insert into ${native.table} values (${placeholder(native, ms)}) returning tableoid::regclass::text as chunk`,
  );
  const [{ chunk }] = stored.rows;
  const { rows } = await client.query<{ ours: boolean }>(
    `select xmin::text = (pg_current_xact_id()::text::numeric % 4294967296)::text as ours from pg_class where oid = $1::regclass`,
    [chunk],
  );
  // A chunk of another transaction may hold rows.
  assert(rows[0]?.ours, `this transaction creates the chunk ${chunk}`);
  return chunk;
}

/**
 * Makes reads look for rows beside the columns of a chunk, which a COPY into the chunk does not: only a row that comes through
 * the hypertable does. The time is one of which the chunk holds no row.
 */
async function openRowStore(
  client: ClientBase,
  { native }: DatasetDefinition,
  { table }: LoadChunk,
  ms: number,
): Promise<void> {
  const { rows } = await client.query<{ row: string }>(
    `insert into ${native.table} values (${placeholder(native, ms)}) returning ctid::text as row`,
  );
  await client.query(`delete from ${table} where "${native.time.column}" = ${ms} and ctid = '${rows[0].row}'`);
}

/**
 * Builds the unique index (time, identity) of loaded chunks. Its pages are filled, because no row joins a day afterwards: it
 * takes 100 MB for 3.5 M rows instead of 110. All statements are sent at once, before it returns, so that the caller's own work
 * runs beside them. @throws 23505 when rows repeat.
 */
export async function indexChunks(client: ClientBase, dataset: DatasetDefinition, target: LoadTarget): Promise<void> {
  const columns = [dataset.native.time.column, ...dataset.native.identity].map((name) => `"${name}"`).join(', ');
  const indexes = target.chunks
    .filter(({ indexed }) => !indexed)
    .map(({ table }) => `create unique index on ${table} (${columns}) with (fillfactor = 100)`);
  if (indexes.length > 0) await client.query(indexes.join('; '));
}

/** Aligned chunks that one transaction creates: every other writer of the table waits for it, about 10 ms for each. */
const CHUNKS_AT_ONCE = 16;

/**
 * Creates the missing aligned chunks of these times in transactions of their own. It takes a lock that every other
 * writer of the hypertable waits for, so it must not happen inside a long load.
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
    // A placeholder row of no series creates the chunk and is deleted before the commit.
    await client.query('begin');
    try {
      const stored = await client.query<{ chunk: string; row: string }>(
        `insert into ${ALIGNED_TABLE} (dataset_id, series_id, aligned_at_utc) values ${rows.join(', ')}
         returning tableoid::regclass::text as chunk, ctid::text as row`,
      );
      const deletes = stored.rows.map(({ chunk, row }) => `delete from ${chunk} where ctid = '${row}'`);
      await client.query(deletes.join('; '));
      await client.query('commit');
    } catch (error) {
      await client.query('rollback');
      throw error;
    }
  }
}

/** The times that no aligned chunk holds. */
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

/** A hypertable whose chunks are compacted. */
export interface Compactable {
  readonly hypertable: string;
  /** Columns of one value in each batch of rows. */
  readonly segmentBy: readonly string[];
  /** Columns of the order within a batch; with `segmentBy` the key of a row. */
  readonly orderBy: readonly string[];
  /** Columns of doubles, whose smallest and largest value each batch states. */
  readonly ranged: readonly string[];
  /** The first and last number of the datasets and instruments whose rows these are; undefined where all share the table. */
  readonly numbers?: readonly [number, number];
}

export const ALIGNED_COMPACTABLE: Compactable = {
  hypertable: ALIGNED_TABLE,
  segmentBy: ['dataset_id', 'series_id'],
  orderBy: ['aligned_at_utc'],
  ranged: [],
};

/**
 * The native table of a dataset. Undefined for metrics: a chunk holds ten years of them, later vintages change it, and all of
 * them are some hundred megabytes.
 */
export function compactableOf({ native, number }: DatasetDefinition): Compactable | undefined {
  if (native.scope.kind === 'column' && native.scope.pg === 'text') return undefined;
  return {
    hypertable: native.table,
    segmentBy: [],
    orderBy: [native.time.column, ...native.identity],
    ranged: native.columns.flatMap(({ name, pg }) => (pg === 'float8' ? [name] : [])),
    numbers: [number, number],
  };
}

/** The native table that the other instruments of a dataset share. */
export function othersCompactableOf(dataset: DatasetDefinition): Compactable | undefined {
  const own = hasInstruments(dataset) ? compactableOf(dataset) : undefined;
  return (
    own && {
      ...own,
      hypertable: othersTable(dataset),
      segmentBy: [INSTRUMENT_COLUMN],
      numbers: [slotNumber(dataset, 1), slotNumber(dataset, SLOTS)],
    }
  );
}

/**
 * Before rows of the window are deleted, in the caller's transaction: its chunks are locked, so that a compaction that runs is waited
 * for, and none begins before the transaction ends. Rows in columns are deleted there, where older snapshots still see them; a
 * chunk that was made a row store again would show those snapshots no row.
 */
export async function allowDeletes(client: ClientBase, hypertable: string, window: TimeWindow): Promise<void> {
  if (!(await hasColumnstore(client))) return;
  await allowDecompression(client);
  const { rows } = await client.query<{ chunk: string }>(
    `select format('%I.%I', chunk_schema, chunk_name) as chunk from timescaledb_information.chunks
     where hypertable_name = $1 and hypertable_schema = current_schema
       and range_start_integer < $3 and range_end_integer > $2 order by 1`,
    [hypertable, window.fromMs, window.toMs],
  );
  for (const { chunk } of rows) await client.query(`lock table ${chunk} in row exclusive mode`);
}

/**
 * Statements of the caller's transaction may take any number of rows out of the columnstore; TimescaleDB's own limit
 * is 100,000, little more than a day of aligned rows.
 */
export async function allowDecompression(client: ClientBase): Promise<void> {
  await client.query('set local timescaledb.max_tuples_decompressed_per_dml_transaction = 0');
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
