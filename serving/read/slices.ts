/**
 * Proved parts cut into slices of few chunks. Every statement has literal time bounds: planning over 3,000 chunks
 * takes 0.4 s and a lock on each, over 32 it takes a few ms.
 */
import type { Range } from '../../shared/db/ranges.ts';
import type { RowCount } from './counted.ts';
import type { Part } from './coverage.ts';
import type { Edges } from './edges.ts';

export interface Slice {
  readonly from: number;
  readonly to: number;
  /** The part the slice is of: what comes after the slice may still be proved. */
  readonly part: Part;
  /** Where the row after the slice's last is looked for; the rest of the part unless it is known better. */
  readonly following?: Range;
  /** Of a dataset of many series: what lies beyond the slice, by series. */
  readonly edges?: Edges;
  /** The rows it must hold, where it is of whole partitions. */
  readonly count?: RowCount;
}

export const MAX_CHUNKS = 32;

/** Ascending, cut where chunks are. */
export function* slicesOf(parts: readonly Part[], chunkMs: number): Generator<Slice> {
  for (const part of parts) {
    for (let from = part.from; from < part.to; ) {
      const to = Math.min(part.to, (Math.floor(from / chunkMs) + MAX_CHUNKS) * chunkMs);
      yield { from, to, part };
      from = to;
    }
  }
}

/** From the oldest on, one chunk first, then twice as many each time. */
export function* slicesForward(part: Part, chunkMs: number): Generator<Slice> {
  let chunks = 1;
  for (let from = part.from; from < part.to; ) {
    const to = Math.min(part.to, (Math.floor(from / chunkMs) + chunks) * chunkMs);
    yield { from, to, part };
    from = to;
    chunks = Math.min(MAX_CHUNKS, chunks * 2);
  }
}

/** From the newest back, one chunk first, then twice as many each time: what is looked for is mostly near the end. */
export function* slicesBackward(parts: readonly Part[], chunkMs: number): Generator<Slice> {
  let chunks = 1;
  for (const part of parts.toReversed()) {
    for (let to = part.to; to > part.from; ) {
      const from = Math.max(part.from, (Math.ceil(to / chunkMs) - chunks) * chunkMs);
      yield { from, to, part };
      to = from;
      chunks = Math.min(MAX_CHUNKS, chunks * 2);
    }
  }
}
