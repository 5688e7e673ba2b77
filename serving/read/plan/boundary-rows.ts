/**
 * Per series the rows just outside a slice: the row that is still valid when the slice begins, and the row that ends the validity of the
 * last one. Either may lie far away, so the search starts near; the index finds each in microseconds.
 */
import { SECOND_MS } from '../../../shared/dates.ts';
import type { Range } from '../../../shared/ranges.ts';
import { array, int4, Params } from '../../db/pg-messages.ts';
import type { Part, SeriesRow, Slice } from '../read-model.ts';
import { boundsOf, lastValid, type ProvedRun, type SourceRuns } from '../snapshot/proved-runs.ts';
import { type LiveContext, type PlanContext, withParts } from './context.ts';
import { slicesBackward, slicesForward } from './slices.ts';

/** The slices; for a dataset of many series each comes with its boundary rows. */
export async function* withBoundaryRows(context: LiveContext, slices: Iterable<Slice>): AsyncGenerator<Slice> {
  const { relation, carried, endMs, coverage } = context;
  if (relation.isSingleSeries || !relation.isState) {
    yield* slices;
    return;
  }
  let rows = carried;
  const last = Math.min(endMs, coverage.extent?.to ?? endMs);
  for (const slice of slices) {
    const next = relation.validity === 'none' || slice.to >= last ? [] : await after(context, slice.to);
    yield { ...slice, boundary: { carried: rows, next } };
    rows = [];
  }
  // There was no slice to carry the rows: the window has none, or filters on time leave none of it.
  const [row] = rows;
  if (!row) return;
  const next = relation.validity === 'none' ? [] : await after(context, context.startMs!);
  yield { from: row.ms, to: row.ms, part: emptyPart(row.ms), boundary: { carried: rows, next } };
}

const emptyPart = (at: number): Part => ({ from: at, to: at, until: at, provedTo: undefined, isLast: true });

/** The first row of each series at or after a moment, as far as it can end the validity of the row before. */
function after(context: LiveContext, ms: number): Promise<SeriesRow[]> {
  return nearestRows(context, 'after', ms, (runs) => {
    const run = runs.find(({ from, to }) => from < ms && ms < to);
    return { from: ms, to: Math.min(run?.to ?? ms, context.endMs) };
  });
}

/** The row of each series nearest to a moment, within limits that depend on the runs of its source. */
async function nearestRows(
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
      // A row outside its limit ends the search of its series.
      missing.delete(seriesId);
      if (limit.from <= row.ms && row.ms < limit.to) found.push(row);
    }
    open = open.filter(({ id }) => missing.has(id));
  }
  return found;
}

const seriesOf = ({ relation, series, snapshot }: PlanContext): number[] => {
  if (!relation.isSingleSeries) return series.map(({ id }) => id);
  return snapshot.seriesId === undefined ? [] : [snapshot.seriesId];
};

export function runsOf({ coverage, relation, request, series }: PlanContext, seriesId: number): SourceRuns['runs'] {
  const [only] = coverage.sources;
  if (relation.isSingleSeries) return only?.runs ?? [];
  const sourceIndex = request.dataset.aligned.seriesKey.indexOf('source_id');
  const sourceId = series.find(({ id }) => id === seriesId)?.key[sourceIndex];
  return coverage.sources.find((source) => source.sourceId === sourceId)?.runs ?? [];
}

/** The context with the rows that are carried into its window: a window of states holds every row that is valid in it. */
export async function withCarriedIn(context: LiveContext): Promise<LiveContext> {
  const { request, coverage, relation, startMs: start } = context;
  if (!relation.isState || start === undefined) return context;
  // Nothing is valid past the validity of every row, as far as the last year that the database knows.
  const holds = ({ to, rowsTo }: ProvedRun) => start < Math.max(to, rowsTo + SECOND_MS);
  if (!coverage.sources.some(({ runs }) => runs.some(holds))) return context;
  // The search includes the window's first instant: a row of that instant leaves nothing to carry in.
  const end = start + 1;
  const found = await nearestRows(context, 'before', end, (runs) => {
    const run = runs.find(({ from, to }) => from < start && start < to);
    // Past the end of proved time, a row is valid for its second.
    return { from: run?.from ?? start - SECOND_MS, to: end };
  });
  const carried = found.filter(({ seriesId, ms }) => ms < start && lastValid(runsOf(context, seriesId), ms) > start);
  if (relation.isSingleSeries) {
    const [row] = carried;
    return row ? withParts(context, { ...boundsOf(coverage, request.window), from: row.ms }) : context;
  }
  if (carried.length === 0 || context.parts.length > 0) return { ...context, carried };
  // No row was observed in the window, but one is valid in it.
  return { ...context, carried, parts: [emptyPart(start)] };
}
