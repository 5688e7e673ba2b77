/** What a plan is made of: the request, what its snapshot says, and the statements that answer it in order. */
import type { Range } from '../../../shared/ranges.ts';
import type { Field } from '../../../shared/registry/index.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { admittedBy, boundsOf, type Coverage, type Gap, partsOf, wholePart, within } from '../snapshot/coverage.ts';
import type { Series, Session, Snapshot } from '../snapshot/session.ts';
import { Relation } from '../sql/relation.ts';
import type { Part, RowCount, SeriesRow } from '../types.ts';

/** A statement of a plan, and how many rows it must yield, where that is known. */
export type CountedStatement = Statement & { readonly count?: RowCount };

export interface Plan {
  /** Unproved stretches the answer reaches across or past. */
  readonly gaps: readonly Gap[];
  /** Proved parts the rows come from, ascending. */
  readonly parts: readonly Part[];
  /** Rows of before the parts that belong to the answer: see PlanContext. */
  readonly carried?: readonly SeriesRow[];
  readonly statements: Iterable<CountedStatement> | AsyncIterable<CountedStatement>;
  /** How many rows there must be, where that is known. */
  readonly expectedRows?: number;
  /** The rows of the proved partitions that all statements together read. */
  readonly count?: RowCount;
}

export interface PlanContext {
  readonly request: ReadRequest;
  readonly snapshot: Snapshot;
  /** Of the sources that the request admits. */
  readonly coverage: Coverage;
  readonly relation: Relation;
  /** Of a dataset of many series: those that the request admits. */
  readonly series: readonly Series[];
  /** Proved parts of the window. */
  readonly parts: readonly Part[];
  /** What of them can hold rows that pass the filters. */
  readonly searched: readonly Part[];
  /** Rows of before the window that are still valid when it begins, where they are not in its parts. */
  readonly carried: readonly SeriesRow[];
  /** Start of the window, no earlier than the first proved row; undefined where it has none. */
  readonly startMs: number | undefined;
  /** End of the window; infinite where it has none. */
  readonly endMs: number;
}

/** For plans that have to look further before they are made. */
export type LiveContext = PlanContext & { readonly session: Session };

export function contextOf(request: ReadRequest, snapshot: Snapshot): PlanContext {
  const coverage = admittedBy(snapshot.coverage, request.filters);
  const { window } = request;
  const given = window.kind === 'range' ? window.fromMs : undefined;
  // Arithmetic with a start far back would leave the years that the database knows, and no row lies there.
  const startMs = given === undefined || !coverage.extent ? undefined : Math.max(given, coverage.extent.from);
  const endMs = (window.kind === 'range' ? window.toMs : undefined) ?? Number.POSITIVE_INFINITY;
  const series = admittedSeries(request, snapshot);
  const relation = new Relation(request, { coverage, snapshot, series, startMs, endMs });
  const context = { request, snapshot, coverage, relation, series, carried: [], startMs, endMs };
  return withParts(context, boundsOf(coverage, window));
}

/** Filters on the fields of the series key say which series the rows can be of. */
function admittedSeries({ dataset, filters }: ReadRequest, { series }: Snapshot): readonly Series[] {
  const { seriesKey } = dataset.aligned;
  const lists = filters.flatMap(({ field, equals }) => {
    const place = seriesKey.indexOf(field.name);
    return place >= 0 && equals ? [{ place, equals }] : [];
  });
  return lists.length === 0
    ? series
    : series.filter(({ key }) => lists.every(({ place, equals }) => equals.includes(key[place])));
}

/** The context reading [from, to). */
export function withParts<C extends Omit<PlanContext, 'parts' | 'searched'>>(context: C, range: Range) {
  const { coverage, relation, request } = context;
  const parts = relation.isSingleSeries ? partsOf(coverage, range) : wholePart(coverage, range);
  const searched = within(
    parts,
    boundsOfFilters(request, (field) => relation.isTime(field)),
  );
  return { ...context, parts, searched };
}

/** Where the filters on some fields leave their common value. */
export function boundsOfFilters(request: ReadRequest, isOne: (field: Field) => boolean): Range {
  const bounds = request.filters.flatMap((filter) => (filter.bounds && isOne(filter.field) ? [filter.bounds] : []));
  return { from: Math.max(...bounds.map((one) => one.from)), to: Math.min(...bounds.map((one) => one.to)) };
}
