/** What an operator sees of the feed, apart from its code, which is loaded when it is used. */
import { macroSeriesMetrics } from '../../../shared/registry/datasets/macro_series_metrics.ts';
import type { NamedFeed } from '../loaded-when-used.ts';

export const MACRO: NamedFeed = {
  name: 'macro',
  datasets: [macroSeriesMetrics],
  options: { required: [], optional: ['series', 'from', 'to'] },
};
