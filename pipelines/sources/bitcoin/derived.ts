/**
 * The four values a block gives beside its own bytes. Their events are JSON of the facts, keys sorted; a row is those
 * facts and what follows from them. One table, read by both sides of the log for the names of facts, not for values.
 */

export type DerivedDataset =
  | 'bitcoin_block_fee_totals'
  | 'bitcoin_block_subsidy_schedule'
  | 'bitcoin_network_hashrate_estimate'
  | 'bitcoin_circulating_supply';

export interface BlockFacts {
  readonly block_hash: string;
  readonly block_height: number;
  /** Epoch ms. */
  readonly block_timestamp: number;
  readonly source_chain: string;
}

/** Facts of each dataset beside the block's: all whole numbers. */
export const DERIVED_FACTS = {
  bitcoin_block_fee_totals: ['fee_total_sats'],
  bitcoin_block_subsidy_schedule: ['halving_interval', 'subsidy_sats'],
  bitcoin_network_hashrate_estimate: ['bits', 'observed_interval_seconds', 'raw_interval_seconds'],
  bitcoin_circulating_supply: ['circulating_supply_sats'],
} as const satisfies Record<DerivedDataset, readonly string[]>;

export const DERIVED_DATASETS = Object.keys(DERIVED_FACTS) as DerivedDataset[];

export type DerivedFacts = Readonly<Record<string, number>>;

/** Compact, keys sorted. */
export function derivedPayload(block: BlockFacts, facts: DerivedFacts): Buffer {
  const entries = Object.entries({ ...block, ...facts }).sort(([a], [b]) => (a < b ? -1 : 1));
  return Buffer.from(JSON.stringify(Object.fromEntries(entries)));
}
