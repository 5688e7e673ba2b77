/**
 * Reads are held to the row counts that were proved. A read without filters that covers whole partitions knows how many rows
 * it has to find; a difference means that stored rows were lost or added since the proof.
 */
import type { Range } from '../../shared/db/ranges.ts';
import { DAY_MS } from '../../shared/time/days.ts';
import { int2, int8, Params } from '../db/params.ts';
import type { LiveContext, PlanContext } from './context.ts';
import { boundsOf, type Part } from './coverage.ts';
import { LostRows } from './faults.ts';
import { MAX_CHUNKS, type Slice, slicesOf } from './slices.ts';

/** How many rows a statement, or a whole read, must yield. */
export interface RowCount {
  readonly rows: number;
  /** Partitions that only some of the window's rows are of may add to them. */
  readonly isMinimum?: boolean;
  /** The time that the partitions lie in. */
  readonly window: Range;
  /** The partitions, where they are few. */
  readonly partitions?: readonly string[];
}

/** A proved partition that the read covers whole. */
export interface CountedPartition extends Range {
  readonly key: string;
  readonly rows: number;
}

/** Partitions of more rows together are read by several statements: a difference then names few partitions. */
const MAX_COUNTED_ROWS = 100_000;

/** @throws LostRows where `found` is not what was proved. */
export function checkCount(dataset: string, count: RowCount | undefined, found: number): void {
  if (!count || found === count.rows || (count.isMinimum && found > count.rows)) return;
  const least = count.isMinimum ? 'at least ' : '';
  throw new LostRows(`${dataset}: ${found} rows were found where ${least}${count.rows} are counted as proved`, count);
}

const isUnfiltered = ({ request }: PlanContext) =>
  request.filters.length === 0 && request.klineMs === undefined && request.asOfMs === undefined;

/** The slices of the parts, cut so that those which hold whole file days know how many rows they must have. */
export async function countedSlices(context: LiveContext, parts: readonly Part[]): Promise<Iterable<Slice>> {
  const { relation } = context;
  const partitions = await wholeFileDays(context, parts);
  return partitions.length === 0 ? slicesOf(parts, relation.chunkMs) : cut(parts, partitions, relation.chunkMs);
}

/** The proved file days that lie within the parts, ascending. Those of other kinds are counted by `countOf`. */
async function wholeFileDays(context: LiveContext, parts: readonly Part[]): Promise<CountedPartition[]> {
  const { session, request, coverage } = context;
  const long = parts.filter((part) => part.to - part.from >= DAY_MS);
  if (coverage.kind !== 'file_day' || !isUnfiltered(context) || long.length === 0) return [];
  const params = new Params();
  const [id, from, to] = [int2(request.dataset.number), int8(long[0].from), int8(long[long.length - 1].to)];
  const found = await session.rows(
    `select partition_key, from_ms, to_ms, ${request.mode === 'native' ? 'rows' : 'aligned_rows'} from partitions
     where dataset_id = ${params.add(id)} and state = 'proved' and from_ms >= ${params.add(from)}
       and to_ms <= ${params.add(to)} order by from_ms`,
    params,
  );
  return found.flatMap(([key, fromMs, toMs, rows]) =>
    rows === null ? [] : [{ key: key!, from: Number(fromMs), to: Number(toMs), rows: Number(rows) }],
  );
}

/** Exported for its test. */
export function* cut(
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

/** Partitions that follow each other without a gap: as many as one statement reads. */
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

/** How many rows the file days must yield together that lie within the parts. */
export async function countOfFileDays(context: LiveContext, parts: readonly Part[]): Promise<RowCount | undefined> {
  const partitions = (await wholeFileDays(context, parts)).filter((partition) =>
    parts.some((part) => isWithin(partition.from, partition.to, part)),
  );
  if (partitions.length === 0) return undefined;
  const length = (ranges: readonly Range[]) => ranges.reduce((sum, { from, to }) => sum + to - from, 0);
  return {
    rows: partitions.reduce((sum, { rows }) => sum + rows, 0),
    isMinimum: length(partitions) < length(parts),
    window: { from: partitions[0].from, to: partitions[partitions.length - 1].to },
  };
}

/**
 * How many native rows a window must hold where rows say themselves which partition they are of: heights, snapshots, captures
 * and vintages overlap in time. Where the window cuts a run, partitions at its edges may add rows that are not counted.
 */
export async function countOf(context: LiveContext): Promise<RowCount | undefined> {
  const { session, request, coverage, relation } = context;
  const { extent } = coverage;
  const isCounted = request.mode === 'native' && !relation.isOneLine && isUnfiltered(context);
  if (!isCounted || !extent || context.parts.length === 0) return undefined;
  const window = boundsOf(coverage, request.window);
  const isWhole = coverage.sources.every(({ runs }) =>
    runs.every(({ from, rowsTo }) => rowsTo <= window.from || from >= window.to || isWithin(from, rowsTo, window)),
  );
  const params = new Params();
  const [id, from, to] = [int2(request.dataset.number), int8(window.from), int8(window.to)];
  const [[rows]] = await session.rows(
    `select coalesce(sum(rows), 0)::int8 from partitions where dataset_id = ${params.add(id)} and state = 'proved'
       and from_ms >= ${params.add(from)} and to_ms <= ${params.add(to)}`,
    params,
  );
  return { rows: Number(rows), isMinimum: !isWhole, window: { from: window.from, to: window.to } };
}

const isWithin = (from: number, to: number, window: Range) => from >= window.from && to <= window.to;
