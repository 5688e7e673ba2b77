/**
 * The projector of one dataset: turns the log into proved partitions. Its whole memory is the checkpoint in Postgres;
 * killed anywhere, it starts again there and comes to the same end.
 *
 * What a message does, by what is open:
 *
 *   message             nothing open      load of its attempt    load of another        attempt being skipped
 *   frame 0             open              out of place: broken   drop it, then as left  pass over
 *   frame n, in place   broken            add                    drop it, then as left  pass over
 *   manifest, in place  broken            prove                  drop it, then as left  record its end
 *   withheld            withhold          withhold, then read again from the checkpoint
 *
 * An empty partition has no frame: its manifest opens it and ends it. `broken`: frames are missing or damaged; the rest is passed over and the manifest quarantines the partition. An
 * attempt that falls silent is set aside, so that no transaction stays open for it; when it goes on, everything since
 * the checkpoint is read again.
 */
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { type JsMsg, jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { Catalog, type Standing } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import type { CoverageRow } from '../../shared/db/schema.ts';
import { assert, explain } from '../../shared/errors.ts';
import type { FrameHeader, Header, ManifestHeader, WithheldHeader, WithheldMark } from '../../shared/frame/codec.ts';
import { type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/log/logger.ts';
import { attemptFilter, withheldSubject, withheldSubjects } from '../../shared/nats/stream.ts';
import { describeDiscrepancies, type Recount } from '../../shared/proof/recount.ts';
import type { PartitionRef } from '../../shared/proof/scope.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import type { Projection } from '../rows/types.ts';
import { type Arrived, type Name, type Readable, unpack } from './arrival.ts';
import { Batch, type Fault } from './batch.ts';
import { verifyCheckpoint } from './checkpoint.ts';
import { ensureAlignedChunks } from './chunks.ts';
import { moveCheckpoint, type Position, writeProved, writeQuarantined } from './commit.ts';
import { dataFault, inItsPlace, misstatements } from './faults.ts';
import { LogReader } from './log-reader.ts';
import { PartitionLoad } from './partition-load.ts';
import { makeRoom, retireSample } from './removal.ts';
import { TouchedSeconds } from './seconds.ts';
import { endSkipped, type Skipping, type Why } from './skipped.ts';
import { LoadTransaction, MAX_OPEN_MS } from './transaction.ts';
import { withholdPartition } from './withhold.ts';

export interface ProjectorNeeds {
  readonly dataset: DatasetDefinition;
  readonly connection: NatsConnection;
  /** The load's own connection: a transaction is open on it most of the time. */
  readonly client: Client;
  /** For short work beside the load. */
  readonly side: Client;
  readonly projection: Projection;
  readonly pullMaxBytes: number;
  readonly silenceMs: number;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** Frames being unpacked ahead of the one being stored: enough to keep the thread pool busy, 4 x 4 MiB at most. */
const LOOKAHEAD = 4;

/** How long to wait for a message before looking at the clock and the signal. */
const IDLE_MS = 100;

/** States of an attempt that nothing changes any more. */
const ENDED: ReadonlySet<string> = new Set(['proved', 'quarantined', 'refused']);

/** Small partitions after which the planner's figures are made anew; further ones when there are half as many again. */
const ANALYZED_PARTITIONS = 64;

/** How often a manifest's copy in the catalog is looked for, 100 ms apart: its publisher writes it after the log. */
const MANIFEST_LOOKUPS = 50;

interface OpenLoad {
  readonly name: Name;
  readonly load: PartitionLoad;
  /** Sequence of its first message. */
  readonly first: number;
  readonly openedAt: number;
}

/** What the open transaction holds is rolled back, and is to be read again from the checkpoint. */
class ReadAgain extends Error {}

const sameAttempt = (a: Name | undefined, b: Name) => a?.partition === b.partition && a.attempt === b.attempt;

export class Projector {
  readonly #needs: ProjectorNeeds;
  readonly #reader: LogReader;
  /** Sees what is committed. */
  readonly #catalog: Catalog;
  readonly #transaction: LoadTransaction;
  #streamCreated = new Date(0);
  #seriesId = 0;
  #checkpoint = 0;
  /** Subjects of the marks of withheld attempts that were in the log at the start. */
  #withheld: ReadonlySet<string> = new Set();
  /** Sequences of marks that were met among another attempt's frames, and heeded. */
  readonly #heeded = new Set<number>();
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
  /** An attempt whose frames are passed over until its manifest, and why. */
  #skipping: Skipping | undefined;
  /** An attempt that fell silent: its next message means reading again from the checkpoint. */
  #silent: Name | undefined;
  #lastMessageAt = 0;
  #lastMessage: JsMsg | undefined;

  constructor(needs: ProjectorNeeds) {
    this.#needs = needs;
    this.#reader = new LogReader(needs.connection, needs.dataset.key, needs.pullMaxBytes);
    this.#catalog = new Catalog(needs.side);
    this.#transaction = new LoadTransaction(needs.client, needs.dataset.native.scope.kind === 'column');
  }

  /**
   * Projects until the signal. @throws whatever storage or the log throw: the caller starts a new projector, which
   * begins at the checkpoint. TidemarkError LOG_REWOUND when the log is not the one the checkpoint was taken on.
   */
  async run(): Promise<void> {
    const { dataset, connection, signal } = this.#needs;
    const at = await verifyCheckpoint(connection, dataset, await this.#catalog.checkpoint(dataset));
    this.#streamCreated = at.streamCreated;
    this.#checkpoint = at.sequence;
    this.#seriesId = dataset.aligned.seriesKey.length === 0 ? await this.#catalog.seriesId(dataset) : 0;
    this.#withheld = await withheldSubjects(await jetstreamManager(connection, { checkAPI: false }), dataset.key);
    if (this.#needs.projection.seconds) await TouchedSeconds.prepare(this.#needs.client);
    await this.#reader.seek(this.#checkpoint);
    try {
      const ahead: Arrived[] = [];
      while (!signal.aborted) {
        const message = await this.#reader.read(ahead.length > 0 ? 0 : IDLE_MS);
        if (message) {
          this.#lastMessageAt = performance.now();
          this.#lastMessage = message;
          ahead.push(unpack(this.#needs.dataset, message));
          if (ahead.length < LOOKAHEAD) continue;
        }
        try {
          await this.#step(ahead.shift());
        } catch (error) {
          if (!(error instanceof ReadAgain)) throw error;
          ahead.length = 0;
          await this.#rewind();
        }
      }
    } finally {
      await this.#undo().catch(() => {});
      await this.#reader.close();
    }
  }

  async #step(next: Arrived | undefined): Promise<void> {
    if (next) await this.#take(next);
    else await this.#noticeSilence();
    if (!this.#load && (!next || this.#transaction.isDue)) await this.#commit();
  }

  async #take(arrived: Arrived): Promise<void> {
    if (!('header' in arrived)) {
      await this.#takeUnreadable(arrived.message, arrived.fault);
      return;
    }
    const { header } = arrived;
    if (header.kind === 'withheld') {
      await this.#withhold({ ...arrived, header });
      return;
    }
    if (sameAttempt(this.#silent, header)) {
      this.#silent = undefined;
      await this.#drop();
      throw new ReadAgain();
    }
    if (this.#load && !sameAttempt(this.#load.name, header)) await this.#drop();
    if (this.#skipping && !sameAttempt(this.#skipping.name, header)) this.#skipping = undefined;
    if (!this.#load && !this.#skipping) {
      if (header.frame === 0 && (header.kind === 'frame' || this.#mayBeEmpty)) {
        await this.#open(header, arrived.message.seq);
      } else this.#skip(header, 'broken', `its first frame is missing: frame ${header.frame} came first`);
    }
    const next = this.#load?.load.frames.length;
    if (next !== undefined && header.frame !== next)
      await this.#break(header, `frame ${header.frame} follows frame ${next - 1}`);
    if (header.kind === 'frame') {
      if (this.#load) await this.#add({ ...arrived, header });
    } else {
      await this.#end({ ...arrived, header });
    }
  }

  /** A message whose header cannot be read. Its subject still says whose it is. */
  async #takeUnreadable(message: JsMsg, fault: string): Promise<void> {
    const { dataset, log } = this.#needs;
    log.error({ dataset: dataset.key, sequence: message.seq, subject: message.subject, fault }, 'unreadable message');
    const open = this.#load?.name ?? this.#skipping?.name;
    if (!open || !message.subject.startsWith(attemptFilter(dataset.key, open.partition, open.attempt).slice(0, -1)))
      return;
    await this.#break(open, fault);
    // Was it the manifest? Then nothing else will end the attempt; its publisher put a copy into the catalog.
    for (let tries = 0; tries < MANIFEST_LOOKUPS; tries++) {
      const attempt = await this.#catalog.attempt(dataset, open.partition, open.attempt);
      if (attempt?.manifestSequence === message.seq && attempt.manifest) {
        this.#skipping = undefined;
        await this.#commit();
        await writeQuarantined(this.#needs.side, dataset, attempt.manifest, fault, null, this.#position(message));
        this.#advance(message);
        return;
      }
      if (attempt?.state !== 'publishing' || attempt.manifestSequence !== null) return;
      await delay(100, undefined, { signal: this.#needs.signal }).catch(() => {});
    }
  }

  /**
   * What is proved of the attempt leaves service; of one that was replaced, or never proved, nothing does. A mark among the
   * frames of another attempt is heeded at once, and those are read again.
   */
  async #withhold({ message, header, body }: Readable<WithheldHeader>): Promise<void> {
    if (this.#heeded.has(message.seq)) return;
    const among = this.#load !== undefined || this.#skipping !== undefined;
    await this.#drop();
    await this.#commit();
    let reason: string;
    try {
      ({ reason } = JSON.parse(String(await body)) as WithheldMark);
    } catch (error) {
      await this.#takeUnreadable(message, explain(error));
      return;
    }
    const { dataset, client, projection, log } = this.#needs;
    await client.query('begin');
    const row = await new Catalog(client).partition(dataset, header.partition);
    if (row?.state === 'proved' && row.attempt === header.attempt) {
      await withholdPartition(client, dataset, projection.seconds, row, { reason, by: 'source' });
      log.warn({ dataset: dataset.key, partition: header.partition, reason }, 'partition withheld');
    }
    if (!among) await moveCheckpoint(client, dataset, this.#position(message));
    await client.query('commit');
    if (!among) {
      this.#advance(message);
      return;
    }
    this.#heeded.add(message.seq);
    throw new ReadAgain();
  }

  #skip(name: Name, why: Why, reason: string): void {
    const { partition, attempt } = name;
    this.#skipping = { name: { partition, attempt }, why, reason };
    this.#needs.log.debug({ partition, attempt, why, reason }, 'attempt skipped');
  }

  /** The attempt cannot be completed: its rows go, its remaining messages are passed over. */
  async #break(name: Name, reason: string): Promise<void> {
    await this.#drop();
    if (!this.#skipping || this.#skipping.why === 'broken') this.#skip(name, 'broken', reason);
  }

  /** A file day always holds something; a snapshot or a capture need not. */
  get #mayBeEmpty(): boolean {
    return this.#needs.dataset.partition.kind !== 'file_day';
  }

  async #open(header: Header, first: number): Promise<void> {
    const { dataset, client, projection } = this.#needs;
    // What the open transaction says of the partition is not to be seen beside it.
    if (this.#batch?.has(header.partition) || this.#isAlone(first)) await this.#commit();
    // Met again because the checkpoint was lost: what it came to is on record, and stays.
    const { partition: row, attemptState } = await this.#catalog.standing(dataset, header.partition, header.attempt);
    if (attemptState && ENDED.has(attemptState)) {
      this.#skip(header, 'ended', `it came to its end before: ${attemptState}`);
      return;
    }
    // Further on in the log its source takes it back: it is not served for the time until then.
    if (this.#withheld.has(withheldSubject(dataset.key, header.partition, header.attempt))) {
      this.#skip(header, 'broken', 'its source no longer stands by it');
      return;
    }
    // Whether a synthetic partition may be replaced is known only with the manifest, so it is loaded over.
    if (row?.state === 'proved' && !row.synthetic && row.revision >= header.revision) {
      this.#skip(header, 'proved', `${dataset.key} ${header.partition} is proved`);
      return;
    }
    let partition: PartitionRef;
    try {
      partition = { key: header.partition, ...keyFacts(dataset, header.partition).times };
    } catch (error) {
      this.#skip(header, 'broken', explain(error));
      return;
    }
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

  #isAlone(first: number): boolean {
    return first >= this.#alone.from && first <= this.#alone.to;
  }

  /** Begins the load's transaction, or its part of one, with room made for its rows. */
  async #enter(header: Header, partition: PartitionRef, row: Standing['partition']): Promise<void> {
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
    if (!joins) await this.#commit();
    if (!(await this.#transaction.enter())) return;
    const coverage = await this.#catalog.coverage(dataset);
    this.#batch = await Batch.open({ client, dataset, seconds, coverage, synthetic });
    const { touched } = this.#batch;
    if (coverage?.synthetic && !synthetic) await retireSample(client, dataset, partition.key, touched);
    const { key } = partition;
    if (!isFirst) await makeRoom(client, dataset, { key, revision: header.revision }, touched);
  }

  async #add(arrived: Readable<FrameHeader>): Promise<void> {
    const { header, message } = arrived;
    assert(this.#load, 'a frame is added to its load');
    try {
      await this.#load.load.add(message.seq, header, await arrived.body);
    } catch (error) {
      const fault = dataFault(error);
      if (fault === undefined) throw error;
      await this.#break(header, fault);
    }
  }

  /** The manifest: proves what is loaded, or records the end of what was passed over. */
  async #end(arrived: Readable<ManifestHeader>): Promise<void> {
    const { dataset } = this.#needs;
    let manifest: Manifest;
    try {
      manifest = parseManifest(await arrived.body, `${dataset.key} sequence ${arrived.message.seq}`);
    } catch (error) {
      await this.#takeUnreadable(arrived.message, explain(error));
      return;
    }
    const { message, header } = arrived;
    const position = this.#position(message);
    if (this.#load) {
      const misstated = describeDiscrepancies(misstatements(dataset, manifest, header, this.#load.load)) || undefined;
      if (this.#batch) await this.#join(manifest, misstated, this.#batch, message);
      else await this.#prove(manifest, misstated, position, message);
    } else {
      await this.#commit();
      assert(this.#skipping, 'an attempt that is not loaded is skipped');
      await endSkipped(this.#needs.side, dataset, this.#skipping, manifest, position);
      this.#skipping = undefined;
      this.#advance(message);
    }
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
    if (isApart || this.#transaction.isDue || this.#isAlone(first)) await this.#commit();
  }

  /** Rolls back what is open, to go through it again with these partitions each in a transaction of its own. */
  async #apart(from: number, to: number): Promise<never> {
    this.#alone = { from, to };
    await this.#undo();
    throw new ReadAgain();
  }

  /** The one partition of a batch. */
  async #quarantine(batch: Batch, { reason, recount }: Fault): Promise<void> {
    const { dataset, client, log } = this.#needs;
    const [{ name, load, manifest }] = batch.members;
    const message = this.#uncommitted!;
    await this.#undo();
    const placed = inItsPlace(manifest, name, load.partition);
    await writeQuarantined(client, dataset, placed, reason, recount, this.#position(message));
    this.#advance(message);
    log.error({ dataset: dataset.key, ...name, rows: manifest.rows, reason }, 'partition quarantined');
  }

  /** Of a file day: proves what is loaded. */
  async #prove(manifest: Manifest, misstated: string | undefined, position: Position, message: JsMsg): Promise<void> {
    const { dataset, client, log } = this.#needs;
    const { load, openedAt, name } = this.#load!;
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
      await this.#commit();
    } else {
      await this.#undo();
      await writeQuarantined(client, dataset, inItsPlace(manifest, name, load.partition), reason, found, position);
      this.#advance(message);
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

  /**
   * What the open transaction holds is proved, where that is still to be done, and becomes visible.
   * @throws ReadAgain when one of several partitions is at fault.
   */
  async #commit(): Promise<void> {
    assert(!this.#load, 'what is being loaded is not committed');
    const { dataset, side, log } = this.#needs;
    const batch = this.#batch;
    const message = this.#uncommitted;
    if (batch && message) {
      const startedAt = performance.now();
      const { members } = batch;
      const fault = await batch.prove(side, this.#alignedChunks, this.#position(message));
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
    if (message) this.#advance(message);
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

  /** Nothing of what is open stays; it is still in the log. */
  async #undo(): Promise<void> {
    const [load, batch] = [this.#load, this.#batch];
    this.#load = undefined;
    this.#batch = undefined;
    this.#uncommitted = undefined;
    await load?.load.abort();
    await batch?.copy.abort();
    await this.#transaction.undo();
  }

  /** Synthetic rows never join real ones; real ones retire the sample (see writeProved). */
  #mixesSample(manifest: Manifest, coverage: CoverageRow | undefined): string | undefined {
    const real = coverage !== undefined && !coverage.synthetic && coverage.proved !== '{}';
    return manifest.synthetic && real ? 'a synthetic sample does not join real partitions' : undefined;
  }

  #position(message: JsMsg): Position {
    return {
      streamCreated: this.#streamCreated,
      sequence: message.seq,
      messageSha256: createHash('sha256').update(message.data).digest('hex'),
    };
  }

  #advance(message: JsMsg): void {
    this.#checkpoint = message.seq;
    // Acknowledges everything up to here; nothing but the lag that monitors read depends on it.
    message.ack();
  }

  /** Rolls the open load back; its frames are still in the log. What it shared a transaction with is loaded before it. */
  async #drop(): Promise<void> {
    const open = this.#load;
    if (!open) return;
    this.#needs.log.debug({ ...open.name, frames: open.load.frames.length }, 'load dropped');
    if (this.#transaction.pending > 0) await this.#apart(open.first, open.first);
    await this.#undo();
  }

  async #rewind(): Promise<void> {
    await this.#undo();
    this.#skipping = undefined;
    await this.#reader.seek(this.#checkpoint);
  }

  /** Nothing has come for a while. */
  async #noticeSilence(): Promise<void> {
    if (!this.#lastMessage) return;
    const silentMs = performance.now() - this.#lastMessageAt;
    // Others wait for a load that does not go on: they are committed, and it is read again from the log.
    if (this.#load && this.#transaction.pending > 0 && silentMs > MAX_OPEN_MS) await this.#drop();
    if (silentMs <= this.#needs.silenceMs) return;
    // Nothing is left to do with what was read, so the lag that monitors watch goes down.
    this.#lastMessage.ack();
    this.#lastMessage = undefined;
    if (!this.#load) return;
    this.#silent = this.#load.name;
    await this.#drop();
  }
}
