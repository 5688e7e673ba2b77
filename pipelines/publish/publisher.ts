/**
 * Publishes vendor documents to the log: decode, frame, write, manifest. One partition after the other, under the
 * dataset's publisher lease, so that an attempt's frames lie together.
 */
import { hostname } from 'node:os';
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { AttemptRow, PartitionRow } from '../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import { decodeMessage, encodeMessage, type FrameHeader, type ManifestHeader } from '../../shared/frame/codec.ts';
import {
  type DocumentFacts,
  differingFacts,
  type Manifest,
  type PartitionFacts,
  parseManifest,
} from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/log/logger.ts';
import { attemptFilter, messageAt, messageOf, subjectOf } from '../../shared/nats/stream.ts';
import type { DocumentRequest, EventRun, PartitionEnd, PartitionWindow, Source } from '../sources/types.ts';
import { AttemptWriter } from './attempt-writer.ts';

export interface PublishOptions {
  readonly frameRawBytes: number;
  readonly window: number;
  readonly synthetic: boolean;
  /** Replaces proved partitions as a new revision, for this reason. */
  readonly reingestReason?: string;
  /** Overrides the clock in tests. */
  readonly now?: () => number;
}

export type PublishOutcome =
  /** The manifest is in the log; the projector has the word. */
  | { readonly kind: 'published'; readonly partition: string; readonly attempt: number; readonly rows: number }
  /** Already proved with the same content. */
  | { readonly kind: 'unchanged'; readonly partition: string; readonly rows: number }
  /** Quarantined: it stays so until an operator re-ingests it. */
  | { readonly kind: 'held'; readonly partition: string; readonly error: TidemarkError }
  /** Already proved with other content: refused, recorded. */
  | { readonly kind: 'refused'; readonly partition: string; readonly error: TidemarkError };

export interface PublishProgress {
  readonly partition: string;
  readonly rows: number;
  readonly frames: number;
  readonly bytes: number;
}

/** How a partition of the document at hand is treated. */
type Treatment =
  | { readonly kind: 'publish'; readonly writer: AttemptWriter; readonly attempt: number; readonly revision: number }
  | { readonly kind: 'compare'; readonly proved: PartitionRow }
  | { readonly kind: 'held'; readonly error: TidemarkError }
  /** Its manifest is in the log already; the projector has not come to it. */
  | { readonly kind: 'await'; readonly attempt: number };

const PUBLISHER_NAME = `${hostname()}:${process.pid}`;

export class Publisher {
  readonly #source: Source;
  readonly #connection: NatsConnection;
  readonly #catalog: Catalog;
  readonly #options: PublishOptions;
  readonly #log: Logger;
  readonly #now: () => number;

  constructor(needs: {
    source: Source;
    connection: NatsConnection;
    catalog: Catalog;
    options: PublishOptions;
    log: Logger;
  }) {
    this.#source = needs.source;
    this.#connection = needs.connection;
    this.#catalog = needs.catalog;
    this.#options = needs.options;
    this.#log = needs.log;
    this.#now = needs.options.now ?? Date.now;
  }

  /**
   * Publishes every partition of one document that is not proved yet, comparing those that are.
   * @throws TidemarkError of the source when the document is at fault: no manifest of the partition at hand is then
   * in the log, and the frames that are there stay unreferenced.
   */
  async *publish(
    request: DocumentRequest,
    onProgress?: (progress: PublishProgress) => void,
  ): AsyncGenerator<PublishOutcome> {
    const known = (await this.#heldDocument(request)) ?? (await this.#unchangedDocument(request));
    if (known) {
      yield* known;
      return;
    }
    await using document = await this.#source.open(request);
    const progress = { partition: '', rows: 0, frames: 0, bytes: 0 };
    let treatment: Treatment | undefined;
    let open: PartitionWindow | undefined;
    try {
      for await (const item of document.decode({ frameRawBytes: this.#options.frameRawBytes })) {
        if (item.partition.key !== open?.key) {
          assert(open === undefined, `partition ${open?.key} did not end before ${item.partition.key}`);
          open = item.partition;
          treatment = await this.#treat(open, document.facts);
          Object.assign(progress, { partition: open.key, rows: 0, frames: 0, bytes: 0 });
        }
        assert(treatment, 'a partition is treated before its items');
        if (item.kind === 'events') {
          if (treatment.kind === 'publish') {
            await treatment.writer.write(this.#encodeRun(item, treatment, document.facts));
            progress.bytes = treatment.writer.bytes;
          } else {
            item.release?.();
          }
          progress.rows += item.rows;
          progress.frames++;
          onProgress?.(progress);
          continue;
        }
        yield await this.#endPartition(item, treatment, document.facts);
        open = undefined;
        treatment = undefined;
      }
    } catch (error) {
      // A fault of the document ends the attempt for good; an interrupted one (outage, full stream) goes on later.
      if (open && treatment?.kind === 'publish' && error instanceof TidemarkError && !resumable(error)) {
        await treatment.writer.flush().catch(() => {});
        await this.#catalog.abandonAttempt(this.#source.dataset, open.key, treatment.attempt, error.message);
      }
      throw error;
    }
  }

  async #endPartition(end: PartitionEnd, treatment: Treatment, document: DocumentFacts): Promise<PublishOutcome> {
    switch (treatment.kind) {
      case 'publish':
        return await this.#publishManifest(end, treatment, document);
      case 'compare':
        return await this.#compareProved(end, treatment.proved, document);
      case 'held':
        return { kind: 'held', partition: end.partition.key, error: treatment.error };
      case 'await':
        return { kind: 'published', partition: end.partition.key, attempt: treatment.attempt, rows: end.facts.rows };
    }
  }

  /** All partitions of the document are quarantined: there is nothing to fetch it for. */
  async #heldDocument(request: DocumentRequest): Promise<PublishOutcome[] | undefined> {
    if (this.#options.reingestReason !== undefined) return undefined;
    const outcomes: PublishOutcome[] = [];
    for (const { key } of request.partitions) {
      const row = await this.#catalog.partition(this.#source.dataset, key);
      if (row?.state !== 'quarantined') return undefined;
      outcomes.push({ kind: 'held', partition: key, error: this.#heldBy(row) });
    }
    return outcomes;
  }

  #heldBy(row: PartitionRow): TidemarkError {
    const { key: dataset } = this.#source.dataset;
    return new TidemarkError('PARTITION_PROOF_FAILED', `${dataset} ${row.partitionKey} is quarantined: ${row.reason}`, {
      details: { dataset, partition: row.partitionKey },
    });
  }

  /** All partitions of the document are proved, and the vendor's published digest is still the one they came from. */
  async #unchangedDocument(request: DocumentRequest): Promise<PublishOutcome[] | undefined> {
    if (this.#options.reingestReason !== undefined) return undefined;
    const outcomes: PublishOutcome[] = [];
    const digests = new Set<string>();
    for (const { key } of request.partitions) {
      const row = await this.#catalog.partition(this.#source.dataset, key);
      if (row?.state !== 'proved' || row.synthetic !== this.#options.synthetic || !row.manifest) return undefined;
      digests.add(row.manifest.document.sha256);
      outcomes.push({ kind: 'unchanged', partition: key, rows: row.manifest.rows });
    }
    if (digests.size !== 1) return undefined;
    const published = await this.#source.publishedSha256(request);
    return published !== undefined && digests.has(published) ? outcomes : undefined;
  }

  async #treat(partition: PartitionWindow, document: DocumentFacts): Promise<Treatment> {
    const { dataset } = this.#source;
    const { synthetic, reingestReason } = this.#options;
    const row = await this.#catalog.partition(dataset, partition.key);
    const proved = row?.state === 'proved' && row.synthetic === synthetic;
    if (proved && reingestReason === undefined) return { kind: 'compare', proved: row };
    if (row?.state === 'quarantined' && reingestReason === undefined) {
      return { kind: 'held', error: this.#heldBy(row) };
    }
    const earlier = await this.#catalog.attempts(dataset, partition.key);
    const latest = earlier[0];
    // A revision that was interrupted goes on; it is the one that was asked for.
    const pending =
      row !== undefined &&
      latest !== undefined &&
      latest.revision > row.revision &&
      (latest.state === 'publishing' || latest.state === 'published') &&
      latest.document.sha256 === document.sha256;
    const newRevision = reingestReason !== undefined && row !== undefined && row.state !== 'publishing' && !pending;
    const revision = newRevision ? Math.max(row.revision, latest?.revision ?? 0) + 1 : (latest?.revision ?? 1);
    if (latest?.state === 'published' && latest.revision === revision && latest.document.sha256 === document.sha256) {
      if (await this.#isStored(partition.key, latest)) return { kind: 'await', attempt: latest.attempt };
    }
    let attempt = (latest?.attempt ?? 0) + 1;
    if (latest?.state === 'publishing' && latest.revision === revision && latest.document.sha256 === document.sha256) {
      if (await this.#isTail(partition.key, latest.attempt)) attempt = latest.attempt;
    }
    // A catalog younger than the log does not know the attempts that never got a manifest; their frames are there.
    while (attempt !== latest?.attempt && (await this.#isTaken(partition.key, attempt))) attempt++;
    await this.#catalog.openAttempt(dataset, partition.key, {
      attempt,
      revision,
      document,
      synthetic,
      publisher: PUBLISHER_NAME,
    });
    if (newRevision) {
      await this.#catalog.record(dataset, partition.key, 'reingest_started', reingestReason, { revision, attempt });
    }
    this.#log.debug({ dataset: dataset.key, partition: partition.key, attempt, revision }, 'attempt opened');
    const name = { dataset: dataset.key, partition: partition.key, attempt };
    return {
      kind: 'publish',
      attempt,
      revision,
      writer: await AttemptWriter.open(this.#connection, name, this.#options.window),
    };
  }

  /** Whether the log still holds the manifest that the catalog knows of: a stream can lose its tail in a crash. */
  async #isStored(partition: string, attempt: AttemptRow): Promise<boolean> {
    if (attempt.manifestSequence === null || attempt.frames === null) return false;
    const { dataset } = this.#source;
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    const stored = await messageAt(manager, dataset.key, attempt.manifestSequence);
    return stored?.subject === subjectOf(dataset.key, partition, attempt.attempt, attempt.frames);
  }

  async #isTaken(partition: string, attempt: number): Promise<boolean> {
    const { dataset } = this.#source;
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    return (await messageOf(manager, dataset.key, subjectOf(dataset.key, partition, attempt, 0))) !== undefined;
  }

  /** Whether an interrupted attempt is still the end of the log: only then may it go on where it stopped. */
  async #isTail(partition: string, attempt: number): Promise<boolean> {
    const { dataset } = this.#source;
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    const info = await manager.streams.info(dataset.key);
    const last = await messageAt(manager, dataset.key, info.state.last_seq);
    const prefix = attemptFilter(dataset.key, partition, attempt).slice(0, -1);
    return last === undefined || last.subject.startsWith(prefix);
  }

  async #encodeRun(
    run: EventRun,
    treatment: Treatment & { kind: 'publish' },
    document: DocumentFacts,
  ): Promise<Buffer> {
    const message = await encodeMessage<FrameHeader>(
      {
        kind: 'frame',
        encoding: 'lines',
        dataset: this.#source.dataset.key,
        partition: run.partition.key,
        revision: treatment.revision,
        attempt: treatment.attempt,
        frame: treatment.writer.frames,
        document_sha256: document.sha256,
        rows: run.rows,
        first_offset: run.first_offset,
        last_offset: run.last_offset,
        first_ms: run.first_ms,
        last_ms: run.last_ms,
      },
      run.raw,
    );
    run.release?.();
    return message;
  }

  async #publishManifest(
    end: PartitionEnd,
    treatment: Treatment & { kind: 'publish' },
    document: DocumentFacts,
  ): Promise<PublishOutcome> {
    const { dataset } = this.#source;
    const { writer, attempt, revision } = treatment;
    // Every frame is acknowledged before the manifest goes out: a manifest vouches for what is already there.
    await writer.flush();
    assert(writer.firstSequence !== undefined, 'an attempt has a first frame');
    const manifest: Manifest = {
      format: 1,
      dataset: dataset.key,
      partition: end.partition.key,
      revision,
      attempt,
      frames: writer.frames,
      first_sequence: writer.firstSequence,
      from_ms: end.partition.fromMs,
      to_ms: end.partition.toMs,
      synthetic: this.#options.synthetic,
      ...end.facts,
      document,
      ingested_at_ms: this.#now(),
    };
    const { frames: frame } = writer;
    const header = { dataset: dataset.key, partition: manifest.partition, revision, attempt, frame };
    await writer.write(
      encodeMessage<ManifestHeader>(
        { kind: 'manifest', ...header, document_sha256: document.sha256 },
        Buffer.from(JSON.stringify(manifest)),
      ),
    );
    const sequence = await writer.flush();
    await this.#catalog.markPublished(dataset, await this.#storedManifest(sequence), sequence);
    return { kind: 'published', partition: manifest.partition, attempt, rows: manifest.rows };
  }

  /** What the log holds, which an interrupted earlier run may have written: its ingest time is the one that counts. */
  async #storedManifest(sequence: number): Promise<Manifest> {
    const { dataset } = this.#source;
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    const place = `${dataset.key} sequence ${sequence}`;
    const stored = await messageAt(manager, dataset.key, sequence);
    assert(stored, `the manifest at ${place} was acknowledged`);
    return parseManifest((await decodeMessage(stored.data, place)).raw, place);
  }

  async #compareProved(end: PartitionEnd, proved: PartitionRow, document: DocumentFacts): Promise<PublishOutcome> {
    assert(proved.manifest, 'a proved partition has a manifest');
    const partition = end.partition.key;
    const differing = differingFacts(proved.manifest, end.facts);
    if (differing.length === 0) return { kind: 'unchanged', partition, rows: end.facts.rows };
    const { dataset } = this.#source;
    const error = new TidemarkError(
      'PARTITION_LATE_ARRIVAL',
      `${dataset.key} ${partition} is proved; ${document.name} now has other content (${differing.join(', ')})`,
      { details: { dataset: dataset.key, partition, document: document.name } },
    );
    await this.#catalog.record(dataset, partition, 'late_arrival_refused', error.message, {
      document,
      found: end.facts as PartitionFacts,
      differing,
    });
    return { kind: 'refused', partition, error };
  }
}

const resumable = (error: TidemarkError) => error.code === 'LOG_FULL' || error.code === 'LOG_UNAVAILABLE';
