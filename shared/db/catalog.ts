/**
 * Reading and moving the state of partitions and attempts. Plain SQL on purpose: every backfill and projector starts
 * with this module, and the query builder takes 340 ms to load; reports use it (shared/db/reports.ts).
 */
import type { ClientBase, Pool, QueryResultRow } from 'pg';
import type { DocumentFacts, Manifest } from '../frame/manifest.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { windowOf } from '../registry/partitions.ts';
import type { AttemptRow, CheckpointRow, CoverageRow, PartitionRow } from './schema.ts';

export type LedgerKind =
  | 'late_arrival_refused'
  | 'reingest_started'
  | 'revision_proved'
  | 'quarantined'
  | 'sample_retired'
  | 'replay_replaced';

const PARTITION_COLUMNS = `dataset_id as "datasetId", partition_key as "partitionKey", state, attempt, revision,
  from_ms as "fromMs", to_ms as "toMs", synthetic, rows, aligned_rows as "alignedRows", aligned_hash as "alignedHash",
  offsets, manifest, recount, reason, ingested_at as "ingestedAt", proved_at as "provedAt", updated_at as "updatedAt"`;
const ATTEMPT_COLUMNS = `dataset_id as "datasetId", partition_key as "partitionKey", attempt, revision, state, publisher,
  document, manifest, frames, first_sequence as "firstSequence", manifest_sequence as "manifestSequence", reason,
  started_at as "startedAt", updated_at as "updatedAt"`;
/** int8 columns: exact as numbers, and text from the driver. */
const NUMBERS = [
  'fromMs',
  'toMs',
  'rows',
  'alignedRows',
  'firstSequence',
  'manifestSequence',
  'streamSequence',
  'version',
];

export class Catalog {
  readonly #client: ClientBase | Pool;

  constructor(client: ClientBase | Pool) {
    this.#client = client;
  }

  async #rows<T extends object>(sql: string, values: readonly unknown[]): Promise<T[]> {
    const found = await (this.#client as Pool).query<QueryResultRow>(sql, [...values]);
    for (const row of found.rows) {
      for (const name of NUMBERS) if (typeof row[name] === 'string') row[name] = Number(row[name]);
    }
    return found.rows as T[];
  }

  async partition(dataset: DatasetDefinition, key: string): Promise<PartitionRow | undefined> {
    const sql = `select ${PARTITION_COLUMNS} from partitions where dataset_id = $1 and partition_key = $2`;
    return (await this.#rows<PartitionRow>(sql, [dataset.number, key]))[0];
  }

  /** Partitions whose window starts in [fromMs, toMs), in order of time. */
  async partitions(dataset: DatasetDefinition, fromMs = -8.64e15, toMs = 8.64e15): Promise<PartitionRow[]> {
    return await this.#rows<PartitionRow>(
      `select ${PARTITION_COLUMNS} from partitions where dataset_id = $1 and from_ms >= $2 and from_ms < $3
       order by from_ms, partition_key`,
      [dataset.number, fromMs, toMs],
    );
  }

  /** Newest first. */
  async attempts(dataset: DatasetDefinition, key: string): Promise<AttemptRow[]> {
    return await this.#rows<AttemptRow>(
      `select ${ATTEMPT_COLUMNS} from attempts where dataset_id = $1 and partition_key = $2 order by attempt desc`,
      [dataset.number, key],
    );
  }

  async attempt(dataset: DatasetDefinition, key: string, attempt: number): Promise<AttemptRow | undefined> {
    return (await this.attempts(dataset, key)).find((row) => row.attempt === attempt);
  }

  async coverage(dataset: DatasetDefinition): Promise<CoverageRow | undefined> {
    const sql = `select dataset_id as "datasetId", version, proved::text, synthetic, updated_at as "updatedAt"
      from coverage where dataset_id = $1`;
    return (await this.#rows<CoverageRow>(sql, [dataset.number]))[0];
  }

  async checkpoint(dataset: DatasetDefinition): Promise<CheckpointRow | undefined> {
    const sql = `select dataset_id as "datasetId", stream_created as "streamCreated", stream_sequence as "streamSequence",
      message_sha256 as "messageSha256", updated_at as "updatedAt" from checkpoints where dataset_id = $1`;
    return (await this.#rows<CheckpointRow>(sql, [dataset.number]))[0];
  }

  async seriesId(dataset: DatasetDefinition, key = ''): Promise<number> {
    const found = await this.#rows<{ series_id: number }>(
      'select series_id from series where dataset_id = $1 and key = $2',
      [dataset.number, key],
    );
    return found[0].series_id;
  }

  /**
   * Opens attempt number `attempt` (or re-opens it, when an interrupted one goes on). The partition itself moves to
   * `publishing` unless it is proved or quarantined: a revision is published behind the rows that are served, and a
   * quarantine ends with a proof, not with a try.
   */
  async openAttempt(
    dataset: DatasetDefinition,
    key: string,
    opening: { attempt: number; revision: number; publisher: string; document: DocumentFacts; synthetic: boolean },
  ): Promise<void> {
    const { fromMs, toMs } = windowOf(dataset, key);
    const { attempt, revision, publisher, document, synthetic } = opening;
    // One statement, so that it is one transaction on a pool as well.
    await this.#rows(
      `with abandoned as (
         update attempts set state = 'abandoned', reason = 'attempt ' || $3::int4 || ' follows', updated_at = clock_timestamp()
         where dataset_id = $1 and partition_key = $2 and state = 'publishing' and attempt < $3::int4),
       opened as (
         insert into attempts (dataset_id, partition_key, attempt, revision, state, publisher, document)
         values ($1, $2, $3, $4, 'publishing', $5, $6)
         on conflict (dataset_id, partition_key, attempt) do update set publisher = excluded.publisher, updated_at = clock_timestamp())
       insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic)
       values ($1, $2, 'publishing', $3, $4, $7, $8, $9)
       on conflict (dataset_id, partition_key) do update set state = 'publishing', attempt = excluded.attempt,
         revision = excluded.revision, synthetic = excluded.synthetic, reason = null, updated_at = clock_timestamp()
         where partitions.state not in ('proved', 'quarantined')`,
      [dataset.number, key, attempt, revision, publisher, document, fromMs, toMs, synthetic],
    );
  }

  /** The manifest is in the log. The projector may have been faster, so only an open attempt moves. */
  async markPublished(dataset: DatasetDefinition, manifest: Manifest, manifestSequence: number): Promise<void> {
    await this.#rows(
      `with published as (
         update attempts set state = case when state = 'publishing' then 'published' else state end, manifest = $4,
           manifest_sequence = $5, frames = $6, first_sequence = $7, updated_at = clock_timestamp()
         where dataset_id = $1 and partition_key = $2 and attempt = $3)
       update partitions set state = 'published', updated_at = clock_timestamp()
       where dataset_id = $1 and partition_key = $2 and attempt = $3 and state = 'publishing'`,
      [
        dataset.number,
        manifest.partition,
        manifest.attempt,
        manifest,
        manifestSequence,
        manifest.frames,
        manifest.first_sequence,
      ],
    );
  }

  /** Gives an open attempt up. Nothing of it is referenced, so its partition is missing again. */
  async abandonAttempt(dataset: DatasetDefinition, key: string, attempt: number, reason: string): Promise<void> {
    await this.#rows(
      `with abandoned as (
         update attempts set state = 'abandoned', reason = $4, updated_at = clock_timestamp()
         where dataset_id = $1 and partition_key = $2 and attempt = $3 and state = 'publishing')
       delete from partitions where dataset_id = $1 and partition_key = $2 and attempt = $3 and state = 'publishing'`,
      [dataset.number, key, attempt, reason],
    );
  }

  async record(
    dataset: DatasetDefinition,
    key: string,
    kind: LedgerKind,
    reason: string,
    details: Record<string, unknown> = {},
  ): Promise<void> {
    await this.#rows(
      'insert into ledger (dataset_id, partition_key, kind, reason, details) values ($1, $2, $3, $4, $5)',
      [dataset.number, key, kind, reason, details],
    );
  }
}
