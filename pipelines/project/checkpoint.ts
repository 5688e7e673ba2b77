/** Whether the log is still the one the checkpoint was taken on. */
import { createHash } from 'node:crypto';
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { CheckpointRow } from '../../shared/db/schema.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { messageAt, streamInfo } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

/**
 * Where to read on. JetStream acknowledges before it has fsynced, so after a crash a stream may have lost its tail and
 * given the same sequences to other messages: that is found here, not trusted.
 * @throws TidemarkError LOG_REWOUND
 */
export async function verifyCheckpoint(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  checkpoint: CheckpointRow | undefined,
): Promise<{ streamCreated: Date; sequence: number }> {
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const info = await streamInfo(manager, dataset.key);
  if (!info) throw new TidemarkError('LOG_REWOUND', `The stream ${dataset.key} does not exist`);
  const streamCreated = new Date(info.created);
  if (!checkpoint) return { streamCreated, sequence: 0 };
  const fail = (why: string) =>
    new TidemarkError('LOG_REWOUND', `The log of ${dataset.key} is not the one that was projected: ${why}`, {
      details: { dataset: dataset.key, sequence: checkpoint.streamSequence, last_sequence: info.state.last_seq },
    });
  if (streamCreated.getTime() !== checkpoint.streamCreated.getTime()) {
    throw fail(
      `it was made ${streamCreated.toISOString()}, the checkpoint is on one made ${checkpoint.streamCreated.toISOString()}`,
    );
  }
  if (info.state.last_seq < checkpoint.streamSequence) {
    throw fail(`it ends at sequence ${info.state.last_seq}, the checkpoint is at ${checkpoint.streamSequence}`);
  }
  const message = await messageAt(manager, dataset.key, checkpoint.streamSequence);
  if (!message) throw fail(`it holds no message at sequence ${checkpoint.streamSequence}`);
  if (createHash('sha256').update(message.data).digest('hex') !== checkpoint.messageSha256) {
    throw fail(`sequence ${checkpoint.streamSequence} holds another message`);
  }
  return { streamCreated, sequence: checkpoint.streamSequence };
}
