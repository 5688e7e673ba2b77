/** Exchange C as a source: one gzip of trades a day. */
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { fetchDocument, openScratch } from '../documents/fetch.ts';
import { urlBelow } from '../documents/locations.ts';
import type { FileDaySource } from '../feed-types.ts';
import { dailySource, openTradeFile, type TradeFetching } from '../trades/feed.ts';
import { ExchangeCDecoder } from './decode.ts';

export interface ExchangeCOptions extends TradeFetching {
  readonly baseUrl: URL;
  readonly symbol: string;
  /** Most bytes of a day that may be sorted. */
  readonly maxSortBytes: number;
}

const SORT_LIMIT = 'SVC_EXCHANGE_C_MAX_SORT_BYTES';

/** @throws TidemarkError CONFIGURATION_INVALID if the symbol is not a valid name. */
export const archiveUrl = (base: URL, symbol: string, day: string): URL =>
  urlBelow(base, 'trading', symbol, `${symbol}${day}.csv.gz`);

/** The vendor publishes no digest of a document. */
export function exchangeCSource(options: ExchangeCOptions): FileDaySource {
  /** Days that are to be sorted as a whole. */
  const unordered = new Set<string>();
  return dailySource(exchangeCSpotTrades, async (request) => {
    const { baseUrl, symbol, maxDocumentBytes: maxBytes, maxSortBytes: maxHeldBytes } = options;
    const [window] = request.partitions;
    const url = archiveUrl(baseUrl, symbol, request.period);
    const file = await fetchDocument({ ...options, url, root: baseUrl, maxBytes });
    const { etag } = file.headers;
    const facts = etag === undefined ? {} : { etag };
    const sorting = {
      openScratch: () => openScratch(options.spoolDir),
      isUnordered: unordered.has(request.period),
      onLateRow: () => void unordered.add(request.period),
    };
    const given = { document: file.name, symbol, window, maxHeldBytes, limitName: SORT_LIMIT, sorting };
    const decoder = (frameRawBytes: number) => new ExchangeCDecoder({ ...given, frameRawBytes });
    return await openTradeFile({ file, request, archive: 'gzip', facts, decoder }, options);
  });
}
