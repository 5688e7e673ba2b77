/** The dataset registry: a dataset is served, projected and documented by being listed here. */
import { TidemarkError } from '../errors.ts';
import { exchangeASpotTrades } from './datasets/exchange_a_spot_trades.ts';
import { exchangeBSpotTrades } from './datasets/exchange_b_spot_trades.ts';
import { exchangeCSpotTrades } from './datasets/exchange_c_spot_trades.ts';
import type { AlignedShape, DatasetDefinition, NativeShape } from './types.ts';

export type { AlignedShape, DatasetDefinition, Dtype, Field, NativeShape, PgType, View } from './types.ts';

/** The twelve keys of the contract. A key that is not registered yet is known, and has no rows. */
export const DATASET_KEYS = [
  'exchange_a_spot_trades',
  'exchange_b_spot_trades',
  'exchange_c_spot_trades',
  'etf_daily_metrics',
  'macro_series_metrics',
  'bitcoin_block_headers',
  'bitcoin_block_transactions',
  'bitcoin_mempool_state',
  'bitcoin_block_fee_totals',
  'bitcoin_block_subsidy_schedule',
  'bitcoin_network_hashrate_estimate',
  'bitcoin_circulating_supply',
] as const;

export type DatasetKey = (typeof DATASET_KEYS)[number];
export type Mode = 'native' | 'aligned_1s';

export const DATASETS: ReadonlyMap<string, DatasetDefinition> = new Map(
  [exchangeASpotTrades, exchangeBSpotTrades, exchangeCSpotTrades].map((dataset) => [dataset.key, dataset]),
);

/** @throws TidemarkError USAGE naming the known keys. */
export function datasetOf(key: string): DatasetDefinition {
  const dataset = DATASETS.get(key);
  if (!dataset) {
    throw new TidemarkError(
      'USAGE',
      `There is no dataset ${JSON.stringify(key)}; known: ${[...DATASETS.keys()].join(', ')}`,
    );
  }
  return dataset;
}

export function shapeOf(dataset: DatasetDefinition, mode: Mode): NativeShape | AlignedShape {
  return mode === 'native' ? dataset.native : dataset.aligned;
}
