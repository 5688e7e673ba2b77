/** Plans windows of the last n rows in the dataset's order. The rows are returned ascending. */

import type { Statement } from '../../db/pg-messages.ts';
import { Params } from '../../db/pg-messages.ts';
import type { FirstRow, Part, Rows, Slice } from '../read-model.ts';
import { gapsSince, within } from '../snapshot/proved-runs.ts';
import type { Session } from '../snapshot/session.ts';
import { withBoundaryRows } from './boundary-rows.ts';
import type { LiveContext, PlanContext, ReadPlan } from './context.ts';
import { checkEvents, countOfNewest, countOfWindow } from './counted.ts';
import { FoundRows } from './found-rows.ts';
import { withGranules } from './granules.ts';
import { inOrder } from './in-order.ts';
import { type RankedSlice, rankedSlice } from './ranked-start.ts';
import { slicesBackward } from './slices.ts';

/** Up to this many rows, the database sorts the rows from the end, or the search keeps them. More are read forward from where they start. */
const SORTED_ROWS = 10_000;

export async function planLatest(context: LiveContext, wanted: number): Promise<ReadPlan> {
  // One statement does not tell beforehand where its rows begin.
  const newest = context.request.silences ? undefined : planNewest(context, wanted);
  if (newest) return newest;
  const { parts, searched, coverage, session, relation } = context;
  const ranked = wanted > SORTED_ROWS ? await rankedSlice(context, wanted) : undefined;
  if (ranked) return await planRanked(context, wanted, ranked);
  const slices = withGranules(context, withBoundaryRows(context, slicesBackward(searched, relation.chunkMs)), true);
  const isFiltered = context.request.filters.length > 0;
  // Where the end of a row's validity is computed, the search alone needs none, and the rows after its start are few.
  if (isFiltered && wanted <= SORTED_ROWS && relation.validity !== 'computed') {
    return await planFound(context, slices, wanted);
  }
  const { start, held } = await findStart(session, relation, slices, wanted);
  // Without a filter there must be rows elsewhere too: the read covers them, and notices lost ones.
  const partsWithRows = isFiltered ? partsOfSlices(held) : searched;
  const sinceStart = { from: start?.ms ?? Number.NEGATIVE_INFINITY, to: Number.POSITIVE_INFINITY };
  const { extent } = coverage;
  if (extent) await checkEvents(context, { from: start?.ms ?? extent.from, to: extent.to });
  return {
    gaps: gapsSince(coverage, sinceStart.from),
    parts: within(parts, sinceStart),
    statements: inOrder({ ...context, searched: within(partsWithRows, sinceStart) }, start?.key),
    count: start ? await countOfNewest(context, start) : await countOfWindow(context),
    since: start,
  };
}

/** The plan where row counts lead to the slice that the rows begin in. Counts say how many rows the read must find. */
async function planRanked(context: LiveContext, wanted: number, { slice, rowsAfter }: RankedSlice): Promise<ReadPlan> {
  const { parts, searched, coverage, session, relation } = context;
  const { start } = await findStart(session, relation, [slice], wanted - rowsAfter);
  const sinceStart = { from: start?.ms ?? slice.from, to: Number.POSITIVE_INFINITY };
  return {
    gaps: gapsSince(coverage, sinceStart.from),
    parts: within(parts, sinceStart),
    statements: inOrder({ ...context, searched: within(searched, sinceStart) }, start?.key),
    expectedRows: wanted,
    since: start,
  };
}

/** The plan where the search for the rows also reads them. Without filters, a read covers whole partitions and compares their counts. */
async function planFound(context: LiveContext, slices: AsyncIterable<Slice>, wanted: number): Promise<ReadPlan> {
  const { parts, coverage, session, relation } = context;
  const kept = new FoundRows(relation.key.length + 1);
  const held: Slice[] = [];
  for await (const slice of slices) {
    const params = new Params();
    const before = kept.rows;
    const text = relation.selectNewest(slice, params, wanted - before);
    await session.stream({ text, params: params.list }, [...kept.oids, ...relation.oids], kept);
    if (kept.rows > before) held.push(slice);
    if (kept.rows === wanted) break;
  }
  const start = kept.rows === wanted ? kept.oldest : undefined;
  const sinceStart = { from: start?.ms ?? Number.NEGATIVE_INFINITY, to: Number.POSITIVE_INFINITY };
  const statements = kept.areAll
    ? [kept]
    : inOrder({ ...context, searched: within(partsOfSlices(held), sinceStart) }, start?.key);
  return { gaps: gapsSince(coverage, sinceStart.from), parts: within(parts, sinceStart), statements, since: start };
}

export type NewestPlan = ReadPlan & { readonly statements: readonly [Statement] };

/** One statement, where the row counts of the newest partitions tell how far back it has to read. */
export function planNewest(context: PlanContext, wanted: number): NewestPlan | undefined {
  const { parts, relation } = context;
  const newest = parts.at(-1);
  const from = newest && startByTail(context, newest, wanted);
  if (from === undefined) return undefined;
  const part = { ...newest!, from };
  const params = new Params();
  const text = relation.selectLatest({ from, to: part.to, part }, params, wanted);
  return { gaps: [], parts: [part], statements: [{ text, params: params.list, prepared: true }], expectedRows: wanted };
}

/**
 * Without filters, the count of the newest partition with rows tells where the rows start, if no gap lies between. For rows
 * beyond that partition the full plan checks each whole partition against its count. Only for partitions that are disjoint
 * stretches of time.
 */
function startByTail({ request, snapshot }: PlanContext, newest: Part, wanted: number): number | undefined {
  if (request.filters.length > 0 || request.dataset.partition.kind !== 'file_day' || wanted > SORTED_ROWS)
    return undefined;
  const last = snapshot.tail.find(({ rows }) => rows > 0);
  return last && last.fromMs >= newest.from && last.rows >= wanted ? last.fromMs : undefined;
}

/** The parts of the slices (newest first), ascending; adjacent slices of a part are merged. */
function partsOfSlices(slices: readonly Slice[]): Part[] {
  const merged: Part[] = [];
  for (const { from, to, part } of slices.toReversed()) {
    const last = merged.at(-1);
    const adjoins = last?.to === from && last.until === part.until;
    if (adjoins && !part.ranges && !last.ranges) merged[merged.length - 1] = { ...last, to };
    else merged.push({ ...part, from, to });
  }
  return merged;
}

/**
 * Finds the n-th row from the end, its key and time; undefined when there are fewer rows. It also returns the slices that hold
 * rows, newest first, since the others need not be read again. `slices` must come newest first.
 */
export async function findStart<S>(
  session: Session,
  rows: Rows<S>,
  slices: Iterable<S> | AsyncIterable<S>,
  wanted: number,
): Promise<{ readonly start?: FirstRow; readonly held: readonly S[] }> {
  let missing = wanted;
  const held: S[] = [];
  for await (const slice of slices) {
    const params = new Params();
    const newestFirst = rows.order(' desc', slice);
    const numbered = `select ${[...rows.key, `(${rows.timeMs})::text`, `row_number() over (order by ${newestFirst})`]
      .map((sql, index) => `${sql} as c${index}`)
      .join(', ')} ${rows.from(slice, params)} order by ${newestFirst} limit ${missing}`;
    const last = rows.key.length + 1;
    const text = `select * from (${numbered}) n order by c${last} desc limit 1`;
    const [row] = await session.found({ text, params: params.list, prepared: rows.isRecurring?.(slice) });
    if (!row) continue;
    held.push(slice);
    missing -= Number(row[last]);
    if (missing === 0) return { start: { key: row.slice(0, -2) as string[], ms: Number(row[last - 1]) }, held };
  }
  return { held };
}
