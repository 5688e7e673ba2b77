/** Plans the statements that answer a request, by its window. */
import { planKlines } from '../klines/klines.ts';
import { withBoundaryRows, withCarriedIn } from '../plan/boundary-rows.ts';
import { narrowByIdentity } from '../plan/by-identity.ts';
import type { LiveContext, ReadPlan } from '../plan/context.ts';
import { checkEvents, countOfWindow } from '../plan/counted.ts';
import { inOrder } from '../plan/in-order.ts';
import { planLatest } from '../plan/latest.ts';
import { ruleOut } from '../plan/ruled-out.ts';
import { mergedParts, slicesOf } from '../plan/slices.ts';
import { readPartitions, rowsOf } from '../sampling/draw.ts';
import { sampleDrawn } from '../sampling/drawn.ts';
import { sampleByHash, sampleNative, selectEach } from '../sampling/native.ts';
import { sampleAligned } from '../sampling/seconds.ts';
import { boundsOf, gapsWithin } from '../snapshot/proved-runs.ts';

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
  const plan = await planWindow(
    left
      ? {
          ...whole,
          searched: mergedParts(whole, left.parts, left.searched.rowsPerMs),
          rowsPerMs: left.searched.rowsPerMs,
        }
      : whole,
  );
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
