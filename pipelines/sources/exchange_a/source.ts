/**
 * Exchange A as a source: one zip of trades a day and one a month, each with its sha256 in a CHECKSUM file beside it. A
 * document is used only if its sha256 equals that checksum.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { DAY_MS } from '../../../shared/dates.ts';
import { codeOf, type ErrorDetails, TidemarkError } from '../../../shared/errors.ts';
import { exchangeASpotTrades } from '../../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { fileDays, windowOf } from '../../../shared/registry/keys.ts';
import { type FetchedDocument, type FetchOptions, fetchDocument, fetchText } from '../documents/fetch.ts';
import { backoffMs } from '../documents/http.ts';
import { displayUrl, urlBelow, urlWithSuffix } from '../documents/locations.ts';
import type { DecodeOptions, FileDayRequest, FileDaySource, PartitionWindow } from '../feed-types.ts';
import { openTradeFile, type TradeFetching } from '../trades/feed.ts';
import { ExchangeADecoder } from './decode.ts';

export interface ExchangeADocument {
  readonly url: URL;
  readonly checksumUrl: URL;
  /** File name of the zip. */
  readonly name: string;
  /** The only member that the zip may hold. */
  readonly memberName: string;
  /** `YYYY-MM-DD` or `YYYY-MM`. */
  readonly period: string;
  readonly granularity: 'daily' | 'monthly';
  /** Time range of its rows, UTC ms, end exclusive. */
  readonly startMs: number;
  readonly endMs: number;
}

/**
 * @throws TidemarkError USAGE if the period is not a day or month, CONFIGURATION_INVALID if the symbol is not a valid
 * name.
 */
export function documentFor(baseUrl: URL, symbol: string, period: string): ExchangeADocument {
  const { granularity, startMs, endMs } = rangeOf(period);
  const stem = `${symbol}-trades-${period}`;
  const url = urlBelow(baseUrl, 'spot', granularity, 'trades', symbol, `${stem}.zip`);
  return {
    url,
    checksumUrl: urlWithSuffix(url, '.CHECKSUM'),
    name: `${stem}.zip`,
    memberName: `${stem}.csv`,
    period,
    granularity,
    startMs,
    endMs,
  };
}

export interface ExchangeAFetchOptions extends Omit<FetchOptions, 'url' | 'headers'> {
  readonly baseUrl: URL;
  readonly symbol: string;
  /** `YYYY-MM-DD` or `YYYY-MM`. */
  readonly period: string;
}

export interface ExchangeAFile extends FetchedDocument {
  readonly document: ExchangeADocument;
  /** The vendor's published sha256; it equals `sha256`. */
  readonly checksum: string;
}

/**
 * Downloads of one document that may differ from its checksum before the fetch fails. Vendors republish both files, not
 * at the same moment.
 */
const MAX_MISMATCHES = 3;

/**
 * @throws TidemarkError SOURCE_DOCUMENT_INVALID, SOURCE_CHECKSUM_MISMATCH, and those of `fetchDocument`; each with
 * `document` in its details.
 */
export async function fetchExchangeAFile(options: ExchangeAFetchOptions): Promise<ExchangeAFile> {
  const { baseUrl, symbol, period, ...fetching } = options;
  const document = documentFor(baseUrl, symbol, period);
  const remote = document.url.protocol !== 'file:';
  let headers: Record<string, string> = {};
  let used = 0;
  for (let mismatches = 1; ; mismatches++) {
    const left = options.maxAttempts - used;
    const fetched = await fetchDocument({ ...fetching, url: document.url, root: baseUrl, headers, maxAttempts: left });
    try {
      const checksum = await fetchChecksum(document, options, headers);
      if (checksum === fetched.sha256) return { ...fetched, attempts: used + fetched.attempts, document, checksum };
      used += fetched.attempts;
      const fault = mismatch(document, fetched, checksum, used);
      if (!remote || mismatches >= MAX_MISMATCHES || used >= options.maxAttempts) throw fault;
      const waitMs = backoffMs(mismatches, options.backoff);
      options.log?.warn(
        { code: fault.code, document: document.name, attempt: used, waitMs: Math.round(waitMs) },
        fault.message,
      );
      await fetched[Symbol.asyncDispose]();
      await sleep(waitMs, undefined, { signal: options.signal });
      // A cache on the way may still hold an old version of one of the two.
      headers = { 'cache-control': 'no-cache' };
    } catch (error) {
      await fetched[Symbol.asyncDispose]();
      options.signal?.throwIfAborted();
      throw error;
    }
  }
}

async function fetchChecksum(
  document: ExchangeADocument,
  options: ExchangeAFetchOptions,
  headers: Record<string, string>,
): Promise<string> {
  const { baseUrl: root, timeoutMs, maxAttempts, minBytesPerSecond, backoff, signal, log } = options;
  const limits = { root, timeoutMs, maxAttempts, minBytesPerSecond, backoff, signal, log };
  const text = await fetchText({ ...limits, url: document.checksumUrl, headers }).catch((cause) => {
    if (!(cause instanceof TidemarkError) || cause.code !== 'SOURCE_NOT_FOUND') throw named(cause, document);
    throw checksumFault('SOURCE_DOCUMENT_INVALID', document, 'has no checksum beside it', cause);
  });
  return parseChecksum(text, document);
}

/** File names of the vendor's documents. */
const DOCUMENT_NAME = /^\w{1,32}-trades-[\d-]{4,10}\.zip$/;
/** As sha256sum writes it: the digest, two blanks or a blank and an asterisk, the file's path. */
const GNU_LINE = /^([0-9a-f]{32,128})(?:\s+\*?(\S.*))?$/i;
/** As the BSDs and openssl write it: `SHA256 (NAME) = HEX`, `SHA2-256(NAME)= HEX`. */
const BSD_LINE = /^(\w[\w/-]*)\s*\((.+)\)\s*=\s*([0-9a-f]{32,128})$/i;
const SHA256_DIGITS = 64;

/** A line of a checksum file that states the digest of a file. */
interface ChecksumLine {
  readonly digest: string;
  readonly isSha256: boolean;
  /** With `/` between folders and no `./` before; undefined where the line names no file. */
  readonly path: string | undefined;
}

function checksumLine(line: string): ChecksumLine | undefined {
  const [, algorithm, inBrackets, ofBsd] = BSD_LINE.exec(line) ?? [];
  const [, digest, path] = algorithm === undefined ? (GNU_LINE.exec(line) ?? []) : [line, ofBsd, inBrackets];
  if (digest === undefined) return undefined;
  return {
    digest: digest.toLowerCase(),
    isSha256: digest.length === SHA256_DIGITS && /^SHA(?:2-)?256$/i.test(algorithm ?? 'SHA256'),
    path: path
      ?.replace(/^"(.*)"$/, '$1')
      .replaceAll('\\', '/')
      .replace(/^(?:\.\/+)+/, ''),
  };
}

const SHA256_SOMEWHERE = /\b[0-9a-f]{64}\b/i;

const nameIn = (path: string | undefined) => path?.split('/').at(-1);

/**
 * The sha256 that the checksum file states of the document. Other lines may name other files or state other digests; a line
 * without a name counts where it is the only one.
 *
 * A refusal states the length of the text instead of the text: errors are stored and served, and the text may be anything.
 */
export function parseChecksum(text: string, document: ExchangeADocument): string {
  const written = text
    .replace(/^\uFEFF/, '')
    .split(/[\r\n]+/)
    .map((line) => line.trim())
    .filter((line) => line !== '');
  const lines = written.flatMap((line) => checksumLine(line) ?? []);
  const refused = (code: ChecksumCode, what: string) =>
    checksumFault(code, document, `has a checksum file ${what} (${text.length} characters)`);
  if (lines.length === 0) {
    const isUnknownForm = SHA256_SOMEWHERE.test(text);
    const what = isUnknownForm
      ? 'in a form that is not known (known are "HEX  NAME" and "SHA256 (NAME) = HEX")'
      : 'that holds no sha256';
    throw refused('SOURCE_DOCUMENT_INVALID', what);
  }
  const isUnnamed = written.length === 1 && lines[0].path === undefined;
  const own = isUnnamed ? lines : lines.filter(({ path }) => nameIn(path) === document.name);
  if (own.length === 0) {
    const other = nameIn(lines[0].path) ?? '';
    if (written.length > 1)
      throw refused('SOURCE_CHECKSUM_MISMATCH', `of ${written.length} lines, none of which names it`);
    throw refused('SOURCE_CHECKSUM_MISMATCH', `for ${DOCUMENT_NAME.test(other) ? other : 'another document'}`);
  }
  const stated = own.filter(({ isSha256 }) => isSha256);
  if (stated.length === 0) {
    const what = `that states a digest of ${own[0].digest.length} digits of it, which is no sha256`;
    throw refused('SOURCE_DOCUMENT_INVALID', what);
  }
  // Of several paths that end in its name, one without a folder is the document beside the checksum file.
  const beside = stated.filter(({ path }) => path === document.name);
  const digests = new Set((beside.length > 0 ? beside : stated).map(({ digest }) => digest));
  if (digests.size > 1) throw refused('SOURCE_CHECKSUM_MISMATCH', `that states ${digests.size} sha256 of it`);
  return [...digests][0];
}

function mismatch(
  document: ExchangeADocument,
  fetched: FetchedDocument,
  expected: string,
  attempts: number,
): TidemarkError {
  return new TidemarkError(
    'SOURCE_CHECKSUM_MISMATCH',
    `${fetched.url} has sha256 ${fetched.sha256}, but the vendor's checksum is ${expected}`,
    { details: { ...detailsOf(document), expected, actual: fetched.sha256, bytes: fetched.bytes, attempts } },
  );
}

type ChecksumCode = 'SOURCE_DOCUMENT_INVALID' | 'SOURCE_CHECKSUM_MISMATCH';

function checksumFault(code: ChecksumCode, document: ExchangeADocument, what: string, cause?: unknown): TidemarkError {
  const details = { ...detailsOf(document), checksumUrl: displayUrl(document.checksumUrl) };
  return new TidemarkError(code, `${displayUrl(document.url)} ${what}`, {
    details,
    remedy:
      code === 'SOURCE_DOCUMENT_INVALID'
        ? 'Ask the vendor for the checksum that it publishes beside each document.'
        : undefined,
    cause,
  });
}

/** Names the document in an error about its checksum file. */
function named(cause: unknown, document: ExchangeADocument): unknown {
  if (!(cause instanceof TidemarkError)) return cause;
  const details = { ...cause.details, document: document.name };
  return new TidemarkError(cause.code, cause.message, { details, remedy: cause.remedy, cause: cause.cause });
}

const detailsOf = (document: ExchangeADocument): ErrorDetails => ({
  document: document.name,
  url: displayUrl(document.url),
});

function rangeOf(period: string): Pick<ExchangeADocument, 'granularity' | 'startMs' | 'endMs'> {
  const [, year, month, day] = (/^(\d{4})-(\d{2})(?:-(\d{2}))?$/.exec(period) ?? []).map(Number);
  const granularity = period.length === 10 ? 'daily' : 'monthly';
  const startMs = granularity === 'daily' ? Date.UTC(year, month - 1, day) : Date.UTC(year, month - 1);
  if (Number.isNaN(startMs) || !new Date(startMs).toISOString().startsWith(period))
    throw new TidemarkError('USAGE', `${JSON.stringify(period)} is neither a day (YYYY-MM-DD) nor a month (YYYY-MM)`);
  const endMs = granularity === 'daily' ? startMs + DAY_MS : Date.UTC(year, month);
  return { granularity, startMs, endMs };
}

/**
 * Reads the sha256 that the vendor publishes for a document, without fetching the document; undefined where there is no checksum
 * file, since the document may be gone with it.
 */
async function publishedChecksum(options: ExchangeAFetchOptions): Promise<string | undefined> {
  return await fetchChecksum(documentFor(options.baseUrl, options.symbol, options.period), options, {}).catch(
    (error) => {
      if (codeOf(error) === 'SOURCE_DOCUMENT_INVALID' && codeOf(error.cause) === 'SOURCE_NOT_FOUND') return undefined;
      throw error;
    },
  );
}

export interface ExchangeAOptions extends TradeFetching {
  readonly baseUrl: URL;
  readonly symbol: string;
}

export function exchangeASource(options: ExchangeAOptions): FileDaySource {
  const fetchOptions = ({ period }: FileDayRequest): ExchangeAFetchOptions => ({
    ...options,
    maxBytes: options.maxDocumentBytes,
    period,
  });
  return {
    datasets: [exchangeASpotTrades],
    granularities: ['daily', 'monthly'],
    plan: (fromDay, toDay, granularity) => {
      const days = fileDays(fromDay, toDay);
      if (granularity === 'daily') {
        return days.map((day) => ({ period: day, granularity, partitions: [partition(day)] }));
      }
      const months = [...new Set(days.map((day) => day.slice(0, 7)))];
      return months.map((month) => ({ period: month, granularity, partitions: daysOfMonth(month).map(partition) }));
    },
    publishedSha256: (request) => publishedChecksum(fetchOptions(request)),
    async open(request) {
      const file = await fetchExchangeAFile(fetchOptions(request));
      const { name: document, startMs: fromMs, endMs: toMs } = file.document;
      const decoder = (options: DecodeOptions) => new ExchangeADecoder({ document, fromMs, toMs, ...options });
      return await openTradeFile({ file, request, archive: 'zip', decoder }, options);
    },
  };
}

function partition(day: string): PartitionWindow {
  return { key: day, ...windowOf(exchangeASpotTrades, day) };
}

function daysOfMonth(month: string): string[] {
  const [year, number] = month.split('-').map(Number);
  if (!(number >= 1 && number <= 12)) throw new TidemarkError('USAGE', `${JSON.stringify(month)} is not a month`);
  const last = new Date(Date.UTC(year, number, 0)).getUTCDate();
  return fileDays(`${month}-01`, `${month}-${String(last).padStart(2, '0')}`);
}
