/**
 * The state of the whole system, from the catalog and the log, as one value. `status`, `doctor`, `/metrics` and `/v1/ops` render it,
 * so that their figures cannot differ.
 */

import type { JetStreamManager } from '@nats-io/jetstream';
import type { ClientBase } from 'pg';
import { hasColumnstore } from '../db/connect.ts';
import { type RunRow, reportedRuns } from '../db/runs.ts';
import { explain } from '../errors.ts';
import type { Range } from '../ranges.ts';
import { DATASETS, type DatasetDefinition } from '../registry/index.ts';
import { dayOfKey, keyFacts } from '../registry/keys.ts';
import { type DatasetDetails, type DatasetFacts, readCatalogFacts } from './catalog-facts.ts';
import { type LogFacts, LogFactsReader } from './log-facts.ts';
import { type ProvedRanges, provedRanges } from './proved-ranges.ts';

export interface Lag {
  /** Messages of the log that are not projected: frames and manifests. */
  readonly frames: number;
  /** Their events: exact for whole attempts, estimated from the newest frame for an attempt that is still being written. */
  readonly events: number;
  /** Event time that the waiting messages cover, or from the proved end to their newest event, whichever is longer. */
  readonly event_time_seconds: number;
  /** Time for which the oldest of them has been waiting. */
  readonly oldest_seconds: number;
}

interface LogOverview {
  readonly messages: number;
  readonly bytes: number;
  readonly max_bytes: number;
  readonly last_sequence: number;
  readonly checkpoint_sequence: number;
  readonly lag: Lag;
}

export interface Overview {
  readonly dataset: string;
  readonly coverage_version: number;
  readonly synthetic: boolean;
  readonly rows: number;
  readonly partitions: {
    readonly missing: number;
    readonly publishing: number;
    readonly published: number;
    readonly proved: number;
    readonly quarantined: number;
  };
  readonly proved_from_utc: string | null;
  /** The end of the source that is furthest behind. */
  readonly proved_through_utc: string | null;
  readonly late_arrivals_total: number;
  readonly late_arrivals_open: number;
  /** Names of the connections that hold the locks of publisher and projector. */
  readonly publisher: string | null;
  readonly projector: string | null;
  /** Null where there is no stream yet, or the log does not answer. */
  readonly log: LogOverview | null;
}

function overviewOf(
  dataset: DatasetDefinition,
  facts: DatasetFacts,
  log: LogFacts | undefined,
  { nowMs, listed }: { readonly nowMs: number; readonly listed?: readonly Range[] },
): { readonly overview: Overview; readonly ranges: ProvedRanges } {
  const ranges = provedRanges(dataset, facts.runs, facts.unprovedSpans, listed);
  const overview: Overview = {
    dataset: dataset.key,
    coverage_version: facts.version,
    synthetic: facts.synthetic,
    rows: facts.rows,
    partitions: { missing: ranges.missing, ...facts.partitions },
    proved_from_utc: iso(ranges.fromMs),
    proved_through_utc: iso(ranges.throughMs),
    late_arrivals_total: facts.lateArrivals,
    late_arrivals_open: facts.lateArrivalsOpen,
    publisher: facts.publisher ?? null,
    projector: facts.projector ?? null,
    log: log ? logOverview(dataset, facts, log, { throughMs: ranges.throughMs, nowMs }) : null,
  };
  return { overview, ranges };
}

function logOverview(
  dataset: DatasetDefinition,
  facts: DatasetFacts,
  log: LogFacts,
  at: { readonly throughMs: number | undefined; readonly nowMs: number },
): LogOverview {
  const checkpoint = facts.checkpoint?.sequence ?? 0;
  const frames = log.consumer ? log.consumer.waiting : Math.max(0, log.lastSequence - checkpoint);
  const oldestMs = log.waitingSince ? Math.max(0, at.nowMs - log.waitingSince.getTime()) : 0;
  return {
    messages: log.messages,
    bytes: log.bytes,
    max_bytes: log.maxBytes,
    last_sequence: log.lastSequence,
    checkpoint_sequence: checkpoint,
    lag: {
      frames,
      ...(frames > 0 ? waiting(dataset, facts, log, at.throughMs) : NOTHING),
      oldest_seconds: oldestMs / 1000,
    },
  };
}

const NOTHING = { events: 0, event_time_seconds: 0 };

interface UnprojectedPart {
  readonly rows: number;
  readonly fromMs: number;
  readonly toMs: number;
}

function waiting(
  dataset: DatasetDefinition,
  { open }: DatasetFacts,
  { newest }: LogFacts,
  throughMs: number | undefined,
): typeof NOTHING {
  const parts: UnprojectedPart[] = open
    .filter(({ state }) => state === 'published')
    .map(({ rows = 0, firstMs = 0, lastMs = firstMs }) => ({ rows, fromMs: firstMs, toMs: lastMs + 1 }));
  if (newest) {
    const isDay = dataset.partition.kind === 'file_day';
    const { times } = keyFacts(dataset, isDay ? dayOfKey(newest.partition) : newest.partition);
    // Only the key of a window partition gives its start.
    const fromMs = Number.isFinite(times.fromMs) && times.fromMs > -8.64e15 ? times.fromMs : newest.first_ms;
    parts.push({ rows: newest.rows * (newest.frame + 1), fromMs, toMs: newest.last_ms + 1 });
  }
  if (parts.length === 0) return NOTHING;
  const length = parts.reduce((sum, { fromMs, toMs }) => sum + (toMs - fromMs), 0);
  const newestMs = Math.max(...parts.map(({ toMs }) => toMs));
  return {
    events: parts.reduce((sum, { rows }) => sum + rows, 0),
    event_time_seconds: Math.max(length, throughMs === undefined ? 0 : newestMs - throughMs) / 1000,
  };
}

const iso = (ms: number | undefined) => (ms === undefined ? null : new Date(ms).toISOString());

export interface DatasetState {
  readonly dataset: DatasetDefinition;
  readonly overview: Overview;
  readonly ranges: ProvedRanges;
  readonly facts: DatasetFacts;
  /** Undefined where they were not asked for. */
  readonly details: DatasetDetails | undefined;
}

export interface State extends Storage {
  readonly atMs: number;
  readonly collectMs: number;
  readonly statuses: readonly DatasetState[];
  /** Why the log did not answer; the facts of the catalog do not depend on it. */
  readonly logFault: string | undefined;
  /** The latest, all in progress, and those that were killed and not begun again; newest first. */
  readonly runs: readonly RunRow[];
  /** Undefined until the exports table exists. */
  readonly exports: ExportCounts | undefined;
  readonly proofLog: ProofLogFacts;
  readonly lakes: readonly LakeFacts[];
}

/** What changes slowly. To size a database means to stat its files one by one: a tenth of a second with thousands of chunks. */
export interface Storage {
  readonly databaseBytes: number;
  /** The tables that a compaction has reached; undefined on a server without a columnstore. */
  readonly columnstore: readonly ColumnstoreTable[] | undefined;
}

interface StateOptions {
  readonly logs?: LogFactsReader;
  readonly now?: () => number;
  /** Of a moment ago. */
  readonly storage?: Storage;
  /** Whether to read the details too, which look at each partition: for an operator who asks, not for monitors. */
  readonly detailed?: boolean;
  /** Instruments beside the defaults, whose state follows that of the datasets. */
  readonly instruments?: readonly DatasetDefinition[];
  /** When they were listed. */
  readonly listed?: (instrument: DatasetDefinition) => readonly Range[] | undefined;
}

/** Reads the catalog before the log, so that messages projected in between make the lag too small, never too large. */
export async function readState(
  client: ClientBase,
  manager: () => Promise<JetStreamManager>,
  {
    logs = new LogFactsReader(),
    now = Date.now,
    storage,
    detailed = false,
    instruments = [],
    listed,
  }: StateOptions = {},
): Promise<State> {
  const startedAt = performance.now();
  const datasets = [...DATASETS.values()];
  const all = [...datasets, ...instruments];
  const { facts, details } = await readCatalogFacts(client, detailed, all);
  let found: (LogFacts | undefined)[] = [];
  let logFault: string | undefined;
  try {
    const asked = await manager();
    found = await Promise.all(datasets.map(({ key }) => logs.read(asked, key)));
  } catch (error) {
    logFault = explain(error);
  }
  const atMs = now();
  return {
    atMs,
    logFault,
    // The log of an exchange is one, and the default's state tells of it.
    statuses: all.map((dataset, index) => {
      const [ofDataset, log] = [facts.get(dataset.number)!, found[index]];
      const computed = overviewOf(dataset, ofDataset, log, { nowMs: atMs, listed: listed?.(dataset) });
      return { dataset, facts: ofDataset, details: details?.get(dataset.number), ...computed };
    }),
    ...(storage ?? (await readStorage(client))),
    runs: await reportedRuns(client),
    exports: await readExports(client),
    proofLog: await readProofLog(client),
    lakes: await readLakes(client),
    collectMs: performance.now() - startedAt,
  };
}

async function readStorage(client: ClientBase): Promise<Storage> {
  const { rows } = await client.query('select pg_database_size(current_database()) as bytes');
  return { databaseBytes: Number(rows[0].bytes), columnstore: await readColumnstore(client) };
}

const EXPORT_STATES = ['queued', 'running', 'succeeded', 'failed'] as const;
export type ExportCounts = Readonly<Record<(typeof EXPORT_STATES)[number], number>>;

async function readExports(client: ClientBase): Promise<ExportCounts | undefined> {
  const { rows: table } = await client.query(`select to_regclass('exports') is not null as there`);
  if (!table[0].there) return undefined;
  const { rows } = await client.query('select state, count(*)::float8 as exports from exports group by state');
  const counts = new Map(rows.map(({ state, exports }) => [state, exports]));
  return Object.fromEntries(EXPORT_STATES.map((state) => [state, counts.get(state) ?? 0])) as ExportCounts;
}

/** A hypertable whose chunks go into the columnstore. */
export interface ColumnstoreTable {
  readonly table: string;
  readonly chunks: number;
  readonly compacted_chunks: number;
  /** Of the compacted chunks, with their indexes: as rows, before they were compacted. */
  readonly row_bytes: number;
  /** And as columns. */
  readonly column_bytes: number;
}

async function readColumnstore(client: ClientBase): Promise<readonly ColumnstoreTable[] | undefined> {
  if (!(await hasColumnstore(client))) return undefined;
  const { rows } = await client.query<ColumnstoreTable>(
    `select h.hypertable_name as table, s.total_chunks::float8 as chunks, s.number_compressed_chunks::float8 as compacted_chunks,
       coalesce(s.before_compression_total_bytes, 0)::float8 as row_bytes,
       coalesce(s.after_compression_total_bytes, 0)::float8 as column_bytes
     from timescaledb_information.hypertables h
     cross join lateral hypertable_compression_stats(format('%I.%I', h.hypertable_schema, h.hypertable_name)::regclass) s
     where h.compression_enabled and h.hypertable_schema = current_schema order by 1`,
  );
  return rows;
}

/** A lake, as its writer stated it last. */
export interface LakeFacts {
  readonly folder: string;
  readonly host: string;
  readonly files: number;
  readonly rows: number;
  readonly bytes: number;
  /** The lake has every change before this leaf of the proof log; and how many leaves have followed. */
  readonly change: number;
  readonly behind: number;
  readonly fault: string | null;
  readonly written_at_utc: string;
  readonly checked_at_utc: string;
}

async function readLakes(client: ClientBase): Promise<LakeFacts[]> {
  const { rows } = await client.query(
    `select folder, host, files::float8 as files, rows::float8 as rows, bytes::float8 as bytes, change::float8 as change, fault,
       greatest(0, (select coalesce(max(leaf_index) + 1, 0) from proof_leaves) - change)::float8 as behind, written_at, checked_at
     from lakes order by folder collate "C"`,
  );
  return rows.map(({ written_at: writtenAt, checked_at: checkedAt, ...facts }) => ({
    ...facts,
    written_at_utc: (writtenAt as Date).toISOString(),
    checked_at_utc: (checkedAt as Date).toISOString(),
  }));
}

/** The proof log as a whole. */
export interface ProofLogFacts {
  /** Leaves of the last signed checkpoint. */
  readonly size: number;
  /** Its root, in base64; null before the first checkpoint. */
  readonly root: string | null;
  readonly signed_at_utc: string | null;
  /** Leaves that no checkpoint covers yet, and how long the oldest of them has been waiting. */
  readonly pending: number;
  readonly oldest_pending_seconds: number;
}

async function readProofLog(client: ClientBase): Promise<ProofLogFacts> {
  const { rows } = await client.query(
    `select h.signed_size::float8 as size, h.checkpoint, h.signed_at, p.pending, p.oldest
     from (select count(*)::float8 as pending, coalesce(extract(epoch from clock_timestamp() - min(written_at)), 0)::float8 as oldest
       from proof_leaves where leaf_index is null or leaf_index >= (select coalesce(max(signed_size), 0) from proof_head)) p
     left join proof_head h on true`,
  );
  const [{ size, checkpoint, signed_at: at, pending, oldest }] = rows;
  return {
    size: size ?? 0,
    root: (checkpoint as string | null)?.split('\n')[2] ?? null,
    signed_at_utc: (at as Date | null)?.toISOString() ?? null,
    pending,
    oldest_pending_seconds: Math.max(0, oldest),
  };
}
