/** How a dataset stands: partitions, coverage with its gaps, the log's lag and leftovers, refusals. */
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Pool } from 'pg';
import type { Catalog } from '../../shared/db/catalog.ts';
import { gapsBetween, parseMultirange } from '../../shared/db/ranges.ts';
import { Reports } from '../../shared/db/reports.ts';
import { explain } from '../../shared/errors.ts';
import { streamInfo } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { verifyCheckpoint } from '../project/checkpoint.ts';
import { CONSUMER_NAME } from '../project/log-reader.ts';

const iso = (ms: number) => new Date(ms).toISOString();

export async function datasetStatus(
  needs: { pool: Pool; catalog: Catalog; connection: NatsConnection },
  dataset: DatasetDefinition,
) {
  const { pool, catalog, connection } = needs;
  const coverage = await catalog.coverage(dataset);
  const ranges = parseMultirange(coverage?.proved ?? '{}');
  const reports = new Reports(pool);
  const states = await reports.states(dataset);
  const expected = ranges.length > 0 ? (ranges[ranges.length - 1].to - ranges[0].from) / 86_400_000 : 0;
  const proved = states.proved?.partitions ?? 0;
  const [first, last] = [ranges[0]?.from ?? 0, ranges[ranges.length - 1]?.to ?? 0];
  const known = await reports.unprovedWithin(dataset, first, last);
  const unproved = await reports.unproved(dataset, 100);
  const late = await reports.ledger(dataset, 'late_arrival_refused', 20);
  return {
    dataset: dataset.key,
    coverage_version: coverage?.version ?? 0,
    synthetic: coverage?.synthetic ?? false,
    rows: states.proved?.rows ?? 0,
    partitions: {
      missing: Math.max(0, Math.round(expected) - proved - known),
      publishing: states.publishing?.partitions ?? 0,
      published: states.published?.partitions ?? 0,
      proved,
      quarantined: states.quarantined?.partitions ?? 0,
    },
    proved_ranges: ranges.map(({ from, to }) => ({ from_utc: iso(from), to_utc_exclusive: iso(to) })),
    gaps: gapsBetween(ranges).map(({ from, to }) => ({ from_utc: iso(from), to_utc_exclusive: iso(to) })),
    proved_through_utc: ranges.length > 0 ? iso(ranges[ranges.length - 1].to) : null,
    offset_breaks: dataset.offset.contiguous && dataset.offset.unique ? await offsetBreaks(pool, dataset) : [],
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
    log: await logStatus(reports, catalog, connection, dataset),
  };
}

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

async function logStatus(reports: Reports, catalog: Catalog, connection: NatsConnection, dataset: DatasetDefinition) {
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const info = await streamInfo(manager, dataset.key);
  if (!info) return null;
  const checkpoint = await catalog.checkpoint(dataset);
  const referenced = await reports.referencedMessages(dataset);
  const consumer = await manager.consumers.info(dataset.key, CONSUMER_NAME).catch(() => undefined);
  const fault = await verifyCheckpoint(connection, dataset, checkpoint).then(
    () => null,
    (error) => explain(error),
  );
  return {
    /** Why nothing can be projected, if so: the log is not the one that was projected. */
    fault,
    messages: info.state.messages,
    bytes: info.state.bytes,
    max_bytes: info.config.max_bytes,
    last_sequence: info.state.last_seq,
    checkpoint_sequence: checkpoint?.streamSequence ?? 0,
    /** Messages not projected yet: not delivered, or delivered and not acknowledged. */
    lag_messages: consumer
      ? consumer.num_pending + consumer.num_ack_pending
      : info.state.last_seq - (checkpoint?.streamSequence ?? 0),
    /** Frames of attempts that never got a manifest; they cost space and nothing else. */
    unreferenced_messages: Math.max(0, info.state.messages - referenced),
  };
}
