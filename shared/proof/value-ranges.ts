/**
 * Value ranges: the smallest and largest value of each column of doubles, by granule, frame and partition of a file day. Reads with
 * filters leave out what no row can pass, and the times of granules lead to an id. The projector computes them from the rows that
 * it stores, and `verify` compares them with the stored rows.
 */
import type { ClientBase } from 'pg';
import type { DatasetDefinition } from '../registry/index.ts';
import { type PartitionRef, scopeSql } from './recount.ts';
import type { ValueRanges } from './row-facts.ts';

export type { ValueRanges } from './row-facts.ts';

/** Rows of a granule, in the order of offsets; the last one of a frame has fewer. */
export const GRANULE_ROWS = 256;

/** The granules of a frame. */
export interface Granules {
  /** The id of each one's first row, where ids have gaps; otherwise they follow from the frame's first. */
  readonly offsets: Iterable<number> | undefined;
  /** The times of each one's rows, in ms after the first of the frame. Times need not ascend with ids. */
  readonly firstMs: Iterable<number>;
  readonly lastMs: Iterable<number>;
  /** The smallest values of the first ranged column by granule, its largest, then those of the next; NaN where they are unknown. */
  readonly ranges: Iterable<number>;
}

export interface RangesOfRows {
  readonly ranges: ValueRanges;
  readonly granules: Granules;
}

/** The columns whose ranges are kept, in the order of the table. */
export const rangedColumns = ({ partition, native }: DatasetDefinition): readonly string[] =>
  partition.kind === 'file_day' ? native.columns.flatMap(({ name, pg }) => (pg === 'float8' ? [name] : [])) : [];

/** The column of ids, where those of a frame's rows do not follow from the first. */
export const gappedIds = ({ offset, native }: DatasetDefinition): string | undefined =>
  offset.contiguous ? undefined : native.identity[0];

/** The ranges of several stretches of rows together; undefined if those of one are not known. */
export function unitedRanges(all: readonly (ValueRanges | undefined)[]): ValueRanges | undefined {
  if (all.length === 0 || all.includes(undefined)) return undefined;
  const [first, ...others] = all as readonly ValueRanges[];
  const united: Record<string, readonly [number, number]> = {};
  for (const [column, range] of Object.entries(first)) {
    let [least, greatest] = range;
    let isKnown = true;
    for (const { [column]: other } of others) {
      if (!other) isKnown = false;
      else if (other[0] < least) least = other[0];
      if (other && other[1] > greatest) greatest = other[1];
    }
    if (isKnown) united[column] = [least, greatest];
  }
  return united;
}

/** The ranges of a frame as they are kept, and as its stored rows give them. */
interface FoundRanges {
  /** Undefined for rows that lie in no listed frame: frames of a log that was lost are no longer listed. */
  readonly sequence: number | undefined;
  readonly kept: ValueRanges | undefined;
  readonly found: ValueRanges | undefined;
  readonly same: boolean;
  readonly sameGranules: boolean;
}

/** The ranges of a partition's stored rows, by frame. Ids tell which frame and which granule a row came in. */
async function foundRanges(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<readonly FoundRanges[]> {
  const { identity, time, table } = dataset.native;
  const [id, ms] = [`t."${identity[0]}"`, `t."${time.column}"`];
  const columns = rangedColumns(dataset);
  const ends = columns.map((name, at) => `min(t."${name}") as l${at}, max(t."${name}") as g${at}`);
  const ofFrame = columns.map((name, at) => `'${name}', jsonb_build_array(min(l${at}), max(g${at}))`);
  const inFrame = (value: string) => `array_agg(${value} order by place)`;
  const ofGranules = columns.map((_, at) =>
    [`l${at}`, `g${at}`].map((end) => inFrame(`coalesce(${end}, 'NaN')`)).join(' || '),
  );
  const firstIds = gappedIds(dataset)
    ? 'unnest(granule_offsets)'
    : `generate_series(first_id, first_id + rows - 1, ${GRANULE_ROWS})`;
  const { rows } = await client.query<{
    sequence: string | null;
    kept: ValueRanges | null;
    found: ValueRanges | null;
    same: boolean;
    same_granules: boolean;
  }>(
    `with f as (
       select row_number() over (order by row_base)::int4 as frame, *, first_offset::int8 as first_id
       from frames where dataset_id = $1 and partition_key = $2 and rows > 0),
     g as (
       select row_number() over (order by id)::int4 as place, frame, id, first_ms,
         least(${GRANULE_ROWS}, rows - ${GRANULE_ROWS} * (row_number() over (partition by frame order by id) - 1)) as rows
       from f, ${firstIds} id),
     r as (
       select width_bucket(${id}, (select array_agg(id order by place) from g)) as place, count(*) as found_rows,
         min(${id}) as first_id, min(${ms}) as l, max(${ms}) as g, ${ends.join(', ')}
       from ${table} t where ${scopeSql(dataset, partition)} group by 1),
     o as (
       select frame, bool_and(found_rows = rows and r.first_id = g.id) as whole, ${inFrame('r.first_id')} as offsets,
         ${inFrame('(l - first_ms)::int4')} as first_ms, ${inFrame('(g - first_ms)::int4')} as last_ms,
         ${ofGranules.join(' || ')} as ranges, jsonb_build_object(${ofFrame.join(', ')}) as found
       from r left join g using (place) group by frame)
     select stream_sequence as sequence, value_ranges as kept, found, value_ranges is not distinct from found as same,
       (o.whole and ${gappedIds(dataset) ? 'granule_offsets = offsets' : 'granule_offsets is null'}
         and granule_first_ms = o.first_ms and granule_last_ms = o.last_ms and granule_ranges = o.ranges) is true as same_granules
     from f full join o using (frame) order by frame`,
    [dataset.number, partition.key],
  );
  return rows.map(({ sequence, kept, found, same, same_granules: sameGranules }) => ({
    sequence: sequence === null ? undefined : Number(sequence),
    kept: kept ?? undefined,
    found: found ?? undefined,
    same,
    sameGranules,
  }));
}

/**
 * Compares the kept ranges of a partition with its stored rows. @returns what differs, in words; undefined if nothing does.
 */
export async function differingRanges(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<string | undefined> {
  if (rangedColumns(dataset).length === 0) return undefined;
  const frames = await foundRanges(client, dataset, partition);
  const found = unitedRanges(frames.map((frame) => frame.found));
  const { rows } = await client.query<{ kept: ValueRanges | null; same: boolean }>(
    `select value_ranges as kept, value_ranges is not distinct from $3::jsonb as same from partitions
     where dataset_id = $1 and partition_key = $2`,
    [dataset.number, partition.key, textOf(found)],
  );
  const [whole] = rows;
  if (!whole) return undefined;
  // Without listed frames all rows are in one group.
  const isListed = frames.length > 1 || frames[0]?.sequence !== undefined;
  const other = isListed ? frames.find(({ same }) => !same) : undefined;
  if (other) return `the frame at ${other.sequence} has ${textOf(other.kept)}, its rows ${textOf(other.found)}`;
  const granules = isListed ? frames.find(({ sameGranules }) => !sameGranules) : undefined;
  if (granules) return `granules of the frame at ${granules.sequence} are not those of its rows`;
  return whole.same ? undefined : `the partition has ${textOf(whole.kept)}, its rows ${textOf(found)}`;
}

/** Text of JSON; null where nothing is known. */
const textOf = (ranges: ValueRanges | undefined | null): string | null =>
  ranges === undefined || ranges === null ? null : JSON.stringify(ranges);

/** The columns of frames that hold ranges, with their types. */
const KEPT = {
  value_ranges: 'jsonb',
  granule_offsets: 'int8[]',
  granule_first_ms: 'int4[]',
  granule_last_ms: 'int4[]',
  granule_ranges: 'float8[]',
} as const;

/** The names of those columns. */
export const RANGES_COLUMNS: readonly string[] = Object.keys(KEPT);
/** Their values, from columns of the same names that hold their texts. */
export const RANGES_VALUES: readonly string[] = Object.entries(KEPT).map(([name, type]) => `${name}::${type}`);

/** The texts of those columns, a list each. */
export function rangesTexts(frames: readonly Partial<RangesOfRows>[]): (readonly (string | null)[])[] {
  const arrayOf = (values: Iterable<number> | undefined) =>
    values === undefined ? null : `{${[...values].join(',')}}`;
  const texts: Readonly<Record<keyof typeof KEPT, (frame: Partial<RangesOfRows>) => string | null>> = {
    value_ranges: ({ ranges }) => textOf(ranges),
    granule_offsets: ({ granules }) => arrayOf(granules?.offsets),
    granule_first_ms: ({ granules }) => arrayOf(granules?.firstMs),
    granule_last_ms: ({ granules }) => arrayOf(granules?.lastMs),
    granule_ranges: ({ granules }) => arrayOf(granules?.ranges),
  };
  return Object.values(texts).map((text) => frames.map(text));
}

/** The ranges of one frame, to be written. */
export interface FrameRanges extends Partial<RangesOfRows> {
  readonly sequence: number;
}

/** Writes the ranges of a partition whose frames are listed, in the caller's transaction. */
export async function writeRanges(
  client: ClientBase,
  dataset: DatasetDefinition,
  key: string,
  { whole, frames }: { readonly whole: ValueRanges | undefined; readonly frames: readonly FrameRanges[] },
): Promise<void> {
  await client.query('update partitions set value_ranges = $3 where dataset_id = $1 and partition_key = $2', [
    dataset.number,
    key,
    textOf(whole),
  ]);
  const texts = RANGES_COLUMNS.map((_, index) => `$${index + 4}::text[]`);
  await client.query(
    `update frames f set (${RANGES_COLUMNS.join(', ')}) = (select ${RANGES_VALUES.map((value) => `made.${value}`).join(', ')})
     from unnest($3::int8[], ${texts.join(', ')}) as made (sequence, ${RANGES_COLUMNS.join(', ')})
     where f.dataset_id = $1 and f.partition_key = $2 and f.stream_sequence = made.sequence`,
    [dataset.number, key, frames.map(({ sequence }) => sequence), ...rangesTexts(frames)],
  );
}
