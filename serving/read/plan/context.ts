/** The input of a plan (request and snapshot) and its result: the statements that answer the request in order. */
import type { Range } from '../../../shared/ranges.ts';
import type { Field } from '../../../shared/registry/index.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import type { Statement } from '../../db/pg-messages.ts';
import type { FirstRow, Part, RowCount, Searched, Sections, SeriesRow } from '../read-model.ts';
import {
  admittedBy,
  boundsOf,
  type Coverage,
  type Gap,
  isWhole,
  partsOf,
  wholePart,
  within,
} from '../snapshot/proved-runs.ts';
import type { Series, Session, Snapshot } from '../snapshot/session.ts';
import { Relation } from '../sql/relation.ts';
import type { FoundRows } from './found-rows.ts';

/** A statement of a plan, and the number of rows that it must yield, if known. */
export type CountedStatement = Statement & {
  readonly count?: RowCount;
  /** How its rows may be read by several statements; absent where only this one yields them. */
  readonly sections?: Sections;
};

export interface ReadPlan {
  /** The gaps that the answer spans. */
  readonly gaps: readonly Gap[];
  /** The proved parts that the rows come from, ascending. */
  readonly parts: readonly Part[];
  /** Rows from before the parts that belong to the answer: see PlanContext. */
  readonly carried?: readonly SeriesRow[];
  /** The statements of the rows, in order, or the rows that the plan has read. */
  readonly statements: Iterable<CountedStatement | FoundRows> | AsyncIterable<CountedStatement | FoundRows>;
  /** The number of rows that the answer must have, if known. */
  readonly expectedRows?: number;
  /** The number of stored rows that all statements together must read, if known. */
  readonly count?: RowCount;
  /** How much of the window is searched; absent without filters. */
  readonly searched?: Searched;
  /** The parts that the filters leave; absent without filters. */
  readonly left?: readonly Part[];
  /** For the latest rows: the first of them. Undefined where all rows of the window are read. */
  readonly since?: FirstRow;
}

/** How much of a partition is searched for ids. */
export interface Placed {
  readonly frames: number;
  readonly rows: number;
}

export interface PlanContext {
  readonly request: ReadRequest;
  readonly snapshot: Snapshot;
  /** Coverage of the sources that the request admits. */
  readonly coverage: Coverage;
  readonly relation: Relation;
  /** For a dataset of many series: the series that the request admits. */
  readonly series: readonly Series[];
  /** Proved parts of the window. */
  readonly parts: readonly Part[];
  /** The parts that can hold rows that pass the filters. */
  readonly searched: readonly Part[];
  /** Where ids lead to the rows: how much is searched by partition. All others hold none of the ids. */
  readonly placed?: ReadonlyMap<string, Placed>;
  /** Rows from before the window that are still valid when it begins, unless they lie in its parts. */
  readonly carried: readonly SeriesRow[];
  /** Start of the window, no earlier than the first proved row; undefined for a window without a start. */
  readonly startMs: number | undefined;
  /** End of the window; infinite for a window without an end. */
  readonly endMs: number;
}

/** The context of plans that query the snapshot. */
export type LiveContext = PlanContext & {
  readonly session: Session;
  /** Whether nobody else reads. Undefined: others may. */
  readonly isAlone?: () => boolean;
  /** With filters: how many rows a millisecond of what is searched has. */
  readonly rowsPerMs?: number;
  /** A search of fewer rows does not look up granules. */
  readonly granuleLookupRows?: number;
};

export function contextOf(request: ReadRequest, snapshot: Snapshot): PlanContext {
  const coverage = admittedBy(snapshot.coverage, request.filters);
  const { window } = request;
  // A whole window cuts no validity, and nothing is carried into it.
  const cut = window.kind === 'range' && !window.whole ? window : undefined;
  const given = cut?.fromMs;
  // Arithmetic with a start far in the past would leave the years that the database knows, and no row lies there.
  const startMs = given === undefined || !coverage.extent ? undefined : Math.max(given, coverage.extent.from);
  const endMs = cut?.toMs ?? Number.POSITIVE_INFINITY;
  const series = admittedSeries(request, snapshot);
  const relation = new Relation(request, { coverage, snapshot, series, startMs, endMs });
  const context = { request, snapshot, coverage, relation, series, carried: [], startMs, endMs };
  return withParts(context, boundsOf(coverage, window));
}

/** The series that pass the filters on fields of the series key. */
function admittedSeries({ dataset, filters }: ReadRequest, { series }: Snapshot): readonly Series[] {
  const { seriesKey } = dataset.aligned;
  const lists = filters.flatMap(({ field, equals }) => {
    const index = seriesKey.indexOf(field.name);
    return index >= 0 && equals ? [{ index, equals }] : [];
  });
  return lists.length === 0
    ? series
    : series.filter(({ key }) => lists.every(({ index, equals }) => equals.includes(key[index])));
}

/** The context for the window [from, to). */
export function withParts<C extends Omit<PlanContext, 'parts' | 'searched'>>(context: C, range: Range) {
  const { coverage, relation, request } = context;
  const parts = relation.isSingleSeries
    ? partsOf(coverage, range, isWhole(request.window))
    : wholePart(coverage, range);
  const searched = within(
    parts,
    boundsOfFilters(request, (field) => relation.isTime(field)),
  );
  return { ...context, parts, searched };
}

/** The intersection of the bounds that filters on some fields set. */
export function boundsOfFilters(request: ReadRequest, isOne: (field: Field) => boolean): Range {
  const bounds = request.filters.flatMap((filter) => (filter.bounds && isOne(filter.field) ? [filter.bounds] : []));
  return { from: Math.max(...bounds.map((one) => one.from)), to: Math.min(...bounds.map((one) => one.to)) };
}
