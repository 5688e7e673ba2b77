/** Cuts proved parts at bucket boundaries, so that one statement computes a kline even where it spans a gap. */
import { clip, type Range } from '../../../shared/ranges.ts';
import { type CountedPartition, countWithin } from '../plan/counted.ts';
import { MAX_CHUNKS } from '../plan/slices.ts';
import type { Part, RowCount } from '../read-model.ts';
import { ceilTo, floorTo, type KlineSource, type KlineSources } from './sources.ts';

export interface KlineSlice extends Range {
  /** The proved and requested parts of whole buckets, from the first row's bucket to the last row's. */
  readonly parts: readonly Part[];
  /** The number of rows that its klines aggregate, where the slice holds whole file days. */
  readonly count?: RowCount;
  readonly source: KlineSource;
}

export interface Grid {
  /** Length of a bucket. Buckets start at multiples of it. */
  readonly sizeMs: number;
  readonly chunkMs: number;
  /** Where klines come from; undefined where all come from rows. */
  readonly sources?: KlineSources;
}

/** The parts by the source of their klines. */
const segmentsOf = (parts: readonly Part[], { sources }: Grid) =>
  sources?.cut(parts) ?? [{ source: 'rows', parts } as const];

/**
 * Ascending slices, each of one source. A slice of rows covers at most as many chunks as other statements do, or one bucket if
 * that is longer.
 */
export function* klineSlices(parts: readonly Part[], grid: Grid): Generator<KlineSlice> {
  for (const segment of segmentsOf(parts, grid)) yield* slicesForward(segment.parts, grid, segment.source);
}

function* slicesForward(parts: readonly Part[], grid: Grid, source: KlineSource): Generator<KlineSlice> {
  const { sizeMs, chunkMs, sources } = grid;
  const reachMs = sources?.reachMs(source);
  let from = Number.NEGATIVE_INFINITY;
  for (let index = 0; ; ) {
    while (index < parts.length && parts[index].to <= from) index++;
    if (index === parts.length) return;
    from = floorTo(sizeMs, Math.max(from, parts[index].from));
    const end = reachMs === undefined ? floorTo(chunkMs, from) + MAX_CHUNKS * chunkMs : from + reachMs;
    const to = Math.max(from + sizeMs, floorTo(sizeMs, end));
    yield sliceOf(parts, index, { from, to }, source);
    from = to;
  }
}

/** The same, cut where whole file days begin and end if a bucket does too. Rows outside whole file days have no known count. */
export function* countedKlineSlices(
  parts: readonly Part[],
  partitions: readonly CountedPartition[],
  grid: Grid,
): Generator<KlineSlice> {
  for (const segment of segmentsOf(parts, grid)) {
    for (const group of groupsOf(segment.parts, partitions, grid.sizeMs)) {
      for (const slice of slicesForward(group, grid, segment.source)) {
        yield { ...slice, count: countWithin(partitions, slice.parts) };
      }
    }
  }
}

/** Groups of parts that are whole file days, and groups of others, such that no bucket lies in two groups. */
function groupsOf(parts: readonly Part[], partitions: readonly CountedPartition[], sizeMs: number): Part[][] {
  const groups: Part[][] = [];
  let wasWhole: boolean | undefined;
  for (const { isWhole, ...part } of cutAtWholeDays(parts, partitions)) {
    const group = groups.at(-1);
    const last = group?.at(-1);
    const isSeparate = last !== undefined && ceilTo(sizeMs, last.to) <= floorTo(sizeMs, part.from);
    if (!group || !last || (isSeparate && isWhole !== wasWhole)) groups.push([part]);
    else if (last.to === part.from && last.until === part.until) group[group.length - 1] = { ...last, to: part.to };
    else group.push(part);
    wasWhole = isWhole;
  }
  return groups;
}

/** The parts, cut where runs of adjacent whole file days begin and end. */
function* cutAtWholeDays(
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

/** Slices from the newest back: `buckets` buckets of each source first, then twice as many each time. */
export function* klineSlicesBackward(parts: readonly Part[], grid: Grid, buckets: number): Generator<KlineSlice> {
  for (const segment of segmentsOf(parts, grid).toReversed())
    yield* slicesBackward(segment.parts, grid, segment.source, buckets);
}

function* slicesBackward(
  parts: readonly Part[],
  { sizeMs, chunkMs, sources }: Grid,
  source: KlineSource,
  buckets: number,
): Generator<KlineSlice> {
  const reachMs = sources?.reachMs(source) ?? MAX_CHUNKS * chunkMs;
  const most = Math.max(1, Math.floor(reachMs / sizeMs));
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
    yield sliceOf(parts, first, { from, to }, source);
    to = from;
    count *= 2;
  }
}

/** The parts within one bucket. */
export function bucketSlice(parts: readonly Part[], { sizeMs, sources }: Grid, fromMs: number): KlineSlice {
  const first = parts.findIndex((part) => part.to > fromMs);
  return sliceOf(parts, first, { from: fromMs, to: fromMs + sizeMs }, sources?.at(fromMs) ?? 'rows');
}

function sliceOf(parts: readonly Part[], first: number, { from, to }: Range, source: KlineSource): KlineSlice {
  const within: Part[] = [];
  for (let index = first; index < parts.length && parts[index].from < to; index++) {
    for (const range of clip([parts[index]], from, to)) within.push({ ...parts[index], ...range });
  }
  return { from: within[0].from, to: within[within.length - 1].to, parts: within, source };
}
