/** Exchange A: its adapter. */
import { exchangeASpotTrades } from '../../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { coinPriceAt } from '../../sample/market.ts';
import { tradesAdapter } from '../trades/feed.ts';
import { seedOf } from '../trades/sample.ts';
import { ExchangeARowProjector } from './project.ts';
import { consecutiveDays, writeDay } from './sample.ts';
import { exchangeASource } from './source.ts';

/** From this day on the files state times in microseconds; before it, in milliseconds. */
const FIRST_DAY_IN_MICROSECONDS = '2025-01-01';

export const exchangeA = tradesAdapter(exchangeASpotTrades, {
  createSource: ({ location, symbol, fetching }) => exchangeASource({ ...fetching, baseUrl: location, symbol }),
  createRows: (window) => new ExchangeARowProjector(window),
  sampleDays: (range) => consecutiveDays({ ...range, seed: 1, timeUnit: 'us' }),
  sampleOthers: { ETHUSDT: 6000, SOLUSDT: 4000 },
  writeDay: (day, { directory, settings, symbol }) => {
    const isDefault = symbol === settings.SVC_EXCHANGE_A_SYMBOL;
    const own = isDefault
      ? {}
      : { startPrice: coinPriceAt(symbol, Date.parse(day.day)), seed: seedOf(day.seed, symbol) };
    const timeUnit = day.day < FIRST_DAY_IN_MICROSECONDS ? 'ms' : 'us';
    return writeDay({ directory, symbol, ...day, ...own, timeUnit });
  },
});
