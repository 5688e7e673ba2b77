/**
 * Reads the log from a position on: a pull consumer, made anew each time, so that where to start is said by Postgres
 * alone. (A killed durable consumer was seen to deliver newer messages before unacknowledged ones.)
 */
import {
  AckPolicy,
  type ConsumerMessages,
  DeliverPolicy,
  type JsMsg,
  jetstream,
  jetstreamManager,
  ReplayPolicy,
} from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { TidemarkError } from '../../shared/errors.ts';
import { MAX_MESSAGE_BYTES } from '../../shared/frame/codec.ts';
import { CONSUMER_NAME, JS_ERROR, jsErrorCode } from '../../shared/nats/stream.ts';

/** Nothing is redelivered by time: an open transaction may last longer than any guess. */
const NEVER_NS = 365 * 86_400 * 1e9;

export class LogReader {
  readonly #connection: NatsConnection;
  readonly #dataset: string;
  readonly #maxMessages: number;
  #messages: ConsumerMessages | undefined;
  #iterator: AsyncIterator<JsMsg> | undefined;
  #next: Promise<IteratorResult<JsMsg>> | undefined;
  #lastSequence = 0;

  /** `maxBytes` bounds what is buffered: pulls are counted in messages of the largest size there can be. */
  constructor(connection: NatsConnection, dataset: string, maxBytes: number) {
    this.#connection = connection;
    this.#dataset = dataset;
    this.#maxMessages = Math.max(2, Math.floor(maxBytes / MAX_MESSAGE_BYTES));
  }

  /** Starts after `sequence`. */
  async seek(sequence: number): Promise<void> {
    await this.close();
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    try {
      await manager.consumers.delete(this.#dataset, CONSUMER_NAME);
    } catch (error) {
      if (jsErrorCode(error) !== JS_ERROR.CONSUMER_NOT_FOUND) throw error;
    }
    await manager.consumers.add(this.#dataset, {
      durable_name: CONSUMER_NAME,
      ack_policy: AckPolicy.All,
      ack_wait: NEVER_NS,
      max_ack_pending: -1,
      deliver_policy: DeliverPolicy.StartSequence,
      opt_start_seq: sequence + 1,
      replay_policy: ReplayPolicy.Instant,
    });
    const consumer = await jetstream(this.#connection).consumers.get(this.#dataset, CONSUMER_NAME);
    this.#messages = await consumer.consume({ max_messages: this.#maxMessages, abort_on_missing_resource: true });
    this.#iterator = this.#messages[Symbol.asyncIterator]();
    this.#lastSequence = sequence;
  }

  /**
   * The next message, or undefined when none came within `waitMs`.
   * @throws TidemarkError LOG_GAP when a sequence was left out: a consumer that lost its place, start again.
   */
  async read(waitMs: number): Promise<JsMsg | undefined> {
    for (;;) {
      this.#next ??= this.#iterator!.next();
      const arrived = await withTimeout(this.#next, waitMs);
      if (arrived === undefined) return undefined;
      this.#next = undefined;
      if (arrived.done) throw new TidemarkError('LOG_UNAVAILABLE', `The consumer of ${this.#dataset} ended`);
      const message = arrived.value;
      if (message.seq <= this.#lastSequence) continue;
      // Nothing is ever deleted from the log, so what comes next is known.
      if (message.seq !== this.#lastSequence + 1) {
        throw new TidemarkError('LOG_GAP', `${this.#dataset} delivered ${message.seq} after ${this.#lastSequence}`);
      }
      this.#lastSequence = message.seq;
      return message;
    }
  }

  async close(): Promise<void> {
    this.#next?.catch(() => {});
    this.#next = undefined;
    // Not awaited: it settles only when the iterator has been read to its end, which nobody will do.
    this.#messages?.close().catch(() => {});
    this.#messages = undefined;
    this.#iterator = undefined;
  }
}

async function withTimeout<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const idle = new Promise<undefined>((resolve) => {
    timer = setTimeout(resolve, ms, undefined);
  });
  try {
    return await Promise.race([promise, idle]);
  } finally {
    clearTimeout(timer);
  }
}
