/** What of a dataset is proved, as the read's snapshot sees it, and which stretches of time a window reads. */
import { clip, type Range } from '../../shared/db/ranges.ts';
import type { PartitionKind } from '../../shared/registry/types.ts';
import type { Filter } from '../contract/filters.ts';
import type { Window } from './types.ts';

const SECOND_MS = 1000;

/** Proved time without a gap: from its first row to what is proved through, or to the next partition that is expected. */
export interface Run extends Range {
  /** What is proved through. Of captures the next may be expected later: no market day lies between. */
  readonly through: number;
  /** Rows of the run lie before this: block times go past what is proved through. */
  readonly rowsTo: number;
  /** In the unit of the partition: heights; epoch ms of everything else. */
  readonly span: Range;
}

export interface SourceRuns {
  readonly sourceId: string;
  /** Ascending and apart. */
  readonly runs: readonly Run[];
}

export interface Coverage {
  readonly kind: PartitionKind['kind'];
  readonly synthetic: boolean;
  /** What is proved in the unit of the partition, ascending and apart; of captures and vintages it tells no partition. */
  readonly proved: readonly Range[];
  /** ETF and macro have several sources, each proved on its own. */
  readonly sources: readonly SourceRuns[];
  /** Times of all proved rows. */
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

/** Kinds whose sources are proved each on its own. */
const hasSources = (kind: Coverage['kind']) => kind === 'capture' || kind === 'vintage';

/** What the filters say of sources: what others lack is no concern of the request. */
export function admits(filters: readonly Filter[], sourceId: string): boolean {
  return filters.every(({ field, equals }) => field.name !== 'source_id' || !equals || equals.includes(sourceId));
}

/** The coverage of the sources that the filters leave. */
export function admittedBy(coverage: Coverage, filters: readonly Filter[]): Coverage {
  if (!hasSources(coverage.kind)) return coverage;
  const sources = coverage.sources.filter(({ sourceId }) => admits(filters, sourceId));
  if (sources.length === coverage.sources.length) return coverage;
  return coverageOf(coverage.kind, { ...coverage, sources });
}

/** Exclusive end of what is proved: of several sources the one that is furthest behind. */
export function provedThrough({ sources }: Coverage): number | undefined {
  const ends = sources.flatMap(({ runs }) => runs.at(-1)?.through ?? []);
  return ends.length === 0 ? undefined : Math.min(...ends);
}

// ---- windows -------------------------------------------------------------------------------------------------------

/** A window by time. A side that was not given is where proved rows begin or end, and lacks nothing. */
export interface Bounds extends Range {
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

// ---- parts ---------------------------------------------------------------------------------------------------------

/** One stretch of time that rows are read from, and how long its rows can be valid at most. */
export interface Part extends Range {
  /** Where the stretch ends, also when only some of it is searched: as far as there may be a following row. */
  readonly until: number;
  /** End of the proved time the stretch is of. Undefined: rows later than what is proved through, each valid its second. */
  readonly provedTo: number | undefined;
  /** Nothing later is proved: the end is what has been proved so far, not a gap. */
  readonly isLast: boolean;
}

/** What [from, to) holds of a dataset that is one series, ascending. */
export function partsOf(coverage: Coverage, { from, to }: Range): Part[] {
  return stretchesOf(coverage).flatMap((stretch) =>
    clip([stretch], from, to).map((part) => ({ ...stretch, ...part, until: part.to })),
  );
}

/**
 * What [from, to) holds of a dataset whose rows say themselves whether they are proved and until when. Time after the last
 * row is proved, too, as far as was looked; time between the runs of every source is not.
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

/** Proved time, and after each run of it the rows that go beyond. */
function stretchesOf({ sources }: Coverage): Omit<Part, 'until'>[] {
  const runs = sources[0]?.runs ?? [];
  const stretches: Omit<Part, 'until'>[] = [];
  let at = Number.NEGATIVE_INFINITY;
  const push = (from: number, to: number, provedTo: number | undefined, isLast: boolean) => {
    const start = Math.max(at, from);
    if (start < to) stretches.push({ from: start, to, provedTo, isLast });
    at = Math.max(at, to);
  };
  // Rows of a run may lie later than all rows of the next.
  let rowsTo = Number.NEGATIVE_INFINITY;
  runs.forEach((run, index) => {
    const next = runs[index + 1];
    rowsTo = Math.max(rowsTo, run.rowsTo);
    push(run.from, run.to, run.to, !next);
    push(Math.max(run.from, run.to), Math.min(rowsTo, next?.from ?? rowsTo), undefined, !next);
  });
  return stretches;
}

/** What of the parts lies in [from, to). */
export function within(parts: readonly Part[], { from, to }: Range): Part[] {
  return parts.flatMap((part) => clip([part], from, to).map((range) => ({ ...part, ...range })));
}

/** The last a row of this time can be valid, whatever follows it. */
export function lastValid(runs: readonly Run[], ms: number): number {
  const run = runs.find(({ from, to }) => from <= ms && ms < to);
  return Math.max(run?.to ?? 0, ms + SECOND_MS);
}
