/** The proved ranges of a dataset and the gaps between them, in the units of its partitions: days, heights, times. */

import { DAY_MS, dayKey, isMarketDay } from '../dates.ts';
import { clip, gapsBetween, joined, parseMultirange, type Range } from '../ranges.ts';
import type { DatasetDefinition } from '../registry/index.ts';

export interface NamedRange {
  readonly source: string;
  /** First and last file day, height, snapshot, as-of day or vintage. */
  readonly from: string;
  readonly to: string;
  readonly from_utc: string;
  readonly to_utc_exclusive: string;
}

export interface ProvedRanges {
  readonly proved: readonly NamedRange[];
  readonly gaps: readonly NamedRange[];
  /** Number of partitions that are expected in the gaps and not known. */
  readonly missing: number;
  readonly fromMs: number | undefined;
  /** The end of the source that is furthest behind. */
  readonly throughMs: number | undefined;
}

/** A contiguous proved range of one source: its span in the unit of the partition kind, and its times. */
export interface DayRange {
  readonly source: string;
  readonly span: Range;
  readonly fromMs: number;
  readonly throughMs: number;
}

/** The span of a partition that is known and not proved. */
export type UnprovedSpan = Pick<DayRange, 'source' | 'span'>;

/**
 * @param runs sorted by source and span.
 * @param unproved are not missing: their own states count them.
 * @param listed of an instrument: when its exchange listed it, as far as anybody says; outside of it nothing is missing.
 */
export function provedRanges(
  dataset: DatasetDefinition,
  runs: readonly DayRange[],
  unproved: readonly UnprovedSpan[] = [],
  listed?: readonly Range[],
): ProvedRanges {
  const bySource = [...Map.groupBy(runs, ({ source }) => source).values()];
  const between = isBridged(dataset) ? [] : bySource.flatMap(gapsOfSource);
  const gaps = listed === undefined ? between : between.flatMap((gap) => within(gap, listed));
  const known = Map.groupBy(unproved, ({ source }) => source);
  const knownOf = new Map([...known].map(([source, spans]) => [source, joined(spans.map(({ span }) => span))]));
  const ends = bySource.map((ofSource) => ofSource.at(-1)!.throughMs);
  return {
    proved: runs.map((run) => namedRange(dataset, run)),
    gaps: gaps.map((gap) => namedRange(dataset, gap)),
    missing: gaps.reduce((sum, gap) => sum + missingIn(dataset, gap.span, knownOf.get(gap.source) ?? []), 0),
    fromMs: runs.length > 0 ? Math.min(...runs.map(({ fromMs }) => fromMs)) : undefined,
    throughMs: ends.length > 0 ? Math.min(...ends) : undefined,
  };
}

/** The ranges of a dataset of file days, from `coverage.proved`. */
export const runsOfDays = (dataset: DatasetDefinition, proved: string): DayRange[] =>
  parseMultirange(proved).map((span) => ({
    source: dataset.sources[0],
    span,
    fromMs: span.from,
    throughMs: span.to,
  }));

/** The parts of a gap between file days, whose spans are their times, that lie in some ranges. */
const within = (gap: DayRange, ranges: readonly Range[]): DayRange[] =>
  clip(ranges, gap.span.from, gap.span.to).map((span) => ({
    source: gap.source,
    span,
    fromMs: span.from,
    throughMs: span.to,
  }));

/** The gaps between the sorted ranges of one source. */
function gapsOfSource(runs: readonly DayRange[]): DayRange[] {
  return gapsBetween(runs.map(({ span }) => span)).map((span, index) => ({
    source: runs[index].source,
    span,
    fromMs: runs[index].throughMs,
    throughMs: runs[index + 1].fromMs,
  }));
}

/** Whether partitions come at no fixed distance, as snapshots and vintages do, so that none are expected in between. */
const isBridged = ({ partition: { kind } }: DatasetDefinition) => kind === 'snapshot' || kind === 'vintage';

function missingIn({ partition: { kind } }: DatasetDefinition, gap: Range, known: readonly Range[]): number {
  const inside = clip(known, gap.from, gap.to);
  if (kind === 'capture') return isKnownOnMarketDays(gap, inside) ? 0 : 1;
  const expectedIn = ({ from, to }: Range) => (kind === 'height' ? to - from : Math.round((to - from) / DAY_MS));
  return inside.reduce((sum, one) => sum - expectedIn(one), expectedIn(gap));
}

/** Captures are expected on market days only; a gap holds at least one, and may hold several, of which some are known. */
function isKnownOnMarketDays({ from, to }: Range, known: readonly Range[]): boolean {
  for (let ms = from; ms < to; ms += DAY_MS) {
    if (isMarketDay(dayKey(ms)) && !known.some((one) => one.from <= ms && ms < one.to)) return false;
  }
  return known.length > 0;
}

function namedRange(dataset: DatasetDefinition, { source, span, fromMs, throughMs }: DayRange): NamedRange {
  const [from, to] = namesOf(dataset, span);
  return { source, from, to, from_utc: iso(fromMs), to_utc_exclusive: iso(throughMs) };
}

/** The first and the last partition of a span, as people name them. */
function namesOf({ partition }: DatasetDefinition, { from, to }: Range): [string, string] {
  switch (partition.kind) {
    case 'height':
      return [String(from), String(to - 1)];
    case 'snapshot':
      return [iso(from), iso(to - 1)];
    case 'file_day':
      return [dayKey(from - partition.startOffsetMs), dayKey(to - partition.startOffsetMs - 1)];
    case 'capture':
      return [dayKey(from), lastMarketDay(from, to)];
    default:
      return [dayKey(from), dayKey(to - 1)];
  }
}

/** The last as-of day of a range of captures; such a range extends to the next expected day, so over a weekend. */
function lastMarketDay(from: number, to: number): string {
  for (let ms = to - DAY_MS; ms > from; ms -= DAY_MS) if (isMarketDay(dayKey(ms))) return dayKey(ms);
  return dayKey(from);
}

const iso = (ms: number) => new Date(ms).toISOString();
