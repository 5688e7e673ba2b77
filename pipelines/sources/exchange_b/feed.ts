/** Exchange B: its adapter. */
import { exchangeBSpotTrades } from '../../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { windowOf } from '../../../shared/registry/keys.ts';
import { coinPriceAt } from '../../sample/market.ts';
import { tradesAdapter } from '../trades/feed.ts';
import { seedOf } from '../trades/sample.ts';
import { allspotSource } from './allspot.ts';
import { ExchangeBRowProjector } from './project.ts';
import { consecutiveDays, writeDay } from './sample.ts';
import { exchangeBSource } from './source.ts';

export const exchangeB = tradesAdapter(exchangeBSpotTrades, {
  createSource: ({ location, setting, symbol, fetching }) =>
    exchangeBSource({
      ...fetching,
      location,
      resolve: setting === 'SVC_EXCHANGE_B_LINK_URL' ? 'link' : 'base',
      instrument: symbol,
    }),
  createJointSource: ({ settings, location, setting, symbol, fetching }) =>
    settings.SVC_EXCHANGE_B_DOCUMENT === 'allspot'
      ? allspotSource({
          ...fetching,
          location,
          resolve: setting === 'SVC_EXCHANGE_B_LINK_URL' ? 'link' : 'base',
          byDefault: symbol,
        })
      : undefined,
  createRows: (window) => new ExchangeBRowProjector(window),
  sampleDays: (range) => consecutiveDays({ ...range, seed: 2 }),
  writeDay: (day, { directory, settings, symbol }) => {
    const isDefault = symbol === settings.SVC_EXCHANGE_B_INSTRUMENT;
    const { fromMs } = windowOf(exchangeBSpotTrades, day.day);
    const own = isDefault ? {} : { startPrice: coinPriceAt(symbol, fromMs), seed: seedOf(day.seed, symbol) };
    return writeDay({ directory, instrument: symbol, ...day, ...own });
  },
});
