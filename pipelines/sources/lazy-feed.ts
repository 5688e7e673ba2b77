/**
 * A feed whose code is loaded when it is used. Every command and every projector has the table of feeds; reading it with
 * all that parses pages and checks answers takes 0.15 s of each start.
 */
import { etfDailyMetrics } from '../../shared/registry/datasets/etf_daily_metrics.ts';
import { macroSeriesMetrics } from '../../shared/registry/datasets/macro_series_metrics.ts';
import type { ArchiveFeed, Feed, Sample } from './types.ts';

export type FeedDescriptor = Pick<Feed, 'name' | 'datasets' | 'options'> & {
  /** Whether its sample can write documents of given days: known before the code is loaded. */
  readonly writesSample?: true;
};

/** A feed with a sample, whose documents are kept. */
export type ArchivingFeed = FeedDescriptor &
  Pick<Feed, 'open'> & { readonly sample: Sample; readonly kept: ArchiveFeed };

export function lazyFeed(named: FeedDescriptor, load: () => Promise<ArchivingFeed>): ArchivingFeed {
  return {
    ...named,
    open: async (needs) => (await load()).open(needs),
    sample: {
      partitions: async () => (await load()).sample.partitions(),
      make: async (needs) => (await load()).sample.make(needs),
      ...(named.writesSample ? { write: async (order) => (await load()).sample.write?.(order) } : {}),
    },
    kept: { options: named.options, open: async (needs) => (await load()).kept.open(needs) },
  };
}

/* What an operator sees of the feed, apart from its code, which is loaded when it is used. */

export const ETF: FeedDescriptor = {
  name: 'etf',
  datasets: [etfDailyMetrics],
  options: { required: [], optional: ['fund', 'from', 'to'] },
  writesSample: true,
};

/* What an operator sees of the feed, apart from its code, which is loaded when it is used. */

export const MACRO: FeedDescriptor = {
  name: 'macro',
  datasets: [macroSeriesMetrics],
  options: { required: [], optional: ['series', 'from', 'to'] },
};
