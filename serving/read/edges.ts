/**
 * What lies beyond the edges of a slice, by series: the row that is still valid when it begins, and the one that ends the
 * validity of its last. Either may lie far away, so both are looked for near first; the index has them in microseconds.
 */
import type { Range } from '../../shared/db/ranges.ts';
import { array, int4, Params } from '../db/params.ts';
import type { LiveContext, PlanContext } from './context.ts';
import type { Part, SourceRuns } from './coverage.ts';
import { type Slice, slicesBackward, slicesForward } from './slices.ts';

/** A row by what identifies it. */
export interface SeriesRow {
  readonly seriesId: number;
  readonly ms: number;
}

/** What lies beyond a slice. */
export interface Edges {
  /** Rows of before the window that are still valid when it begins: they come with its first slice. */
  readonly carried: readonly SeriesRow[];
  /** The first row of each series after the slice. */
  readonly next: readonly SeriesRow[];
}

/** The slices, of a dataset of many series with what lies beyond them. */
export async function* withEdges(context: LiveContext, slices: Iterable<Slice>): AsyncGenerator<Slice> {
  const { relation, carried, endMs, coverage } = context;
  if (relation.isOneLine || !relation.isState) {
    yield* slices;
    return;
  }
  let rows = carried;
  const last = Math.min(endMs, coverage.extent?.to ?? endMs);
  for (const slice of slices) {
    const next = relation.validity === 'none' || slice.to >= last ? [] : await after(context, slice.to);
    yield { ...slice, edges: { carried: rows, next } };
    rows = [];
  }
  // None of the slices was there to take them.
  const [row] = rows;
  if (row) yield { from: row.ms, to: row.ms, part: emptyPart(row.ms), edges: { carried: rows, next: [] } };
}

export const emptyPart = (at: number): Part => ({ from: at, to: at, until: at, provedTo: undefined, isLast: true });

/** The first row of each series at or after a moment, as far as the row before it may be valid until there. */
function after(context: LiveContext, ms: number): Promise<SeriesRow[]> {
  return nearest(context, 'after', ms, (runs) => {
    const run = runs.find(({ from, to }) => from < ms && ms < to);
    return { from: ms, to: Math.min(run?.to ?? ms, context.endMs) };
  });
}

/** The row of each series nearest to a moment, within limits that go by the runs of its source. */
export async function nearest(
  context: LiveContext,
  direction: 'before' | 'after',
  ms: number,
  limitOf: (runs: SourceRuns['runs']) => Range,
): Promise<SeriesRow[]> {
  const { session, relation } = context;
  let open = seriesOf(context).flatMap((id) => {
    const limit = limitOf(runsOf(context, id));
    return limit.from < limit.to ? [{ id, limit }] : [];
  });
  const found: SeriesRow[] = [];
  if (open.length === 0) return found;
  const part: Part = {
    from: Math.min(...open.map(({ limit }) => limit.from)),
    to: Math.max(...open.map(({ limit }) => limit.to)),
    until: ms,
    provedTo: undefined,
    isLast: true,
  };
  const slices =
    direction === 'before' ? slicesBackward([part], relation.chunkMs) : slicesForward(part, relation.chunkMs);
  for (const slice of slices) {
    open = open.filter(({ limit }) => limit.from < slice.to && slice.from < limit.to);
    if (open.length === 0) break;
    const params = new Params();
    const ids = params.add(array(open.map(({ id }) => int4(id))));
    const rows = await session.rows(relation.selectNearest(slice, ids, direction), params);
    const missing = new Set(open.map(({ id }) => id));
    for (const [id, at] of rows) {
      const seriesId = Number(id);
      const row = { seriesId, ms: Number(at) };
      const { limit } = open.find((one) => one.id === seriesId)!;
      // One outside its limit is as far as the series goes.
      missing.delete(seriesId);
      if (limit.from <= row.ms && row.ms < limit.to) found.push(row);
    }
    open = open.filter(({ id }) => missing.has(id));
  }
  return found;
}

const seriesOf = ({ relation, series, snapshot }: PlanContext): number[] => {
  if (!relation.isOneLine) return series.map(({ id }) => id);
  return snapshot.seriesId === undefined ? [] : [snapshot.seriesId];
};

export function runsOf({ coverage, relation, request, series }: PlanContext, seriesId: number): SourceRuns['runs'] {
  const [only] = coverage.sources;
  if (relation.isOneLine) return only?.runs ?? [];
  const place = request.dataset.aligned.seriesKey.indexOf('source_id');
  const sourceId = series.find(({ id }) => id === seriesId)?.key[place];
  return coverage.sources.find((source) => source.sourceId === sourceId)?.runs ?? [];
}
