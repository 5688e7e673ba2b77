/**
 * A feed whose code is loaded when it is used. Every command and every projector has the table of feeds; reading it with
 * all that parses pages and checks answers takes 0.15 s of each start.
 */
import type { ArchiveFeed, Feed, Sample } from './types.ts';

/** What is known of a feed before its code is loaded. */
export type FeedDescriptor = Pick<Feed, 'name' | 'datasets' | 'options'> & {
  /** Whether its sample can write documents of given days. */
  readonly writesSample?: true;
};

/** What is loaded: a feed with a sample, whose documents are archived. */
export interface LoadedFeed extends Pick<Feed, 'open'> {
  readonly sample: Sample;
  readonly kept: Pick<ArchiveFeed, 'open'>;
}

export function lazyFeed({ writesSample, ...descriptor }: FeedDescriptor, load: () => Promise<LoadedFeed>): Feed {
  return {
    ...descriptor,
    open: async (needs) => (await load()).open(needs),
    sample: {
      partitions: async () => (await load()).sample.partitions(),
      make: async (needs) => (await load()).sample.make(needs),
      ...(writesSample ? { write: async (order) => (await load()).sample.write?.(order) } : {}),
    },
    kept: { options: descriptor.options, open: async (needs) => (await load()).kept.open(needs) },
  };
}
