/**
 * The projector of one dataset: loads the frames of the log into PostgreSQL, proves partitions and commits them.
 * state.ts lists its states and says what each message does in each of them; the actions are here. Its only memory is
 * the checkpoint in PostgreSQL: a projector that was killed starts there again and comes to the same result.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { type JsMsg, jetstreamManager } from '@nats-io/jetstream';
import { Catalog } from '../../shared/db/catalog.ts';
import { lockCoverage } from '../../shared/db/partition-changes.ts';
import { assert, explain } from '../../shared/errors.ts';
import { type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import { attemptOfSubject, retractionSubject, retractionSubjects } from '../../shared/nats/stream.ts';
import type { PartitionRef } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import { ENDED, endSkipped, moveCheckpoint, type Skipping } from './commit.ts';
import { dataFault } from './faults.ts';
import { Instruments } from './instruments.ts';
import { LoadSession, type LoadSessionOptions, MAX_OPEN_MS } from './load-session.ts';
import { type DecodedMessage, decodeMessage, LogReader } from './log-reader.ts';
import { retractPartition } from './retract.ts';
import { type AttemptId, classify, type Handlers, Machine, type MessageFacts, type ProjectorMessage } from './state.ts';

export interface ProjectorNeeds extends LoadSessionOptions {
  readonly pullMaxBytes: number;
  readonly silenceMs: number;
  readonly signal: AbortSignal;
}

/** Frames that are decompressed in advance: enough to keep the thread pool busy, at most 4 x 4 MiB. */
const LOOKAHEAD = 4;

/** How long the reader waits for a message before the projector checks the clock and the signal. */
const IDLE_MS = 100;

/** Look-ups of a manifest's copy in the catalog, 100 ms apart: the publisher writes the copy after the log. */
const MANIFEST_LOOKUPS = 50;

/** A message of the log, with those of its parts that can be read. */
interface ParsedMessage extends MessageFacts {
  readonly message: JsMsg;
  readonly revision: number;
  readonly synthetic: boolean;
  /** Of the instrument that the partition's key names. */
  readonly dataset: DatasetDefinition;
  readonly decoded: DecodedMessage;
  readonly manifest?: Manifest;
  /** The reason of a retraction. */
  readonly reason?: string;
}

export class Projector {
  readonly #needs: ProjectorNeeds;
  readonly #reader: LogReader;
  /** Reads on the side connection, so it sees only what is committed. */
  readonly #catalog: Catalog;
  readonly #instruments: Instruments;
  readonly #work: LoadSession;
  readonly #machine: Machine;
  readonly #prefetched: DecodedMessage[] = [];
  /** Subjects of the retractions that the log held at the start, and of those that were carried out since. */
  readonly #retracted = new Set<string>();
  /** Sequences of retractions that were carried out before a rewind. */
  readonly #carriedOut = new Set<number>();
  /** The message that the machine takes. */
  #message: ParsedMessage | undefined;
  /** The attempt that is open, skipped or set aside. */
  #attempt: AttemptId | undefined;
  /** Why the messages of that attempt are skipped. */
  #skipping: Skipping | undefined;
  /** The fault of the frame that was added last. */
  #fault: string | undefined;
  #lastMessageAt = 0;
  /** The last message, until it is acknowledged after a silence. */
  #lastMessage: JsMsg | undefined;

  constructor(needs: ProjectorNeeds) {
    this.#needs = needs;
    this.#reader = new LogReader({ ...needs, onLost: (first, last) => this.#recordLost(first, last) });
    this.#catalog = new Catalog(needs.side);
    this.#instruments = new Instruments(needs.side, needs.dataset);
    this.#work = new LoadSession(needs);
    this.#machine = new Machine(this.#handlers);
  }

  /**
   * Projects until the signal. @throws what storage or the log throw: the caller starts a new projector, which begins
   * at the checkpoint. TidemarkError LOG_REWOUND when the log is not the one the checkpoint was taken on.
   */
  async run(): Promise<void> {
    const { dataset, connection, signal } = this.#needs;
    await this.#work.prepare();
    const manager = await jetstreamManager(connection, { checkAPI: false });
    for (const subject of await retractionSubjects(manager, dataset.key)) this.#retracted.add(subject);
    await this.#reader.seek(this.#work.checkpoint);
    try {
      while (this.#machine.state !== 'stopped') {
        const next = await this.#read();
        if (signal.aborted) await this.#machine.take('stop');
        else if (next) await this.#take(next);
        else await this.#machine.take(this.#silence());
      }
    } catch (error) {
      if (this.#machine.state !== 'stopped') await this.#machine.take('failure');
      throw error;
    }
  }

  /** Records the loss once: after a failure the log is read again from the checkpoint. */
  async #recordLost(first: number, last: number): Promise<void> {
    const { dataset, side, log } = this.#needs;
    const which = first === last ? `message ${first}` : `messages ${first} to ${last}`;
    const reason = `The log has lost ${which}; what is not proved yet and needs it has to be published again`;
    log.warn({ dataset: dataset.key, first, last }, reason);
    await side.query(
      `insert into ledger (dataset_id, partition_key, kind, reason) select $1, '', 'log_lost', $2::text
       where not exists (select from ledger where dataset_id = $1 and kind = 'log_lost' and reason = $2::text)`,
      [dataset.number, reason],
    );
  }

  /** Returns the next message, decoded, while the bodies of the messages after it are decompressed. */
  async #read(): Promise<DecodedMessage | undefined> {
    const prefetched = this.#prefetched;
    while (prefetched.length < LOOKAHEAD) {
      const message = await this.#reader.read(prefetched.length > 0 ? 0 : IDLE_MS);
      if (!message) break;
      this.#lastMessageAt = performance.now();
      this.#lastMessage = message;
      prefetched.push(decodeMessage(this.#needs.dataset, message));
    }
    return prefetched.shift();
  }

  async #take(next: DecodedMessage): Promise<void> {
    this.#message = await this.#parse(next);
    this.#fault = undefined;
    await this.#machine.take(this.#classified());
    this.#message = undefined;
    if (this.#work.isPending && this.#work.isDue) await this.#machine.take('due');
  }

  /** Reads the body where the state depends on it: of manifests and retractions. */
  async #parse(decoded: DecodedMessage): Promise<ParsedMessage> {
    const { message } = decoded;
    if (!('header' in decoded)) {
      this.#logUnreadable(message, decoded.fault);
      const of = attemptOfSubject(message.subject);
      const { fault } = decoded;
      const dataset = of ? await this.#instruments.of(of.partition) : this.#needs.dataset;
      return { kind: 'unreadable', of, frame: 0, fault, message, revision: 0, synthetic: false, dataset, decoded };
    }
    const { header, body } = decoded;
    const { partition, attempt, frame, revision } = header;
    const kind: MessageFacts['kind'] = header.kind === 'withheld' ? 'retraction' : header.kind;
    const synthetic = header.synthetic === true;
    const dataset = await this.#instruments.of(partition);
    const facts = { kind, of: { partition, attempt }, frame, message, revision, synthetic, dataset, decoded };
    try {
      const position = `${this.#needs.dataset.key} sequence ${message.seq}`;
      if (kind === 'manifest') return { ...facts, manifest: parseManifest(await body, position) };
      if (kind === 'retraction') return { ...facts, reason: JSON.parse(String(await body)).reason };
      return facts;
    } catch (error) {
      this.#logUnreadable(message, explain(error));
      return { ...facts, fault: explain(error) };
    }
  }

  #logUnreadable({ seq: sequence, subject }: JsMsg, fault: string): void {
    const { dataset, log } = this.#needs;
    log.error({ dataset: dataset.key, sequence, subject, fault }, 'unreadable message');
  }

  #classified(): ProjectorMessage {
    const arrived = this.#current;
    return classify(arrived, {
      open: this.#attempt,
      expected: this.#work.load?.load.frames.length,
      // A file day always holds something; a snapshot or a capture need not.
      mayBeEmpty: this.#needs.dataset.partition.kind !== 'file_day',
      isCarriedOut: this.#carriedOut.has(arrived.message.seq),
    });
  }

  get #current(): ParsedMessage {
    assert(this.#message, 'an action on a message runs while the message is taken');
    return this.#message;
  }

  /** The message of the clock: for how long the log has brought nothing. */
  #silence(): ProjectorMessage {
    if (!this.#lastMessage) return 'quiet';
    const silentMs = performance.now() - this.#lastMessageAt;
    if (silentMs > this.#needs.silenceMs) return 'silent';
    return silentMs > MAX_OPEN_MS ? 'stalled' : 'quiet';
  }

  readonly #handlers: Handlers = {
    wait: () => {
      this.#forgetAttempt();
      return undefined;
    },
    takeAgain: () => {
      this.#forgetAttempt();
      return this.#classified();
    },
    open: () => this.#open(),
    add: () => this.#add(),
    prove: () => this.#prove(),
    drop: async () => {
      await this.#work.drop();
      this.#forgetAttempt();
      return this.#classified();
    },
    skip: async () => {
      const { of } = this.#current;
      assert(of, 'a skipped message names its attempt');
      const reason = this.#whyBroken();
      await this.#work.drop();
      this.#skip({ name: of, why: 'broken', reason });
      return this.#classified();
    },
    recordEnd: () => {
      const { manifest } = this.#current;
      assert(manifest && this.#skipping, 'the manifest of a skipped attempt can be read');
      return this.#recordEnd(this.#skipping, manifest);
    },
    findEnd: () => this.#findEnd(),
    commit: () => this.#commit(),
    rest: () => {
      this.#acknowledge();
      return this.#commit();
    },
    setAside: async () => {
      this.#acknowledge();
      await this.#work.drop();
      return undefined;
    },
    retract: () => this.#retract(false),
    retractEarly: () => this.#retract(true),
    rewind: () => this.#rewind(() => this.#work.undo()),
    isolate: () => this.#rewind(() => this.#work.isolate()),
    close: async () => {
      await this.#work.undo().catch(() => {});
      await this.#reader.close();
      return undefined;
    },
  };

  #forgetAttempt(): void {
    if (this.#machine.state !== 'idle') return;
    this.#attempt = undefined;
    this.#skipping = undefined;
  }

  #skip(skipping: Skipping): void {
    const { partition, attempt } = skipping.name;
    this.#attempt = { partition, attempt };
    this.#skipping = skipping;
    this.#needs.log.debug({ ...this.#attempt, why: skipping.why, reason: skipping.reason }, 'attempt skipped');
  }

  /** Why the attempt of the message cannot be completed. */
  #whyBroken(): string {
    const { frame, fault } = this.#current;
    const found = this.#fault ?? fault;
    if (found !== undefined) return found;
    const before = this.#work.load?.load.frames.length;
    if (before === undefined) return `its first frame is missing: frame ${frame} came first`;
    return `frame ${frame} follows frame ${before - 1}`;
  }

  async #open(): Promise<ProjectorMessage> {
    const { of: name, message, revision, synthetic, dataset } = this.#current;
    assert(name, 'the first message of an attempt names it');
    this.#attempt = name;
    const { partition: key, attempt } = name;
    if ((await this.#work.settle(key, message.seq)) === 'rolled_back') return 'rolled_back';
    const refuse = (why: Skipping['why'], reason: string): ProjectorMessage => {
      this.#skip({ name, why, reason });
      return 'refused';
    };
    const { partition: row, attemptState } = await this.#catalog.partitionStatus(dataset, key, attempt);
    // The checkpoint was lost and the attempt is read a second time: its recorded end stays.
    if (attemptState && ENDED.has(attemptState)) return refuse('ended', `its end was recorded before: ${attemptState}`);
    // The retraction of this attempt follows in the log, and the attempt must not be served before it.
    if (this.#retracted.has(retractionSubject(dataset.key, key, attempt))) {
      return refuse('broken', 'its source retracted it');
    }
    // Only the manifest shows whether a synthetic partition may be replaced, so the attempt is loaded.
    if (row?.state === 'proved' && !row.synthetic && row.revision >= revision) {
      return refuse('proved', `${dataset.key} ${key} is proved`);
    }
    let partition: PartitionRef;
    try {
      partition = { key, ...keyFacts(dataset, key).times };
    } catch (error) {
      return refuse('broken', explain(error));
    }
    const opened = await this.#work.open({ dataset, name, revision, synthetic, first: message.seq }, partition, row);
    if (opened === 'rolled_back') return opened;
    return this.#work.isPending ? 'opened_shared' : 'opened';
  }

  async #add(): Promise<ProjectorMessage | undefined> {
    const { message, decoded } = this.#current;
    const { load } = this.#work;
    assert(load && 'header' in decoded && decoded.header.kind === 'frame', 'a frame is added to its load');
    try {
      await load.load.add(message.seq, decoded.header, await decoded.body);
      return undefined;
    } catch (error) {
      this.#fault = dataFault(error);
      if (this.#fault === undefined) throw error;
      return 'fault';
    }
  }

  async #prove(): Promise<ProjectorMessage> {
    const { message, revision, frame, manifest } = this.#current;
    assert(manifest, 'a manifest that is proved can be read');
    return await this.#work.end(manifest, { revision, frame }, message);
  }

  async #commit(): Promise<ProjectorMessage | undefined> {
    return (await this.#work.commit()) === 'rolled_back' ? 'rolled_back' : undefined;
  }

  async #recordEnd(skipping: Skipping, manifest: Manifest): Promise<ProjectorMessage> {
    const { side } = this.#needs;
    const { message, dataset } = this.#current;
    if ((await this.#work.commit()) === 'rolled_back') return 'rolled_back';
    await endSkipped(side, dataset, skipping, manifest, this.#work.position(message));
    this.#work.advance(message);
    return 'done';
  }

  /**
   * If the damaged message was the manifest, nothing else ends the attempt. The publisher writes a copy to the catalog.
   */
  async #findEnd(): Promise<ProjectorMessage> {
    const { signal } = this.#needs;
    const { of: name, message, dataset, fault = 'it cannot be read' } = this.#current;
    assert(name, 'the attempt of a damaged message is known');
    const broken: Skipping = { name, why: 'broken', reason: fault };
    if (this.#skipping?.why === 'broken') this.#skipping = broken;
    const skipping = this.#skipping ?? broken;
    for (let lookups = 0; lookups < MANIFEST_LOOKUPS && !signal.aborted; lookups++) {
      const attempt = await this.#catalog.attempt(dataset, name.partition, name.attempt);
      if (attempt?.manifestSequence === message.seq && attempt.manifest) {
        return await this.#recordEnd(skipping, attempt.manifest);
      }
      if (attempt?.state !== 'publishing' || attempt.manifestSequence !== null) return 'not_found';
      await delay(100, undefined, { signal }).catch(() => {});
    }
    return signal.aborted ? 'stop' : 'not_found';
  }

  /**
   * The partition leaves service if the retracted attempt is the proved one. `early`: the retraction lies among frames
   * that have to be read again, so the checkpoint stays before it, and the second reading skips it.
   */
  async #retract(early: boolean): Promise<ProjectorMessage> {
    const { client, projection, log } = this.#needs;
    const { of: name, message, dataset, reason = '' } = this.#current;
    assert(name, 'a retraction names its attempt');
    const { partition, attempt } = name;
    await this.#work.drop();
    if ((await this.#work.commit()) === 'rolled_back') return 'rolled_back';
    await client.query('begin');
    // A command may retract the same span: the row is read after the lock, so that only one of the two records it.
    await lockCoverage(client, dataset);
    const row = await new Catalog(client).partition(dataset, partition);
    if (row?.state === 'proved' && row.attempt === attempt) {
      await retractPartition(client, dataset, projection.seconds, row, { reason, by: 'source' });
      log.warn({ dataset: dataset.key, partition, reason }, 'partition retracted');
    }
    if (!early) await moveCheckpoint(client, dataset, this.#work.position(message));
    await client.query('commit');
    this.#retracted.add(retractionSubject(dataset.key, partition, attempt));
    if (early) {
      this.#carriedOut.add(message.seq);
      return 'rolled_back';
    }
    this.#work.advance(message);
    return 'done';
  }

  async #rewind(undo: () => Promise<void>): Promise<ProjectorMessage> {
    await undo();
    this.#prefetched.length = 0;
    // A stopping projector creates no new consumer.
    if (this.#needs.signal.aborted) return 'stop';
    await this.#reader.seek(this.#work.checkpoint);
    return 'sought';
  }

  /** Acknowledges everything that was read, so that the lag that monitors watch goes down. */
  #acknowledge(): void {
    this.#lastMessage?.ack();
    this.#lastMessage = undefined;
  }
}
