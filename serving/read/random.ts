/** A uniform sample without replacement, in the order of the rows. Without filters by look-ups, with them by scans. */
import { int8, Params } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import { inOrder, type LiveContext, type Plan, type PlanContext } from './context.ts';
import { readPartitions } from './sample.ts';
import { sampleAligned } from './sample-aligned.ts';
import { sampleNative } from './sample-native.ts';
import { slicesOf } from './slices.ts';

type Sample = Pick<Plan, 'statements' | 'expectedRows'>;

/** A look-up costs a millisecond or so a row, and its rank is kept in memory; past this many rows scanning is as good. */
const MAX_LOOKUPS = 100_000;

export async function planRandom(context: LiveContext, wanted: number, seed: number): Promise<Sample> {
  const { request } = context;
  // Ranks need partitions that are stretches of time of their own, each with its number of rows.
  if (request.filters.length > 0 || request.dataset.partition.kind !== 'file_day') {
    return await sampleByHash(context, wanted, seed);
  }
  const partitions = await readPartitions(context);
  const total = partitions.reduce((sum, partition) => sum + partition.rows, 0);
  if (wanted >= total) return { statements: inOrder(context), expectedRows: total };
  if (wanted > MAX_LOOKUPS) return await sampleByHash(context, wanted, seed);
  const sample = request.mode === 'native' ? sampleNative : sampleAligned;
  return { statements: await sample(context, partitions, wanted, seed), expectedRows: wanted };
}

/**
 * The rows with the n smallest hashes of (seed, identity). Memory stays flat for any n: a count of rows by the first
 * 16 bits of their hash says in which of the 65,536 classes the n-th smallest lies, and only that class is looked at.
 */
async function sampleByHash(context: LiveContext, wanted: number, seed: number): Promise<Sample> {
  const counts = new Map<number, number>();
  for await (const rows of bySlice(
    context,
    seed,
    (hash) => `select (${hash}) >> 48 as class, count(*)`,
    'group by 1',
  )) {
    for (const [key, count] of rows) counts.set(Number(key), (counts.get(Number(key)) ?? 0) + Number(count));
  }
  let before = 0;
  let found: number | undefined;
  for (const [key, count] of [...counts].sort(([a], [b]) => a - b)) {
    if (before + count >= wanted) {
      found = key;
      break;
    }
    before += count;
  }
  if (found === undefined) return { statements: inOrder(context) };
  const inClass: bigint[] = [];
  const ofClass = (hash: string) => `(${hash}) >> 48 = ${found}`;
  for await (const rows of bySlice(context, seed, (hash) => `select ${hash}`, '', ofClass)) {
    for (const [hash] of rows) inClass.push(BigInt(hash!));
  }
  inClass.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  const threshold = inClass[wanted - before - 1];
  return { statements: smallest(context, seed, threshold) };
}

/** The same small result of every slice. */
async function* bySlice(
  { session, relation, searched }: LiveContext,
  seed: number,
  select: (hash: string) => string,
  rest: string,
  where?: (hash: string) => string,
) {
  for (const slice of slicesOf(searched, relation.chunkMs)) {
    const params = new Params();
    const hash = relation.hash(params.add(int8(seed)));
    const text = `${select(hash)} ${relation.from(slice, params, { where: where?.(hash) })} ${rest}`;
    yield await session.rows(text, params);
  }
}

function* smallest({ relation, searched }: PlanContext, seed: number, threshold: bigint): Generator<Statement> {
  for (const slice of slicesOf(searched, relation.chunkMs)) {
    const params = new Params();
    const where = `${relation.hash(params.add(int8(seed)))} <= ${params.add(int8(threshold))}`;
    yield { text: relation.select(slice, params, where), params: params.list };
  }
}
