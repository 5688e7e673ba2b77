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
 * An empty partition has no frame: its manifest opens it and ends it. `broken`: frames are missing or damaged; the rest
 * is passed over and the manifest quarantines the partition. An attempt that falls silent is set aside, so that no
 * transaction stays open for it; when it goes on, everything since the checkpoint is read again.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { type JsMsg, jetstreamManager } from '@nats-io/jetstream';
import { Catalog } from '../../shared/db/catalog.ts';
import { assert, explain } from '../../shared/errors.ts';
import type { FrameHeader, Header, ManifestHeader, Retraction, RetractionHeader } from '../../shared/frame/codec.ts';
import { type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import { attemptFilter, withheldSubject, withheldSubjects } from '../../shared/nats/stream.ts';
import type { PartitionRef } from '../../shared/proof/recount.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import { endSkipped, type Skipping, type Why } from './checkpoint.ts';
import { moveCheckpoint, writeQuarantined } from './commit.ts';
import { dataFault } from './faults.ts';
import { LoadSession, type LoadSessionOptions, MAX_OPEN_MS, RewindRequired } from './load-session.ts';
import { type AttemptId, type DecodedMessage, decodeMessage, LogReader, type ReadableMessage } from './log-reader.ts';
import { retractPartition } from './retract.ts';

export interface ProjectorNeeds extends LoadSessionOptions {
  readonly pullMaxBytes: number;
  readonly silenceMs: number;
  readonly signal: AbortSignal;
}

/** Frames being unpacked ahead of the one being stored: enough to keep the thread pool busy, 4 x 4 MiB at most. */
const LOOKAHEAD = 4;

/** How long to wait for a message before looking at the clock and the signal. */
const IDLE_MS = 100;

/** States of an attempt that nothing changes any more. */
const ENDED: ReadonlySet<string> = new Set(['proved', 'quarantined', 'refused']);

/** How often a manifest's copy in the catalog is looked for, 100 ms apart: its publisher writes it after the log. */
const MANIFEST_LOOKUPS = 50;

const sameAttempt = (a: AttemptId | undefined, b: AttemptId) => a?.partition === b.partition && a.attempt === b.attempt;

export class Projector {
  readonly #needs: ProjectorNeeds;
  readonly #reader: LogReader;
  /** Sees what is committed. */
  readonly #catalog: Catalog;
  readonly #work: LoadSession;
  /** Subjects of the marks of withheld attempts that were in the log at the start. */
  #withheld: ReadonlySet<string> = new Set();
  /** Sequences of marks that were met among another attempt's frames, and heeded. */
  readonly #heeded = new Set<number>();
  /** An attempt whose frames are passed over until its manifest, and why. */
  #skipping: Skipping | undefined;
  /** An attempt that fell silent: its next message means reading again from the checkpoint. */
  #silent: AttemptId | undefined;
  #lastMessageAt = 0;
  #lastMessage: JsMsg | undefined;

  constructor(needs: ProjectorNeeds) {
    this.#needs = needs;
    this.#reader = new LogReader(needs.connection, needs.dataset.key, needs.pullMaxBytes, needs.signal);
    this.#catalog = new Catalog(needs.side);
    this.#work = new LoadSession(needs);
  }

  /**
   * Projects until the signal. @throws whatever storage or the log throw: the caller starts a new projector, which
   * begins at the checkpoint. TidemarkError LOG_REWOUND when the log is not the one the checkpoint was taken on.
   */
  async run(): Promise<void> {
    const { dataset, connection, signal } = this.#needs;
    await this.#work.prepare();
    this.#withheld = await withheldSubjects(await jetstreamManager(connection, { checkAPI: false }), dataset.key);
    await this.#reader.seek(this.#work.checkpoint);
    try {
      const ahead: DecodedMessage[] = [];
      while (!signal.aborted) {
        const message = await this.#reader.read(ahead.length > 0 ? 0 : IDLE_MS);
        if (message) {
          this.#lastMessageAt = performance.now();
          this.#lastMessage = message;
          ahead.push(decodeMessage(this.#needs.dataset, message));
          if (ahead.length < LOOKAHEAD) continue;
        }
        try {
          await this.#step(ahead.shift());
        } catch (error) {
          if (!(error instanceof RewindRequired)) throw error;
          ahead.length = 0;
          await this.#rewind();
        }
      }
    } finally {
      await this.#work.undo().catch(() => {});
      await this.#reader.close();
    }
  }

  async #step(next: DecodedMessage | undefined): Promise<void> {
    if (next) await this.#take(next);
    else await this.#noticeSilence();
    if (!this.#work.load && (!next || this.#work.isDue)) await this.#work.commit();
  }

  async #take(arrived: DecodedMessage): Promise<void> {
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
      await this.#work.drop();
      throw new RewindRequired();
    }
    if (this.#work.load && !sameAttempt(this.#work.load.name, header)) await this.#work.drop();
    if (this.#skipping && !sameAttempt(this.#skipping.name, header)) this.#skipping = undefined;
    if (!this.#work.load && !this.#skipping) {
      if (header.frame === 0 && (header.kind === 'frame' || this.#mayBeEmpty)) {
        await this.#open(header, arrived.message.seq);
      } else this.#skip(header, 'broken', `its first frame is missing: frame ${header.frame} came first`);
    }
    const next = this.#work.load?.load.frames.length;
    if (next !== undefined && header.frame !== next)
      await this.#break(header, `frame ${header.frame} follows frame ${next - 1}`);
    if (header.kind === 'frame') {
      if (this.#work.load) await this.#add({ ...arrived, header });
    } else {
      await this.#end({ ...arrived, header });
    }
  }

  /** A message whose header cannot be read. Its subject still says whose it is. */
  async #takeUnreadable(message: JsMsg, fault: string): Promise<void> {
    const { dataset, log } = this.#needs;
    log.error({ dataset: dataset.key, sequence: message.seq, subject: message.subject, fault }, 'unreadable message');
    const open = this.#work.load?.name ?? this.#skipping?.name;
    if (!open || !message.subject.startsWith(attemptFilter(dataset.key, open.partition, open.attempt).slice(0, -1)))
      return;
    await this.#break(open, fault);
    // Was it the manifest? Then nothing else will end the attempt; its publisher put a copy into the catalog.
    for (let tries = 0; tries < MANIFEST_LOOKUPS; tries++) {
      const attempt = await this.#catalog.attempt(dataset, open.partition, open.attempt);
      if (attempt?.manifestSequence === message.seq && attempt.manifest) {
        this.#skipping = undefined;
        await this.#work.commit();
        await writeQuarantined(this.#needs.side, dataset, attempt.manifest, fault, null, this.#work.position(message));
        this.#work.advance(message);
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
  async #withhold({ message, header, body }: ReadableMessage<RetractionHeader>): Promise<void> {
    if (this.#heeded.has(message.seq)) return;
    const among = this.#work.load !== undefined || this.#skipping !== undefined;
    await this.#work.drop();
    await this.#work.commit();
    let reason: string;
    try {
      ({ reason } = JSON.parse(String(await body)) as Retraction);
    } catch (error) {
      await this.#takeUnreadable(message, explain(error));
      return;
    }
    const { dataset, client, projection, log } = this.#needs;
    await client.query('begin');
    const row = await new Catalog(client).partition(dataset, header.partition);
    if (row?.state === 'proved' && row.attempt === header.attempt) {
      await retractPartition(client, dataset, projection.seconds, row, { reason, by: 'source' });
      log.warn({ dataset: dataset.key, partition: header.partition, reason }, 'partition withheld');
    }
    if (!among) await moveCheckpoint(client, dataset, this.#work.position(message));
    await client.query('commit');
    if (!among) {
      this.#work.advance(message);
      return;
    }
    this.#heeded.add(message.seq);
    throw new RewindRequired();
  }

  #skip(name: AttemptId, why: Why, reason: string): void {
    const { partition, attempt } = name;
    this.#skipping = { name: { partition, attempt }, why, reason };
    this.#needs.log.debug({ partition, attempt, why, reason }, 'attempt skipped');
  }

  /** The attempt cannot be completed: its rows go, its remaining messages are passed over. */
  async #break(name: AttemptId, reason: string): Promise<void> {
    await this.#work.drop();
    if (!this.#skipping || this.#skipping.why === 'broken') this.#skip(name, 'broken', reason);
  }

  /** A file day always holds something; a snapshot or a capture need not. */
  get #mayBeEmpty(): boolean {
    return this.#needs.dataset.partition.kind !== 'file_day';
  }

  async #open(header: Header, first: number): Promise<void> {
    const { dataset } = this.#needs;
    await this.#work.settle(header.partition, first);
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
    await this.#work.open(header, first, partition, row);
  }

  async #add(arrived: ReadableMessage<FrameHeader>): Promise<void> {
    const { header, message } = arrived;
    assert(this.#work.load, 'a frame is added to its load');
    try {
      await this.#work.load.load.add(message.seq, header, await arrived.body);
    } catch (error) {
      const fault = dataFault(error);
      if (fault === undefined) throw error;
      await this.#break(header, fault);
    }
  }

  /** The manifest: proves what is loaded, or records the end of what was passed over. */
  async #end(arrived: ReadableMessage<ManifestHeader>): Promise<void> {
    const { dataset } = this.#needs;
    let manifest: Manifest;
    try {
      manifest = parseManifest(await arrived.body, `${dataset.key} sequence ${arrived.message.seq}`);
    } catch (error) {
      await this.#takeUnreadable(arrived.message, explain(error));
      return;
    }
    const { message, header } = arrived;
    if (this.#work.load) {
      await this.#work.end(manifest, header, message);
    } else {
      await this.#work.commit();
      assert(this.#skipping, 'an attempt that is not loaded is skipped');
      await endSkipped(this.#needs.side, dataset, this.#skipping, manifest, this.#work.position(message));
      this.#skipping = undefined;
      this.#work.advance(message);
    }
  }

  async #rewind(): Promise<void> {
    await this.#work.undo();
    this.#skipping = undefined;
    await this.#reader.seek(this.#work.checkpoint);
  }

  /** Nothing has come for a while. */
  async #noticeSilence(): Promise<void> {
    if (!this.#lastMessage) return;
    const silentMs = performance.now() - this.#lastMessageAt;
    // Others wait for a load that does not go on: they are committed, and it is read again from the log.
    if (this.#work.load && this.#work.isPending && silentMs > MAX_OPEN_MS) await this.#work.drop();
    if (silentMs <= this.#needs.silenceMs) return;
    // Nothing is left to do with what was read, so the lag that monitors watch goes down.
    this.#lastMessage.ack();
    this.#lastMessage = undefined;
    if (!this.#work.load) return;
    this.#silent = this.#work.load.name;
    await this.#work.drop();
  }
}
