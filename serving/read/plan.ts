/** Which statements answer a request, by its window. */
import { int2, Params } from '../db/params.ts';
import { boundsOfFilters, inOrder, type LiveContext, type Plan } from './context.ts';
import { boundsOf, gapsWithin, within } from './coverage.ts';
import { planLatest } from './latest.ts';
import { planRandom } from './random.ts';

export async function planRead(live: LiveContext): Promise<Plan> {
  const context = await narrowByIdentity(live);
  const { request, snapshot, parts } = context;
  const { window } = request;
  if (window.kind === 'latest') return await planLatest(context, window.rows);
  const gaps = gapsWithin(snapshot.coverage, boundsOf(snapshot.coverage, window));
  if (window.kind === 'random') return { gaps, parts, ...(await planRandom(context, window.rows, window.seed)) };
  return { gaps, parts, statements: inOrder(context) };
}

/**
 * Ids have no index of their own: rows are kept by time. Where no two partitions share one, the partitions' id ranges
 * say which to search, and a trade is found by its id in milliseconds instead of by a scan of the history.
 */
async function narrowByIdentity(context: LiveContext): Promise<LiveContext> {
  const { request, session, searched } = context;
  const { dataset } = request;
  if (request.mode !== 'native' || !dataset.offset.unique) return context;
  const [column] = dataset.native.identity;
  const ids = boundsOfFilters(request, (field) => field.columns.length === 1 && field.sql === `t.${column}`);
  if (!Number.isFinite(ids.from) && !Number.isFinite(ids.to)) return context;
  if (ids.from >= ids.to) return { ...context, searched: [] };
  const bound = (id: number) => (Number.isFinite(id) ? String(id) : 'null');
  const params = new Params();
  const [[from, to]] = await session.rows(
    `select min(from_ms), max(to_ms) from partitions where dataset_id = ${params.add(int2(dataset.number))}
     and state = 'proved' and offsets && int8range(${bound(ids.from)}, ${bound(ids.to)})`,
    params,
  );
  if (from === null) return { ...context, searched: [] };
  return { ...context, searched: within(searched, { from: Number(from), to: Number(to) }) };
}
