import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Pool } from 'pg';
import { TidemarkError } from '../../../shared/errors.ts';
import type { DocumentFacts } from '../../../shared/frame/manifest.ts';
import { dateFault, findEvent } from '../../../shared/lineage/find-event.ts';
import { messageAt } from '../../../shared/nats/stream.ts';
import { type DatasetDefinition, datasetOf } from '../../../shared/registry/index.ts';
import { openContext } from '../context.ts';
import { namedInstruments, typedKey } from '../instruments.ts';
import type { ParsedCommand } from '../options.ts';

export interface StoredEvent {
  readonly dataset: string;
  readonly partition: string;
  readonly offset: string;
  readonly event_id: string;
  readonly payload_raw: string;
  /** `hex` if the bytes are not text. */
  readonly payload_encoding: 'text' | 'hex';
  readonly payload_sha256_raw: string;
  readonly stream_sequence: number;
  readonly document: DocumentFacts;
  readonly synthetic: boolean;
  readonly ingested_at_utc: string;
}

/** Reads one event back from the log. @throws TidemarkError as `findEvent` */
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

export async function runEvent(command: ParsedCommand): Promise<number> {
  const dataset = datasetOf(command.positionals[0]);
  const { date, partition, instrument } = command.values as Readonly<Record<string, string | undefined>>;
  const fault = date === undefined ? undefined : dateFault(dataset, date, partition);
  if (fault !== undefined) throw new TidemarkError('USAGE', `--date ${fault}`);
  await using context = await openContext(command, 'event');
  const [of, ...more] = await namedInstruments(context, [dataset], { instrument, partition });
  if (of === undefined || more.length > 0) throw new TidemarkError('USAGE', '--instrument must name one that has rows');
  const needs = { pool: context.pool, connection: await context.nats(), dataset: of };
  const key = date ?? partition;
  const event = await storedEvent(needs, command.positionals[1], key && typedKey(of, key));
  context.output.answer({ command: 'event', ok: true, ...event }, () =>
    [
      event.payload_raw,
      '',
      `payload_sha256_raw  ${event.payload_sha256_raw}`,
      `event_id            ${event.event_id}`,
      `partition           ${event.partition}${event.synthetic ? ' (synthetic sample)' : ''}`,
      `stream_sequence     ${event.stream_sequence}`,
      `document            ${event.document.name}  sha256 ${event.document.sha256}`,
      `ingested_at_utc     ${event.ingested_at_utc}`,
    ].join('\n'),
  );
  return 0;
}
