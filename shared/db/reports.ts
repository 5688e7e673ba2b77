/** Typed read-only queries over the catalog for reports: status, and whatever shows an operator how things stand. */

import type { Pool } from 'pg';
import type { DatasetDefinition } from '../registry/index.ts';
import { attempts, drizzle, type LedgerRow, ledger, orm, type PartitionRow, partitions } from './schema.ts';

const { and, asc, count, desc, eq, gte, lte, ne, sql, sum } = orm;

export class Reports {
  readonly #db: ReturnType<typeof drizzle>;

  constructor(pool: Pool) {
    this.#db = drizzle(pool);
  }

  /** Number of partitions and their rows, by state. */
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

  /** Partitions that are known and not proved, in order of time. */
  async unproved(dataset: DatasetDefinition, limit: number) {
    return await this.#db
      .select()
      .from(partitions)
      .where(and(eq(partitions.datasetId, dataset.number), ne(partitions.state, 'proved')))
      .orderBy(asc(partitions.fromMs))
      .limit(limit);
  }

  /** How many partitions inside the window are known and not proved. */
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

  /** Newest first. */
  async ledger(dataset: DatasetDefinition, kind: string | undefined, limit: number): Promise<LedgerRow[]> {
    return await this.#db
      .select()
      .from(ledger)
      .where(and(eq(ledger.datasetId, dataset.number), kind === undefined ? undefined : eq(ledger.kind, kind)))
      .orderBy(desc(ledger.entryId))
      .limit(limit);
  }

  /** Messages of the log that a manifest vouches for: frames and the manifest itself. */
  async referencedMessages(dataset: DatasetDefinition): Promise<number> {
    const found = await this.#db
      .select({ messages: sql<string>`coalesce(sum(${attempts.frames} + 1), 0)` })
      .from(attempts)
      .where(and(eq(attempts.datasetId, dataset.number), sql`${attempts.manifestSequence} is not null`));
    // A partition that its source took back has a mark in the log.
    const marked = await this.#db
      .select({ messages: count() })
      .from(ledger)
      .where(
        and(
          eq(ledger.datasetId, dataset.number),
          eq(ledger.kind, 'quarantined'),
          sql`${ledger.details} ->> 'by' = 'source'`,
        ),
      );
    return Number(found[0].messages) + marked[0].messages;
  }
}

/* What sources failed to give after all tries: counted for ever, by source and code, for those who watch. */

/** Of codes: faults of a vendor, an issuer, a provider or a node, and of what they sent. */
const OF_SOURCES = /^(?:SOURCE|NODE|CHAIN)_/;

export const isSourceFault = (code: string | undefined): code is string => code !== undefined && OF_SOURCES.test(code);

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
