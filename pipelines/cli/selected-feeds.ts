/** Which feeds a command is about: those named, or all whose source a setting names. */
import type { Settings } from '../../shared/config/settings.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { feedOf, feeds } from '../sources/index.ts';
import type { Feed } from '../sources/types.ts';

/** Where its documents are, a setting says. */
export const isLocated = (settings: Settings, { datasets }: Feed): boolean =>
  datasets.some(({ locations }) =>
    Object.values(locations)
      .flat()
      .some((name) => settings[name] !== undefined),
  );

export const ALL = 'all';

/**
 * Feeds by name, each once; `all`: every one whose source is set.
 * @throws TidemarkError USAGE for an unknown one, CONFIGURATION_INVALID where `all` is none.
 */
export function selectedFeeds(names: readonly string[], settings: Settings): Feed[] {
  if (!names.includes(ALL)) return [...new Set(names.map(feedOf))];
  const located = feeds().filter((feed) => isLocated(settings, feed));
  if (located.length > 0) return located;
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    'No source is set: `all` is every feed whose location one of the settings of the group Sources names',
  );
}
