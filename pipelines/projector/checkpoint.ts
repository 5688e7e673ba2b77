/** Checks whether the log is still the one that the checkpoint was taken on. */

import { createHash } from 'node:crypto';
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { CheckpointRow } from '../../shared/db/schema.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { messageAt, streamInfo } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

type Checkpoint = Pick<CheckpointRow, 'streamCreated' | 'streamSequence' | 'messageSha256'>;

export interface LogVerdict {
  readonly state: /** Nothing was published and nothing projected. */
    | 'empty'
    | 'in_step'
    /** The log holds messages after the checkpoint: a backlog, or a database restored to an earlier point. */
    | 'log_ahead'
    | 'no_stream'
    | 'stream_recreated'
    /** The log lost its tail. */
    | 'log_behind'
    /** The log lost its tail, and other messages have its sequences. */
    | 'other_messages';
  /** The verdict as a sentence. */
  readonly finding: string;
  readonly streamCreated: Date;
  readonly lastSequence: number;
}

/** States in which nothing may be projected or published. */
export const REWOUND: ReadonlySet<LogVerdict['state']> = new Set([
  'no_stream',
  'stream_recreated',
  'log_behind',
  'other_messages',
]);

/**
 * Compares the log with the checkpoint. JetStream acknowledges before it has called fsync, so after a crash a stream
 * may lack its tail and have given the same sequences to other messages.
 */
export async function logVerdict(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  checkpoint: Checkpoint | undefined,
): Promise<LogVerdict> {
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const info = await streamInfo(manager, dataset.key);
  const streamCreated = new Date(info?.created ?? 0);
  const lastSequence = info?.state.last_seq ?? 0;
  const verdict = (state: LogVerdict['state'], finding: string) => ({ state, finding, streamCreated, lastSequence });
  if (!info) {
    const finding = `The stream ${dataset.key} does not exist`;
    return verdict(checkpoint ? 'no_stream' : 'empty', finding);
  }
  if (!checkpoint) {
    return lastSequence === 0
      ? verdict('empty', 'nothing was published')
      : verdict('log_ahead', `${lastSequence} messages are in the log, and nothing was ever projected`);
  }
  const { streamSequence } = checkpoint;
  const created = [streamCreated, checkpoint.streamCreated].map((date) => date.toISOString());
  if (created[0] !== created[1]) {
    return verdict(
      'stream_recreated',
      `it was created ${created[0]}, the checkpoint belongs to one created ${created[1]}`,
    );
  }
  if (lastSequence < streamSequence) {
    return verdict('log_behind', `it ends at sequence ${lastSequence}, the checkpoint is at ${streamSequence}`);
  }
  const message = await messageAt(manager, dataset.key, streamSequence);
  if (!message) return verdict('other_messages', `it holds no message at sequence ${streamSequence}`);
  if (createHash('sha256').update(message.data).digest('hex') !== checkpoint.messageSha256) {
    return verdict('other_messages', `sequence ${streamSequence} holds another message`);
  }
  return lastSequence > streamSequence
    ? verdict('log_ahead', `it ends at sequence ${lastSequence}, ${lastSequence - streamSequence} after the checkpoint`)
    : verdict('in_step', `the log ends at the checkpoint, sequence ${streamSequence}`);
}

/** The position to read on from. @throws TidemarkError LOG_REWOUND */
export async function verifyCheckpoint(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  checkpoint: CheckpointRow | undefined,
): Promise<{ streamCreated: Date; sequence: number }> {
  const { state, finding, streamCreated, lastSequence } = await logVerdict(connection, dataset, checkpoint);
  if (streamCreated.getTime() === 0) {
    throw new TidemarkError('LOG_REWOUND', `The stream ${dataset.key} does not exist`);
  }
  if (REWOUND.has(state)) {
    throw new TidemarkError('LOG_REWOUND', `The log of ${dataset.key} is not the one that was projected: ${finding}`, {
      details: { dataset: dataset.key, sequence: checkpoint?.streamSequence, last_sequence: lastSequence },
    });
  }
  return { streamCreated, sequence: checkpoint?.streamSequence ?? 0 };
}

/**
 * Requires that the log still holds a message that was read. @throws TidemarkError LOG_UNAVAILABLE otherwise: the reader begins
 * anew, and compares the log with its checkpoint.
 */
export async function requireLogged(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  message: Checkpoint,
): Promise<void> {
  if (!REWOUND.has((await logVerdict(connection, dataset, message)).state)) return;
  const what = `The log of ${dataset.key} no longer holds message ${message.streamSequence}, which was read from it`;
  throw new TidemarkError('LOG_UNAVAILABLE', `${what}; it is compared with its checkpoint again`);
}
