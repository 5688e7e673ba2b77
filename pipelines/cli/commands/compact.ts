/** `compact`: puts old chunks that are wholly proved into the columnstore, one chunk in each transaction. */

import { setTimeout as sleep } from 'node:timers/promises';
import type { Pool } from 'pg';
import { DAY_MS } from '../../../shared/dates.ts';
import { hasColumnstore, withClient } from '../../../shared/db/connect.ts';
import { RunRecorder } from '../../../shared/db/runs.ts';
import { codeOf, explain, outageCode } from '../../../shared/errors.ts';
import { ALIGNED_COMPACTABLE, type Compactable, compactableOf } from '../../projector/chunks.ts';
import { type CompactChunk, chunksBefore, compactChunk, enableColumnstore } from '../../projector/columnstore.ts';
import { fedDatasets } from '../../sources/index.ts';
import { type Context, openContext } from '../context.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { bar, seconds } from '../output.ts';

interface Unit {
  readonly table: string;
  readonly chunk: string;
  /** Start and end of the chunk's times, ISO 8601. */
  readonly from: string;
  readonly to: string;
  readonly state: 'compacted' | 'unproved' | 'busy' | 'failed';
  readonly rows: number;
  readonly bytes_before: number;
  readonly bytes_after: number;
  readonly code?: string;
  readonly reason?: string;
}

const NO_COLUMNSTORE =
  "This edition of TimescaleDB has no columnstore: nothing is changed. The community edition (timescaledb.license = 'timescale') has one.";

/** SQLSTATE of a lock that was not had in time. */
const LOCK_NOT_AVAILABLE = '55P03';

export async function runCompact(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'compact');
  const startedAt = performance.now();
  const supported = await hasColumnstore(context.pool);
  const units = supported ? await compactAll(command.line, context) : [];
  const elapsedMs = Math.round(performance.now() - startedAt);
  const interrupted = context.signal.aborted;
  const ok = !interrupted && units.every(({ state }) => state !== 'failed');
  const answer = { command: 'compact', ok, interrupted, elapsed_ms: elapsedMs, supported, units };
  context.output.answer(answer, () =>
    supported ? `${summaryOf(units, interrupted)} in ${seconds(elapsedMs)}` : NO_COLUMNSTORE,
  );
  return interrupted ? EXIT.INTERRUPTED : ok ? EXIT.DONE : EXIT.FAILED;
}

/**
 * Compacts once an interval until the signal, where there is a columnstore. Of several processes one works; a fault is logged,
 * and the next interval repeats the work.
 */
export async function keepCompacted(
  context: Context,
  { intervalMs, line }: { readonly intervalMs: number; readonly line: string },
): Promise<void> {
  const { signal, log, pool } = context;
  while (!signal.aborted) {
    try {
      if (!(await hasColumnstore(pool))) return;
      await compactAll(line, context);
    } catch (error) {
      if (!signal.aborted && codeOf(error) !== 'WORK_HELD') {
        log.warn({ code: codeOf(error), fault: explain(error) }, 'a compaction failed and is repeated later');
      }
    }
    await sleep(intervalMs, undefined, { signal }).catch(() => {});
  }
}

async function compactAll(line: string, context: Context): Promise<Unit[]> {
  const { pool, settings, signal, output } = context;
  const beforeMs = Date.now() - settings.SVC_COLUMNSTORE_AFTER_DAYS * DAY_MS;
  const datasets = fedDatasets();
  await using run = await RunRecorder.open({
    databaseUrl: context.databaseUrls.ingest,
    kind: 'compact',
    subject: 'columnstore',
    datasets,
    command: line,
    exclusive: true,
  });
  const tables = [...datasets.map(compactableOf).filter((table) => table !== undefined), ALIGNED_COMPACTABLE];
  const work = await chunksOf(pool, tables, beforeMs);
  await run.write({ planned: work.length });
  const units: Unit[] = [];
  const counts = { proved: 0, failed: 0, rows: 0 };
  for (const [index, [table, chunk]] of work.entries()) {
    if (signal.aborted) break;
    const from = new Date(chunk.fromMs).toISOString();
    output.progress(`${bar(index, work.length)} ${index}/${work.length}  ${table.hypertable}  ${from}`);
    const unit = await compactOne(pool, table, chunk);
    if (!unit) continue;
    units.push(unit);
    if (unit.state === 'failed') counts.failed++;
    if (unit.state === 'compacted') counts.proved++;
    counts.rows += unit.rows;
    run.note(counts);
    const shown = unit.state === 'compacted' ? ` ${unit.bytes_before} to ${unit.bytes_after} bytes` : '';
    output.note(`${table.hypertable}  ${from}  ${unit.state}${shown} ${unit.reason ?? ''}`.trimEnd());
  }
  await run.end(signal.aborted ? 'interrupted' : counts.failed > 0 ? 'failed' : 'done', counts);
  return units;
}

async function chunksOf(
  pool: Pool,
  tables: readonly Compactable[],
  beforeMs: number,
): Promise<[Compactable, CompactChunk][]> {
  return await withClient(pool, async (client) => {
    const work: [Compactable, CompactChunk][] = [];
    for (const table of tables) {
      const chunks = await chunksBefore(client, table, beforeMs);
      if (chunks.length > 0) await enableColumnstore(client, table);
      work.push(...chunks.map((chunk): [Compactable, CompactChunk] => [table, chunk]));
    }
    return work;
  });
}

/** @returns undefined where nothing is left to do. */
async function compactOne(pool: Pool, table: Compactable, chunk: CompactChunk): Promise<Unit | undefined> {
  const named = {
    table: table.hypertable,
    chunk: chunk.chunk,
    from: new Date(chunk.fromMs).toISOString(),
    to: new Date(chunk.toMs).toISOString(),
  };
  const nothing = { rows: 0, bytes_before: 0, bytes_after: 0 };
  try {
    const done = await withClient(pool, (client) => compactChunk(client, table, chunk));
    const { state, rows, bytesBefore, bytesAfter } = done;
    return state === 'empty'
      ? undefined
      : { ...named, state, rows, bytes_before: bytesBefore, bytes_after: bytesAfter };
  } catch (error) {
    const code = codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED';
    if ((error as { code?: unknown }).code === LOCK_NOT_AVAILABLE) {
      return { ...named, ...nothing, state: 'busy', reason: 'something else holds the chunk: run the command again' };
    }
    return { ...named, ...nothing, state: 'failed', code, reason: explain(error) };
  }
}

export function summaryOf(units: readonly Unit[], interrupted: boolean): string {
  const done = units.filter(({ state }) => state === 'compacted');
  const sum = (name: 'bytes_before' | 'bytes_after') => done.reduce((total, unit) => total + unit[name], 0);
  const megabytes = (bytes: number) => `${(bytes / 1e6).toFixed(1)} MB`;
  if (units.length === 0 && !interrupted) return 'Nothing to do: every old chunk is in the columnstore';
  const head = interrupted ? 'Interrupted; the same command continues where it stopped.\n' : '';
  return `${head}${done.length} of ${units.length} chunks went into the columnstore, ${megabytes(sum('bytes_before'))} became ${megabytes(sum('bytes_after'))}`;
}
