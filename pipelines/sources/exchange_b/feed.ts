/** Exchange B: its adapter. */
import { exchangeBSpotTrades } from '../../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { documentLimits, tradesAdapter } from '../trades/feed.ts';
import { ExchangeBRowProjector } from './project.ts';
import { consecutiveDays, writeDay } from './sample.ts';
import { exchangeBSource } from './source.ts';

export const exchangeB = tradesAdapter(exchangeBSpotTrades, {
  createSource: ({ settings, location, setting, log, signal }) =>
    exchangeBSource({
      ...documentLimits(settings),
      location,
      resolve: setting === 'SVC_EXCHANGE_B_LINK_URL' ? 'link' : 'base',
      instrument: settings.SVC_EXCHANGE_B_INSTRUMENT,
      log,
      signal,
    }),
  createRows: (window) => new ExchangeBRowProjector(window),
  writeSample: async ({ directory, from, to, rows, settings, signal }) => {
    for (const day of consecutiveDays({ from, to, rowsPerDay: rows, seed: 2 })) {
      signal.throwIfAborted();
      await writeDay({ directory, instrument: settings.SVC_EXCHANGE_B_INSTRUMENT, ...day });
    }
  },
});
