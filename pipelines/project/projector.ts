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
 *
 * `broken`: frames are missing or damaged; the rest is passed over and the manifest quarantines the partition. An
 * attempt that falls silent is set aside, so that no transaction stays open for it; when it goes on, everything since
 * the checkpoint is read again.
 */
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { JsMsg } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { DatabaseError } from 'pg';
import { Catalog } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import { assert, explain, TidemarkError } from '../../shared/errors.ts';
import {
  decodeBody,
  decodeHeader,
  type FrameHeader,
  type Header,
  type ManifestHeader,
} from '../../shared/frame/codec.ts';
import { differingFacts, type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/log/logger.ts';
import { attemptFilter } from '../../shared/nats/stream.ts';
import { type Discrepancy, describeDiscrepancies, type Recount } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { type Window, windowOf } from '../../shared/registry/partitions.ts';
import type { RowProjector } from '../sources/types.ts';
import { verifyCheckpoint } from './checkpoint.ts';
import { ensureAlignedChunks } from './chunks.ts';
import { moveCheckpoint, type Position, writeProved, writeQuarantined, writeRefused } from './commit.ts';
import { LogReader } from './log-reader.ts';
import { PartitionLoad } from './partition-load.ts';

export interface ProjectorNeeds {
  readonly dataset: DatasetDefinition;
  readonly connection: NatsConnection;
  /** The load's own connection: a transaction is open on it most of the time. */
  readonly client: Client;
  /** For short work beside the load. */
  readonly side: Client;
  readonly createRows: (window: Window & { key: string }) => RowProjector;
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

/** How often a manifest's copy in the catalog is looked for, 100 ms apart: its publisher writes it after the log. */
const MANIFEST_LOOKUPS = 50;

interface Readable<H extends Header = Header> {
  readonly message: JsMsg;
  readonly header: H;
  readonly body: Promise<Buffer>;
}

type Arrived = Readable | { readonly message: JsMsg; readonly fault: string };

type Name = Pick<Header, 'partition' | 'attempt'>;
/** Why an attempt is passed over: its partition is proved, it came to its end before, or it cannot be completed. */
type Why = 'proved' | 'ended' | 'broken';
const sameAttempt = (a: Name | undefined, b: Name) => a?.partition === b.partition && a.attempt === b.attempt;

export class Projector {
  readonly #needs: ProjectorNeeds;
  readonly #reader: LogReader;
  readonly #catalog: Catalog;
  #streamCreated = new Date(0);
  #seriesId = 0;
  #checkpoint = 0;
  #load: { readonly name: Name; readonly load: PartitionLoad; readonly openedAt: number } | undefined;
  /** An attempt whose frames are passed over until its manifest, and why. */
  #skipping: { readonly name: Name; readonly why: Why; reason: string } | undefined;
  /** An attempt that fell silent: its next message means reading again from the checkpoint. */
  #silent: Name | undefined;
  #lastMessageAt = 0;
  #lastMessage: JsMsg | undefined;

  constructor(needs: ProjectorNeeds) {
    this.#needs = needs;
    this.#reader = new LogReader(needs.connection, needs.dataset.key, needs.pullMaxBytes);
    this.#catalog = new Catalog(needs.side);
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
    await this.#reader.seek(this.#checkpoint);
    try {
      const ahead: Arrived[] = [];
      while (!signal.aborted) {
        const message = await this.#reader.read(ahead.length > 0 ? 0 : IDLE_MS);
        if (message) {
          this.#lastMessageAt = performance.now();
          this.#lastMessage = message;
          ahead.push(this.#unpack(message));
          if (ahead.length < LOOKAHEAD) continue;
        }
        const next = ahead.shift();
        const rewind = next !== undefined && (await this.#take(next));
        if (rewind) {
          ahead.length = 0;
          await this.#rewind();
        } else if (!next) {
          await this.#noticeSilence();
        }
      }
    } finally {
      await this.#drop();
      await this.#reader.close();
    }
  }

  #unpack(message: JsMsg): Arrived {
    const place = `${this.#needs.dataset.key} sequence ${message.seq}`;
    try {
      const header = decodeHeader(message.data, place);
      const body = decodeBody(message.data, header, place);
      body.catch(() => {}); // surfaces when the frame's turn comes
      return { message, header, body };
    } catch (error) {
      return { message, fault: explain(error) };
    }
  }

  /** @returns whether to rewind. */
  async #take(arrived: Arrived): Promise<boolean> {
    if (!('header' in arrived)) {
      await this.#takeUnreadable(arrived.message, arrived.fault);
      return false;
    }
    const { header } = arrived;
    if (sameAttempt(this.#silent, header)) {
      this.#silent = undefined;
      return true;
    }
    if (this.#load && !sameAttempt(this.#load.name, header)) await this.#drop();
    if (this.#skipping && !sameAttempt(this.#skipping.name, header)) this.#skipping = undefined;
    if (!this.#load && !this.#skipping) {
      if (header.kind === 'frame' && header.frame === 0) await this.#open(header);
      else this.#skip(header, 'broken', `its first frame is missing: frame ${header.frame} came first`);
    }
    const next = this.#load?.load.frames.length;
    if (next !== undefined && header.frame !== next)
      await this.#break(header, `frame ${header.frame} follows frame ${next - 1}`);
    if (header.kind === 'frame') {
      if (this.#load) await this.#add({ ...arrived, header });
    } else {
      await this.#end({ ...arrived, header });
    }
    return false;
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
        await writeQuarantined(this.#needs.side, dataset, attempt.manifest, fault, null, this.#position(message));
        this.#advance(message);
        return;
      }
      if (attempt?.state !== 'publishing' || attempt.manifestSequence !== null) return;
      await delay(100, undefined, { signal: this.#needs.signal }).catch(() => {});
    }
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

  async #open(header: Header): Promise<void> {
    const { dataset, client, side, createRows } = this.#needs;
    // Met again because the checkpoint was lost: what it came to is on record, and stays.
    const before = await this.#catalog.attempt(dataset, header.partition, header.attempt);
    if (before && ENDED.has(before.state)) {
      this.#skip(header, 'ended', `it came to its end before: ${before.state}`);
      return;
    }
    const row = await this.#catalog.partition(dataset, header.partition);
    // Whether a synthetic partition may be replaced is known only with the manifest, so it is loaded over.
    if (row?.state === 'proved' && !row.synthetic && row.revision >= header.revision) {
      this.#skip(header, 'proved', `${dataset.key} ${header.partition} is proved`);
      return;
    }
    let window: Window;
    try {
      window = windowOf(dataset, header.partition);
    } catch (error) {
      this.#skip(header, 'broken', explain(error));
      return;
    }
    await ensureAlignedChunks(side, dataset, window);
    await client.query('begin');
    const load = await PartitionLoad.open(client, {
      dataset,
      window,
      projector: createRows({ key: header.partition, ...window }),
      seriesId: this.#seriesId,
    });
    const { partition, attempt } = header;
    this.#load = { name: { partition, attempt }, load, openedAt: performance.now() };
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
    const position = this.#position(arrived.message);
    if (this.#load) await this.#prove(manifest, misstatements(manifest, arrived.header, this.#load.load), position);
    else await this.#endSkipped(manifest, position);
    this.#advance(arrived.message);
  }

  async #prove(manifest: Manifest, misstated: readonly Discrepancy[], position: Position): Promise<void> {
    const { dataset, client, log } = this.#needs;
    const { load, openedAt, name } = this.#load!;
    const startedAt = performance.now();
    let reason = (await this.#mixesSample(manifest)) ?? (describeDiscrepancies(misstated) || undefined);
    let found: Recount | null = null;
    let steps: Readonly<Record<string, number>> = {};
    try {
      const result = await load.finish(manifest);
      found = result.recount;
      steps = result.steps;
      reason ??= describeDiscrepancies(result.discrepancies) || undefined;
      if (reason === undefined) {
        await writeProved(client, dataset, manifest, result, load.frames, position);
        await client.query('commit');
      }
    } catch (error) {
      reason ??= dataFault(error);
      if (reason === undefined) throw error;
    }
    this.#load = undefined;
    if (reason !== undefined) {
      await load.abort();
      await client.query('rollback');
      await writeQuarantined(client, dataset, inItsPlace(manifest, name, load), reason, found, position);
    }
    const { partition, attempt, rows } = manifest;
    const times = {
      load_ms: Math.round(startedAt - openedAt),
      proof_ms: Math.round(performance.now() - startedAt),
      ...steps,
    };
    const facts = { dataset: dataset.key, partition, attempt, rows, ...times, reason };
    if (reason === undefined) log.info(facts, 'partition proved');
    else log.error(facts, 'partition quarantined');
  }

  /** Synthetic rows never join real ones; real ones retire the sample (see writeProved). */
  async #mixesSample(manifest: Manifest): Promise<string | undefined> {
    const coverage = await this.#catalog.coverage(this.#needs.dataset);
    const real = coverage !== undefined && !coverage.synthetic && coverage.proved !== '{}';
    return manifest.synthetic && real ? 'a synthetic sample does not join real partitions' : undefined;
  }

  /** An attempt that was passed over: a repetition, a late arrival, or a broken one. */
  async #endSkipped(manifest: Manifest, position: Position): Promise<void> {
    const { dataset, side } = this.#needs;
    assert(this.#skipping, 'an attempt that is not loaded is skipped');
    const { why, reason, name } = this.#skipping;
    this.#skipping = undefined;
    const named = { ...manifest, partition: name.partition, attempt: name.attempt };
    const known = await this.#catalog.partition(dataset, name.partition);
    if (why === 'ended') {
      await moveCheckpoint(side, dataset, position);
      return;
    }
    if (why === 'proved') {
      const differing = known?.manifest ? differingFacts(known.manifest, manifest) : [];
      // Met again after the checkpoint was lost: nothing new.
      if (known?.attempt === name.attempt && differing.length === 0) return;
      const what = differing.length > 0 ? `${reason} with other content (${differing.join(', ')})` : reason;
      await writeRefused(side, dataset, named, what, differing.length > 0, position);
      return;
    }
    let window: Window;
    try {
      window = windowOf(dataset, name.partition);
    } catch {
      await writeRefused(side, dataset, named, reason, true, position);
      return;
    }
    const { fromMs: from_ms, toMs: to_ms } = window;
    await writeQuarantined(side, dataset, { ...named, from_ms, to_ms }, reason, null, position);
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

  /** Rolls the open load back; its frames are still in the log. */
  async #drop(): Promise<void> {
    const open = this.#load;
    this.#load = undefined;
    if (!open) return;
    this.#needs.log.debug({ ...open.name, frames: open.load.frames.length }, 'load dropped');
    await open.load.abort();
    await this.#needs.client.query('rollback').catch(() => {});
  }

  async #rewind(): Promise<void> {
    await this.#drop();
    await this.#reader.seek(this.#checkpoint);
  }

  async #noticeSilence(): Promise<void> {
    if (!this.#lastMessage || performance.now() - this.#lastMessageAt <= this.#needs.silenceMs) return;
    // Nothing is left to do with what was read, so the lag that monitors watch goes down.
    this.#lastMessage.ack();
    this.#lastMessage = undefined;
    if (!this.#load) return;
    this.#silent = this.#load.name;
    await this.#drop();
  }
}

/** What a manifest says of itself, against where it lies and what came before it. */
function misstatements(manifest: Manifest, header: ManifestHeader, load: PartitionLoad): Discrepancy[] {
  const { fromMs, toMs } = load.window;
  const facts: [string, unknown, unknown][] = [
    ['manifest.partition', header.partition, manifest.partition],
    ['manifest.attempt', header.attempt, manifest.attempt],
    ['manifest.revision', header.revision, manifest.revision],
    ['manifest.frames', header.frame, manifest.frames],
    ['manifest.first_sequence', load.frames[0]?.sequence, manifest.first_sequence],
    ['manifest.from_ms', fromMs, manifest.from_ms],
    ['manifest.to_ms', toMs, manifest.to_ms],
  ];
  return facts
    .filter(([, expected, found]) => expected !== found)
    .map(([fact, expected, found]) => ({ fact, expected: String(expected), found: String(found) }));
}

/** The manifest with what it should have said of itself: a quarantined partition stands where it belongs. */
const inItsPlace = (manifest: Manifest, { partition, attempt }: Name, load: PartitionLoad): Manifest => ({
  ...manifest,
  partition,
  attempt,
  from_ms: load.window.fromMs,
  to_ms: load.window.toMs,
});

/** Refusals that speak of the data, not of the stores: they quarantine; everything else starts the projector again. */
function dataFault(error: unknown): string | undefined {
  if (error instanceof TidemarkError) return error.code === 'LOG_FRAME_CORRUPT' ? error.message : undefined;
  if (!(error instanceof DatabaseError)) return undefined;
  if (error.code === '23505') return `rows repeat: ${explain(error)}`;
  if (error.code === '23P01') return `ids overlap another proved partition: ${error.detail ?? explain(error)}`;
  // Class 22: values out of range or malformed; 23: other constraints.
  return /^2[23]/.test(error.code ?? '') ? `the database refuses the rows: ${explain(error)}` : undefined;
}
