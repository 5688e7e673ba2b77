/** The tables of docs/macro.md. */
import { SERIES } from '../pipelines/sources/macro/series.ts';
import { macroSeriesMetrics } from '../shared/registry/datasets/macro_series_metrics.ts';
import { table } from './table.ts';

export function macroSeries(): string {
  const fresh: Readonly<Record<string, number>> = macroSeriesMetrics.quality.sources;
  return table(
    ['series', '`source_id`', '`metric_name`', '`metric_unit`', 'observed', 'seasonal adjustment', 'fresh for'],
    SERIES.map(({ seriesId, sourceId, metricName, unit, frequency, seasonalAdjustment }) => [
      seriesId,
      `\`${sourceId}\``,
      `\`${metricName}\``,
      unit,
      frequency.toLowerCase(),
      seasonalAdjustment,
      `${fresh[sourceId]} days`,
    ]),
  );
}
