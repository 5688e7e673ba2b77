/**
 * The recount: the facts of a partition's stored rows, in the same terms as the manifest, and their comparison with it. The
 * database computes them over any table of the native shape: a chunk just loaded, the hypertable, a scratch table. The
 * functions that delete, replay and verify partitions select their rows with the same SQL.
 */

import type { ClientBase } from 'pg';
import { assert } from '../errors.ts';
import type { Manifest } from '../frame/manifest.ts';
import { ALIGNED_COLUMNS, type AlignedColumn } from '../registry/definition.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { ownerTest, seriesKeyFor } from '../registry/instruments.ts';
import { ALL_TIME, isOfPartition, keyFacts, type TimeWindow } from '../registry/keys.ts';
import { totalSql, type ValueRanges } from './row-facts.ts';
import { rowHashSql, valueHashSql } from './row-hash.ts';

/** A partition and the times of its rows: the window of a file day, otherwise those in its manifest. */
export interface PartitionRef extends TimeWindow {
  readonly key: string;
  /** Least and greatest value of its columns of doubles, where they are known. */
  readonly ranges?: ValueRanges;
}

/**
 * SQL over alias `t`: the row belongs to the partition. The SQL holds literals, so that only chunks of its time are read.
 * @throws TidemarkError USAGE
 */
export function scopeSql(dataset: DatasetDefinition, ref: PartitionRef): string {
  const { scope, time, owner } = dataset.native;
  const tests: string[] = owner ? [`t."${owner.column}" = ${owner.value}`] : [];
  if (ref.fromMs > ALL_TIME.fromMs) tests.push(`t."${time.column}" >= ${ref.fromMs}`);
  if (ref.toMs < ALL_TIME.toMs) tests.push(`t."${time.column}" < ${ref.toMs}`);
  if (scope.kind === 'column') {
    // `keyFacts` accepts only keys that are safe in SQL.
    const { span } = keyFacts(dataset, ref.key);
    const column = `t."${scope.column}"`;
    if (scope.pg === 'text') tests.push(`${column} = '${ref.key}'`);
    else if (span) tests.push(`${column} >= ${span.from} and ${column} < ${span.to}`);
  }
  return tests.join(' and ');
}

/** SQL over alias `t`, for a dataset whose scope is a column: the row belongs to one of these partitions. */
export function scopeOfManySql(dataset: DatasetDefinition, refs: readonly PartitionRef[]): string {
  const { scope, time } = dataset.native;
  assert(scope.kind === 'column' && refs.length > 0, 'partitions that share chunks are looked at together');
  const column = `t."${scope.column}"`;
  const times = `t."${time.column}" >= ${Math.min(...refs.map(({ fromMs }) => fromMs))}
    and t."${time.column}" < ${Math.max(...refs.map(({ toMs }) => toMs))}`;
  if (scope.pg === 'text') return `${times} and ${column} in (${refs.map(({ key }) => `'${key}'`).join(', ')})`;
  const spans = refs.map(({ key }) => keyFacts(dataset, key).span!);
  // The bounds are given too, because the planner cannot estimate how many rows a multirange selects.
  return `${times} and ${column} >= ${Math.min(...spans.map(({ from }) => from))}
    and ${column} < ${Math.max(...spans.map(({ to }) => to))}
    and '{${spans.map(({ from, to }) => `[${from},${to})`).join(',')}}'::int8multirange @> ${column}`;
}

/** SQL over alias `t`: the index in `refs`, from 0, of the partition that the row belongs to. They must not overlap. */
function partitionIndexSql(dataset: DatasetDefinition, refs: readonly PartitionRef[]): string {
  const { scope } = dataset.native;
  assert(scope.kind === 'column', 'partitions that share chunks are looked at together');
  const column = `t."${scope.column}"`;
  if (scope.pg === 'text') {
    return `array_position(array[${refs.map(({ key }) => `'${key}'`).join(', ')}], ${column} collate "default") - 1`;
  }
  const sorted = refs
    .map(({ key }, index) => ({ index, from: keyFacts(dataset, key).span!.from }))
    .sort((a, b) => a.from - b.from);
  const [bounds, order] = [sorted.map(({ from }) => from), sorted.map(({ index }) => index)];
  return `(array[${order}])[width_bucket(${column}, array[${bounds}]::int8[])]`;
}

/** SQL: the row `t` belongs to the partition `p` of the catalog. */
export function scopeJoinSql(dataset: DatasetDefinition): string {
  const { scope, time } = dataset.native;
  if (scope.kind === 'window')
    return `t."${time.column}" >= p.from_ms and t."${time.column}" < p.to_ms${ownerTest(dataset)}`;
  const column = `t."${scope.column}"`;
  if (scope.pg === 'text') return isOfPartition(scope.column);
  return `p.span @> ${column}`;
}

/** The columns of the order of offsets, as SQL; texts sort by code points whatever the locale of the database is. */
export const identityOrder = (dataset: DatasetDefinition): string[] =>
  dataset.native.identity.map((name) => {
    const text = dataset.native.columns.find((column) => column.name === name)?.pg === 'text';
    return `t."${name}"${text ? ' collate "C"' : ''}`;
  });

export interface Recount {
  readonly rows: number;
  readonly first_offset: string | null;
  readonly last_offset: string | null;
  readonly first_ms: number | null;
  readonly last_ms: number | null;
  readonly rows_hash: string | null;
  readonly totals: Readonly<Record<string, string | null>>;
  /** Null where partitions share seconds. */
  readonly aligned_rows: number | null;
  /** Sum of the aligned rows' event counts, where the dataset has a count field. */
  readonly aligned_events: number | null;
  /** Digest of the aligned rows, independent of their order: two projections of the same events have the same. */
  readonly aligned_hash: string | null;
}

export interface Tables {
  readonly native: string;
  readonly aligned: string;
}

/** Recounts native and aligned rows in one scan of each table, with literal times so that only the needed chunks are read. */
export async function recount(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
  tables: Tables,
  alignedColumns: readonly string[],
): Promise<Recount> {
  const native = await recountNative(client, dataset, partition, tables.native);
  const aligned = await client.query(alignedRecountSql(dataset, partition, tables.aligned, alignedColumns));
  const [a] = aligned.rows;
  return { ...native, aligned_rows: Number(a.rows), aligned_events: number(a.events), aligned_hash: a.hash };
}

/** Recounts the native rows alone, for datasets whose partitions share seconds and so have no aligned rows of their own. */
export async function recountNative(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
  table: string,
): Promise<Recount> {
  const isWindow = dataset.native.scope.kind === 'window';
  // A chunk just loaded has no statistics yet, and the planner would read 3.5 M rows through their index (0.7 s). A parallel
  // sequential scan takes 0.4 s. The settings last until the end of the caller's transaction.
  if (isWindow) await client.query('set local enable_indexscan = off; set local enable_bitmapscan = off');
  const found = await client.query(nativeRecountSql(dataset, scopeSql(dataset, partition), table, partition.ranges));
  if (isWindow) await client.query('set local enable_indexscan = on; set local enable_bitmapscan = on');
  return countedOf(dataset, found.rows[0]);
}

/**
 * Recounts the native rows of partitions that share chunks in one scan; the results are in the order of `partitions`. The
 * inner query hashes the rows, so that what is sorted by offset is narrow: 40,000 transactions are 75 MB of text, which
 * PostgreSQL sorted on disk.
 */
export async function recountMany(
  client: ClientBase,
  dataset: DatasetDefinition,
  partitions: readonly PartitionRef[],
): Promise<Recount[]> {
  const { native, offset } = dataset;
  const time = `t."${native.time.column}"`;
  const order = identityOrder(dataset).join(', ');
  const [first, last] =
    offset.order === 'numeric'
      ? ['min', 'max'].map((which) => `${which}(t."${native.identity[0]}")::text`)
      : [1, 'count(*)'].map((at) => `(array_agg(t.source_offset order by ${order}))[${at}]`);
  const totals = native.totals.map(({ column, scale }) => `, ${totalSql(column, scale)} as "total_${column}"`);
  const narrow = new Set([native.time.column, ...native.identity, ...native.totals.map(({ column }) => column)]);
  const { rows } = await client.query(
    `select t.index, count(*) as rows, ${first} as first_offset, ${last} as last_offset,
       min(${time}) as first_ms, max(${time}) as last_ms, sum(t.row_hash)::text as rows_hash ${totals.join('')}
     from (select ${partitionIndexSql(dataset, partitions)} as index, ${rowHashSql(native)} as row_hash,
         ${offset.sql} as source_offset, ${[...narrow].map((column) => `t."${column}"`).join(', ')}
       from ${native.table} t where ${scopeOfManySql(dataset, partitions)} offset 0) t
     group by t.index`,
  );
  const counted = new Map(rows.map((row) => [row.index as number, countedOf(dataset, row)]));
  const none = { rows: 0, first_offset: null, last_offset: null, first_ms: null, last_ms: null, rows_hash: null };
  return partitions.map((_, index) => counted.get(index) ?? countedOf(dataset, none));
}

// biome-ignore lint/suspicious/noExplicitAny: the columns depend on the dataset
function countedOf(dataset: DatasetDefinition, n: any): Recount {
  return {
    rows: Number(n.rows),
    first_offset: n.first_offset,
    last_offset: n.last_offset,
    first_ms: number(n.first_ms),
    last_ms: number(n.last_ms),
    rows_hash: n.rows_hash,
    totals: Object.fromEntries(dataset.native.totals.map(({ column }) => [column, n[`total_${column}`] ?? null])),
    aligned_rows: null,
    aligned_events: null,
    aligned_hash: null,
  };
}

const number = (text: string | null) => (text === null ? null : Number(text));

/** SQL of the recount of the native rows for which `test`, SQL over alias `t`, is true. */
export function nativeRecountSql(
  dataset: DatasetDefinition,
  test: string,
  table: string,
  ranges: ValueRanges = {},
): string {
  const { native } = dataset;
  const time = `t."${native.time.column}"`;
  const totals = native.totals.map(
    ({ column, scale }) => `, ${totalSql(column, scale, ranges[column]?.[1])} as "total_${column}"`,
  );
  return `select count(*) as rows, ${offsetSql(dataset, test, table, 'first')} as first_offset,
    ${offsetSql(dataset, test, table, 'last')} as last_offset,
    min(${time}) as first_ms, max(${time}) as last_ms, sum(${rowHashSql(native)})::text as rows_hash
    ${totals.join('')}
    from ${table} t where ${test}`;
}

/** SQL of the offset of the first or last row: numeric offsets come from the scan itself, others from a separate look-up. */
function offsetSql(dataset: DatasetDefinition, test: string, table: string, which: 'first' | 'last'): string {
  if (dataset.offset.order === 'numeric') {
    return `${which === 'first' ? 'min' : 'max'}(t."${dataset.native.identity[0]}")::text`;
  }
  const order = identityOrder(dataset).map((column) => (which === 'first' ? column : `${column} desc`));
  return `(select ${dataset.offset.sql} from ${table} t where ${test} order by ${order.join(', ')} limit 1)`;
}

function alignedRecountSql(
  dataset: DatasetDefinition,
  window: TimeWindow,
  table: string,
  columns: readonly string[],
): string {
  const events = dataset.aligned.countField ? `sum(t.${dataset.aligned.countField})::text` : 'null';
  return `select count(*) as rows, ${events} as events, sum(${alignedHashSql(dataset, columns)})::text as hash
    from ${table} t where t.dataset_id = ${dataset.number}${seriesCondition(dataset)}
    and t.aligned_at_utc >= '${new Date(window.fromMs).toISOString()}'
    and t.aligned_at_utc < '${new Date(window.toMs).toISOString()}'`;
}

/** SQL of the digest of one aligned row of alias `t`. */
export function alignedHashSql(dataset: DatasetDefinition, columns: readonly string[]): string {
  const required = new Set(dataset.aligned.fields.filter((field) => !field.nullable).flatMap((field) => field.columns));
  return columns
    .filter((column) => column !== 'series_id' && column !== 'dataset_id')
    .reduce(
      (seed, column) => valueHashSql(column, ALIGNED_COLUMNS[column as AlignedColumn], seed, !required.has(column)),
      '0::int8',
    );
}

/**
 * SQL that selects the one series of a dataset without a series key. The aligned index is (dataset, series, time); without
 * its second column the scan of a day would read the whole chunk.
 */
export const seriesCondition = (dataset: DatasetDefinition): string =>
  dataset.aligned.seriesKey.length > 0
    ? ''
    : ` and t.series_id = (select series_id from series where dataset_id = ${dataset.number} and key = '${seriesKeyFor(dataset)}')`;

/** A fact in which the recount differs from the manifest. A partition without discrepancies is proved. */
export interface Discrepancy {
  readonly fact: string;
  readonly expected: string;
  readonly found: string;
}

/** Compares a recount with the manifest. Expected values come from the publisher alone. */
export function compare(dataset: DatasetDefinition, manifest: Manifest, found: Recount): Discrepancy[] {
  const discrepancies: Discrepancy[] = [];
  const check = (fact: string, expected: unknown, actual: unknown) => {
    if (String(expected) !== String(actual)) {
      discrepancies.push({ fact, expected: String(expected), found: String(actual) });
    }
  };
  check('rows', manifest.rows, found.rows);
  // An empty partition has no further facts.
  if (manifest.rows === 0) return discrepancies;
  check('first_offset', manifest.first_offset, found.first_offset);
  check('last_offset', manifest.last_offset, found.last_offset);
  check('first_ms', manifest.first_ms, found.first_ms);
  check('last_ms', manifest.last_ms, found.last_ms);
  check('rows_hash', manifest.rows_hash, found.rows_hash);
  for (const { column } of dataset.native.totals) {
    check(`totals.${column}`, manifest.totals[column], found.totals[column]);
  }
  if (dataset.aligned.countField && found.aligned_rows !== null)
    check('aligned_events', manifest.rows, found.aligned_events);
  if (dataset.offset.contiguous) {
    const span = BigInt(manifest.last_offset) - BigInt(manifest.first_offset) + 1n;
    check('gaps', manifest.gaps, span - BigInt(found.rows));
    // The document itself lacks offsets: the projection is right, but the partition must not be served.
    if (manifest.gaps > 0) {
      const { missing_offsets: missing = [] } = manifest;
      const named = missing.length === 0 ? '' : `: ${missing.join(', ')}`;
      discrepancies.push({ fact: 'missing offsets', expected: '0', found: `${manifest.gaps}${named}` });
    }
  }
  return discrepancies;
}

export const describeDiscrepancies = (discrepancies: readonly Discrepancy[]): string =>
  discrepancies.map(({ fact, expected, found }) => `${fact}: expected ${expected}, found ${found}`).join('; ');
