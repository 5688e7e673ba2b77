/** The connection to the queue of exports. It opens on first use, and again after it was lost for good. */
import { TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { ExportQueue } from '../../shared/nats/export-queue.ts';

interface QueueConnectionOptions {
  readonly url: string | undefined;
  readonly name: string;
  readonly leaseMs: number;
  /** Replicas of the queue's stream, used when the stream is created. */
  readonly replicas: number;
  readonly log: Logger;
}

interface ConnectedQueue {
  readonly queue: ExportQueue;
  isDisconnected: boolean;
}

export class QueueConnection implements AsyncDisposable {
  readonly #options: QueueConnectionOptions;
  #connected: Promise<ConnectedQueue> | undefined;
  #closed = false;
  readonly #stopping = new AbortController();

  constructor(options: QueueConnectionOptions) {
    this.#options = options;
  }

  get isConfigured(): boolean {
    return this.#options.url !== undefined;
  }

  /** @throws TidemarkError LOG_UNAVAILABLE at once if the connection is known to be lost. */
  async get(): Promise<ExportQueue> {
    if (this.#closed)
      throw new TidemarkError('LOG_UNAVAILABLE', 'The queue of exports is closed: the process is stopping');
    this.#connected ??= this.#open().catch((error) => {
      this.#connected = undefined;
      throw error;
    });
    const { queue, isDisconnected } = await this.#connected;
    if (isDisconnected)
      throw new TidemarkError(
        'LOG_UNAVAILABLE',
        'The connection to the queue of exports is lost; the service reconnects by itself',
      );
    return queue;
  }

  async #open(): Promise<ConnectedQueue> {
    const { url, name, leaseMs, replicas } = this.#options;
    if (url === undefined) {
      throw new TidemarkError('LOG_UNAVAILABLE', 'The queue of exports is not configured; set SVC_NATS_EXPORT_URL');
    }
    const connected: ConnectedQueue = {
      queue: await ExportQueue.open(url, name, { leaseMs, replicas }, this.#stopping.signal),
      isDisconnected: false,
    };
    void this.#watch(connected);
    return connected;
  }

  /** Ends an attempt to connect, so that a stop does not wait for it. A connection that is open stays: exports are given back by it. */
  stopConnecting(): void {
    this.#stopping.abort(new TidemarkError('LOG_UNAVAILABLE', 'The process is stopping'));
  }

  async #watch(connected: ConnectedQueue): Promise<void> {
    for await (const { type } of connected.queue.connection.status()) {
      if (type !== 'disconnect' && type !== 'reconnect') continue;
      connected.isDisconnected = type === 'disconnect';
      this.#options.log.info(
        connected.isDisconnected
          ? 'the connection to the queue of exports is lost'
          : 'the queue of exports is connected again',
      );
    }
    // The connection was closed for good, as after refused credentials.
    this.#connected = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    this.stopConnecting();
    const connected = await this.#connected?.catch(() => undefined);
    await connected?.queue[Symbol.asyncDispose]();
  }
}
