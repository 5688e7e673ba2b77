/**
 * A backfill: plans the documents that are known beforehand, publishes one document after the other, and awaits their proofs
 * meanwhile. A fault of one document ends that document alone.
 */

import { setTimeout as delay } from 'node:timers/promises';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { codeOf, explain, outageCode, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { OUTAGE_LIMIT_MS } from '../../shared/nats/connect.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { captureGroup } from '../../shared/registry/keys.ts';
import type { DocumentRequest, Source, SourceCheck } from '../sources/feed-types.ts';
import type { Lease } from './lease.ts';
import { type Plan, type PlanOptions, planOf } from './publish-plan.ts';
import type { DocumentEnd, Publisher, PublishOutcome, PublishProgress, WaitForProof } from './publisher.ts';
import { Course, type CourseMessage, faultOf, type PublisherFault } from './publisher-states.ts';

export type UnitState = 'proved' | 'unchanged' | 'quarantined' | 'refused' | 'failed';

export interface UnitResult {
  readonly dataset: string;
  /** The name of the document, where it failed before its partitions were known. */
  readonly partition: string;
  readonly state: UnitState;
  readonly rows: number;
  readonly code?: string;
  readonly reason?: string;
  readonly remedy?: string;
  /** A late arrival with content that the ledger had before. */
  readonly repeated?: true;
}

export interface BackfillNeeds {
  readonly source: Source;
  readonly publisher: Pick<Publisher, 'publish'>;
  readonly lease: Lease;
  readonly wait: WaitForProof;
  /** Records what a document shows of its sources after all of it is proved. */
  readonly recordCheck: (check: SourceCheck) => Promise<void>;
  readonly log: Logger;
  readonly signal: AbortSignal;
  readonly onProgress?: (progress: PublishProgress) => void;
}

/** A document is read again for this long after a store became unavailable; then its partitions are reported as failed. */
const REREAD_LIMIT_MS = 60_000;
/** Most file days that wait for their proof. It bounds what the projector repeats after a crash. */
const MAX_UNPROVED = 4;
/** The same for small partitions, by number and by rows. */
const MAX_UNPROVED_SMALL = 512;
const MAX_UNPROVED_ROWS = 500_000;

/** Yields results in the order in which the partitions come to their end. */
export async function* backfill(
  requests: Iterable<DocumentRequest> | AsyncIterable<DocumentRequest>,
  needs: BackfillNeeds,
): AsyncGenerator<UnitResult> {
  const proofs = new Proofs(needs);
  let stopped: unknown;
  for await (const request of meanwhile(requests, proofs)) {
    if (Array.isArray(request)) {
      yield* request;
      continue;
    }
    if (needs.signal.aborted) break;
    if (stopped !== undefined) proofs.fail(unitsAtFault(needs.source, request, new Set()), stopped);
    else stopped = yield* publishOne(request, needs, proofs);
    yield* proofs.results();
  }
  while (proofs.pending > 0) {
    await proofs.any();
    yield* proofs.results();
  }
  yield* proofs.results();
}

/** Yields the requests, and the results that come while the next request is awaited. */
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

/** Keys in one query of the catalog. */
const KEYS_AT_ONCE = 5000;

/** Plans a backfill as a whole, from what the catalog knows of its partitions. */
export async function planBackfill(
  requests: readonly DocumentRequest[],
  { catalog, ...options }: PlanOptions & { readonly catalog: Catalog },
): Promise<Plan> {
  const units = requests.flatMap((request) => unitsOf(options.source, request));
  const found = new Map<DatasetDefinition, Map<string, PartitionRow[]>>();
  for (const [dataset, wanted] of Map.groupBy(units, (unit) => unit.dataset)) {
    const keys = [...new Set(wanted.map(({ partition }) => requestedKey(dataset, partition)))];
    const rows: PartitionRow[] = [];
    for (let first = 0; first < keys.length; first += KEYS_AT_ONCE) {
      rows.push(...(await knownPartitions(catalog, dataset, keys.slice(first, first + KEYS_AT_ONCE))));
    }
    found.set(
      dataset,
      Map.groupBy(rows, ({ partitionKey }) => requestedKey(dataset, partitionKey)),
    );
  }
  return planOf(requests, (dataset, key) => found.get(dataset)?.get(requestedKey(dataset, key)) ?? [], options);
}

/** The catalog's rows of requested partitions; of captures those of every capture of their sources and days. */
function knownPartitions(
  catalog: Catalog,
  dataset: DatasetDefinition,
  keys: readonly string[],
): Promise<PartitionRow[]> {
  if (dataset.partition.kind === 'capture') return catalog.captures(dataset, keys);
  return catalog.partitionsOf(dataset, keys);
}

/** One document, read again after an outage or when its decoder asks for it. @returns an error that every further document would meet, too. */
async function* publishOne(
  request: DocumentRequest,
  needs: BackfillNeeds,
  proofs: Proofs,
): AsyncGenerator<UnitResult, unknown> {
  const { source, signal, log } = needs;
  const tried: TriedDocument = {
    request,
    course: new Course(signal),
    seen: new Set(),
    settled: [],
    isReadAgain: false,
  };
  const outage = new Outage();
  for (;;) {
    const end = yield* publishOnce(tried, needs, proofs);
    if (end.kind === 'published') {
      tried.course.enter('published');
      for (const unit of request.partitions.length > 0 ? unitsAtFault(source, request, tried.seen) : []) {
        proofs.fail([unit], withoutRows(request, unit.partition));
      }
      proofs.settle(tried.course, tried.settled, end.checks);
      return undefined;
    }
    const { error } = end.fault;
    tried.course.enter(messageOf(end.fault, outage, tried));
    if (tried.course.state === 'planning') {
      tried.isReadAgain = true;
      log.info({ period: request.period, reason: explain(error) }, 'the document is read again');
      continue;
    }
    if (tried.course.state === 'pausing') {
      log.warn({ period: request.period, err: explain(error) }, 'a store is unavailable; trying again');
      await delay(500, undefined, { signal }).catch(() => {});
      tried.course.enter(signal.aborted ? 'interruption' : 'retry');
      if (!signal.aborted) continue;
    }
    const { state } = tried.course;
    proofs.fail(unitsAtFault(source, request, tried.seen), state === 'interrupted' ? interrupted(error) : error);
    return state === 'stopping' ? error : undefined;
  }
}

interface TriedDocument {
  readonly request: DocumentRequest;
  readonly course: Course;
  /** Partitions with an outcome. */
  readonly seen: Set<string>;
  /** Whether each of them is proved in the end. */
  readonly settled: Promise<boolean>[];
  /** Its decoder asked for another reading. */
  isReadAgain: boolean;
}

/** What a fault means to the course of its document. */
function messageOf({ kind, error }: PublisherFault, outage: Outage, tried: TriedDocument): CourseMessage {
  switch (kind) {
    case 'outage':
    case 'conflict':
      return outage.isOver(error, tried.seen.size) ? 'fault' : 'outage';
    case 'document':
    case 'defect':
      return 'fault';
    case 'again':
      // A decoder that asks twice would ask for ever.
      return tried.isReadAgain ? 'fault' : 'again';
    case 'stop':
    case 'interruption':
      return kind;
  }
}

async function* publishOnce(
  { request, course, seen, settled }: TriedDocument,
  { lease, publisher, signal, onProgress }: BackfillNeeds,
  proofs: Proofs,
): AsyncGenerator<UnitResult, DocumentEnd> {
  const fault = await lease.ensure().then(
    () => undefined,
    (error) => faultOf(error, signal),
  );
  if (fault) return { kind: 'fault', fault };
  const outcomes = publisher.publish(request, course, onProgress);
  try {
    let next = yield* resultsDuring(outcomes.next(), proofs);
    for (; !next.done; next = yield* resultsDuring(outcomes.next(), proofs)) {
      const name = nameOf(next.value);
      if (!seen.has(name)) settled.push(proofs.take(next.value));
      seen.add(name);
      while (proofs.isFull) await proofs.any();
      yield* proofs.results();
    }
    return next.value;
  } finally {
    // The consumer may end early. The publisher then closes the document and stops its writers.
    await outcomes.return({ kind: 'published', checks: [] });
  }
}

/** How long a store has been unavailable to one document. */
class Outage {
  #since = 0;
  #outcomes = -1;

  /** @param outcomes how many partitions have an outcome. Each new one shows that the store was back in between. */
  isOver(error: unknown, outcomes: number): boolean {
    const now = performance.now();
    if (outcomes > this.#outcomes) {
      this.#outcomes = outcomes;
      // The writer has retried for a minute before it says so.
      this.#since = codeOf(error) === 'LOG_UNAVAILABLE' ? now - OUTAGE_LIMIT_MS : now;
    }
    return now - this.#since >= REREAD_LIMIT_MS;
  }
}

/** Yields results while `work` is awaited, so that a slow vendor delays no result. */
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

/** Attempts that wait for their proof, and results that are not reported yet. */
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

  /** @returns whether the partition is proved in the end. */
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
        this.#finished.push({
          ...failure(unit, outcome.error, 0, 'refused'),
          ...(outcome.repeated ? { repeated: outcome.repeated } : {}),
        });
        return false;
      case 'held':
        this.#finished.push(failure(unit, outcome.error, 0, 'quarantined'));
        return false;
    }
  }

  fail(units: readonly Unit[], error: unknown): void {
    for (const unit of units) this.#finished.push(failure(unit, error, 0));
  }

  /** Ends the document's course when all of its partitions have ended; if all are proved, its checks are recorded. */
  settle(course: Course, settled: readonly Promise<boolean>[], checks: readonly SourceCheck[]): void {
    const proved = Promise.all(settled).then((all) => {
      course.enter('settled');
      return all.every(Boolean);
    });
    if (checks.length === 0) return;
    const recorded = proved.then(async (isProved) => {
      for (const check of isProved ? checks : []) await this.#needs.recordCheck(check);
    });
    this.#track(
      recorded.catch((error) => this.#needs.log.warn({ err: explain(error) }, 'a check was not recorded')),
      0,
    );
  }

  async #prove(unit: Unit, attempt: number, rows: number): Promise<boolean> {
    const { dataset, partition } = unit;
    const outcome = await this.#needs.wait(dataset, partition, attempt);
    if (outcome.state === 'unknown') {
      const { error } = outcome;
      this.#finished.push(failure(unit, this.#needs.signal.aborted ? interrupted(error) : error, rows));
      return false;
    }
    const { state, reason } = outcome;
    if (state === 'proved') this.#finished.push({ dataset: dataset.key, partition, state, rows });
    else this.#finished.push(failure(unit, new TidemarkError(codeByState[state], reason ?? ''), rows, state));
    return state === 'proved';
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

const codeByState = { quarantined: 'PARTITION_PROOF_FAILED', refused: 'PARTITION_LATE_ARRIVAL' } as const;

interface Unit {
  readonly dataset: DatasetDefinition;
  readonly partition: string;
}

/** A request names a later capture of a day by the day. */
const requestedKey = (dataset: DatasetDefinition, key: string) =>
  dataset.partition.kind === 'capture' ? captureGroup(key) : key;

const nameOf = ({ dataset, partition }: Unit) => `${dataset.key} ${requestedKey(dataset, partition)}`;

function unitsOf({ datasets: [first] }: Pick<Source, 'datasets'>, { partitions }: DocumentRequest): Unit[] {
  return partitions.map(({ dataset = first, key }) => ({ dataset, partition: key }));
}

/** Every partition without an outcome, or the document itself where its partitions are not known. */
function unitsAtFault(source: Source, request: DocumentRequest, seen: ReadonlySet<string>): Unit[] {
  const units = unitsOf(source, request);
  if (units.length === 0) return [{ dataset: source.datasets[0], partition: request.period }];
  return units.filter((unit) => !seen.has(nameOf(unit)));
}

const interrupted = (cause: unknown) => new TidemarkError('INTERRUPTED', 'stopped before it was proved', { cause });

const withoutRows = (request: DocumentRequest, key: string) =>
  new TidemarkError('SOURCE_DOCUMENT_INVALID', `The document of ${request.period} holds no rows of ${key}`);

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
