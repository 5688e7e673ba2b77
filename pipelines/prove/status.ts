/** How a dataset stands: partitions, coverage with its gaps, the log's lag and leftovers, refusals. */
import type { NatsConnection } from '@nats-io/transport-node';
import type { Pool } from 'pg';
import type { Catalog } from '../../shared/db/catalog.ts';
import { Reports } from '../../shared/db/reports.ts';
import { explain } from '../../shared/errors.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Standing } from '../../shared/status/collect.ts';
import { verifyCheckpoint } from '../project/checkpoint.ts';

/** The numbers that monitors have too (shared/status), and what an operator wants to know beside them. */
export async function datasetStatus(
  needs: { pool: Pool; catalog: Catalog; connection: NatsConnection },
  { dataset, overview, ranges }: Standing,
) {
  const { pool, catalog, connection } = needs;
  const reports = new Reports(pool);
  const unproved = await reports.unproved(dataset, 100);
  const late = await reports.ledger(dataset, 'late_arrival_refused', 20);
  return {
    ...overview,
    proved_ranges: ranges.proved,
    gaps: ranges.gaps,
    offset_breaks: hasConsecutiveDays(dataset) ? await offsetBreaks(pool, dataset) : [],
    unproved: unproved.map((row) => ({
      partition: row.partitionKey,
      state: row.state,
      attempt: row.attempt,
      revision: row.revision,
      reason: row.reason,
      updated_at_utc: row.updatedAt.toISOString(),
    })),
    late_arrivals: late.map((row) => ({
      partition: row.partitionKey,
      at_utc: row.at.toISOString(),
      reason: row.reason,
    })),
    log: overview.log && {
      ...overview.log,
      /** Why nothing can be projected, if so: the log is not the one that was projected. */
      fault: await verifyCheckpoint(connection, dataset, await catalog.checkpoint(dataset)).then(
        () => null,
        (error) => explain(error),
      ),
      /** Frames of attempts that never got a manifest; they cost space and nothing else. */
      unreferenced_messages: Math.max(0, overview.log.messages - (await reports.referencedMessages(dataset))),
    },
  };
}

const hasConsecutiveDays = ({ partition, offset }: DatasetDefinition) =>
  partition.kind === 'file_day' && offset.contiguous && offset.unique;

/** Neighbouring proved days whose ids do not follow each other: rows the vendor's files do not hold. */
async function offsetBreaks(pool: Pool, dataset: DatasetDefinition) {
  const found = await pool.query(
    `select * from (
       select partition_key, from_ms, manifest->>'first_offset' as first_offset,
         lag(partition_key) over w as before, lag(to_ms) over w as before_to, lag(manifest->>'last_offset') over w as last_offset
       from partitions where dataset_id = $1 and state = 'proved' window w as (order by from_ms)) neighbours
     where before_to = from_ms and first_offset::int8 <> last_offset::int8 + 1 order by from_ms limit 100`,
    [dataset.number],
  );
  return found.rows.map((row) => ({
    before: row.before,
    partition: row.partition_key,
    last_offset: row.last_offset,
    first_offset: row.first_offset,
  }));
}
