/**
 * Fetches a vendor's document as a file with its sha256. An http document is spooled to a file, which dispose removes;
 * a `file://` document stays where it is. Transient failures are retried, up to `maxAttempts` attempts in all.
 */

import { createHash, randomUUID } from 'node:crypto';
import { mkdirSync, openSync, readFileSync, rmSync } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, rm, stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { DAY_MS } from '../../../shared/dates.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/logger.ts';
import {
  type Backoff,
  type Connected,
  type Reply,
  type RequestOptions,
  requestDocument,
  withAttempts,
} from './http.ts';
import { displayUrl, documentName, localDocument, localText } from './locations.ts';

const PREFIX = 'spool';
const SUFFIX = '.part';
/** A process of another machine that shares the folder cannot be checked. No download takes this long. */
const FOREIGN_AGE_MS = 3 * DAY_MS;

export interface SpoolFile {
  readonly path: string;
  readonly handle: FileHandle;
}

/**
 * Creates a private file in the spool folder, and the folder if needed. Its name states the owning process, so that
 * `cleanSpool` can tell an abandoned download from a running one.
 */
export async function openSpoolFile(spoolDir: string): Promise<SpoolFile> {
  const path = spoolPath(spoolDir);
  try {
    await mkdir(spoolDir, { recursive: true });
    return { path, handle: await open(path, 'wx', 0o600) };
  } catch (cause) {
    throw unusable(spoolDir, cause);
  }
}

/** Opens a file in the spool folder that has no name, so that nothing of it is left after a kill. @returns its descriptor. */
export function openScratch(spoolDir: string): number {
  const path = spoolPath(spoolDir);
  try {
    mkdirSync(spoolDir, { recursive: true });
    const file = openSync(path, 'wx+', 0o600);
    rmSync(path);
    return file;
  } catch (cause) {
    throw unusable(spoolDir, cause);
  }
}

const spoolPath = (spoolDir: string): string =>
  join(spoolDir, [PREFIX, host(), process.pid, startedAt('self'), `${randomUUID()}${SUFFIX}`].join('~'));

const unusable = (spoolDir: string, cause: unknown): TidemarkError =>
  new TidemarkError('DISK_UNUSABLE', `The spool folder ${spoolDir} cannot be written`, { cause });

/** Removes the downloads of processes that have ended. Safe to run while others download. @returns how many. */
export async function cleanSpool(spoolDir: string): Promise<number> {
  let removed = 0;
  for (const name of await namesIn(spoolDir)) {
    const owner = ownerOf(name);
    if (owner === undefined) continue;
    const path = join(spoolDir, name);
    const gone =
      owner.host === host() ? !isRunning(owner.pid, owner.startedAt) : await isOlderThan(path, FOREIGN_AGE_MS);
    if (!gone) continue;
    await rm(path, { force: true });
    removed++;
  }
  return removed;
}

interface Owner {
  readonly host: string;
  readonly pid: number;
  readonly startedAt: string;
}

function ownerOf(name: string): Owner | undefined {
  const parts = name.split('~');
  if (parts.length !== 5 || parts[0] !== PREFIX || !name.endsWith(SUFFIX) || !/^\d+$/.test(parts[2])) return undefined;
  return { host: parts[1], pid: Number(parts[2]), startedAt: parts[3] };
}

const host = () => encodeURIComponent(hostname()).replaceAll('~', '%7E');

function isRunning(pid: number, started: string): boolean {
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
  }
  const now = startedAt(pid);
  return started === '' || now === '' || now === started;
}

/**
 * A process's start in clock ticks since boot, or '' if the system does not tell. It distinguishes processes that reuse
 * a pid.
 */
function startedAt(pid: number | 'self'): string {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'latin1');
    // The command name, in brackets, may contain anything. After it, the start time is the 20th field.
    return fields.slice(fields.lastIndexOf(')') + 2).split(' ')[19] ?? '';
  } catch {
    return '';
  }
}

async function isOlderThan(path: string, ageMs: number): Promise<boolean> {
  try {
    return Date.now() - (await stat(path)).mtimeMs > ageMs;
  } catch {
    return false;
  }
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

export interface SourceLimits {
  /** The longest silence of the source that is accepted. */
  readonly timeoutMs: number;
  /** Attempts in all; 1 means no retry. */
  readonly maxAttempts: number;
  /** A body slower than this over a whole `timeoutMs` counts as silent. Default 1024. */
  readonly minBytesPerSecond?: number;
  readonly backoff?: Backoff;
}

export interface FetchOptions extends SourceLimits {
  readonly url: URL;
  /** For a `file://` document: the folder that it must stay below. Default: the folder that holds it. */
  readonly root?: URL;
  readonly maxBytes: number;
  readonly spoolDir: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Of an address that stood in a vendor's answer: where that answer came from. */
  readonly linkedFrom?: Connected;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
  /** Bytes so far and in all, if known. Each attempt starts again from 0. */
  readonly onProgress?: (bytes: number, total: number | undefined) => void;
}

/** By what a vendor, or the file system, tells whether a document is still the same. */
export interface Validators {
  readonly etag?: string;
  /** Where the vendor states no ETag. */
  readonly lastModified?: string;
  /** Of a local file. */
  readonly stamp?: string;
}

export interface FetchedDocument extends AsyncDisposable {
  /** Without user, password or query, so that manifests and logs may show it. */
  readonly url: string;
  /** File name as the vendor publishes it. */
  readonly name: string;
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
  /** Response headers, names in lower case; empty for a file. */
  readonly headers: Record<string, string>;
  readonly validators: Validators;
  /** Attempts that it took. */
  readonly attempts: number;
  /**
   * A local file may be replaced while it is decoded. Call this before trusting the decoded rows.
   * @throws TidemarkError SOURCE_CHECKSUM_MISMATCH if the file has changed
   */
  assertUnchanged(): Promise<void>;
}

const DEFAULT_MIN_BYTES_PER_SECOND = 1024;
const DOCUMENT_LIMIT = 'the limit of a document';

/**
 * @throws TidemarkError SOURCE_NOT_FOUND, SOURCE_DOCUMENT_INVALID, SOURCE_REFUSED (these are not retried),
 * SOURCE_UNREACHABLE, DISK_UNUSABLE; each has `document` in its details. After an abort it throws
 * the signal's reason.
 */
export async function fetchDocument(options: FetchOptions): Promise<FetchedDocument> {
  const fetched = await fetchUnlessSame(options, {});
  assert(fetched, 'a document without validators is fetched');
  return fetched;
}

/** @returns undefined for a document that is still the one with these validators. Throws what `fetchDocument` throws. */
export async function fetchUnlessSame(
  options: FetchOptions,
  { etag, lastModified, stamp }: Validators,
): Promise<FetchedDocument | undefined> {
  const { url, log } = options;
  const common = { url: displayUrl(url), name: documentName(url) };
  if (url.protocol === 'file:') {
    const local = await localDocument({ ...options, limitName: DOCUMENT_LIMIT }, stamp);
    if (!local) return undefined;
    const validators = { stamp: local.stamp };
    return { ...common, ...local, headers: {}, validators, attempts: 1, [Symbol.asyncDispose]: async () => {} };
  }
  const headers = { ...options.headers };
  if (etag !== undefined) headers['if-none-match'] = etag;
  else if (lastModified !== undefined) headers['if-modified-since'] = lastModified;
  const answers = etag === undefined && lastModified === undefined ? [] : [NOT_MODIFIED];
  return attemptHttp({ ...options, headers }, log, async (request, attempts) => {
    const spooled = await requestDocument(
      { ...request, linkedFrom: options.linkedFrom, maxBytes: options.maxBytes, limitName: DOCUMENT_LIMIT, answers },
      async (reply) => {
        // A server that ignores conditions states the same tag again; its body is not read.
        if (reply.status === NOT_MODIFIED || (etag !== undefined && reply.headers.etag === etag)) return undefined;
        return await spool(reply, options);
      },
    );
    if (!spooled) return undefined;
    return {
      ...common,
      ...spooled,
      validators: validatorsOf(spooled.headers),
      attempts,
      assertUnchanged: async () => {},
      [Symbol.asyncDispose]: () => rm(spooled.path, { force: true }),
    };
  });
}

const NOT_MODIFIED = 304;

/**
 * A time in seconds tells documents apart only where it had passed when the answer was sent: else another document may follow
 * within the same second.
 */
function validatorsOf({ etag, date = '', 'last-modified': modified = '' }: Record<string, string>): Validators {
  if (etag !== undefined) return { etag };
  return Date.parse(date) - Date.parse(modified) >= 1000 ? { lastModified: modified } : {};
}

export interface FetchTextOptions extends SourceLimits {
  readonly url: URL;
  /** As in `FetchOptions`. */
  readonly root?: URL;
  /** Default 64 KiB. */
  readonly maxBytes?: number;
  /** A body to send by POST instead of a GET. */
  readonly json?: string;
  /** Awaited before each attempt, for rate limiting. */
  readonly beforeAttempt?: () => Promise<void>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

const MAX_TEXT_BYTES = 64 * 1024;
const TEXT_LIMIT = 'the limit of a companion document';

/** Fetches a small companion document (checksum, listing) as text, with the rules and codes of `fetchDocument`. */
export async function fetchText(options: FetchTextOptions): Promise<string> {
  const limits = { maxBytes: options.maxBytes ?? MAX_TEXT_BYTES, limitName: TEXT_LIMIT };
  if (options.url.protocol === 'file:') return localText({ ...options, ...limits });
  return (await fetchAnswer(options)).bytes.toString('utf8');
}

export interface FetchAnswerOptions extends FetchTextOptions {
  /** Statuses beside 200 whose body is also an answer. */
  readonly answers?: readonly number[];
}

export interface ServiceAnswer {
  readonly status: number;
  readonly bytes: Buffer;
  /** The server that was asked. */
  readonly base: Connected;
}

/** Fetches a service's answer over http unchanged, with the rules and codes of `fetchDocument`. */
export async function fetchAnswer(options: FetchAnswerOptions): Promise<ServiceAnswer> {
  const { json, answers, maxBytes = MAX_TEXT_BYTES } = options;
  return attemptHttp(options, options.log, async (request) => {
    await options.beforeAttempt?.();
    return await requestDocument({ ...request, maxBytes, limitName: TEXT_LIMIT, json, answers }, async (reply) => {
      const pieces: Buffer[] = [];
      for await (const piece of reply.body) pieces.push(piece);
      return { status: reply.status, bytes: Buffer.concat(pieces), base: reply.base };
    });
  });
}

type Request = Omit<RequestOptions, 'maxBytes' | 'limitName'>;

function attemptHttp<T>(
  options: FetchTextOptions,
  log: Logger | undefined,
  attempt: (request: Request, n: number) => Promise<T>,
): Promise<T> {
  const { url, signal, timeoutMs, headers, minBytesPerSecond = DEFAULT_MIN_BYTES_PER_SECOND } = options;
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new TidemarkError('CONFIGURATION_INVALID', `${displayUrl(url)}: use an http, https or file URL`);
  return withAttempts(
    {
      maxAttempts: options.maxAttempts,
      backoff: options.backoff,
      signal,
      onRetry: (fault, n, waitMs) =>
        log?.warn(
          { code: fault.code, document: documentName(url), attempt: n, waitMs: Math.round(waitMs) },
          fault.message,
        ),
    },
    (n) => attempt({ url, timeoutMs, headers, signal, minBytesPerSecond }, n),
  );
}

async function spool(reply: Reply, options: FetchOptions) {
  const { path, handle } = await openSpoolFile(options.spoolDir);
  const hash = createHash('sha256');
  let bytes = 0;
  try {
    try {
      for await (const piece of reply.body) {
        hash.update(piece);
        await handle.writeFile(piece).catch((cause) => {
          throw new TidemarkError('DISK_UNUSABLE', `${path} cannot be written`, { cause });
        });
        bytes += piece.length;
        options.onProgress?.(bytes, reply.declaredBytes);
      }
    } finally {
      await handle.close();
    }
  } catch (error) {
    await rm(path, { force: true });
    throw error;
  }
  return { path, bytes, sha256: hash.digest('hex'), headers: reply.headers };
}
