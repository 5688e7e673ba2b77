/** The seven datasets of a node, and what the projector makes of their events. */
import { bitcoinBlockFeeTotals } from '../../../shared/registry/datasets/bitcoin_block_fee_totals.ts';
import { bitcoinBlockHeaders } from '../../../shared/registry/datasets/bitcoin_block_headers.ts';
import { bitcoinBlockSubsidySchedule } from '../../../shared/registry/datasets/bitcoin_block_subsidy_schedule.ts';
import { bitcoinBlockTransactions } from '../../../shared/registry/datasets/bitcoin_block_transactions.ts';
import { bitcoinCirculatingSupply } from '../../../shared/registry/datasets/bitcoin_circulating_supply.ts';
import { bitcoinMempoolState } from '../../../shared/registry/datasets/bitcoin_mempool_state.ts';
import { bitcoinNetworkHashrateEstimate } from '../../../shared/registry/datasets/bitcoin_network_hashrate_estimate.ts';
import type { Projection, SharedSeconds } from '../../rows/binary-copy.ts';
import { type RecordRow, RecordRows } from '../../rows/record-rows.ts';
import { DERIVED_DATASETS } from './rows/derived.ts';
import type { ChainDataset } from './rows/expected-events.ts';
import { createTransactionRow, derivedRow, headerRow, mempoolRow } from './rows/project.ts';
import { derivedSeconds, HEADER_SECONDS, MEMPOOL_SECONDS, TRANSACTION_SECONDS } from './rows/seconds.ts';

/** Fed by every block, in the order in which their leases are taken. */
export const CHAIN_DATASETS = [
  bitcoinBlockHeaders,
  bitcoinBlockTransactions,
  bitcoinBlockFeeTotals,
  bitcoinBlockSubsidySchedule,
  bitcoinNetworkHashrateEstimate,
  bitcoinCirculatingSupply,
] as const;

export const MEMPOOL_DATASET = bitcoinMempoolState;

type NodeDataset = ChainDataset | typeof MEMPOOL_DATASET.key;

/** A maker of rows keeps what it works with: each load has its own. */
const PARTS: Readonly<Record<NodeDataset, readonly [() => RecordRow, SharedSeconds]>> = {
  bitcoin_block_headers: [() => headerRow, HEADER_SECONDS],
  bitcoin_block_transactions: [createTransactionRow, TRANSACTION_SECONDS],
  bitcoin_mempool_state: [() => mempoolRow, MEMPOOL_SECONDS],
  ...(Object.fromEntries(
    DERIVED_DATASETS.map((dataset) => [dataset, [() => derivedRow(dataset), derivedSeconds(dataset)]]),
  ) as Record<(typeof DERIVED_DATASETS)[number], [() => RecordRow, SharedSeconds]>),
};

/** By dataset key. */
export const NODE_PROJECTIONS: Readonly<Record<string, Projection>> = Object.fromEntries(
  [...CHAIN_DATASETS, MEMPOOL_DATASET].map(({ key, native }) => {
    const [createRow, seconds] = PARTS[key];
    return [key, { createRows: () => new RecordRows(native, createRow()), seconds }];
  }),
);
