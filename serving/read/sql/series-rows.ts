/**
 * Rows of a dataset with many series, and their validity: each row is valid until the next row of its series, the end of its
 * source's proved time, or the end of the window.
 */

import { isoOf } from '../../../shared/dates.ts';
import type { Range } from '../../../shared/ranges.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { array, int4, type Params, text, timestamptz } from '../../db/pg-messages.ts';
import type { SeriesRow, Slice, ValidityRule } from '../read-model.ts';
import type { Coverage } from '../snapshot/proved-runs.ts';
import type { Series } from '../snapshot/session.ts';

interface SeriesNeeds {
  /** The table of a range of time. */
  readonly tableOf: (range: Range) => string;
  readonly dataset: DatasetDefinition;
  readonly series: readonly Series[];
  /** The columns of `t` to select. */
  readonly columns: readonly string[];
  /** The condition for the slice's time. */
  readonly within: string;
  readonly validity: ValidityRule;
  /** SQL over `t`. */
  readonly validFrom: string;
  readonly coverage: Coverage;
  readonly endMs: number;
}

/** Selects the slice's rows and the rows carried into it. */
export function seriesRows(needs: SeriesNeeds, slice: Slice, params: Params): string {
  const { columns, validity, validFrom } = needs;
  const { carried = [], next = [] } = slice.boundary ?? {};
  const inner = [...new Set([...columns, 't."aligned_at_utc"', 't."series_id"', 't."source_id"'])];
  const rows = [windowRows(needs, inner, slice, params)];
  if (carried.length > 0) rows.push(carriedRows(needs, inner, carried, params));
  const all = `(${rows.join(' union all ')}) t`;
  const outer = [...columns, `${validFrom} as valid_from`];
  if (validity === 'none') return `select ${outer.join(', ')} from ${all}`;
  const following = ['lead(t.aligned_at_utc) over (partition by t.series_id order by t.aligned_at_utc)'];
  const joins: string[] = [];
  if (next.length > 0) {
    following.push('n.at');
    joins.push(`left join ${list(next, params)} n (series_id, at) on n.series_id = t.series_id`);
  }
  const second = `t.aligned_at_utc + interval '1 second'`;
  const runs = runsBetween(needs, slice, carried);
  let cap = second;
  if (runs.length > 0) {
    const [sources, froms, tos] = [
      runs.map(({ sourceId }) => text(sourceId)),
      runs.map(({ from }) => timestamptz(from)),
      runs.map(({ to }) => timestamptz(to)),
    ].map((values) => params.add(array(values)));
    joins.push(`left join unnest(${sources}, ${froms}, ${tos}) r (source_id, since, until)
      on r.source_id = t.source_id and r.since <= t.aligned_at_utc and t.aligned_at_utc < r.until`);
    // A row outside proved time has no run: greatest() ignores the null.
    cap = `greatest(r.until, ${second})`;
  }
  const end = Number.isFinite(needs.endMs) ? `, ${instant(needs.endMs)}` : '';
  return `select ${outer.join(', ')}, least(${following.length > 1 ? `coalesce(${following.join(', ')})` : following[0]}, ${cap}${end}) as valid_to
    from ${all} ${joins.join(' ')}`;
}

const instant = (ms: number) => `timestamptz '${isoOf(ms)}'`;

const list = (rows: readonly SeriesRow[], params: Params) =>
  `unnest(${params.add(array(rows.map(({ seriesId }) => int4(seriesId))))}, ${params.add(array(rows.map(({ ms }) => timestamptz(ms))))})`;

/** The index is by dataset, series and time: it finds a few series among many without reading the others. */
function windowRows(
  { tableOf, dataset, series, within }: SeriesNeeds,
  columns: readonly string[],
  slice: Slice,
  params: Params,
) {
  const ids =
    series.length === 0 ? 'false' : `t.series_id = any (${params.add(array(series.map(({ id }) => int4(id))))})`;
  return `select ${columns.join(', ')} from ${tableOf(slice)} t where t.dataset_id = ${dataset.number} and ${ids} and ${within}`;
}

/** Uses literal bounds, so that the planner knows the chunks that the rows lie in. */
function carriedRows(
  { tableOf, dataset }: SeriesNeeds,
  columns: readonly string[],
  carried: readonly SeriesRow[],
  params: Params,
): string {
  const times = carried.map(({ ms }) => ms);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  return `select ${columns.join(', ')} from ${list(carried, params)} c (series_id, at)
    join ${tableOf({ from: first, to: last + 1 })} t on t.series_id = c.series_id and t.aligned_at_utc = c.at
    where t.dataset_id = ${dataset.number} and t.aligned_at_utc between ${instant(first)} and ${instant(last)}`;
}

/** The proved runs of the sources that rows of the slice can lie in. */
function runsBetween({ coverage }: SeriesNeeds, slice: Slice, carried: readonly SeriesRow[]) {
  const times = carried.map(({ ms }) => ms);
  const [from, to] = [Math.min(slice.from, ...times), Math.max(slice.to, ...times.map((ms) => ms + 1))];
  return coverage.sources.flatMap(({ sourceId, runs }) =>
    runs.filter((run) => run.from < to && run.to > from).map((run) => ({ sourceId, from: run.from, to: run.to })),
  );
}
