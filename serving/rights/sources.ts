/** Which sources feed which dataset. A registered dataset says so itself; the others are named here until they are. */
import { DATASETS, type DatasetKey } from '../../shared/registry/index.ts';

const ETF_SOURCE = /^etf_[a-z0-9]+_[a-z0-9]+_daily$/;

const UNREGISTERED: Readonly<Record<DatasetKey, readonly (string | RegExp)[]>> = {
  exchange_a_spot_trades: ['exchange_a'],
  exchange_b_spot_trades: ['exchange_b'],
  exchange_c_spot_trades: ['exchange_c'],
  etf_daily_metrics: [ETF_SOURCE],
  macro_series_metrics: ['macro'],
  bitcoin_block_headers: ['bitcoin_core'],
  bitcoin_block_transactions: ['bitcoin_core'],
  bitcoin_mempool_state: ['bitcoin_core'],
  bitcoin_block_fee_totals: ['bitcoin_core'],
  bitcoin_block_subsidy_schedule: ['bitcoin_core'],
  bitcoin_network_hashrate_estimate: ['bitcoin_core'],
  bitcoin_circulating_supply: ['bitcoin_core'],
};

const sourcesOf = (dataset: string): readonly (string | RegExp)[] =>
  DATASETS.get(dataset)?.sources ?? UNREGISTERED[dataset as DatasetKey];

const matches = (pattern: string | RegExp, source: string) =>
  typeof pattern === 'string' ? pattern === source : pattern.test(source);

export const feeds = (source: string, dataset: DatasetKey): boolean =>
  sourcesOf(dataset).some((pattern) => matches(pattern, source));

export const isSource = (source: string): boolean =>
  (Object.keys(UNREGISTERED) as DatasetKey[]).some((dataset) => feeds(source, dataset));

/** Sources a dataset is known to be fed by, each of which must have a state. */
export const requiredSources = (dataset: DatasetKey): readonly string[] => DATASETS.get(dataset)?.sources ?? [];
