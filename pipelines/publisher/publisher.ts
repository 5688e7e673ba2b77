/**
 * Publishes documents to the log. A document is decoded; each of its partitions is written as frames and a manifest, or
 * compared with what is proved, or left alone. Under the publisher lease, the frames of one attempt follow each other; a
 * document that feeds several datasets is written to their streams side by side.
 */

import type { NatsConnection } from '@nats-io/transport-node';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { RowChanges } from '../../shared/db/late-arrivals.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import { type DocumentFacts, differingFacts } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/logger.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { captureGroup } from '../../shared/registry/keys.ts';
import type {
  DecodedItem,
  DocumentRequest,
  EventRun,
  OpenedDocument,
  PartitionEnd,
  PublishedDocument,
  Source,
  SourceCheck,
} from '../sources/feed-types.ts';
import type { StoredManifest } from './attempt-writer.ts';
import { Attempts, nameOf, type OpenedPartition, type PublishOptions, quarantinedError } from './attempts.ts';
import type { AttemptOutcome } from './await-proof.ts';
import type { ReplacingDocument } from './changed-rows.ts';
import type { KnownPartition } from './publish-plan.ts';
import {
  type Course,
  type FaultKind,
  faultOf,
  type PublisherFault,
  TRACK,
  type TrackMessage,
  type TrackState,
  transition,
} from './publisher-states.ts';

interface OutcomeOf {
  readonly dataset: DatasetDefinition;
  readonly partition: string;
}

type Outcome =
  /** The log holds the manifest, and the projector proves it. */
  | { readonly kind: 'published'; readonly attempt: number; readonly rows: number }
  /** The same content is proved already. */
  | { readonly kind: 'unchanged'; readonly rows: number }
  /** Nothing is published until an operator acts. */
  | { readonly kind: 'held'; readonly error: TidemarkError }
  /**
   * Other content is proved already, which the ledger records, or heights of another partition. `repeated`: the ledger had this
   * content before.
   */
  | { readonly kind: 'refused'; readonly error: TidemarkError; readonly repeated?: true };

export type PublishOutcome = OutcomeOf & Outcome;

export type DocumentEnd =
  /** `checks`: what the document shows of its sources beside its partitions. */
  | { readonly kind: 'published'; readonly checks: readonly SourceCheck[] }
  | { readonly kind: 'fault'; readonly fault: PublisherFault };

/** Resolves when the projector has ended the attempt, or the wait is given up. */
export type WaitForProof = (dataset: DatasetDefinition, partition: string, attempt: number) => Promise<AttemptOutcome>;

/** Says what a document changes of the rows that are served. */
export type CompareRows = (found: ReplacingDocument) => Promise<RowChanges>;

export interface PublishProgress {
  readonly partition: string;
  readonly rows: number;
  readonly frames: number;
  readonly bytes: number;
}

/** Frames of a capture are kept until the end, when it is known whether they say anything new. */
const MAX_KEPT_BYTES = 8 * 1024 * 1024;

/** How many partitions of one document a statement opens, or marks as published. */
const TOGETHER = 64;
/** How long a published partition may wait for others before the catalog has its manifest. */
const TOGETHER_MS = 250;
/** Faults after which an attempt is not resumed. */
const ABANDONING: ReadonlySet<FaultKind> = new Set(['document', 'conflict', 'again']);
/** The lease is checked at most once in this time. */
const LEASE_CHECK_MS = 50;

/** One dataset of the document that is read. */
interface Track {
  readonly dataset: DatasetDefinition;
  state: TrackState;
  open?: { readonly key: string; opened: OpenedPartition };
  kept: EventRun[];
  keptBytes: number;
  /** Partitions that the document is known to hold. */
  keys?: readonly string[];
  /** The index of the first of them that lookahead has not reached. */
  lookahead: number;
}

/** One reading of a document. After an outage, or when a decoder asks for it, its course has another. */
interface Reading {
  readonly request: DocumentRequest;
  readonly course: Course;
  readonly tracks: Map<number, Track>;
  /** Manifests that the log holds and the catalog does not. */
  inLog: (StoredManifest & { readonly at: number })[];
  /** Outcomes that are reported as soon as the catalog has those manifests. */
  outcomes: PublishOutcome[];
  /** A fault has ended it. */
  isEnded: boolean;
  /** Once it is open. */
  document?: OpenedDocument;
}

export class Publisher {
  readonly #source: Source;
  readonly #catalog: Catalog;
  readonly #options: PublishOptions;
  readonly #attempts: Attempts;
  readonly #checkLease: () => Promise<void>;
  readonly #compareRows: CompareRows | undefined;
  readonly #wait: WaitForProof;
  /** The capture of each fund's day that was published last and not awaited since. */
  readonly #unawaited = new Map<string, OutcomeOf & { readonly attempt: number }>();
  readonly #now: () => number;
  #leaseCheckedAt = Number.NEGATIVE_INFINITY;

  constructor(needs: {
    source: Source;
    connection: NatsConnection;
    catalog: Catalog;
    options: PublishOptions;
    /** @throws TidemarkError DATABASE_UNAVAILABLE when another publisher may be at work. */
    checkLease: () => Promise<void>;
    wait: WaitForProof;
    /** Absent where the differences of replaced documents are not asked for. */
    compareRows?: CompareRows;
    log: Logger;
  }) {
    this.#source = needs.source;
    this.#catalog = needs.catalog;
    this.#options = needs.options;
    this.#attempts = new Attempts(needs.connection, needs.catalog, needs.options, needs.log);
    this.#checkLease = async () => {
      if (performance.now() - this.#leaseCheckedAt < LEASE_CHECK_MS) return;
      await needs.checkLease();
      this.#leaseCheckedAt = performance.now();
    };
    this.#wait = needs.wait;
    this.#compareRows = needs.compareRows;
    this.#now = needs.options.now ?? Date.now;
  }

  /**
   * Publishes every partition of one document that is not proved yet, and compares the others. A failure is returned as
   * the document's end. After a fault of the document the log holds no manifest of the partitions that were open, and
   * nothing refers to their frames.
   */
  async *publish(
    request: DocumentRequest,
    course: Course,
    onProgress?: (progress: PublishProgress) => void,
  ): AsyncGenerator<PublishOutcome, DocumentEnd> {
    const reading: Reading = { request, course, tracks: new Map(), inLog: [], outcomes: [], isEnded: false };
    this.#leaseCheckedAt = Number.NEGATIVE_INFINITY;
    this.#attempts.beginReading();
    try {
      const { left, asked } = await this.#leave(request);
      if (left) {
        yield* left;
        return { kind: 'published', checks: [] };
      }
      course.enter('opened');
      await using document = asked ?? (await this.#source.open(request));
      reading.document = document;
      try {
        yield* this.#read(reading, document, onProgress);
      } catch (error) {
        const refused = await this.#refuseUnreadable(reading, document, error);
        if (!refused) throw error;
        yield refused;
      }
      return { kind: 'published', checks: document.checks ?? [] };
    } catch (error) {
      const { outcomes, fault } = await this.#end(reading, faultOf(error, course.signal));
      yield* outcomes;
      return { kind: 'fault', fault };
    } finally {
      // The caller may end early while another dataset of the document has an open attempt.
      if (!reading.isEnded) await stopWriters(reading);
    }
  }

  async *#read(
    reading: Reading,
    document: OpenedDocument,
    onProgress?: (progress: PublishProgress) => void,
  ): AsyncGenerator<PublishOutcome> {
    const { facts } = document;
    const progress = { partition: '', rows: 0, frames: 0, bytes: 0 };
    for await (const item of document.decode({ frameRawBytes: this.#options.frameRawBytes })) {
      const track = trackOf(reading, item.dataset ?? this.#source.datasets[0]);
      await this.#enter(reading, track, item, facts);
      if (progress.partition !== item.partition.key) {
        Object.assign(progress, { partition: item.partition.key, rows: 0, frames: 0, bytes: 0 });
      }
      if (item.kind === 'end') {
        reading.outcomes.push(await this.#endPartition(reading, track, item, facts));
        if (isDue(reading, track)) yield* await this.#report(reading);
        continue;
      }
      await this.#takeFrame(track, item);
      if (track.open?.opened.kind === 'write') progress.bytes = track.open.opened.writer.bytes;
      progress.rows += item.rows;
      progress.frames++;
      onProgress?.(progress);
    }
    for (const track of reading.tracks.values()) step(track, 'document_end');
    yield* await this.#report(reading);
    const reason = `the document of ${reading.request.period} does not contain the partition`;
    await this.#attempts.abandonOpen(reading.course, reason);
  }

  /** Copies the manifests that the log holds into the catalog. @returns the outcomes that waited for it. */
  async #report(reading: Reading): Promise<readonly PublishOutcome[]> {
    for (const [dataset, stored] of Map.groupBy(reading.inLog, (one) => one.dataset)) {
      const manifests = stored.map(({ manifest, sequence }) => ({ manifest, sequence }));
      await this.#catalog.markPublished(dataset, manifests);
    }
    const { outcomes } = reading;
    reading.inLog = [];
    reading.outcomes = [];
    return outcomes;
  }

  /**
   * Ends what is open after a fault. If a store fails here, too, its fault is returned instead: when the store is back, the
   * document is read again and meets its own fault again.
   */
  async #end(
    reading: Reading,
    fault: PublisherFault,
  ): Promise<{ outcomes: readonly PublishOutcome[]; fault: PublisherFault }> {
    const isFinal = ABANDONING.has(fault.kind);
    reading.isEnded = true;
    for (const track of reading.tracks.values()) step(track, isFinal ? 'fault' : 'interruption');
    // An operator who ends the command does not wait for a store. The writers send nothing more in either case.
    const stopped = stopWriters(reading);
    if (fault.kind !== 'interruption') await stopped;
    try {
      const outcomes = await this.#report(reading);
      if (isFinal) {
        const reason = fault.error instanceof Error ? fault.error.message : String(fault.error);
        await this.#attempts.abandonOpen(reading.course, reason);
      }
      return { outcomes, fault };
    } catch (error) {
      return { outcomes: [], fault: faultOf(error, reading.course.signal) };
    }
  }

  /** Opens the item's partition when its first item comes. */
  async #enter(reading: Reading, track: Track, item: DecodedItem, document: DocumentFacts): Promise<void> {
    const { key } = item.partition;
    if (track.open) {
      assert(track.open.key === key, `partition ${track.open.key} did not end before ${key}`);
      return;
    }
    await this.#awaitCapture(track.dataset, key);
    await this.#checkLease();
    await this.#openLookahead(reading, track, key, document);
    const opened = await this.#attempts.open(track.dataset, key, document, reading.course);
    step(track, messageOf(opened));
    track.open = { key, opened };
  }

  /**
   * Awaits the proof of the day's previous capture: only then is it known whether this document repeats it or is another one.
   */
  async #awaitCapture(dataset: DatasetDefinition, key: string): Promise<void> {
    if (dataset.partition.kind !== 'capture') return;
    const day = nameOf(dataset, captureGroup(key));
    const before = this.#unawaited.get(day);
    if (before === undefined) return;
    await this.#wait(dataset, before.partition, before.attempt);
    this.#unawaited.delete(day);
  }

  /** Opens the attempts at the next partitions that the document is known to hold, together with the first of them. */
  async #openLookahead(
    { request, course }: Reading,
    track: Track,
    key: string,
    document: DocumentFacts,
  ): Promise<void> {
    const [first] = this.#source.datasets;
    track.keys ??= request.partitions.flatMap((one) => ((one.dataset ?? first) === track.dataset ? [one.key] : []));
    const at = track.keys.indexOf(key, track.lookahead);
    if (at < track.lookahead) return;
    track.lookahead = at + TOGETHER;
    await this.#attempts.openLookahead(track.dataset, track.keys.slice(at, at + TOGETHER), document, course);
  }

  async #takeFrame(track: Track, run: EventRun): Promise<void> {
    step(track, 'frame');
    if (track.open?.opened.kind === 'write') {
      await track.open.opened.writer.writeFrame(run);
      return;
    }
    if (track.state !== 'keeping') {
      run.release?.();
      return;
    }
    track.kept.push(run);
    track.keptBytes += run.raw.length;
    if (track.keptBytes <= MAX_KEPT_BYTES) return;
    const what = `${track.dataset.key} ${run.partition.key}`;
    throw new TidemarkError(
      'SOURCE_DOCUMENT_INVALID',
      `${what}: a capture of ${track.keptBytes} bytes, at most ${MAX_KEPT_BYTES}`,
    );
  }

  async #endPartition(
    reading: Reading,
    track: Track,
    end: PartitionEnd,
    document: DocumentFacts,
  ): Promise<PublishOutcome> {
    assert(track.open, 'a partition that ends is open');
    const outcome = await this.#outcomeOf(reading, track, track.open, end, document);
    if (outcome.kind === 'published' && track.dataset.partition.kind === 'capture') {
      this.#unawaited.set(nameOf(track.dataset, captureGroup(outcome.partition)), outcome);
    }
    step(track, 'end');
    Object.assign(track, { open: undefined, kept: [], keptBytes: 0 });
    return outcome;
  }

  async #outcomeOf(
    reading: Reading,
    track: Track,
    open: NonNullable<Track['open']>,
    end: PartitionEnd,
    document: DocumentFacts,
  ): Promise<PublishOutcome> {
    const { dataset } = track;
    const { opened, key } = open;
    const { rows } = end.facts;
    switch (opened.kind) {
      case 'write': {
        // Every frame is acknowledged before the manifest goes out: a manifest vouches for what the log already holds.
        await opened.writer.flush();
        await this.#checkLease();
        const stored = await opened.writer.writeManifest(end, this.#now());
        reading.course.open.delete(nameOf(dataset, opened.writer.key));
        reading.inLog.push({ ...stored, at: performance.now() });
        return { kind: 'published', dataset, partition: opened.writer.key, attempt: opened.writer.attempt, rows };
      }
      case 'await':
        return { kind: 'published', dataset, partition: opened.key, attempt: opened.attempt, rows };
      case 'hold':
        return { kind: 'held', dataset, partition: key, error: opened.error };
      case 'refuse':
        return { kind: 'refused', dataset, partition: key, error: opened.error };
      case 'compare': {
        const compared = opened.proved.map(({ manifest, partitionKey }) => {
          assert(manifest, 'a proved partition has a manifest');
          return { partition: partitionKey, differing: differingFacts(manifest, end.facts) };
        });
        const same = compared.find(({ differing }) => differing.length === 0);
        if (same) {
          await this.#noteSame(reading, dataset, opened.proved[0], end);
          this.#attempts.remember(dataset, opened.proved, { document });
          return { kind: 'unchanged', dataset, partition: same.partition, rows };
        }
        const { otherwise } = opened;
        if (otherwise.kind === 'hold') {
          return { kind: 'held', dataset, partition: key, error: quarantinedError(dataset, otherwise.quarantined) };
        }
        if (otherwise.kind === 'refuse') {
          const differing = compared.at(-1)?.differing ?? [];
          const outcome = await this.#refuse(reading, { dataset, partition: key }, opened.proved[0], differing, end);
          this.#attempts.remember(dataset, opened.proved, { document, refusal: outcome.error.message });
          return outcome;
        }
        open.opened = await this.#attempts.openDiffering(dataset, otherwise.key, document, reading.course);
        step(track, messageOf(open.opened));
        if (open.opened.kind === 'write') for (const run of track.kept) await open.opened.writer.writeFrame(run);
        return await this.#outcomeOf(reading, track, { ...open, key: otherwise.key }, end, document);
      }
    }
  }

  async #refuse(
    { document: opened }: Reading,
    { dataset, partition }: OutcomeOf,
    row: KnownPartition,
    differing: readonly string[],
    end: PartitionEnd,
  ): Promise<Extract<PublishOutcome, { kind: 'refused' }>> {
    const { facts: document } = opened!;
    const why = `${dataset.key} ${partition} is proved; ${document.name} now has other content (${differing.join(', ')})`;
    const details = { document, found: end.facts, differing };
    const changes = await this.#changesOf(opened!, dataset, row);
    const arrival = changes && { document, eventsSha256: end.facts.events_sha256, changes };
    const isNew = await this.#catalog.recordRefusal(dataset, partition, why, details, arrival);
    if (!isNew) await this.#catalog.notePublished(dataset, partition, document.sha256, false);
    const error = lateArrival(dataset, partition, why, document);
    return { kind: 'refused', dataset, partition, error, ...(isNew ? {} : { repeated: true }) };
  }

  /** What a document of its own changes of the proved file day; undefined where it is not compared row by row. */
  async #changesOf(
    document: OpenedDocument,
    dataset: DatasetDefinition,
    { partitionKey, revision, manifest, synthetic }: KnownPartition,
    how: Pick<ReplacingDocument, 'isRepacked' | 'anyIds'> = { isRepacked: false },
  ): Promise<RowChanges | undefined> {
    if (!this.#compareRows || dataset.partition.kind !== 'file_day' || synthetic || !manifest) return undefined;
    const served = { revision, document: manifest.document };
    return await this.#compareRows({ dataset, partition: partitionKey, served, document, ...how });
  }

  /** The content is what is proved. Another document of the same name is recorded all the same, and that it came. */
  async #noteSame(reading: Reading, dataset: DatasetDefinition, row: KnownPartition, end: PartitionEnd): Promise<void> {
    const { facts: document } = reading.document!;
    const served = row.manifest?.document;
    if (dataset.partition.kind !== 'file_day' || served === undefined) return;
    const { partitionKey: key, attempt } = row;
    if (served.sha256 !== document.sha256) {
      const isReplaced = served.name === document.name && !(await this.#catalog.isRepacked(dataset, key, attempt));
      const changes = isReplaced && (await this.#changesOf(reading.document!, dataset, row, { isRepacked: true }));
      const eventsSha256 = end.facts.events_sha256;
      if (changes) await this.#catalog.recordRepacked(dataset, key, { document, eventsSha256, changes });
    }
    // A document of several partitions cannot stand for that of one.
    if (reading.request.partitions.length > 1) return;
    if (served.sha256 !== document.sha256) await this.#catalog.noteSame(dataset, key, attempt, document);
    await this.#catalog.notePublished(dataset, key, document.sha256, true);
  }

  /**
   * A document that a vendor published in place of that of a proved file day, and that is none of its source: rows are missing, or in
   * another order. It is a late arrival as well, so that it is recorded and compared once. @returns undefined for any other fault
   */
  async #refuseUnreadable(
    { request, tracks }: Reading,
    document: OpenedDocument,
    error: unknown,
  ): Promise<PublishOutcome | undefined> {
    const [track] = tracks.values();
    const isInvalid = error instanceof TidemarkError && error.code === 'SOURCE_DOCUMENT_INVALID';
    if (!this.#compareRows || !isInvalid || request.partitions.length !== 1 || tracks.size > 1) return undefined;
    if (track !== undefined && track.state !== 'comparing') return undefined;
    const [{ key: partition, dataset = this.#source.datasets[0] }] = request.partitions;
    const row = await this.#catalog.partition(dataset, partition);
    if (row?.state !== 'proved' || row.synthetic || this.#options.reingestReason !== undefined) return undefined;
    const { facts } = document;
    const why = `${dataset.key} ${partition} is proved; ${facts.name} is now a document that is refused: ${error.message}`;
    const changes = await this.#changesOf(document, dataset, row, { isRepacked: false, anyIds: true }).catch(
      (cause) => {
        if (cause instanceof TidemarkError && cause.code === 'SOURCE_DOCUMENT_INVALID') return undefined;
        throw cause;
      },
    );
    const arrival = { document: facts, changes, fault: error.message };
    const isNew = await this.#catalog.recordRefusal(dataset, partition, why, { document: facts }, arrival);
    const refusal = lateArrival(dataset, partition, why, facts);
    return { kind: 'refused', dataset, partition, error: refusal, ...(isNew ? {} : { repeated: true }) };
  }

  /** The outcomes of a document that is left as it is, or the document of a vendor that was asked and publishes another. */
  async #leave(request: DocumentRequest): Promise<{ left?: PublishOutcome[]; asked?: OpenedDocument }> {
    const { plan, datasets } = await this.#attempts.planDocument(request, this.#source.datasets[0]);
    if (plan.kind === 'fetch') return {};
    if (plan.kind === 'hold') {
      const held = plan.quarantined.map((row, index): PublishOutcome => {
        const dataset = datasets[index];
        return { kind: 'held', dataset, partition: row.partitionKey, error: quarantinedError(dataset, row) };
      });
      return { left: held };
    }
    const known = await this.#attempts.knownDocuments(plan, datasets[0]);
    const published = await this.#ask(
      request,
      known.map(({ document }) => document),
    );
    if (published.kind === 'other') return { asked: published.document };
    const { document, refusal } = known.find((one) => one.document.sha256 === published.sha256)!;
    if (datasets[0].partition.kind === 'file_day' && plan.proved.length === 1) {
      const [{ partitionKey }] = plan.proved;
      await this.#catalog.notePublished(datasets[0], partitionKey, document.sha256, refusal === undefined);
    }
    const left = plan.proved.map(({ partitionKey: partition, manifest }, index): PublishOutcome => {
      const dataset = datasets[index];
      if (refusal === undefined) return { kind: 'unchanged', dataset, partition, rows: manifest?.rows ?? 0 };
      const error = lateArrival(dataset, partition, refusal, document);
      return { kind: 'refused', dataset, partition, error, repeated: true };
    });
    return { left };
  }

  async #ask(
    request: DocumentRequest,
    known: readonly DocumentFacts[],
  ): Promise<PublishedDocument | { kind: 'other'; document?: undefined }> {
    if (this.#source.openUnlessKnown) return await this.#source.openUnlessKnown(request, known);
    const sha256 = await this.#source.publishedSha256(request);
    const isKnown = sha256 !== undefined && known.some((document) => document.sha256 === sha256);
    return isKnown ? { kind: 'known', sha256 } : { kind: 'other' };
  }
}

function lateArrival(
  dataset: DatasetDefinition,
  partition: string,
  why: string,
  { name }: DocumentFacts,
): TidemarkError {
  const details = { dataset: dataset.key, partition, document: name };
  return new TidemarkError('PARTITION_LATE_ARRIVAL', why, { details });
}

/** File days are reported one by one, other partitions when there are many or the oldest has waited. */
function isDue({ inLog, outcomes }: Reading, { dataset }: Track): boolean {
  if (dataset.partition.kind === 'file_day' || outcomes.length >= TOGETHER) return true;
  return inLog.length > 0 && performance.now() - inLog[0].at > TOGETHER_MS;
}

function trackOf({ tracks }: Reading, dataset: DatasetDefinition): Track {
  const known = tracks.get(dataset.number);
  if (known) return known;
  const track: Track = { dataset, state: 'between', kept: [], keptBytes: 0, lookahead: 0 };
  tracks.set(dataset.number, track);
  return track;
}

/** Resolves when no writer of the document has a message on its way. */
async function stopWriters({ tracks }: Reading): Promise<void> {
  const opened = [...tracks.values()].flatMap(({ open }) =>
    open?.opened.kind === 'write' ? [open.opened.writer] : [],
  );
  await Promise.all(opened.map((writer) => writer.stop()));
}

function step(track: Track, message: TrackMessage): void {
  track.state = transition(TRACK, track.state, message);
}

function messageOf(opened: OpenedPartition): TrackMessage {
  if (opened.kind === 'write') return 'write';
  if (opened.kind !== 'compare') return 'pass';
  return opened.otherwise.kind === 'attempt' ? 'keep' : 'compare';
}
