/** Exchange C as a source: one gzip of trades a day, in either of two trees. */
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { fetchUnlessSame, openScratch } from '../documents/fetch.ts';
import { urlBelow } from '../documents/locations.ts';
import type { DecodeOptions, FileDaySource } from '../feed-types.ts';
import { dailySource, openTradeFile, type TradeFetching } from '../trades/feed.ts';
import { type DayRows, type DayRowsOptions, ExchangeCDecoder } from './decode.ts';
import { SpotRows } from './spot.ts';
import { TradingRows } from './trading.ts';

/** A tree of the archive: how its files are named below SYMBOL, and how their rows are read. */
interface Tree {
  fileName(symbol: string, day: string): string;
  rows(options: DayRowsOptions): DayRows;
}

export const TREES = {
  spot: {
    fileName: (symbol, day) => `${symbol}_${day}.csv.gz`,
    rows: (options) => new SpotRows(options),
  },
  trading: {
    fileName: (symbol, day) => `${symbol}${day}.csv.gz`,
    rows: (options) => new TradingRows(options),
  },
} as const satisfies Readonly<Record<string, Tree>>;

export type TreeName = keyof typeof TREES;

export interface ExchangeCOptions extends TradeFetching {
  readonly baseUrl: URL;
  readonly archive: TreeName;
  readonly symbol: string;
  /** Most bytes of a day that may be sorted. */
  readonly maxSortBytes: number;
}

/** @throws TidemarkError CONFIGURATION_INVALID if the symbol is not a valid name. */
export const archiveUrl = (base: URL, archive: TreeName, symbol: string, day: string): URL =>
  urlBelow(base, archive, symbol, TREES[archive].fileName(symbol, day));

/** The vendor publishes no digest of a document. */
export function exchangeCSource(options: ExchangeCOptions): FileDaySource {
  /** Days that are to be sorted as a whole. */
  const unordered = new Set<string>();
  const { baseUrl, archive, symbol, maxDocumentBytes: maxBytes, maxSortBytes: maxHeldBytes } = options;
  return dailySource(exchangeCSpotTrades, {
    fetch: async ({ period }, validators) => {
      const url = archiveUrl(baseUrl, archive, symbol, period);
      return await fetchUnlessSame({ ...options, url, root: baseUrl, maxBytes }, validators);
    },
    open: async (file, request) => {
      const [window] = request.partitions;
      const sorting = {
        openScratch: () => openScratch(options.spoolDir),
        isUnordered: unordered.has(request.period),
        onLateRow: () => void unordered.add(request.period),
      };
      const given = { document: file.name, window, maxHeldBytes, sorting };
      const decoder = ({ frameRawBytes }: DecodeOptions) =>
        new ExchangeCDecoder(TREES[archive].rows({ document: file.name, symbol, window }), { ...given, frameRawBytes });
      return await openTradeFile({ file, request, archive: 'gzip', decoder }, options);
    },
  });
}
