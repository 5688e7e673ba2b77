/**
 * The recount: what the stored rows of a partition say about themselves, in the same terms as the manifest. Computed
 * by the database over any table of the native shape (the chunk just loaded, the hypertable, a scratch table).
 */
import type { ClientBase } from 'pg';
import type { Manifest } from '../frame/manifest.ts';
import { ALIGNED_COLUMNS, type AlignedColumn } from '../registry/aligned-storage.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import type { Window } from '../registry/partitions.ts';
import { rowHashSql, valueHashSql } from './row-hash.ts';
import { totalSql } from './totals.ts';

export interface Recount {
  readonly rows: number;
  readonly first_offset: string | null;
  readonly last_offset: string | null;
  readonly first_ms: number | null;
  readonly last_ms: number | null;
  readonly rows_hash: string | null;
  readonly totals: Readonly<Record<string, string | null>>;
  readonly aligned_rows: number;
  /** Sum of the aligned rows' event counts, where the dataset has one. */
  readonly aligned_events: number | null;
  /** Order-independent digest of the aligned rows: two projections of the same events agree on it. */
  readonly aligned_hash: string | null;
}

export interface Tables {
  readonly native: string;
  readonly aligned: string;
}

/** One scan of each table, bounded by the window's literal times so that only its chunks are visited. */
export async function recount(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: Window,
  tables: Tables,
  alignedColumns: readonly string[],
): Promise<Recount> {
  // A chunk just loaded has no statistics yet, and the planner would visit 3.5 M rows through their index (0.7 s); all of
  // them are wanted, so the table is read as it lies, by several workers (0.4 s). Inside the caller's transaction.
  await client.query('set local enable_indexscan = off; set local enable_bitmapscan = off');
  const native = await client.query(nativeRecountSql(dataset, window, tables.native));
  await client.query('set local enable_indexscan = on; set local enable_bitmapscan = on');
  const aligned = await client.query(alignedRecountSql(dataset, window, tables.aligned, alignedColumns));
  const n = native.rows[0];
  const a = aligned.rows[0];
  const number = (text: string | null) => (text === null ? null : Number(text));
  return {
    rows: Number(n.rows),
    first_offset: n.first_offset,
    last_offset: n.last_offset,
    first_ms: number(n.first_ms),
    last_ms: number(n.last_ms),
    rows_hash: n.rows_hash,
    totals: Object.fromEntries(dataset.native.totals.map(({ column }) => [column, n[`total_${column}`]])),
    aligned_rows: Number(a.rows),
    aligned_events: number(a.events),
    aligned_hash: a.hash,
  };
}

export function nativeRecountSql(dataset: DatasetDefinition, window: Window, table: string): string {
  const { native } = dataset;
  const time = `t."${native.time.column}"`;
  const id = `t."${native.identity[0]}"`;
  const totals = native.totals.map(({ column, scale }) => `${totalSql(column, scale)} as "total_${column}"`);
  return `select count(*) as rows, min(${id})::text as first_offset, max(${id})::text as last_offset,
    min(${time}) as first_ms, max(${time}) as last_ms, sum(${rowHashSql(native)})::text as rows_hash,
    ${totals.join(', ')}
    from ${table} t where ${time} >= ${window.fromMs} and ${time} < ${window.toMs}`;
}

function alignedRecountSql(
  dataset: DatasetDefinition,
  window: Window,
  table: string,
  columns: readonly string[],
): string {
  const required = new Set(dataset.aligned.fields.filter((field) => !field.nullable).flatMap((field) => field.columns));
  const hash = columns
    .filter((column) => column !== 'series_id' && column !== 'dataset_id')
    .reduce(
      (seed, column) => valueHashSql(column, ALIGNED_COLUMNS[column as AlignedColumn], seed, !required.has(column)),
      '0::int8',
    );
  const events = dataset.aligned.countField ? `sum(t.${dataset.aligned.countField})::text` : 'null';
  return `select count(*) as rows, ${events} as events, sum(${hash})::text as hash
    from ${table} t where t.dataset_id = ${dataset.number}${seriesCondition(dataset)}
    and t.aligned_at_utc >= '${new Date(window.fromMs).toISOString()}'
    and t.aligned_at_utc < '${new Date(window.toMs).toISOString()}'`;
}

/**
 * The one series of a dataset without a series key: the aligned index is (dataset, series, time), and without its second
 * column a day's scan would visit the whole chunk.
 */
export const seriesCondition = (dataset: DatasetDefinition): string =>
  dataset.aligned.seriesKey.length > 0
    ? ''
    : ` and t.series_id = (select series_id from series where dataset_id = ${dataset.number} and key = '')`;

/** Name, expected and found of everything that does not agree; empty = proved. */
export interface Discrepancy {
  readonly fact: string;
  readonly expected: string;
  readonly found: string;
}

/** Manifest against recount. Expected values come from the publishing side alone. */
export function compare(dataset: DatasetDefinition, manifest: Manifest, found: Recount): Discrepancy[] {
  const discrepancies: Discrepancy[] = [];
  const check = (fact: string, expected: unknown, actual: unknown) => {
    if (String(expected) !== String(actual)) {
      discrepancies.push({ fact, expected: String(expected), found: String(actual) });
    }
  };
  check('rows', manifest.rows, found.rows);
  check('first_offset', manifest.first_offset, found.first_offset);
  check('last_offset', manifest.last_offset, found.last_offset);
  check('first_ms', manifest.first_ms, found.first_ms);
  check('last_ms', manifest.last_ms, found.last_ms);
  check('rows_hash', manifest.rows_hash, found.rows_hash);
  for (const { column } of dataset.native.totals) {
    check(`totals.${column}`, manifest.totals[column], found.totals[column]);
  }
  if (dataset.aligned.countField) check('aligned_events', manifest.rows, found.aligned_events);
  if (dataset.offset.contiguous) {
    const span = BigInt(manifest.last_offset) - BigInt(manifest.first_offset) + 1n;
    check('gaps', manifest.gaps, span - BigInt(found.rows));
    // What the document itself lacks is no fault of the projection, and yet nothing to serve.
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
