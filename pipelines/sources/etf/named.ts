/** What an operator sees of the feed, apart from its code, which is loaded when it is used. */
import { etfDailyMetrics } from '../../../shared/registry/datasets/etf_daily_metrics.ts';
import type { NamedFeed } from '../loaded-when-used.ts';

export const ETF: NamedFeed = {
  name: 'etf',
  datasets: [etfDailyMetrics],
  options: { required: [], optional: ['fund', 'from', 'to'] },
};
