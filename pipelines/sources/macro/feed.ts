/** The provider of macro series: the adapter. */
import { macroSeriesMetrics } from '../../../shared/registry/datasets/macro_series_metrics.ts';
import { metricProjection } from '../../rows/record-rows.ts';
import { lazyFeed } from '../feed-helpers.ts';
import type { Adapter } from '../feed-types.ts';

export const macro: Adapter = {
  feeds: [
    lazyFeed(
      { name: 'macro', datasets: [macroSeriesMetrics], options: { required: [], optional: ['series', 'from', 'to'] } },
      async () => (await import('./open.ts')).macroFeed,
    ),
  ],
  projections: {
    [macroSeriesMetrics.key]: metricProjection(macroSeriesMetrics, ({ provenance }, day) =>
      (provenance as { realtime_start?: unknown }).realtime_start === day ? [day] : undefined,
    ),
  },
};
