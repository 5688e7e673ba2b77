/** A uniform sample without replacement, in the order of the rows: by look-ups, and by scans where these would not end. */
import { inOrder, type LiveContext, type Plan } from './context.ts';
import { countOf as countOfWindow } from './counted.ts';
import { withEdges } from './edges.ts';
import { countOf, readPartitions } from './sample.ts';
import { sampleAligned } from './sample-aligned.ts';
import { sampleByHash, selectEach } from './sample-by-hash.ts';
import { sampleDrawn } from './sample-drawn.ts';
import { sampleNative } from './sample-native.ts';
import { slicesOf } from './slices.ts';

type Sample = Pick<Plan, 'statements' | 'expectedRows' | 'count'>;

/** A look-up costs a millisecond or so a row, and its rank is kept in memory; past this many rows scanning is as good. */
const MAX_LOOKUPS = 100_000;

export async function planRandom(context: LiveContext, wanted: number, seed: number): Promise<Sample> {
  const { request, coverage } = context;
  if (wanted > MAX_LOOKUPS) return await byHash(context, wanted, seed);
  if (request.filters.length === 0 && coverage.kind === 'file_day') return await ofFileDays(context, wanted, seed);
  const drawn = await sampleDrawn(context, wanted, seed);
  if (drawn === 'all') return await all(context);
  return drawn ? { statements: drawn, expectedRows: wanted } : await byHash(context, wanted, seed);
}

/** Partitions that are stretches of time of their own, each with its number of rows: there a rank leads to the row. */
async function ofFileDays(context: LiveContext, wanted: number, seed: number): Promise<Sample> {
  const partitions = await readPartitions(context);
  const total = countOf(partitions);
  if (wanted >= total) return { statements: inOrder(context), expectedRows: total };
  const sample = context.request.mode === 'native' ? sampleNative : sampleAligned;
  return { statements: await sample(context, partitions, wanted, seed), expectedRows: wanted };
}

const all = async (context: LiveContext): Promise<Sample> => ({
  statements: inOrder(context),
  count: await countOfWindow(context),
});

async function byHash(context: LiveContext, wanted: number, seed: number): Promise<Sample> {
  const { session, relation: rows, searched, request } = context;
  const slices = () => withEdges(context, slicesOf(searched, rows.chunkMs));
  const found = await sampleByHash({ session, rows, slices, seed }, wanted);
  if ('sample' in found) return { statements: found.sample };
  // Without a filter all rows are held to their counts, also those of slices in which none was found.
  return request.filters.length === 0 ? await all(context) : { statements: selectEach(rows, found.all) };
}
