/**
 * Fetches a vendor's document as a file with its sha256. Over http it is spooled and removed on dispose; a `file://`
 * document stays where it is. What may pass by itself is tried again, within `maxAttempts` in all.
 */
import { createHash } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log/logger.ts';
import { type Reply, type RequestOptions, requestDocument } from './http.ts';
import { localDocument, localText } from './local.ts';
import { type Backoff, withAttempts } from './retry.ts';
import { openSpoolFile } from './spool.ts';
import { displayUrl, documentName } from './urls.ts';

export { cleanSpool } from './spool.ts';

export interface SourceLimits {
  /** Longest silence of the source. */
  readonly timeoutMs: number;
  /** Tries in all, 1 = no retry. */
  readonly maxAttempts: number;
  /** A body slower than this over a whole `timeoutMs` is given up like a silent one. Default 1024. */
  readonly minBytesPerSecond?: number;
  readonly backoff?: Backoff;
}

export interface FetchOptions extends SourceLimits {
  readonly url: URL;
  /** Of a `file://` document: the folder that it must stay below; default the one that it lies in. */
  readonly root?: URL;
  readonly maxBytes: number;
  readonly spoolDir: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
  /** Bytes so far and in all, where known; starts again from 0 with every attempt. */
  readonly onProgress?: (bytes: number, total: number | undefined) => void;
}

export interface FetchedDocument extends AsyncDisposable {
  /** Without user, password or query: fit for manifests and logs. */
  readonly url: string;
  /** File name as the vendor publishes it. */
  readonly name: string;
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
  /** Response headers, names in lower case; none for a file. */
  readonly headers: Record<string, string>;
  /** Tries it took. */
  readonly attempts: number;
  /** A local file may be replaced while it is decoded: throws SOURCE_CHECKSUM_MISMATCH if so. Call before trusting the decoded rows. */
  assertUnchanged(): Promise<void>;
}

const DEFAULT_MIN_BYTES_PER_SECOND = 1024;
const DOCUMENT_LIMIT = 'SVC_SOURCE_MAX_DOCUMENT_BYTES';

/**
 * @throws TidemarkError SOURCE_NOT_FOUND, SOURCE_TOO_LARGE, SOURCE_OUTSIDE_FOLDER (these are not retried), SOURCE_TRUNCATED,
 * SOURCE_UNREACHABLE, SPOOL_UNUSABLE; each with `document` in its details. Aborting throws the signal's reason.
 */
export async function fetchDocument(options: FetchOptions): Promise<FetchedDocument> {
  const { url, log } = options;
  const common = { url: displayUrl(url), name: documentName(url) };
  if (url.protocol === 'file:') {
    const local = await localDocument({ ...options, limitName: DOCUMENT_LIMIT });
    return { ...common, ...local, headers: {}, attempts: 1, [Symbol.asyncDispose]: async () => {} };
  }
  return attemptHttp(options, log, async (request, attempts) => {
    const spooled = await requestDocument(
      { ...request, maxBytes: options.maxBytes, limitName: DOCUMENT_LIMIT },
      (reply) => spool(reply, options),
    );
    return {
      ...common,
      ...spooled,
      attempts,
      assertUnchanged: async () => {},
      [Symbol.asyncDispose]: () => rm(spooled.path, { force: true }),
    };
  });
}

export interface FetchTextOptions extends SourceLimits {
  readonly url: URL;
  /** As of `FetchOptions`. */
  readonly root?: URL;
  /** Default 64 KiB. */
  readonly maxBytes?: number;
  /** Sent by POST instead of a GET. */
  readonly json?: string;
  /** Awaited before each try: pacing. */
  readonly beforeAttempt?: () => Promise<void>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

const MAX_TEXT_BYTES = 64 * 1024;
const TEXT_LIMIT = 'the limit of a companion document';

/** A small companion document (checksum, listing) as text; the same rules and codes as `fetchDocument`. */
export async function fetchText(options: FetchTextOptions): Promise<string> {
  const limits = { maxBytes: options.maxBytes ?? MAX_TEXT_BYTES, limitName: TEXT_LIMIT };
  if (options.url.protocol === 'file:') return localText({ ...options, ...limits });
  return (await fetchAnswer(options)).bytes.toString('utf8');
}

export interface FetchAnswerOptions extends FetchTextOptions {
  /** Statuses beside 200 whose body is an answer too. */
  readonly answers?: readonly number[];
}

export interface Answer {
  readonly status: number;
  readonly bytes: Buffer;
}

/** A service's answer over http as it came; the same rules and codes as `fetchDocument`. */
export async function fetchAnswer(options: FetchAnswerOptions): Promise<Answer> {
  const { json, answers, maxBytes = MAX_TEXT_BYTES } = options;
  return attemptHttp(options, options.log, async (request) => {
    await options.beforeAttempt?.();
    return await requestDocument({ ...request, maxBytes, limitName: TEXT_LIMIT, json, answers }, async (reply) => {
      const pieces: Buffer[] = [];
      for await (const piece of reply.body) pieces.push(piece);
      return { status: reply.status, bytes: Buffer.concat(pieces) };
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
    throw new TidemarkError('CONFIGURATION_INVALID', `${displayUrl(url)}: documents are read over http, https or file`);
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
          throw new TidemarkError('SPOOL_UNUSABLE', `${path} cannot be written`, { cause });
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
