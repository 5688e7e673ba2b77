/** Datasets that are held back from serving as a whole, by a setting that their declaration names. */
import type { Settings } from '../../shared/config/settings.ts';
import { DATASETS, type DatasetKey } from '../../shared/registry/index.ts';

export function shadowedBy(settings: Settings): ReadonlySet<DatasetKey> {
  const held = [...DATASETS.values()].filter(
    ({ servingState }) => servingState !== undefined && settings[servingState] === 'shadow',
  );
  return new Set(held.map(({ key }) => key as DatasetKey));
}
