/** The seven datasets of a node, and how the projector turns their events into rows. */
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

/** The six datasets that every block feeds, in the order in which their leases are taken. */
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

/** A row maker keeps scratch buffers, so each load creates its own. */
const PARTS: Readonly<Record<NodeDataset, readonly [() => RecordRow, SharedSeconds]>> = {
  bitcoin_block_headers: [() => headerRow, HEADER_SECONDS],
  bitcoin_block_transactions: [createTransactionRow, TRANSACTION_SECONDS],
  bitcoin_mempool_state: [() => mempoolRow, MEMPOOL_SECONDS],
  ...(Object.fromEntries(
    DERIVED_DATASETS.map((dataset) => [dataset, [() => derivedRow(dataset), derivedSeconds(dataset)]]),
  ) as Record<(typeof DERIVED_DATASETS)[number], [() => RecordRow, SharedSeconds]>),
};

/** Projections by dataset key. */
export const NODE_PROJECTIONS: Readonly<Record<string, Projection>> = Object.fromEntries(
  [...CHAIN_DATASETS, MEMPOOL_DATASET].map(({ key, native }) => {
    const [createRow, seconds] = PARTS[key];
    return [key, { createRows: () => new RecordRows(native, createRow()), seconds }];
  }),
);
