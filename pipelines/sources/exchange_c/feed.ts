/** Exchange C: its adapter. */
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { tradesAdapter } from '../trades/feed.ts';
import { ExchangeCRowProjector } from './project.ts';
import { consecutiveDays, writeDay } from './sample.ts';
import { exchangeCSource } from './source.ts';

export const exchangeC = tradesAdapter(exchangeCSpotTrades, {
  createSource: ({ settings, location, fetching }) =>
    exchangeCSource({
      ...fetching,
      baseUrl: location,
      symbol: settings.SVC_EXCHANGE_C_SYMBOL,
      maxSortBytes: settings.SVC_EXCHANGE_C_MAX_SORT_BYTES,
    }),
  createRows: (window) => new ExchangeCRowProjector(window),
  sampleDays: (range) => consecutiveDays({ ...range, seed: 3 }),
  writeDay: (day, { directory, settings }) => writeDay({ directory, symbol: settings.SVC_EXCHANGE_C_SYMBOL, ...day }),
});
