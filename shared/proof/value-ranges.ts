/**
 * Value ranges: the smallest and largest value of each column of doubles, by frame and by partition of a file day. Reads with
 * filters leave out frames and partitions that no row can pass. The projector computes them from the rows that it stores, and
 * `verify` compares them with the stored rows.
 */
import type { ClientBase } from 'pg';
import type { DatasetDefinition } from '../registry/index.ts';
import { type PartitionRef, scopeSql } from './recount.ts';

/** By column. A column that is absent may hold anything. */
export type ValueRanges = Readonly<Record<string, readonly [least: number, greatest: number]>>;

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

/**
 * Compares the kept ranges of a partition with its stored rows. @returns what differs, in words; undefined if nothing does or
 * no ranges are kept.
 */
export async function differingRanges(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<string | undefined> {
  const columns = rangedColumns(dataset);
  if (columns.length === 0) return undefined;
  const id = `t."${dataset.native.identity[0]}"`;
  const facts = columns.map((name) => `'${name}', jsonb_build_array(min(t."${name}"), max(t."${name}"))`).join(', ');
  const { rows } = await client.query<{
    frame: number | null;
    kept: ValueRanges | null;
    found: ValueRanges | null;
    same: boolean;
  }>(
    `with f as (
       select row_number() over (order by row_base)::int4 as frame, first_offset::int8 as first_id, value_ranges as kept
       from frames where dataset_id = $1 and partition_key = $2 and rows > 0),
     r as (
       select width_bucket(${id}, (select array_agg(first_id order by frame) from f)) as frame,
         jsonb_build_object(${facts}) as found
       from ${dataset.native.table} t where ${scopeSql(dataset, partition)} group by 1)
     select frame, kept, found, kept is not distinct from found as same from f full join r using (frame) order by frame`,
    [dataset.number, partition.key],
  );
  // Frames that the log has lost are no longer listed; then all rows are in one group.
  const other = rows.find(({ frame, same }) => frame !== null && !same);
  const found = unitedRanges(rows.map((row) => row.found ?? undefined));
  const [whole] = (
    await client.query<{ kept: ValueRanges | null; same: boolean }>(
      `select value_ranges as kept, value_ranges is not distinct from $3::jsonb as same from partitions
       where dataset_id = $1 and partition_key = $2`,
      [dataset.number, partition.key, found === undefined ? null : JSON.stringify(found)],
    )
  ).rows;
  // Loaded before ranges were kept: reads leave nothing out.
  if (!whole || whole.kept === null) return undefined;
  if (other) return `frame ${other.frame} has ${JSON.stringify(other.kept)}, its rows ${JSON.stringify(other.found)}`;
  return whole.same ? undefined : `the partition has ${JSON.stringify(whole.kept)}, its rows ${JSON.stringify(found)}`;
}
