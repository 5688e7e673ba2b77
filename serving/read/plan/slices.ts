/** How time is cut into the slices that a statement reads each. */
import { clip, type Range } from '../../../shared/ranges.ts';
import type { Part, Slice } from '../read-model.ts';
import type { PlanContext } from './context.ts';

/**
 * Chunks per statement. Every statement has literal time bounds: planning over 3,000 chunks takes 0.4 s and a lock on each,
 * over 32 it takes a few ms.
 */
export const MAX_CHUNKS = 32;

/** Ascending slices, cut at chunk boundaries. */
export function* slicesOf(parts: readonly Part[], chunkMs: number, chunks = MAX_CHUNKS): Generator<Slice> {
  for (const part of parts) {
    for (let from = part.from; from < part.to; ) {
      const to = Math.min(part.to, (Math.floor(from / chunkMs) + chunks) * chunkMs);
      const slice = sliceOf(part, from, to);
      if (slice) yield slice;
      from = to;
    }
  }
}

/** The slice between two times; undefined where none of it is searched. */
function sliceOf(part: Part, from: number, to: number): Slice | undefined {
  if (!part.ranges) return { from, to, part };
  const ranges = clip(part.ranges, from, to);
  return ranges.length === 0 ? undefined : { from: ranges[0].from, to: ranges.at(-1)!.to, part, ranges };
}

/** Slices from the oldest on: one chunk first, then twice as many each time. */
export function* slicesForward(part: Part, chunkMs: number): Generator<Slice> {
  let chunks = 1;
  for (let from = part.from; from < part.to; ) {
    const to = Math.min(part.to, (Math.floor(from / chunkMs) + chunks) * chunkMs);
    yield { from, to, part };
    from = to;
    chunks = Math.min(MAX_CHUNKS, chunks * 2);
  }
}

/** Slices from the newest back: one chunk first, then twice as many each time, since the wanted rows are mostly near the end. */
export function* slicesBackward(parts: readonly Part[], chunkMs: number): Generator<Slice> {
  let chunks = 1;
  for (const part of parts.toReversed()) {
    for (let to = part.to; to > part.from; ) {
      const from = Math.max(part.from, (Math.ceil(to / chunkMs) - chunks) * chunkMs);
      const slice = sliceOf(part, from, to);
      if (slice) yield slice.ranges ? { ...slice, ranges: slice.ranges.toReversed() } : slice;
      to = from;
      chunks = Math.min(MAX_CHUNKS, chunks * 2);
    }
  }
}

/** Chunks are searched by one statement up to this many ranges or ids: each costs a tenth of a millisecond more with several chunks, and a statement one. */
const RANGES_ACROSS_CHUNKS = 16;

/** The ranges, ascending and disjoint, by statement: one a chunk, or one for several with few of them. */
export function groupsOf<R extends Range>(ranges: readonly R[], chunkMs: number, countOf = (_: R) => 1): R[][] {
  const chunkOf = (ms: number) => Math.floor(ms / chunkMs);
  const groups: R[][] = [];
  let count = 0;
  for (const range of ranges) {
    const group = groups.at(-1);
    count += countOf(range);
    if (group && (chunkOf(group[0].from) === chunkOf(range.to - 1) || count <= RANGES_ACROSS_CHUNKS)) group.push(range);
    else {
      groups.push([range]);
      count = countOf(range);
    }
  }
  return groups;
}

/** Parts clipped to the ranges. Both ascend, and a year may have a thousand ranges. */
export function intersected<R extends Range>(parts: readonly R[], ranges: readonly Range[]): R[] {
  const found: R[] = [];
  let next = 0;
  for (const part of parts) {
    while (next < ranges.length && ranges[next].to <= part.from) next++;
    for (let at = next; at < ranges.length && ranges[at].from < part.to; at++) {
      found.push({ ...part, from: Math.max(part.from, ranges[at].from), to: Math.min(part.to, ranges[at].to) });
    }
  }
  return found;
}

/** Rows of a range that pass are sorted before the next one is read. Longer ones, by the mean number of rows, are read alone. */
const LONG_ROWS = 50_000;
/** Ranges of one statement. */
const MAX_RANGES = 4096;

/**
 * The parts with runs of short ones merged, so that one statement searches many of them. A rare filter leaves thousands, and to parse and
 * plan a statement for each takes longer than to search them.
 */
export function mergedParts({ relation }: PlanContext, parts: readonly Part[], rowsPerMs: number): readonly Part[] {
  // The end of a row's validity is found from its part.
  if (relation.validity !== 'none' || parts.length < 2) return parts;
  return merged(parts, LONG_ROWS / rowsPerMs);
}

/** The parts, ascending; runs of such that are no longer than this, and of one proved range, as one part each. Exported for its test. */
export function merged(parts: readonly Part[], longestMs: number): Part[] {
  const found: Part[] = [];
  let run: Part[] = [];
  const close = () => {
    const last = run.at(-1);
    if (!last) return;
    const ranges = run.map(({ from, to }) => ({ from, to }));
    found.push(run.length === 1 ? last : { ...last, from: run[0].from, ranges });
    run = [];
  };
  for (const part of parts) {
    const isShort = part.to - part.from <= longestMs;
    if (!isShort || part.until !== run.at(-1)?.until || run.length === MAX_RANGES) close();
    if (isShort) run.push(part);
    else found.push(part);
  }
  close();
  return found;
}
