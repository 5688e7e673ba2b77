/** A backfill: documents one after the other into the log, proofs awaited beside, faults of one kept to that one. */

import { setTimeout as delay } from 'node:timers/promises';
import { DatabaseError } from 'pg';
import { codeOf, explain, outageCode, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { captureGroup } from '../../shared/registry/keys.ts';
import type { DocumentRequest, Source, SourceCheck } from '../sources/types.ts';
import type { AttemptOutcome } from './await-proof.ts';
import type { Lease } from './lease.ts';
import type { Publisher, PublishOutcome, PublishProgress } from './publisher.ts';

export type UnitState = 'proved' | 'unchanged' | 'quarantined' | 'refused' | 'failed';

export interface UnitResult {
  readonly dataset: string;
  /** Of a document that failed before its partitions were known, its name. */
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
  readonly wait: (dataset: DatasetDefinition, partition: string, attempt: number) => Promise<AttemptOutcome>;
  /** Takes down what a document showed of its sources, once all of it is proved. */
  readonly recordCheck: (check: SourceCheck) => Promise<void>;
  readonly log: Logger;
  readonly signal: AbortSignal;
  readonly onProgress?: (progress: PublishProgress) => void;
}

/** An outage of a store is sat out this long before the day is reported failed; it resumes where it stopped. */
const OUTAGE_PATIENCE_MS = 60_000;
/** File days published ahead of their proof: bounds what a crash leaves to be projected again. */
const MAX_UNPROVED = 4;
/** The same of small partitions, by number and by rows. */
const MAX_UNPROVED_SMALL = 512;
const MAX_UNPROVED_ROWS = 500_000;

/** Results in the order they come to their end. */
export async function* backfill(
  requests: Iterable<DocumentRequest> | AsyncIterable<DocumentRequest>,
  needs: BackfillNeeds,
): AsyncGenerator<UnitResult> {
  const proofs = new Proofs(needs);
  let stopped: TidemarkError | undefined;
  for await (const request of meanwhile(requests, proofs)) {
    if (Array.isArray(request)) {
      yield* request;
      continue;
    }
    if (needs.signal.aborted) break;
    if (stopped) proofs.fail(unitsAtFault(needs.source, request, new Set()), stopped);
    else stopped = yield* publishOne(request, needs, proofs);
    yield* proofs.results();
  }
  while (proofs.pending > 0) {
    await proofs.any();
    yield* proofs.results();
  }
  yield* proofs.results();
}

/** The requests, and the results that come while one is waited for. */
async function* meanwhile(
  requests: Iterable<DocumentRequest> | AsyncIterable<DocumentRequest>,
  proofs: Proofs,
): AsyncGenerator<DocumentRequest | UnitResult[]> {
  const all = (async function* () {
    yield* requests;
  })();
  try {
    for (let next = all.next(); ; ) {
      const arrived = await Promise.race([next, ...(proofs.pending > 0 ? [proofs.any()] : [])]);
      if (arrived === undefined) {
        const results = proofs.results();
        if (results.length > 0) yield results;
        continue;
      }
      if (arrived.done) return;
      yield arrived.value;
      next = all.next();
    }
  } finally {
    await all.return(undefined);
  }
}

/** One document. @returns a fault that makes it useless to go on. */
async function* publishOne(
  request: DocumentRequest,
  needs: BackfillNeeds,
  proofs: Proofs,
): AsyncGenerator<UnitResult, TidemarkError | undefined> {
  const { source, signal, log } = needs;
  const seen = new Set<string>();
  const published: Promise<boolean>[] = [];
  for (const startedAt = performance.now(); ; ) {
    try {
      await needs.lease.ensure();
      const outcomes = needs.publisher.publish(request, needs.onProgress);
      let next = yield* resultsDuring(outcomes.next(), proofs);
      for (; !next.done; next = yield* resultsDuring(outcomes.next(), proofs)) {
        const name = nameOf(next.value);
        if (!seen.has(name)) published.push(proofs.take(next.value));
        seen.add(name);
        while (proofs.isFull) await proofs.any();
        yield* proofs.results();
      }
      for (const unit of request.partitions.length > 0 ? unitsAtFault(source, request, seen) : []) {
        proofs.fail([unit], withoutRows(request, unit.partition));
      }
      proofs.afterAll(published, next.value);
      return undefined;
    } catch (error) {
      if (!signal.aborted && isOutage(error) && performance.now() - startedAt < OUTAGE_PATIENCE_MS) {
        log.warn({ period: request.period, err: explain(error) }, 'a store is away; trying again');
        await delay(500, undefined, { signal }).catch(() => {});
        continue;
      }
      proofs.fail(unitsAtFault(source, request, seen), signal.aborted ? interrupted(error) : error);
      // A full log stays full, and only the attempt that lies at its end can go on later.
      return error instanceof TidemarkError && STOPPING.has(error.code) ? error : undefined;
    }
  }
}

/** What comes to its end while something else is waited for: a slow vendor holds back no news of what is proved. */
async function* resultsDuring<T>(work: Promise<T>, proofs: Proofs): AsyncGenerator<UnitResult, T> {
  const done = work.then(
    () => true,
    () => true,
  );
  while (!(await Promise.race([done, ...(proofs.pending > 0 ? [proofs.any().then(() => false)] : [])]))) {
    yield* proofs.results();
  }
  return await work;
}

/** What has been published and waits for its proof, and what has come to its end. */
class Proofs {
  readonly #needs: BackfillNeeds;
  readonly #waiting = new Set<Promise<unknown>>();
  #finished: UnitResult[] = [];
  #rows = 0;

  constructor(needs: BackfillNeeds) {
    this.#needs = needs;
  }

  get pending(): number {
    return this.#waiting.size;
  }

  get isFull(): boolean {
    const [dataset] = this.#needs.source.datasets;
    if (dataset.partition.kind === 'file_day') return this.pending >= MAX_UNPROVED;
    return this.pending >= MAX_UNPROVED_SMALL || (this.pending > 1 && this.#rows > MAX_UNPROVED_ROWS);
  }

  async any(): Promise<void> {
    await Promise.race(this.#waiting);
  }

  results(): UnitResult[] {
    const finished = this.#finished;
    if (finished.length > 0) this.#finished = [];
    return finished;
  }

  /** @returns whether it is proved in the end. */
  async take(outcome: PublishOutcome): Promise<boolean> {
    const { dataset, partition } = outcome;
    const unit = { dataset, partition };
    switch (outcome.kind) {
      case 'published':
        return await this.#track(this.#prove(unit, outcome.attempt, outcome.rows), outcome.rows);
      case 'unchanged':
        this.#finished.push({ dataset: dataset.key, partition, state: 'unchanged', rows: outcome.rows });
        return true;
      case 'refused':
        this.#finished.push(failure(unit, outcome.error, 0, 'refused'));
        return false;
      case 'held':
        this.#finished.push(failure(unit, outcome.error, 0, 'quarantined'));
        return false;
    }
  }

  fail(units: readonly Unit[], error: unknown): void {
    for (const unit of units) this.#finished.push(failure(unit, error, 0));
  }

  /** When everything of a document is proved, what it shows of its sources holds. */
  afterAll(published: readonly Promise<boolean>[], checks: readonly SourceCheck[]): void {
    if (checks.length === 0) return;
    const recorded = Promise.all(published).then(async (proved) => {
      if (!proved.every(Boolean)) return;
      for (const check of checks) await this.#needs.recordCheck(check);
    });
    this.#track(
      recorded.catch((error) => this.#needs.log.warn({ err: explain(error) }, 'a check was not recorded')),
      0,
    );
  }

  async #prove(unit: Unit, attempt: number, rows: number): Promise<boolean> {
    const { dataset, partition } = unit;
    try {
      const { state, reason } = await this.#needs.wait(dataset, partition, attempt);
      const fault = state === 'proved' ? {} : { code: codeByState[state], reason: reason ?? '' };
      this.#finished.push({ dataset: dataset.key, partition, state, rows, ...fault });
      return state === 'proved';
    } catch (error) {
      this.#finished.push(failure(unit, this.#needs.signal.aborted ? interrupted(error) : error, rows));
      return false;
    }
  }

  #track<T>(work: Promise<T>, rows: number): Promise<T> {
    this.#rows += rows;
    const done: Promise<T> = work.finally(() => {
      this.#waiting.delete(done);
      this.#rows -= rows;
    });
    this.#waiting.add(done);
    return done;
  }
}

const STOPPING: ReadonlySet<string> = new Set(['LOG_FULL', 'LOG_REWOUND', 'PUBLISHER_LEASE_HELD']);

const codeByState = { quarantined: 'PARTITION_PROOF_FAILED', refused: 'PARTITION_LATE_ARRIVAL' } as const;

interface Unit {
  readonly dataset: DatasetDefinition;
  readonly partition: string;
}

/** A later capture of a day is asked for as the day. */
const nameOf = ({ dataset, partition }: Unit) =>
  `${dataset.key} ${dataset.partition.kind === 'capture' ? captureGroup(partition) : partition}`;

/** Every partition that had not come to its end; of a document that had told none, the document. */
function unitsAtFault(source: Source, request: DocumentRequest, seen: ReadonlySet<string>): Unit[] {
  const [first] = source.datasets;
  const units = request.partitions.map(({ dataset = first, key }) => ({ dataset, partition: key }));
  if (units.length === 0) return [{ dataset: first, partition: request.period }];
  return units.filter((unit) => !seen.has(nameOf(unit)));
}

const interrupted = (cause: unknown) => new TidemarkError('INTERRUPTED', 'stopped before it was proved', { cause });

const withoutRows = (request: DocumentRequest, key: string) =>
  new TidemarkError('SOURCE_EMPTY', `The document of ${request.period} holds no rows of ${key}`);

function failure({ dataset, partition }: Unit, error: unknown, rows: number, state: UnitState = 'failed'): UnitResult {
  const known = error instanceof TidemarkError ? error : undefined;
  return {
    dataset: dataset.key,
    partition,
    state,
    rows,
    code: codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED',
    reason: explain(error),
    remedy: known?.remedy,
  };
}

const OUTAGES: ReadonlySet<string> = new Set([
  'LOG_UNAVAILABLE',
  'LOG_CONFLICT',
  'DATABASE_UNAVAILABLE',
  'PUBLISHER_LEASE_LOST',
]);

/**
 * Faults of the stores, not of the document: connection loss, restart, an order in the log that a crash broke. The
 * drivers report a lost connection as a bare Error; what speaks of the data carries a class or a code of its own.
 */
function isOutage(error: unknown): boolean {
  if (error instanceof TidemarkError) return OUTAGES.has(error.code);
  if (error instanceof DatabaseError) return /^(57P0|08|53)/.test(error.code ?? '');
  return !(error instanceof TypeError || error instanceof RangeError || error instanceof ReferenceError);
}
