/** Exchange A: its adapter. */
import { exchangeASpotTrades } from '../../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { documentLimits, tradesAdapter } from '../trades/feed.ts';
import { TradeRowProjector } from './project.ts';
import { consecutiveDays, writeDay } from './sample.ts';
import { exchangeASource } from './source.ts';

/** From this day on the files state times in microseconds; before it, in milliseconds. */
const FIRST_DAY_IN_MICROSECONDS = '2025-01-01';

export const exchangeA = tradesAdapter(exchangeASpotTrades, {
  createSource: ({ settings, location, log, signal }) =>
    exchangeASource({
      ...documentLimits(settings),
      baseUrl: location,
      symbol: settings.SVC_EXCHANGE_A_SYMBOL,
      log,
      signal,
    }),
  createRows: (window) => new TradeRowProjector(window),
  writeSample: async ({ directory, from, to, rows, settings, signal }) => {
    for (const day of consecutiveDays({ from, to, rowsPerDay: rows, seed: 1, timeUnit: 'us' })) {
      signal.throwIfAborted();
      const timeUnit = day.day < FIRST_DAY_IN_MICROSECONDS ? 'ms' : 'us';
      await writeDay({ directory, symbol: settings.SVC_EXCHANGE_A_SYMBOL, ...day, timeUnit });
    }
  },
});
