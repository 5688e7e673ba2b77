/**
 * The four values that follow from a block beside its own bytes. Their events are JSON of the facts with sorted keys; a
 * row holds those facts and what follows from them. Publisher and projector share this table for the names of facts,
 * not for values.
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

/** The facts of each dataset beside the block's; all are whole numbers. */
export const DERIVED_FACTS = {
  bitcoin_block_fee_totals: ['fee_total_sats'],
  bitcoin_block_subsidy_schedule: ['halving_interval', 'subsidy_sats'],
  bitcoin_network_hashrate_estimate: ['bits', 'observed_interval_seconds', 'raw_interval_seconds'],
  bitcoin_circulating_supply: ['circulating_supply_sats'],
} as const satisfies Record<DerivedDataset, readonly string[]>;

export const DERIVED_DATASETS = Object.keys(DERIVED_FACTS) as DerivedDataset[];

export type DerivedFacts = Readonly<Record<string, number>>;

/** Compact JSON with sorted keys. */
export function derivedPayload(block: BlockFacts, facts: DerivedFacts): Buffer {
  const entries = Object.entries({ ...block, ...facts }).sort(([a], [b]) => (a < b ? -1 : 1));
  return Buffer.from(JSON.stringify(Object.fromEntries(entries)));
}

const FIRST_SUBSIDY = 50 * 100_000_000;
/** From the 64th halving on, a shift would overflow; the subsidy is 0 from the 33rd on. */
const LAST_ERA = 63;
/** Hashes expected for a block of difficulty 1: 2^32. */
const HASHES_PER_DIFFICULTY = 2 ** 32;

/** Blocks between two halvings, by the node's name of the chain. */
export const halvingInterval = (chain: string): number => (chain === 'regtest' ? 150 : 210_000);

/** How often the subsidy was halved before that height. */
export const eraOf = (height: number, interval: number): number => Math.floor(height / interval);

export const subsidyOf = (era: number): number => (era > LAST_ERA ? 0 : Math.floor(FIRST_SUBSIDY / 2 ** era));

/**
 * The sum of all subsidies up to and including that height, by the schedule. It includes unclaimed and unspendable
 * ones.
 */
export function supplyAt(height: number, interval: number): number {
  let supply = 0;
  for (let era = 0, left = height + 1; left > 0 && era <= LAST_ERA; era++) {
    supply += Math.min(left, interval) * subsidyOf(era);
    left -= interval;
  }
  return supply;
}

/**
 * Difficulty: the target of difficulty 1 divided by the block's own target. One division of two small integers, then
 * exact factors of 256, gives the nearest double of the ratio.
 */
export function difficultyOf(bits: number): number {
  const exponent = bits >>> 24;
  return (0xffff / (bits & 0x00ffffff)) * 256 ** (29 - exponent);
}

/** The hash rate that a block's difficulty implies over `seconds`. */
export const hashrateOf = (difficulty: number, seconds: number): number =>
  (difficulty * HASHES_PER_DIFFICULTY) / seconds;

/** Block times may repeat or go back; a rate needs at least a second. */
export const observedInterval = (rawSeconds: number): number => Math.max(1, rawSeconds);
