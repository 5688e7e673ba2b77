/** The connection to the queue of exports: made when it is first needed, made again when it was lost for good. */
import { TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { ExportQueue } from '../../shared/nats/export-queue.ts';

export interface QueueConnectionOptions {
  readonly url: string | undefined;
  readonly name: string;
  readonly leaseMs: number;
  /** Of the queue's stream, where it is made. */
  readonly replicas: number;
  readonly log: Logger;
}

interface Connected {
  readonly queue: ExportQueue;
  isAway: boolean;
}

export class QueueConnection implements AsyncDisposable {
  readonly #options: QueueConnectionOptions;
  #connected: Promise<Connected> | undefined;
  #closed = false;

  constructor(options: QueueConnectionOptions) {
    this.#options = options;
  }

  get isConfigured(): boolean {
    return this.#options.url !== undefined;
  }

  /** @throws TidemarkError LOG_UNAVAILABLE at once where it is known to be away. */
  async get(): Promise<ExportQueue> {
    if (this.#closed) throw new TidemarkError('LOG_UNAVAILABLE', 'The queue of exports is closed');
    this.#connected ??= this.#open().catch((error) => {
      this.#connected = undefined;
      throw error;
    });
    const { queue, isAway } = await this.#connected;
    if (isAway) throw new TidemarkError('LOG_UNAVAILABLE', 'The queue of exports is away');
    return queue;
  }

  async #open(): Promise<Connected> {
    const { url, name, leaseMs, replicas } = this.#options;
    if (url === undefined) {
      throw new TidemarkError('LOG_UNAVAILABLE', 'The queue of exports is not configured (SVC_NATS_EXPORT_URL)');
    }
    const connected: Connected = { queue: await ExportQueue.open(url, name, { leaseMs, replicas }), isAway: false };
    void this.#watch(connected);
    return connected;
  }

  async #watch(connected: Connected): Promise<void> {
    for await (const { type } of connected.queue.connection.status()) {
      if (type !== 'disconnect' && type !== 'reconnect') continue;
      connected.isAway = type === 'disconnect';
      this.#options.log.info(connected.isAway ? 'the queue of exports is away' : 'the queue of exports is back');
    }
    // Closed for good: refused credentials end a connection.
    this.#connected = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    const connected = await this.#connected?.catch(() => undefined);
    await connected?.queue[Symbol.asyncDispose]();
  }
}
