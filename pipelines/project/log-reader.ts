/**
 * Reads the log from a position on: a pull consumer, made anew each time, so that where to start is said by Postgres
 * alone. (A killed durable consumer was seen to deliver newer messages before unacknowledged ones.)
 */
import {
  AckPolicy,
  type Consumer,
  DeliverPolicy,
  type JsMsg,
  jetstream,
  jetstreamManager,
  ReplayPolicy,
} from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { JS_ERROR, jsErrorCode } from '../../shared/nats/stream.ts';

/** Its lag is what monitors watch. */
export const CONSUMER_NAME = 'projector';
/** One pull waits this long for a first message: the pace at which silence and shutdown are noticed. */
const PULL_EXPIRES_MS = 1000;
/** Nothing is redelivered by time: an open transaction may last longer than any guess. */
const NEVER_NS = 365 * 86_400 * 1e9;

export class LogReader {
  readonly #connection: NatsConnection;
  readonly #dataset: string;
  readonly #maxBytes: number;
  #consumer: Consumer | undefined;
  #lastSequence = 0;

  constructor(connection: NatsConnection, dataset: string, maxBytes: number) {
    this.#connection = connection;
    this.#dataset = dataset;
    this.#maxBytes = maxBytes;
  }

  /** Starts after `sequence`. */
  async seek(sequence: number): Promise<void> {
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
    this.#consumer = await jetstream(this.#connection).consumers.get(this.#dataset, CONSUMER_NAME);
    this.#lastSequence = sequence;
  }

  /** Messages that are there now or come within a second, in stream order, each once. */
  async *pull(): AsyncGenerator<JsMsg> {
    const batch = await this.#consumer!.fetch({ max_bytes: this.#maxBytes, expires: PULL_EXPIRES_MS });
    for await (const message of batch) {
      if (message.seq <= this.#lastSequence) continue;
      this.#lastSequence = message.seq;
      yield message;
    }
  }
}
