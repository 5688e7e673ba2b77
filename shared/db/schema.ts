/**
 * The tables of the catalog: the one place that lists their columns and types. Row types, select lists and the conversion
 * of the driver's values derive from it. `migrations/` creates the tables; a test and `doctor` compare them with this list.
 */
import { createRequire } from 'node:module';
import type * as Columns from 'drizzle-orm/pg-core/columns';
import type * as Tables from 'drizzle-orm/pg-core/table';
import type * as Names from 'drizzle-orm/table';
import type * as Utils from 'drizzle-orm/utils';
import type { DocumentFacts, Manifest } from '../frame/manifest.ts';
import type { Recount } from '../proof/recount.ts';
import type { ValueRanges } from '../proof/value-ranges.ts';

// Drizzle is loaded as CommonJS, and its query builder not at all. For each module that is imported, Node parses drizzle's
// package.json (179 KB) again, which costs every command 210 ms of processor time. Required modules cost 23 ms.
const require = createRequire(import.meta.url);
const { bigint, boolean, customType, doublePrecision, integer, jsonb, smallint, text, timestamp }: typeof Columns =
  require('drizzle-orm/pg-core/columns');
const { pgTable }: typeof Tables = require('drizzle-orm/pg-core/table');
const { getTableName }: typeof Names = require('drizzle-orm/table');
const { getTableColumns }: typeof Utils = require('drizzle-orm/utils');

export const PARTITION_STATES = ['publishing', 'published', 'proved', 'quarantined'] as const;
export type PartitionState = (typeof PARTITION_STATES)[number];
export const ATTEMPT_STATES = ['publishing', 'published', 'proved', 'quarantined', 'refused', 'abandoned'] as const;

const range = customType<{ data: string }>({ dataType: () => 'int8range' });
const multirange = customType<{ data: string }>({ dataType: () => 'int8multirange' });
const at = (name: string) => timestamp(name, { withTimezone: true, mode: 'date' });
const big = (name: string) => bigint(name, { mode: 'number' });

export const attempts = pgTable('attempts', {
  datasetId: smallint('dataset_id').notNull(),
  partitionKey: text('partition_key').notNull(),
  attempt: integer('attempt').notNull(),
  revision: integer('revision').notNull(),
  state: text('state', { enum: ATTEMPT_STATES }).notNull(),
  publisher: text('publisher').notNull(),
  document: jsonb('document').$type<DocumentFacts>().notNull(),
  manifest: jsonb('manifest').$type<Manifest>(),
  frames: integer('frames'),
  firstSequence: big('first_sequence'),
  manifestSequence: big('manifest_sequence'),
  reason: text('reason'),
  startedAt: at('started_at').notNull().defaultNow(),
  updatedAt: at('updated_at').notNull().defaultNow(),
});

export const partitions = pgTable('partitions', {
  datasetId: smallint('dataset_id').notNull(),
  partitionKey: text('partition_key').notNull(),
  state: text('state', { enum: PARTITION_STATES }).notNull(),
  attempt: integer('attempt').notNull(),
  revision: integer('revision').notNull(),
  /** Null until the manifest is published, where the key does not give the window. */
  fromMs: big('from_ms'),
  toMs: big('to_ms'),
  synthetic: boolean('synthetic').notNull(),
  rows: big('rows'),
  alignedRows: big('aligned_rows'),
  alignedHash: text('aligned_hash'),
  offsets: range('offsets'),
  manifest: jsonb('manifest').$type<Manifest>(),
  recount: jsonb('recount').$type<Recount>(),
  reason: text('reason'),
  ingestedAt: at('ingested_at'),
  lastUpdatedAt: at('last_updated_at'),
  /** Generated from the manifest, as `capturedMs` is. */
  documentSha256: text('document_sha256'),
  capturedMs: big('captured_ms'),
  provedAt: at('proved_at'),
  updatedAt: at('updated_at').notNull().defaultNow(),
  sourceId: text('source_id'),
  span: range('span'),
  throughMs: big('through_ms'),
  verifiedAt: at('verified_at'),
  /** When its source was last asked about it, as an old day. */
  askedAt: at('asked_at'),
  /** Another document with the same content. */
  sameDocument: jsonb('same_document').$type<{ readonly attempt: number; readonly document: DocumentFacts }>(),
  /** Digest of the kept klines; null where none are kept. */
  klinesSha256: text('klines_sha256'),
  /** The times of aligned rows that longer klines of trades cannot be added up from; null where that is not known. */
  inexactSeconds: multirange('inexact_seconds'),
  /** Smallest and largest values by column. */
  valueRanges: jsonb('value_ranges').$type<ValueRanges>(),
  /** Of a proved partition, in canonical bytes. */
  facts: text('facts'),
});

export const coverage = pgTable('coverage', {
  datasetId: smallint('dataset_id').primaryKey(),
  version: big('version').notNull(),
  proved: multirange('proved').notNull(),
  synthetic: boolean('synthetic').notNull(),
  updatedAt: at('updated_at').notNull().defaultNow(),
  withheld: text('withheld').array().notNull().default([]),
});

export const coverageSpans = pgTable('coverage_spans', {
  datasetId: smallint('dataset_id').notNull(),
  sourceId: text('source_id').notNull(),
  span: range('span').notNull(),
  fromMs: big('from_ms').notNull(),
  toMs: big('to_ms').notNull(),
  throughMs: big('through_ms').notNull(),
  partitions: big('partitions').notNull(),
  rows: big('rows').notNull(),
});

export const sourceChecks = pgTable('source_checks', {
  datasetId: smallint('dataset_id').notNull(),
  sourceId: text('source_id').notNull(),
  throughMs: big('through_ms').notNull(),
  checkedAt: at('checked_at').notNull().defaultNow(),
});

export const checkpoints = pgTable('checkpoints', {
  datasetId: smallint('dataset_id').primaryKey(),
  streamCreated: at('stream_created').notNull(),
  streamSequence: big('stream_sequence').notNull(),
  messageSha256: text('message_sha256').notNull(),
  updatedAt: at('updated_at').notNull().defaultNow(),
});

export const frames = pgTable('frames', {
  datasetId: smallint('dataset_id').notNull(),
  streamSequence: big('stream_sequence').notNull(),
  partitionKey: text('partition_key').notNull(),
  firstOffset: text('first_offset').notNull(),
  lastOffset: text('last_offset').notNull(),
  firstMs: big('first_ms').notNull(),
  lastMs: big('last_ms').notNull(),
  rows: integer('rows').notNull(),
  rowBase: big('row_base').notNull(),
  valueRanges: jsonb('value_ranges').$type<ValueRanges>(),
  granuleOffsets: big('granule_offsets').array(),
  granuleFirstMs: integer('granule_first_ms').array(),
  granuleLastMs: integer('granule_last_ms').array(),
  granuleRanges: doublePrecision('granule_ranges').array(),
});

export const ledger = pgTable('ledger', {
  entryId: big('entry_id').generatedAlwaysAsIdentity().primaryKey(),
  at: at('at').notNull().defaultNow(),
  datasetId: smallint('dataset_id').notNull(),
  partitionKey: text('partition_key').notNull(),
  kind: text('kind').notNull(),
  reason: text('reason').notNull(),
  details: jsonb('details').notNull().default({}),
});

/** All tables of this file. */
export const CATALOG_TABLES: readonly Tables.PgTable[] = [
  attempts,
  partitions,
  coverage,
  coverageSpans,
  sourceChecks,
  checkpoints,
  frames,
  ledger,
];

export type AttemptRow = typeof attempts.$inferSelect;
export type PartitionRow = typeof partitions.$inferSelect;
export type CheckpointRow = typeof checkpoints.$inferSelect;
export type CoverageRow = typeof coverage.$inferSelect;
export type LedgerRow = typeof ledger.$inferSelect;

/** Name and columns of a table, for comparison with a database. Types are as PostgreSQL's `format_type` writes them. */
export const describeTable = (table: Tables.PgTable) => ({
  name: getTableName(table),
  columns: Object.values(getTableColumns(table)).map((column) => ({
    name: column.name,
    type: column.getSQLType(),
    notNull: column.notNull,
  })),
});

/** How SQL selects columns of a table, and how the driver's rows become typed rows. */
export interface CatalogShape<Row> {
  /** The select list, with members as names: `from_ms as "fromMs", ...`. */
  readonly columns: string;
  /** Converts the driver's values in place, for example an int8 from text to a number. Nulls stay. */
  decode(rows: readonly object[]): Row[];
}

/**
 * @param members The columns to select, by the names of their members; all of them if not given.
 * @param alias The name of the table in a join.
 */
export function rowsOf<T extends Tables.PgTable, Member extends keyof T['$inferSelect'] & string>(
  table: T,
  members?: readonly Member[],
  alias?: string,
): CatalogShape<Pick<T['$inferSelect'], Member>> {
  const columns = Object.entries(getTableColumns(table)).filter(
    ([member]) => members?.includes(member as Member) ?? true,
  );
  const prefix = alias === undefined ? '' : `${alias}.`;
  return {
    columns: columns.map(([member, { name }]) => `${prefix}${name} as "${member}"`).join(', '),
    decode(rows) {
      for (const row of rows as Record<string, unknown>[]) {
        for (const [member, column] of columns) {
          if (row[member] !== null) row[member] = column.mapFromDriverValue(row[member]);
        }
      }
      return rows as Pick<T['$inferSelect'], Member>[];
    },
  };
}

/** SQL that stores rows passed as one JSON list of objects, whose members are those of the row type. */
interface StoredColumns<Row> {
  /** `from_ms, ...` */
  readonly names: string;
  /** The members in the same order: `"fromMs", ...`. */
  readonly members: string;
  /** The columns of `jsonb_to_recordset`: `"fromMs" bigint, ...`. */
  readonly definitions: string;
  /** `from_ms = excluded.from_ms, ...` */
  readonly updates: string;
  /** The type of an object; undefined at run time. */
  readonly row?: Row;
}

export type StoredRow<Stored extends StoredColumns<unknown>> = NonNullable<Stored['row']>;

export function storedColumns<T extends Tables.PgTable, Member extends keyof T['$inferSelect'] & string>(
  table: T,
  members: readonly Member[],
): StoredColumns<Pick<T['$inferSelect'], Member>> {
  const all = getTableColumns(table);
  const columns = members.map((member) => all[member]);
  return {
    names: columns.map(({ name }) => name).join(', '),
    members: members.map((member) => `"${member}"`).join(', '),
    definitions: members.map((member, index) => `"${member}" ${columns[index].getSQLType()}`).join(', '),
    updates: columns.map(({ name }) => `${name} = excluded.${name}`).join(', '),
  };
}
