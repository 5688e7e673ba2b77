/** Failures of sources: which of them mean that a document does not exist yet, and the record of the others, for monitors. */
import type { Pool } from 'pg';
import { codeOf, explain } from '../../shared/errors.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import type { UnitResult } from '../publisher/backfill.ts';
import type { Feed } from '../sources/feed-types.ts';
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
  const isRecorded = (code: string | undefined): code is string =>
    isSourceFault(code) && !(isFollowed && isNotYet(feed, code));
  const note = async (dataset: string, source: string, code: string, reason: string) => {
    await recordSourceFailure(pool, datasetOf(dataset), { source, code, reason }).catch((error) =>
      log.warn({ err: explain(error) }, 'a failure of a source could not be recorded'),
    );
  };
  try {
    for await (const result of results) {
      const { dataset, partition, state, code, reason = '' } = result;
      if (state === 'failed' && isRecorded(code)) await note(dataset, sourceOf(dataset, partition), code, reason);
      yield result;
    }
  } catch (error) {
    const code = codeOf(error);
    const [first] = feed.datasets;
    if (isRecorded(code)) await note(first.key, first.sources[0], code, explain(error));
    throw error;
  }
}

/** Codes of the faults of a vendor, an issuer, a provider or a node, and of the documents that they sent, not of the settings. */
const OF_SOURCES = /^(?:SOURCE_(?!PINNED$)|NODE_|CHAIN_)/;

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
