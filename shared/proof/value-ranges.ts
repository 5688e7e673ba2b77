/**
 * Value ranges: the smallest and largest value of each column of doubles, by frame and by partition of a file day. Reads with
 * filters leave out frames and partitions that no row can pass. The projector computes them from the rows that it stores, and
 * `verify` compares them with the stored rows.
 */
import type { ClientBase } from 'pg';
import type { DatasetDefinition } from '../registry/index.ts';
import { type PartitionRef, scopeSql } from './recount.ts';
import type { ValueRanges } from './row-facts.ts';

export type { ValueRanges } from './row-facts.ts';

/** The columns whose ranges are kept, in the order of the table. */
export const rangedColumns = ({ partition, native }: DatasetDefinition): readonly string[] =>
  partition.kind === 'file_day' ? native.columns.flatMap(({ name, pg }) => (pg === 'float8' ? [name] : [])) : [];

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
}

/** The ranges of a partition's stored rows, by frame. Ids tell which frame a row came in. */
async function foundRanges(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<readonly FoundRanges[]> {
  const id = `t."${dataset.native.identity[0]}"`;
  const facts = rangedColumns(dataset).map(
    (name) => `'${name}', jsonb_build_array(min(t."${name}"), max(t."${name}"))`,
  );
  const { rows } = await client.query<{
    sequence: string | null;
    kept: ValueRanges | null;
    found: ValueRanges | null;
    same: boolean;
  }>(
    `with f as (
       select row_number() over (order by row_base)::int4 as frame, stream_sequence, first_offset::int8 as first_id,
         value_ranges as kept
       from frames where dataset_id = $1 and partition_key = $2 and rows > 0),
     r as (
       select width_bucket(${id}, (select array_agg(first_id order by frame) from f)) as frame,
         jsonb_build_object(${facts.join(', ')}) as found
       from ${dataset.native.table} t where ${scopeSql(dataset, partition)} group by 1)
     select stream_sequence as sequence, kept, found, kept is not distinct from found as same
     from f full join r using (frame) order by frame`,
    [dataset.number, partition.key],
  );
  return rows.map(({ sequence, kept, found, same }) => ({
    sequence: sequence === null ? undefined : Number(sequence),
    kept: kept ?? undefined,
    found: found ?? undefined,
    same,
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
  return whole.same ? undefined : `the partition has ${textOf(whole.kept)}, its rows ${textOf(found)}`;
}

/** Text of JSON; null where nothing is known. */
const textOf = (ranges: ValueRanges | undefined | null): string | null =>
  ranges === undefined || ranges === null ? null : JSON.stringify(ranges);

/** The ranges of one frame, to be written. */
export interface FrameRanges {
  readonly sequence: number;
  readonly ranges?: ValueRanges;
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
  await client.query(
    `update frames f set value_ranges = made.ranges::jsonb from unnest($3::int8[], $4::text[]) as made (sequence, ranges)
     where f.dataset_id = $1 and f.partition_key = $2 and f.stream_sequence = made.sequence`,
    [dataset.number, key, frames.map(({ sequence }) => sequence), frames.map(({ ranges }) => textOf(ranges))],
  );
}
