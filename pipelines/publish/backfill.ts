/** A backfill: documents one after the other into the log, proofs awaited beside, faults of one day kept to that day. */
import { setTimeout as delay } from 'node:timers/promises';
import { DatabaseError } from 'pg';
import { codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log/logger.ts';
import { outageCode } from '../../shared/outage.ts';
import type { DocumentRequest, Source } from '../sources/types.ts';
import type { Lease } from './lease.ts';
import type { AttemptOutcome } from './outcomes.ts';
import type { Publisher, PublishProgress } from './publisher.ts';

export type UnitState = 'proved' | 'unchanged' | 'quarantined' | 'refused' | 'failed';

export interface UnitResult {
  readonly partition: string;
  readonly state: UnitState;
  readonly rows: number;
  readonly code?: string;
  readonly reason?: string;
  readonly remedy?: string;
}

export interface BackfillNeeds {
  readonly source: Source;
  readonly publisher: Publisher;
  readonly lease: Lease;
  readonly wait: (partition: string, attempt: number) => Promise<AttemptOutcome>;
  readonly log: Logger;
  readonly signal: AbortSignal;
  readonly onProgress?: (progress: PublishProgress) => void;
}

/** An outage of a store is sat out this long before the day is reported failed; it resumes where it stopped. */
const OUTAGE_PATIENCE_MS = 60_000;
/** Partitions published ahead of their proof: bounds what a crash leaves to be projected again. */
const MAX_UNPROVED = 4;

/** Results in the order they come to their end. */
export async function* backfill(
  requests: readonly DocumentRequest[],
  needs: BackfillNeeds,
): AsyncGenerator<UnitResult> {
  const finished: UnitResult[] = [];
  const waiting = new Set<Promise<void>>();
  const await_ = (partition: string, attempt: number, rows: number) => {
    const done: Promise<void> = needs
      .wait(partition, attempt)
      .then(
        ({ state, reason }) => {
          finished.push({
            partition,
            state,
            rows,
            ...(state === 'proved' ? {} : { code: codeByState[state], reason: reason ?? '' }),
          });
        },
        (error) => {
          finished.push(failure(partition, needs.signal.aborted ? interrupted(error) : error, rows));
        },
      )
      .finally(() => waiting.delete(done));
    waiting.add(done);
  };
  let stopped: TidemarkError | undefined;
  for (const request of requests) {
    if (needs.signal.aborted) break;
    if (stopped) {
      for (const { key } of request.partitions) finished.push(failure(key, stopped, 0));
      continue;
    }
    const seen = new Set<string>();
    for (let startedAt = performance.now(); ; ) {
      try {
        await needs.lease.ensure();
        for await (const outcome of needs.publisher.publish(request, needs.onProgress)) {
          if (seen.has(outcome.partition)) continue;
          seen.add(outcome.partition);
          if (outcome.kind === 'published') await_(outcome.partition, outcome.attempt, outcome.rows);
          else if (outcome.kind === 'refused') finished.push(failure(outcome.partition, outcome.error, 0, 'refused'));
          else if (outcome.kind === 'held') finished.push(failure(outcome.partition, outcome.error, 0, 'quarantined'));
          else finished.push({ partition: outcome.partition, state: 'unchanged', rows: outcome.rows });
          while (waiting.size >= MAX_UNPROVED) await Promise.race(waiting);
          yield* finished.splice(0);
        }
        for (const { key } of unitsAtFault(request, seen)) finished.push(failure(key, withoutRows(request, key), 0));
        break;
      } catch (error) {
        if (!needs.signal.aborted && isOutage(error) && performance.now() - startedAt < OUTAGE_PATIENCE_MS) {
          needs.log.warn({ period: request.period, err: explain(error) }, 'a store is away; trying again');
          await delay(500, undefined, { signal: needs.signal }).catch(() => {});
          continue;
        }
        const fault = needs.signal.aborted ? interrupted(error) : error;
        for (const { key } of unitsAtFault(request, seen)) finished.push(failure(key, fault, 0));
        // A full log stays full, and only the attempt that lies at its end can go on later.
        if (error instanceof TidemarkError && STOPPING.has(error.code)) stopped = error;
        break;
      }
    }
    yield* finished.splice(0);
  }
  while (waiting.size > 0) {
    await Promise.race(waiting);
    yield* finished.splice(0);
  }
  yield* finished.splice(0);
}

const STOPPING: ReadonlySet<string> = new Set(['LOG_FULL', 'LOG_REWOUND', 'PUBLISHER_LEASE_HELD']);

const codeByState = { quarantined: 'PARTITION_PROOF_FAILED', refused: 'PARTITION_LATE_ARRIVAL' } as const;

/** A day's document is its one unit; of a month, every day that had not come to its end is reported. */
function unitsAtFault(request: DocumentRequest, seen: ReadonlySet<string>) {
  return request.partitions.filter(({ key }) => !seen.has(key));
}

const interrupted = (cause: unknown) => new TidemarkError('INTERRUPTED', 'stopped before it was proved', { cause });

const withoutRows = (request: DocumentRequest, key: string) =>
  new TidemarkError('SOURCE_EMPTY', `The document of ${request.period} holds no rows of ${key}`);

function failure(partition: string, error: unknown, rows: number, state: UnitState = 'failed'): UnitResult {
  const known = error instanceof TidemarkError ? error : undefined;
  return {
    partition,
    state,
    rows,
    code: codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED',
    reason: explain(error),
    remedy: known?.remedy,
  };
}

/**
 * Faults of the stores, not of the document: connection loss, restart, an order in the log that a crash broke. The
 * drivers report a lost connection as a bare Error; what speaks of the data carries a class or a code of its own.
 */
function isOutage(error: unknown): boolean {
  if (error instanceof TidemarkError) {
    return error.code === 'LOG_UNAVAILABLE' || error.code === 'DATABASE_UNAVAILABLE' || error.code === 'LOG_CONFLICT';
  }
  if (error instanceof DatabaseError) return /^(57P0|08|53)/.test(error.code ?? '');
  return !(error instanceof TypeError || error instanceof RangeError || error instanceof ReferenceError);
}
