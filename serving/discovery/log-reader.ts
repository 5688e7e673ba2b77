/**
 * The log, for lineage and for monitoring. No read needs it: it is connected when it is first asked for, and its absence
 * is one route's 503 and a number on the operator's page.
 */
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import { TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log/logger.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { JS_ERROR, jsErrorCode, messageAt } from '../../shared/nats/stream.ts';

/** A message is there in a millisecond or two; a server that takes this long is as good as away. */
const REQUEST_TIMEOUT_MS = 2000;

interface Connected {
  readonly connection: NatsConnection & AsyncDisposable;
  readonly manager: JetStreamManager;
  /** Away for now: the client library reconnects by itself. */
  isAway: boolean;
}

export class LogReader implements AsyncDisposable {
  readonly #url: string | undefined;
  readonly #log: Logger;
  readonly #timeoutMs: number;
  #connected: Promise<Connected> | undefined;

  /** @param url of an account that needs no more than to read. */
  constructor(url: string | undefined, log: Logger, timeoutMs = REQUEST_TIMEOUT_MS) {
    this.#url = url;
    this.#log = log;
    this.#timeoutMs = timeoutMs;
  }

  /** Undefined: the log holds none there. @throws TidemarkError LOG_UNAVAILABLE */
  async message(dataset: string, sequence: number): Promise<Uint8Array | undefined> {
    const connected = await this.#connect();
    if (connected.isAway) throw unavailable('is away; it is connected to again by itself');
    try {
      return (await messageAt(connected.manager, dataset, sequence))?.data;
    } catch (error) {
      if (jsErrorCode(error) === JS_ERROR.STREAM_NOT_FOUND) return undefined;
      throw unavailable('does not answer', error);
    }
  }

  /** To ask how its streams stand. @throws TidemarkError LOG_UNAVAILABLE */
  async manager(): Promise<JetStreamManager> {
    const { manager, isAway } = await this.#connect();
    if (isAway) throw unavailable('is away; it is connected to again by itself');
    return manager;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const connected = await this.#connected?.catch(() => undefined);
    await connected?.connection[Symbol.asyncDispose]();
  }

  #connect(): Promise<Connected> {
    this.#connected ??= this.#open().catch((error) => {
      // The next one who asks tries again.
      this.#connected = undefined;
      throw error;
    });
    return this.#connected;
  }

  async #open(): Promise<Connected> {
    if (this.#url === undefined) throw unavailable('is not configured (SVC_NATS_READER_URL)');
    const connection = await connectNats(this.#url, 'tidemark serving');
    const manager = await jetstreamManager(connection, { checkAPI: false, timeout: this.#timeoutMs });
    const connected: Connected = { connection, manager, isAway: false };
    void this.#watch(connected);
    return connected;
  }

  async #watch(connected: Connected): Promise<void> {
    for await (const { type } of connected.connection.status()) {
      if (type !== 'disconnect' && type !== 'reconnect') continue;
      connected.isAway = type === 'disconnect';
      this.#log.info(connected.isAway ? 'the log is away' : 'the log is back');
    }
    // Closed for good: refused credentials end a connection.
    this.#connected = undefined;
  }
}

const unavailable = (what: string, cause?: unknown) =>
  new TidemarkError('LOG_UNAVAILABLE', `The log ${what}`, { cause });
