/** The series in docs/macro.md. */
import { SERIES } from '../pipelines/sources/macro/series.ts';
import { macroSeriesMetrics } from '../shared/registry/datasets/macro_series_metrics.ts';

export function macroSeries(): string {
  const fresh: Readonly<Record<string, number>> = macroSeriesMetrics.quality.sources;
  return SERIES.map(({ seriesId, sourceId, metricName, unit, frequency, seasonalAdjustment }) => {
    const adjusted = `${frequency.toLowerCase()}, ${seasonalAdjustment}`;
    return `- ${seriesId}: \`${sourceId}\`, \`${metricName}\`, ${unit}, ${adjusted}, fresh for ${fresh[sourceId]} days\n`;
  }).join('');
}
