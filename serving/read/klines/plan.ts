/** Which statements answer a request for klines. Windows are of time or of klines, never of the rows they are made of. */
import { KLINE_DATETIME } from '../../../shared/registry/klines.ts';
import { boundsOfFilters, type LiveContext, type Plan } from '../context.ts';
import { boundsOf, within } from '../coverage.ts';
import { gapsSince, gapsWithin } from '../gaps.ts';
import { findStart } from '../latest.ts';
import { type KlineContext, klinesInOrder } from './context.ts';
import { KlineRelation } from './relation.ts';
import { sampleKlines } from './sample.ts';
import { ceilTo, klineSlicesBackward } from './slices.ts';

export async function planKlines(live: LiveContext, sizeMs: number): Promise<Plan> {
  const { request, coverage, parts } = live;
  const klines = new KlineRelation(live, sizeMs);
  // Filters on the stamp leave whole buckets.
  const stamps = boundsOfFilters(request, (field) => field.name === KLINE_DATETIME);
  const searched = within(parts, { from: ceilTo(sizeMs, stamps.from), to: ceilTo(sizeMs, stamps.to) });
  const context: KlineContext = { ...live, searched, klines, grid: { sizeMs, chunkMs: klines.chunkMs } };
  const { window } = request;
  if (window.kind === 'latest') return await planLatest(context, window.rows);
  const gaps = gapsWithin(coverage, boundsOf(coverage, window));
  const klinesOfWindow =
    window.kind === 'random'
      ? await sampleKlines(context, window.rows, window.seed)
      : await klinesInOrder(context, context.searched);
  return { gaps, parts, ...klinesOfWindow };
}

async function planLatest(context: KlineContext, wanted: number): Promise<Plan> {
  const { parts, searched, klines, grid, session, coverage, request } = context;
  const { start, held } = await findStart(session, klines, klineSlicesBackward(searched, grid, wanted), wanted);
  const places = request.filters.length > 0 ? held.toReversed().flatMap((slice) => slice.parts) : searched;
  const sinceStart = { from: start?.ms ?? Number.NEGATIVE_INFINITY, to: Number.POSITIVE_INFINITY };
  return {
    gaps: gapsSince(coverage, sinceStart.from),
    parts: within(parts, sinceStart),
    ...(await klinesInOrder(context, within(places, sinceStart))),
  };
}
