/** Exchange C: its adapter. */
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { tradesAdapter } from '../trades/feed.ts';
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
  writeDay: (day, { directory, settings, symbol }) => {
    const { SVC_EXCHANGE_C_ARCHIVE: archive } = settings;
    return writeDay({ directory, archive, symbol, ...day });
  },
});
