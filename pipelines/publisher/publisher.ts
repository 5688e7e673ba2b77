/**
 * Publishes documents to the log: decode, frame, write, manifest. Of each dataset one partition after the other, under
 * its publisher lease, so that an attempt's frames lie together; a document that feeds several goes into their streams
 * side by side.
 */

import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import { decodeMessage, encodeMessage, type FrameHeader, type ManifestHeader } from '../../shared/frame/codec.ts';
import { type DocumentFacts, differingFacts, type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/logger.ts';
import { messageAt } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { DocumentRequest, EventRun, PartitionEnd, Source, SourceCheck } from '../sources/types.ts';
import {
  AttemptPlanner,
  type Publishing,
  type PublishOptions,
  type PublishPlan,
  quarantinedError,
} from './plan-attempt.ts';

export type { PublishOptions } from './plan-attempt.ts';

interface OutcomeOf {
  readonly dataset: DatasetDefinition;
  readonly partition: string;
}

type Outcome =
  /** The manifest is in the log; the projector has the word. */
  | { readonly kind: 'published'; readonly attempt: number; readonly rows: number }
  /** Already proved with the same content. */
  | { readonly kind: 'unchanged'; readonly rows: number }
  /** Kept back until an operator acts. */
  | { readonly kind: 'held'; readonly error: TidemarkError }
  /** Already proved with other content: refused, recorded. */
  | { readonly kind: 'refused'; readonly error: TidemarkError };

export type PublishOutcome = OutcomeOf & Outcome;

export interface PublishProgress {
  readonly partition: string;
  readonly rows: number;
  readonly frames: number;
  readonly bytes: number;
}

/** Runs of a capture are kept until it is known whether they say anything new. */
const MAX_KEPT_BYTES = 8 * 1024 * 1024;

/** Partitions of one document that are opened, or called published, by one statement. */
const TOGETHER = 64;
/** How long the projector's news of a published partition may wait for others. */
const TOGETHER_MS = 250;
/** A lease that was there so shortly ago is there. */
const LEASE_CHECK_MS = 50;

/** A manifest that is in the log and not yet in the catalog. */
interface InLog {
  readonly dataset: DatasetDefinition;
  readonly manifest: Manifest;
  readonly sequence: number;
  readonly at: number;
}

/** Where one dataset stands in the document at hand. */
interface Track {
  readonly dataset: DatasetDefinition;
  open?: { readonly key: string; readonly treatment: PublishPlan; readonly kept: EventRun[] };
  /** Partitions of the document that it is known to hold, and how many of them were opened. */
  keys?: readonly string[];
  ahead: number;
}

export class Publisher {
  readonly #source: Source;
  readonly #connection: NatsConnection;
  readonly #catalog: Catalog;
  readonly #options: PublishOptions;
  readonly #treatments: AttemptPlanner;
  readonly #checkLease: () => Promise<void>;
  readonly #now: () => number;
  #leaseCheckedAt = Number.NEGATIVE_INFINITY;
  #inLog: InLog[] = [];
  /** What is said of them once the catalog says it. */
  #unsaid: PublishOutcome[] = [];

  constructor(needs: {
    source: Source;
    connection: NatsConnection;
    catalog: Catalog;
    options: PublishOptions;
    /** @throws when somebody else may be publishing. */
    checkLease: () => Promise<void>;
    log: Logger;
  }) {
    this.#source = needs.source;
    this.#connection = needs.connection;
    this.#catalog = needs.catalog;
    this.#options = needs.options;
    this.#treatments = new AttemptPlanner(needs.connection, needs.catalog, needs.options, needs.log);
    this.#checkLease = async () => {
      if (performance.now() - this.#leaseCheckedAt < LEASE_CHECK_MS) return;
      await needs.checkLease();
      this.#leaseCheckedAt = performance.now();
    };
    this.#now = needs.options.now ?? Date.now;
  }

  /**
   * Publishes every partition of one document that is not proved yet, comparing those that are. @returns what the
   * document shows of its sources beside its partitions.
   * @throws TidemarkError of the source when the document is at fault: no manifest of the partitions at hand is then
   * in the log, and the frames that are there stay unreferenced.
   */
  async *publish(
    request: DocumentRequest,
    onProgress?: (progress: PublishProgress) => void,
  ): AsyncGenerator<PublishOutcome, readonly SourceCheck[]> {
    const known = (await this.#heldDocument(request)) ?? (await this.#unchangedDocument(request));
    if (known) {
      yield* known;
      return [];
    }
    await using document = await this.#source.open(request);
    const progress = { partition: '', rows: 0, frames: 0, bytes: 0 };
    const tracks = new Map<string, Track>();
    this.#leaseCheckedAt = Number.NEGATIVE_INFINITY;
    try {
      for await (const item of document.decode({ frameRawBytes: this.#options.frameRawBytes })) {
        const track = trackOf(tracks, item.dataset ?? this.#source.datasets[0]);
        const open = await this.#enter(track, item.partition.key, document.facts, request);
        if (progress.partition !== open.key) {
          Object.assign(progress, { partition: open.key, rows: 0, frames: 0, bytes: 0 });
        }
        if (item.kind === 'events') {
          await this.#take(item, open, track.dataset, document.facts);
          if (open.treatment.kind === 'publish') progress.bytes = open.treatment.writer.bytes;
          progress.rows += item.rows;
          progress.frames++;
          onProgress?.(progress);
          continue;
        }
        this.#unsaid.push(await this.#endPartition(item, open, track.dataset, document.facts));
        track.open = undefined;
        if (this.#isDue(track.dataset)) yield* await this.#say();
      }
      yield* await this.#say();
      await this.#treatments.abandonAhead(`${request.period} does not hold it`);
    } catch (error) {
      yield* await this.#say();
      await this.#giveUp(tracks, error);
      throw error;
    }
    return document.checks ?? [];
  }

  /** File days are said one by one, others when there are many, or the oldest has waited. */
  #isDue({ partition }: DatasetDefinition): boolean {
    if (partition.kind === 'file_day' || this.#unsaid.length >= TOGETHER) return true;
    return this.#inLog.length > 0 && performance.now() - this.#inLog[0].at > TOGETHER_MS;
  }

  /** The catalog is told which manifests are in the log. @returns what came of their partitions. */
  async #say(): Promise<readonly PublishOutcome[]> {
    const [inLog, unsaid] = [this.#inLog, this.#unsaid];
    [this.#inLog, this.#unsaid] = [[], []];
    for (const [dataset, published] of Map.groupBy(inLog, (one) => one.dataset)) {
      const manifests = published.map(({ manifest, sequence }) => ({ manifest, sequence }));
      await this.#catalog.markPublished(dataset, manifests);
    }
    return unsaid;
  }

  /** The partition that the item is of, treated when it is first met. */
  async #enter(
    track: Track,
    key: string,
    document: DocumentFacts,
    request: DocumentRequest,
  ): Promise<NonNullable<Track['open']>> {
    if (track.open?.key === key) return track.open;
    assert(track.open === undefined, `partition ${track.open?.key} did not end before ${key}`);
    await this.#checkLease();
    await this.#openAhead(track, key, document, request);
    track.open = { key, treatment: await this.#treatments.decide(track.dataset, key, document), kept: [] };
    return track.open;
  }

  /** With the first of every so many partitions that the document is known to hold the others are opened. */
  async #openAhead(track: Track, key: string, document: DocumentFacts, { partitions }: DocumentRequest): Promise<void> {
    const [first] = this.#source.datasets;
    track.keys ??= partitions.flatMap((one) => ((one.dataset ?? first) === track.dataset ? [one.key] : []));
    const at = track.keys.indexOf(key, track.ahead);
    if (at < track.ahead) return;
    track.ahead = at + TOGETHER;
    await this.#treatments.openAhead(track.dataset, track.keys.slice(at, at + TOGETHER), document);
  }

  async #take(
    run: EventRun,
    { treatment, kept }: NonNullable<Track['open']>,
    dataset: DatasetDefinition,
    document: DocumentFacts,
  ): Promise<void> {
    if (treatment.kind === 'publish') {
      await treatment.writer.write(this.#encodeRun(run, treatment, dataset, document));
    } else if (treatment.kind === 'compare' && treatment.next !== undefined) {
      kept.push(run);
      const bytes = kept.reduce((sum, { raw }) => sum + raw.length, 0);
      if (bytes <= MAX_KEPT_BYTES) return;
      throw new TidemarkError('SOURCE_TOO_LARGE', `${dataset.key} ${run.partition.key}: a capture of ${bytes} bytes`);
    } else {
      run.release?.();
    }
  }

  async #endPartition(
    end: PartitionEnd,
    { key, treatment, kept }: NonNullable<Track['open']>,
    dataset: DatasetDefinition,
    document: DocumentFacts,
  ): Promise<PublishOutcome> {
    switch (treatment.kind) {
      case 'publish':
        return await this.#publishManifest(end, treatment, dataset, document);
      case 'compare':
        return await this.#compareProved(end, key, { ...treatment, kept }, dataset, document);
      case 'held':
        return { kind: 'held', dataset, partition: key, error: treatment.error };
      case 'await': {
        const { attempt } = treatment;
        return { kind: 'published', dataset, partition: treatment.key, attempt, rows: end.facts.rows };
      }
    }
  }

  /** A fault of the document ends its attempts for good; an interrupted one (outage, full stream) goes on later. */
  async #giveUp(tracks: ReadonlyMap<string, Track>, error: unknown): Promise<void> {
    if (!(error instanceof TidemarkError) || RESUMABLE.has(error.code)) return;
    await this.#treatments.abandonAhead(error.message);
    for (const { dataset, open } of tracks.values()) {
      if (open?.treatment.kind !== 'publish') continue;
      const { key, attempt, writer } = open.treatment;
      await writer.flush().catch(() => {});
      await this.#catalog.abandonAttempt(dataset, key, attempt, error.message);
    }
  }

  /** All partitions of the document are quarantined: there is nothing to fetch it for. */
  async #heldDocument(request: DocumentRequest): Promise<PublishOutcome[] | undefined> {
    if (this.#options.reingestReason !== undefined) return undefined;
    const outcomes: PublishOutcome[] = [];
    for (const { dataset, row } of await this.#requested(request)) {
      if (row?.state !== 'quarantined' || row.synthetic !== this.#options.synthetic) return undefined;
      outcomes.push({ kind: 'held', dataset, partition: row.partitionKey, error: quarantinedError(dataset, row) });
    }
    return outcomes.length > 0 ? outcomes : undefined;
  }

  /** All partitions of the document are proved, and the vendor's published digest is still the one they came from. */
  async #unchangedDocument(request: DocumentRequest): Promise<PublishOutcome[] | undefined> {
    if (this.#options.reingestReason !== undefined) return undefined;
    const outcomes: PublishOutcome[] = [];
    const digests = new Set<string>();
    for (const { dataset, row } of await this.#requested(request)) {
      if (row?.state !== 'proved' || row.synthetic !== this.#options.synthetic || !row.manifest) return undefined;
      digests.add(row.manifest.document.sha256);
      outcomes.push({ kind: 'unchanged', dataset, partition: row.partitionKey, rows: row.manifest.rows });
    }
    if (digests.size !== 1) return undefined;
    const published = await this.#source.publishedSha256(request);
    return published !== undefined && digests.has(published) ? outcomes : undefined;
  }

  async #requested(request: DocumentRequest): Promise<{ dataset: DatasetDefinition; row: PartitionRow | undefined }[]> {
    const found: { dataset: DatasetDefinition; row: PartitionRow | undefined }[] = [];
    for (const { dataset = this.#source.datasets[0], key } of request.partitions) {
      found.push({ dataset, row: await this.#catalog.partition(dataset, key) });
    }
    return found;
  }

  async #encodeRun(
    run: EventRun,
    { key, revision, attempt, writer }: Publishing,
    dataset: DatasetDefinition,
    document: DocumentFacts,
  ): Promise<Buffer> {
    const { part, parts } = run;
    const message = await encodeMessage<FrameHeader>(
      {
        kind: 'frame',
        encoding: dataset.events.encoding,
        dataset: dataset.key,
        partition: key,
        revision,
        attempt,
        frame: writer.frames,
        document_sha256: document.sha256,
        rows: run.rows,
        first_offset: run.first_offset,
        last_offset: run.last_offset,
        first_ms: run.first_ms,
        last_ms: run.last_ms,
        ...(parts === undefined ? {} : { part, parts }),
        ...(this.#options.synthetic ? { synthetic: true } : {}),
      },
      run.raw,
    );
    run.release?.();
    return message;
  }

  async #publishManifest(
    end: PartitionEnd,
    { key, revision, attempt, writer }: Publishing,
    dataset: DatasetDefinition,
    document: DocumentFacts,
  ): Promise<PublishOutcome> {
    // Every frame is acknowledged before the manifest goes out: a manifest vouches for what is already there.
    await writer.flush();
    await this.#checkLease();
    assert(writer.firstSequence !== undefined || end.facts.rows === 0, 'an attempt with rows has a first frame');
    const { frames } = writer;
    const manifest: Manifest = {
      format: 1,
      dataset: dataset.key,
      partition: key,
      revision,
      attempt,
      frames,
      first_sequence: writer.firstSequence ?? 0,
      from_ms: end.partition.fromMs,
      to_ms: end.partition.toMs,
      synthetic: this.#options.synthetic,
      ...end.facts,
      document,
      ingested_at_ms: this.#now(),
    };
    const header = {
      dataset: dataset.key,
      partition: key,
      revision,
      attempt,
      frame: frames,
      ...(this.#options.synthetic ? { synthetic: true as const } : {}),
    };
    await writer.write(
      encodeMessage<ManifestHeader>(
        { kind: 'manifest', ...header, document_sha256: document.sha256 },
        Buffer.from(JSON.stringify(manifest)),
      ),
    );
    const sequence = await writer.flush();
    // An interrupted earlier run may have written it: then its ingest time is the one that counts.
    const stored = writer.metStored ? await this.#storedManifest(dataset, sequence) : manifest;
    this.#inLog.push({ dataset, manifest: stored, sequence, at: performance.now() });
    return { kind: 'published', dataset, partition: key, attempt, rows: manifest.rows };
  }

  async #storedManifest(dataset: DatasetDefinition, sequence: number): Promise<Manifest> {
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    const place = `${dataset.key} sequence ${sequence}`;
    const stored = await messageAt(manager, dataset.key, sequence);
    assert(stored, `the manifest at ${place} was acknowledged`);
    return parseManifest((await decodeMessage(stored.data, place)).raw, place);
  }

  async #compareProved(
    end: PartitionEnd,
    key: string,
    compared: PublishPlan & { kind: 'compare' } & { readonly kept: readonly EventRun[] },
    dataset: DatasetDefinition,
    document: DocumentFacts,
  ): Promise<PublishOutcome> {
    let differing: readonly string[] = [];
    for (const { manifest, partitionKey: partition } of compared.proved) {
      assert(manifest, 'a proved partition has a manifest');
      differing = differingFacts(manifest, end.facts);
      if (differing.length === 0) return { kind: 'unchanged', dataset, partition, rows: end.facts.rows };
    }
    if (compared.held) return { kind: 'held', dataset, partition: key, error: compared.held };
    if (compared.next !== undefined)
      return await this.#publishNext(end, compared.next, compared.kept, dataset, document);
    const error = new TidemarkError(
      'PARTITION_LATE_ARRIVAL',
      `${dataset.key} ${key} is proved; ${document.name} now has other content (${differing.join(', ')})`,
      { details: { dataset: dataset.key, partition: key, document: document.name } },
    );
    await this.#catalog.record(dataset, key, 'late_arrival_refused', error.message, {
      document,
      found: end.facts,
      differing,
    });
    return { kind: 'refused', dataset, partition: key, error };
  }

  /** A later capture of a day that says something else. */
  async #publishNext(
    end: PartitionEnd,
    key: string,
    kept: readonly EventRun[],
    dataset: DatasetDefinition,
    document: DocumentFacts,
  ): Promise<PublishOutcome> {
    const row = await this.#catalog.partition(dataset, key);
    const treatment = await this.#treatments.open(dataset, key, row, document);
    if (treatment.kind !== 'publish') {
      return await this.#endPartition(end, { key, treatment, kept: [] }, dataset, document);
    }
    for (const run of kept) await treatment.writer.write(this.#encodeRun(run, treatment, dataset, document));
    return await this.#publishManifest(end, treatment, dataset, document);
  }
}

function trackOf(tracks: Map<string, Track>, dataset: DatasetDefinition): Track {
  let track = tracks.get(dataset.key);
  if (!track) {
    track = { dataset, ahead: 0 };
    tracks.set(dataset.key, track);
  }
  return track;
}

const RESUMABLE: ReadonlySet<string> = new Set(['LOG_FULL', 'LOG_UNAVAILABLE', 'PUBLISHER_LEASE_LOST']);
