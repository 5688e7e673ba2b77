/** Exchange C as a source: one gzip of trades a day. */
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { fetchUnlessSame, openScratch } from '../documents/fetch.ts';
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
  const { baseUrl, symbol, maxDocumentBytes: maxBytes, maxSortBytes: maxHeldBytes } = options;
  return dailySource(exchangeCSpotTrades, {
    fetch: async ({ period }, validators) => {
      const url = archiveUrl(baseUrl, symbol, period);
      return await fetchUnlessSame({ ...options, url, root: baseUrl, maxBytes }, validators);
    },
    open: async (file, request) => {
      const [window] = request.partitions;
      const sorting = {
        openScratch: () => openScratch(options.spoolDir),
        isUnordered: unordered.has(request.period),
        onLateRow: () => void unordered.add(request.period),
      };
      const given = { document: file.name, symbol, window, maxHeldBytes, limitName: SORT_LIMIT, sorting };
      const decoder = (frameRawBytes: number) => new ExchangeCDecoder({ ...given, frameRawBytes });
      return await openTradeFile(
        { file, request, archive: 'gzip', facts: { etag: file.validators.etag }, decoder },
        options,
      );
    },
  });
}
