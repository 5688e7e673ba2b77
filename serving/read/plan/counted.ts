/**
 * Checks reads against the proved row counts. A read without filters that covers whole partitions knows how many rows it must
 * find; a difference means that stored rows were lost or added since the proof.
 */
import { DAY_MS } from '../../../shared/dates.ts';
import { scopeJoinSql } from '../../../shared/proof/recount.ts';
import { lengthOf, type Range } from '../../../shared/ranges.ts';
import { ALIGNED_TABLE } from '../../../shared/registry/aligned-storage.ts';
import { nativeRows } from '../../../shared/registry/instruments.ts';
import { int2, int8, Params } from '../../db/pg-messages.ts';
import { LostRows, type Part, type RowCount, type Slice } from '../read-model.ts';
import type { FileDay } from '../snapshot/file-days.ts';
import { boundsOf } from '../snapshot/proved-runs.ts';
import type { LiveContext, PlanContext } from './context.ts';
import { MAX_CHUNKS, slicesOf } from './slices.ts';

/** A proved partition that the read covers completely. */
export interface CountedPartition extends Range {
  readonly key: string;
  readonly rows: number;
}

/** Partitions with more rows than this are read by several statements, so that a difference points at few partitions. */
const MAX_COUNTED_ROWS = 100_000;

/** @throws LostRows when `found` differs from the proved count. */
export function checkCount(dataset: string, count: RowCount | undefined, found: number): void {
  if (!count || found === count.rows || (count.isMinimum && found > count.rows)) return;
  const least = count.isMinimum ? 'at least ' : '';
  throw new LostRows(`${dataset}: ${found} rows were found, but ${least}${count.rows} are proved`, count);
}

const isUnfiltered = ({ request }: PlanContext) => request.filters.length === 0 && request.asOfMs === undefined;

/** The proved file days that overlap the range, ascending. */
export const fileDays = ({ session, snapshot }: LiveContext, range: Range): Promise<readonly FileDay[]> =>
  snapshot.days.overlapping(range, (statement) => session.found(statement));

/** Slices of the parts, cut so that a slice of whole file days knows its row count. */
export async function countedSlices(context: LiveContext, parts: readonly Part[]): Promise<Iterable<Slice>> {
  const { relation } = context;
  const partitions = await wholeFileDays(context, parts);
  return partitions.length === 0
    ? slicesOf(parts, relation.chunkMs)
    : cutAtPartitions(parts, partitions, relation.chunkMs);
}

/** The proved file days within the parts, ascending. `countOfWindow` counts partitions of other kinds. */
export async function wholeFileDays(context: LiveContext, parts: readonly Part[]): Promise<CountedPartition[]> {
  const { request, coverage } = context;
  const long = parts.filter((part) => part.to - part.from >= DAY_MS);
  if (coverage.kind !== 'file_day' || !isUnfiltered(context) || long.length === 0) return [];
  const range = { from: long[0].from, to: long[long.length - 1].to };
  return (await fileDays(context, range)).flatMap(({ key, from, to, rows: native, alignedRows }) => {
    const rows = request.mode === 'native' ? native : alignedRows;
    return rows === undefined || from < range.from || to > range.to ? [] : [{ key, from, to, rows }];
  });
}

/** Cuts the parts at whole partitions, which carry their counts. */
function* cutAtPartitions(
  parts: readonly Part[],
  partitions: readonly CountedPartition[],
  chunkMs: number,
): Generator<Slice> {
  let next = 0;
  for (const part of parts) {
    let at = part.from;
    const plain = function* (to: number) {
      for (const slice of slicesOf([{ ...part, from: at, to }], chunkMs)) yield { ...slice, part };
    };
    while (next < partitions.length && partitions[next].from < part.from) next++;
    while (next < partitions.length && partitions[next].to <= part.to) {
      const group = groupFrom(partitions, next, part.to, chunkMs);
      next += group.length;
      const window = { from: group[0].from, to: group[group.length - 1].to };
      yield* plain(window.from);
      const rows = group.reduce((sum, partition) => sum + partition.rows, 0);
      yield { ...window, part, count: { rows, window, partitions: group.map(({ key }) => key) } };
      at = window.to;
    }
    yield* plain(part.to);
  }
}

/** A run of partitions without a gap that one statement can read. */
function groupFrom(
  partitions: readonly CountedPartition[],
  first: number,
  end: number,
  chunkMs: number,
): CountedPartition[] {
  const group = [partitions[first]];
  const last = (Math.floor(partitions[first].from / chunkMs) + MAX_CHUNKS) * chunkMs;
  let { rows, to } = partitions[first];
  for (const partition of partitions.slice(first + 1, first + 1 + MAX_CHUNKS)) {
    rows += partition.rows;
    if (partition.from !== to || partition.to > Math.min(end, last) || rows > MAX_COUNTED_ROWS) break;
    group.push(partition);
    to = partition.to;
  }
  return group;
}

/** The number of rows that the file days within the parts must yield together. */
export async function countOfFileDays(context: LiveContext, parts: readonly Part[]): Promise<RowCount | undefined> {
  return countWithin(await wholeFileDays(context, parts), parts);
}

/** The number of rows that those of the partitions yield together that lie within the parts. */
export function countWithin(all: readonly CountedPartition[], parts: readonly Range[]): RowCount | undefined {
  const partitions = partitionsWithin(all, parts);
  if (partitions.length === 0) return undefined;
  return {
    rows: partitions.reduce((sum, { rows }) => sum + rows, 0),
    isMinimum: lengthOf(partitions) < lengthOf(parts),
    window: { from: partitions[0].from, to: partitions[partitions.length - 1].to },
    ...(partitions.length === 1 && { partitions: [partitions[0].key] }),
  };
}

/** The partitions that lie within the parts. Both ascend: five years are 1,826 partitions, and a read has many slices. */
function partitionsWithin(all: readonly CountedPartition[], parts: readonly Range[]): CountedPartition[] {
  const found: CountedPartition[] = [];
  let next = 0;
  for (const { from, to } of parts) {
    next = firstFrom(all, from, next);
    while (next < all.length && all[next].to <= to) found.push(all[next++]);
  }
  return found;
}

/** The position of the first partition from `low` on that begins at this time or later. */
function firstFrom(all: readonly CountedPartition[], from: number, low: number): number {
  let high = all.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (all[middle].from < from) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Native rows of partitions that are not file days: a column names the partition of each row. */
const isCountedByPartition = (context: LiveContext) =>
  context.request.mode === 'native' &&
  !context.relation.isSingleSeries &&
  isUnfiltered(context) &&
  context.parts.length > 0;

/**
 * The number of native rows that a window must hold where a column names the partition of each row: heights, snapshots,
 * captures and vintages overlap in time. A partition that crosses a border of the window may add uncounted rows.
 */
export async function countOfWindow(context: LiveContext): Promise<RowCount | undefined> {
  const { request, coverage } = context;
  if (!isCountedByPartition(context) || !coverage.extent) return undefined;
  const { from, to } = boundsOf(coverage, request.window);
  return await provedRows(context, { from, to });
}

/**
 * The number of rows of the proved partitions in a window; a partition that crosses a border may add rows.
 * @param unitMs each row is placed at the start of such a stretch of time
 */
async function provedRows({ session, request }: LiveContext, window: Range, unitMs = 1): Promise<RowCount> {
  const params = new Params();
  const [first, end] = [window.from, window.to].map((ms) => params.add(int8(Math.ceil(ms / unitMs) * unitMs)));
  const [from, to] = [params.add(int8(window.from)), params.add(int8(window.to))];
  const isInside = `from_ms >= ${first} and to_ms <= ${to}`;
  const [[rows, straddling]] = await session.rows(
    `select coalesce(sum(rows) filter (where ${isInside}), 0)::int8, count(*) filter (where not (${isInside}))
     from partitions where dataset_id = ${params.add(int2(request.dataset.number))} and state = 'proved' and rows > 0
       and from_ms < ${end} and to_ms > ${from}`,
    params,
  );
  return { rows: Number(rows), isMinimum: straddling !== '0', window };
}

/**
 * Compares the events that the aligned rows of a window state with those that are proved, before the first row of the read. A
 * second may hold events of several heights, so their rows have no count, but the sum of `countField` has.
 * @throws LostRows
 */
export async function checkEvents(context: LiveContext, { from, to }: Range): Promise<void> {
  const { session, request, relation, coverage, parts } = context;
  const { dataset, mode } = request;
  const { countField } = dataset.aligned;
  if (mode === 'native' || !countField || coverage.kind === 'file_day') return;
  if (!isUnfiltered(context) || parts.length === 0) return;
  const [[found]] = await session.rows(
    `select coalesce(sum(t."${countField}"), 0)::int8 from ${ALIGNED_TABLE} t
     where t.dataset_id = ${dataset.number} and ${relation.within(from, to)}`,
    new Params(),
  );
  checkCount(dataset.key, await provedRows(context, { from, to }, 1000), Number(found));
}

/** The count includes rows of partitions that span the start only up to this many rows per read. */
const MAX_STRADDLING_ROWS = 10_000;

/**
 * The number of rows from the oldest of the newest `n` rows on. When a later row is lost, an earlier one takes its place, so
 * the read itself always finds `n`. Partitions that begin before that row and end after it are counted up to the row, unless
 * they are long: then the rows of partitions that begin later are a lower bound.
 */
export async function countOfNewest(
  context: LiveContext,
  start: { readonly key: readonly string[]; readonly ms: number },
): Promise<RowCount | undefined> {
  const { session, request, relation, coverage } = context;
  if (!isCountedByPartition(context) || !coverage.extent) return undefined;
  const { dataset } = request;
  const window = { from: start.ms, to: coverage.extent.to };
  const params = new Params();
  const [id, at] = [params.add(int2(dataset.number)), params.add(int8(start.ms))];
  const of = `from partitions p where p.dataset_id = ${id} and p.state = 'proved' and p.to_ms > ${at}`;
  const [[later, straddling, fromMs]] = await session.rows(
    `select coalesce(sum(rows) filter (where from_ms > ${at}), 0)::int8,
       coalesce(sum(rows) filter (where from_ms <= ${at}), 0)::int8, min(from_ms) filter (where from_ms <= ${at}) ${of}`,
    params,
  );
  // The oldest row itself lies in none of the partitions that begin later.
  if (Number(straddling) > MAX_STRADDLING_ROWS) return { rows: Number(later) + 1, isMinimum: true, window };
  if (fromMs === null) return { rows: Number(later), window };
  const countParams = new Params();
  const [number, last] = [countParams.add(int2(dataset.number)), countParams.add(int8(start.ms))];
  const [[before]] = await session.rows(
    `select count(*) from partitions p join ${nativeRows(dataset)} t on ${scopeJoinSql(dataset)}
     where p.dataset_id = ${number} and p.state = 'proved' and p.from_ms <= ${last} and p.to_ms > ${last}
       and ${relation.within(Number(fromMs), start.ms + 1)} and not (${relation.fromKey(start.key, countParams)})`,
    countParams,
  );
  return { rows: Number(later) + Number(straddling) - Number(before), window };
}
