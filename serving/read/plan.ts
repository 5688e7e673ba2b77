/** Which statements answer a request, by its window. */
import { int2, Params } from '../db/params.ts';
import { boundsOfFilters, inOrder, type LiveContext, type Plan } from './context.ts';
import { countOf } from './counted.ts';
import { boundsOf, within } from './coverage.ts';
import { gapsWithin } from './gaps.ts';
import { planKlines } from './klines/plan.ts';
import { planLatest } from './latest.ts';
import { planRandom } from './random.ts';
import { withCarriedIn } from './states.ts';

export async function planRead(live: LiveContext): Promise<Plan> {
  const { klineMs } = live.request;
  if (klineMs !== undefined) return await planKlines(live, klineMs);
  const context = await narrowed(live);
  const { request, coverage, parts } = context;
  const { window } = request;
  if (window.kind === 'latest') return await planLatest(context, window.rows);
  const gaps = gapsWithin(coverage, boundsOf(coverage, window));
  if (window.kind === 'random') return { gaps, parts, ...(await planRandom(context, window.rows, window.seed)) };
  return { gaps, parts, carried: context.carried, statements: inOrder(context), count: await countOf(context) };
}

/** The context with what its window and filters say of where to look. */
export async function narrowed(live: LiveContext): Promise<LiveContext> {
  return await narrowByIdentity(await withCarriedIn(live));
}

/**
 * Ids have no index of their own: rows are kept by time. Where no two partitions share one, the partitions' ranges of
 * ids, or of heights, say which to search, and a row is found in milliseconds instead of by a scan of the history.
 */
async function narrowByIdentity(context: LiveContext): Promise<LiveContext> {
  const { request, session, searched } = context;
  const { dataset } = request;
  if (request.mode !== 'native' || !dataset.offset.unique) return context;
  const { scope, identity } = dataset.native;
  const [column, ranges] = scope.kind === 'column' ? [scope.column, 'span'] : [identity[0], 'offsets'];
  const ids = boundsOfFilters(request, (field) => field.columns.length === 1 && field.sql === `t.${column}`);
  if (!Number.isFinite(ids.from) && !Number.isFinite(ids.to)) return context;
  if (ids.from >= ids.to) return { ...context, searched: [] };
  const bound = (id: number) => (Number.isFinite(id) ? String(id) : 'null');
  const params = new Params();
  const [[from, to]] = await session.rows(
    `select min(from_ms), max(to_ms) from partitions where dataset_id = ${params.add(int2(dataset.number))}
     and state = 'proved' and ${ranges} && int8range(${bound(ids.from)}, ${bound(ids.to)})`,
    params,
  );
  if (from === null) return { ...context, searched: [] };
  return { ...context, searched: within(searched, { from: Number(from), to: Number(to) }) };
}
