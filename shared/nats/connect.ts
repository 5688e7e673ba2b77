/**
 * Connections to nats-server, and retries while the log does not answer: a cluster elects a leader, or a server replays its
 * log. Commands retry, because they can do nothing else. The HTTP service and a projector, which restarts by itself,
 * do not.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { JetStreamApiError, JetStreamError } from '@nats-io/jetstream';
import { connect, type Msg, type NatsConnection, type RequestOptions } from '@nats-io/transport-node';
import { explain, TidemarkError } from '../errors.ts';
import { JS_ERROR } from './stream.ts';

interface RetryOptions {
  /** Default `OUTAGE_LIMIT_MS`. */
  readonly limitMs?: number;
  /** Ends the attempt to connect and the wait between requests, not a request in progress. */
  readonly signal?: AbortSignal;
  /** Receives a message when retries begin, once until the log answers, and one when it answers again. */
  readonly onWait?: (message: string) => void;
}

/** How long a command retries a request or a publish before it fails. */
export const OUTAGE_LIMIT_MS = 60_000;
const MAX_PAUSE_MS = 2000;
/** Between two attempts to connect again. */
const RECONNECT_PAUSE_MS = 250;
/** The client library's default timeout of a request. */
const REQUEST_TIMEOUT_MS = 1000;

/** Errors that mean that no server answered, or none in time. */
const UNANSWERED: ReadonlySet<string> = new Set(['TimeoutError', 'NoRespondersError']);
/** The answers of a server while its cluster is not ready. */
const CLUSTER_NOT_READY: ReadonlySet<number> = new Set([
  JS_ERROR.NOT_LEADER,
  JS_ERROR.TEMPORARILY_UNAVAILABLE,
  JS_ERROR.PEER_REMAP_FAILED,
  JS_ERROR.STREAM_OFFLINE,
  JS_ERROR.CONSUMER_OFFLINE,
]);

function isTemporaryAnswer({ code, message }: JetStreamApiError): boolean {
  // Peers are missing because they are down, which passes, or because none has enough storage, which does not.
  return CLUSTER_NOT_READY.has(code) || (code === JS_ERROR.NO_SUITABLE_PEERS && !message.includes('storage'));
}

/** Whether the same request may succeed in a moment. */
function isUnanswered(error: unknown): boolean {
  if (error instanceof JetStreamApiError) return isTemporaryAnswer(error);
  for (let at = error; at instanceof Error; at = at.cause) if (UNANSWERED.has(at.name)) return true;
  return false;
}

/** The consumer no longer exists, or no server can hold it now. */
const CONSUMER_LOST: ReadonlySet<number> = new Set([JS_ERROR.CONSUMER_NOT_FOUND, JS_ERROR.INSUFFICIENT_RESOURCES]);

/** Whether a reader has to be created anew. A reader lives on one server and may be lost with it. */
export function isLostReader(error: unknown): boolean {
  if (error instanceof JetStreamApiError) {
    return isTemporaryAnswer(error) || CONSUMER_LOST.has(error.code);
  }
  return error instanceof JetStreamError || isUnanswered(error);
}

/**
 * Repeats `ask`, which must be idempotent, after faults for which `isPassing` is true. `ask` gets the time that is left.
 * @throws TidemarkError LOG_UNAVAILABLE when the limit has passed; any other error of `ask`; the reason of the signal.
 */
export async function retryingRead<T>(
  ask: (leftMs: number) => Promise<T>,
  { limitMs = OUTAGE_LIMIT_MS, signal }: RetryOptions = {},
  onFault: (error: unknown) => void = () => {},
  isPassing = isUnanswered,
): Promise<T> {
  const startedAt = performance.now();
  for (let tries = 0, leftMs = limitMs; ; tries++) {
    try {
      return await ask(leftMs);
    } catch (error) {
      if (!isPassing(error)) throw error;
      signal?.throwIfAborted();
      onFault(error);
      const pauseMs = Math.min(100 * 2 ** tries, MAX_PAUSE_MS);
      leftMs = limitMs - (performance.now() - startedAt) - pauseMs;
      if (leftMs <= 0) {
        const message = `The log did not answer for ${Math.round(limitMs / 1000)} s: ${explain(error)}`;
        throw new TidemarkError('LOG_UNAVAILABLE', message, { cause: error });
      }
      await delay(pauseMs, undefined, { signal });
    }
  }
}

/**
 * Requests to JetStream that may be repeated. Those that create or delete a reader are not among them: a reader on a server
 * that is lost does not come back by repeating the request; a new one has to be created.
 */
const REPEATABLE = /^\$JS\.API\.(INFO$|STREAM\.|CONSUMER\.INFO\.)/;

type RequestFunction = (subject: string, payload?: Msg['data'] | string, options?: RequestOptions) => Promise<Msg>;

/** The connection's `request` function with retries; the client library makes all its requests through it. */
function retryingRequests(connection: NatsConnection, retry: RetryOptions): RequestFunction {
  const request: RequestFunction = connection.request.bind(connection);
  const { limitMs = OUTAGE_LIMIT_MS, onWait = () => {} } = retry;
  /** The requests that are being retried. */
  const waiting = new Set<symbol>();
  return async (subject, payload, options) => {
    if (!REPEATABLE.test(subject)) return await request(subject, payload, options);
    const timeout = options?.timeout ?? REQUEST_TIMEOUT_MS;
    const id = Symbol(subject);
    const noteWaiting = (error: unknown) => {
      if (waiting.size === 0) {
        onWait(`the log does not answer ${subject} (${explain(error)}): retrying for up to ${limitMs / 1000} s`);
      }
      waiting.add(id);
    };
    const ask = async (leftMs: number) => {
      const answer = await request(subject, payload, { ...options, timeout: Math.max(1, Math.min(timeout, leftMs)) });
      const fault = faultIn(answer);
      if (fault && isTemporaryAnswer(fault)) throw fault;
      return answer;
    };
    try {
      const answer = await retryingRead(ask, retry, noteWaiting);
      if (waiting.delete(id) && waiting.size === 0) onWait('the log answers again');
      return answer;
    } finally {
      waiting.delete(id);
    }
  };
}

/** Longer answers are not refusals and are not parsed here. */
const MAX_REFUSAL_BYTES = 2048;

function faultIn({ data }: Msg): JetStreamApiError | undefined {
  if (data.length > MAX_REFUSAL_BYTES) return undefined;
  try {
    const { error } = JSON.parse(Buffer.from(data).toString()) as {
      error?: ConstructorParameters<typeof JetStreamApiError>[0];
    };
    return error && new JetStreamApiError(error);
  } catch {
    return undefined; // The client library reports an answer that is not JSON.
  }
}

export type { NatsConnection };

/** The servers of a URL: its host and those of `?servers=host:port,host:port`. One server of a cluster may be down. */
export function serversOf(url: URL): string[] {
  const more = url.searchParams.get('servers')?.split(',') ?? [];
  return [url.host, ...more.filter(Boolean)].map((host) => `${url.protocol}//${host}`);
}

/**
 * Attempts to connect again, which a close has to wait for: the client library makes one after its pause, even if it was closed
 * meanwhile, and the open socket keeps the process alive.
 */
class Reconnection {
  #current: PromiseWithResolvers<void> | undefined;
  #isClosing = false;

  /** An attempt begins, and the one before it has failed. @throws Error to end the attempts of a connection that is closed */
  begin(): void {
    this.end();
    if (this.#isClosing) throw new Error('the connection is closed');
    this.#current = Promise.withResolvers();
  }

  end(): void {
    this.#current?.resolve();
    this.#current = undefined;
  }

  async watch(connection: NatsConnection): Promise<void> {
    for await (const { type } of connection.status()) if (type === 'reconnect') this.end();
  }

  /** Lasts as long as the attempt in progress: the pause before it, and at most the connection's timeout. */
  async close(connection: NatsConnection): Promise<void> {
    this.#isClosing = true;
    await this.#current?.promise;
    await connection.close().catch(() => {});
  }
}

/** The client library's attempt to connect knows no signal: one that ends later is closed then. */
async function unlessAborted(connecting: Promise<NatsConnection>, signal: AbortSignal | undefined) {
  if (!signal) return await connecting;
  const aborted = Promise.withResolvers<never>();
  const abort = () => aborted.reject(signal.reason);
  signal.addEventListener('abort', abort);
  if (signal.aborted) abort();
  try {
    return await Promise.race([connecting, aborted.promise]);
  } catch (error) {
    connecting.then((late) => late.close()).catch(() => {});
    throw error;
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/**
 * Opens a connection that always reconnects: the server may restart at any time, and every user of the connection either
 * retries idempotently or rewinds.
 * @param retry makes requests that the log does not answer be retried.
 * @param signal ends the first attempt to connect
 * @throws TidemarkError LOG_UNAVAILABLE when the first connection fails; the reason of the signal.
 */
export async function connectNats(
  url: string,
  name: string,
  retry?: RetryOptions,
  signal = retry?.signal,
): Promise<NatsConnection & AsyncDisposable> {
  const parsed = new URL(url);
  const reconnection = new Reconnection();
  try {
    const [user, pass] = [parsed.username, parsed.password].map(decodeURIComponent);
    const connecting = connect({
      servers: serversOf(parsed),
      // A user name without a password is a token: `nats://TOKEN@HOST`.
      ...(pass ? { user, pass } : { token: user || undefined }),
      // The client takes a `tls:` address for a plain one unless it is asked for TLS, and sends the password to a server without TLS.
      ...(parsed.protocol === 'tls:' ? { tls: {} } : {}),
      name,
      // The prefix to which the account may subscribe; the client's default is `_INBOX`.
      inboxPrefix: parsed.searchParams.get('inbox') ?? undefined,
      reconnect: true,
      maxReconnectAttempts: -1,
      // The client paces attempts by the wall clock: set back by an hour, it kept a client away for an hour. A timer paces them
      // instead, and the client's own wait is always over.
      reconnectDelayHandler: () => Number.NEGATIVE_INFINITY,
      reconnectToServer: ([server]) => {
        reconnection.begin();
        return { server, delay: server.lastConnect === 0 ? 0 : RECONNECT_PAUSE_MS };
      },
      timeout: 5000,
      pingInterval: 10_000,
      maxPingOut: 3,
    });
    const connection = await unlessAborted(connecting, signal);
    reconnection.end();
    void reconnection.watch(connection);
    return Object.assign(connection, {
      ...(retry ? { request: retryingRequests(connection, retry) } : {}),
      [Symbol.asyncDispose]: () => reconnection.close(connection),
    });
  } catch (cause) {
    signal?.throwIfAborted();
    throw new TidemarkError('LOG_UNAVAILABLE', `nats-server at ${parsed.host} does not answer: ${explain(cause)}`, {
      cause,
    });
  }
}
