/** The catalog tables for drizzle, with the types of the columns. A test keeps them equal to `migrations/`. */

import { createRequire } from 'node:module';
import type { DocumentFacts, Manifest } from '../frame/manifest.ts';
import type { Recount } from '../proof/recount.ts';

// The query builder is loaded as CommonJS. Its package.json lists a thousand entry points, and Node reads that list again for
// each module that is imported, but not for one that is required: loading takes 70 ms instead of 400.

const require = createRequire(import.meta.url);
export const orm = require('drizzle-orm') as typeof import('drizzle-orm');
export const pgCore = require('drizzle-orm/pg-core') as typeof import('drizzle-orm/pg-core');
export const { drizzle } = require('drizzle-orm/node-postgres') as typeof import('drizzle-orm/node-postgres');

/** The states of a partition. Import them as a type where possible, because this module loads the query builder. */
export const PARTITION_STATES = ['publishing', 'published', 'proved', 'quarantined'] as const;

const { bigint, boolean, customType, integer, jsonb, pgTable, smallint, text, timestamp } = pgCore;

const range = customType<{ data: string }>({ dataType: () => 'int8range' });
const multirange = customType<{ data: string }>({ dataType: () => 'int8multirange' });
const at = (name: string) => timestamp(name, { withTimezone: true, mode: 'date' });
const big = (name: string) => bigint(name, { mode: 'number' });

export const ATTEMPT_STATES = ['publishing', 'published', 'proved', 'quarantined', 'refused', 'abandoned'] as const;

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
  /** Generated from the manifest. */
  documentSha256: text('document_sha256'),
  provedAt: at('proved_at'),
  updatedAt: at('updated_at').notNull().defaultNow(),
  sourceId: text('source_id'),
  span: range('span'),
  throughMs: big('through_ms'),
  verifiedAt: at('verified_at'),
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

export type AttemptRow = typeof attempts.$inferSelect;
export type PartitionRow = typeof partitions.$inferSelect;
export type CheckpointRow = typeof checkpoints.$inferSelect;
export type CoverageRow = typeof coverage.$inferSelect;
export type LedgerRow = typeof ledger.$inferSelect;
