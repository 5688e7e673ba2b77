/**
 * Sends one GET for a document, or one POST, with redirects and time limits, and detects truncated bodies. It keeps the
 * bytes as sent and never decodes a content encoding, because checksums cover the published bytes. Also retries with
 * backoff, and a rate limit shared by all processes of a user on the host.
 */

import { createHash } from 'node:crypto';
import { open, readdir, rm } from 'node:fs/promises';
import http, { type IncomingMessage } from 'node:http';
import https from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../../../shared/errors.ts';
import { makePrivateFolder } from '../../../shared/own-folder.ts';
import { AddressRefused, checkedLookup, checkHost } from './addresses.ts';
import { displayUrl, documentName, isFollowed } from './locations.ts';
import { proxyFor } from './proxy.ts';

/** Node's own client for the protocol of an address. */
export const clientFor = ({ protocol }: URL) => (protocol === 'https:' ? https : http);

export interface Backoff {
  /** Mean wait before the second attempt; it doubles before each further one. Default 500. */
  readonly firstMs?: number;
  /** Longest wait, unless the server sends Retry-After. Default 30,000. */
  readonly maxMs?: number;
}

/** If a source asks for a longer wait than 5 minutes, the fetch fails at once and says so. */
const MAX_RETRY_AFTER_MS = 300_000;

/** Thrown by an attempt if another may succeed; the caller gets `fault` after the last attempt. */
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
  /** Called before each wait. */
  readonly onRetry?: (fault: TidemarkError, attempt: number, waitMs: number) => void;
}

/** Runs `attempt` (numbered from 1) until it succeeds, fails permanently, or no attempts are left. */
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
      // The next attempt reports an abort before it sends anything.
      await sleep(waitMs, undefined, { signal: options.signal }).catch(() => {});
    }
  }
}

/**
 * The wait after the n-th attempt: the doubled base, times a random factor from 0.5 to 1.5 so that clients spread out.
 */
export function backoffMs(n: number, { firstMs = 500, maxMs = 30_000 }: Backoff = {}): number {
  return Math.min(maxMs, firstMs * 2 ** (n - 1)) * (0.5 + Math.random());
}

/** Parses a Retry-After header, seconds or an HTTP date, to milliseconds. */
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
    remedy: fault.remedy,
    cause: fault.cause,
  });
}

export interface RequestOptions {
  readonly url: URL;
  /** Longest silence: until connection and headers arrive, and between two chunks of the body. */
  readonly timeoutMs: number;
  /** A body slower than this over a whole `timeoutMs` counts as silent. */
  readonly minBytesPerSecond: number;
  /** The wait for a body beyond which its mean speed counts, too. Default GRACE_MS. */
  readonly graceMs?: number;
  readonly maxBytes: number;
  /** The rule that sets `maxBytes`; the error names it. */
  readonly limitName: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent by POST as JSON; redirects are then not followed. */
  readonly json?: string;
  readonly signal?: AbortSignal;
  /** Statuses beside 200 whose body is also an answer: some services explain there what is wrong with the request. */
  readonly answers?: readonly number[];
  /** Of an address that stood in a vendor's answer: where that answer came from. It leads no further than a redirect. */
  readonly linkedFrom?: Connected;
}

/** The other end of a connection. */
export interface Connected {
  /** Undefined if the connection was gone before it could be asked, or a proxy is between. */
  readonly address: string | undefined;
}

export interface Reply {
  readonly status: number;
  readonly headers: Record<string, string>;
  /** The first server that was asked, before any redirect. */
  readonly base: Connected;
  /** Content-Length; undefined if the server does not send it. */
  readonly declaredBytes: number | undefined;
  /** The body. It throws Retryable if it is truncated or stalls, and SOURCE_DOCUMENT_INVALID past the limit. */
  readonly body: AsyncIterable<Buffer>;
}

/**
 * A body may be waited for this long, and a second more for each SLOWEST_MEAN_BYTES that came: a vendor that sends just enough never
 * to be silent ends too, a drip after ten minutes and the largest document after three days.
 */
const GRACE_MS = 600_000;
const SLOWEST_MEAN_BYTES = 16 * 1024;
const MAX_REDIRECTS = 5;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);
const GONE = new Set([404, 410]);
/** Transient client errors; every 5xx is treated as transient. */
const TRANSIENT_STATUS = new Set([408, 425, 429]);
/** Headers that a redirect to another host does not carry. */
const CREDENTIAL_HEADERS = new Set(['authorization', 'cookie', 'proxy-authorization', 'x-api-key']);

/**
 * Requests the document and passes the reply to `use`. Closes or returns the connection when `use` is done.
 * @throws TidemarkError SOURCE_NOT_FOUND, SOURCE_DOCUMENT_INVALID, SOURCE_UNREACHABLE; wrapped in Retryable if transient.
 */
export async function requestDocument<T>(options: RequestOptions, use: (reply: Reply) => Promise<T>): Promise<T> {
  let { url } = options;
  let headers: Record<string, string> = { 'user-agent': 'tidemark', 'accept-encoding': 'identity', ...options.headers };
  // Where the base is decides where its redirects may lead.
  let base = options.linkedFrom;
  for (let hop = 0; ; hop++) {
    const { response, connected } = await respond(url, headers, options, base);
    base ??= connected;
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
      return await use(replyOf(response, base, options));
    } finally {
      if (!response.complete) response.destroy();
      else response.resume();
    }
  }
}

interface Response {
  readonly response: IncomingMessage;
  readonly connected: Connected;
}

/**
 * Sends the request and awaits the response's headers.
 * @param base of an address that a vendor sent: it is followed only to where the base may lead
 */
async function respond(
  url: URL,
  headers: Record<string, string>,
  options: RequestOptions,
  base: Connected | undefined,
): Promise<Response> {
  const { timeoutMs, signal, json } = options;
  const method = json === undefined ? 'GET' : 'POST';
  const asked =
    json === undefined
      ? headers
      : { ...headers, 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(json)) };
  try {
    if (base) checkHost(url, base.address);
  } catch (cause) {
    throw unreachable(options.url, (cause as Error).message, {}, cause);
  }
  for (;;) {
    // No kept connection: another fetch may have opened it to where this one must not lead. Behind a proxy it is the proxy that resolves
    // names and connects.
    const client = clientFor(url);
    const proxy = proxyFor(url, client.Agent);
    const direct = base && { agent: false, lookup: checkedLookup(base.address) };
    const way = proxy ? { agent: proxy } : direct;
    const request = client.request(url, { method, headers: asked, signal, ...way });
    const timer = setTimeout(() => request.destroy(new Silence(`no answer within ${timeoutMs} ms`)), timeoutMs);
    try {
      return await new Promise<Response>((resolve, reject) => {
        request.once('response', (response) =>
          resolve({ response, connected: { address: proxy ? undefined : response.socket.remoteAddress } }),
        );
        request.on('error', reject);
        request.end(json);
      });
    } catch (cause) {
      signal?.throwIfAborted();
      // The server may close an idle kept-alive connection at any time, so this is not a failure: retry on a new one.
      if (request.reusedSocket && (cause as NodeJS.ErrnoException).code === 'ECONNRESET') continue;
      if (cause instanceof AddressRefused) throw unreachable(options.url, cause.message, {}, cause);
      const details = { timed_out: cause instanceof Silence || undefined };
      throw new Retryable(unreachable(options.url, `cannot be fetched: ${reason(cause)}`, details, cause));
    } finally {
      clearTimeout(timer);
    }
  }
}

function replyOf(response: IncomingMessage, base: Connected, options: RequestOptions): Reply {
  const length = response.headers['content-length'];
  const declaredBytes = length !== undefined && /^\d+$/.test(length) ? Number(length) : undefined;
  if (declaredBytes !== undefined && declaredBytes > options.maxBytes) throw tooLarge(options, declaredBytes);
  const headers: Record<string, string> = {};
  for (const [name, value] of Object.entries(response.headers)) {
    if (value !== undefined) headers[name] = Array.isArray(value) ? value.join(', ') : value;
  }
  const body = bodyOf(response, declaredBytes, options);
  return { status: response.statusCode ?? 0, headers, base, declaredBytes, body };
}

async function* bodyOf(
  response: IncomingMessage,
  declaredBytes: number | undefined,
  options: RequestOptions,
): AsyncGenerator<Buffer> {
  const { timeoutMs, minBytesPerSecond, maxBytes, url, signal, graceMs = GRACE_MS } = options;
  const silent = () => response.destroy(new Silence(`sent nothing for ${timeoutMs} ms`));
  const pieces = response[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  let received = 0;
  let windowBytes = 0;
  let windowMs = 0;
  let waitedMs = 0;
  try {
    for (;;) {
      // Counts only the wait for the source, not the consumer's time.
      const started = performance.now();
      const timer = setTimeout(silent, timeoutMs);
      const next = await pieces.next().finally(() => clearTimeout(timer));
      if (next.done) break;
      received += next.value.length;
      if (received > maxBytes) throw tooLarge(options, received);
      windowBytes += next.value.length;
      const waited = performance.now() - started;
      windowMs += waited;
      waitedMs += waited;
      if (waitedMs > graceMs + (received / SLOWEST_MEAN_BYTES) * 1000)
        throw new Silence(`sent only ${received} bytes in ${Math.round(waitedMs)} ms`);
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
  return new TidemarkError(
    'SOURCE_UNREACHABLE',
    `${displayUrl(url)} was truncated: ${bytesRead} of ${whole} bytes arrived`,
    {
      details: { document: documentName(url), url: displayUrl(url), bytesRead, declaredBytes },
      remedy: 'The document ended early; fetch it again.',
      cause,
    },
  );
}

function tooLarge({ url, maxBytes, limitName }: RequestOptions, bytes: number): TidemarkError {
  return new TidemarkError(
    'SOURCE_DOCUMENT_INVALID',
    `${displayUrl(url)} is larger than ${limitName} allows (${maxBytes} bytes)`,
    {
      details: { document: documentName(url), url: displayUrl(url), limit: limitName, maxBytes, bytes },
    },
  );
}

/** Connection errors of Node may have an empty message and the reason in their code. */
function reason(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  return cause.message || ((cause as NodeJS.ErrnoException).code ?? cause.name);
}

export interface RateLimitOptions {
  /** Names the rate limit; processes that use the same name share it. */
  readonly name: string;
  readonly spacingMs: number;
  readonly signal?: AbortSignal;
  /** Default: a folder of the user in the host's temporary directory. */
  readonly directory?: string;
}

/**
 * How late a process may wake up in its slot. Slots are longer by this, so calls never come closer than the spacing.
 */
const TOLERANCE_MS = 50;
/** Slots older than this many are removed. */
const KEPT_SLOTS = 20;

/** One for each user: slots of another could make a process wait for hours. */
const userDirectory = () => join(tmpdir(), `tidemark-pace-${process.getuid?.() ?? 'user'}`);

/**
 * The folder of a rate limit's slots. A slot's file name is its start divided by its length, which is spacing plus
 * tolerance.
 */
export const rateLimitFolder = (name: string, directory = userDirectory()): string =>
  join(directory, createHash('sha256').update(name).digest('hex').slice(0, 16));

/**
 * Resolves when the caller may make its call, which it must do at once. Time is divided into slots. A call belongs to
 * the process that created the slot's file: that is atomic, needs no lock that a killed process could hold, and uses
 * one clock for all.
 */
export async function waitForRateLimit(options: RateLimitOptions): Promise<void> {
  const { name, spacingMs, signal, directory = userDirectory() } = options;
  const folder = rateLimitFolder(name, directory);
  const slotMs = spacingMs + TOLERANCE_MS;
  try {
    await makePrivateFolder(directory);
    await makePrivateFolder(folder);
    for (;;) {
      signal?.throwIfAborted();
      const askedAt = Date.now();
      const slot = await reserve(folder, Math.ceil(askedAt / slotMs));
      const startMs = slot * slotMs;
      // Clean up before the slot begins, because nothing may delay the call after that.
      await forget(folder, Math.floor(askedAt / slotMs) - KEPT_SLOTS);
      let leftMs = startMs - Date.now();
      // More is left than at first when the clock was set back: the slot is an hour away, and the caller takes another.
      while (leftMs > 0 && leftMs <= startMs - askedAt) {
        await sleep(leftMs, undefined, { signal });
        leftMs = startMs - Date.now();
      }
      if (leftMs <= 0 && leftMs > -TOLERANCE_MS) return;
    }
  } catch (cause) {
    signal?.throwIfAborted();
    throw new TidemarkError(
      'DISK_UNUSABLE',
      `Calls of ${name} cannot be rate-limited: the folder ${directory} is not usable. ` +
        'Remove it, or name another temporary directory with TMPDIR for all processes of this user',
      { cause },
    );
  }
}

/** Reserves the first free slot from `first` on. */
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

async function forget(folder: string, before: number): Promise<void> {
  for (const name of await readdir(folder))
    if (/^\d+$/.test(name) && Number(name) < before) await rm(join(folder, name), { force: true });
}
