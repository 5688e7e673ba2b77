/** What a plan for klines is made of, and the statements for all klines of some parts. */
import { Params } from '../../db/params.ts';
import type { CountedStatement, LiveContext, Plan } from '../context.ts';
import { countWithin, wholeFileDays } from '../counted.ts';
import type { Part } from '../coverage.ts';
import type { KlineRelation } from './relation.ts';
import { countedKlineSlices, type Grid, type KlineSlice } from './slices.ts';

export interface KlineContext extends LiveContext {
  readonly klines: KlineRelation;
  readonly grid: Grid;
}

/** All klines of the parts, held to the counts of the whole file days that they are made of. */
export async function klinesInOrder(
  context: KlineContext,
  parts: readonly Part[],
): Promise<Pick<Plan, 'statements' | 'count'>> {
  const partitions = await wholeFileDays(context, parts);
  const slices = countedKlineSlices(parts, partitions, context.grid);
  // Together once more: of days that a bucket cuts, none of the slices knows all rows.
  return { statements: statementsOf(context, slices), count: countWithin(partitions, parts) };
}

function* statementsOf({ klines }: KlineContext, slices: Iterable<KlineSlice>): Generator<CountedStatement> {
  for (const slice of slices) {
    const params = new Params();
    yield { text: klines.select(slice, params), params: params.list, count: slice.count };
  }
}
