/**
 * A feed whose code is loaded when it is used. Every command and every projector has the table of feeds; reading it with
 * all that parses pages and checks answers takes 0.15 s of each start.
 */
import type { Feed, KeptFeed, Sample } from './types.ts';

export type NamedFeed = Pick<Feed, 'name' | 'datasets' | 'options'>;

/** A feed with a sample, whose documents are kept. */
export type KeepingFeed = NamedFeed & Pick<Feed, 'open'> & { readonly sample: Sample; readonly kept: KeptFeed };

export function loadedWhenUsed(named: NamedFeed, load: () => Promise<KeepingFeed>): KeepingFeed {
  return {
    ...named,
    open: async (needs) => (await load()).open(needs),
    sample: {
      partitions: async () => (await load()).sample.partitions(),
      make: async (needs) => (await load()).sample.make(needs),
    },
    kept: { options: named.options, open: async (needs) => (await load()).kept.open(needs) },
  };
}
