/**
 * What a projector has under way and not committed: the partition being loaded, what shares its transaction, and the
 * checkpoint that moves with them. It ends as proved, as quarantined, or rolled back, to be read again from the log.
 */

import { createHash } from 'node:crypto';
import type { JsMsg } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { ClientBase } from 'pg';
import { Catalog, type PartitionStatus } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import type { CoverageRow } from '../../shared/db/schema.ts';
import { assert } from '../../shared/errors.ts';
import type { Header, ManifestHeader } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/logger.ts';
import { describeDiscrepancies, type PartitionRef, type Recount } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Projection } from '../rows/binary-copy.ts';
import { Batch, type Fault } from './batch.ts';
import { verifyCheckpoint } from './checkpoint.ts';
import { ensureAlignedChunks } from './chunks.ts';
import { type Position, writeProved, writeQuarantined } from './commit.ts';
import { DirtyBuckets } from './dirty-buckets.ts';
import { dataFault, manifestDiscrepancies, outsidePartition } from './faults.ts';
import type { AttemptId } from './log-reader.ts';
import { PartitionLoad } from './partition-load.ts';
import { deleteReplacedRows, deleteSampleRows } from './retract.ts';

/*
 * The transaction that loads are made in. A file day has one of its own. Small partitions share one, which ends when it is
 * large or old enough, or when nothing more is there to be loaded: what is said of them is said of all at once.
 */

/** Partitions, rows and bytes of events that one transaction proves at most, and how long it stays open. */
const MAX_PARTITIONS = 512;
const MAX_ROWS = 50_000;
const MAX_BYTES = 32 * 1024 * 1024;
export const MAX_OPEN_MS = 1000;

export class LoadTransaction {
  readonly #client: ClientBase;
  /** Whether several loads are made in one. */
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

  /** Partitions that are loaded in it and not committed. */
  get pending(): number {
    return this.#partitions;
  }

  /** Of those. */
  get rows(): number {
    return this.#rows;
  }

  /** It has been large, or open, long enough. */
  get isDue(): boolean {
    return (
      !this.shares ||
      this.#partitions >= MAX_PARTITIONS ||
      this.#rows >= MAX_ROWS ||
      this.#bytes >= MAX_BYTES ||
      performance.now() - this.#openedAt > MAX_OPEN_MS
    );
  }

  /** A load begins. @returns whether it is the first of its transaction. */
  async enter(): Promise<boolean> {
    if (this.#open) return false;
    await this.#client.query('begin');
    this.#open = true;
    this.#openedAt = performance.now();
    return true;
  }

  /** The load's partition is part of the transaction from now on. */
  keep(rows: number, bytes: number): void {
    this.#partitions++;
    this.#rows += rows;
    this.#bytes += bytes;
  }

  /** Nothing stays, of any load. */
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
  /** The load's own connection: a transaction is open on it most of the time. */
  readonly client: Client;
  /** For short work beside the load. */
  readonly side: Client;
  readonly projection: Projection;
  readonly log: Logger;
}

/** Small partitions after which the planner's figures are made anew; further ones when there are half as many again. */
const ANALYZED_PARTITIONS = 64;

interface OpenLoad {
  readonly name: AttemptId;
  readonly load: PartitionLoad;
  /** Sequence of its first message. */
  readonly first: number;
  readonly openedAt: number;
}

/** What the open transaction holds is rolled back, and is to be read again from the checkpoint. */
export class RewindRequired extends Error {}

export class LoadSession {
  readonly #needs: LoadSessionOptions;
  /** Sees what is committed. */
  readonly #catalog: Catalog;
  readonly #transaction: LoadTransaction;
  #streamCreated = new Date(0);
  #seriesId = 0;
  #checkpoint = 0;
  #load: OpenLoad | undefined;
  /** What the open transaction holds, where partitions share one. */
  #batch: Batch | undefined;
  /** Partitions proved in common, and how many there are to be before the planner's figures are made anew. */
  #proved = 0;
  #analyzeAt = ANALYZED_PARTITIONS;
  /** The end of what is in it. */
  #uncommitted: JsMsg | undefined;
  /** Sequences of first messages, both included: these partitions get a transaction of their own. */
  #alone = { from: 0, to: 0 };
  /** Aligned chunks that are there, by number. */
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
    this.#seriesId = dataset.aligned.seriesKey.length === 0 ? await this.#catalog.seriesId(dataset) : 0;
    if (projection.seconds) await DirtyBuckets.prepare(client);
  }

  /** The last message whose effect is committed. */
  get checkpoint(): number {
    return this.#checkpoint;
  }

  /** What is being loaded. */
  get load(): Pick<OpenLoad, 'name' | 'load'> | undefined {
    return this.#load;
  }

  /** Whether loaded partitions wait to be committed. */
  get isPending(): boolean {
    return this.#transaction.pending > 0;
  }

  /** Whether they have waited long enough. */
  get isDue(): boolean {
    return this.#transaction.isDue;
  }

  /** Before a partition is looked up: what the open transaction says of it is not to be seen beside it. */
  async settle(partition: string, first: number): Promise<void> {
    if (this.#batch?.has(partition) || this.#isAlone(first)) await this.commit();
  }

  /** Begins to load a partition, in a transaction of its own or together with others. */
  async open(header: Header, first: number, partition: PartitionRef, row: PartitionStatus['partition']): Promise<void> {
    const { dataset, client, projection } = this.#needs;
    await this.#enter(header, partition, row);
    const shared = this.#batch?.copy;
    const load = await PartitionLoad.open(client, {
      dataset,
      partition,
      projection,
      seriesId: this.#seriesId,
      ...(shared ? { shared } : {}),
    });
    const name = { partition: header.partition, attempt: header.attempt };
    this.#load = { name, load, first, openedAt: performance.now() };
  }

  /** The manifest of what is being loaded has come. */
  async end(manifest: Manifest, header: ManifestHeader, message: JsMsg): Promise<void> {
    assert(this.#load, 'what ends is being loaded');
    const misstated =
      describeDiscrepancies(manifestDiscrepancies(this.#needs.dataset, manifest, header, this.#load.load)) || undefined;
    if (this.#batch) await this.#join(manifest, misstated, this.#batch, message);
    else await this.#prove(manifest, misstated, message);
  }

  #isAlone(first: number): boolean {
    return first >= this.#alone.from && first <= this.#alone.to;
  }

  /** Begins the load's transaction, or its part of one, with room made for its rows. */
  async #enter(header: Header, partition: PartitionRef, row: PartitionStatus['partition']): Promise<void> {
    const { dataset, client, side, projection } = this.#needs;
    const { seconds } = projection;
    if (!seconds) {
      await ensureAlignedChunks(side, dataset, [partition.fromMs, partition.toMs - 1000]);
      await this.#transaction.enter();
      return;
    }
    const synthetic = header.synthetic === true;
    // Rows that are in the way are taken out before the COPY begins, which the others' rows are in.
    const isFirst = header.revision === 1 && (row === undefined || row.fromMs === null);
    const joins = this.#batch && isFirst && this.#batch.synthetic === synthetic;
    if (!joins) await this.commit();
    if (!(await this.#transaction.enter())) return;
    const coverage = await this.#catalog.coverage(dataset);
    this.#batch = await Batch.open({ client, dataset, seconds, coverage, synthetic });
    const { touched } = this.#batch;
    if (coverage?.synthetic && !synthetic) await deleteSampleRows(client, dataset, partition.key, touched);
    const { key } = partition;
    if (!isFirst) await deleteReplacedRows(client, dataset, { key, revision: header.revision }, touched);
  }

  /** Of partitions that share a transaction: it is proved with the others, unless it is known to be at fault. */
  async #join(manifest: Manifest, misstated: string | undefined, batch: Batch, message: JsMsg): Promise<void> {
    const { name, load, first } = this.#load!;
    let fault = this.#mixesSample(manifest, batch.coverage) ?? misstated;
    try {
      load.complete();
    } catch (error) {
      fault ??= dataFault(error);
      if (fault === undefined) throw error;
    }
    const isApart = fault !== undefined || manifest.synthetic !== batch.synthetic;
    if (isApart && batch.members.length > 0) await this.#apart(first, first);
    this.#load = undefined;
    batch.add({ name, load, manifest, sequence: message.seq, ...(fault === undefined ? {} : { fault }) });
    this.#transaction.keep(manifest.rows, load.bytes);
    this.#uncommitted = message;
    if (isApart || this.#transaction.isDue || this.#isAlone(first)) await this.commit();
  }

  /** The one partition of a batch. */
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

  /** Of a file day: proves what is loaded. */
  async #prove(manifest: Manifest, misstated: string | undefined, message: JsMsg): Promise<void> {
    const { dataset, client, log } = this.#needs;
    const { load, openedAt, name } = this.#load!;
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
        const proved = { manifest, recount: found, frames: load.frames, sequence: message.seq };
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
  }

  /** Synthetic rows never join real ones; real ones retire the sample (see writeProved). */
  #mixesSample(manifest: Manifest, coverage: CoverageRow | undefined): string | undefined {
    const real = coverage !== undefined && !coverage.synthetic && coverage.proved !== '{}';
    return manifest.synthetic && real ? 'a synthetic sample does not join real partitions' : undefined;
  }

  /**
   * What the open transaction holds is proved, where that is still to be done, and becomes visible.
   * @throws ReadAgain when one of several partitions is at fault.
   */
  async commit(): Promise<void> {
    assert(!this.#load, 'what is being loaded is not committed');
    const { dataset, side, log } = this.#needs;
    const batch = this.#batch;
    const message = this.#uncommitted;
    if (batch && message) {
      const startedAt = performance.now();
      const { members } = batch;
      const fault = await batch.prove(side, this.#alignedChunks, this.position(message));
      if (fault && members.length > 1) await this.#apart(this.#checkpoint + 1, message.seq);
      if (fault) {
        await this.#quarantine(batch, fault);
        return;
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
  }

  /**
   * The planner's figures of what many small partitions have made of the tables. Autovacuum comes within a minute or so;
   * until then reads that join rows with their partitions were planned as if there were one of each, and timed out.
   */
  async #analyze(partitions: number): Promise<void> {
    this.#proved += partitions;
    if (this.#proved < this.#analyzeAt) return;
    this.#analyzeAt = this.#proved + Math.max(ANALYZED_PARTITIONS, this.#proved / 2);
    await this.#needs.client.query(`analyze partitions, "${this.#needs.dataset.native.table}"`);
  }

  /** Rolls the open load back; its frames are still in the log. What it shared a transaction with is loaded before it. */
  async drop(): Promise<void> {
    const open = this.#load;
    if (!open) return;
    this.#needs.log.debug({ ...open.name, frames: open.load.frames.length }, 'load dropped');
    if (this.#transaction.pending > 0) await this.#apart(open.first, open.first);
    await this.undo();
  }

  /** Rolls back what is open, to go through it again with these partitions each in a transaction of its own. */
  async #apart(from: number, to: number): Promise<never> {
    this.#alone = { from, to };
    await this.undo();
    throw new RewindRequired();
  }

  /** Nothing of what is open stays; it is still in the log. */
  async undo(): Promise<void> {
    const [load, batch] = [this.#load, this.#batch];
    this.#load = undefined;
    this.#batch = undefined;
    this.#uncommitted = undefined;
    await load?.load.abort();
    await batch?.copy.abort();
    await this.#transaction.undo();
  }

  position(message: JsMsg): Position {
    return {
      streamCreated: this.#streamCreated,
      sequence: message.seq,
      messageSha256: createHash('sha256').update(message.data).digest('hex'),
    };
  }

  advance(message: JsMsg): void {
    this.#checkpoint = message.seq;
    // Acknowledges everything up to here; nothing but the lag that monitors read depends on it.
    message.ack();
  }
}
