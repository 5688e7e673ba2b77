/** Reads as of a time: which vintages were known then, and what would have been said of them. */
import type { ReadRequest } from './types.ts';

type Asked = Pick<ReadRequest, 'dataset' | 'asOfMs'>;

/** Start of the date of the newest vintage that was known, epoch ms; undefined where the request asks for what is known now. */
export function newestKnown({ dataset: { partition }, asOfMs }: Asked): number | undefined {
  if (asOfMs === undefined || partition.kind !== 'vintage') return undefined;
  return asOfMs - partition.knownAfterMs;
}

/** A test over partitions `p`: it was known. Undefined where all are. */
export function knownTest(request: Asked): string | undefined {
  const newest = newestKnown(request);
  return newest === undefined ? undefined : `lower(p.span) <= ${newest}`;
}

/** The time that the answer is of: what was not known then is neither missing nor late. */
export const clockOf = ({ asOfMs }: Pick<ReadRequest, 'asOfMs'>, nowMs: number): number =>
  Math.min(nowMs, asOfMs ?? nowMs);
