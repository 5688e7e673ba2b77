/**
 * The columnstore of TimescaleDB's community edition: which chunks may go into it, and the transaction that puts one there.
 * Native rows lie in the order of time and identity, aligned rows by dataset and series in the order of time, so that
 * reads of a time or of one dataset open few batches.
 */

import type { ClientBase } from 'pg';
import { TidemarkError } from '../../shared/errors.ts';
import type { Compactable } from './chunks.ts';

export interface CompactChunk {
  readonly chunk: string;
  readonly fromMs: number;
  /** Exclusive. */
  readonly toMs: number;
  /** Whether rows lie in columns; rows that came in later may lie beside them. */
  readonly isCompacted: boolean;
}

/** The chunks that ended before a time and hold rows outside the columns, oldest first. */
export async function chunksBefore(
  client: ClientBase,
  { hypertable }: Compactable,
  beforeMs: number,
): Promise<CompactChunk[]> {
  const { rows } = await client.query<{ chunk: string; from_ms: number; to_ms: number; is_compressed: boolean }>(
    `select * from (select format('%I.%I', chunk_schema, chunk_name) as chunk, is_compressed,
       coalesce(range_start_integer, extract(epoch from range_start) * 1000)::float8 as from_ms,
       coalesce(range_end_integer, extract(epoch from range_end) * 1000)::float8 as to_ms
       from timescaledb_information.chunks where hypertable_name = $1 and hypertable_schema = current_schema) c
     where to_ms <= $2 and pg_relation_size(chunk::regclass) > 0 order by from_ms`,
    [hypertable, beforeMs],
  );
  return rows.map(({ chunk, from_ms, to_ms, is_compressed }) => ({
    chunk,
    fromMs: from_ms,
    toMs: to_ms,
    isCompacted: is_compressed,
  }));
}

/**
 * Gives the hypertable its order of columns, once; chunks stay as they are. From TimescaleDB 2.22 on each batch of 1,000 rows also
 * states the smallest and largest double of each column, for 0.2 bytes a row: a filter opens the batches that can pass it.
 */
export async function enableColumnstore(client: ClientBase, table: Compactable): Promise<void> {
  const { hypertable, segmentBy, orderBy, ranged } = table;
  const known = await client.query(
    'select 1 from timescaledb_information.hypertables where hypertable_name = $1 and hypertable_schema = current_schema and compression_enabled',
    [hypertable],
  );
  if (known.rowCount !== 0) return;
  const quoted = (names: readonly string[]) => names.map((name) => `"${name}"`).join(', ');
  const ranges = ranged.map((name) => `minmax("${name}")`).join(', ');
  const hasRanges = ranged.length > 0 && (await knowsRanges(client));
  await client.query(
    `alter table ${hypertable} set (timescaledb.compress, timescaledb.compress_segmentby = '${quoted(segmentBy)}',
       timescaledb.compress_orderby = '${quoted(orderBy)}'${hasRanges ? `, timescaledb.compress_index = '${ranges}'` : ''})`,
  );
}

async function knowsRanges(client: ClientBase): Promise<boolean> {
  const { rows } = await client.query<{ known: boolean }>(
    `select string_to_array(extversion, '.')::int[] >= '{2,22}' as known from pg_extension where extname = 'timescaledb'`,
  );
  return rows[0].known;
}

/** `unproved`: a partition in it is not proved; `young`: one was proved lately; `empty`: it holds no row in the row store. */
export type CompactState = 'compacted' | 'unproved' | 'young' | 'empty';

export interface Compacted {
  readonly state: CompactState;
  readonly rows: number;
  readonly bytesBefore: number;
  readonly bytesAfter: number;
}

/** A load of the chunk goes first: this long is waited for it. */
const LOCK_WAIT_MS = 2000;

/**
 * Puts a chunk into the columnstore in a transaction of its own. Its writers wait; a load that runs is waited for and sees
 * the chunk either before or after. All rows are counted and summed up before and after; readers of the chunk wait for the second
 * of that.
 *
 * Every snapshot sees the new columns, also one that is older than the rows: TimescaleDB stores them frozen. So reads that began
 * before the last proof in the chunk must have ended.
 * @param provedBefore epoch ms; such reads of what was proved earlier have ended.
 * @throws 55P03 while something else uses the chunk.
 * @throws TidemarkError PARTITION_PROOF_FAILED when the columns do not hold the same rows, or hold a key twice.
 */
export async function compactChunk(
  client: ClientBase,
  table: Compactable,
  chunk: CompactChunk,
  provedBefore: number,
): Promise<Compacted> {
  const none = { rows: 0, bytesBefore: 0, bytesAfter: 0 };
  await client.query('begin');
  try {
    await client.query(`set local lock_timeout = ${LOCK_WAIT_MS}`);
    await client.query(`lock table ${chunk.chunk} in share row exclusive mode`);
    const state = await stateOf(client, table, chunk, provedBefore);
    if (state !== 'compacted') {
      await client.query('rollback');
      return { state, ...none };
    }
    const before = await contentOf(client, chunk.chunk);
    const repeated = await repeatedIn(client, table, chunk);
    if (repeated > 0) throw notOnce(chunk, `${repeated} keys repeat`);
    const bytesBefore = await bytesOf(client, table, chunk.chunk);
    // Rows that came in beside the columns would be merged in place, which leaves the bytes of deleted rows and their index.
    if (chunk.isCompacted) await client.query('select decompress_chunk($1::regclass)', [chunk.chunk]);
    await client.query('select compress_chunk($1::regclass)', [chunk.chunk]);
    const after = await contentOf(client, chunk.chunk);
    if (after.rows !== before.rows) throw notOnce(chunk, `${after.rows} of ${before.rows} rows`);
    if (after.digest !== before.digest) throw notOnce(chunk, 'their digest differs');
    const bytesAfter = await bytesOf(client, table, chunk.chunk);
    await client.query('commit');
    return { state, rows: after.rows, bytesBefore, bytesAfter };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** Whether the chunk has rows outside the columns, and all partitions that lie in it were proved before a time. */
export async function stateOf(
  client: ClientBase,
  { numbers }: Compactable,
  { chunk, fromMs, toMs }: CompactChunk,
  provedBefore: number,
): Promise<CompactState> {
  // Only rows outside the columns are seen by `only`.
  const held = await client.query(`select exists (select from only ${chunk}) as held`);
  if (!held.rows[0].held) return 'empty';
  const { rows } = await client.query<{ proved: boolean; unproved: boolean; young: boolean }>(
    `select coalesce(bool_or(p.to_ms > $1), false) as proved,
       exists (select from partitions u where u.state <> 'proved' and u.from_ms < $2 and u.to_ms > $1
         and u.dataset_id = any(array_agg(d.dataset_id))) as unproved,
       coalesce(bool_or(p.proved_at >= to_timestamp($5 / 1000.0)), false) or exists (select from partitions u
         where u.from_ms >= $1 and u.from_ms < $2 and u.proved_at >= to_timestamp($5 / 1000.0)
           and u.dataset_id = any(array_agg(d.dataset_id))) as young
     from datasets d
     left join lateral (select to_ms, proved_at from partitions
       where dataset_id = d.dataset_id and state = 'proved' and from_ms < $2 order by from_ms desc limit 1) p on true
     where $3::int2 is null or d.dataset_id between $3 and $4::int2`,
    [fromMs, toMs, numbers?.[0] ?? null, numbers?.[1] ?? null, provedBefore],
  );
  const [{ proved, unproved, young }] = rows;
  if (!proved || unproved) return 'unproved';
  return young ? 'young' : 'compacted';
}

interface Content {
  readonly rows: number;
  /** Sum of hashes of whole rows, independent of their order. */
  readonly digest: string | null;
}

const notOnce = ({ chunk }: CompactChunk, why: string) =>
  new TidemarkError('PARTITION_PROOF_FAILED', `${chunk} does not hold its rows once: ${why}`);

async function contentOf(client: ClientBase, chunk: string): Promise<Content> {
  const { rows } = await client.query<Content>(
    `select count(*)::float8 as rows, sum(hash_record_extended(t, 0))::text as digest from ${chunk} t`,
  );
  return rows[0];
}

/** Rows whose key an earlier row has. In a chunk that is all rows, the unique index has answered that. */
async function repeatedIn(
  client: ClientBase,
  { segmentBy, orderBy }: Compactable,
  { chunk, isCompacted }: CompactChunk,
): Promise<number> {
  const index = 'select from pg_index where indrelid = $1::regclass and indisunique and indisvalid';
  if (!isCompacted && (await client.query(index, [chunk])).rows.length > 0) return 0;
  const key = [...segmentBy, ...orderBy].map((name) => `t."${name}"`).join(', ');
  const { rows } = await client.query<{ repeated: number }>(
    `select (count(*) filter (where repeats))::float8 as repeated
     from (select row(${key}) = lag(row(${key})) over (order by ${key}) as repeats from ${chunk} t) r`,
  );
  return rows[0].repeated;
}

/** Bytes on disk of the chunk in either store, indexes included. */
async function bytesOf(client: ClientBase, { hypertable }: Compactable, chunk: string): Promise<number> {
  const { rows } = await client.query<{ bytes: number }>(
    `select total_bytes::float8 as bytes from chunks_detailed_size($1::regclass)
     where format('%I.%I', chunk_schema, chunk_name) = $2`,
    [hypertable, chunk],
  );
  return rows[0]?.bytes ?? 0;
}
