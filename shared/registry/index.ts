/** The dataset registry: every dataset in this list is ingested, served and documented. */

import { TidemarkError } from '../errors.ts';
import { closestName } from '../nearest.ts';
import { bitcoinBlockFeeTotals } from './datasets/bitcoin_block_fee_totals.ts';
import { bitcoinBlockHeaders } from './datasets/bitcoin_block_headers.ts';
import { bitcoinBlockSubsidySchedule } from './datasets/bitcoin_block_subsidy_schedule.ts';
import { bitcoinBlockTransactions } from './datasets/bitcoin_block_transactions.ts';
import { bitcoinCirculatingSupply } from './datasets/bitcoin_circulating_supply.ts';
import { bitcoinMempoolState } from './datasets/bitcoin_mempool_state.ts';
import { bitcoinNetworkHashrateEstimate } from './datasets/bitcoin_network_hashrate_estimate.ts';
import { etfDailyMetrics } from './datasets/etf_daily_metrics.ts';
import { exchangeASpotTrades } from './datasets/exchange_a_spot_trades.ts';
import { exchangeBSpotTrades } from './datasets/exchange_b_spot_trades.ts';
import { exchangeCSpotTrades } from './datasets/exchange_c_spot_trades.ts';
import { macroSeriesMetrics } from './datasets/macro_series_metrics.ts';
import type { AlignedShape, DatasetDefinition, Mode, NativeShape } from './definition.ts';

export type { AlignedShape, DatasetDefinition, Dtype, Field, NativeShape, PgType, View } from './definition.ts';
export { DTYPES } from './definition.ts';

/** All datasets, in the order of their numbers. */
const DEFINITIONS = [
  exchangeASpotTrades,
  exchangeBSpotTrades,
  exchangeCSpotTrades,
  etfDailyMetrics,
  macroSeriesMetrics,
  bitcoinBlockHeaders,
  bitcoinBlockTransactions,
  bitcoinMempoolState,
  bitcoinBlockFeeTotals,
  bitcoinBlockSubsidySchedule,
  bitcoinNetworkHashrateEstimate,
  bitcoinCirculatingSupply,
] as const satisfies readonly DatasetDefinition[];

export type DatasetKey = (typeof DEFINITIONS)[number]['key'];

export const DATASET_KEYS = DEFINITIONS.map(({ key }) => key) as [DatasetKey, ...DatasetKey[]];

export const DATASETS: ReadonlyMap<string, DatasetDefinition> = new Map(
  DEFINITIONS.map((definition) => [definition.key, definition]),
);

/** @throws TidemarkError USAGE naming the known keys. */
export function datasetOf(key: string): DatasetDefinition {
  const dataset = DATASETS.get(key);
  if (!dataset) {
    const meant = closestName(key, [...DATASETS.keys()]);
    throw new TidemarkError(
      'USAGE',
      `There is no dataset ${JSON.stringify(key)}${meant === undefined ? '' : `; did you mean ${meant}?`}. Datasets: ${[...DATASETS.keys()].join(', ')}`,
    );
  }
  return dataset;
}

export function shapeOf(dataset: DatasetDefinition, mode: Mode): NativeShape | AlignedShape {
  return mode === 'native' ? dataset.native : dataset.aligned;
}
