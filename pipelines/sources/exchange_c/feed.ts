/** Exchange C: its adapter. */
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { coinPriceAt } from '../../sample/market.ts';
import { tradesAdapter } from '../trades/feed.ts';
import { seedOf } from '../trades/sample.ts';
import { ExchangeCRows } from './project.ts';
import { consecutiveDays, writeDay } from './sample.ts';
import { exchangeCSource } from './source.ts';

export const exchangeC = tradesAdapter(exchangeCSpotTrades, {
  createSource: ({ settings, location, symbol, fetching }) =>
    exchangeCSource({
      ...fetching,
      baseUrl: location,
      archive: settings.SVC_EXCHANGE_C_ARCHIVE,
      symbol,
      maxSortBytes: settings.limits.sortBytes,
    }),
  createRows: (window) => new ExchangeCRows(window),
  sampleDays: (range) => consecutiveDays({ ...range, seed: 3 }),
  // Other instruments of exchange A have the rest.
  sampleRows: 14_000,
  writeDay: (day, { directory, settings, symbol }) => {
    const { SVC_EXCHANGE_C_ARCHIVE: archive, SVC_EXCHANGE_C_SYMBOL: byDefault } = settings;
    const startPrice = coinPriceAt(symbol, Date.parse(day.day));
    const own = symbol === byDefault ? {} : { startPrice, seed: seedOf(day.seed, symbol) };
    return writeDay({ directory, archive, symbol, ...day, ...own });
  },
});
