/** What follows from a block's height, time and bits alone. Amounts in satoshis. */

const FIRST_SUBSIDY = 50 * 100_000_000;
/** From the 64th halving on a shift would leave the bits; the 33rd has left nothing already. */
const LAST_ERA = 63;
/** Work of a block of difficulty 1: 2^32 hashes. */
const HASHES_PER_DIFFICULTY = 2 ** 32;

/** Blocks between two halvings, by the node's name of the chain. */
export const halvingInterval = (chain: string): number => (chain === 'regtest' ? 150 : 210_000);

/** How often the subsidy has been halved at that height. */
export const eraOf = (height: number, interval: number): number => Math.floor(height / interval);

export const subsidyOf = (era: number): number => (era > LAST_ERA ? 0 : Math.floor(FIRST_SUBSIDY / 2 ** era));

/** All subsidies up to and with that height, by the schedule: also what was never claimed, and what cannot be spent. */
export function supplyAt(height: number, interval: number): number {
  let supply = 0;
  for (let era = 0, left = height + 1; left > 0 && era <= LAST_ERA; era++) {
    supply += Math.min(left, interval) * subsidyOf(era);
    left -= interval;
  }
  return supply;
}

/**
 * Difficulty: the target of difficulty 1 over the block's own. One division of two small integers, then factors of 256,
 * which are exact: the nearest double of the ratio.
 */
export function difficultyOf(bits: number): number {
  const exponent = bits >>> 24;
  return (0xffff / (bits & 0x00ffffff)) * 256 ** (29 - exponent);
}

/** What a block's difficulty says about the hashes tried in `seconds`. */
export const hashrateOf = (difficulty: number, seconds: number): number =>
  (difficulty * HASHES_PER_DIFFICULTY) / seconds;

/** Block times may stand still or go back; a rate needs at least a second. */
export const observedInterval = (rawSeconds: number): number => Math.max(1, rawSeconds);
