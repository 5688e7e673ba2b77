/** Records failures of sources for monitoring, and writes retractions to the log. */

import { jetstream } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Pool } from 'pg';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import { encodeMessage, type Retraction, type RetractionHeader } from '../../shared/frame/codec.ts';
import { retryingRead } from '../../shared/nats/connect.ts';
import { JS_ERROR, jsErrorCode, withheldSubject } from '../../shared/nats/stream.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import type { UnitResult } from '../publisher/backfill.ts';
import type { Feed } from '../sources/types.ts';
import type { Context } from './context.ts';

/**
 * Whether a failure of a followed feed only means that the document does not exist yet. Vendors publish a file day
 * after it ends. A missing page of an issuer is a failure.
 */
export const isNotYet = ({ datasets: [{ partition }] }: Pick<Feed, 'datasets'>, code: string | undefined): boolean =>
  code === 'NODE_HEIGHT_BEYOND_TIP' || (code === 'SOURCE_NOT_FOUND' && partition.kind === 'file_day');

/**
 * Passes the results through and records failures. A failure that cannot be recorded is logged, because it must not
 * stop the work.
 */
export async function* notingFailures(
  { pool, log }: Pick<Context, 'pool' | 'log'>,
  feed: Feed,
  { results, isFollowed }: { readonly results: AsyncIterable<UnitResult>; readonly isFollowed: boolean },
): AsyncGenerator<UnitResult> {
  const note = async (dataset: string, source: string, code: string, reason: string) => {
    if (isFollowed && isNotYet(feed, code)) return;
    await recordSourceFailure(pool, datasetOf(dataset), { source, code, reason }).catch((error) =>
      log.warn({ err: explain(error) }, 'a failure of a source could not be recorded'),
    );
  };
  try {
    for await (const result of results) {
      const { dataset, partition, state, code, reason = '' } = result;
      if (state === 'failed' && isSourceFault(code)) await note(dataset, sourceOf(dataset, partition), code, reason);
      yield result;
    }
  } catch (error) {
    const code = codeOf(error);
    const [first] = feed.datasets;
    if (isSourceFault(code)) await note(first.key, first.sources[0], code, explain(error));
    throw error;
  }
}

/** Codes of the faults of a vendor, an issuer, a provider or a node, and of the documents that they sent. */
const OF_SOURCES = /^(?:SOURCE|NODE|CHAIN)_/;

const isSourceFault = (code: string | undefined): code is string => code !== undefined && OF_SOURCES.test(code);

/** Counts a failure of a source after all retries, by source and code, for monitors. The counts are never reset. */
async function recordSourceFailure(
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

/** A document that failed before its partitions were known is named otherwise. */
function sourceOf(dataset: string, partition: string): string {
  const definition = datasetOf(dataset);
  try {
    return keyFacts(definition, partition).sourceId;
  } catch {
    return definition.sources[0];
  }
}

const ACK_TIMEOUT_MS = 10_000;

/**
 * Writes the log message that retracts a proved partition: a database that is rebuilt from the log must not serve it
 * either. Writes it once per attempt, however often it is called.
 * @throws TidemarkError LOG_UNAVAILABLE
 */
export async function publishRetraction(
  connection: NatsConnection,
  dataset: DatasetDefinition,
  row: PartitionRow,
  mark: Retraction,
): Promise<void> {
  const { partitionKey: partition, attempt, revision, manifest } = row;
  const document_sha256 = manifest?.document.sha256 ?? '';
  const message = await encodeMessage<RetractionHeader>(
    { kind: 'withheld', dataset: dataset.key, partition, revision, attempt, frame: 0, document_sha256 },
    Buffer.from(JSON.stringify(mark)),
  );
  try {
    await retryingRead((leftMs) =>
      jetstream(connection).publish(withheldSubject(dataset.key, partition, attempt), message, {
        expect: { lastSubjectSequence: 0 },
        timeout: Math.min(ACK_TIMEOUT_MS, leftMs),
      }),
    );
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.WRONG_LAST_SEQUENCE) return;
    throw new TidemarkError(
      'LOG_UNAVAILABLE',
      `The retraction of ${dataset.key} ${partition} could not be written to the log: ${explain(error)}`,
      { cause: error },
    );
  }
}
