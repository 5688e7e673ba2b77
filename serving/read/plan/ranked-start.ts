/**
 * Where the newest n native rows of file days begin. Rows follow each other by time, frames by offset, and both orders agree except
 * near the borders of frames. So the row counts of partitions and frames lead to a few frames that hold the row, and only those are
 * searched: some 16,000 rows instead of all n.
 */
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import type { Slice } from '../read-model.ts';
import type { LiveContext } from './context.ts';

/** A slice, and how many of the newest rows lie after it. */
export interface RankedSlice {
  readonly slice: Slice;
  readonly rowsAfter: number;
}

/** A frame of a partition: its times and the rows of the partition before it. */
export interface RankedFrame {
  readonly firstMs: number;
  readonly lastMs: number;
  readonly base: number;
  readonly rows: number;
}

/**
 * The slice that holds the `wanted`-th row from the end; undefined where counts do not lead to it: with filters, for rows of a
 * column's partitions, or when fewer rows are proved.
 */
export async function rankedSlice(context: LiveContext, wanted: number): Promise<RankedSlice | undefined> {
  const { request, relation, session, searched } = context;
  const { dataset, mode, filters, asOfMs } = request;
  const isRanked = mode === 'native' && relation.isSingleSeries && dataset.partition.kind === 'file_day';
  if (!isRanked || filters.length > 0 || asOfMs !== undefined) return undefined;
  const params = new Params();
  const [id, number] = [params.add(int2(dataset.number)), params.add(int8(wanted))];
  const [found] = await session.rows(
    `select p.partition_key, s.from_ms, s.to_ms, s.rows, s.upto from (
       select from_ms, to_ms, rows, sum(rows) over (order by from_ms desc)::int8 as upto
       from partitions where dataset_id = ${id} and state = 'proved') s
     join partitions p on p.dataset_id = ${id} and p.from_ms = s.from_ms and p.state = 'proved'
     where s.upto >= ${number} order by s.from_ms desc limit 1`,
    params,
  );
  if (!found) return undefined;
  const [key, fromMs, toMs, rows, upto] = found;
  const window = { from: Number(fromMs), to: Number(toMs) };
  const part = searched.find(({ from, to }) => from <= window.from && window.to <= to);
  if (!part) return undefined;
  // The row's place in the partition, counted from its end, and the rows of the partitions after it.
  const later = Number(upto) - Number(rows);
  const frames = await framesOf(context, key!);
  const place = rangeOf(frames, Number(rows), Number(rows) - (wanted - later));
  if (!place) return undefined;
  const { from = window.from, to = window.to } = place;
  return { slice: { from, to, part }, rowsAfter: later + place.rowsAfter };
}

async function framesOf({ session, request }: LiveContext, key: string): Promise<RankedFrame[]> {
  const params = new Params();
  const of = array([text(key)]);
  const rows = await session.rows(
    `select first_ms, last_ms, row_base, rows from frames
     where dataset_id = ${params.add(int2(request.dataset.number))} and partition_key = any (${params.add(of)})
     order by row_base`,
    params,
  );
  return rows.map((row) => {
    const [firstMs, lastMs, base, count] = row.map(Number);
    return { firstMs, lastMs, base, rows: count };
  });
}

/**
 * The times between which the row of a rank lies. Both are borders of frames that no time crosses: all rows of the frames before a
 * border are earlier than those after it. An end that is undefined is the partition's. Exported for its test.
 */
export function rangeOf(
  frames: readonly RankedFrame[],
  rows: number,
  rank: number,
): { readonly from?: number; readonly to?: number; readonly rowsAfter: number } | undefined {
  const last = frames.at(-1);
  if (!last || last.base + last.rows !== rows || rank < 0 || rank >= rows) return undefined;
  // The earliest time from each frame on.
  const earliest: number[] = [];
  for (let at = frames.length - 1; at >= 0; at--) {
    earliest[at] = Math.min(frames[at].firstMs, earliest[at + 1] ?? Number.POSITIVE_INFINITY);
  }
  let from: number | undefined;
  let latest = Number.NEGATIVE_INFINITY;
  for (const [at, frame] of frames.entries()) {
    if (latest < earliest[at]) {
      if (frame.base > rank) return { from, to: earliest[at], rowsAfter: rows - frame.base };
      if (at > 0) from = earliest[at];
    }
    latest = Math.max(latest, frame.lastMs);
  }
  return { from, rowsAfter: 0 };
}
