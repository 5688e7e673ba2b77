/** Routes that answer with rows, for tests that go over all of them: a route joins by its line here. */
import type { Style } from './body.ts';
import { DATASETS, type Dataset, EXCHANGES } from './fields.ts';

export interface RowRoute {
  readonly path: string;
  readonly style: Style;
}

const HISTORICAL: Record<Dataset, string> = {
  exchange_a_spot_trades: 'exchange_a/spot/trades',
  exchange_b_spot_trades: 'exchange_b/spot/trades',
  exchange_c_spot_trades: 'exchange_c/spot/trades',
  etf_daily_metrics: 'etf/daily_metrics',
  macro_series_metrics: 'macro/series_metrics',
  bitcoin_block_headers: 'bitcoin/block_headers',
  bitcoin_block_transactions: 'bitcoin/block_transactions',
  bitcoin_mempool_state: 'bitcoin/mempool_state',
  bitcoin_block_fee_totals: 'bitcoin/block_fee_totals',
  bitcoin_block_subsidy_schedule: 'bitcoin/block_subsidy_schedule',
  bitcoin_network_hashrate_estimate: 'bitcoin/network_hashrate_estimate',
  bitcoin_circulating_supply: 'bitcoin/circulating_supply',
};

export const ROW_ROUTES: readonly RowRoute[] = [
  { path: '/v1/raw/query', style: { kind: 'query' } },
  { path: '/v1/raw/estimate', style: { kind: 'query', estimates: true } },
  ...DATASETS.map(
    (dataset): RowRoute => ({
      path: `/v1/historical/${HISTORICAL[dataset]}`,
      style: { kind: 'historical', dataset },
    }),
  ),
  ...EXCHANGES.map(
    (dataset): RowRoute => ({
      path: `/v1/historical/${HISTORICAL[dataset].replace('trades', 'klines')}`,
      style: { kind: 'klines', dataset },
    }),
  ),
];
