/** Exchange C: its adapter. */
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { documentLimits, tradesAdapter } from '../trades/feed.ts';
import { ExchangeCRowProjector } from './project.ts';
import { consecutiveDays, writeDay } from './sample.ts';
import { exchangeCSource } from './source.ts';

export const exchangeC = tradesAdapter(exchangeCSpotTrades, {
  createSource: ({ settings, location, log, signal }) =>
    exchangeCSource({
      ...documentLimits(settings),
      baseUrl: location,
      symbol: settings.SVC_EXCHANGE_C_SYMBOL,
      maxSortBytes: settings.SVC_EXCHANGE_C_MAX_SORT_BYTES,
      log,
      signal,
    }),
  createRows: (window) => new ExchangeCRowProjector(window),
  writeSample: async ({ directory, from, to, rows, settings, signal }) => {
    for (const day of consecutiveDays({ from, to, rowsPerDay: rows, seed: 3 })) {
      signal.throwIfAborted();
      await writeDay({ directory, symbol: settings.SVC_EXCHANGE_C_SYMBOL, ...day });
    }
  },
});
