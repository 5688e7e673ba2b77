/** A uniform sample without replacement, in the order of the rows: by look-ups, and by scans where these would not end. */
import { inOrder, type LiveContext, type Plan } from './context.ts';
import { withEdges } from './edges.ts';
import { countOf, readPartitions } from './sample.ts';
import { sampleAligned } from './sample-aligned.ts';
import { sampleByHash } from './sample-by-hash.ts';
import { sampleDrawn } from './sample-drawn.ts';
import { sampleNative } from './sample-native.ts';
import { slicesOf } from './slices.ts';

type Sample = Pick<Plan, 'statements' | 'expectedRows'>;

/** A look-up costs a millisecond or so a row, and its rank is kept in memory; past this many rows scanning is as good. */
const MAX_LOOKUPS = 100_000;

export async function planRandom(context: LiveContext, wanted: number, seed: number): Promise<Sample> {
  const { request, coverage } = context;
  if (wanted > MAX_LOOKUPS) return { statements: await byHash(context, wanted, seed) };
  if (request.filters.length === 0 && coverage.kind === 'file_day') return await ofFileDays(context, wanted, seed);
  const drawn = await sampleDrawn(context, wanted, seed);
  if (drawn === 'all') return { statements: inOrder(context) };
  return { statements: drawn ?? (await byHash(context, wanted, seed)), ...(drawn && { expectedRows: wanted }) };
}

/** Partitions that are stretches of time of their own, each with its number of rows: there a rank leads to the row. */
async function ofFileDays(context: LiveContext, wanted: number, seed: number): Promise<Sample> {
  const partitions = await readPartitions(context);
  const total = countOf(partitions);
  if (wanted >= total) return { statements: inOrder(context), expectedRows: total };
  const sample = context.request.mode === 'native' ? sampleNative : sampleAligned;
  return { statements: await sample(context, partitions, wanted, seed), expectedRows: wanted };
}

async function byHash(context: LiveContext, wanted: number, seed: number): Promise<Plan['statements']> {
  const { session, relation: rows, searched } = context;
  const slices = () => withEdges(context, slicesOf(searched, rows.chunkMs));
  return (await sampleByHash({ session, rows, slices, seed }, wanted)) ?? inOrder(context);
}
