/**
 * Gathers the facts of a document, its partitions and their attempts from the catalog and the log, has publish-plan.ts decide,
 * and carries the plans out: opens attempts in the catalog, and abandons them.
 */

import { hostname } from 'node:os';
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { PinnedValues } from '../../shared/db/pinned-settings.ts';
import type { AttemptRow } from '../../shared/db/schema.ts';
import { codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import { decodeMessage } from '../../shared/frame/codec.ts';
import { type DocumentFacts, type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/logger.ts';
import { attemptFilter, messageAt, messageOf, subjectOf } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { captureGroup, keyFacts } from '../../shared/registry/keys.ts';
import type { DocumentRequest } from '../sources/feed-types.ts';
import { AttemptWriter } from './attempt-writer.ts';
import {
  type AttemptFacts,
  type AttemptPlan,
  type DocumentPlan,
  type InLog,
  type Intent,
  type KnownPartition,
  type NumberedAttempt,
  type PartitionPlan,
  type PlannedPartition,
  planAttempt,
  planDocument,
  planPartition,
} from './publish-plan.ts';

export interface PublishOptions {
  readonly frameRawBytes: number;
  readonly window: number;
  readonly synthetic: boolean;
  /** What the settings select of the source; absent for a sample. */
  readonly pinned?: PinnedValues;
  /** Replaces proved partitions with a new revision, for this reason. */
  readonly reingestReason?: string;
  /**
   * The documents were fetched before. Their names say which capture of a day each of them is, and they replace what is
   * proved only where they differ from it.
   */
  readonly fromArchive?: boolean;
  /** Overrides the clock in tests. */
  readonly now?: () => number;
}

/** What the publisher does with a partition of the document. */
type OpenedAttempt =
  | { readonly kind: 'write'; readonly writer: AttemptWriter }
  /** The log holds the manifest of this attempt already. */
  | { readonly kind: 'await'; readonly key: string; readonly attempt: number }
  | { readonly kind: 'hold' | 'refuse'; readonly error: TidemarkError };

export type OpenedPartition = OpenedAttempt | Extract<PartitionPlan, { kind: 'compare' }>;

/** A document whose content was compared with that of a proved partition. */
export interface ComparedDocument {
  readonly document: DocumentFacts;
  /** Why it was refused; undefined for equal content. */
  readonly refusal?: string;
}

/** Most of them that are kept for a partition, should a vendor pack the same rows anew for each request. */
const MAX_COMPARED = 20;

interface OpenAttempt {
  readonly dataset: DatasetDefinition;
  readonly key: string;
  readonly attempt: number;
}

/** What one command has done for a document. It outlives a reading, after which the document may be read again. */
export interface DocumentHistory {
  /** Attempts that the command opened and that have no manifest yet, by partition. */
  readonly open: Map<string, OpenAttempt>;
  /** Revisions that the command started, by partition. */
  readonly started: Map<string, number>;
}

/** The newest message that the log holds of an attempt. */
type NewestMessage =
  | { readonly kind: 'frame'; readonly sequence: number }
  | { readonly kind: 'manifest'; readonly sequence: number; readonly manifest: Manifest }
  | { readonly kind: 'damaged' };

/** Kinds of partitions of which one document holds many. */
const OPENED_TOGETHER: ReadonlySet<string> = new Set(['vintage', 'height']);

export const nameOf = (dataset: DatasetDefinition, key: string) => `${dataset.key} ${key}`;

const attemptName = (dataset: DatasetDefinition, { partitionKey, attempt }: KnownPartition) =>
  `${nameOf(dataset, partitionKey)} ${attempt}`;

const PUBLISHER_NAME = `${hostname()}:${process.pid}`;

export class Attempts {
  readonly #connection: NatsConnection;
  readonly #catalog: Catalog;
  readonly #options: PublishOptions;
  readonly #intent: Intent;
  readonly #log: Logger;
  /** Documents beside the proved one that need not be fetched again, by partition and attempt. */
  readonly #compared = new Map<string, ComparedDocument[]>();
  /** Partitions whose first attempt this reading of the document opened by lookahead, and that have not come yet. */
  readonly #lookahead = new Set<string>();

  constructor(connection: NatsConnection, catalog: Catalog, options: PublishOptions, log: Logger) {
    this.#connection = connection;
    this.#catalog = catalog;
    this.#options = options;
    this.#log = log;
    const { synthetic, reingestReason, fromArchive = false } = options;
    this.#intent = { synthetic, reingest: reingestReason !== undefined, fromArchive };
  }

  /** Decides about a document before it is fetched. */
  async planDocument(
    { partitions }: DocumentRequest,
    first: DatasetDefinition,
  ): Promise<{ readonly plan: DocumentPlan; readonly datasets: readonly DatasetDefinition[] }> {
    const datasets = partitions.map(({ dataset = first }) => dataset);
    if (this.#intent.reingest) return { plan: { kind: 'fetch' }, datasets };
    const held: PlannedPartition[] = [];
    for (const [index, { key }] of partitions.entries()) {
      held.push(await this.#plannedPartition(datasets[index], key));
      // One partition that is neither proved nor quarantined suffices to fetch the document.
      if (planDocument(held, this.#intent).kind === 'fetch') break;
    }
    return { plan: planDocument(held, this.#intent), datasets };
  }

  /** The proved document, then those that were compared with it since, which only a document of one partition has been as a whole. */
  async knownDocuments(
    { document, proved }: Extract<DocumentPlan, { kind: 'ask' }>,
    dataset: DatasetDefinition,
  ): Promise<ComparedDocument[]> {
    if (proved.length > 1) return [{ document }];
    const refusals = await this.#catalog.refusals(dataset, proved[0].partitionKey);
    const refused = refusals.map(({ document, reason }) => ({ document, refusal: reason }));
    const { partitionKey, attempt } = proved[0];
    const same =
      dataset.partition.kind === 'file_day' && (await this.#catalog.sameDocument(dataset, partitionKey, attempt));
    return [
      { document },
      ...(same ? [{ document: same }] : []),
      ...refused,
      ...(this.#compared.get(attemptName(dataset, proved[0])) ?? []),
    ];
  }

  /** Notes a document, so that it need not be fetched again while the vendor publishes it. */
  remember(dataset: DatasetDefinition, proved: readonly KnownPartition[], compared: ComparedDocument): void {
    if (dataset.partition.kind !== 'file_day') return;
    const name = attemptName(dataset, proved[0]);
    const others = (this.#compared.get(name) ?? []).filter(
      ({ document: { sha256 } }) => sha256 !== compared.document.sha256,
    );
    this.#compared.set(name, [...others, compared].slice(-MAX_COMPARED));
  }

  /**
   * Begins to read a document. What an earlier reading opened by lookahead is decided about again: the document may have
   * other content by now, and another publisher may have held the lease in between.
   */
  beginReading(): void {
    this.#lookahead.clear();
  }

  /**
   * Opens the first attempts at partitions that come next and that neither the catalog nor the log knows, in one statement.
   * Every other partition is decided about when it comes.
   */
  async openLookahead(
    dataset: DatasetDefinition,
    keys: readonly string[],
    document: DocumentFacts,
    history: DocumentHistory,
  ): Promise<void> {
    if (keys.length < 2 || !OPENED_TOGETHER.has(dataset.partition.kind)) return;
    const known = new Set((await this.#catalog.partitionsOf(dataset, keys)).map(({ partitionKey }) => partitionKey));
    for (const key of await this.#catalog.attemptedKeys(dataset, keys)) known.add(key);
    for (const key of await this.#overlapped(dataset, keys)) known.add(key);
    const unknown = keys.filter((key) => !known.has(key));
    const taken = await Promise.all(unknown.map((key) => this.#isTaken(dataset, key, 1)));
    const fresh = unknown.filter((_, index) => !taken[index]);
    if (fresh.length === 0) return;
    const { synthetic } = this.#intent;
    const opening = { attempt: 1, revision: 1, document, synthetic, publisher: PUBLISHER_NAME };
    // The statement may take effect although its answer is lost.
    for (const key of fresh) history.open.set(nameOf(dataset, key), { dataset, key, attempt: 1 });
    await this.#catalog.openAttempts(dataset, fresh, opening);
    for (const key of fresh) this.#lookahead.add(nameOf(dataset, key));
  }

  /** Abandons every open attempt of the document. If the catalog fails, the others can be abandoned later. */
  async abandonOpen({ open }: DocumentHistory, reason: string): Promise<void> {
    for (const [name, { dataset, key, attempt }] of open) {
      await this.#catalog.abandonAttempt(dataset, key, attempt, reason);
      open.delete(name);
    }
  }

  /** The keys among `keys` whose heights overlap those of other partitions. */
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

  /** Decides about a partition that the document holds, and opens its attempt where it is to be published. */
  async open(
    dataset: DatasetDefinition,
    key: string,
    document: DocumentFacts,
    history: DocumentHistory,
  ): Promise<OpenedPartition> {
    if (this.#lookahead.delete(nameOf(dataset, key))) {
      history.started.set(nameOf(dataset, key), 1);
      return await this.#write(dataset, key, document, { attempt: 1, revision: 1 });
    }
    const planned = await this.#plannedPartition(dataset, key);
    const plan = planPartition({ ...this.#intent, ...planned });
    if (plan.kind === 'compare') return plan;
    if (plan.kind === 'hold') return { kind: 'hold', error: quarantinedError(dataset, plan.quarantined) };
    const row = planned.known.find(({ partitionKey }) => partitionKey === plan.key);
    return await this.#openAttempt(dataset, { key: plan.key, row }, document, history);
  }

  async #plannedPartition(dataset: DatasetDefinition, key: string): Promise<PlannedPartition> {
    const isCapture = dataset.partition.kind === 'capture';
    const known = isCapture
      ? await this.#catalog.captures(dataset, [captureGroup(key)])
      : await this.#catalog.partitionsOf(dataset, [key]);
    return { key, isCapture, known };
  }

  /** Opens an attempt at the partition that a compared document turned out to be. */
  async openDiffering(
    dataset: DatasetDefinition,
    key: string,
    document: DocumentFacts,
    history: DocumentHistory,
  ): Promise<OpenedAttempt> {
    const row = await this.#catalog.partition(dataset, key);
    return await this.#openAttempt(dataset, { key, row }, document, history);
  }

  async #openAttempt(
    dataset: DatasetDefinition,
    { key, row }: Pick<AttemptFacts, 'key' | 'row'>,
    document: DocumentFacts,
    history: DocumentHistory,
  ): Promise<OpenedAttempt> {
    const [latest] = await this.#catalog.attempts(dataset, key);
    // An attempt that is proved belongs to a later partition than the one that was read before it.
    const isStale = latest?.state === 'proved' && row?.state !== 'proved';
    const plan = planAttempt({
      ...this.#intent,
      key,
      row: isStale ? await this.#catalog.partition(dataset, key) : row,
      document: document.sha256,
      latest: latest && {
        attempt: latest.attempt,
        revision: latest.revision,
        state: latest.state,
        document: latest.document.sha256,
        inLog: await this.#inLog(dataset, key, latest),
      },
      free: await this.#freeAttempt(dataset, key, (latest?.attempt ?? 0) + 1),
      overlapping: await this.#overlapping(dataset, key),
      started: history.started.get(nameOf(dataset, key)),
    });
    return await this.#carryOut(plan, dataset, key, document, history);
  }

  async #carryOut(
    plan: AttemptPlan,
    dataset: DatasetDefinition,
    key: string,
    document: DocumentFacts,
    history: DocumentHistory,
  ): Promise<OpenedAttempt> {
    if (plan.kind === 'refuse') return { kind: 'refuse', error: overlapError(dataset, key, plan.other) };
    const { kind, attempt, revision, displaced } = plan;
    const name = nameOf(dataset, key);
    history.started.set(name, revision);
    for (const { partitionKey, attempt: unfinished } of displaced) {
      await this.#catalog.abandonAttempt(dataset, partitionKey, unfinished, `${key} covers its heights`);
    }
    if (kind === 'await') {
      await this.#copyManifest(dataset, key, attempt);
      history.open.delete(name);
      return { kind, key, attempt };
    }
    const { synthetic } = this.#intent;
    const reingestReason = kind === 'revise' ? this.#options.reingestReason : undefined;
    const opening = { attempt, revision, document, synthetic, publisher: PUBLISHER_NAME, reingestReason };
    history.open.set(name, { dataset, key, attempt });
    await this.#catalog.openAttempts(dataset, [key], opening);
    return await this.#write(dataset, key, document, { attempt, revision });
  }

  async #write(
    dataset: DatasetDefinition,
    key: string,
    document: DocumentFacts,
    { attempt, revision }: NumberedAttempt,
  ): Promise<OpenedAttempt> {
    this.#log.debug({ dataset: dataset.key, partition: key, attempt, revision }, 'attempt opened');
    const { synthetic } = this.#intent;
    const { pinned } = this.#options;
    const description = { dataset, key, attempt, revision, document, synthetic, pinned };
    return { kind: 'write', writer: await AttemptWriter.open(this.#connection, description, this.#options.window) };
  }

  /** Returns the known partitions that share heights with this one. */
  async #overlapping(dataset: DatasetDefinition, key: string): Promise<readonly KnownPartition[]> {
    const { sourceId, span } = keyFacts(dataset, key);
    if (dataset.partition.kind !== 'height' || !span) return [];
    return await this.#catalog.overlapping(dataset, sourceId, span);
  }

  /** A catalog younger than the log does not know the attempts that got no manifest, but the log holds their frames. */
  async #freeAttempt(dataset: DatasetDefinition, key: string, from: number): Promise<number> {
    let attempt = from;
    while (await this.#isTaken(dataset, key, attempt)) attempt++;
    return attempt;
  }

  async #isTaken(dataset: DatasetDefinition, key: string, attempt: number): Promise<boolean> {
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    return (await messageOf(manager, dataset.key, subjectOf(dataset.key, key, attempt, 0))) !== undefined;
  }

  async #inLog(dataset: DatasetDefinition, key: string, latest: AttemptRow): Promise<InLog> {
    if (latest.state !== 'publishing' && latest.state !== 'published') return 'nothing';
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    if (latest.state === 'published') {
      return (await whyNeverProved(this.#catalog, manager, dataset, latest)) ? 'nothing' : 'manifest';
    }
    const newest = await this.#newest(dataset, key, latest.attempt);
    if (newest === undefined) return 'nothing';
    if (newest.kind === 'manifest') return 'manifest';
    // A damaged message stays in the log, so its attempt can neither be resumed nor proved.
    if (newest.kind === 'damaged') return 'frames';
    const { state } = await manager.streams.info(dataset.key);
    return state.last_seq === newest.sequence ? 'last_frames' : 'frames';
  }

  async #newest(dataset: DatasetDefinition, key: string, attempt: number): Promise<NewestMessage | undefined> {
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    const sequence = await messageOf(manager, dataset.key, attemptFilter(dataset.key, key, attempt));
    const message = sequence === undefined ? undefined : await messageAt(manager, dataset.key, sequence);
    if (sequence === undefined || !message) return undefined;
    const position = `${dataset.key} sequence ${sequence}`;
    try {
      const { header, raw } = await decodeMessage(message.data, position);
      if (header.kind !== 'manifest') return { kind: 'frame', sequence };
      return { kind: 'manifest', manifest: parseManifest(raw, position), sequence };
    } catch (error) {
      if (codeOf(error) !== 'LOG_DAMAGED') throw error;
      this.#log.warn({ dataset: dataset.key, partition: key, attempt, fault: explain(error) }, 'a message is damaged');
      return { kind: 'damaged' };
    }
  }

  /** Copies the manifest into the catalog, where a kill came between the two. */
  async #copyManifest(dataset: DatasetDefinition, key: string, attempt: number): Promise<void> {
    const row = await this.#catalog.attempt(dataset, key, attempt);
    if (row?.state !== 'publishing') return;
    const newest = await this.#newest(dataset, key, attempt);
    if (newest?.kind !== 'manifest') return;
    await this.#catalog.markPublished(dataset, [{ manifest: newest.manifest, sequence: newest.sequence }]);
  }
}

/**
 * Why no projector will end a published attempt; undefined where one may or did. A stream can lose its end in a crash, and a
 * checkpoint that was set behind the manifest leaves the attempt open for ever.
 */
export async function whyNeverProved(
  catalog: Catalog,
  manager: JetStreamManager,
  dataset: DatasetDefinition,
  { partitionKey, attempt, frames, manifestSequence }: AttemptRow,
): Promise<string | undefined> {
  // Read in this order: the projector ends an attempt in the transaction that moves the checkpoint past it.
  const checkpoint = await catalog.checkpoint(dataset);
  const row = await catalog.attempt(dataset, partitionKey, attempt);
  if (row?.state !== 'published') return undefined;
  const manifest = `the manifest of ${dataset.key} ${partitionKey} attempt ${attempt}`;
  const stored = await messageAt(manager, dataset.key, manifestSequence ?? 0);
  const subject = subjectOf(dataset.key, partitionKey, attempt, frames ?? 0);
  if (manifestSequence === null || stored?.subject !== subject) return `The log lost ${manifest}`;
  const hasPassed = checkpoint !== undefined && checkpoint.streamSequence >= manifestSequence;
  return hasPassed ? `The checkpoint is past ${manifest}, which nobody projected` : undefined;
}

/** A quarantined partition stays so until an operator ingests it again. */
export function quarantinedError(dataset: DatasetDefinition, row: KnownPartition): TidemarkError {
  return new TidemarkError(
    'PARTITION_PROOF_FAILED',
    `${dataset.key} ${row.partitionKey} is quarantined: ${row.reason}`,
    { details: { dataset: dataset.key, partition: row.partitionKey } },
  );
}

function overlapError(dataset: DatasetDefinition, key: string, other: KnownPartition): TidemarkError {
  return new TidemarkError(
    'USAGE',
    `${dataset.key} ${key} holds heights of ${other.partitionKey}, which is ${other.state}`,
    {
      details: { dataset: dataset.key, partition: key, other: other.partitionKey },
      remedy:
        'Request the heights of the partition that the message names; `./tidemark reingest` replaces a quarantined one.',
    },
  );
}
