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
import { codeOf, TidemarkError } from '../errors.ts';
import { connectNats, type NatsConnection } from './connect.ts';
import { allowed, isDenied, JS_ERROR, jsErrorCode } from './stream.ts';

export const EXPORT_STREAM = 'exports';
export const EXPORT_CONSUMER = 'workers';
export const EXPORT_SUBJECT = `${EXPORT_STREAM}.job`;

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

/**
 * Makes the queue, through an account that may: the operator's. The lease of its consumer follows the settings.
 * @throws TidemarkError LOG_ACCOUNT_REFUSED when the account may not; else what the client library throws.
 */
export async function ensureExportQueue(connection: NatsConnection, options: ExportQueueOptions): Promise<void> {
  await ensure(await jetstreamManager(connection, { checkAPI: false, timeout: REQUEST_TIMEOUT_MS }), options);
}

/**
 * The stream and its one consumer, made where they are not there. An account that may not change the consumer uses it as
 * it is: its lease says only how soon a lost message comes again; who runs an export is said by the database.
 * @throws TidemarkError LOG_ACCOUNT_REFUSED where something is missing that this account may not make, and where it may not
 *   look.
 */
async function ensure(manager: JetStreamManager, { leaseMs, replicas }: ExportQueueOptions): Promise<void> {
  const looking = found(manager.streams.info(EXPORT_STREAM), JS_ERROR.STREAM_NOT_FOUND);
  if (!(await allowed(looking, `look at the stream ${EXPORT_STREAM}`))) {
    const making = manager.streams.add({
      name: EXPORT_STREAM,
      subjects: [`${EXPORT_SUBJECT}.*`],
      retention: RetentionPolicy.Workqueue,
      storage: StorageType.File,
      // An export that is queued already is refused, so that queueing it again is harmless.
      max_msgs_per_subject: 1,
      discard: DiscardPolicy.New,
      discard_new_per_subject: true,
      max_bytes: MAX_BYTES,
      num_replicas: replicas,
    });
    await allowed(making, `make the stream ${EXPORT_STREAM}`);
  }
  const ackWait = leaseMs * 1_000_000;
  const asking = found(manager.consumers.info(EXPORT_STREAM, EXPORT_CONSUMER), JS_ERROR.CONSUMER_NOT_FOUND);
  const info = await allowed(asking, `look at the consumer ${EXPORT_CONSUMER} of ${EXPORT_STREAM}`);
  if (!info) {
    const making = manager.consumers.add(EXPORT_STREAM, {
      durable_name: EXPORT_CONSUMER,
      ack_policy: AckPolicy.Explicit,
      ack_wait: ackWait,
      // How often one may be tried is the database's to count.
      max_deliver: -1,
      max_ack_pending: 1000,
    });
    await allowed(making, `make the consumer ${EXPORT_CONSUMER} of ${EXPORT_STREAM}`);
  } else if (info.config.ack_wait !== ackWait) {
    await manager.consumers.update(EXPORT_STREAM, EXPORT_CONSUMER, { ack_wait: ackWait }).catch((error) => {
      if (!isDenied(error)) throw error;
    });
  }
}

async function found<T>(asked: Promise<T>, missing: number): Promise<T | undefined> {
  try {
    return await asked;
  } catch (error) {
    if (jsErrorCode(error) === missing) return undefined;
    throw error;
  }
}

export class ExportQueue implements AsyncDisposable {
  readonly connection: NatsConnection & AsyncDisposable;
  readonly #manager: JetStreamManager;
  readonly #client: JetStreamClient;

  readonly #options: ExportQueueOptions;

  private constructor(connection: ExportQueue['connection'], manager: JetStreamManager, options: ExportQueueOptions) {
    this.connection = connection;
    this.#manager = manager;
    this.#options = options;
    this.#client = jetstream(connection, { timeout: REQUEST_TIMEOUT_MS });
  }

  /** @throws TidemarkError LOG_UNAVAILABLE; LOG_ACCOUNT_REFUSED where it is not there and this account may not make it. */
  static async open(url: string, name: string, options: ExportQueueOptions): Promise<ExportQueue> {
    const connection = await connectNats(url, name);
    try {
      const manager = await jetstreamManager(connection, { checkAPI: false, timeout: REQUEST_TIMEOUT_MS });
      const queue = new ExportQueue(connection, manager, options);
      await queue.ensure();
      return queue;
    } catch (cause) {
      await connection[Symbol.asyncDispose]();
      if (codeOf(cause) === 'LOG_ACCOUNT_REFUSED') throw cause;
      throw new TidemarkError('LOG_UNAVAILABLE', 'The queue of exports cannot be made', { cause });
    }
  }

  /**
   * Where it went with its server's disk it is made again, if this account may.
   * @throws TidemarkError LOG_ACCOUNT_REFUSED
   */
  async ensure(): Promise<void> {
    await ensure(this.#manager, this.#options);
  }

  /** @throws what the client library throws when the message may not have been stored. */
  async put(exportId: string): Promise<void> {
    try {
      await this.#client.publish(`${EXPORT_SUBJECT}.${exportId}`, exportId, { timeout: REQUEST_TIMEOUT_MS });
    } catch (error) {
      if (!(error instanceof JetStreamApiError && jsErrorCode(error) === ALREADY_QUEUED)) throw error;
    }
  }

  async consumer(): Promise<Consumer> {
    return await this.#client.consumers.get(EXPORT_STREAM, EXPORT_CONSUMER);
  }

  /** Messages in the queue, taken ones included. */
  async size(): Promise<number> {
    return (await this.#manager.streams.info(EXPORT_STREAM)).state.messages;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.connection[Symbol.asyncDispose]();
  }
}
