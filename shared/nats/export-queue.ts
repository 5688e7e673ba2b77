/**
 * The queue of exports: one work-queue stream whose messages are ids of exports and nothing more. What an export is and
 * how far it has come is said by the database alone; a message only says "somebody run this".
 */
import {
  AckPolicy,
  type Consumer,
  DiscardPolicy,
  JetStreamApiError,
  type JetStreamClient,
  type JetStreamManager,
  jetstream,
  jetstreamManager,
  RetentionPolicy,
  StorageType,
} from '@nats-io/jetstream';
import { TidemarkError } from '../errors.ts';
import { connectNats, type NatsConnection } from './connect.ts';
import { JS_ERROR, jsErrorCode } from './stream.ts';

const EXPORT_STREAM = 'exports';
const CONSUMER = 'workers';
const SUBJECT = `${EXPORT_STREAM}.job`;

/** What the account of the queue may publish: the calls that make and use it, its acknowledgements, and jobs. */
export const exportSubjects = (): readonly string[] => [
  ...['CREATE', 'UPDATE', 'INFO'].map((call) => `$JS.API.STREAM.${call}.${EXPORT_STREAM}`),
  ...['CREATE', 'INFO', 'MSG.NEXT'].map((call) => `$JS.API.CONSUMER.${call}.${EXPORT_STREAM}.>`),
  `$JS.ACK.${EXPORT_STREAM}.>`,
  `${SUBJECT}.*`,
];

/** A message is an id; the whole queue fits a corner of any store. */
const MAX_BYTES = 16 * 1024 * 1024;
/** The server answers in a millisecond or two; one that takes this long is as good as away. */
const REQUEST_TIMEOUT_MS = 3000;
/** "maximum messages per subject exceeded" comes under this code of a failed store. */
const ALREADY_QUEUED = JS_ERROR.STREAM_STORE_FAILED;

export interface ExportQueueOptions {
  /** A job is given to another worker when its own has been silent for so long. */
  readonly leaseMs: number;
  /** Servers of a cluster that keep the stream, from when it is made. */
  readonly replicas: number;
}

export class ExportQueue implements AsyncDisposable {
  readonly connection: NatsConnection & AsyncDisposable;
  readonly #manager: JetStreamManager;
  readonly #client: JetStreamClient;
  readonly #options: ExportQueueOptions;

  private constructor(connection: ExportQueue['connection'], manager: JetStreamManager, options: ExportQueueOptions) {
    this.connection = connection;
    this.#manager = manager;
    this.#client = jetstream(connection, { timeout: REQUEST_TIMEOUT_MS });
    this.#options = options;
  }

  /** @throws TidemarkError LOG_UNAVAILABLE */
  static async open(url: string, name: string, options: ExportQueueOptions): Promise<ExportQueue> {
    const connection = await connectNats(url, name);
    try {
      const manager = await jetstreamManager(connection, { checkAPI: false, timeout: REQUEST_TIMEOUT_MS });
      const queue = new ExportQueue(connection, manager, options);
      await queue.ensure();
      return queue;
    } catch (cause) {
      await connection[Symbol.asyncDispose]();
      throw new TidemarkError('LOG_UNAVAILABLE', 'The queue of exports cannot be made', { cause });
    }
  }

  /** The stream and its one consumer, made where they are not there. */
  async ensure(): Promise<void> {
    try {
      await this.#manager.streams.info(EXPORT_STREAM);
    } catch (error) {
      if (jsErrorCode(error) !== JS_ERROR.STREAM_NOT_FOUND) throw error;
      await this.#manager.streams.add({
        name: EXPORT_STREAM,
        subjects: [`${SUBJECT}.*`],
        retention: RetentionPolicy.Workqueue,
        storage: StorageType.File,
        // An export that is queued already is refused, so that queueing it again is harmless.
        max_msgs_per_subject: 1,
        discard: DiscardPolicy.New,
        discard_new_per_subject: true,
        max_bytes: MAX_BYTES,
        num_replicas: this.#options.replicas,
      });
    }
    const ackWait = this.#options.leaseMs * 1_000_000;
    try {
      // Made again with the same settings it is the same.
      await this.#manager.consumers.add(EXPORT_STREAM, {
        durable_name: CONSUMER,
        ack_policy: AckPolicy.Explicit,
        ack_wait: ackWait,
        // How often one may be tried is the database's to count.
        max_deliver: -1,
        max_ack_pending: 1000,
      });
    } catch (error) {
      if (jsErrorCode(error) !== JS_ERROR.CONSUMER_EXISTS) throw error;
      await this.#manager.consumers.update(EXPORT_STREAM, CONSUMER, { ack_wait: ackWait });
    }
  }

  /** @throws what the client library throws when the message may not have been stored. */
  async put(exportId: string): Promise<void> {
    try {
      await this.#client.publish(`${SUBJECT}.${exportId}`, exportId, { timeout: REQUEST_TIMEOUT_MS });
    } catch (error) {
      if (!(error instanceof JetStreamApiError && jsErrorCode(error) === ALREADY_QUEUED)) throw error;
    }
  }

  async consumer(): Promise<Consumer> {
    return await this.#client.consumers.get(EXPORT_STREAM, CONSUMER);
  }

  /** Messages in the queue, taken ones included. */
  async size(): Promise<number> {
    return (await this.#manager.streams.info(EXPORT_STREAM)).state.messages;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.connection[Symbol.asyncDispose]();
  }
}
