/** Where a mirror reads from: an HTTP server, the service or any that hands out files, or a folder of this machine. */
import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { MANIFEST_FILE, MAX_ROOT_BYTES, MirrorFault } from './lake-manifest.ts';

export interface OpenRequest {
  /** The first byte that is wanted; default 0. */
  readonly from?: number;
  /** The tag of the file that `from` continues. The answer begins at 0 if the file is another one. */
  readonly ifRange?: string;
  /** The tag of the file that is known. */
  readonly ifNoneMatch?: string;
}

export interface OpenedFile {
  /** The byte that the answer begins with: the one that was asked for, or 0. */
  readonly start: number;
  /** Bytes of the whole file, where the source says it. */
  readonly total: number | undefined;
  readonly etag: string | undefined;
  /** Fails with BrokenAnswer. Leaving it early ends the connection. */
  readonly body: AsyncIterable<Uint8Array>;
}

export interface Source {
  /** Requests that were sent so far. */
  readonly requests: number;
  /** @returns undefined if the file is the one of `ifNoneMatch`. @throws MirrorFault, BrokenAnswer, or the signal's reason */
  open(path: string, request?: OpenRequest): Promise<OpenedFile | undefined>;
}

/** The answer ended or stalled; the rest can be asked for again. */
export class BrokenAnswer extends Error {
  override readonly name = 'BrokenAnswer';
}

export interface SourceOptions {
  /** URL of a folder: http, https or file. */
  readonly from: string;
  /** The service's API key. No other host gets it. */
  readonly key?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Longest wait for an answer, and for its next bytes, ms. */
  readonly stallMs: number;
  /** Attempts in a row that may bring nothing. */
  readonly attempts: number;
  /** The pause after the first of them, ms; it doubles. */
  readonly pauseMs: number;
  /** The wait for a body beyond which its mean speed counts, ms; default GRACE_MS. */
  readonly graceMs?: number | undefined;
}

/** @throws MirrorFault for a URL that names no source */
export function sourceOf(options: SourceOptions): Source {
  const url = URL.canParse(options.from) ? new URL(options.from) : undefined;
  const isBare = url?.username === '' && url.password === '' && url.search === '' && url.hash === '';
  if (isBare && url.protocol === 'file:' && url.host === '') return new FolderSource(fileURLToPath(url));
  if (!isBare || !/^https?:$/.test(url.protocol)) {
    throw new MirrorFault(
      'usage',
      `The source must be an http, https or file URL of a folder, without user, query or fragment, got ${options.from}`,
    );
  }
  if (!url.pathname.endsWith('/')) url.pathname += '/';
  return new HttpSource(url, options);
}

/** An answer may be waited for this long, and a second more for each SLOWEST_MEAN_BYTES that came: one that drips ends. */
const GRACE_MS = 600_000;
const SLOWEST_MEAN_BYTES = 1024;
const MAX_REDIRECTS = 5;
/** A server that asks for a longer pause is taken for one that does not answer. */
const MAX_RETRY_AFTER_MS = 300_000;
const MAX_PAUSE_MS = 30_000;
const MAX_REFUSAL_CHARACTERS = 1000;

/** Waits before the next attempt. @param failures in a row */
export async function pauseAfter(
  failures: number,
  { pauseMs, signal }: Pick<SourceOptions, 'pauseMs' | 'signal'>,
  atLeastMs = 0,
): Promise<void> {
  const ms = Math.min(pauseMs * 2 ** (failures - 1), MAX_PAUSE_MS) * (0.5 + Math.random());
  try {
    await delay(Math.max(ms, atLeastMs), undefined, { signal });
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}

/** An attempt that may be repeated. */
class PassingFault extends Error {
  readonly retryAfterMs: number;
  /** What it is once nothing is tried any more. */
  readonly kind: 'unreachable' | 'missing';

  constructor(message: string, { retryAfterMs = 0, kind = 'unreachable', cause }: Partial<PassingFault> = {}) {
    super(message, { cause });
    this.retryAfterMs = retryAfterMs;
    this.kind = kind;
  }
}

class HttpSource implements Source {
  requests = 0;
  readonly #base: URL;
  readonly #options: SourceOptions;

  constructor(base: URL, options: SourceOptions) {
    this.#base = base;
    this.#options = options;
  }

  async open(path: string, request: OpenRequest = {}): Promise<OpenedFile | undefined> {
    const { attempts } = this.#options;
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#attempt(new URL(path.replaceAll('%', '%25'), this.#base), request);
      } catch (error) {
        this.#options.signal?.throwIfAborted();
        if (!(error instanceof PassingFault)) throw error;
        if (attempt >= attempts || error.retryAfterMs > MAX_RETRY_AFTER_MS) {
          throw new MirrorFault(error.kind, error.message, error.cause);
        }
        await pauseAfter(attempt, this.#options, error.retryAfterMs);
      }
    }
  }

  async #attempt(url: URL, request: OpenRequest): Promise<OpenedFile | undefined> {
    const hangUp = new AbortController();
    const response = await this.#send(url, request, hangUp);
    const { status, headers } = response;
    if (status === 304 && request.ifNoneMatch !== undefined) return undefined;
    const from = request.from ?? 0;
    if (status !== 200 && !(status === 206 && from > 0)) throw await this.#refusal(url, response, from);
    const coding = headers.get('content-encoding');
    if (coding !== null && coding !== 'identity') {
      hangUp.abort();
      throw new MirrorFault('refused', `${url} is sent as ${coding}, and must be sent as it is`);
    }
    const range = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(headers.get('content-range') ?? '');
    if (status === 206 && Number(range?.[1] ?? Number.NaN) !== from) {
      hangUp.abort();
      throw new MirrorFault('refused', `${url} answers another range than the one from ${from} on`);
    }
    const length = status === 206 ? range![2] : headers.get('content-length');
    const etag = headers.get('etag');
    return {
      start: status === 206 ? from : 0,
      total: length !== null && /^\d+$/.test(length) ? Number(length) : undefined,
      etag: etag === null ? undefined : etag,
      body: this.#body(url, response, hangUp),
    };
  }

  /** Follows redirects itself: `fetch` would send the key to other hosts. */
  async #send(first: URL, { from = 0, ifRange, ifNoneMatch }: OpenRequest, hangUp: AbortController): Promise<Response> {
    const { key, signal, stallMs } = this.#options;
    let url = first;
    for (let redirects = 0; ; redirects++) {
      const headers = {
        // Packed bytes would have other ranges.
        'Accept-Encoding': 'identity',
        ...(key !== undefined && url.origin === this.#base.origin && { 'X-API-Key': key }),
        ...(from > 0 && { Range: `bytes=${from}-` }),
        ...(from > 0 && ifRange !== undefined && { 'If-Range': ifRange }),
        ...(ifNoneMatch !== undefined && { 'If-None-Match': ifNoneMatch }),
      };
      const timer = setTimeout(() => hangUp.abort(new Error(`no answer within ${stallMs} ms`)), stallMs);
      let response: Response;
      try {
        this.requests++;
        const signals = signal ? AbortSignal.any([signal, hangUp.signal]) : hangUp.signal;
        response = await fetch(url, { headers, redirect: 'manual', signal: signals });
      } catch (cause) {
        throw new PassingFault(`${url} does not answer`, {
          cause: hangUp.signal.aborted ? hangUp.signal.reason : cause,
        });
      } finally {
        clearTimeout(timer);
      }
      const location = response.headers.get('location');
      if (![301, 302, 303, 307, 308].includes(response.status) || location === null) return response;
      await response.body?.cancel().catch(() => {});
      const next = URL.canParse(location, url.href) ? new URL(location, url) : undefined;
      const isAllowed = next && (next.protocol === 'https:' || (next.protocol === 'http:' && url.protocol === 'http:'));
      if (!isAllowed || redirects >= MAX_REDIRECTS) {
        throw new MirrorFault('refused', `${url} redirects to ${location.slice(0, 200)}, which is not followed`);
      }
      url = next;
    }
  }

  async #refusal(url: URL, response: Response, from: number): Promise<Error> {
    const { status, headers } = response;
    let text = '';
    try {
      for await (const bytes of this.#body(url, response, new AbortController())) {
        text += Buffer.from(bytes).toString('latin1');
        if (text.length > MAX_REFUSAL_CHARACTERS) break;
      }
    } catch {
      // The status says enough.
    }
    const said = detailOf(Buffer.from(text, 'latin1').toString());
    const message = `${url} answered ${status}${said === '' ? '' : `: ${said}`}`;
    if (status === 416 && from > 0) return new MirrorFault('altered', `${url} has no bytes from ${from} on`);
    // The file of an export that is lost or altered at the service does not come back.
    const isLost = status === 503 && said.startsWith('EXPORT_ARTIFACT_');
    if (status === 404 || status === 410 || isLost) return new MirrorFault('missing', message);
    if (status >= 500 || status === 429 || status === 408) {
      // The writer of a lake may replace its file soon, or never: all others can be had.
      const kind = said.startsWith('LAKE_FILE_ALTERED') ? 'missing' : 'unreachable';
      return new PassingFault(message, { retryAfterMs: retryAfterMs(headers.get('retry-after')), kind });
    }
    return new MirrorFault('refused', message);
  }

  async *#body(url: URL, { body }: Response, hangUp: AbortController): AsyncGenerator<Uint8Array, void, undefined> {
    if (!body) return;
    const { signal, stallMs, graceMs = GRACE_MS } = this.#options;
    const reader = body.getReader();
    let isRead = false;
    let [received, waitedMs] = [0, 0];
    try {
      for (;;) {
        const askedAt = performance.now();
        let timer: NodeJS.Timeout | undefined;
        const stalled = new Promise<never>((_, reject) => {
          timer = setTimeout(() => reject(new Error(`no bytes came for ${stallMs} ms`)), stallMs);
        });
        const { done, value } = await Promise.race([reader.read(), stalled]).finally(() => clearTimeout(timer));
        if (done) {
          isRead = true;
          return;
        }
        // Only the wait for the source counts.
        waitedMs += performance.now() - askedAt;
        received += value.length;
        // No broken answer: each attempt would bring a little, and no number of them would be the last.
        if (waitedMs > graceMs + (received / SLOWEST_MEAN_BYTES) * 1000) {
          throw new MirrorFault('unreachable', `${url} sent only ${received} bytes in ${Math.round(waitedMs)} ms`);
        }
        yield value;
      }
    } catch (cause) {
      signal?.throwIfAborted();
      if (cause instanceof MirrorFault) throw cause;
      const why = cause instanceof Error && cause.message.startsWith('no bytes') ? `: ${cause.message}` : '';
      throw new BrokenAnswer(`The answer of ${url} broke off${why}`, { cause });
    } finally {
      if (!isRead) {
        await reader.cancel().catch(() => {});
        hangUp.abort();
      }
    }
  }
}

/** What a refusal says: code and detail of a problem document, or all of its faults; else the beginning of its text. */
export function detailOf(text: string): string {
  try {
    const { code, detail, errors } = JSON.parse(text);
    if (typeof code === 'string' && typeof detail === 'string') {
      const hasMore = Array.isArray(errors) && errors.length > 1;
      const said = hasMore ? errors.map(({ pointer, message }) => `${pointer} ${message}`).join('; ') : detail;
      return `${code}: ${said}`.slice(0, MAX_REFUSAL_CHARACTERS);
    }
  } catch {
    // Not an answer of the service.
  }
  return text.slice(0, MAX_REFUSAL_CHARACTERS).trim();
}

/** Seconds or an HTTP date; 0 for anything else. */
function retryAfterMs(header: string | null): number {
  if (header === null) return 0;
  const ms = /^\d+$/.test(header) ? Number(header) * 1000 : Date.parse(header) - Date.now();
  return Number.isNaN(ms) ? 0 : Math.max(0, ms);
}

const CHUNK_BYTES = 1024 * 1024;

/** A lake in a folder. Only its root manifest has a tag: its digest. */
class FolderSource implements Source {
  requests = 0;
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async open(path: string, { from = 0, ifNoneMatch }: OpenRequest = {}): Promise<OpenedFile | undefined> {
    this.requests++;
    const file = await openFile(join(this.#folder, path));
    try {
      const { size } = await file.stat();
      if (from >= size && from > 0) throw new MirrorFault('altered', `${path} has no bytes from ${from} on`);
      let etag: string | undefined;
      if (path === MANIFEST_FILE && size <= MAX_ROOT_BYTES) {
        etag = `"${createHash('sha256')
          .update(await file.readFile())
          .digest('hex')}"`;
        if (etag === ifNoneMatch) {
          await file.close();
          return undefined;
        }
      }
      return { start: from, total: size, etag, body: readFrom(file, from) };
    } catch (error) {
      await file.close();
      throw error;
    }
  }
}

async function* readFrom(file: FileHandle, from: number): AsyncGenerator<Uint8Array, void, undefined> {
  try {
    for (let at = from; ; ) {
      const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(CHUNK_BYTES), 0, CHUNK_BYTES, at);
      if (bytesRead === 0) return;
      yield buffer.subarray(0, bytesRead);
      at += bytesRead;
    }
  } finally {
    await file.close();
  }
}

/** Opens a regular file; it neither follows a link nor waits at a pipe. @throws MirrorFault */
async function openFile(path: string): Promise<FileHandle> {
  let file: FileHandle;
  try {
    file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') throw new MirrorFault('missing', `There is no file ${path}`, cause);
    throw new MirrorFault('unreachable', `${path} cannot be read`, cause);
  }
  if ((await file.stat()).isFile()) return file;
  await file.close();
  throw new MirrorFault('refused', `${path} is not a file`);
}
