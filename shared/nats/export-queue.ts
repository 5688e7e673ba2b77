/**
 * The queue of exports: one work-queue stream whose messages are ids of exports. A message only asks for an export to be
 * run; its request and its progress are in the database alone.
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

/** Limit of the stream; a message is an id, so any store has room for it. */
const MAX_BYTES = 16 * 1024 * 1024;
/** The server normally answers in a millisecond or two; one that takes this long counts as unavailable. */
const REQUEST_TIMEOUT_MS = 3000;
/** The server reports "maximum messages per subject exceeded" with this code. */
const ALREADY_QUEUED = JS_ERROR.STREAM_STORE_FAILED;

interface ExportQueueOptions {
  /** A job goes to another worker when its own has not renewed its lease for this long. */
  readonly leaseMs: number;
  /** Servers of a cluster that store the stream; it applies when the stream is created. */
  readonly replicas: number;
}

/**
 * Creates the queue through the operator's account, and sets the lease of its consumer to that of the settings.
 * @throws TidemarkError LOG_MISCONFIGURED when the account may not; otherwise the client library's error.
 */
export async function ensureExportQueue(connection: NatsConnection, options: ExportQueueOptions): Promise<void> {
  await ensure(await jetstreamManager(connection, { checkAPI: false, timeout: REQUEST_TIMEOUT_MS }), options);
}

/**
 * Creates the stream and its one consumer where they are missing. An account that may not change the consumer uses it as it
 * is: its lease only decides how soon a lost message is delivered again, and the database decides who runs an export.
 * @throws TidemarkError LOG_MISCONFIGURED where this account may neither create what is missing nor read its state.
 */
async function ensure(manager: JetStreamManager, { leaseMs, replicas }: ExportQueueOptions): Promise<void> {
  const looking = found(manager.streams.info(EXPORT_STREAM), JS_ERROR.STREAM_NOT_FOUND);
  if (!(await allowed(looking, `read the state of the stream ${EXPORT_STREAM}`))) {
    const making = manager.streams.add({
      name: EXPORT_STREAM,
      subjects: [`${EXPORT_SUBJECT}.*`],
      retention: RetentionPolicy.Workqueue,
      storage: StorageType.File,
      // The server refuses an export that is queued already, so that queueing it again is harmless.
      max_msgs_per_subject: 1,
      discard: DiscardPolicy.New,
      discard_new_per_subject: true,
      max_bytes: MAX_BYTES,
      num_replicas: replicas,
    });
    await allowed(making, `create the stream ${EXPORT_STREAM}`);
  }
  const ackWait = leaseMs * 1_000_000;
  const asking = found(manager.consumers.info(EXPORT_STREAM, EXPORT_CONSUMER), JS_ERROR.CONSUMER_NOT_FOUND);
  const info = await allowed(asking, `read the state of the consumer ${EXPORT_CONSUMER} of ${EXPORT_STREAM}`);
  if (!info) {
    const making = manager.consumers.add(EXPORT_STREAM, {
      durable_name: EXPORT_CONSUMER,
      ack_policy: AckPolicy.Explicit,
      ack_wait: ackWait,
      // The database counts the attempts.
      max_deliver: -1,
      max_ack_pending: 1000,
    });
    await allowed(making, `create the consumer ${EXPORT_CONSUMER} of ${EXPORT_STREAM}`);
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

  /** @throws TidemarkError LOG_UNAVAILABLE; LOG_MISCONFIGURED where the queue is missing and this account may not create it. */
  static async open(
    url: string,
    name: string,
    options: ExportQueueOptions,
    signal?: AbortSignal,
  ): Promise<ExportQueue> {
    const connection = await connectNats(url, name, undefined, signal);
    try {
      const manager = await jetstreamManager(connection, { checkAPI: false, timeout: REQUEST_TIMEOUT_MS });
      const queue = new ExportQueue(connection, manager, options);
      await queue.ensure();
      return queue;
    } catch (cause) {
      await connection[Symbol.asyncDispose]();
      if (codeOf(cause) === 'LOG_MISCONFIGURED') throw cause;
      throw new TidemarkError('LOG_UNAVAILABLE', 'Cannot open the queue of exports', { cause });
    }
  }

  /**
   * Creates the queue again, if this account may, where it was lost with the disk of its server.
   * @throws TidemarkError LOG_MISCONFIGURED
   */
  async ensure(): Promise<void> {
    await ensure(this.#manager, this.#options);
  }

  /** Queues an export. @throws the client library's error when the message may not have been stored. */
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

  /** The number of messages in the queue, including those that workers have taken. */
  async size(): Promise<number> {
    return (await this.#manager.streams.info(EXPORT_STREAM)).state.messages;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.connection[Symbol.asyncDispose]();
  }
}
