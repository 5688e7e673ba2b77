/** Gets a fund's document and archives it. A fetched document is on disk before it is parsed. */
import { DAY_MS, nextMarketDay, parseDay } from '../../../shared/dates.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { sha256Hex } from '../../../shared/frame/codec.ts';
import type { Logger } from '../../../shared/logger.ts';
import { etfDailyMetrics } from '../../../shared/registry/datasets/etf_daily_metrics.ts';
import { captureKey } from '../../../shared/registry/keys.ts';
import type { ArchivedFetch, DocumentArchive, Fetch } from '../documents/document-archive.ts';
import { fetchAnswer, type SourceLimits } from '../documents/fetch.ts';
import { displayUrl, localBytes } from '../documents/locations.ts';
import type { DocumentRequest, OpenedDocument, Source, SourceCheck } from '../feed-types.ts';
import { RecordFrames } from '../record-frames.ts';
import type { PageBrowser } from './browser.ts';
import { type Capture, type FolderDocument, pathBehind, readCapture, type Seen } from './captures.ts';
import type { Issuer } from './issuers/issuer.ts';

/** Where to get a document. */
export type DocumentLocation =
  /** From the issuer: today's, or a past day's if the issuer has those. */
  | { readonly kind: 'issuer'; readonly base: URL; readonly day?: string }
  | { readonly kind: 'folder'; readonly document: FolderDocument }
  /** Requested but unavailable. */
  | { readonly kind: 'absent'; readonly fault: TidemarkError }
  /** From the archive of fetched documents. */
  | { readonly kind: 'archived'; readonly fetch: ArchivedFetch };

export interface LoadedDocument {
  readonly bytes: Buffer;
  readonly seen: Seen;
}

export interface FetchNeeds extends SourceLimits {
  /** The archive; undefined for a sample's documents, which can be generated again. */
  readonly archive?: DocumentArchive;
  readonly filed?: FiledBefore;
  readonly browser: PageBrowser;
  readonly signal: AbortSignal;
  readonly log: Logger;
}

/** An issuer's page is one or two megabytes. */
const MAX_PAGE_BYTES = 32 * 1024 * 1024;
const PAGE_LIMIT = "the limit of an issuer's document";

const ACCEPTED = { csv: 'text/csv, text/plain', json: 'application/json, text/plain', html: 'text/html' } as const;

/** @throws TidemarkError; its message names fund and document. */
export async function loadDocument(
  issuer: Issuer,
  location: DocumentLocation,
  needs: FetchNeeds,
): Promise<LoadedDocument> {
  try {
    switch (location.kind) {
      case 'issuer':
        return await fromIssuer(issuer, location, needs);
      case 'folder':
        return await fromFolder(issuer, location.document, needs);
      case 'archived':
        return await fromArchive(location.fetch, needs);
      case 'absent':
        throw location.fault;
    }
  } catch (error) {
    if (!(error instanceof TidemarkError)) throw error;
    throw new TidemarkError(error.code, `${issuer.ticker}: ${error.message}`, {
      details: { ...error.details, fund: issuer.ticker, source_id: issuer.sourceId },
      remedy: error.remedy,
      cause: error.cause,
    });
  }
}

async function fromIssuer(
  issuer: Issuer,
  { base, day }: DocumentLocation & { kind: 'issuer' },
  needs: FetchNeeds,
): Promise<LoadedDocument> {
  const { document, sourceId } = issuer;
  const path = day === undefined ? document.path : document.pathOf!(day);
  const put = async (bytes: Buffer, name: string, asked: Record<string, string>) =>
    await needs.archive?.put(bytes, { source_id: sourceId, name, asked });
  const get = async (below: string) => {
    const url = urlOf(base, below);
    if (document.by === 'browser') return await needs.browser.document(url, document.answers);
    const headers = { accept: ACCEPTED[document.extension] };
    return (await fetchAnswer({ ...needs, url, headers, maxBytes: MAX_PAGE_BYTES })).bytes;
  };
  const first = await get(path);
  if (document.next === undefined) {
    const kept = await put(first, path, day === undefined ? {} : { day });
    return { bytes: first, seen: { name: path, atMs: kept?.fetched_at_ms ?? Date.now(), askedDay: day } };
  }
  await put(first, path, { part: LEADING_PAGE });
  const next = pathBehind(issuer, first, path);
  const bytes = await get(next);
  const kept = await put(bytes, next, {});
  return { bytes, seen: { name: next, atMs: kept?.fetched_at_ms ?? Date.now() } };
}

/** Marks a page that was fetched only because it leads to the document. */
const LEADING_PAGE = 'page';
export const isLeadingPage = ({ asked }: ArchivedFetch): boolean => asked.part === LEADING_PAGE;

async function fromFolder(
  { sourceId }: Issuer,
  { day, name, url, root }: FolderDocument,
  { filed, signal }: FetchNeeds,
): Promise<LoadedDocument> {
  const bytes = await localBytes({ url, root, maxBytes: MAX_PAGE_BYTES, limitName: PAGE_LIMIT, signal });
  await filed?.put(bytes, { source_id: sourceId, name, asked: { filed_day: day } });
  return { bytes, seen: { name, atMs: Date.now(), filedDay: day } };
}

async function fromArchive({ sha256, name, asked, fetched_at_ms }: ArchivedFetch, { archive }: FetchNeeds) {
  // A document from an operator's folder counts as read now.
  const atMs = asked.filed_day === undefined ? fetched_at_ms : Date.now();
  const seen: Seen = { name, atMs, askedDay: asked.day, filedDay: asked.filed_day };
  return { bytes: await archive!.read(sha256), seen };
}

/** Archives the documents of an operator's folder once each, however often the folder is read. */
export class FiledBefore {
  readonly #archive: DocumentArchive;
  readonly #bySource = new Map<string, Promise<Set<string>>>();

  constructor(archive: DocumentArchive) {
    this.#archive = archive;
  }

  async put(bytes: Buffer, fetch: Fetch): Promise<void> {
    const known = await this.#known(fetch.source_id);
    const key = keyOf({ ...fetch, sha256: sha256Hex(bytes) });
    if (known.has(key)) return;
    await this.#archive.put(bytes, fetch);
    known.add(key);
  }

  #known(sourceId: string): Promise<Set<string>> {
    const before = this.#bySource.get(sourceId);
    if (before) return before;
    const known = this.#read(sourceId);
    this.#bySource.set(sourceId, known);
    // The next document reads the records again.
    known.catch(() => this.#bySource.delete(sourceId));
    return known;
  }

  async #read(sourceId: string): Promise<Set<string>> {
    const known = new Set<string>();
    for await (const fetch of this.#archive.fetches(sourceId)) known.add(keyOf(fetch));
    return known;
  }
}

const keyOf = ({ sha256, name, asked }: Pick<ArchivedFetch, 'sha256' | 'name' | 'asked'>) =>
  [sha256, name, asked.filed_day].join(' ');

/**
 * Appends the issuer's path and query to the base's.
 * @throws TidemarkError CONFIGURATION_INVALID if the base is not http(s).
 */
function urlOf(base: URL, path: string): URL {
  const [pathname, query = ''] = path.split(/\?(.*)/s);
  const url = new URL(base);
  url.hash = '';
  url.pathname = `${base.pathname.replace(/\/+$/, '')}${pathname}`;
  const own = base.search.replace(/^\?/, '');
  url.search = [query, own].filter(Boolean).join('&');
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new TidemarkError('CONFIGURATION_INVALID', `${displayUrl(url)} is not an http(s) address`);
  }
  return url;
}

export interface FundRequest extends DocumentRequest {
  readonly issuer: Issuer;
  readonly location: DocumentLocation;
  /** The number of the capture within its day, if known; otherwise 1. */
  readonly number?: number;
}

export function etfSource(needs: FetchNeeds): Source<FundRequest> {
  return {
    datasets: [etfDailyMetrics],
    publishedSha256: async () => undefined,
    async open({ issuer, location, number }): Promise<OpenedDocument> {
      const { bytes, seen } = await loadDocument(issuer, location, needs);
      const capture = readCapture(issuer, bytes, seen);
      return {
        facts: { name: seen.name, sha256: sha256Hex(bytes), bytes: bytes.length, granularity: 'capture' },
        checks: isLatest(location) ? [{ sourceId: issuer.sourceId, throughMs: seen.atMs }] : NO_CHECKS,
        async *decode({ frameRawBytes }) {
          const key = captureKey(issuer.sourceId, capture.asOf, number);
          const frames = new RecordFrames(etfDailyMetrics, key, frameRawBytes);
          for (const event of capture.events) yield* frames.add(event);
          yield* frames.end({
            span_end: expectedAfter(capture),
            record_sha256: capture.recordSha256,
            captured_ms: capturedAt(capture, seen),
          });
        },
        async [Symbol.asyncDispose]() {},
      };
    },
  };
}

const NO_CHECKS: readonly SourceCheck[] = [];

/** The issuer was asked for its latest document, so it had no newer one at that time. */
function isLatest(location: DocumentLocation): boolean {
  if (location.kind === 'issuer') return location.day === undefined;
  return (
    location.kind === 'archived' &&
    location.fetch.asked.day === undefined &&
    location.fetch.asked.filed_day === undefined
  );
}

/** A document of an operator's folder was captured on the day that it is filed under, and no earlier than its own day ended. */
function capturedAt({ asOf }: Capture, { atMs, filedDay }: Seen): number {
  return filedDay === undefined ? atMs : Math.max(parseDay(filedDay)!, parseDay(asOf)!) + DAY_MS;
}

const expectedAfter = ({ asOf }: Capture) => parseDay(nextMarketDay(asOf))!;
