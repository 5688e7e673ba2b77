/**
 * The load session of a projector: the open transaction with the partitions that are loaded in it, and the checkpoint
 * that moves when it commits. A partition ends as proved or quarantined, or it is rolled back and read from the log
 * again.
 */

import { createHash } from 'node:crypto';
import type { JsMsg } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { ClientBase } from 'pg';
import { Catalog, type PartitionStatus } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import type { CoverageRow } from '../../shared/db/schema.ts';
import { assert } from '../../shared/errors.ts';
import type { ManifestHeader } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/logger.ts';
import { describeDiscrepancies, type PartitionRef, type Recount } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Projection } from '../rows/binary-copy.ts';
import { Batch, type Fault } from './batch.ts';
import { ensureAlignedChunks } from './chunks.ts';
import { type Position, writeProved, writeQuarantined } from './commit.ts';
import { DirtyBuckets } from './dirty-buckets.ts';
import { dataFault, manifestDiscrepancies, outsidePartition } from './faults.ts';
import { requireLogged, verifyCheckpoint } from './log-reader.ts';
import { PartitionLoad } from './partition-load.ts';
import { deleteReplacedRows, deleteSampleRows } from './retract.ts';
import type { AttemptId } from './state.ts';

/** Limits of a shared transaction: partitions, rows, bytes of events, and how long it stays open. */
const MAX_PARTITIONS = 512;
const MAX_ROWS = 50_000;
const MAX_BYTES = 32 * 1024 * 1024;
export const MAX_OPEN_MS = 1000;

/**
 * The transaction that partitions are loaded in. A file day has one of its own. Small partitions share one, which is
 * committed when it is large or old enough, or when the log holds nothing more: one recount then covers all of them.
 */
class LoadTransaction {
  readonly #client: ClientBase;
  /** Whether several partitions share one transaction. */
  readonly shares: boolean;
  #open = false;
  #openedAt = 0;
  #partitions = 0;
  #rows = 0;
  #bytes = 0;

  constructor(client: ClientBase, shares: boolean) {
    this.#client = client;
    this.shares = shares;
  }

  /** Partitions that are loaded and wait for the commit. */
  get pending(): number {
    return this.#partitions;
  }

  /** Rows of those partitions. */
  get rows(): number {
    return this.#rows;
  }

  /** Whether it is large or old enough to be committed. */
  get isDue(): boolean {
    return (
      !this.shares ||
      this.#partitions >= MAX_PARTITIONS ||
      this.#rows >= MAX_ROWS ||
      this.#bytes >= MAX_BYTES ||
      performance.now() - this.#openedAt > MAX_OPEN_MS
    );
  }

  /** Begins the transaction unless it is open. @returns whether it began it. */
  async enter(): Promise<boolean> {
    if (this.#open) return false;
    await this.#client.query('begin');
    this.#open = true;
    this.#openedAt = performance.now();
    return true;
  }

  /** Counts a loaded partition as part of the transaction. */
  keep(rows: number, bytes: number): void {
    this.#partitions++;
    this.#rows += rows;
    this.#bytes += bytes;
  }

  /** Rolls all of its loads back. */
  async undo(): Promise<void> {
    if (!this.#open) return;
    this.#ended();
    await this.#client.query('rollback');
  }

  async commit(): Promise<void> {
    if (!this.#open) return;
    await this.#client.query('commit');
    this.#ended();
  }

  #ended(): void {
    this.#open = false;
    this.#partitions = 0;
    this.#rows = 0;
    this.#bytes = 0;
  }
}

export interface LoadSessionOptions {
  readonly dataset: DatasetDefinition;
  readonly connection: NatsConnection;
  /** The connection of the loads: a transaction is open on it most of the time. */
  readonly client: Client;
  /** For short statements outside that transaction. */
  readonly side: Client;
  readonly projection: Projection;
  readonly log: Logger;
}

/** The tables are analyzed after this many small partitions, and again whenever their number has grown by half. */
const ANALYZED_PARTITIONS = 64;

interface OpenLoad {
  /** Of its instrument. */
  readonly dataset: DatasetDefinition;
  readonly name: AttemptId;
  readonly load: PartitionLoad;
  /** The sequence of its first message. */
  readonly first: number;
  readonly openedAt: number;
}

/** `rolled_back`: nothing uncommitted is left, and the log has to be read again from the checkpoint. */
export type SessionOutcome = 'done' | 'rolled_back';

/** An attempt whose first message has arrived. */
export interface IncomingAttempt {
  /** Of its instrument. */
  readonly dataset: DatasetDefinition;
  readonly name: AttemptId;
  readonly revision: number;
  readonly synthetic: boolean;
  /** The sequence of its first message. */
  readonly first: number;
}

export class LoadSession {
  readonly #needs: LoadSessionOptions;
  /** Reads on the side connection, so it sees only what is committed. */
  readonly #catalog: Catalog;
  readonly #transaction: LoadTransaction;
  #streamCreated = new Date(0);
  /** By the number of the dataset, where it has no series key. */
  readonly #seriesIds = new Map<number, number>();
  #checkpoint = 0;
  #load: OpenLoad | undefined;
  /** The partitions of the open transaction, where they share one. */
  #batch: Batch | undefined;
  /** The number of partitions that were proved in shared transactions. */
  #proved = 0;
  /** The tables are analyzed when that number reaches this one. */
  #analyzeAt = ANALYZED_PARTITIONS;
  /** The manifest of the last partition that waits for the commit. */
  #uncommitted: JsMsg | undefined;
  /** Partitions whose first message lies in this range, bounds included, get a transaction of their own. */
  #alone = { from: 0, to: 0 };
  /** Numbers of the aligned chunks that are known to exist. */
  readonly #alignedChunks = new Set<number>();

  constructor(needs: LoadSessionOptions) {
    this.#needs = needs;
    this.#catalog = new Catalog(needs.side);
    this.#transaction = new LoadTransaction(needs.client, needs.dataset.native.scope.kind === 'column');
  }

  /** @throws TidemarkError LOG_REWOUND when the log is not the one the checkpoint was taken on. */
  async prepare(): Promise<void> {
    const { dataset, connection, client, projection } = this.#needs;
    const at = await verifyCheckpoint(connection, dataset, await this.#catalog.checkpoint(dataset));
    this.#streamCreated = at.streamCreated;
    this.#checkpoint = at.sequence;
    if (projection.seconds) await DirtyBuckets.prepare(client);
  }

  /** The last message whose effect is committed. */
  get checkpoint(): number {
    return this.#checkpoint;
  }

  /** The partition that is being loaded. */
  get load(): Pick<OpenLoad, 'name' | 'load'> | undefined {
    return this.#load;
  }

  /** Whether loaded partitions wait for the commit. */
  get isPending(): boolean {
    return this.#transaction.pending > 0;
  }

  /** Whether the open transaction is large or old enough to be committed. */
  get isDue(): boolean {
    return this.#transaction.isDue;
  }

  /**
   * Commits an earlier attempt of a partition before the side connection, which does not see the open transaction, looks
   * the partition up. Also commits before a partition that gets a transaction of its own.
   */
  async settle(partition: string, first: number): Promise<SessionOutcome> {
    return this.#batch?.has(partition) || this.#isAlone(first) ? await this.commit() : 'done';
  }

  /** Begins to load a partition, in a transaction of its own or in the shared one. */
  async open(
    arriving: IncomingAttempt,
    partition: PartitionRef,
    row: PartitionStatus['partition'],
  ): Promise<SessionOutcome> {
    const { client, projection } = this.#needs;
    const { dataset, name, first } = arriving;
    const seriesId = await this.#seriesIdOf(dataset);
    if ((await this.#enter(arriving, partition, row)) === 'rolled_back') return 'rolled_back';
    const shared = this.#batch?.copy;
    const load = await PartitionLoad.open(client, {
      dataset,
      partition,
      projection,
      seriesId,
      ...(shared ? { shared } : {}),
    });
    this.#load = { dataset, name, load, first, openedAt: performance.now() };
    return 'done';
  }

  async #seriesIdOf(dataset: DatasetDefinition): Promise<number> {
    if (dataset.aligned.seriesKey.length > 0) return 0;
    const id = this.#seriesIds.get(dataset.number) ?? (await this.#catalog.seriesId(dataset));
    this.#seriesIds.set(dataset.number, id);
    return id;
  }

  /** Proves the open load by its manifest, or adds it to the partitions that are proved together. */
  async end(
    manifest: Manifest,
    header: Pick<ManifestHeader, 'revision' | 'frame'>,
    message: JsMsg,
  ): Promise<SessionOutcome> {
    assert(this.#load, 'a manifest ends an open load');
    const { dataset, load, name } = this.#load;
    const found = manifestDiscrepancies(dataset, manifest, { ...header, ...name }, load);
    const misstated = describeDiscrepancies(found) || undefined;
    if (this.#batch) return await this.#join(manifest, misstated, this.#batch, message);
    return await this.#prove(manifest, misstated, message);
  }

  #isAlone(first: number): boolean {
    return first >= this.#alone.from && first <= this.#alone.to;
  }

  /** Begins the transaction or joins the open one, and deletes the rows that the load replaces. */
  async #enter(
    { dataset, revision, synthetic }: IncomingAttempt,
    partition: PartitionRef,
    row: PartitionStatus['partition'],
  ): Promise<SessionOutcome> {
    const { client, side, projection } = this.#needs;
    const { seconds } = projection;
    if (!seconds) {
      await ensureAlignedChunks(side, dataset, [partition.fromMs, partition.toMs - 1000]);
      await this.#transaction.enter();
      return 'done';
    }
    // Replaced rows are deleted before the shared COPY begins: no other statement can run during it.
    const isFirst = revision === 1 && (row === undefined || row.fromMs === null);
    const joins = this.#batch && isFirst && this.#batch.synthetic === synthetic;
    if (!joins && (await this.commit()) === 'rolled_back') return 'rolled_back';
    if (!(await this.#transaction.enter())) return 'done';
    const coverage = await this.#catalog.coverage(dataset);
    this.#batch = await Batch.open({ client, dataset, seconds, coverage, synthetic });
    const { dirty } = this.#batch;
    if (coverage?.synthetic && !synthetic) await deleteSampleRows(client, dataset, partition.key, dirty);
    const { key } = partition;
    if (!isFirst) await deleteReplacedRows(client, dataset, { key, revision }, dirty);
    return 'done';
  }

  /** Adds the partition to those that are proved together, or proves it alone if it is known to be at fault. */
  async #join(
    manifest: Manifest,
    misstated: string | undefined,
    batch: Batch,
    message: JsMsg,
  ): Promise<SessionOutcome> {
    const { name, load, first } = this.#load!;
    let fault = this.#mixesSample(manifest, batch.coverage) ?? misstated;
    try {
      load.complete();
    } catch (error) {
      fault ??= dataFault(error);
      if (fault === undefined) throw error;
    }
    const isIsolated = fault !== undefined || manifest.synthetic !== batch.synthetic;
    if (isIsolated && batch.members.length > 0) return await this.#isolate(first, first);
    this.#load = undefined;
    batch.add({ name, load, manifest, sequence: message.seq, ...(fault === undefined ? {} : { fault }) });
    this.#transaction.keep(manifest.rows, load.bytes);
    this.#uncommitted = message;
    return isIsolated || this.#transaction.isDue || this.#isAlone(first) ? await this.commit() : 'done';
  }

  /** Quarantines the only partition of a batch. */
  async #quarantine(batch: Batch, { reason, recount }: Fault): Promise<void> {
    const { dataset, client, log } = this.#needs;
    const [{ name, load, manifest }] = batch.members;
    const message = this.#uncommitted!;
    await this.undo();
    const placed = outsidePartition(manifest, name, load.partition);
    await writeQuarantined(client, dataset, placed, reason, recount, this.position(message));
    this.advance(message);
    log.error({ dataset: dataset.key, ...name, rows: manifest.rows, reason }, 'partition quarantined');
  }

  /** Proves a partition that has a transaction of its own and commits, or quarantines it. */
  async #prove(manifest: Manifest, misstated: string | undefined, message: JsMsg): Promise<SessionOutcome> {
    const { client, log } = this.#needs;
    const { dataset, load, openedAt, name } = this.#load!;
    const position = this.position(message);
    const startedAt = performance.now();
    let reason = misstated;
    let found: Recount | null = null;
    let steps: Readonly<Record<string, number>> = {};
    try {
      const result = await load.finish(manifest);
      found = result.recount;
      steps = result.steps;
      reason =
        this.#mixesSample(manifest, await this.#catalog.coverage(dataset)) ??
        reason ??
        (describeDiscrepancies(result.discrepancies) || undefined);
      if (reason === undefined) {
        const { klinesSha256, inexactSeconds } = result;
        const { frames, rowsSha256 } = load;
        const facts = load.factsText(manifest);
        const kept = { klinesSha256, inexactSeconds };
        const proved = { manifest, recount: found, frames, ...kept, rowsSha256, facts, sequence: message.seq };
        await writeProved(client, dataset, [proved], position, async () => {});
        this.#transaction.keep(manifest.rows, load.bytes);
        this.#uncommitted = message;
      }
    } catch (error) {
      reason ??= dataFault(error);
      if (reason === undefined) throw error;
    }
    if (reason === undefined) {
      this.#load = undefined;
      await this.commit();
    } else {
      await this.undo();
      await writeQuarantined(
        client,
        dataset,
        outsidePartition(manifest, name, load.partition),
        reason,
        found,
        position,
      );
      this.advance(message);
    }
    const { partition, attempt, rows } = manifest;
    const times = {
      load_ms: Math.round(startedAt - openedAt),
      proof_ms: Math.round(performance.now() - startedAt),
      ...steps,
    };
    const facts = { dataset: dataset.key, partition, attempt, rows, ...times, reason };
    if (reason !== undefined) log.error(facts, 'partition quarantined');
    else log.info(facts, 'partition proved');
    return 'done';
  }

  /** Synthetic partitions never join real ones; real ones retire the sample (see writeProved). */
  #mixesSample(manifest: Manifest, coverage: CoverageRow | undefined): string | undefined {
    const real = coverage !== undefined && !coverage.synthetic && coverage.proved !== '{}';
    return manifest.synthetic && real ? 'a synthetic sample does not join real partitions' : undefined;
  }

  /**
   * Proves the partitions that wait and commits them. When one of several is at fault, all are rolled back, and each
   * gets a transaction of its own when it is read again; a single one is quarantined.
   */
  async commit(): Promise<SessionOutcome> {
    assert(!this.#load, 'an open load is not committed');
    const { dataset, side, log } = this.#needs;
    const batch = this.#batch;
    const message = this.#uncommitted;
    if (batch && message) {
      const startedAt = performance.now();
      const { members } = batch;
      const fault = await batch.prove(side, this.#alignedChunks, this.position(message));
      if (fault && members.length > 1) return await this.#isolate(this.#checkpoint + 1, message.seq);
      if (fault) {
        await this.#quarantine(batch, fault);
        return 'done';
      }
      const proof_ms = Math.round(performance.now() - startedAt);
      const { rows } = this.#transaction;
      await this.#transaction.commit();
      log.info({ dataset: dataset.key, partitions: members.length, rows, proof_ms }, 'partitions proved');
    } else {
      await this.#transaction.commit();
    }
    this.#batch = undefined;
    this.#uncommitted = undefined;
    if (message) this.advance(message);
    await this.#analyze(batch?.members.length ?? 0);
    return 'done';
  }

  /**
   * Updates the planner's statistics after many small partitions. Autovacuum does so within about a minute; until then
   * PostgreSQL planned reads that join rows with partitions as if there were one of each, and they timed out.
   */
  async #analyze(partitions: number): Promise<void> {
    this.#proved += partitions;
    if (this.#proved < this.#analyzeAt) return;
    this.#analyzeAt = this.#proved + Math.max(ANALYZED_PARTITIONS, this.#proved / 2);
    await this.#needs.client.query(`analyze partitions, "${this.#needs.dataset.native.table}"`);
  }

  /** Rolls the open load back, if there is one. No other partition may share its transaction. */
  async drop(): Promise<void> {
    if (!this.#load) return;
    assert(!this.isPending, 'a load that shares its transaction is isolated');
    this.#logDropped(this.#load);
    await this.undo();
  }

  /** Rolls the transaction back. The open load gets one of its own next time; those before it are committed first. */
  async isolate(): Promise<void> {
    assert(this.#load, 'an open load is isolated');
    this.#logDropped(this.#load);
    await this.#isolate(this.#load.first, this.#load.first);
  }

  #logDropped({ name, load }: OpenLoad): void {
    this.#needs.log.debug({ ...name, frames: load.frames.length }, 'load dropped');
  }

  /** Rolls everything back, to read it again with a transaction for each of these partitions. */
  async #isolate(from: number, to: number): Promise<'rolled_back'> {
    this.#alone = { from, to };
    await this.undo();
    return 'rolled_back';
  }

  /** Rolls everything uncommitted back; the log still holds it. */
  async undo(): Promise<void> {
    const [load, batch] = [this.#load, this.#batch];
    this.#load = undefined;
    this.#batch = undefined;
    this.#uncommitted = undefined;
    await load?.load.abort();
    await batch?.copy.abort();
    await this.#transaction.undo();
  }

  position({ seq: sequence, data }: JsMsg): Position {
    const { connection, dataset } = this.#needs;
    const messageSha256 = createHash('sha256').update(data).digest('hex');
    const streamCreated = this.#streamCreated;
    const message = { streamCreated, streamSequence: sequence, messageSha256 };
    return { streamCreated, sequence, messageSha256, confirm: () => requireLogged(connection, dataset, message) };
  }

  advance(message: JsMsg): void {
    this.#checkpoint = message.seq;
    // Acknowledges all messages up to this one. Only the lag that monitors read depends on it.
    message.ack();
  }
}
