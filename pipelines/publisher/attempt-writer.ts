/**
 * Writes the frames and the manifest of one attempt to the log: pipelined, in order, idempotent. The log takes one message
 * for each subject (expected last subject sequence 0). A retry after a lost acknowledgement therefore finds its own message
 * and compares it; a message with other content is a conflict.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { type JetStreamClient, type JetStreamManager, jetstream, jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { assert, codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import {
  decodeHeader,
  decodeMessage,
  encodeMessage,
  type FrameHeader,
  type Header,
  type ManifestHeader,
} from '../../shared/frame/codec.ts';
import { type DocumentFacts, type Manifest, parseManifest } from '../../shared/frame/manifest.ts';
import { OUTAGE_LIMIT_MS } from '../../shared/nats/connect.ts';
import { JS_ERROR, jsErrorCode, messageAt, subjectOf } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { EventRun, PartitionEnd } from '../sources/feed-types.ts';

const ACK_TIMEOUT_MS = 10_000;

/** The attempt that a writer fills. */
interface AttemptDescription {
  readonly dataset: DatasetDefinition;
  /** The partition. For a later capture of a day it differs from the key in the document's items. */
  readonly key: string;
  readonly attempt: number;
  readonly revision: number;
  readonly document: DocumentFacts;
  readonly synthetic: boolean;
  readonly pinned?: Manifest['pinned'];
}

/** A manifest that the log holds. */
export interface StoredManifest {
  readonly dataset: DatasetDefinition;
  readonly manifest: Manifest;
  readonly sequence: number;
}

export class AttemptWriter {
  readonly #client: JetStreamClient;
  readonly #manager: JetStreamManager;
  readonly #of: AttemptDescription;
  readonly #window: number;
  readonly #inFlight = new Set<Promise<void>>();
  #failure: unknown;
  #frames = 0;
  /** Settles when the previous message has been handed to the connection. */
  #turn: Promise<void> = Promise.resolve();
  #bytes = 0;
  /** Whether the log held one of the messages before: an interrupted run wrote it. */
  #metStored = false;
  /** Stream sequence by frame number: a few hundred a day. */
  readonly #sequences: number[] = [];

  private constructor(client: JetStreamClient, manager: JetStreamManager, of: AttemptDescription, window: number) {
    this.#client = client;
    this.#manager = manager;
    this.#of = of;
    this.#window = window;
  }

  static async open(connection: NatsConnection, of: AttemptDescription, window: number): Promise<AttemptWriter> {
    const manager = await jetstreamManager(connection, { checkAPI: false });
    return new AttemptWriter(jetstream(connection), manager, of, window);
  }

  get key(): string {
    return this.#of.key;
  }

  get attempt(): number {
    return this.#of.attempt;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Writes the events as the next frame. Returns while they are still on their way, and waits while the window is full. */
  async writeFrame(run: EventRun): Promise<void> {
    await this.#write(this.#encodeFrame(run, this.#frames));
  }

  async #encodeFrame(run: EventRun, frame: number): Promise<Buffer> {
    const { part, parts, written } = run;
    const message = await encodeMessage<FrameHeader>(
      {
        kind: 'frame',
        encoding: this.#of.dataset.events.encoding,
        ...this.#header(frame),
        rows: run.rows,
        first_offset: run.first_offset,
        last_offset: run.last_offset,
        first_ms: run.first_ms,
        last_ms: run.last_ms,
        ...written,
        ...(part === undefined ? {} : { part, parts }),
        ...(this.#of.synthetic ? { synthetic: true } : {}),
      },
      run.raw,
    );
    run.release?.();
    return message;
  }

  /** Writes the manifest. The caller flushes the frames first, because a manifest vouches for what the log already holds. */
  async writeManifest(end: PartitionEnd, ingestedAtMs: number): Promise<StoredManifest> {
    const { dataset, key, revision, attempt, document, synthetic, pinned = {} } = this.#of;
    const [first] = this.#sequences;
    assert(first !== undefined || end.facts.rows === 0, 'an attempt with rows has a first frame');
    const frames = this.#frames;
    const manifest: Manifest = {
      format: 1,
      dataset: dataset.key,
      partition: key,
      revision,
      attempt,
      frames,
      first_sequence: first ?? 0,
      from_ms: end.partition.fromMs,
      to_ms: end.partition.toMs,
      synthetic,
      ...end.facts,
      document,
      ...(Object.keys(pinned).length > 0 ? { pinned } : {}),
      ingested_at_ms: ingestedAtMs,
    };
    const { document_sha256, ...name } = this.#header(frames);
    await this.#write(
      encodeMessage<ManifestHeader>(
        { kind: 'manifest', ...name, ...(synthetic ? { synthetic } : {}), document_sha256 },
        Buffer.from(JSON.stringify(manifest)),
      ),
    );
    const sequence = await this.flush();
    // If an interrupted run wrote it, its ingest time is kept.
    return { dataset, manifest: this.#metStored ? await this.#storedManifest(sequence) : manifest, sequence };
  }

  #header(frame: number) {
    const { dataset, key, revision, attempt, document } = this.#of;
    return { dataset: dataset.key, partition: key, revision, attempt, frame, document_sha256: document.sha256 };
  }

  async #storedManifest(sequence: number): Promise<Manifest> {
    const { key } = this.#of.dataset;
    const position = `${key} sequence ${sequence}`;
    const stored = await messageAt(this.#manager, key, sequence);
    assert(stored, `the manifest at ${position} was acknowledged`);
    return parseManifest((await decodeMessage(stored.data, position)).raw, position);
  }

  /**
   * Takes the next message, which may still be compressing. Messages are sent in the order of these calls, and a call
   * throws the failure of an earlier one.
   */
  async #write(message: Promise<Buffer>): Promise<void> {
    message.catch(() => {}); // #sendInTurn awaits it and records its failure.
    while (this.#inFlight.size >= this.#window) await Promise.race(this.#inFlight);
    if (this.#failure) throw this.#failure;
    const frame = this.#frames++;
    const before = this.#turn;
    const turn = Promise.withResolvers<void>();
    this.#turn = turn.promise;
    const sent: Promise<void> = this.#sendInTurn(frame, message, before, turn.resolve)
      .catch((error) => {
        this.#failure ??= error;
      })
      .finally(() => {
        turn.resolve();
        this.#inFlight.delete(sent);
      });
    this.#inFlight.add(sent);
  }

  async #sendInTurn(frame: number, message: Promise<Buffer>, before: Promise<void>, pass: () => void): Promise<void> {
    const bytes = await message;
    await before;
    if (this.#failure) throw this.#failure;
    this.#bytes += bytes.length;
    const acknowledged = this.#send(frame, bytes);
    pass();
    this.#sequences[frame] = await acknowledged;
  }

  /**
   * Waits until everything written is acknowledged. @returns the sequence of the last message.
   * @throws TidemarkError LOG_CONFLICT when the log does not hold the frames in their order, which readers rely on. A
   *   message that was lost and sent again after its successor breaks the order; a new attempt repairs it.
   */
  async flush(): Promise<number> {
    while (this.#inFlight.size > 0) await Promise.race(this.#inFlight);
    if (this.#failure) throw this.#failure;
    const misplaced = this.#sequences.findIndex(
      (sequence, frame) => frame > 0 && sequence <= this.#sequences[frame - 1],
    );
    if (misplaced >= 0) {
      throw new TidemarkError('LOG_CONFLICT', `Frame ${misplaced} of ${this.#describe()} lies before its predecessor`);
    }
    return this.#sequences[this.#sequences.length - 1] ?? 0;
  }

  /**
   * Sends nothing more, and waits for what is on its way. Otherwise a retry of this writer could put a frame among those of
   * the attempt that follows, which could then not be proved.
   */
  async stop(): Promise<void> {
    this.#failure ??= new Error('the writer was stopped');
    while (this.#inFlight.size > 0) await Promise.race(this.#inFlight);
  }

  async #send(frame: number, bytes: Buffer): Promise<number> {
    const { key: partition, attempt } = this.#of;
    const dataset = this.#of.dataset.key;
    const subject = subjectOf(dataset, partition, attempt, frame);
    const startedAt = performance.now();
    for (let tries = 0; ; tries++) {
      try {
        const ack = await this.#client.publish(subject, bytes, {
          expect: { lastSubjectSequence: 0 },
          timeout: ACK_TIMEOUT_MS,
        });
        return ack.seq;
      } catch (error) {
        const code = jsErrorCode(error);
        if (code === JS_ERROR.WRONG_LAST_SEQUENCE) return await this.#compareStored(subject, bytes);
        if (code === JS_ERROR.STREAM_STORE_FAILED || code === JS_ERROR.STORAGE_RESOURCES_EXCEEDED) {
          throw new TidemarkError(
            'LOG_FULL',
            `The stream ${dataset} is full at frame ${frame} of ${this.#describe()}`,
            {
              cause: error,
              details: { dataset, partition, attempt, frame },
            },
          );
        }
        if (code !== undefined && code < 500) throw error;
        if (performance.now() - startedAt > OUTAGE_LIMIT_MS) {
          throw new TidemarkError('LOG_UNAVAILABLE', `Frame ${frame} was not stored: ${explain(error)}`, {
            cause: error,
          });
        }
        if (this.#failure) throw this.#failure;
        await delay(Math.min(100 * 2 ** tries, 2000));
        if (this.#failure) throw this.#failure;
      }
    }
  }

  /** Compares the message with the one that the log holds at its subject: an earlier try may have stored it. */
  async #compareStored(subject: string, bytes: Buffer): Promise<number> {
    const dataset = this.#of.dataset.key;
    const stored = await this.#manager.streams.getMessage(dataset, { last_by_subj: subject });
    const ours = decodeHeader(bytes, subject);
    const theirs = stored && headerIfIntact(stored.data, subject);
    if (stored && ours.kind === theirs?.kind && (ours.kind === 'manifest' || ours.raw_sha256 === theirs.raw_sha256)) {
      this.#metStored = true;
      return stored.seq;
    }
    throw new TidemarkError('LOG_CONFLICT', `The log holds another message at ${subject}`, {
      details: { dataset, subject },
    });
  }

  #describe(): string {
    return `${this.#of.dataset.key} ${this.#of.key} attempt ${this.#of.attempt}`;
  }
}

/** The header of a stored message; undefined for a damaged one, which no longer is the message that was written. */
function headerIfIntact(message: Uint8Array, position: string): Header | undefined {
  try {
    return decodeHeader(message, position);
  } catch (error) {
    if (codeOf(error) === 'LOG_DAMAGED') return undefined;
    throw error;
  }
}
