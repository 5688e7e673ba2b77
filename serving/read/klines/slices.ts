/** Proved parts cut at bucket boundaries: a kline is made by one statement, also where it reaches over a gap. */
import { clip, type Range } from '../../../shared/ranges.ts';
import { MAX_CHUNKS } from '../plan/boundary-rows.ts';
import { type CountedPartition, countWithin } from '../plan/counted.ts';
import type { Part, RowCount } from '../types.ts';

export interface KlineSlice extends Range {
  /** Whole buckets, from the first row's to the last row's; what of them is proved and asked for. */
  readonly parts: readonly Part[];
  /** The rows that its klines are made of, where whole file days lie in it. */
  readonly count?: RowCount;
}

export interface Grid {
  /** Length of a bucket; buckets start at its multiples. */
  readonly sizeMs: number;
  readonly chunkMs: number;
}

/** Ascending. As few chunks as elsewhere, or one bucket where that is longer. */
export function* klineSlices(parts: readonly Part[], grid: Grid): Generator<KlineSlice> {
  const { sizeMs, chunkMs } = grid;
  let from = Number.NEGATIVE_INFINITY;
  for (let index = 0; ; ) {
    while (index < parts.length && parts[index].to <= from) index++;
    if (index === parts.length) return;
    from = floorTo(sizeMs, Math.max(from, parts[index].from));
    const to = Math.max(from + sizeMs, floorTo(sizeMs, floorTo(chunkMs, from) + MAX_CHUNKS * chunkMs));
    yield sliceOf(parts, index, from, to);
    from = to;
  }
}

/** The same, cut where whole file days begin and end, if a bucket does there: what is cut off them has no known count. */
export function* countedKlineSlices(
  parts: readonly Part[],
  partitions: readonly CountedPartition[],
  grid: Grid,
): Generator<KlineSlice> {
  for (const group of groupsOf(parts, partitions, grid.sizeMs)) {
    for (const slice of klineSlices(group, grid)) yield { ...slice, count: countWithin(partitions, slice.parts) };
  }
}

/** Parts that are whole file days, and others, as far as no bucket is of both. */
function groupsOf(parts: readonly Part[], partitions: readonly CountedPartition[], sizeMs: number): Part[][] {
  const groups: Part[][] = [];
  let wasWhole: boolean | undefined;
  for (const { isWhole, ...part } of stretchesOf(parts, partitions)) {
    const group = groups.at(-1);
    const last = group?.at(-1);
    const isApart = last !== undefined && ceilTo(sizeMs, last.to) <= floorTo(sizeMs, part.from);
    if (!group || !last || (isApart && isWhole !== wasWhole)) groups.push([part]);
    else if (last.to === part.from && last.until === part.until) group[group.length - 1] = { ...last, to: part.to };
    else group.push(part);
    wasWhole = isWhole;
  }
  return groups;
}

/** The parts, cut where whole file days begin and end that do not follow each other. */
function* stretchesOf(
  parts: readonly Part[],
  partitions: readonly CountedPartition[],
): Generator<Part & { readonly isWhole: boolean }> {
  let next = 0;
  for (const part of parts) {
    let at = part.from;
    while (next < partitions.length && partitions[next].from < part.from) next++;
    while (next < partitions.length && partitions[next].to <= part.to) {
      const { from } = partitions[next];
      let { to } = partitions[next++];
      while (partitions[next]?.from === to && partitions[next].to <= part.to) to = partitions[next++].to;
      if (at < from) yield { ...part, from: at, to: from, isWhole: false };
      yield { ...part, from, to, isWhole: true };
      at = to;
    }
    if (at < part.to) yield { ...part, from: at, isWhole: false };
  }
}

/** From the newest back: as long as `buckets` buckets first, then twice as long each time. */
export function* klineSlicesBackward(parts: readonly Part[], grid: Grid, buckets: number): Generator<KlineSlice> {
  const { sizeMs, chunkMs } = grid;
  const most = Math.max(1, Math.floor((MAX_CHUNKS * chunkMs) / sizeMs));
  let to = Number.POSITIVE_INFINITY;
  let count = buckets;
  for (let index = parts.length - 1; ; ) {
    while (index >= 0 && parts[index].from >= to) index--;
    if (index < 0) return;
    to = ceilTo(sizeMs, Math.min(to, parts[index].to));
    count = Math.min(count, most);
    const from = to - count * sizeMs;
    let first = index;
    while (first > 0 && parts[first - 1].to > from) first--;
    yield sliceOf(parts, first, from, to);
    to = from;
    count *= 2;
  }
}

/** What of the parts lies in one bucket. */
export function bucketSlice(parts: readonly Part[], sizeMs: number, fromMs: number): KlineSlice {
  return sliceOf(
    parts,
    parts.findIndex((part) => part.to > fromMs),
    fromMs,
    fromMs + sizeMs,
  );
}

function sliceOf(parts: readonly Part[], first: number, from: number, to: number): KlineSlice {
  const within: Part[] = [];
  for (let index = first; index < parts.length && parts[index].from < to; index++) {
    for (const range of clip([parts[index]], from, to)) within.push({ ...parts[index], ...range });
  }
  return { from: within[0].from, to: within[within.length - 1].to, parts: within };
}

export const floorTo = (size: number, ms: number): number => Math.floor(ms / size) * size;
export const ceilTo = (size: number, ms: number): number => Math.ceil(ms / size) * size;
