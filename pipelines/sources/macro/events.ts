/** What one vintage of a series changed, as events: one a value. When the source last changed it is no part of them. */
import { createHash } from 'node:crypto';
import type { RecordedEvent } from '../records/record-frames.ts';
import type { MacroSeries } from './series.ts';
import { MISSING, type VintageRow } from './vintages.ts';

/** In the order of their offsets. */
export function eventsOf(
  series: MacroSeries,
  vintage: string,
  rows: readonly VintageRow[],
  /** The text of a value, where it was taken down before. */
  textOf: (metricId: string, row: VintageRow) => string = (_, { value }) => value,
): RecordedEvent[] {
  const { seriesId, sourceId, metricName, unit, frequency, seasonalAdjustment } = series;
  return rows
    .map((change): RecordedEvent => {
      const { date } = change;
      const metricId = createHash('sha256').update(`${sourceId}|${metricName}|${date}|${vintage}`).digest('hex');
      const value = textOf(metricId, change);
      const kind = value === MISSING ? 'string' : 'float';
      // Keys in the order of the alphabet; `realtime_start` is where the serving side puts last_updated_utc before.
      const dimensions = {
        frequency,
        observation_date: date,
        seasonal_adjustment: seasonalAdjustment,
        series_id: seriesId,
      };
      const provenance = {
        realtime_start: vintage,
        series_id: seriesId,
        source_uri: `series/${seriesId}`,
        units: unit,
      };
      const payload = {
        dimensions,
        metric_id: metricId,
        metric_name: metricName,
        metric_unit: unit,
        metric_value_kind: kind,
        metric_value_text: value,
        observed_at_utc: `${date}T00:00:00.000Z`,
        provenance,
        source_id: sourceId,
      };
      const texts = [JSON.stringify(dimensions), JSON.stringify(provenance)];
      const at = Date.parse(`${date}T00:00:00Z`);
      const row = [at, metricId, sourceId, metricName, unit, kind, value, ...texts, '', vintage];
      return { offset: metricId, payload: Buffer.from(JSON.stringify(payload)), row };
    })
    .sort((a, b) => (a.offset < b.offset ? -1 : 1));
}
