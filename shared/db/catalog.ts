/** Reading and moving the state of partitions and attempts. The projector's own commit is in pipelines/project. */
import { and, desc, eq, gte, lt, sql } from 'drizzle-orm';
import { drizzle, type NodePgDatabase } from 'drizzle-orm/node-postgres';
import type { ClientBase, Pool } from 'pg';
import type { DocumentFacts, Manifest } from '../frame/manifest.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { windowOf } from '../registry/partitions.ts';
import {
  type AttemptRow,
  attempts,
  checkpoints,
  coverage,
  frames,
  ledger,
  type PartitionRow,
  partitions,
} from './schema.ts';

export type LedgerKind =
  | 'late_arrival_refused'
  | 'reingest_started'
  | 'revision_proved'
  | 'quarantined'
  | 'sample_retired'
  | 'replay_replaced';

export class Catalog {
  readonly #db: NodePgDatabase;
  readonly #client: ClientBase | Pool;

  constructor(client: ClientBase | Pool) {
    this.#client = client;
    this.#db = drizzle(client as Pool);
  }

  async partition(dataset: DatasetDefinition, key: string): Promise<PartitionRow | undefined> {
    const rows = await this.#db
      .select()
      .from(partitions)
      .where(and(eq(partitions.datasetId, dataset.number), eq(partitions.partitionKey, key)));
    return rows[0];
  }

  /** Partitions whose window starts in [fromMs, toMs), in order of time. */
  async partitions(dataset: DatasetDefinition, fromMs = -8.64e15, toMs = 8.64e15): Promise<PartitionRow[]> {
    return await this.#db
      .select()
      .from(partitions)
      .where(and(eq(partitions.datasetId, dataset.number), gte(partitions.fromMs, fromMs), lt(partitions.fromMs, toMs)))
      .orderBy(partitions.fromMs, partitions.partitionKey);
  }

  async attempts(dataset: DatasetDefinition, key: string): Promise<AttemptRow[]> {
    return await this.#db
      .select()
      .from(attempts)
      .where(and(eq(attempts.datasetId, dataset.number), eq(attempts.partitionKey, key)))
      .orderBy(desc(attempts.attempt));
  }

  async attempt(dataset: DatasetDefinition, key: string, attempt: number): Promise<AttemptRow | undefined> {
    return (await this.attempts(dataset, key)).find((row) => row.attempt === attempt);
  }

  async coverage(dataset: DatasetDefinition) {
    const rows = await this.#db.select().from(coverage).where(eq(coverage.datasetId, dataset.number));
    return rows[0];
  }

  async checkpoint(dataset: DatasetDefinition) {
    const rows = await this.#db.select().from(checkpoints).where(eq(checkpoints.datasetId, dataset.number));
    return rows[0];
  }

  async frames(dataset: DatasetDefinition, key: string) {
    return await this.#db
      .select()
      .from(frames)
      .where(and(eq(frames.datasetId, dataset.number), eq(frames.partitionKey, key)))
      .orderBy(frames.streamSequence);
  }

  async ledger(dataset: DatasetDefinition, limit = 100) {
    return await this.#db
      .select()
      .from(ledger)
      .where(eq(ledger.datasetId, dataset.number))
      .orderBy(desc(ledger.entryId))
      .limit(limit);
  }

  async seriesId(dataset: DatasetDefinition, key = ''): Promise<number> {
    const found = await this.#client.query('select series_id from series where dataset_id = $1 and key = $2', [
      dataset.number,
      key,
    ]);
    return found.rows[0].series_id;
  }

  /**
   * Opens attempt number `attempt` (or re-opens it, when an interrupted one goes on). The partition itself moves to
   * `publishing` unless it is proved: a revision is published behind the rows that are served.
   */
  async openAttempt(
    dataset: DatasetDefinition,
    key: string,
    opening: { attempt: number; revision: number; publisher: string; document: DocumentFacts; synthetic: boolean },
  ): Promise<void> {
    const { fromMs, toMs } = windowOf(dataset, key);
    const { attempt, revision, publisher, document, synthetic } = opening;
    await this.#db.transaction(async (tx) => {
      await tx
        .update(attempts)
        .set({ state: 'abandoned', reason: `attempt ${attempt} follows`, updatedAt: sql`clock_timestamp()` })
        .where(
          and(
            eq(attempts.datasetId, dataset.number),
            eq(attempts.partitionKey, key),
            eq(attempts.state, 'publishing'),
            lt(attempts.attempt, attempt),
          ),
        );
      await tx
        .insert(attempts)
        .values({
          datasetId: dataset.number,
          partitionKey: key,
          attempt,
          revision,
          state: 'publishing',
          publisher,
          document,
        })
        .onConflictDoUpdate({
          target: [attempts.datasetId, attempts.partitionKey, attempts.attempt],
          set: { publisher, updatedAt: sql`clock_timestamp()` },
        });
      await tx
        .insert(partitions)
        .values({
          datasetId: dataset.number,
          partitionKey: key,
          state: 'publishing',
          attempt,
          revision,
          fromMs,
          toMs,
          synthetic,
        })
        .onConflictDoUpdate({
          target: [partitions.datasetId, partitions.partitionKey],
          set: { state: 'publishing', attempt, revision, synthetic, reason: null, updatedAt: sql`clock_timestamp()` },
          setWhere: sql`${partitions.state} <> 'proved'`,
        });
    });
  }

  /** The manifest is in the log. The projector may have been faster, so only an open attempt moves. */
  async markPublished(dataset: DatasetDefinition, manifest: Manifest, manifestSequence: number): Promise<void> {
    const where = { dataset: dataset.number, key: manifest.partition, attempt: manifest.attempt };
    await this.#db.transaction(async (tx) => {
      await tx
        .update(attempts)
        .set({
          state: sql`case when ${attempts.state} = 'publishing' then 'published' else ${attempts.state} end`,
          manifest,
          manifestSequence,
          frames: manifest.frames,
          firstSequence: manifest.first_sequence,
          updatedAt: sql`clock_timestamp()`,
        })
        .where(
          and(
            eq(attempts.datasetId, where.dataset),
            eq(attempts.partitionKey, where.key),
            eq(attempts.attempt, where.attempt),
          ),
        );
      await tx
        .update(partitions)
        .set({ state: 'published', updatedAt: sql`clock_timestamp()` })
        .where(
          and(
            eq(partitions.datasetId, where.dataset),
            eq(partitions.partitionKey, where.key),
            eq(partitions.attempt, where.attempt),
            eq(partitions.state, 'publishing'),
          ),
        );
    });
  }

  async abandonAttempt(dataset: DatasetDefinition, key: string, attempt: number, reason: string): Promise<void> {
    await this.#db
      .update(attempts)
      .set({ state: 'abandoned', reason, updatedAt: sql`clock_timestamp()` })
      .where(
        and(
          eq(attempts.datasetId, dataset.number),
          eq(attempts.partitionKey, key),
          eq(attempts.attempt, attempt),
          eq(attempts.state, 'publishing'),
        ),
      );
    // Nothing of it is in the log's referenced part: the partition is missing again.
    await this.#db
      .delete(partitions)
      .where(
        and(
          eq(partitions.datasetId, dataset.number),
          eq(partitions.partitionKey, key),
          eq(partitions.attempt, attempt),
          eq(partitions.state, 'publishing'),
        ),
      );
  }

  async record(
    dataset: DatasetDefinition,
    key: string,
    kind: LedgerKind,
    reason: string,
    details: Record<string, unknown> = {},
  ): Promise<void> {
    await this.#db.insert(ledger).values({ datasetId: dataset.number, partitionKey: key, kind, reason, details });
  }
}
