/** Connections to nats-server. */

import { setTimeout as delay } from 'node:timers/promises';
import { JetStreamApiError, JetStreamError } from '@nats-io/jetstream';
import { connect, type Msg, type NatsConnection, type RequestOptions } from '@nats-io/transport-node';
import { explain, TidemarkError } from '../errors.ts';
import { JS_ERROR } from './stream.ts';

/*
 * Waiting out a log that is there and does not answer: a cluster that elects a leader, a server that catches up. Commands
 * wait, for they have nothing better to do; whoever answers callers, and a projector, which starts again by itself, asks
 * once.
 */

export interface RetryOptions {
  /** Default `OUTAGE_LIMIT_MS`. */
  readonly limitMs?: number;
  /** Ends the waiting, not what is being asked. */
  readonly signal?: AbortSignal;
  /** Told what is waited for, once until there was an answer, and that it has come. */
  readonly onWait?: (message: string) => void;
}

/** How long a command goes on asking, or publishing, before it gives up. */
export const OUTAGE_LIMIT_MS = 60_000;
const MAX_PAUSE_MS = 2000;
/** Of a request whose caller names none, as the client library has it. */
const REQUEST_TIMEOUT_MS = 1000;

/** Nobody answered: too late, or nobody was there to. */
const UNANSWERED: ReadonlySet<string> = new Set(['TimeoutError', 'NoRespondersError']);
/** What a server says while a cluster is not in order. */
const NOT_IN_ORDER: ReadonlySet<number> = new Set([
  JS_ERROR.NOT_LEADER,
  JS_ERROR.TEMPORARILY_UNAVAILABLE,
  JS_ERROR.PEER_REMAP_FAILED,
  JS_ERROR.STREAM_OFFLINE,
  JS_ERROR.CONSUMER_OFFLINE,
]);

function isTemporaryAnswer({ code, message }: JetStreamApiError): boolean {
  // Peers are missing because they are away, or because none has the room: that stays so.
  return NOT_IN_ORDER.has(code) || (code === JS_ERROR.NO_SUITABLE_PEERS && !message.includes('storage'));
}

/** Whether the same request may get another answer in a moment, nothing being changed. */
export function isUnanswered(error: unknown): boolean {
  if (error instanceof JetStreamApiError) return isTemporaryAnswer(error);
  for (let at = error; at instanceof Error; at = at.cause) if (UNANSWERED.has(at.name)) return true;
  return false;
}

/** It is not there any more, or no server can take it at the moment. */
const LOST: ReadonlySet<number> = new Set([JS_ERROR.CONSUMER_NOT_FOUND, JS_ERROR.INSUFFICIENT_RESOURCES]);

/** The same of a reader, which lives on one server and may have gone with it: another one is needed. */
export function isLostReader(error: unknown): boolean {
  if (error instanceof JetStreamApiError) {
    return isTemporaryAnswer(error) || LOST.has(error.code);
  }
  return error instanceof JetStreamError || isUnanswered(error);
}

/**
 * Asks until there is an answer that stands. `ask` is given the time that is left, and is asked again after faults that
 * `isPassing` knows: it must not matter how often it is.
 * @throws TidemarkError LOG_UNAVAILABLE when the limit has passed; what `ask` throws otherwise; the signal's reason.
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
 * Requests to JetStream that may be made any number of times. Not those that make a reader or remove one: a reader that was
 * placed on a server which has gone is not had by asking for it again, but by asking for another.
 */
const REPEATABLE = /^\$JS\.API\.(INFO$|STREAM\.|CONSUMER\.INFO\.)/;

type Request = (subject: string, payload?: Msg['data'] | string, options?: RequestOptions) => Promise<Msg>;

/** The connection's requests, with patience: all of the client library's go through them. */
export function retryingRequests(connection: NatsConnection, patience: RetryOptions): Request {
  const request: Request = connection.request.bind(connection);
  const { limitMs = OUTAGE_LIMIT_MS, onWait = () => {} } = patience;
  /** Requests that wait. */
  const waiting = new Set<symbol>();
  return async (subject, payload, options) => {
    if (!REPEATABLE.test(subject)) return await request(subject, payload, options);
    const timeout = options?.timeout ?? REQUEST_TIMEOUT_MS;
    const id = Symbol(subject);
    const noteWaiting = (error: unknown) => {
      if (waiting.size === 0) {
        onWait(`the log does not answer ${subject} (${explain(error)}): asking again for up to ${limitMs / 1000} s`);
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
      const answer = await retryingRead(ask, patience, noteWaiting);
      if (waiting.delete(id) && waiting.size === 0) onWait('the log answers again');
      return answer;
    } finally {
      waiting.delete(id);
    }
  };
}

/** Only a short answer is a refusal: others are not looked into twice. */
const MAX_REFUSAL_BYTES = 2048;

function faultIn({ data }: Msg): JetStreamApiError | undefined {
  if (data.length > MAX_REFUSAL_BYTES) return undefined;
  try {
    const { error } = JSON.parse(Buffer.from(data).toString()) as {
      error?: ConstructorParameters<typeof JetStreamApiError>[0];
    };
    return error && new JetStreamApiError(error);
  } catch {
    return undefined; // The library's to say.
  }
}

export type { NatsConnection };

/** Host and port, and those of `?servers=host:port,host:port`: of a cluster any one may be away at the start. */
export function serversOf(url: URL): string[] {
  const more = url.searchParams.get('servers')?.split(',') ?? [];
  return [url.host, ...more.filter(Boolean)].map((host) => `${url.protocol}//${host}`);
}

/**
 * One connection that keeps reconnecting: the server may be restarted under us at any time, and every user of it
 * either retries idempotently or rewinds.
 * @param patience what is asked of a log that does not answer is asked again.
 * @throws TidemarkError LOG_UNAVAILABLE when the first connection fails.
 */
export async function connectNats(
  url: string,
  name: string,
  patience?: RetryOptions,
): Promise<NatsConnection & AsyncDisposable> {
  const parsed = new URL(url);
  try {
    const connection = await connect({
      servers: serversOf(parsed),
      user: decodeURIComponent(parsed.username) || undefined,
      pass: decodeURIComponent(parsed.password) || undefined,
      name,
      // Where the account may listen; without it the client's usual `_INBOX`.
      inboxPrefix: parsed.searchParams.get('inbox') ?? undefined,
      reconnect: true,
      maxReconnectAttempts: -1,
      reconnectTimeWait: 250,
      timeout: 5000,
      pingInterval: 10_000,
      maxPingOut: 3,
    });
    return Object.assign(connection, {
      ...(patience ? { request: retryingRequests(connection, patience) } : {}),
      [Symbol.asyncDispose]: () => connection.close().catch(() => {}),
    });
  } catch (cause) {
    throw new TidemarkError('LOG_UNAVAILABLE', `nats-server at ${parsed.host} does not answer: ${explain(cause)}`, {
      cause,
    });
  }
}
