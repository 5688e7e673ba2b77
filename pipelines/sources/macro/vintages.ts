/** What was said of a series over some vintages, as partitions: one a vintage, with what it changed. */

import { createHash } from 'node:crypto';
import Big from 'big.js';
import { DAY_MS, parseDay } from '../../../shared/dates.ts';
import type { Catalog } from '../../../shared/db/catalog.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { macroSeriesMetrics } from '../../../shared/registry/datasets/macro_series_metrics.ts';
import { vintageKey } from '../../../shared/registry/keys.ts';
import { type RecordedEvent, RecordFrames } from '../record-frames.ts';
import type { DocumentRequest, OpenedDocument, Source } from '../types.ts';
import type { Observation, ProviderAnswers, VintageSpan } from './provider-api.ts';
import type { MacroSeries } from './series.ts';

/*
 * Vintages: what each publication changed. The provider says each value with the days from and to which it was said;
 * a row is kept where the number first differs from the one before it. The text of an equal number may differ.
 */

/** A value as one publication first said it. */
export interface VintageRow {
  /** Observation date. */
  readonly date: string;
  readonly value: string;
}

export const MISSING = '.';

/**
 * Rows by vintage, ascending; observation dates ascend within one. Windows of vintages may be given one after another:
 * a value that a window repeats from the one before it is no change.
 * @param before what was said last before the observations given, by date; it is brought up to date.
 * @throws TidemarkError SOURCE_ROW_CONFLICT when two different values are said of one date on one day.
 */
export function vintagesOf(
  observations: readonly Observation[],
  before: Map<string, string>,
): Map<string, VintageRow[]> {
  const sorted = [...observations].sort((a, b) => compare(a.realtimeStart, b.realtimeStart) || compare(a.date, b.date));
  const vintages = new Map<string, VintageRow[]>();
  let last: Observation | undefined;
  for (const observation of sorted) {
    const { realtimeStart, date, value } = observation;
    if (last?.date === date && last.realtimeStart === realtimeStart && !sameValue(last.value, value)) {
      const said = `${last.value} and ${value}`;
      throw new TidemarkError(
        'SOURCE_ROW_CONFLICT',
        `Two values of ${date} are said from ${realtimeStart} on: ${said}`,
      );
    }
    last = observation;
    const previous = before.get(date);
    if (previous !== undefined && sameValue(previous, value)) continue;
    before.set(date, value);
    const rows = vintages.get(realtimeStart);
    if (rows) rows.push({ date, value });
    else vintages.set(realtimeStart, [{ date, value }]);
  }
  return vintages;
}

/**
 * What each vintage of a span changed, by itself: held against what was said on the vintage before the span, which the
 * answers about it begin with. One that changed no number has no rows.
 * @throws TidemarkError SOURCE_LAYOUT_UNKNOWN when a value is said from a day on that is none of them.
 */
export function vintagesIn(
  { before, vintages }: VintageSpan,
  observations: readonly Observation[],
): Map<string, readonly VintageRow[]> {
  const known = new Map<string, string>();
  const isBefore = ({ realtimeStart }: Observation) => before !== undefined && realtimeStart <= before;
  vintagesOf(observations.filter(isBefore), known);
  const said = observations.filter((observation) => !isBefore(observation));
  const dates = new Set(vintages);
  const stray = said.find(({ realtimeStart }) => !dates.has(realtimeStart));
  if (stray) {
    const what = `${stray.date} is said from ${stray.realtimeStart} on, which is no vintage that was asked for`;
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answers about observations: ${what}`);
  }
  const changed = vintagesOf(said, known);
  return new Map(vintages.map((vintage) => [vintage, changed.get(vintage) ?? []]));
}

/** As numbers: `4.69` and `4.6900000000` are one. No value is equal to no value only. */
export function sameValue(a: string, b: string): boolean {
  if (a === b) return true;
  if (a === MISSING || b === MISSING) return false;
  return new Big(a).eq(new Big(b));
}

const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);

/* What one vintage of a series changed, as events: one a value. When the source last changed it is no part of them. */

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

export interface VintagesRequest extends DocumentRequest {
  readonly series: MacroSeries;
  readonly content: ProviderContent | { readonly fault: unknown };
}

/** Answers that came. */
export interface ProviderContent {
  readonly said: ProviderAnswers;
  /** Those of its vintages that are wanted, ascending. */
  readonly vintages: readonly string[];
  /** When the source last changed the series, as the fetch was told. */
  readonly lastUpdatedMs: number;
  /** What is proved is to be replaced by what the source says now, down to the text. */
  readonly replaces?: boolean;
  /** The last of its vintages was the last there was at that time. */
  readonly throughMs?: number;
}

export function macroSource(catalog: Catalog): Source<VintagesRequest> {
  return {
    datasets: [macroSeriesMetrics],
    publishedSha256: async () => undefined,
    async open({ series, content, partitions }): Promise<OpenedDocument> {
      if ('fault' in content) throw content.fault;
      const { said, vintages, lastUpdatedMs, throughMs, replaces } = content;
      const changed = vintagesIn(said.span, said.observations);
      const keys = partitions.map(({ key }) => key);
      const stored = replaces ? new Map() : await catalog.valueTexts(macroSeriesMetrics, keys);
      return {
        facts: { ...documentOf(series, said), granularity: 'vintages' },
        checks: throughMs === undefined ? [] : [{ sourceId: series.sourceId, throughMs }],
        async *decode({ frameRawBytes }) {
          for (const vintage of vintages) {
            const frames = new RecordFrames(macroSeriesMetrics, vintageKey(series.sourceId, vintage), frameRawBytes);
            for (const event of eventsOf(series, vintage, changed.get(vintage) ?? [], writtenBefore(stored))) {
              yield* frames.add(event);
            }
            const fromMs = parseDay(vintage)!;
            yield* frames.end({ last_updated_ms: lastUpdatedMs }, { fromMs, toMs: fromMs + DAY_MS });
          }
        },
        async [Symbol.asyncDispose]() {},
      };
    },
  };
}

/** The source may write a number that it said before in another way: it stays as it was taken down. */
const writtenBefore =
  (stored: ReadonlyMap<string, string | null>) =>
  (metricId: string, { value }: VintageRow): string => {
    const text = stored.get(metricId);
    return typeof text === 'string' && sameValue(text, value) ? text : value;
  };

/** One answer, or the pages of one. */
function documentOf({ seriesId }: MacroSeries, { span: { before, vintages }, pages }: ProviderAnswers) {
  const hash = createHash('sha256');
  for (const page of pages) hash.update(page);
  return {
    name: `${seriesId} ${before ?? vintages[0]}..${vintages[vintages.length - 1]}`,
    sha256: hash.digest('hex'),
    bytes: pages.reduce((sum, page) => sum + page.length, 0),
  };
}
