/** Expected partitions that are not proved, as stretches of time of a window, and what is said about them. */
import type { Range } from '../../shared/db/ranges.ts';
import type { Warning } from '../contract/problems.ts';
import { isoOf } from '../contract/time.ts';
import { type Bounds, type Coverage, provedThrough, type Run } from './coverage.ts';

/** Ends are infinite where the window gives none. */
export interface Gap extends Range {
  /** Of a dataset with several sources. */
  readonly sourceId?: string;
  /** First and last of the heights that are missing. */
  readonly heights?: readonly [first: number, last: number];
}

const SECOND_MS = 1000;

/**
 * The gaps of a window: file days and heights are expected one after the other; of what is not (snapshots, captures,
 * vintages) the runs tell. What lies before and after them is missing only where the window was given to reach there.
 */
export function gapsWithin(coverage: Coverage, bounds: Bounds): Gap[] {
  const from = bounds.fromIsGiven ? bounds.from : Number.NEGATIVE_INFINITY;
  const to = bounds.toIsGiven ? bounds.to : Number.POSITIVE_INFINITY;
  if (coverage.sources.every(({ runs }) => runs.length === 0)) {
    return bounds.fromIsGiven || bounds.toIsGiven ? [{ from, to }] : [];
  }
  const gaps = coverage.sources.flatMap(({ sourceId, runs }) => {
    const [first, last] = [runs[0], runs[runs.length - 1]];
    if (!first) return [];
    const missesAll = to <= first.from || from >= last.to;
    return [
      ...(bounds.fromIsGiven || missesAll ? before(coverage, first) : []),
      ...runs.slice(1).map((run, index) => between(coverage, runs[index], run)),
      ...(bounds.toIsGiven || missesAll ? [after(coverage, last)] : []),
    ]
      .map((gap) => ({ ...gap, from: Math.max(gap.from, from), to: Math.min(gap.to, to) }))
      .filter((gap) => gap.from < gap.to)
      .map((gap): Gap => (coverage.sources.length > 1 ? { ...gap, sourceId } : gap));
  });
  // Ends may be infinite, and infinities have no difference.
  return gaps.sort((a, b) => (a.from < b.from || (a.from === b.from && a.to < b.to) ? -1 : 1));
}

/** Before the first block there is none to be missing. */
function before({ kind }: Coverage, first: Run): Gap[] {
  if (kind !== 'height') return [{ from: Number.NEGATIVE_INFINITY, to: first.from }];
  if (first.span.from === 0) return [];
  return [{ from: Number.NEGATIVE_INFINITY, to: first.from, heights: [0, first.span.from - 1] }];
}

function between({ kind }: Coverage, run: Run, next: Run): Gap {
  if (kind !== 'height') return { from: run.to, to: next.from };
  // Block times are no measure of how many blocks are missing: two runs may touch in time.
  const to = Math.max(next.from, run.to + SECOND_MS);
  return { from: run.to, to, heights: [run.span.to, next.span.from - 1] };
}

const after = ({ kind }: Coverage, last: Run): Gap => ({
  from: last.to,
  to: Number.POSITIVE_INFINITY,
  ...(kind === 'height' && { heights: [last.span.to, Number.POSITIVE_INFINITY] as const }),
});

/** The gaps between what is proved, from a moment on. */
export const gapsSince = (coverage: Coverage, from: number): Gap[] =>
  gapsWithin(coverage, { from, to: Number.POSITIVE_INFINITY, fromIsGiven: false, toIsGiven: false }).filter(
    (gap) => gap.to > from,
  );

/** The gaps between what is proved that a window reaches into, whole, in words. Undefined: it reaches into none. */
export function missingIn(coverage: Coverage, window: Range): string | undefined {
  const gaps = gapsSince(coverage, window.from).filter((gap) => gap.from < window.to);
  return gaps.length === 0 ? undefined : describeAll(gaps);
}

/** More gaps than a person reads; the total tells of the rest. */
const MAX_NAMED_GAPS = 100;

export function coverageWarning(coverage: Coverage, gaps: readonly Gap[]): Warning[] {
  if (gaps.length === 0) return [];
  const [first] = gaps;
  const through = provedThrough(coverage);
  const begins =
    coverage.kind === 'snapshot' && coverage.extent && first.to <= coverage.extent.from
      ? `; the first snapshot is of ${isoOf(coverage.extent.from)}`
      : '';
  return [
    {
      code: 'WINDOW_EXCEEDS_PROVED_COVERAGE',
      message: `The window holds time that is not proved: ${describeAll(gaps)}${begins}.`,
      details: {
        gaps: gaps.slice(0, MAX_NAMED_GAPS).map(named),
        gaps_total: gaps.length,
        proved_from: coverage.extent ? isoOf(coverage.extent.from) : null,
        proved_through: through === undefined ? null : isoOf(through),
      },
    },
  ];
}

const finite = <T>(value: number, of: (value: number) => T): T | null => (Number.isFinite(value) ? of(value) : null);

const named = ({ from, to, sourceId, heights }: Gap) => ({
  start: finite(from, isoOf),
  end: finite(to, isoOf),
  ...(sourceId !== undefined && { source_id: sourceId }),
  ...(heights && { first_height: heights[0], last_height: finite(heights[1], Number) }),
});

function describeAll(gaps: readonly Gap[]): string {
  const more = gaps.length > 1 ? ` and ${gaps.length - 1} more` : '';
  return `${describe(gaps[0])}${more}`;
}

function describe({ from, to, sourceId, heights }: Gap): string {
  const start = finite(from, isoOf);
  const end = finite(to, isoOf);
  const time = start === null ? `before ${end}` : end === null ? `from ${start} on` : `${start} to ${end}`;
  const blocks =
    heights && (Number.isFinite(heights[1]) ? `heights ${heights[0]} to ${heights[1]}` : `heights from ${heights[0]}`);
  const what = [sourceId, blocks].filter((one) => one !== undefined).join(', ');
  return what === '' ? time : `${time} (${what})`;
}
