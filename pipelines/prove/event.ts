/** One event back from the log: its vendor bytes, where they lie, and what they were proved by. */
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Pool } from 'pg';
import type { Catalog } from '../../shared/db/catalog.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { eventId } from '../../shared/events/event-id.ts';
import { decodeMessage, sha256Hex } from '../../shared/frame/codec.ts';
import { findLine } from '../../shared/frame/lines.ts';
import type { DocumentFacts } from '../../shared/frame/manifest.ts';
import { messageAt } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

export interface StoredEvent {
  readonly dataset: string;
  readonly partition: string;
  readonly offset: string;
  readonly event_id: string;
  readonly payload_raw: string;
  readonly payload_sha256_raw: string;
  readonly stream_sequence: number;
  readonly document: DocumentFacts;
  readonly synthetic: boolean;
  readonly ingested_at_utc: string;
}

/** @throws TidemarkError EVENT_UNKNOWN, or EVENT_AMBIGUOUS naming the partitions that hold the offset. */
export async function findEvent(
  needs: { pool: Pool; catalog: Catalog; connection: NatsConnection; dataset: DatasetDefinition },
  offset: string,
  partition?: string,
): Promise<StoredEvent> {
  const { pool, catalog, connection, dataset } = needs;
  const numeric = dataset.offset.order === 'numeric';
  if (numeric && !/^\d{1,18}$/.test(offset)) throw unknown(dataset, offset);
  const order = numeric
    ? 'f.first_offset::int8 <= $2::int8 and f.last_offset::int8 >= $2::int8'
    : 'f.first_offset <= $2 and f.last_offset >= $2';
  const candidates = await pool.query<{ stream_sequence: string; partition_key: string }>(
    `select f.stream_sequence, f.partition_key from frames f
     join partitions p on p.dataset_id = f.dataset_id and p.partition_key = f.partition_key and p.state = 'proved'
     where f.dataset_id = $1 and ${order} and ($3::text is null or f.partition_key = $3) order by f.stream_sequence`,
    [dataset.number, offset, partition ?? null],
  );
  const keys = [...new Set(candidates.rows.map((row) => row.partition_key))];
  if (keys.length > 1) {
    throw new TidemarkError('EVENT_AMBIGUOUS', `${dataset.key} has ${offset} in ${keys.join(', ')}`, {
      details: { dataset: dataset.key, partitions: keys.join(',') },
    });
  }
  const manager = await jetstreamManager(connection, { checkAPI: false });
  for (const row of candidates.rows) {
    const sequence = Number(row.stream_sequence);
    const place = `${dataset.key} sequence ${sequence}`;
    const stored = await messageAt(manager, dataset.key, sequence);
    if (!stored) throw new TidemarkError('LOG_REWOUND', `The log holds no message at ${place}`);
    const payload = findLine((await decodeMessage(stored.data, place)).raw, offset, dataset.offset.cell);
    if (!payload) continue;
    const proved = await catalog.partition(dataset, row.partition_key);
    return {
      dataset: dataset.key,
      partition: row.partition_key,
      offset,
      event_id: eventId(dataset, row.partition_key, offset),
      payload_raw: payload.toString('latin1'),
      payload_sha256_raw: sha256Hex(payload),
      stream_sequence: sequence,
      document: proved!.manifest!.document,
      synthetic: proved!.synthetic,
      ingested_at_utc: new Date(proved!.manifest!.ingested_at_ms).toISOString(),
    };
  }
  throw unknown(dataset, offset);
}

const unknown = (dataset: DatasetDefinition, offset: string) =>
  new TidemarkError(
    'EVENT_UNKNOWN',
    `No proved partition of ${dataset.key} holds the offset ${JSON.stringify(offset)}`,
  );
