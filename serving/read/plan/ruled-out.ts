/**
 * Leaves out what no row can pass: partitions and frames of file days whose value ranges contradict a filter. SQL compares the
 * ranges, so a year of partitions costs one statement for the catalog and one for the frames of those that remain. The rows of
 * a frame lie between its first and its last time; other frames may have rows there, too, and the filters decide about them.
 * A partition whose frames do not add up to its rows, because the log lost some, is searched whole.
 */

import { rangedColumns } from '../../../shared/proof/value-ranges.ts';
import { joined, lengthOf, parseMultirange, type Range } from '../../../shared/ranges.ts';
import type { Filter } from '../../contract/filters.ts';
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import type { Part, Searched } from '../read-model.ts';
import type { LiveContext } from './context.ts';
import { intersected } from './slices.ts';

/** Above this share of a partition's frames, one statement for the partition is faster than one for each range of frames. */
const MAX_FRAME_SHARE = 0.5;

/**
 * The parts of the window that rows passing the filters can lie in, and how much that is. Undefined for partitions
 * that are no file days, and for klines.
 */
export async function ruleOut(
  context: LiveContext,
): Promise<{ readonly parts: readonly Part[]; readonly searched: Searched } | undefined> {
  const { request, searched } = context;
  const { dataset, mode, filters, window, klineMs } = request;
  if (dataset.partition.kind !== 'file_day' || klineMs !== undefined) return undefined;
  // A sample is drawn from all rows, so that it stays the same for its seed.
  const isTested = mode === 'native' && window.kind !== 'random';
  const tested = isTested ? testsOf(rangedColumns(dataset), filters) : [];
  const all = await partitionsIn(context, tested);
  const { placed: ofIds } = context;
  const partitions = ofIds ? all.map((one) => (ofIds.has(one.key) ? one : { ...one, mayPass: false })) : all;
  const left = partitions.filter(({ mayPass }) => mayPass);
  // Frames are looked up where they can make a difference.
  const frames = await framesIn(
    context,
    tested,
    left.map(({ key }) => key),
  );
  const counts = { framesRead: 0, framesSkipped: 0, rows: 0 };
  const ranges: Range[] = [];
  for (const partition of partitions) {
    const of = frames.get(partition.key);
    const placed = ofIds?.get(partition.key);
    const isIndexed = of !== undefined && of.rows === partition.rows;
    const isCut = partition.mayPass && isIndexed && of.left <= of.frames * MAX_FRAME_SHARE;
    const left = !partition.mayPass ? NOTHING : isCut ? { frames: of.left, rows: of.leftRows } : partition;
    const read = Math.min(left.frames, placed?.frames ?? left.frames);
    counts.framesRead += read;
    counts.framesSkipped += partition.frames - read;
    counts.rows += Math.min(left.rows, placed?.rows ?? left.rows);
    if (isCut) ranges.push(...of.ranges);
    else if (partition.mayPass) ranges.push(partition.window);
  }
  const read = left.filter(({ key, rows }) => frames.get(key)?.rows !== rows || frames.get(key)!.left > 0).length;
  const isAll = counts.framesSkipped === 0 && left.length === partitions.length;
  return {
    parts: isAll ? searched : intersected(searched, joined(ranges)),
    searched: {
      partitionsRead: read,
      partitionsSkipped: partitions.length - read,
      ...counts,
      rowsPerMs: counts.rows / Math.max(lengthOf(ranges), 1),
    },
  };
}

const NOTHING = { frames: 0, rows: 0 };

/** A filter on a column with ranges. */
export interface Tested {
  readonly column: string;
  readonly test: NonNullable<Filter['rangeTest']>;
}

export const testsOf = (columns: readonly string[], filters: readonly Filter[]): Tested[] =>
  filters.flatMap(({ field: { column }, rangeTest: test }) =>
    test && column !== undefined && columns.includes(column) ? [{ column, test }] : [],
  );

/** SQL over the ranges of `alias`: whether one of its rows may pass. A column without a range may hold anything. */
export function mayPassSql(tested: readonly Tested[], alias: string, params: Params): string {
  const end = (column: string, index: number) => `(${alias}.value_ranges #>> '{${column},${index}}')::float8`;
  const tests = tested.map(({ column, test }) => `coalesce(${test(end(column, 0), end(column, 1), params)}, true)`);
  return tests.length === 0 ? 'true' : tests.join(' and ');
}

/** SQL: all frames of the partition `p` are listed; the log may have lost some. */
export const HAS_ALL_FRAMES = `p.rows = (select coalesce(sum(rows), 0) from frames
  where dataset_id = p.dataset_id and partition_key = p.partition_key)`;

interface TestedPartition {
  readonly key: string;
  readonly window: Range;
  readonly rows: number;
  readonly frames: number;
  readonly mayPass: boolean;
}

/** The proved partitions of the window, ascending. */
async function partitionsIn(context: LiveContext, tested: readonly Tested[]): Promise<TestedPartition[]> {
  const { session, request, searched } = context;
  if (searched.length === 0) return [];
  const params = new Params();
  const id = params.add(int2(request.dataset.number));
  const [from, to] = [params.add(int8(searched[0].from)), params.add(int8(searched[searched.length - 1].to))];
  const rows = await session.found({
    // Without ranges to compare, as for ids, the text is always the same.
    prepared: tested.length === 0,
    text: `select partition_key, from_ms, to_ms, coalesce(${request.mode === 'native' ? 'rows' : 'aligned_rows'}, 0),
       coalesce((manifest->>'frames')::int4, 0), ${mayPassSql(tested, 'p', params)}
     from partitions p where dataset_id = ${id} and state = 'proved' and from_ms < ${to} and to_ms > ${from} order by from_ms`,
    params: params.list,
  });
  return rows.map(([key, fromMs, toMs, count, frames, mayPass]) => ({
    key: key!,
    window: { from: Number(fromMs), to: Number(toMs) },
    rows: Number(count),
    frames: Number(frames),
    mayPass: mayPass === 't',
  }));
}

interface TestedFrames {
  readonly rows: number;
  readonly frames: number;
  /** Frames that the filters leave, and their rows. */
  readonly left: number;
  readonly leftRows: number;
  /** The times of the frames that are left, ascending. */
  readonly ranges: readonly Range[];
}

async function framesIn(
  { session, request }: LiveContext,
  tested: readonly Tested[],
  keys: readonly string[],
): Promise<ReadonlyMap<string, TestedFrames>> {
  if (keys.length === 0 || tested.length === 0) return new Map();
  const params = new Params();
  const [id, of] = [params.add(int2(request.dataset.number)), params.add(array(keys.map(text)))];
  const rows = await session.rows(
    `select partition_key, sum(rows), count(*), count(*) filter (where left_in),
       coalesce(sum(rows) filter (where left_in), 0), range_agg(int8range(first_ms, last_ms, '[]')) filter (where left_in)
     from (select f.partition_key, f.rows, f.first_ms, f.last_ms, ${mayPassSql(tested, 'f', params)} as left_in
       from frames f where f.dataset_id = ${id} and f.partition_key = any (${of})) f
     group by partition_key`,
    params,
  );
  return new Map(
    rows.map(([key, all, frames, left, leftRows, ranges]) => [
      key!,
      {
        rows: Number(all),
        frames: Number(frames),
        left: Number(left),
        leftRows: Number(leftRows),
        ranges: parseMultirange(ranges ?? '{}'),
      },
    ]),
  );
}
