/** Which stored rows are a partition's. Deleting, recounting, replaying and verifying all ask here. */
import { assert } from '../errors.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { ALL_TIME, keyFacts } from '../registry/keys.ts';
import { isOfPartition, type Window } from '../registry/partitions.ts';

/** A partition and the times its rows lie in: of file days the window, else what its manifest says. */
export interface PartitionRef extends Window {
  readonly key: string;
}

/**
 * SQL over alias `t`: the row is the partition's. Text of literals, so that only chunks of its time are looked at.
 * @throws TidemarkError PARTITION_UNKNOWN
 */
export function scopeSql(dataset: DatasetDefinition, ref: PartitionRef): string {
  const { scope, time } = dataset.native;
  const tests: string[] = [];
  if (ref.fromMs > ALL_TIME.fromMs) tests.push(`t."${time.column}" >= ${ref.fromMs}`);
  if (ref.toMs < ALL_TIME.toMs) tests.push(`t."${time.column}" < ${ref.toMs}`);
  if (scope.kind === 'column') {
    // A key of its kind holds nothing that SQL would have to be guarded from.
    const { span } = keyFacts(dataset, ref.key);
    const column = `t."${scope.column}"`;
    if (scope.pg === 'text') tests.push(`${column} = '${ref.key}'`);
    else if (span) tests.push(`${column} >= ${span.from} and ${column} < ${span.to}`);
  }
  return tests.join(' and ');
}

/** SQL over alias `t`, of a dataset whose scope is a column: the row is of one of these partitions. */
export function scopeOfManySql(dataset: DatasetDefinition, refs: readonly PartitionRef[]): string {
  const { scope, time } = dataset.native;
  assert(scope.kind === 'column' && refs.length > 0, 'partitions that share chunks are looked at together');
  const column = `t."${scope.column}"`;
  const times = `t."${time.column}" >= ${Math.min(...refs.map(({ fromMs }) => fromMs))}
    and t."${time.column}" < ${Math.max(...refs.map(({ toMs }) => toMs))}`;
  if (scope.pg === 'text') return `${times} and ${column} in (${refs.map(({ key }) => `'${key}'`).join(', ')})`;
  const spans = refs.map(({ key }) => keyFacts(dataset, key).span!);
  // Bounds beside: the planner knows nothing of how many rows a multirange holds.
  return `${times} and ${column} >= ${Math.min(...spans.map(({ from }) => from))}
    and ${column} < ${Math.max(...spans.map(({ to }) => to))}
    and '{${spans.map(({ from, to }) => `[${from},${to})`).join(',')}}'::int8multirange @> ${column}`;
}

/** SQL over alias `t`: which of the partitions the row is of, by its place among them, from 0. They do not overlap. */
export function placeAmongSql(dataset: DatasetDefinition, refs: readonly PartitionRef[]): string {
  const { scope } = dataset.native;
  assert(scope.kind === 'column', 'partitions that share chunks are looked at together');
  const column = `t."${scope.column}"`;
  if (scope.pg === 'text') {
    return `array_position(array[${refs.map(({ key }) => `'${key}'`).join(', ')}], ${column} collate "default") - 1`;
  }
  const places = refs
    .map(({ key }, place) => ({ place, from: keyFacts(dataset, key).span!.from }))
    .sort((a, b) => a.from - b.from);
  const [bounds, order] = [places.map(({ from }) => from), places.map(({ place }) => place)];
  return `(array[${order}])[width_bucket(${column}, array[${bounds}]::int8[])]`;
}

/** SQL: the row `t` is of the partition `p` of the catalog. */
export function scopeJoinSql(dataset: DatasetDefinition): string {
  const { scope, time } = dataset.native;
  if (scope.kind === 'window') return `t."${time.column}" >= p.from_ms and t."${time.column}" < p.to_ms`;
  const column = `t."${scope.column}"`;
  if (scope.pg === 'text') return isOfPartition(scope.column);
  return `p.span @> ${column}`;
}

/** Columns in the order of offsets, as SQL sorts: texts by code points whatever the database's locale. */
export const identityOrder = (dataset: DatasetDefinition): string[] =>
  dataset.native.identity.map((name) => {
    const text = dataset.native.columns.find((column) => column.name === name)?.pg === 'text';
    return `t."${name}"${text ? ' collate "C"' : ''}`;
  });
