/**
 * One GET of one document (or one POST of a question): redirects, time limits, and the difference between a body that ended and one that was cut.
 * Bytes are taken as they are sent; a content encoding is never undone, because checksums are over what is published.
 */

import { createHash } from 'node:crypto';
import { chmod, mkdir, open, readdir, rm } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import * as http from 'node:http';
import * as https from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../../../shared/errors.ts';
import { displayUrl, documentName, isFollowed } from './locations.ts';

/* Bounded tries of one document: exponential backoff with jitter, a server's Retry-After honoured. */

export interface Backoff {
  /** Mean wait before the second attempt; doubled for each further one. Default 500. */
  readonly firstMs?: number;
  /** Longest wait of our own. Default 30,000. */
  readonly maxMs?: number;
}

/** A source that asks for a longer wait than this is given up at once, saying so: 5 minutes. */
const MAX_RETRY_AFTER_MS = 300_000;

/** Thrown by an attempt that another one may outdo; `fault` is what the caller sees when there is none left. */
export class Retryable extends Error {
  readonly fault: TidemarkError;
  readonly retryAfterMs: number | undefined;

  constructor(fault: TidemarkError, retryAfterMs?: number) {
    super(fault.message);
    this.fault = fault;
    this.retryAfterMs = retryAfterMs;
  }
}

export interface AttemptsOptions {
  readonly maxAttempts: number;
  readonly backoff?: Backoff;
  readonly signal?: AbortSignal;
  /** Told before each wait. */
  readonly onRetry?: (fault: TidemarkError, attempt: number, waitMs: number) => void;
}

/** Runs `attempt` (numbered from 1) until it succeeds, fails for good, or the attempts are used up. */
export async function withAttempts<T>(options: AttemptsOptions, attempt: (n: number) => Promise<T>): Promise<T> {
  for (let n = 1; ; n++) {
    try {
      options.signal?.throwIfAborted();
      return await attempt(n);
    } catch (error) {
      if (!(error instanceof Retryable)) throw error;
      const { fault, retryAfterMs = 0 } = error;
      if (retryAfterMs > MAX_RETRY_AFTER_MS)
        throw exhausted(fault, n, ` (it asks to wait ${Math.ceil(retryAfterMs / 1000)} s)`);
      if (n >= options.maxAttempts) throw exhausted(fault, n, '');
      const waitMs = Math.max(retryAfterMs, backoffMs(n, options.backoff));
      options.onRetry?.(fault, n, waitMs);
      // An abort shows at the next attempt, before anything is sent.
      await sleep(waitMs, undefined, { signal: options.signal }).catch(() => {});
    }
  }
}

/** Wait after the n-th attempt: between half and one and a half times the doubled base, so that clients spread out. */
export function backoffMs(n: number, { firstMs = 500, maxMs = 30_000 }: Backoff = {}): number {
  return Math.min(maxMs, firstMs * 2 ** (n - 1)) * (0.5 + Math.random());
}

/** Milliseconds of a Retry-After header: seconds or an HTTP date. */
export function retryAfterMs(header: string | undefined): number | undefined {
  if (header === undefined) return undefined;
  if (/^\s*\d+\s*$/.test(header)) return Number(header) * 1000;
  const at = Date.parse(header);
  return Number.isNaN(at) ? undefined : Math.max(0, at - Date.now());
}

function exhausted(fault: TidemarkError, attempts: number, suffix: string): TidemarkError {
  const tries = attempts === 1 ? 'one attempt' : `${attempts} attempts`;
  return new TidemarkError(fault.code, `${fault.message}, after ${tries}${suffix}`, {
    details: { ...fault.details, attempts },
    cause: fault.cause,
  });
}

export interface RequestOptions {
  readonly url: URL;
  /** Longest silence: until the connection and headers are there, and between two pieces of the body. */
  readonly timeoutMs: number;
  /** A body slower than this over a whole `timeoutMs` is given up like a silent one. */
  readonly minBytesPerSecond: number;
  readonly maxBytes: number;
  /** The setting or rule behind `maxBytes`, named when it is exceeded. */
  readonly limitName: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent by POST as JSON; an answer that redirects is then not followed. */
  readonly json?: string;
  readonly signal?: AbortSignal;
  /** Statuses beside 200 whose body is an answer too: services that say in it what is wrong with the question. */
  readonly answers?: readonly number[];
}

export interface Reply {
  readonly status: number;
  readonly headers: Record<string, string>;
  /** Content-Length, undefined where the server does not tell. */
  readonly declaredBytes: number | undefined;
  /** The body; throws Retryable when it is cut or stalls, and SOURCE_TOO_LARGE past the limit. */
  readonly body: AsyncIterable<Buffer>;
}

const MAX_REDIRECTS = 5;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);
const GONE = new Set([404, 410]);
/** Client errors that pass by themselves; every 5xx does, or is tried as if. */
const TRANSIENT_STATUS = new Set([408, 425, 429]);
/** Not carried to another host by a redirect. */
const CREDENTIAL_HEADERS = new Set(['authorization', 'cookie', 'proxy-authorization', 'x-api-key']);

/**
 * Asks for the document and hands the reply to `use`; the connection is closed or given back when `use` is done.
 * @throws TidemarkError SOURCE_NOT_FOUND, SOURCE_TOO_LARGE, SOURCE_UNREACHABLE; Retryable around what may pass.
 */
export async function requestDocument<T>(options: RequestOptions, use: (reply: Reply) => Promise<T>): Promise<T> {
  let { url } = options;
  let headers: Record<string, string> = { 'user-agent': 'tidemark', 'accept-encoding': 'identity', ...options.headers };
  for (let hop = 0; ; hop++) {
    const response = await respond(url, headers, options);
    try {
      const status = response.statusCode ?? 0;
      if (REDIRECTS.has(status) && options.json === undefined) {
        const target = redirectTarget(url, response, hop, options.url);
        if (target.origin !== url.origin)
          headers = Object.fromEntries(
            Object.entries(headers).filter(([name]) => !CREDENTIAL_HEADERS.has(name.toLowerCase())),
          );
        url = target;
        continue;
      }
      if (status !== 200 && !options.answers?.includes(status)) throw statusFault(options.url, url, response);
      return await use(replyOf(response, options));
    } finally {
      if (!response.complete) response.destroy();
      else response.resume();
    }
  }
}

/** Sends the request and waits for the response's headers. */
async function respond(url: URL, headers: Record<string, string>, options: RequestOptions): Promise<IncomingMessage> {
  const { timeoutMs, signal, json } = options;
  const method = json === undefined ? 'GET' : 'POST';
  const asked =
    json === undefined
      ? headers
      : { ...headers, 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(json)) };
  for (;;) {
    const request = (url.protocol === 'https:' ? https : http).request(url, { method, headers: asked, signal });
    const timer = setTimeout(() => request.destroy(new Silence(`no answer within ${timeoutMs} ms`)), timeoutMs);
    try {
      return await new Promise<IncomingMessage>((resolve, reject) => {
        request.once('response', resolve);
        request.on('error', reject);
        request.end(json);
      });
    } catch (cause) {
      signal?.throwIfAborted();
      // A kept connection the server closed meanwhile says nothing about the server: ask again on a new one.
      if (request.reusedSocket && (cause as NodeJS.ErrnoException).code === 'ECONNRESET') continue;
      const details = { timed_out: cause instanceof Silence || undefined };
      throw new Retryable(unreachable(options.url, `cannot be fetched: ${reason(cause)}`, details, cause));
    } finally {
      clearTimeout(timer);
    }
  }
}

function replyOf(response: IncomingMessage, options: RequestOptions): Reply {
  const length = response.headers['content-length'];
  const declaredBytes = length !== undefined && /^\d+$/.test(length) ? Number(length) : undefined;
  if (declaredBytes !== undefined && declaredBytes > options.maxBytes) throw tooLarge(options, declaredBytes);
  const headers: Record<string, string> = {};
  for (const [name, value] of Object.entries(response.headers)) {
    if (value !== undefined) headers[name] = Array.isArray(value) ? value.join(', ') : value;
  }
  return { status: response.statusCode ?? 0, headers, declaredBytes, body: bodyOf(response, declaredBytes, options) };
}

async function* bodyOf(
  response: IncomingMessage,
  declaredBytes: number | undefined,
  options: RequestOptions,
): AsyncGenerator<Buffer> {
  const { timeoutMs, minBytesPerSecond, maxBytes, url, signal } = options;
  const silent = () => response.destroy(new Silence(`sent nothing for ${timeoutMs} ms`));
  const pieces = response[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  let received = 0;
  let windowBytes = 0;
  let windowMs = 0;
  try {
    for (;;) {
      // Only waiting for the source counts, not what is done with its bytes.
      const started = performance.now();
      const timer = setTimeout(silent, timeoutMs);
      const next = await pieces.next().finally(() => clearTimeout(timer));
      if (next.done) break;
      received += next.value.length;
      if (received > maxBytes) throw tooLarge(options, received);
      windowBytes += next.value.length;
      windowMs += performance.now() - started;
      if (windowMs >= timeoutMs) {
        if (windowBytes < (minBytesPerSecond * windowMs) / 1000)
          throw new Silence(`sent only ${windowBytes} bytes in ${Math.round(windowMs)} ms`);
        windowBytes = 0;
        windowMs = 0;
      }
      yield next.value;
    }
  } catch (cause) {
    if (cause instanceof TidemarkError) throw cause;
    signal?.throwIfAborted();
    if (cause instanceof Silence) throw new Retryable(unreachable(url, cause.message, { received, timed_out: true }));
    throw new Retryable(truncated(url, received, declaredBytes, cause));
  }
}

function redirectTarget(from: URL, response: IncomingMessage, hop: number, asked: URL): URL {
  const location = response.headers.location;
  const target = location !== undefined && URL.canParse(location, from.href) ? new URL(location, from) : undefined;
  const status = response.statusCode;
  if (target === undefined) throw unreachable(asked, `answered ${status} without a usable Location`, { status });
  if (hop >= MAX_REDIRECTS) throw unreachable(asked, `redirects more than ${MAX_REDIRECTS} times`, { status });
  if (!isFollowed(from, target))
    throw unreachable(asked, `redirects to ${target.protocol}//, which is not followed`, { status });
  return target;
}

function statusFault(asked: URL, at: URL, response: IncomingMessage): TidemarkError | Retryable {
  const status = response.statusCode ?? 0;
  const moved = at.href === asked.href ? '' : ` (redirected to ${displayUrl(at)})`;
  const text = `answered ${status} ${response.statusMessage ?? ''}`.trimEnd() + moved;
  if (GONE.has(status)) {
    const details = { document: documentName(asked), url: displayUrl(asked), status };
    return new TidemarkError('SOURCE_NOT_FOUND', `${displayUrl(asked)} ${text}`, { details });
  }
  const fault = unreachable(asked, text, { status });
  if (status < 500 && !TRANSIENT_STATUS.has(status)) return fault;
  return new Retryable(fault, retryAfterMs(response.headers['retry-after']));
}

class Silence extends Error {}

function unreachable(
  url: URL,
  what: string,
  details: Record<string, number | boolean | undefined>,
  cause?: unknown,
): TidemarkError {
  return new TidemarkError('SOURCE_UNREACHABLE', `${displayUrl(url)} ${what}`, {
    details: { document: documentName(url), url: displayUrl(url), ...details },
    cause,
  });
}

function truncated(url: URL, bytesRead: number, declaredBytes: number | undefined, cause?: unknown): TidemarkError {
  const whole = declaredBytes === undefined ? 'an unknown number of' : declaredBytes;
  return new TidemarkError('SOURCE_TRUNCATED', `${displayUrl(url)} was cut: ${bytesRead} of ${whole} bytes were read`, {
    details: { document: documentName(url), url: displayUrl(url), bytesRead, declaredBytes },
    cause,
  });
}

function tooLarge({ url, maxBytes, limitName }: RequestOptions, bytes: number): TidemarkError {
  return new TidemarkError(
    'SOURCE_TOO_LARGE',
    `${displayUrl(url)} is larger than ${limitName} allows (${maxBytes} bytes)`,
    {
      details: { document: documentName(url), url: displayUrl(url), limit: limitName, maxBytes, bytes },
    },
  );
}

/** Node's connection errors may have an empty message and the reason in their code. */
function reason(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  return cause.message || ((cause as NodeJS.ErrnoException).code ?? cause.name);
}

/*
 * Calls of one address, spaced over all processes of this host. Time is cut into slots, and a call belongs to the
 * process that made the slot's file: creating one is atomic, needs no lock that a killed process could keep, and the
 * clock is the same for all.
 */

export interface RateLimitOptions {
  /** What is paced; processes that name the same wait for each other. */
  readonly name: string;
  readonly spacingMs: number;
  readonly signal?: AbortSignal;
  /** Default a folder of the host's temporary directory. */
  readonly directory?: string;
}

/** How late a process may wake up in its slot. Slots are longer by it, so calls never come closer than the spacing. */
const TOLERANCE_MS = 50;
/** Slots this long past are forgotten. */
const KEPT_SLOTS = 20;

const hostDirectory = () => join(tmpdir(), 'tidemark-pace');

/** Where the slots of what is paced lie. A slot's name is its start over its length, the spacing and the tolerance. */
export const rateLimitFolder = (name: string, directory = hostDirectory()): string =>
  join(directory, createHash('sha256').update(name).digest('hex').slice(0, 16));

/** Resolves when the caller may make its call, which it must then do at once. */
export async function waitForRateLimit(options: RateLimitOptions): Promise<void> {
  const { name, spacingMs, signal, directory = hostDirectory() } = options;
  const folder = rateLimitFolder(name, directory);
  const slotMs = spacingMs + TOLERANCE_MS;
  try {
    await makeShared(directory);
    await makeShared(folder);
    for (;;) {
      signal?.throwIfAborted();
      const slot = await reserve(folder, Math.ceil(Date.now() / slotMs));
      const startMs = slot * slotMs;
      // While there is time: between the beginning of the slot and the call nothing else is to be waited for.
      await forget(folder, Math.floor(Date.now() / slotMs) - KEPT_SLOTS);
      while (Date.now() < startMs) await sleep(startMs - Date.now(), undefined, { signal });
      if (Date.now() < startMs + TOLERANCE_MS) return;
    }
  } catch (cause) {
    signal?.throwIfAborted();
    throw new TidemarkError('SPOOL_UNUSABLE', `Calls of ${name} cannot be paced: ${folder} is not usable`, { cause });
  }
}

/** The first free slot from `first` on. */
async function reserve(folder: string, first: number): Promise<number> {
  for (let slot = first; ; slot++) {
    try {
      await (await open(join(folder, String(slot)), 'wx')).close();
      return slot;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
  }
}

/** For every user of the host, as the temporary directory is. */
async function makeShared(path: string): Promise<void> {
  const made = await mkdir(path, { recursive: true });
  if (made !== undefined) await chmod(path, 0o1777);
}

async function forget(folder: string, before: number): Promise<void> {
  const old = (await readdir(folder)).filter((name) => Number(name) < before);
  // Of another user's, or gone: either way not ours to remove.
  for (const name of old) await rm(join(folder, name), { force: true }).catch(() => {});
}
