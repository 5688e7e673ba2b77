/**
 * A fund's day as events: one a metric. Names come from the fund's facts alone, never from the bytes of its page: fetched
 * twice with another advert it is one record, while a changed fact makes another record, so another capture.
 */
import { createHash } from 'node:crypto';
import type { RecordedEvent } from '../records/record-frames.ts';
import type { Issuer } from './issuers/types.ts';
import { FACTS, type Metric } from './parse/facts.ts';

const PARSER_VERSION = '1.0.0';
const DIMENSIONS = '{"row_index":"1"}';

/** In the order of their offsets. */
export function eventsOf(issuer: Issuer, metrics: readonly Metric[], asOfMs: number): RecordedEvent[] {
  const { sourceId, document } = issuer;
  const observed = new Date(asOfMs).toISOString();
  // Keys in the order of the alphabet, here and below.
  const provenance = {
    fetch_method: document.by,
    parser_name: sourceId,
    parser_version: PARSER_VERSION,
    source_id: sourceId,
    source_uri: document.path,
  };
  const recordId = recordOf(issuer, metrics);
  return metrics
    .map(({ name, unit, kind, text }): RecordedEvent => {
      const metricId = sha256Of(`${sourceId}|${recordId}|${name}|${text}`);
      const payload = {
        dimensions: { row_index: '1' },
        metric_id: metricId,
        metric_name: name,
        metric_unit: unit,
        metric_value_kind: kind,
        metric_value_text: text,
        observed_at_utc: observed,
        provenance,
        source_id: sourceId,
      };
      const row = [asOfMs, metricId, sourceId, name, unit, kind, text, DIMENSIONS, JSON.stringify(provenance), ''];
      return { offset: metricId, payload: Buffer.from(JSON.stringify(payload)), row };
    })
    .sort((a, b) => (a.offset < b.offset ? -1 : 1));
}

/** What a fund says of a day: two documents with the same are the same record. */
export const recordOf = ({ sourceId }: Issuer, metrics: readonly Metric[]): string =>
  sha256Of(JSON.stringify([sourceId, ...metrics.filter(isLasting).map(({ name, text }) => [name, text])]));

const isLasting = ({ name }: Metric) => name === 'observed_at_utc' || !('passing' in FACTS[name]);

const sha256Of = (text: string) => createHash('sha256').update(text).digest('hex');
