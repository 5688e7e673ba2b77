/** Plans the statements that answer a request, by its window. */
import { int2, Params } from '../../db/pg-messages.ts';
import { planKlines } from '../klines/klines.ts';
import { slicesOf, withBoundaryRows, withCarriedIn } from '../plan/boundary-rows.ts';
import { boundsOfFilters, type CountedStatement, type LiveContext, type ReadPlan } from '../plan/context.ts';
import { checkEvents, countedSlices, countOfWindow } from '../plan/counted.ts';
import { planLatest } from '../plan/latest.ts';
import { ruleOut } from '../plan/ruled-out.ts';
import { stretchable } from '../plan/stretches.ts';
import { readPartitions, rowsOf } from '../sampling/draw.ts';
import { sampleDrawn } from '../sampling/drawn.ts';
import { sampleByHash, sampleNative, selectEach } from '../sampling/native.ts';
import { sampleAligned } from '../sampling/seconds.ts';
import { boundsOf, gapsWithin, within } from '../snapshot/proved-runs.ts';

/** All rows of the window, slice by slice. */
export async function* inOrder(context: LiveContext): AsyncGenerator<CountedStatement> {
  const { relation, searched } = context;
  for await (const slice of withBoundaryRows(context, await countedSlices(context, searched))) {
    const params = new Params();
    const text = relation.select(slice, params);
    yield { text, params: params.list, count: slice.count, stretchable: stretchable(context, slice) };
  }
}

type SamplePlan = Pick<ReadPlan, 'statements' | 'expectedRows' | 'count'>;

/** A look-up costs about a millisecond per row, and its rank is kept in memory. Beyond this many rows a scan is as good. */
const MAX_LOOKUPS = 100_000;

/** A uniform sample without replacement, in the order of the rows: by look-ups, or by scans where look-ups would take too long. */
async function planRandom(context: LiveContext, wanted: number, seed: number): Promise<SamplePlan> {
  const { request, coverage } = context;
  if (wanted > MAX_LOOKUPS) return await byHash(context, wanted, seed);
  if (request.filters.length === 0 && coverage.kind === 'file_day') return await ofFileDays(context, wanted, seed);
  const drawn = await sampleDrawn(context, wanted, seed);
  if (drawn === 'all') return await all(context);
  return drawn ? { statements: drawn, expectedRows: wanted } : await byHash(context, wanted, seed);
}

/** For partitions that are disjoint stretches of time with known row counts: there a rank leads to its row. */
async function ofFileDays(context: LiveContext, wanted: number, seed: number): Promise<SamplePlan> {
  const partitions = await readPartitions(context);
  const total = rowsOf(partitions);
  if (wanted >= total) return { statements: inOrder(context), expectedRows: total };
  const sample = context.request.mode === 'native' ? sampleNative : sampleAligned;
  return { statements: await sample(context, partitions, wanted, seed), expectedRows: wanted };
}

async function all(context: LiveContext): Promise<SamplePlan> {
  await checkEvents(context, boundsOf(context.coverage, context.request.window));
  return { statements: inOrder(context), count: await countOfWindow(context) };
}

async function byHash(context: LiveContext, wanted: number, seed: number): Promise<SamplePlan> {
  const { session, relation: rows, searched, request } = context;
  const slices = () => withBoundaryRows(context, slicesOf(searched, rows.chunkMs));
  const found = await sampleByHash({ session, rows, slices, seed }, wanted);
  if ('sample' in found) return { statements: found.sample };
  // Without a filter the read checks all counts, also those of slices in which the sampler found no row.
  return request.filters.length === 0 ? await all(context) : { statements: selectEach(rows, found.all) };
}

export async function planRead(live: LiveContext): Promise<ReadPlan> {
  const { klineMs } = live.request;
  if (klineMs !== undefined) return await planKlines(live, klineMs);
  const whole = await narrowed(live);
  const left = whole.request.filters.length > 0 ? await ruleOut(whole) : undefined;
  const plan = await planWindow(left ? { ...whole, searched: left.parts } : whole);
  return { ...plan, searched: left?.searched, left: left?.parts };
}

async function planWindow(context: LiveContext): Promise<ReadPlan> {
  const { request, coverage, parts } = context;
  const { window } = request;
  if (window.kind === 'latest') return await planLatest(context, window.rows);
  const gaps = gapsWithin(coverage, boundsOf(coverage, window));
  if (window.kind === 'random') return { gaps, parts, ...(await planRandom(context, window.rows, window.seed)) };
  return { gaps, parts, carried: context.carried, ...(await all(context)) };
}

/** The context, narrowed by what its window and filters imply. */
export async function narrowed(live: LiveContext): Promise<LiveContext> {
  return await narrowByIdentity(await withCarriedIn(live));
}

/**
 * Ids have no index of their own, since rows are stored by time. Where no two partitions share an id, the partitions' ranges
 * of ids or heights tell which partitions to search. The read then finds a row in milliseconds, without a scan.
 */
async function narrowByIdentity(context: LiveContext): Promise<LiveContext> {
  const { request, session, searched } = context;
  const { dataset } = request;
  if (request.mode !== 'native' || !dataset.offset.unique) return context;
  const { scope, identity } = dataset.native;
  const [column, ranges] = scope.kind === 'column' ? [scope.column, 'span'] : [identity[0], 'offsets'];
  const ids = boundsOfFilters(request, (field) => field.column === column);
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
