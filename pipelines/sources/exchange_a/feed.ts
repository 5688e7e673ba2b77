/** Exchange A: its adapter. */
import { exchangeASpotTrades } from '../../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { tradesAdapter } from '../trades/feed.ts';
import { ExchangeARowProjector } from './project.ts';
import { consecutiveDays, writeDay } from './sample.ts';
import { exchangeASource } from './source.ts';

/** From this day on the files state times in microseconds; before it, in milliseconds. */
const FIRST_DAY_IN_MICROSECONDS = '2025-01-01';

export const exchangeA = tradesAdapter(exchangeASpotTrades, {
  createSource: ({ location, symbol, fetching }) => exchangeASource({ ...fetching, baseUrl: location, symbol }),
  createRows: (window) => new ExchangeARowProjector(window),
  sampleDays: (range) => consecutiveDays({ ...range, seed: 1, timeUnit: 'us' }),
  writeDay: (day, { directory, symbol }) => {
    const timeUnit = day.day < FIRST_DAY_IN_MICROSECONDS ? 'ms' : 'us';
    return writeDay({ directory, symbol, ...day, timeUnit });
  },
});
