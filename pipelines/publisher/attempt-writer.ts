/**
 * Writes one attempt's messages to the log: pipelined, in order, idempotent. Each subject may be written once
 * (expected last subject sequence 0), so that a retry after a lost acknowledgement finds its own message, compares it
 * and goes on; a message with other content is a conflict.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { type JetStreamClient, type JetStreamManager, jetstream, jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { explain, TidemarkError } from '../../shared/errors.ts';
import { decodeHeader } from '../../shared/frame/codec.ts';
import { OUTAGE_LIMIT_MS } from '../../shared/nats/connect.ts';
import { JS_ERROR, jsErrorCode, subjectOf } from '../../shared/nats/stream.ts';

const ACK_TIMEOUT_MS = 10_000;

export interface AttemptName {
  readonly dataset: string;
  readonly partition: string;
  readonly attempt: number;
}

export class AttemptWriter {
  readonly #client: JetStreamClient;
  readonly #manager: JetStreamManager;
  readonly #name: AttemptName;
  readonly #window: number;
  readonly #inFlight = new Set<Promise<void>>();
  #failure: unknown;
  #frames = 0;
  /** Settles when the message before has been handed to the connection. */
  #turn: Promise<void> = Promise.resolve();
  #bytes = 0;
  #metStored = false;
  /** Stream sequence by frame number: a few hundred a day. */
  readonly #sequences: number[] = [];

  private constructor(client: JetStreamClient, manager: JetStreamManager, name: AttemptName, window: number) {
    this.#client = client;
    this.#manager = manager;
    this.#name = name;
    this.#window = window;
  }

  static async open(connection: NatsConnection, name: AttemptName, window: number): Promise<AttemptWriter> {
    const manager = await jetstreamManager(connection, { checkAPI: false });
    return new AttemptWriter(jetstream(connection), manager, name, window);
  }

  /** Messages written or under way. */
  get frames(): number {
    return this.#frames;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Some of it was in the log before: an earlier run's. */
  get metStored(): boolean {
    return this.#metStored;
  }

  get firstSequence(): number | undefined {
    return this.#sequences[0];
  }

  /**
   * Takes the next message, which may still be in the making; waits while the window is full. Messages are sent in the
   * order of these calls. A failure of an earlier one surfaces here.
   */
  async write(message: Promise<Buffer>): Promise<void> {
    message.catch(() => {}); // surfaces with its turn
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
   * @throws TidemarkError LOG_CONFLICT when frames do not lie in the log in their order: readers rely on it, and a
   * message that was lost and sent again after its successor breaks it. A new attempt mends that.
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

  async #send(frame: number, bytes: Buffer): Promise<number> {
    const { dataset, partition, attempt } = this.#name;
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
        await delay(Math.min(100 * 2 ** tries, 2000));
      }
    }
  }

  /** The subject is taken: by this very message (an earlier try got through), or by another. */
  async #compareStored(subject: string, bytes: Buffer): Promise<number> {
    const { dataset } = this.#name;
    const stored = await this.#manager.streams.getMessage(dataset, { last_by_subj: subject });
    if (stored) {
      const ours = decodeHeader(bytes, subject);
      const theirs = decodeHeader(stored.data, subject);
      if (ours.kind === theirs.kind && (ours.kind === 'manifest' || ours.raw_sha256 === theirs.raw_sha256)) {
        this.#metStored = true;
        return stored.seq;
      }
    }
    throw new TidemarkError('LOG_CONFLICT', `The log holds another message at ${subject}`, {
      details: { dataset, subject },
    });
  }

  #describe(): string {
    return `${this.#name.dataset} ${this.#name.partition} attempt ${this.#name.attempt}`;
  }
}
