/** What becomes of a partition of the document at hand: published, compared with what is proved, or left alone. */

import { hostname } from 'node:os';
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { AttemptRow, PartitionRow } from '../../shared/db/schema.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { decodeMessage } from '../../shared/frame/codec.ts';
import { type DocumentFacts, parseManifest } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/logger.ts';
import { attemptFilter, messageAt, messageOf, subjectOf } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { captureGroup, captureKey, keyFacts } from '../../shared/registry/keys.ts';
import { AttemptWriter } from './attempt-writer.ts';

export interface PublishOptions {
  readonly frameRawBytes: number;
  readonly window: number;
  readonly synthetic: boolean;
  /** Replaces proved partitions as a new revision, for this reason. */
  readonly reingestReason?: string;
  /**
   * Documents are those that were fetched before: they say themselves which capture of a day they are, and what is
   * proved is replaced only where it differs.
   */
  readonly fromKept?: boolean;
  /** Overrides the clock in tests. */
  readonly now?: () => number;
}

export interface Publishing {
  readonly kind: 'publish';
  /** What the attempt is of: of a later capture of a day another key than the document's items have. */
  readonly key: string;
  readonly writer: AttemptWriter;
  readonly attempt: number;
  readonly revision: number;
}

export type PublishPlan =
  | Publishing
  /**
   * Held against these. Other content is a late arrival, unless it becomes the partition `next`, or has to wait for what
   * is `held`.
   */
  | {
      readonly kind: 'compare';
      readonly proved: readonly PartitionRow[];
      readonly next?: string;
      readonly held?: TidemarkError;
    }
  | { readonly kind: 'held'; readonly error: TidemarkError }
  /** Its manifest is in the log already; the projector has not come to it. */
  | { readonly kind: 'await'; readonly key: string; readonly attempt: number };

/** Kinds whose documents hold many partitions. */
const AHEAD: ReadonlySet<string> = new Set(['vintage', 'height']);

const nameOf = (dataset: DatasetDefinition, key: string) => `${dataset.key} ${key}`;

const PUBLISHER_NAME = `${hostname()}:${process.pid}`;

export class AttemptPlanner {
  readonly #connection: NatsConnection;
  readonly #catalog: Catalog;
  readonly #options: PublishOptions;
  readonly #log: Logger;
  /** Attempts that were opened before their turn. */
  readonly #opened = new Map<string, { readonly dataset: DatasetDefinition; readonly key: string }>();

  constructor(connection: NatsConnection, catalog: Catalog, options: PublishOptions, log: Logger) {
    this.#connection = connection;
    this.#catalog = catalog;
    this.#options = options;
    this.#log = log;
  }

  /**
   * Opens the first attempts of partitions that come next and of which nothing is known, in one statement; what is known of
   * any of the others is looked at when its turn comes.
   */
  async openAhead(dataset: DatasetDefinition, keys: readonly string[], document: DocumentFacts): Promise<void> {
    if (keys.length < 2 || !AHEAD.has(dataset.partition.kind)) return;
    const known = new Set((await this.#catalog.partitionsOf(dataset, keys)).map(({ partitionKey }) => partitionKey));
    for (const key of await this.#catalog.attemptedKeys(dataset, keys)) known.add(key);
    for (const key of await this.#overlapped(dataset, keys)) known.add(key);
    const unknown = keys.filter((key) => !known.has(key));
    const taken = await Promise.all(unknown.map((key) => this.#isTaken(dataset, key, 1)));
    const fresh = unknown.filter((_, index) => !taken[index]);
    if (fresh.length === 0) return;
    const { synthetic } = this.#options;
    const opening = { attempt: 1, revision: 1, document, synthetic, publisher: PUBLISHER_NAME };
    await this.#catalog.openAttempts(dataset, fresh, opening);
    for (const key of fresh) this.#opened.set(nameOf(dataset, key), { dataset, key });
  }

  /** Gives up what was opened ahead and did not come. */
  async abandonAhead(reason: string): Promise<void> {
    const left = [...this.#opened.values()];
    this.#opened.clear();
    for (const { dataset, key } of left) await this.#catalog.abandonAttempt(dataset, key, 1, reason);
  }

  /** Those of the keys whose heights other partitions hold some of. */
  async #overlapped(dataset: DatasetDefinition, keys: readonly string[]): Promise<string[]> {
    if (dataset.partition.kind !== 'height') return [];
    const spanOf = (key: string) => keyFacts(dataset, key).span ?? { from: 0, to: 0 };
    const spans = keys.map(spanOf);
    const whole = {
      from: Math.min(...spans.map(({ from }) => from)),
      to: Math.max(...spans.map(({ to }) => to)),
    };
    const others = await this.#catalog.overlapping(dataset, keyFacts(dataset, keys[0]).sourceId, whole);
    const held = others.map(({ partitionKey }) => spanOf(partitionKey));
    return keys.filter((_, index) => held.some(({ from, to }) => from < spans[index].to && to > spans[index].from));
  }

  async decide(dataset: DatasetDefinition, key: string, document: DocumentFacts): Promise<PublishPlan> {
    if (this.#opened.delete(nameOf(dataset, key)))
      return await this.#publishing(dataset, key, { attempt: 1, revision: 1 });
    if (this.#options.fromKept) return await this.#decideKept(dataset, key, document);
    if (dataset.partition.kind === 'capture') return await this.#decideCapture(dataset, key, document);
    const row = await this.#catalog.partition(dataset, key);
    if (this.#isProved(row) && this.#options.reingestReason === undefined) return { kind: 'compare', proved: [row] };
    // A sample that was quarantined goes with the rest of it, and holds nothing up.
    const isHeld = row?.state === 'quarantined' && row.synthetic === this.#options.synthetic;
    if (isHeld && this.#options.reingestReason === undefined) {
      return { kind: 'held', error: quarantinedError(dataset, row) };
    }
    return await this.open(dataset, key, row, document);
  }

  /** An issuer may state a day again with other facts: that is another capture, not a late arrival. */
  async #decideCapture(dataset: DatasetDefinition, key: string, document: DocumentFacts): Promise<PublishPlan> {
    const family = await this.#catalog.family(dataset, captureGroup(key));
    const latest = family.at(-1);
    if (latest === undefined) return await this.open(dataset, key, undefined, document);
    const proved = family.filter((row) => this.#isProved(row));
    if (this.#options.reingestReason !== undefined) {
      // The latest is replaced, but never by what an earlier one says already.
      const earlier = proved.filter((row) => row !== latest);
      if (earlier.length > 0) return { kind: 'compare', proved: earlier, next: latest.partitionKey };
      return await this.open(dataset, latest.partitionKey, latest, document);
    }
    if (latest.state === 'quarantined') {
      // Nothing follows it; what is proved may still be met again.
      const error = quarantinedError(dataset, latest);
      return proved.length > 0 ? { kind: 'compare', proved, held: error } : { kind: 'held', error };
    }
    if (proved.length === 0) return await this.open(dataset, latest.partitionKey, latest, document);
    const [sourceId, day] = captureGroup(key).split(':');
    return {
      kind: 'compare',
      proved,
      next: latest.state === 'proved' ? captureKey(sourceId, day, family.length + 1) : latest.partitionKey,
    };
  }

  /** What was read before is read again: equal, or told apart by a reason to replace it. */
  async #decideKept(dataset: DatasetDefinition, key: string, document: DocumentFacts): Promise<PublishPlan> {
    const row = await this.#catalog.partition(dataset, key);
    const mayReplace = this.#options.reingestReason !== undefined;
    const isHeld = row?.state === 'quarantined' && row.synthetic === this.#options.synthetic;
    if (isHeld && !mayReplace) return { kind: 'held', error: quarantinedError(dataset, row) };
    const isCapture = dataset.partition.kind === 'capture';
    const family = isCapture ? await this.#catalog.family(dataset, captureGroup(key)) : row ? [row] : [];
    // Also one that says what another capture of the day says: the day has these facts already.
    const proved = family.filter((one) => this.#isProved(one));
    if (proved.length === 0) return await this.open(dataset, key, row, document);
    return { kind: 'compare', proved, next: this.#isProved(row) && !mayReplace ? undefined : key };
  }

  #isProved(row: PartitionRow | undefined): row is PartitionRow {
    return row?.state === 'proved' && row.synthetic === this.#options.synthetic;
  }

  /** Opens an attempt, goes on with an interrupted one, or finds that one waits for its proof. */
  async open(
    dataset: DatasetDefinition,
    key: string,
    row: PartitionRow | undefined,
    document: DocumentFacts,
  ): Promise<PublishPlan> {
    const { synthetic, reingestReason } = this.#options;
    const covered = await this.#covered(dataset, key);
    if (covered.error) return { kind: 'held', error: covered.error };
    const [latest] = await this.#catalog.attempts(dataset, key);
    const isSame = (state: AttemptRow['state']) =>
      latest?.state === state && latest.document.sha256 === document.sha256;
    // A revision that was interrupted goes on; it is the one that was asked for.
    const pending =
      row !== undefined &&
      latest !== undefined &&
      latest.revision > row.revision &&
      (isSame('publishing') || isSame('published'));
    const newRevision = reingestReason !== undefined && row !== undefined && row.state !== 'publishing' && !pending;
    const revision = Math.max(
      newRevision ? Math.max(row.revision, latest?.revision ?? 0) + 1 : (latest?.revision ?? 1),
      covered.revision + 1,
    );
    if (isSame('published') && latest.revision === revision && (await this.#isStored(dataset, key, latest))) {
      return { kind: 'await', key, attempt: latest.attempt };
    }
    let attempt = (latest?.attempt ?? 0) + 1;
    if (isSame('publishing') && latest.revision === revision) {
      // Killed between the manifest and its copy in the catalog.
      if (await this.#isPublished(dataset, key, latest.attempt)) return { kind: 'await', key, attempt: latest.attempt };
      if (await this.#mayGoOn(dataset, key, latest.attempt)) attempt = latest.attempt;
    }
    // A catalog younger than the log does not know the attempts that never got a manifest; their frames are there.
    while (attempt !== latest?.attempt && (await this.#isTaken(dataset, key, attempt))) attempt++;
    const opening = { attempt, revision, document, synthetic, publisher: PUBLISHER_NAME };
    await this.#catalog.openAttempts(dataset, [key], opening);
    if (newRevision) {
      await this.#catalog.record(dataset, key, 'reingest_started', reingestReason, { revision, attempt });
    }
    return await this.#publishing(dataset, key, { attempt, revision });
  }

  async #publishing(
    dataset: DatasetDefinition,
    key: string,
    { attempt, revision }: Pick<Publishing, 'attempt' | 'revision'>,
  ): Promise<Publishing> {
    this.#log.debug({ dataset: dataset.key, partition: key, attempt, revision }, 'attempt opened');
    const name = { dataset: dataset.key, partition: key, attempt };
    const writer = await AttemptWriter.open(this.#connection, name, this.#options.window);
    return { kind: 'publish', key, attempt, revision, writer };
  }

  /** Whether the manifest of an attempt that is called open is in the log; the catalog is told. */
  async #isPublished(dataset: DatasetDefinition, key: string, attempt: number): Promise<boolean> {
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    const sequence = await messageOf(manager, dataset.key, attemptFilter(dataset.key, key, attempt));
    const last = sequence === undefined ? undefined : await messageAt(manager, dataset.key, sequence);
    if (sequence === undefined || !last) return false;
    const place = `${dataset.key} sequence ${sequence}`;
    const { header, raw } = await decodeMessage(last.data, place);
    if (header.kind !== 'manifest') return false;
    await this.#catalog.markPublished(dataset, [{ manifest: parseManifest(raw, place), sequence }]);
    return true;
  }

  /** Whether an interrupted attempt can be written on: nothing of it is in the log, or it is the end of it. */
  async #mayGoOn(dataset: DatasetDefinition, key: string, attempt: number): Promise<boolean> {
    return (await this.#isTail(dataset, key, attempt)) || !(await this.#isTaken(dataset, key, attempt));
  }

  /**
   * Other partitions that hold heights of this one. A height is proved once: only quarantined ones give way, to an
   * operator, by a revision that is higher than theirs.
   */
  async #covered(
    dataset: DatasetDefinition,
    key: string,
  ): Promise<{ readonly revision: number; readonly error?: TidemarkError }> {
    const { sourceId, span } = keyFacts(dataset, key);
    if (dataset.partition.kind !== 'height' || !span) return { revision: 0 };
    const others = (await this.#catalog.overlapping(dataset, sourceId, span)).filter(
      (row) => row.partitionKey !== key && row.synthetic === this.#options.synthetic,
    );
    const mayGiveWay = (row: PartitionRow) =>
      row.state === 'publishing' || (row.state === 'quarantined' && this.#options.reingestReason !== undefined);
    const other = others.find((row) => !mayGiveWay(row));
    if (other) {
      const error = new TidemarkError(
        'PARTITION_OVERLAPS',
        `${dataset.key} ${key} holds heights of ${other.partitionKey}, which is ${other.state}`,
        { details: { dataset: dataset.key, partition: key, other: other.partitionKey } },
      );
      return { revision: 0, error };
    }
    // What another publisher left unfinished: nobody goes on with it under these heights.
    for (const row of others.filter(({ state }) => state === 'publishing')) {
      await this.#catalog.abandonAttempt(dataset, row.partitionKey, row.attempt, `${key} covers its heights`);
    }
    const quarantined = others.filter(({ state }) => state === 'quarantined');
    return { revision: Math.max(0, ...quarantined.map((row) => row.revision)) };
  }

  /** Whether the log still holds the manifest that the catalog knows of: a stream can lose its tail in a crash. */
  async #isStored(dataset: DatasetDefinition, key: string, attempt: AttemptRow): Promise<boolean> {
    if (attempt.manifestSequence === null || attempt.frames === null) return false;
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    const stored = await messageAt(manager, dataset.key, attempt.manifestSequence);
    return stored?.subject === subjectOf(dataset.key, key, attempt.attempt, attempt.frames);
  }

  async #isTaken(dataset: DatasetDefinition, key: string, attempt: number): Promise<boolean> {
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    return (await messageOf(manager, dataset.key, subjectOf(dataset.key, key, attempt, 0))) !== undefined;
  }

  /** Whether an interrupted attempt is still the end of the log: only then may it go on where it stopped. */
  async #isTail(dataset: DatasetDefinition, key: string, attempt: number): Promise<boolean> {
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    const info = await manager.streams.info(dataset.key);
    const last = await messageAt(manager, dataset.key, info.state.last_seq);
    const prefix = attemptFilter(dataset.key, key, attempt).slice(0, -1);
    return last === undefined || last.subject.startsWith(prefix);
  }
}

/** It stays so until an operator ingests it again. */
export function quarantinedError(dataset: DatasetDefinition, row: PartitionRow): TidemarkError {
  return new TidemarkError(
    'PARTITION_PROOF_FAILED',
    `${dataset.key} ${row.partitionKey} is quarantined: ${row.reason}`,
    { details: { dataset: dataset.key, partition: row.partitionKey } },
  );
}
