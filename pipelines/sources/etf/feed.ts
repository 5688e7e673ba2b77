/** Issuers of ETFs: the adapter. */
import { etfDailyMetrics } from '../../../shared/registry/datasets/etf_daily_metrics.ts';
import { metricProjection } from '../../rows/record-rows.ts';
import { lazyFeed } from '../feed-helpers.ts';
import type { Adapter } from '../feed-types.ts';

export const etf: Adapter = {
  feeds: [
    lazyFeed(
      {
        name: 'etf',
        datasets: [etfDailyMetrics],
        options: { required: [], optional: ['fund', 'from', 'to'] },
        writesSample: true,
      },
      async () => (await import('./open.ts')).etfFeed,
    ),
  ],
  projections: {
    [etfDailyMetrics.key]: metricProjection(etfDailyMetrics, ({ observed_at_utc }, day) =>
      String(observed_at_utc).startsWith(day) ? [] : undefined,
    ),
  },
};
