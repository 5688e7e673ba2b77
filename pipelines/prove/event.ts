/** One event back from the log, as the operator's command shows it. */
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Pool } from 'pg';
import type { DocumentFacts } from '../../shared/frame/manifest.ts';
import { findEvent } from '../../shared/lineage/find-event.ts';
import { messageAt } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

export interface StoredEvent {
  readonly dataset: string;
  readonly partition: string;
  readonly offset: string;
  readonly event_id: string;
  readonly payload_raw: string;
  /** `hex` of bytes that are no text. */
  readonly payload_encoding: 'text' | 'hex';
  readonly payload_sha256_raw: string;
  readonly stream_sequence: number;
  readonly document: DocumentFacts;
  readonly synthetic: boolean;
  readonly ingested_at_utc: string;
}

/** @throws TidemarkError as `findEvent` */
export async function storedEvent(
  { pool, connection, dataset }: { pool: Pool; connection: NatsConnection; dataset: DatasetDefinition },
  offset: string,
  partition?: string,
): Promise<StoredEvent> {
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const found = await findEvent(
    {
      dataset,
      rows: async ({ text, values }) => (await pool.query({ text, values: [...values], rowMode: 'array' })).rows,
      message: async (key, sequence) => (await messageAt(manager, key, sequence))?.data,
    },
    offset,
    partition,
  );
  const { manifest } = found.partition;
  return {
    dataset: dataset.key,
    partition: found.partition.key,
    offset,
    event_id: found.eventId,
    ...shown(found.payload),
    payload_sha256_raw: found.payloadSha256,
    stream_sequence: found.streamSequence,
    document: manifest.document,
    synthetic: found.partition.synthetic,
    ingested_at_utc: new Date(manifest.ingested_at_ms).toISOString(),
  };
}

function shown(payload: Buffer): Pick<StoredEvent, 'payload_raw' | 'payload_encoding'> {
  const text = payload.toString('utf8');
  if (Buffer.from(text).equals(payload)) return { payload_raw: text, payload_encoding: 'text' };
  return { payload_raw: payload.toString('hex'), payload_encoding: 'hex' };
}
