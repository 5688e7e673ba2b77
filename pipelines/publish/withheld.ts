/**
 * The mark in the log that a proved partition is withheld by its source: a database that is built again from the log must
 * not serve what was taken out of service.
 */
import { jetstream } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { explain, TidemarkError } from '../../shared/errors.ts';
import { encodeMessage, type WithheldHeader, type WithheldMark } from '../../shared/frame/codec.ts';
import { patiently } from '../../shared/nats/patience.ts';
import { JS_ERROR, jsErrorCode, withheldSubject } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

const ACK_TIMEOUT_MS = 10_000;

/** Once for each attempt, however often it is asked for. @throws TidemarkError LOG_UNAVAILABLE */
export async function markWithheld(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  row: PartitionRow,
  mark: WithheldMark,
): Promise<void> {
  const { partitionKey: partition, attempt, revision, manifest } = row;
  const document_sha256 = manifest?.document.sha256 ?? '';
  const message = await encodeMessage<WithheldHeader>(
    { kind: 'withheld', dataset: dataset.key, partition, revision, attempt, frame: 0, document_sha256 },
    Buffer.from(JSON.stringify(mark)),
  );
  try {
    await patiently((leftMs) =>
      jetstream(connection).publish(withheldSubject(dataset.key, partition, attempt), message, {
        expect: { lastSubjectSequence: 0 },
        timeout: Math.min(ACK_TIMEOUT_MS, leftMs),
      }),
    );
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.WRONG_LAST_SEQUENCE) return;
    throw new TidemarkError(
      'LOG_UNAVAILABLE',
      `That ${dataset.key} ${partition} is withheld could not be written to the log: ${explain(error)}`,
      { cause: error },
    );
  }
}
