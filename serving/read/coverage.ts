/** What of a dataset is proved, as the read's snapshot sees it, and what that means for a window. */
import { clip, gapsBetween, type Range } from '../../shared/db/ranges.ts';
import type { Warning } from '../contract/problems.ts';
import { isoOf } from '../contract/time.ts';
import type { Window } from './types.ts';

export interface Coverage {
  /** Proved ranges in epoch ms, ascending and apart. */
  readonly ranges: readonly Range[];
  readonly synthetic: boolean;
}

/** One proved stretch of what is asked for, and where the proved range it belongs to ends. */
export interface Part extends Range {
  /** Where the stretch ends, also when only some of it is searched: as far as there may be a following row. */
  readonly until: number;
  readonly provedTo: number;
  /** Nothing later is proved: the end is what has been proved so far, not a gap. */
  readonly isLast: boolean;
}

/** Exclusive end of what is proved. */
export const provedThrough = (coverage: Coverage): number | undefined => coverage.ranges.at(-1)?.to;

/** The proved parts of [fromMs, toMs), ascending. */
export function partsOf(coverage: Coverage, fromMs: number, toMs: number): Part[] {
  const { ranges } = coverage;
  return ranges.flatMap((range, index) =>
    clip([range], fromMs, toMs).map((part) => ({
      ...part,
      until: part.to,
      provedTo: range.to,
      isLast: index === ranges.length - 1,
    })),
  );
}

/** What of the parts lies in [from, to). */
export function within(parts: readonly Part[], { from, to }: Range): Part[] {
  return parts.flatMap((part) => clip([part], from, to).map((range) => ({ ...part, ...range })));
}

/** Start and end of a window by time; an open side is the proved history's. */
export function boundsOf(coverage: Coverage, window: Window): Range {
  const from = coverage.ranges[0]?.from ?? 0;
  const to = provedThrough(coverage) ?? 0;
  if (window.kind !== 'range') return { from, to };
  return { from: window.fromMs ?? from, to: window.toMs ?? to };
}

/** The unproved stretches of [from, to). Every partition there is expected, so each is a gap. */
export function gapsWithin(coverage: Coverage, { from, to }: Range): Range[] {
  const proved = clip(coverage.ranges, from, to);
  if (from >= to) return [];
  if (proved.length === 0) return [{ from, to }];
  const [first, last] = [proved[0], proved[proved.length - 1]];
  return [
    ...(first.from > from ? [{ from, to: first.from }] : []),
    ...gapsBetween(proved),
    ...(last.to < to ? [{ from: last.to, to }] : []),
  ];
}

/** More gaps than a person reads; the total tells of the rest. */
const MAX_NAMED_GAPS = 100;

export function coverageWarning(coverage: Coverage, gaps: readonly Range[]): Warning[] {
  if (gaps.length === 0) return [];
  const iso = (ms: number | undefined) => (ms === undefined ? null : isoOf(ms));
  const named = gaps.slice(0, MAX_NAMED_GAPS).map((gap) => ({ start: isoOf(gap.from), end: isoOf(gap.to) }));
  const [first] = named;
  const more = gaps.length > 1 ? ` and ${gaps.length - 1} more` : '';
  return [
    {
      code: 'WINDOW_EXCEEDS_PROVED_COVERAGE',
      message: `The window holds time that is not proved: ${first.start} to ${first.end}${more}. Only its proved part is served.`,
      details: {
        gaps: named,
        gaps_total: gaps.length,
        proved_from: iso(coverage.ranges[0]?.from),
        proved_through: iso(provedThrough(coverage)),
      },
    },
  ];
}
