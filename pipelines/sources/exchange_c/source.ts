/** Exchange C as a source: one gzip of trades a day. */
import type { Logger } from '../../../shared/logger.ts';
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { fetchDocument } from '../documents/fetch.ts';
import type { Backoff } from '../documents/http.ts';
import { urlBelow } from '../documents/locations.ts';
import { openGzip } from '../documents/zip-reader.ts';
import { planDaily } from '../trades/feed.ts';
import type { DecodedItem, FileDayRequest, FileDaySource, OpenedDocument } from '../types.ts';
import { ExchangeCDecoder } from './decode.ts';

export interface ExchangeCOptions {
  readonly baseUrl: URL;
  readonly symbol: string;
  readonly spoolDir: string;
  readonly timeoutMs: number;
  readonly maxAttempts: number;
  readonly backoff?: Backoff;
  readonly maxDocumentBytes: number;
  readonly maxUnpackedBytes: number;
  /** Most bytes of a day that may be held in memory for sorting. */
  readonly maxSortBytes: number;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

const SORT_LIMIT = 'SVC_EXCHANGE_C_MAX_SORT_BYTES';

/** @throws TidemarkError CONFIGURATION_INVALID if the symbol is not a valid name. */
export const archiveUrl = (base: URL, symbol: string, day: string): URL =>
  urlBelow(base, 'trading', symbol, `${symbol}${day}.csv.gz`);

export function exchangeCSource(options: ExchangeCOptions): FileDaySource {
  return {
    datasets: [exchangeCSpotTrades],
    granularities: ['daily'],
    plan: planDaily(exchangeCSpotTrades),
    // The vendor publishes no digest of the document.
    publishedSha256: async () => undefined,
    open: (request) => open(request, options),
  };
}

async function open(request: FileDayRequest, options: ExchangeCOptions): Promise<OpenedDocument> {
  const { baseUrl, symbol, signal, maxSortBytes } = options;
  const [window] = request.partitions;
  const url = archiveUrl(baseUrl, symbol, request.period);
  const file = await fetchDocument({ ...options, url, root: baseUrl, maxBytes: options.maxDocumentBytes });
  try {
    const member = await openGzip({
      path: file.path,
      expectedName: file.name.replace(/\.gz$/, ''),
      maxUnpackedBytes: options.maxUnpackedBytes,
      document: file.name,
    });
    const { etag } = file.headers;
    return {
      facts: {
        name: file.name,
        sha256: file.sha256,
        bytes: file.bytes,
        granularity: request.granularity,
        ...(etag === undefined ? {} : { etag }),
      },
      async *decode({ frameRawBytes }): AsyncGenerator<DecodedItem> {
        const decoder = new ExchangeCDecoder({
          document: file.name,
          symbol,
          window,
          frameRawBytes,
          maxHeldBytes: maxSortBytes,
          limitName: SORT_LIMIT,
        });
        for await (const chunk of member.stream(signal)) decoder.push(chunk);
        // The file must still be the one whose digest was taken; otherwise nothing more is yielded.
        await file.assertUnchanged();
        yield* decoder.finish();
      },
      [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
    };
  } catch (error) {
    await file[Symbol.asyncDispose]();
    throw error;
  }
}
