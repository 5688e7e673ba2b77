/** How a dataset stands: partitions, coverage with its gaps, the log's lag and leftovers, refusals. */
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Pool } from 'pg';
import type { Catalog } from '../../shared/db/catalog.ts';
import { gapsBetween, parseMultirange } from '../../shared/db/ranges.ts';
import { streamInfo } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { CONSUMER_NAME } from '../project/log-reader.ts';

const iso = (ms: number) => new Date(ms).toISOString();

export async function datasetStatus(
  needs: { pool: Pool; catalog: Catalog; connection: NatsConnection },
  dataset: DatasetDefinition,
) {
  const { pool, catalog, connection } = needs;
  const coverage = await catalog.coverage(dataset);
  const ranges = parseMultirange(coverage?.proved ?? '{}');
  const states = await pool.query(
    'select state, count(*)::int as partitions, coalesce(sum(rows), 0)::int8 as rows from partitions where dataset_id = $1 group by state',
    [dataset.number],
  );
  const byState = Object.fromEntries(states.rows.map((row) => [row.state, row.partitions]));
  const expected = ranges.length > 0 ? (ranges[ranges.length - 1].to - ranges[0].from) / 86_400_000 : 0;
  const proved: number = byState.proved ?? 0;
  const troubled = await pool.query(
    `select partition_key, state, attempt, revision, reason, updated_at from partitions
     where dataset_id = $1 and state <> 'proved' order by from_ms limit 100`,
    [dataset.number],
  );
  const late = await pool.query(
    `select partition_key, at, reason from ledger where dataset_id = $1 and kind = 'late_arrival_refused' order by entry_id desc limit 20`,
    [dataset.number],
  );
  return {
    dataset: dataset.key,
    coverage_version: coverage?.version ?? 0,
    synthetic: coverage?.synthetic ?? false,
    rows: Number(states.rows.find((row) => row.state === 'proved')?.rows ?? 0),
    partitions: {
      missing: Math.max(0, Math.round(expected) - proved),
      publishing: byState.publishing ?? 0,
      published: byState.published ?? 0,
      proved,
      quarantined: byState.quarantined ?? 0,
    },
    proved_ranges: ranges.map(({ from, to }) => ({ from_utc: iso(from), to_utc_exclusive: iso(to) })),
    gaps: gapsBetween(ranges).map(({ from, to }) => ({ from_utc: iso(from), to_utc_exclusive: iso(to) })),
    proved_through_utc: ranges.length > 0 ? iso(ranges[ranges.length - 1].to) : null,
    offset_breaks: dataset.offset.contiguous ? await offsetBreaks(pool, dataset) : [],
    unproved: troubled.rows.map((row) => ({
      partition: row.partition_key,
      state: row.state,
      attempt: row.attempt,
      revision: row.revision,
      reason: row.reason,
      updated_at_utc: row.updated_at.toISOString(),
    })),
    late_arrivals: late.rows.map((row) => ({
      partition: row.partition_key,
      at_utc: row.at.toISOString(),
      reason: row.reason,
    })),
    log: await logStatus(needs.pool, catalog, connection, dataset),
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

async function logStatus(pool: Pool, catalog: Catalog, connection: NatsConnection, dataset: DatasetDefinition) {
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const info = await streamInfo(manager, dataset.key);
  if (!info) return null;
  const checkpoint = await catalog.checkpoint(dataset);
  const known = await pool.query(
    `select coalesce(sum(frames + 1), 0)::int8 as messages from attempts where dataset_id = $1 and manifest_sequence is not null`,
    [dataset.number],
  );
  const consumer = await manager.consumers.info(dataset.key, CONSUMER_NAME).catch(() => undefined);
  return {
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
    unreferenced_messages: Math.max(0, info.state.messages - Number(known.rows[0].messages)),
  };
}
