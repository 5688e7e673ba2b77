/** The settings with which a command reads feeds: those that were given, and the pinned values of the others. */

import type { Settings } from '../../shared/config/settings.ts';
import { readPins, selectedValues, withPins } from '../../shared/db/pinned-settings.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Feed } from '../sources/feed-types.ts';
import type { Context } from './context.ts';

type Needs = Pick<Context, 'pool' | 'settings' | 'given'>;

type Fed = { readonly datasets: readonly DatasetDefinition[] };

const datasetsOf = (feeds: readonly Fed[]): DatasetDefinition[] => feeds.flatMap(({ datasets }) => datasets);

/** @throws TidemarkError CONFIGURATION_INVALID if a setting was given another value than the pinned one. */
export async function settingsFor({ pool, settings, given }: Needs, feeds: readonly Fed[]): Promise<Settings> {
  return withPins(await readPins(pool, datasetsOf(feeds)), settings, given);
}

/**
 * Checks the settings that a feed is read with before each of its documents, until all of them are pinned: another process may
 * read another dataset of the same source with other settings, and have it proved first.
 * @returns a function that throws TidemarkError CONFIGURATION_INVALID.
 */
export function pinCheck({ pool }: Pick<Context, 'pool'>, feed: Feed, settings: Settings): () => Promise<void> {
  let left = Object.keys(selectedValues(settings, feed.datasets)).length;
  return async () => {
    if (left === 0) return;
    const pins = await readPins(pool, feed.datasets);
    withPins(pins, settings, { has: () => true });
    if (pins.length === left) left = 0;
  };
}
