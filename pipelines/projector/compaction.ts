/** Puts chunks of closed days that are wholly proved into the columnstore, where the edition of TimescaleDB has one. */
import { setTimeout as sleep } from 'node:timers/promises';
import { DAY_MS } from '../../shared/dates.ts';
import { type Client, connect, hasColumnstore } from '../../shared/db/connect.ts';
import { RunRecorder } from '../../shared/db/runs.ts';
import { codeOf, explain, outageCode } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { ALIGNED_COMPACTABLE, type Compactable, compactableOf, othersCompactableOf } from './chunks.ts';
import { type CompactChunk, chunksBefore, compactChunk, enableColumnstore, stateOf } from './columnstore.ts';

export interface CompactionNeeds {
  readonly databaseUrl: string;
  readonly datasets: readonly DatasetDefinition[];
  /** Chunks that ended this long ago. */
  readonly afterDays: number;
  /** Chunks of which no partition was proved for this long: a backfill fills those that many partitions share step by step. */
  readonly quietMs: number;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** What became of a chunk. */
export interface CompactedUnit {
  readonly table: string;
  readonly chunk: string;
  readonly state: 'compacted' | 'unproved' | 'busy' | 'failed';
  readonly rows: number;
  readonly bytes_before: number;
  readonly bytes_after: number;
  readonly code?: string;
  readonly reason?: string;
}

/** SQLSTATE of a lock that was not had in time. */
const LOCK_NOT_AVAILABLE = '55P03';

const NOTHING = { rows: 0, bytes_before: 0, bytes_after: 0 };

const READS_CHECK_MS = 500;

/** How a run of it names itself. */
const LINE = 'scheduled compaction';

/**
 * Compacts once an interval until the signal, where there is a columnstore. Of several processes one works; a fault is logged,
 * and the next interval repeats the work.
 */
export async function keepCompacted(needs: CompactionNeeds, intervalMs: number): Promise<void> {
  const { databaseUrl, signal, log } = needs;
  while (!signal.aborted) {
    try {
      await using client = await connect({ url: databaseUrl, name: 'tidemark compaction', signal });
      if (!(await hasColumnstore(client))) return;
      await compactOld(client, needs);
    } catch (error) {
      if (!signal.aborted && codeOf(error) !== 'WORK_HELD') {
        log.warn({ code: codeOf(error), fault: explain(error) }, 'a compaction failed and is repeated later');
      }
    }
    await sleep(intervalMs, undefined, { signal }).catch(() => {});
  }
}

/** Compacts once, a chunk in each transaction. @throws TidemarkError WORK_HELD while another process does */
export async function compactOld(client: Client, needs: CompactionNeeds): Promise<CompactedUnit[]> {
  const { databaseUrl, datasets, afterDays, quietMs, signal, log } = needs;
  const native = datasets.flatMap((dataset) => [compactableOf(dataset), othersCompactableOf(dataset)]);
  const tables = [...native.filter((table) => table !== undefined), ALIGNED_COMPACTABLE];
  const { units, work, provedBefore } = await dueChunks(client, tables, afterDays, quietMs);
  // It looks often, and mostly there is nothing to do.
  if (work.length === 0) return units;
  await using run = await RunRecorder.open({
    databaseUrl,
    kind: 'compact',
    subject: 'columnstore',
    datasets,
    command: LINE,
    exclusive: true,
  });
  await run.write({ planned: work.length });
  await readsEnded(client, signal);
  const counts = { proved: 0, failed: 0, rows: 0 };
  for (const [table, chunk] of work) {
    if (signal.aborted) break;
    const unit = await compactOne(client, table, chunk, provedBefore);
    if (!unit) continue;
    units.push(unit);
    if (unit.state === 'failed') {
      counts.failed++;
      log.warn(unit, 'a chunk could not be compacted');
    }
    if (unit.state === 'compacted') counts.proved++;
    counts.rows += unit.rows;
    run.note(counts);
  }
  await run.end(signal.aborted ? 'interrupted' : counts.failed > 0 ? 'failed' : 'done', counts);
  return units;
}

interface Due {
  /** Chunks that are left because a partition in them is not proved. */
  readonly units: CompactedUnit[];
  readonly work: readonly [Compactable, CompactChunk][];
  readonly provedBefore: number;
}

/** The chunks that may be compacted as far as is known without a lock. */
async function dueChunks(
  client: Client,
  tables: readonly Compactable[],
  afterDays: number,
  quietMs: number,
): Promise<Due> {
  // By the clock of the database, which wrote when a partition was proved.
  const { rows } = await client.query<{ ms: number }>('select extract(epoch from clock_timestamp()) * 1000 as ms');
  const provedBefore = Number(rows[0].ms) - quietMs;
  const units: CompactedUnit[] = [];
  const work: [Compactable, CompactChunk][] = [];
  for (const [table, chunk] of await chunksOf(client, tables, Date.now() - afterDays * DAY_MS)) {
    const state = await stateOf(client, table, chunk, provedBefore);
    if (state === 'compacted') work.push([table, chunk]);
    if (state === 'unproved') units.push({ table: table.hypertable, chunk: chunk.chunk, ...NOTHING, state });
  }
  return { units, work, provedBefore };
}

/** Waits until the reads that run now have ended. Each holds a lock of the coverage, with which it begins, to its end. */
async function readsEnded(client: Client, signal: AbortSignal): Promise<void> {
  const reading = async (): Promise<string[]> => {
    const { rows } = await client.query<{ id: string }>(
      `select distinct virtualtransaction as id from pg_locks where locktype = 'relation' and relation = 'coverage'::regclass
         and database = (select oid from pg_database where datname = current_database()) and pid <> pg_backend_pid()`,
    );
    return rows.map(({ id }) => id);
  };
  let left = await reading();
  while (left.length > 0 && !signal.aborted) {
    await sleep(READS_CHECK_MS, undefined, { signal }).catch(() => {});
    const now = new Set(await reading());
    left = left.filter((id) => now.has(id));
  }
}

async function chunksOf(
  client: Client,
  tables: readonly Compactable[],
  beforeMs: number,
): Promise<[Compactable, CompactChunk][]> {
  const work: [Compactable, CompactChunk][] = [];
  for (const table of tables) {
    const chunks = await chunksBefore(client, table, beforeMs);
    if (chunks.length > 0) await enableColumnstore(client, table);
    work.push(...chunks.map((chunk): [Compactable, CompactChunk] => [table, chunk]));
  }
  return work;
}

/** @returns undefined where nothing is left to do. */
async function compactOne(
  client: Client,
  { hypertable, ...table }: Compactable,
  chunk: CompactChunk,
  provedBefore: number,
): Promise<CompactedUnit | undefined> {
  const named = { table: hypertable, chunk: chunk.chunk };
  try {
    const compacted = await compactChunk(client, { hypertable, ...table }, chunk, provedBefore);
    const { state, rows, bytesBefore, bytesAfter } = compacted;
    return state === 'empty' || state === 'young'
      ? undefined
      : { ...named, state, rows, bytes_before: bytesBefore, bytes_after: bytesAfter };
  } catch (error) {
    if ((error as { code?: unknown }).code === LOCK_NOT_AVAILABLE) {
      return { ...named, ...NOTHING, state: 'busy', reason: 'something else holds the chunk' };
    }
    // A database that is away fails every chunk that is left.
    if (outageCode(error) !== undefined) throw error;
    return { ...named, ...NOTHING, state: 'failed', code: codeOf(error) ?? 'UNEXPECTED', reason: explain(error) };
  }
}
