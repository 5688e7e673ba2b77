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

/** The chunks that ended before a time, oldest first. */
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
     where to_ms <= $2 order by from_ms`,
    [hypertable, beforeMs],
  );
  return rows.map(({ chunk, from_ms, to_ms, is_compressed }) => ({
    chunk,
    fromMs: from_ms,
    toMs: to_ms,
    isCompacted: is_compressed,
  }));
}

/** Gives the hypertable its order of columns, once; chunks stay as they are. */
export async function enableColumnstore(client: ClientBase, table: Compactable): Promise<void> {
  const { hypertable, segmentBy, orderBy } = table;
  const known = await client.query(
    'select 1 from timescaledb_information.hypertables where hypertable_name = $1 and hypertable_schema = current_schema and compression_enabled',
    [hypertable],
  );
  if (known.rowCount !== 0) return;
  const quoted = (names: readonly string[]) => names.map((name) => `"${name}"`).join(', ');
  await client.query(
    `alter table ${hypertable} set (timescaledb.compress, timescaledb.compress_segmentby = '${quoted(segmentBy)}',
       timescaledb.compress_orderby = '${quoted(orderBy)}')`,
  );
}

/** `unproved`: a partition in it is not proved; `empty`: it holds no row in the row store. */
export type CompactState = 'compacted' | 'unproved' | 'empty';

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
 * the chunk either before or after. All rows are counted and summed up before and after.
 * @throws 55P03 while something else uses the chunk.
 * @throws TidemarkError PARTITION_PROOF_FAILED when the columns do not hold the same rows, or hold a key twice.
 */
export async function compactChunk(client: ClientBase, table: Compactable, chunk: CompactChunk): Promise<Compacted> {
  const none = { rows: 0, bytesBefore: 0, bytesAfter: 0 };
  await client.query('begin');
  try {
    await client.query(`set local lock_timeout = ${LOCK_WAIT_MS}`);
    await client.query(`lock table ${chunk.chunk} in share row exclusive mode`);
    const state = await stateOf(client, table, chunk);
    if (state !== 'compacted') {
      await client.query('rollback');
      return { state, ...none };
    }
    const before = await contentOf(client, table, chunk.chunk);
    requireSame(chunk, before, before);
    const bytesBefore = await bytesOf(client, table, chunk.chunk);
    // Rows that came in beside the columns would be merged in place, which leaves the bytes of deleted rows and their index.
    if (chunk.isCompacted) await client.query('select decompress_chunk($1::regclass)', [chunk.chunk]);
    await client.query('select compress_chunk($1::regclass)', [chunk.chunk]);
    const after = await contentOf(client, table, chunk.chunk);
    requireSame(chunk, before, after);
    const bytesAfter = await bytesOf(client, table, chunk.chunk);
    await client.query('commit');
    return { state, rows: after.rows, bytesBefore, bytesAfter };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** Whether the chunk has rows outside the columns, and all partitions that lie in it are proved. */
async function stateOf(
  client: ClientBase,
  { numbers }: Compactable,
  { chunk, fromMs, toMs }: CompactChunk,
): Promise<CompactState> {
  // Only rows outside the columns are seen by `only`.
  const held = await client.query(`select exists (select from only ${chunk}) as held`);
  if (!held.rows[0].held) return 'empty';
  const { rows } = await client.query<{ proved: boolean; unproved: boolean }>(
    `select coalesce(bool_or(p.to_ms > $1), false) as proved,
       exists (select from partitions u where u.state <> 'proved' and u.from_ms < $2 and u.to_ms > $1
         and u.dataset_id = any(array_agg(d.dataset_id))) as unproved
     from datasets d
     left join lateral (select to_ms from partitions where dataset_id = d.dataset_id and state = 'proved' and from_ms < $2
       order by from_ms desc limit 1) p on true
     where $3::int2 is null or d.dataset_id between $3 and $4::int2`,
    [fromMs, toMs, numbers?.[0] ?? null, numbers?.[1] ?? null],
  );
  const [{ proved, unproved }] = rows;
  return proved && !unproved ? 'compacted' : 'unproved';
}

interface Content {
  readonly rows: number;
  /** Rows whose key an earlier row has. */
  readonly repeated: number;
  /** Sum of hashes of whole rows, independent of their order. */
  readonly digest: string | null;
}

/** @throws TidemarkError PARTITION_PROOF_FAILED */
function requireSame({ chunk }: CompactChunk, before: Content, after: Content): void {
  if (after.repeated === 0 && after.rows === before.rows && after.digest === before.digest) return;
  throw new TidemarkError(
    'PARTITION_PROOF_FAILED',
    `${chunk} does not hold its rows once: ${after.rows} of ${before.rows}, ${after.repeated} keys repeat`,
  );
}

async function contentOf(client: ClientBase, { segmentBy, orderBy }: Compactable, chunk: string): Promise<Content> {
  const key = [...segmentBy, ...orderBy].map((name) => `t."${name}"`).join(', ');
  const { rows } = await client.query<{ rows: number; repeated: number; digest: string | null }>(
    `select count(*)::float8 as rows, (count(*) filter (where repeats))::float8 as repeated, sum(hash)::text as digest
     from (select hash_record_extended(t, 0)::numeric as hash, row(${key}) = lag(row(${key})) over (order by ${key}) as repeats
       from ${chunk} t) r`,
  );
  return rows[0];
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
