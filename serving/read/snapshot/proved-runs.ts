/** What is proved of a dataset in the read's snapshot, which stretches of time a window reads, and which gaps it has. */

import { isoOf, SECOND_MS } from '../../../shared/dates.ts';
import { clip, type Range } from '../../../shared/ranges.ts';
import type { DatasetDefinition, PartitionKind } from '../../../shared/registry/definition.ts';
import type { Filter } from '../../contract/filters.ts';
import type { Warning } from '../../contract/problems.ts';
import type { ReadRequest, Window } from '../../contract/read-request.ts';
import type { Part } from '../read-model.ts';

/** Proved time without a gap: from its first row to the end of what is proved, or to the next expected partition. */
export interface ProvedRun extends Range {
  /** The end of what is proved. For captures the run may extend beyond it, if no market day lies between. */
  readonly through: number;
  /** Rows of the run lie before this time, which may be later than `through`: block times may be later than the clock. */
  readonly rowsTo: number;
  /** In the unit of the partition: heights, or epoch ms for all other kinds. */
  readonly span: Range;
}

export interface SourceRuns {
  readonly sourceId: string;
  /** Ascending and disjoint. */
  readonly runs: readonly ProvedRun[];
}

export interface Coverage {
  readonly kind: PartitionKind['kind'];
  readonly synthetic: boolean;
  /** What is proved, in the unit of the partition, ascending and disjoint. Not by partition for captures and vintages. */
  readonly proved: readonly Range[];
  /** The proved runs by source. ETF and macro have several sources, each proved on its own. */
  readonly sources: readonly SourceRuns[];
  /** From the first to the last proved row. */
  readonly extent: Range | undefined;
}

export function coverageOf(
  kind: Coverage['kind'],
  facts: Pick<Coverage, 'synthetic' | 'proved' | 'sources'>,
): Coverage {
  const runs = facts.sources.flatMap((source) => source.runs);
  const extent =
    runs.length === 0
      ? undefined
      : { from: Math.min(...runs.map((run) => run.from)), to: Math.max(...runs.map((run) => run.rowsTo)) };
  return { kind, ...facts, extent };
}

/** Kinds of partition whose sources are each proved on their own. */
const hasSources = (kind: Coverage['kind']) => kind === 'capture' || kind === 'vintage';

/** Whether the filters admit the source. Gaps of other sources do not concern the request. */
export function admits(filters: readonly Filter[], sourceId: string): boolean {
  return filters.every(({ field, equals }) => field.name !== 'source_id' || !equals || equals.includes(sourceId));
}

/** The coverage of the sources that the filters admit. */
export function admittedBy(coverage: Coverage, filters: readonly Filter[]): Coverage {
  if (!hasSources(coverage.kind)) return coverage;
  const sources = coverage.sources.filter(({ sourceId }) => admits(filters, sourceId));
  if (sources.length === coverage.sources.length) return coverage;
  return coverageOf(coverage.kind, { ...coverage, sources });
}

/** The exclusive end of what is proved; with several sources, of the one that is furthest behind. */
export function provedThrough({ sources }: Coverage): number | undefined {
  const ends = sources.flatMap(({ runs }) => runs.at(-1)?.through ?? []);
  return ends.length === 0 ? undefined : Math.min(...ends);
}

/** A window of time. An open side ends at the first or last proved row, and has no gap beyond. */
interface Bounds extends Range {
  readonly fromIsGiven: boolean;
  readonly toIsGiven: boolean;
}

export function boundsOf(coverage: Coverage, window: Window): Bounds {
  const { from, to } = coverage.extent ?? { from: 0, to: 0 };
  const given: { readonly fromMs?: number; readonly toMs?: number } = window.kind === 'range' ? window : {};
  return {
    from: given.fromMs ?? from,
    to: given.toMs ?? to,
    fromIsGiven: given.fromMs !== undefined,
    toIsGiven: given.toMs !== undefined,
  };
}

/** Whether the window's rows keep their whole validity. */
export const isWhole = (window: Window): boolean => window.kind === 'range' && window.whole === true;

/**
 * The proved parts of [from, to) of a dataset with a single series, ascending.
 * @param whole whether a row after the part ends the validity of its last one
 */
export function partsOf(coverage: Coverage, { from, to }: Range, whole = false): Part[] {
  return stretchesOf(coverage).flatMap((stretch) =>
    clip([stretch], from, to).map((part) => ({ ...stretch, ...part, until: whole ? stretch.to : part.to })),
  );
}

/**
 * The part of [from, to) that holds rows, for a dataset whose rows carry their own proof and validity. Time after the last row
 * counts as proved up to the last observation; time outside the runs of every source does not.
 */
export function wholePart({ sources }: Coverage, { from, to }: Range): Part[] {
  const stretches = sources.flatMap(({ runs }) =>
    clip(
      runs.map((run) => ({ from: run.from, to: Math.max(run.to, run.rowsTo) })),
      from,
      to,
    ),
  );
  if (stretches.length === 0) return [];
  const part = {
    from: Math.min(...stretches.map((stretch) => stretch.from)),
    to: Math.max(...stretches.map((stretch) => stretch.to)),
  };
  return [{ ...part, until: part.to, provedTo: undefined, isLast: true }];
}

/** Proved time, and after each run the rows that lie beyond it. */
function stretchesOf({ sources }: Coverage): Omit<Part, 'until'>[] {
  const runs = sources[0]?.runs ?? [];
  const stretches: Omit<Part, 'until'>[] = [];
  let at = Number.NEGATIVE_INFINITY;
  const push = (from: number, to: number, provedTo: number | undefined, isLast: boolean) => {
    const start = Math.max(at, from);
    if (start < to) stretches.push({ from: start, to, provedTo, isLast });
    at = Math.max(at, to);
  };
  // Rows of a run may be later than all rows of the next run.
  let rowsTo = Number.NEGATIVE_INFINITY;
  runs.forEach((run, index) => {
    const next = runs[index + 1];
    rowsTo = Math.max(rowsTo, run.rowsTo);
    push(run.from, run.to, run.to, !next);
    push(Math.max(run.from, run.to), Math.min(rowsTo, next?.from ?? rowsTo), undefined, !next);
  });
  return stretches;
}

/** The parts clipped to [from, to). */
export function within(parts: readonly Part[], { from, to }: Range): Part[] {
  return parts.flatMap((part) => clip([part], from, to).map((range) => ({ ...part, ...range })));
}

/** The latest time at which a row of this time can be valid, whatever follows it. */
export function lastValid(runs: readonly ProvedRun[], ms: number): number {
  const run = runs.find(({ from, to }) => from <= ms && ms < to);
  return Math.max(run?.to ?? 0, ms + SECOND_MS);
}

/** A stretch of time in which expected partitions are not proved. Ends are infinite for an open side of the window. */
export interface Gap extends Range {
  /** For a dataset with several sources. */
  readonly sourceId?: string;
  /** First and last missing height. */
  readonly heights?: readonly [first: number, last: number];
}

/**
 * The gaps of a window. File days and heights are expected one after the other; the gaps of snapshots, captures and vintages
 * lie between their runs. Time before and after the runs is missing only where the window explicitly reaches there.
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
  // The code compares the ends and does not subtract them, because they may be infinite.
  return gaps.sort((a, b) => (a.from < b.from || (a.from === b.from && a.to < b.to) ? -1 : 1));
}

/** Nothing is missing before the first block. */
function before({ kind }: Coverage, first: ProvedRun): Gap[] {
  if (kind !== 'height') return [{ from: Number.NEGATIVE_INFINITY, to: first.from }];
  if (first.span.from === 0) return [];
  return [{ from: Number.NEGATIVE_INFINITY, to: first.from, heights: [0, first.span.from - 1] }];
}

function between({ kind }: Coverage, run: ProvedRun, next: ProvedRun): Gap {
  if (kind !== 'height') return { from: run.to, to: next.from };
  // Block times do not measure how many blocks are missing: two runs may adjoin in time.
  const to = Math.max(next.from, run.to + SECOND_MS);
  return { from: run.to, to, heights: [run.span.to, next.span.from - 1] };
}

const after = ({ kind }: Coverage, last: ProvedRun): Gap => ({
  from: last.to,
  to: Number.POSITIVE_INFINITY,
  ...(kind === 'height' && { heights: [last.span.to, Number.POSITIVE_INFINITY] as const }),
});

/** The gaps between proved runs, from a moment on. */
export const gapsSince = (coverage: Coverage, from: number): Gap[] =>
  gapsWithin(coverage, { from, to: Number.POSITIVE_INFINITY, fromIsGiven: false, toIsGiven: false }).filter(
    (gap) => gap.to > from,
  );

/** Describes the gaps between proved runs that the window reaches into, each in full. Undefined: there is none. */
export function missingIn(coverage: Coverage, window: Range): string | undefined {
  const gaps = gapsSince(coverage, window.from).filter((gap) => gap.from < window.to);
  return gaps.length === 0 ? undefined : describeAll(gaps);
}

/** The details list at most this many gaps; the total counts the rest. */
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
        gaps: gaps.slice(0, MAX_NAMED_GAPS).map(gapDetails),
        gaps_total: gaps.length,
        proved_from: coverage.extent ? isoOf(coverage.extent.from) : null,
        proved_through: through === undefined ? null : isoOf(through),
      },
    },
  ];
}

const finite = <T>(value: number, of: (value: number) => T): T | null => (Number.isFinite(value) ? of(value) : null);

const gapDetails = ({ from, to, sourceId, heights }: Gap) => ({
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

export type RowScope = Pick<ReadRequest, 'dataset' | 'asOfMs'>;

/** SQL over a partition `p`: when its values were known, epoch ms. A document without a recorded capture counts from its ingest. */
export const knownMsOf = ({ partition }: DatasetDefinition): string =>
  partition.kind === 'vintage'
    ? `(lower(p.span) + ${partition.knownAfterMs})`
    : `coalesce(p.captured_ms, floor(extract(epoch from p.ingested_at) * 1000)::int8)`;

/** A condition on partitions `p`: it was known as of the request's time. Undefined where all are. */
export function knownTest({ dataset, asOfMs }: RowScope): string | undefined {
  const { kind } = dataset.partition;
  if (asOfMs === undefined || (kind !== 'vintage' && kind !== 'capture')) return undefined;
  return `${knownMsOf(dataset)} <= ${asOfMs}`;
}

/** The time that the answer describes: what was unknown then is neither missing nor late. */
export const clockOf = ({ asOfMs }: Pick<ReadRequest, 'asOfMs'>, nowMs: number): number =>
  Math.min(nowMs, asOfMs ?? nowMs);
