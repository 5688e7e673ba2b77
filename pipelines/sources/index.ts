/** The table of sources: the feeds that an operator can name, and the adapter of each dataset. */
import { TidemarkError } from '../../shared/errors.ts';
import { closestName } from '../../shared/nearest.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import type { Projection } from '../rows/binary-copy.ts';
import { bitcoin } from './bitcoin/feed.ts';
import { etf } from './etf/feed.ts';
import { exchangeA } from './exchange_a/feed.ts';
import { exchangeB } from './exchange_b/feed.ts';
import { exchangeC } from './exchange_c/feed.ts';
import type { Adapter, Feed } from './feed-types.ts';
import { macro } from './macro/feed.ts';

const ADAPTERS: readonly Adapter[] = [exchangeA, exchangeB, exchangeC, bitcoin, etf, macro];

const FEEDS: readonly Feed[] = ADAPTERS.flatMap((adapter) => adapter.feeds);
const PROJECTIONS = new Map(ADAPTERS.flatMap((adapter) => Object.entries(adapter.projections)));

export const feeds = (): readonly Feed[] => FEEDS;

/** @throws TidemarkError USAGE; its message names the known feeds. */
export function feedOf(name: string): Feed {
  const feed = FEEDS.find((one) => one.name === name);
  if (feed) return feed;
  const feeding = FEEDS.find(({ datasets }) => datasets.some(({ key }) => key === name));
  const names = FEEDS.map((one) => one.name);
  const meant = closestName(name, names);
  const known = `${meant === undefined ? '' : `did you mean ${meant}? `}known: ${names.join(', ')}`;
  const hint = feeding ? `use ${feeding.name}, which feeds it` : known;
  throw new TidemarkError('USAGE', `There is no feed ${JSON.stringify(name)}; ${hint}`);
}

/** Datasets that have an adapter, in the order of the registry. */
export const fedDatasets = (): DatasetDefinition[] => [...DATASETS.values()].filter(({ key }) => PROJECTIONS.has(key));

export function projectionOf(dataset: DatasetDefinition): Projection {
  const projection = PROJECTIONS.get(dataset.key);
  if (!projection) throw new TidemarkError('USAGE', `No adapter feeds ${dataset.key} yet`);
  return projection;
}
