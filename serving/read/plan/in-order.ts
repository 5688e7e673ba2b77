/** The statements of all rows of what is searched, slice by slice, each in the way that is fastest for it. */
import { Params } from '../../db/pg-messages.ts';
import { withBoundaryRows } from './boundary-rows.ts';
import type { CountedStatement, LiveContext } from './context.ts';
import { countedSlices } from './counted.ts';
import { withGranules } from './granules.ts';
import { sectionsOf } from './sections.ts';
import { slicesOf } from './slices.ts';
import { maySort, SORTED_CHUNKS, sortedBy } from './sorted.ts';

/** @param firstKey of the first row: earlier ones may have its millisecond */
export async function* inOrder(context: LiveContext, firstKey?: readonly string[]): AsyncGenerator<CountedStatement> {
  const { relation, searched } = context;
  const maybeSorted = maySort(context);
  const slices = maybeSorted
    ? slicesOf(searched, relation.chunkMs, SORTED_CHUNKS)
    : await countedSlices(context, searched);
  let key = firstKey;
  for await (const slice of withGranules(context, withBoundaryRows(context, slices))) {
    const params = new Params();
    if (key) {
      // Without the rows that it leaves out, its count is not that of the slice.
      yield { text: relation.select(slice, params, relation.fromKey(key, params)), params: params.list };
      key = undefined;
      continue;
    }
    const sorted = maybeSorted ? await sortedBy(context, slice) : undefined;
    const text = relation.select(slice, params);
    const more = sorted ? { sorted } : { sections: sectionsOf(context, slice) };
    yield { text, params: params.list, count: slice.count, ...more };
  }
}
