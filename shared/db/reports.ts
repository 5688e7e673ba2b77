/** Typed read-only queries over the catalog, for `status` and other reports; and the counters of source failures. */

import type { Pool } from 'pg';
import type { DatasetDefinition } from '../registry/index.ts';
import { attempts, drizzle, type LedgerRow, ledger, orm, type PartitionRow, partitions } from './schema.ts';

const { and, asc, count, desc, eq, gte, lte, ne, sql, sum } = orm;

export class Reports {
  readonly #db: ReturnType<typeof drizzle>;

  constructor(pool: Pool) {
    this.#db = drizzle(pool);
  }

  /** The number of partitions and of their rows, by state. */
  async states(
    dataset: DatasetDefinition,
  ): Promise<Partial<Record<PartitionRow['state'], { partitions: number; rows: number }>>> {
    const found = await this.#db
      .select({ state: partitions.state, partitions: count(), rows: sum(partitions.rows).mapWith(Number) })
      .from(partitions)
      .where(eq(partitions.datasetId, dataset.number))
      .groupBy(partitions.state);
    return Object.fromEntries(found.map(({ state, ...rest }) => [state, { ...rest, rows: rest.rows ?? 0 }]));
  }

  /** Known partitions that are not proved, in order of time. */
  async unproved(dataset: DatasetDefinition, limit: number) {
    return await this.#db
      .select()
      .from(partitions)
      .where(and(eq(partitions.datasetId, dataset.number), ne(partitions.state, 'proved')))
      .orderBy(asc(partitions.fromMs))
      .limit(limit);
  }

  /** The number of known partitions inside the window that are not proved. */
  async unprovedWithin(dataset: DatasetDefinition, fromMs: number, toMs: number): Promise<number> {
    const found = await this.#db
      .select({ partitions: count() })
      .from(partitions)
      .where(
        and(
          eq(partitions.datasetId, dataset.number),
          ne(partitions.state, 'proved'),
          gte(partitions.fromMs, fromMs),
          lte(partitions.toMs, toMs),
        ),
      );
    return found[0].partitions;
  }

  /** Entries of the ledger, newest first. */
  async ledger(dataset: DatasetDefinition, kind: string | undefined, limit: number): Promise<LedgerRow[]> {
    return await this.#db
      .select()
      .from(ledger)
      .where(and(eq(ledger.datasetId, dataset.number), kind === undefined ? undefined : eq(ledger.kind, kind)))
      .orderBy(desc(ledger.entryId))
      .limit(limit);
  }

  /** The number of messages of the log that belong to a published attempt: its frames, manifest and retraction. */
  async referencedMessages(dataset: DatasetDefinition): Promise<number> {
    const found = await this.#db
      .select({ messages: sql<string>`coalesce(sum(${attempts.frames} + 1), 0)` })
      .from(attempts)
      .where(and(eq(attempts.datasetId, dataset.number), sql`${attempts.manifestSequence} is not null`));
    // The retraction of a partition is a message too.
    const retracted = await this.#db
      .select({ messages: count() })
      .from(ledger)
      .where(
        and(
          eq(ledger.datasetId, dataset.number),
          eq(ledger.kind, 'quarantined'),
          sql`${ledger.details} ->> 'by' = 'source'`,
        ),
      );
    return Number(found[0].messages) + retracted[0].messages;
  }
}

/** Codes of the faults of a vendor, an issuer, a provider or a node, and of the documents that they sent. */
const OF_SOURCES = /^(?:SOURCE|NODE|CHAIN)_/;

export const isSourceFault = (code: string | undefined): code is string => code !== undefined && OF_SOURCES.test(code);

/** Counts a failure of a source after all retries, by source and code, for monitors. The counts are never reset. */
export async function recordSourceFailure(
  pool: Pool,
  dataset: DatasetDefinition,
  { source, code, reason }: { readonly source: string; readonly code: string; readonly reason: string },
): Promise<void> {
  await pool.query(
    `insert into source_failures (dataset_id, source_id, code, failures, last_reason) values ($1, $2, $3, 1, $4)
     on conflict (dataset_id, source_id, code) do update set failures = source_failures.failures + 1,
       last_at = clock_timestamp(), last_reason = excluded.last_reason`,
    [dataset.number, source, code, reason],
  );
}
