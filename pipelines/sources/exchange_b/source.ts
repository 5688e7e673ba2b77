/**
 * Exchange B as a source: one zip of trades a file day. Its address follows from the day, or an endpoint returns it: the
 * vendor's public index, or the form of its web page. If the vendor's answer states an md5, the bytes must match it.
 */

import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../../../shared/errors.ts';
import { exchangeBSpotTrades } from '../../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { AddressRefused, checkHost } from '../documents/addresses.ts';
import {
  type FetchedDocument,
  type FetchOptions,
  fetchAnswer,
  fetchUnlessSame,
  type Validators,
} from '../documents/fetch.ts';
import { backoffMs, type Connected, waitForRateLimit } from '../documents/http.ts';
import { displayUrl, isFollowed, urlBelow } from '../documents/locations.ts';
import type { DecodeOptions, FileDaySource } from '../feed-types.ts';
import { dailySource, openTradeFile, type TradeFetching } from '../trades/feed.ts';
import { ExchangeBDecoder } from './decode.ts';

export interface ExchangeBFetchOptions extends Omit<FetchOptions, 'url' | 'headers'> {
  /** Base of the archive, or the endpoint. */
  readonly location: URL;
  readonly resolve: 'base' | 'link';
  readonly instrument: string;
  /** File day, `YYYY-MM-DD`. */
  readonly day: string;
  /** Start of the file day, epoch ms. */
  readonly fromMs: number;
  /** End of the file day, exclusive. */
  readonly toMs: number;
  /** Minimum time between two calls of the endpoint; default LINK_SPACING_MS. */
  readonly linkSpacingMs?: number;
}

export interface ExchangeBFile extends FetchedDocument {
  /** The vendor's md5 in base64, which the bytes match; undefined if the answer states none. */
  readonly contentMd5: string | undefined;
}

/** The shortest interval between two calls that the endpoint was observed to accept. */
const LINK_SPACING_MS = 750;
/** Downloads that may differ from their md5 before the fetch fails. */
const MAX_MISMATCHES = 3;

export const documentName = (instrument: string, day: string): string => `${instrument}-trades-${day}.zip`;

/** @throws TidemarkError CONFIGURATION_INVALID if the instrument is not a valid name. */
export const archiveUrl = (base: URL, instrument: string, day: string): URL =>
  urlBelow(base, 'trades', 'daily', day.replaceAll('-', ''), documentName(instrument, day));

/**
 * @returns undefined for a document that is still the one with these validators.
 * @throws TidemarkError SOURCE_CHECKSUM_MISMATCH, SOURCE_LAYOUT_UNKNOWN, and those of `fetchDocument`.
 */
export async function fetchExchangeBFile(
  options: ExchangeBFetchOptions,
  validators: Validators,
): Promise<ExchangeBFile | undefined> {
  const { location, resolve, instrument, day, log, signal } = options;
  const name = documentName(instrument, day);
  for (let tries = 1; ; tries++) {
    const at =
      resolve === 'base'
        ? { url: archiveUrl(location, instrument, day), root: location }
        : await resolveLink(options, name);
    const fetched = await fetchUnlessSame({ ...options, ...at }, validators);
    if (!fetched) return undefined;
    try {
      const stated = fetched.headers['content-md5'];
      const actual = stated === undefined ? undefined : await md5OfFile(fetched.path);
      if (stated?.trim() === actual) return { ...fetched, name, contentMd5: actual };
      const fault = new TidemarkError(
        'SOURCE_CHECKSUM_MISMATCH',
        `${fetched.url} has md5 ${actual}, but its Content-MD5 is ${stated}`,
        { details: { document: name, url: fetched.url, expected: stated, actual, bytes: fetched.bytes } },
      );
      if (tries >= Math.min(MAX_MISMATCHES, options.maxAttempts)) throw fault;
      const waitMs = backoffMs(tries, options.backoff);
      log?.warn({ code: fault.code, document: name, attempt: tries, waitMs: Math.round(waitMs) }, fault.message);
      await fetched[Symbol.asyncDispose]();
      await sleep(waitMs, undefined, { signal });
    } catch (error) {
      await fetched[Symbol.asyncDispose]();
      throw error;
    }
  }
}

/** How an endpoint is asked for one day's zip, and where the files are in its answer. */
interface LinkForm {
  request(asked: ExchangeBFetchOptions): { readonly url: URL; readonly json?: string };
  /** Undefined: the answer has no list of files. */
  files(data: unknown, name: string): readonly LinkedFile[] | undefined;
}

interface LinkedFile {
  readonly filename?: unknown;
  readonly url?: unknown;
}

/** The public index: a GET with a range of time. */
const INDEX: LinkForm = {
  request({ location, instrument, fromMs, toMs }) {
    const url = new URL(location);
    const asked = { module: 1, instType: 'SPOT', instIdList: instrument, dateAggrType: 'daily' };
    // Both ends are inclusive. With the last millisecond instead of the end, the day after is not in the range.
    for (const [name, value] of Object.entries({ ...asked, begin: fromMs, end: toMs - 1 })) {
      url.searchParams.set(name, String(value));
    }
    return { url };
  },
  files(data, name) {
    if (!Array.isArray(data)) return undefined;
    const details = data.map((entry) => entry?.details ?? []);
    if (!details.every(Array.isArray)) return undefined;
    const groups = details.flat().map((detail) => detail?.groupDetails);
    if (!groups.every(Array.isArray)) return undefined;
    const files: LinkedFile[] = groups.flat();
    // An index may also list the files of days that touch the range.
    const named = files.filter((file) => file?.filename === name);
    return named.length > 0 ? named : files;
  },
};

/** The endpoint behind the vendor's web page: a POST. */
const PAGE: LinkForm = {
  request: ({ location, instrument, fromMs }) => ({
    url: location,
    json: JSON.stringify({
      module: '1',
      instType: 'SPOT',
      instQueryParam: { instIdList: [instrument] },
      dateQuery: { dateAggrType: 'daily', begin: String(fromMs), end: String(fromMs) },
    }),
  }),
  files(data) {
    const details = (data as { details?: unknown } | null | undefined)?.details;
    const group = Array.isArray(details) && details.length === 1 ? details[0]?.groupDetails : undefined;
    return Array.isArray(group) ? group : undefined;
  },
};

const linkFormOf = (location: URL): LinkForm => (/[/]market-data-history[/]?$/.test(location.pathname) ? INDEX : PAGE);

/** Asks the endpoint for the address of one day's zip. Accepts the answer only if it names exactly that document. */
async function resolveLink(
  options: ExchangeBFetchOptions,
  name: string,
): Promise<{ readonly url: URL; readonly linkedFrom: Connected }> {
  const { location, signal, linkSpacingMs: spacingMs = LINK_SPACING_MS } = options;
  const form = linkFormOf(location);
  const fault = (why: string, cause?: unknown) =>
    new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `${displayUrl(location)} ${why} when asked for ${name}`, {
      details: { document: name, url: displayUrl(location) },
      remedy: 'The link endpoint did not return a link of the requested document; check its URL setting.',
      cause,
    });
  const answer = await fetchAnswer({
    ...options,
    maxBytes: undefined,
    ...form.request(options),
    beforeAttempt: () => waitForRateLimit({ name: `${location.origin}${location.pathname}`, spacingMs, signal }),
  }).catch((cause) => {
    if (cause instanceof TidemarkError && cause.code === 'SOURCE_DOCUMENT_INVALID')
      throw fault('sent too long an answer', cause);
    throw cause;
  });
  let reply: { readonly code?: unknown; readonly data?: unknown };
  try {
    reply = JSON.parse(answer.bytes.toString('utf8'));
  } catch (cause) {
    throw fault('sent an answer that is not JSON', cause);
  }
  if (reply?.code !== '0') throw fault(`answered with code ${JSON.stringify(reply?.code)?.slice(0, 40)}`);
  const files = form.files(reply.data, name);
  const file = files?.length === 1 ? files[0] : undefined;
  if (!file) throw fault(`answered with ${files ? `${files.length} files` : 'no list of files'} instead of one`);
  if (file.filename !== name) throw fault(`named the file ${JSON.stringify(file.filename)?.slice(0, 80)}`);
  if (typeof file.url !== 'string' || !URL.canParse(file.url)) throw fault('sent no address of the file');
  const url = new URL(file.url);
  if (!isFollowed(location, url)) {
    throw fault(`sent an address with ${url.protocol}//, which is not allowed`);
  }
  try {
    checkHost(url, answer.base.address);
  } catch (cause) {
    if (cause instanceof AddressRefused) throw fault(`sent an address that ${cause.message},`, cause);
    throw cause;
  }
  return { url, linkedFrom: answer.base };
}

async function md5OfFile(path: string): Promise<string> {
  const hash = createHash('md5');
  for await (const piece of createReadStream(path, { highWaterMark: 1024 * 1024 })) hash.update(piece as Buffer);
  return hash.digest('base64');
}

export interface ExchangeBOptions
  extends TradeFetching,
    Pick<ExchangeBFetchOptions, 'location' | 'resolve' | 'instrument' | 'linkSpacingMs'> {}

/** Only the answer that brings a document states its digest. */
export const exchangeBSource = (options: ExchangeBOptions): FileDaySource =>
  dailySource(exchangeBSpotTrades, {
    fetch: async ({ period: day, partitions: [{ fromMs, toMs }] }, validators) =>
      await fetchExchangeBFile({ ...options, maxBytes: options.maxDocumentBytes, day, fromMs, toMs }, validators),
    open: async (file, request) => {
      const { instrument } = options;
      const { name: document, contentMd5: content_md5 } = file;
      const [window] = request.partitions;
      const decoder = (options: DecodeOptions) => new ExchangeBDecoder({ document, instrument, window, ...options });
      return await openTradeFile({ file, request, archive: 'zip', facts: { content_md5 }, decoder }, options);
    },
  });
