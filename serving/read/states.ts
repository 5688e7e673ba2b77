/** Windows of states: a window holds every row that is valid in it, so it begins with rows of before it. */
import { type LiveContext, withParts } from './context.ts';
import { boundsOf, lastValid, type Run } from './coverage.ts';
import { emptyPart, nearest, runsOf } from './edges.ts';

const SECOND_MS = 1000;

/** The context with the rows that are carried into its window. */
export async function withCarriedIn(context: LiveContext): Promise<LiveContext> {
  const { request, coverage, relation, startMs: start } = context;
  if (!relation.isState || start === undefined) return context;
  // Past the validity of every row, as far as the last year that the database knows, nothing holds.
  const holds = ({ to, rowsTo }: Run) => start < Math.max(to, rowsTo + SECOND_MS);
  if (!coverage.sources.some(({ runs }) => runs.some(holds))) return context;
  // With the first instant of the window: a row of that instant leaves nothing to be carried in.
  const end = start + 1;
  const found = await nearest(context, 'before', end, (runs) => {
    const run = runs.find(({ from, to }) => from < start && start < to);
    // Past what is proved through, a row is valid for its second.
    return { from: run?.from ?? start - SECOND_MS, to: end };
  });
  const carried = found.filter(({ seriesId, ms }) => ms < start && lastValid(runsOf(context, seriesId), ms) > start);
  if (relation.isOneLine) {
    const [row] = carried;
    return row ? withParts(context, { ...boundsOf(coverage, request.window), from: row.ms }) : context;
  }
  if (carried.length === 0 || context.parts.length > 0) return { ...context, carried };
  // Nothing was observed in the window, and yet something holds.
  return { ...context, carried, parts: [emptyPart(start)] };
}
