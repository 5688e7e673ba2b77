/** Which heights are fetched together. */
import type { Range } from '../../../shared/db/ranges.ts';

/**
 * Blocks of one unit of work: one attempt, one manifest, one commit in each of the six datasets. Full blocks are 50,000
 * rows and 50 MB of texts then, which are proved while the next ones are fetched.
 */
export const UNIT_BLOCKS = 20;
/**
 * This close to the tip each block is a unit of its own, so that a reorganisation quarantines what it touches and no
 * more. Deeper ones take whole units with them.
 */
export const SINGLE_BLOCKS = 12;

/** A partition there is, in whatever state, of any of the datasets. */
export interface KnownPartition {
  readonly span: Range;
}

/**
 * Units that cover the heights from..to (both included), none of which is partly inside a known partition: cut at round
 * heights, at the ends of what is known, and one by one near the tip.
 */
export function planUnits(from: number, to: number, tip: number, known: readonly KnownPartition[]): Range[] {
  const cuts = new Set<number>([to + 1]);
  for (const { span } of known) for (const end of [span.from, span.to]) cuts.add(end);
  const ends = [...cuts].filter((cut) => cut > from && cut <= to + 1).sort((a, b) => a - b);
  const units: Range[] = [];
  let start = from;
  for (const end of ends) {
    while (start < end) {
      const single = start > tip - SINGLE_BLOCKS;
      const round = single ? start + 1 : (Math.floor(start / UNIT_BLOCKS) + 1) * UNIT_BLOCKS;
      const beforeSingles = start <= tip - SINGLE_BLOCKS ? tip - SINGLE_BLOCKS + 1 : round;
      // What is known is one unit again, whatever would be planned today.
      const whole = known.some(({ span }) => span.from === start && span.to === end);
      const next = whole ? end : Math.min(end, round, beforeSingles);
      units.push({ from: start, to: next });
      start = next;
    }
  }
  return units;
}
