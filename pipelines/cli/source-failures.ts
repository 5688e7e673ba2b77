/** Units and feeds that failed for their source's sake, noted where monitors see them. */
import { isSourceFault, recordSourceFailure } from '../../shared/db/source-failures.ts';
import { codeOf, explain } from '../../shared/errors.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import type { UnitResult } from '../publish/backfill.ts';
import type { Feed } from '../sources/types.ts';
import type { Context } from './context.ts';

/**
 * Of what is followed this is no failure: it is asked for until it is there. Vendors publish a file day when it is over; an
 * issuer's page, which is not there once, is missed.
 */
export const isNotYet = ({ datasets: [{ partition }] }: Pick<Feed, 'datasets'>, code: string | undefined): boolean =>
  code === 'NODE_HEIGHT_BEYOND_TIP' || (code === 'SOURCE_NOT_FOUND' && partition.kind === 'file_day');

/** The same results. What cannot be noted is logged: it must not stop what it tells of. */
export async function* notingFailures(
  { pool, log }: Pick<Context, 'pool' | 'log'>,
  feed: Feed,
  { results, isFollowed }: { readonly results: AsyncIterable<UnitResult>; readonly isFollowed: boolean },
): AsyncGenerator<UnitResult> {
  const note = async (dataset: string, source: string, code: string, reason: string) => {
    if (isFollowed && isNotYet(feed, code)) return;
    await recordSourceFailure(pool, datasetOf(dataset), { source, code, reason }).catch((error) =>
      log.warn({ err: explain(error) }, 'a failure of a source was not noted'),
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

/** A document that failed before its partitions were known is named otherwise. */
function sourceOf(dataset: string, partition: string): string {
  const definition = datasetOf(dataset);
  try {
    return keyFacts(definition, partition).sourceId;
  } catch {
    return definition.sources[0];
  }
}
