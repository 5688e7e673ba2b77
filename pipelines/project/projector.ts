/**
 * The projector of one dataset: turns the log into proved partitions. Its whole memory is the checkpoint in Postgres;
 * killed anywhere, it starts again there and comes to the same end.
 *
 * What a message does, by what is open:
 *
 *   message               nothing open        load of its attempt      load of another      attempt being skipped
 *   frame 0               open                rewind                   drop it, open        skip (other: open)
 *   frame n, in order     rewind              add                      drop it, rewind      skip (other: rewind)
 *   manifest              rewind              prove                    drop it, rewind      record (other: rewind)
 *
 * `rewind` reads again from the checkpoint; the same message met again after that is a broken attempt, quarantined.
 */
import { createHash } from 'node:crypto';
import type { JsMsg } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { Catalog } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import { assert, explain, TidemarkError } from '../../shared/errors.ts';
import { decodeBody, decodeHeader, type Header } from '../../shared/frame/codec.ts';
import { differingFacts, type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/log/logger.ts';
import { describeDiscrepancies, type Recount } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { type Window, windowOf } from '../../shared/registry/partitions.ts';
import type { RowProjector } from '../sources/types.ts';
import { verifyCheckpoint } from './checkpoint.ts';
import { ensureAlignedChunks } from './chunks.ts';
import { type Position, writeProved, writeQuarantined, writeRefused } from './commit.ts';
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

interface Arrived {
  readonly message: JsMsg;
  readonly header: Header;
  readonly body: Promise<Buffer>;
}

type Name = Pick<Header, 'partition' | 'attempt'>;
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
  #skipping: { readonly name: Name; readonly why: 'proved' | 'broken'; reason: string } | undefined;
  #lastMessageAt = 0;
  /** Where the last rewind was caused: coming there again without progress means the attempt is broken. */
  #rewoundAt = 0;

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
    const header = decodeHeader(message.data, place);
    const body = decodeBody(message.data, header, place);
    body.catch(() => {}); // surfaces when the frame's turn comes
    return { message, header, body };
  }

  /** @returns whether to rewind. */
  async #take(arrived: Arrived): Promise<boolean> {
    const { header, message } = arrived;
    if (this.#skipping) {
      if (sameAttempt(this.#skipping.name, header)) {
        if (header.kind === 'manifest') await this.#endSkipped(arrived);
        return false;
      }
      this.#skipping = undefined;
    }
    if (this.#load && !sameAttempt(this.#load.name, header)) await this.#drop();
    if (this.#load === undefined) {
      if (header.kind === 'manifest' || header.frame !== 0)
        return this.#needsRewind(message, header, 'its first frame is missing');
      await this.#open(header);
      if (this.#load === undefined) return false;
    }
    const expected = (this.#load as { load: PartitionLoad }).load.frames.length;
    if (header.frame !== expected) {
      await this.#drop();
      return this.#needsRewind(message, header, `frame ${header.frame} follows frame ${expected - 1}`);
    }
    if (header.kind === 'manifest') await this.#prove(arrived);
    else await this.#add(arrived);
    return false;
  }

  #needsRewind(message: JsMsg, header: Header, reason: string): boolean {
    if (this.#rewoundAt === message.seq) {
      this.#skip(header, 'broken', reason);
      return false;
    }
    this.#rewoundAt = message.seq;
    return true;
  }

  #skip(header: Header, why: 'proved' | 'broken', reason: string): void {
    const { partition, attempt } = header;
    this.#skipping = { name: { partition, attempt }, why, reason };
    this.#needs.log.debug({ partition, attempt, why, reason }, 'attempt skipped');
  }

  async #open(header: Header): Promise<void> {
    const { dataset, client, side, createRows } = this.#needs;
    const row = await this.#catalog.partition(dataset, header.partition);
    // Whether a synthetic partition may be replaced is known only with the manifest, so it is loaded over.
    if (row?.state === 'proved' && !row.synthetic && row.revision >= header.revision) {
      this.#skip(header, 'proved', `${dataset.key} ${header.partition} is proved`);
      return;
    }
    const window = windowOf(dataset, header.partition);
    await ensureAlignedChunks(side, dataset, window);
    await client.query('begin');
    const load = await PartitionLoad.open(client, {
      dataset,
      window,
      projector: createRows({ key: header.partition, ...window }),
      seriesId: this.#seriesId,
      replace: row?.state === 'proved',
    });
    const { partition, attempt } = header;
    this.#load = { name: { partition, attempt }, load, openedAt: performance.now() };
  }

  async #add(arrived: Arrived): Promise<void> {
    const { header, message } = arrived;
    assert(this.#load && header.kind === 'frame', 'a frame is added to its load');
    try {
      await this.#load.load.add(message.seq, header, await arrived.body);
    } catch (error) {
      if (!(error instanceof TidemarkError) || error.code !== 'LOG_FRAME_CORRUPT') throw error;
      await this.#drop();
      this.#skip(header, 'broken', error.message);
    }
  }

  async #prove(arrived: Arrived): Promise<void> {
    const { dataset, client, log } = this.#needs;
    const { load, openedAt } = this.#load!;
    const manifest = await this.#manifest(arrived);
    const position = this.#position(arrived);
    const startedAt = performance.now();
    let reason: string | undefined;
    let found: Recount | null = null;
    let steps: Readonly<Record<string, number>> = {};
    try {
      const mixed = await this.#mixesSample(manifest);
      const result = await load.finish(manifest);
      found = result.recount;
      steps = result.steps;
      reason = mixed ?? (describeDiscrepancies(result.discrepancies) || undefined);
      if (reason === undefined) {
        await writeProved(client, dataset, manifest, result, load.frames, position);
        await client.query('commit');
      }
    } catch (error) {
      reason = proofFault(error);
      if (reason === undefined) throw error;
    }
    this.#load = undefined;
    if (reason !== undefined) {
      await load.abort();
      await client.query('rollback');
      await writeQuarantined(client, dataset, manifest, reason, found, position);
    }
    this.#advance(arrived);
    log[reason === undefined ? 'info' : 'error'](
      {
        dataset: dataset.key,
        partition: manifest.partition,
        attempt: manifest.attempt,
        rows: manifest.rows,
        load_ms: Math.round(startedAt - openedAt),
        proof_ms: Math.round(performance.now() - startedAt),
        ...steps,
        reason,
      },
      reason === undefined ? 'partition proved' : 'partition quarantined',
    );
  }

  /** Synthetic rows never join real ones; real ones retire the sample (see writeProved). */
  async #mixesSample(manifest: Manifest): Promise<string | undefined> {
    const coverage = await this.#catalog.coverage(this.#needs.dataset);
    const real = coverage !== undefined && !coverage.synthetic && coverage.proved !== '{}';
    return manifest.synthetic && real ? 'a synthetic sample does not join real partitions' : undefined;
  }

  /** The manifest of an attempt that was passed over: a repetition, a late arrival or a broken attempt. */
  async #endSkipped(arrived: Arrived): Promise<void> {
    const { dataset, side } = this.#needs;
    const { why, reason } = this.#skipping!;
    this.#skipping = undefined;
    const manifest = await this.#manifest(arrived);
    const position = this.#position(arrived);
    if (why === 'broken') {
      await writeQuarantined(side, dataset, manifest, reason, null, position);
    } else {
      const proved = await this.#catalog.partition(dataset, manifest.partition);
      const differing = proved?.manifest ? differingFacts(proved.manifest, manifest) : [];
      if (proved?.attempt === manifest.attempt && differing.length === 0) {
        this.#advance(arrived); // met again after the checkpoint was lost: nothing new
        return;
      }
      const what = differing.length > 0 ? `${reason} with other content (${differing.join(', ')})` : reason;
      await writeRefused(side, dataset, manifest, what, differing.length > 0, position);
    }
    this.#advance(arrived);
  }

  async #manifest(arrived: Arrived): Promise<Manifest> {
    return parseManifest(await arrived.body, `${this.#needs.dataset.key} sequence ${arrived.message.seq}`);
  }

  #position({ message }: Arrived): Position {
    return {
      streamCreated: this.#streamCreated,
      sequence: message.seq,
      messageSha256: createHash('sha256').update(message.data).digest('hex'),
    };
  }

  #advance({ message }: Arrived): void {
    this.#checkpoint = message.seq;
    this.#rewoundAt = 0;
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

  /** An attempt that stopped coming must not hold a transaction; it is read again from the checkpoint if it goes on. */
  async #noticeSilence(): Promise<void> {
    if (this.#load && performance.now() - this.#lastMessageAt > this.#needs.silenceMs) await this.#drop();
  }
}

/** Database refusals that speak of the data, not of the database: a repeated key, overlapping ids. */
function proofFault(error: unknown): string | undefined {
  const code = (error as { code?: unknown }).code;
  if (code === '23505') return `rows repeat: ${explain(error)}`;
  if (code === '23P01') return `ids overlap another proved partition: ${explain(error)}`;
  if (code === '23514') return `rows lie outside their chunk: ${explain(error)}`;
  if (error instanceof TidemarkError && error.code === 'LOG_FRAME_CORRUPT') return error.message;
  return undefined;
}
