/** Which sources feed which dataset: the registry says so. */
import { DATASETS, type DatasetKey } from '../registry/index.ts';

/** Sources a dataset is fed by, each of which must have a state. */
export const sourcesOf = (dataset: DatasetKey): readonly string[] => DATASETS.get(dataset)!.sources;

export const feeds = (source: string, dataset: DatasetKey): boolean => sourcesOf(dataset).includes(source);

export const isSource = (source: string): boolean =>
  [...DATASETS.values()].some((dataset) => dataset.sources.includes(source));
