/**
 * Compares the log with the checkpoint, and reads it from a position on through a pull consumer, which is created anew each time: so
 * PostgreSQL alone decides where to start. (A durable consumer that was killed delivered newer messages before unacknowledged ones.)
 */

import { createHash } from 'node:crypto';
import {
  AckPolicy,
  type Consumer,
  type ConsumerMessages,
  DeliverPolicy,
  type JsMsg,
  jetstream,
  jetstreamManager,
  ReplayPolicy,
} from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { CheckpointRow } from '../../shared/db/schema.ts';
import { explain, TidemarkError } from '../../shared/errors.ts';
import { decodeBody, decodeHeader, type Header, MAX_MESSAGE_BYTES } from '../../shared/frame/codec.ts';
import {
  CONSUMER_NAME,
  firstMessageFrom,
  JS_ERROR,
  jsErrorCode,
  messageAt,
  streamInfo,
} from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

const QUIET_MS = 5000;

/** No message is redelivered after a time: a transaction may stay open longer than any limit. */
const NEVER_NS = 365 * 86_400 * 1e9;

export interface LogReaderOptions {
  readonly connection: NatsConnection;
  readonly dataset: DatasetDefinition;
  /** Limits the buffer: a pull asks for as many messages as fit if each has the maximal size. */
  readonly pullMaxBytes: number;
  readonly signal: AbortSignal;
  /** Receives the first and the last sequence of messages that the log has lost; they are passed over. */
  readonly onLost: (first: number, last: number) => Promise<void>;
  /** After this time without a message, the reader asks the log whether there is one; default QUIET_MS. */
  readonly quietMs?: number;
}

export class LogReader {
  readonly #connection: NatsConnection;
  readonly #dataset: string;
  readonly #maxMessages: number;
  readonly #signal: AbortSignal;
  readonly #onLost: LogReaderOptions['onLost'];
  readonly #quietMs: number;
  #messages: ConsumerMessages | undefined;
  #iterator: AsyncIterator<JsMsg> | undefined;
  #next: Arrival<IteratorResult<JsMsg>> | undefined;
  #lastSequence = 0;
  #consumer: Consumer | undefined;
  #polledAt = 0;
  /** Whether the log held more than had arrived when it was last asked, and nothing has arrived since. */
  #isOwed = false;
  /** Whether the connection was lost and made again. */
  #hasReconnected = false;

  constructor({ connection, dataset, pullMaxBytes, signal, onLost, quietMs = QUIET_MS }: LogReaderOptions) {
    this.#signal = signal;
    this.#connection = connection;
    this.#dataset = dataset.key;
    this.#maxMessages = Math.max(2, Math.floor(pullMaxBytes / MAX_MESSAGE_BYTES));
    this.#onLost = onLost;
    this.#quietMs = quietMs;
    void this.#watch();
  }

  async #watch(): Promise<void> {
    for await (const { type } of this.#connection.status()) {
      if (type === 'reconnect') this.#hasReconnected = true;
    }
  }

  /** Moves the reader to the message after `sequence`. */
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
    this.#consumer = await jetstream(this.#connection).consumers.get(this.#dataset, CONSUMER_NAME);
    this.#messages = await this.#consumer.consume({ max_messages: this.#maxMessages, abort_on_missing_resource: true });
    this.#iterator = this.#messages[Symbol.asyncIterator]();
    this.#came(sequence);
  }

  /**
   * The next message; undefined when none arrived within `waitMs` or before the signal.
   * @throws TidemarkError LOG_MISCONFIGURED when the consumer left out messages that the log has. LOG_UNAVAILABLE when it ended or does not deliver what the log holds, and when the connection was lost: the server that answers now may
   * have an older copy of the log, whose next messages have sequences that were read before.
   */
  async read(waitMs: number): Promise<JsMsg | undefined> {
    for (;;) {
      this.#next ??= new Arrival(this.#iterator!.next());
      const arrived = await this.#next.within(waitMs, this.#signal);
      if (this.#hasReconnected) {
        const what = `The connection to the log was lost; ${this.#dataset} is compared with its checkpoint again`;
        throw new TidemarkError('LOG_UNAVAILABLE', what);
      }
      if (arrived === undefined) {
        this.#poll();
        return undefined;
      }
      this.#next = undefined;
      if (arrived.done) throw new TidemarkError('LOG_UNAVAILABLE', `The consumer of ${this.#dataset} ended`);
      const message = arrived.value;
      if (message.seq <= this.#lastSequence) continue;
      // No message is ever deleted from the log: what is missing was lost by the log or left out by the consumer.
      if (message.seq !== this.#lastSequence + 1) await this.#requireLost(message.seq);
      this.#came(message.seq);
      return message;
    }
  }

  /**
   * Accepts that the messages before `sequence` are missing where the log has lost them. A crash of nats-server may take
   * acknowledged messages and keep their sequences. That is the same as a lost tail whose sequences went to other messages:
   * the checkpoint is before them, and an attempt that lacks one of its messages is never proved.
   * @throws TidemarkError LOG_MISCONFIGURED when the log has one of them, LOG_UNAVAILABLE when it changed since
   */
  async #requireLost(sequence: number): Promise<void> {
    const first = this.#lastSequence + 1;
    const next = await this.#firstFrom(first);
    const what = `${this.#dataset} delivered ${sequence} after ${this.#lastSequence}`;
    if (next === undefined || next > sequence) {
      throw new TidemarkError('LOG_UNAVAILABLE', `${what}, which the log does not hold any more`);
    }
    if (next < sequence) {
      const question = `does something else read from the consumer ${CONSUMER_NAME}?`;
      throw new TidemarkError('LOG_MISCONFIGURED', `${what}, although the log holds ${next}: ${question}`, {
        remedy: `The projector restarts at its checkpoint by itself. If this goes on, stop whatever else reads from the consumer ${CONSUMER_NAME}.`,
      });
    }
    await this.#onLost(first, sequence - 1);
  }

  async #firstFrom(sequence: number): Promise<number | undefined> {
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    return (await firstMessageFrom(manager, this.#dataset, sequence))?.seq;
  }

  #came(sequence: number): void {
    this.#lastSequence = sequence;
    this.#polledAt = performance.now();
    this.#isOwed = false;
  }

  /**
   * Notices a consumer that stopped delivering. Messages that were in flight when a connection broke count as delivered
   * and are not sent again, and a pull that was lost with its server is repeated only after half a minute or more.
   */
  #poll(): void {
    if (performance.now() - this.#polledAt < this.#quietMs) return;
    this.#polledAt = performance.now();
    const after = this.#lastSequence;
    if (this.#isOwed) {
      throw new TidemarkError('LOG_UNAVAILABLE', `The consumer of ${this.#dataset} delivers nothing after ${after}`);
    }
    const consumer = this.#consumer;
    // Not what the consumer says: it counts sequences at the end of the log whose messages are lost as delivered.
    const noteOwed = (next: number | undefined) => {
      if (this.#consumer === consumer && this.#lastSequence === after) this.#isOwed = next !== undefined;
    };
    // A log that does not answer is asked again after the next pause.
    this.#firstFrom(after + 1).then(noteOwed, () => {});
  }

  async close(): Promise<void> {
    this.#next = undefined;
    // Not awaited: it settles only when the iterator is read to its end, and the reader has stopped reading.
    this.#messages?.close().catch(() => {});
    this.#messages = undefined;
    this.#iterator = undefined;
    this.#consumer = undefined;
  }
}

/**
 * What a promise brings, awaited any number of times. Each `Promise.race` would leave 330 bytes with a promise that stays pending:
 * ten times a second for each dataset without news, 3 GB a day.
 */
export class Arrival<T> {
  #settled: PromiseSettledResult<T> | undefined;
  #wake = () => {};

  constructor(promise: Promise<T>) {
    const settle = (settled: PromiseSettledResult<T>) => {
      this.#settled = settled;
      this.#wake();
    };
    promise.then(
      (value) => settle({ status: 'fulfilled', value }),
      (reason: unknown) => settle({ status: 'rejected', reason }),
    );
  }

  /** The promise's value; undefined after `ms` or on the signal. One caller waits at a time. @throws what it rejects with */
  async within(ms: number, signal: AbortSignal): Promise<T | undefined> {
    if (!this.#settled && !signal.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>();
      const end = () => resolve();
      this.#wake = end;
      const timer = setTimeout(end, ms);
      signal.addEventListener('abort', end);
      await promise;
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
    }
    if (this.#settled?.status === 'rejected') throw this.#settled.reason;
    return this.#settled?.value;
  }
}

interface ReadableMessage {
  readonly message: JsMsg;
  readonly header: Header;
  /** Settles when the body is decompressed. */
  readonly body: Promise<Buffer>;
}

/** A message with its header, or with the reason why the header cannot be read. */
export type DecodedMessage = ReadableMessage | { readonly message: JsMsg; readonly fault: string };

export function decodeMessage(dataset: DatasetDefinition, message: JsMsg): DecodedMessage {
  const position = `${dataset.key} sequence ${message.seq}`;
  try {
    const header = decodeHeader(message.data, position);
    const body = decodeBody(message.data, header, position);
    body.catch(() => {}); // the caller that awaits the body gets the error
    return { message, header, body };
  } catch (error) {
    return { message, fault: explain(error) };
  }
}

// ---- the checkpoint ---------------------------------------------------------------------------------------------------

type Checkpoint = Pick<CheckpointRow, 'streamCreated' | 'streamSequence' | 'messageSha256'>;

export interface LogVerdict {
  readonly state: /** Nothing was published and nothing projected. */
    | 'empty'
    | 'in_step'
    /** The log holds messages after the checkpoint: a backlog, or a database restored to an earlier point. */
    | 'log_ahead'
    | 'no_stream'
    | 'stream_recreated'
    /** The log lost its tail. */
    | 'log_behind'
    /** The log lost its tail, and other messages have its sequences. */
    | 'other_messages';
  /** The verdict as a sentence. */
  readonly finding: string;
  readonly streamCreated: Date;
  readonly lastSequence: number;
}

/** States in which nothing may be projected or published. */
export const REWOUND: ReadonlySet<LogVerdict['state']> = new Set([
  'no_stream',
  'stream_recreated',
  'log_behind',
  'other_messages',
]);

/**
 * Compares the log with the checkpoint. JetStream acknowledges before it has called fsync, so after a crash a stream
 * may lack its tail and have given the same sequences to other messages.
 */
export async function logVerdict(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  checkpoint: Checkpoint | undefined,
): Promise<LogVerdict> {
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const info = await streamInfo(manager, dataset.key);
  const streamCreated = new Date(info?.created ?? 0);
  const lastSequence = info?.state.last_seq ?? 0;
  const verdict = (state: LogVerdict['state'], finding: string) => ({ state, finding, streamCreated, lastSequence });
  if (!info) {
    const finding = `The stream ${dataset.key} does not exist`;
    return verdict(checkpoint ? 'no_stream' : 'empty', finding);
  }
  if (!checkpoint) {
    return lastSequence === 0
      ? verdict('empty', 'nothing was published')
      : verdict('log_ahead', `it ends at sequence ${lastSequence}, and nothing of it was projected`);
  }
  const { streamSequence } = checkpoint;
  const created = [streamCreated, checkpoint.streamCreated].map((date) => date.toISOString());
  if (created[0] !== created[1]) {
    return verdict(
      'stream_recreated',
      `it was created ${created[0]}, the checkpoint belongs to one created ${created[1]}`,
    );
  }
  if (lastSequence < streamSequence) {
    return verdict('log_behind', `it ends at sequence ${lastSequence}, the checkpoint is at ${streamSequence}`);
  }
  const message = await messageAt(manager, dataset.key, streamSequence);
  if (!message) return verdict('other_messages', `it holds no message at sequence ${streamSequence}`);
  if (createHash('sha256').update(message.data).digest('hex') !== checkpoint.messageSha256) {
    return verdict('other_messages', `sequence ${streamSequence} holds another message`);
  }
  return lastSequence > streamSequence
    ? verdict('log_ahead', `it ends at sequence ${lastSequence}, ${lastSequence - streamSequence} after the checkpoint`)
    : verdict('in_step', `the log ends at the checkpoint, sequence ${streamSequence}`);
}

/** The position to read on from. @throws TidemarkError LOG_REWOUND */
export async function verifyCheckpoint(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  checkpoint: CheckpointRow | undefined,
): Promise<{ streamCreated: Date; sequence: number }> {
  const { state, finding, streamCreated, lastSequence } = await logVerdict(connection, dataset, checkpoint);
  if (streamCreated.getTime() === 0) {
    throw new TidemarkError('LOG_REWOUND', `The stream ${dataset.key} does not exist`);
  }
  if (REWOUND.has(state)) {
    throw new TidemarkError('LOG_REWOUND', `The log of ${dataset.key} is not the one that was projected: ${finding}`, {
      details: { dataset: dataset.key, sequence: checkpoint?.streamSequence, last_sequence: lastSequence },
    });
  }
  return { streamCreated, sequence: checkpoint?.streamSequence ?? 0 };
}

/**
 * Requires that the log still holds a message that was read. @throws TidemarkError LOG_UNAVAILABLE otherwise: the reader begins
 * anew, and compares the log with its checkpoint.
 */
export async function requireLogged(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  message: Checkpoint,
): Promise<void> {
  if (!REWOUND.has((await logVerdict(connection, dataset, message)).state)) return;
  const what = `The log of ${dataset.key} no longer holds message ${message.streamSequence}, which was read from it`;
  throw new TidemarkError('LOG_UNAVAILABLE', `${what}; it is compared with its checkpoint again`);
}
