/**
 * Turns the provider's observations into partitions, one per vintage, each with the values that it changed. The
 * provider gives each value with its first and last day of validity. A row is stored if its number differs from the one
 * before; the text of an equal number may differ. A vintage that describes the series otherwise, such as by another base,
 * has a row for each of its values: the same number no longer means the same.
 */

import { createHash } from 'node:crypto';
import Big from 'big.js';
import { DAY_MS, parseDay } from '../../../shared/dates.ts';
import type { Catalog } from '../../../shared/db/catalog.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { macroSeriesMetrics } from '../../../shared/registry/datasets/macro_series_metrics.ts';
import { vintageKey } from '../../../shared/registry/keys.ts';
import type { DocumentRequest, OpenedDocument, Source } from '../feed-types.ts';
import { type RecordedEvent, RecordFrames } from '../record-frames.ts';
import { type Description, type Descriptions, isSameDescription } from './descriptions.ts';
import type { Observation, ProviderAnswers, VintageSpan } from './provider-api.ts';
import type { MacroSeries } from './series.ts';

/** A value as the vintage that introduced it wrote it. */
export interface VintageRow {
  /** Observation date. */
  readonly date: string;
  readonly value: string;
}

export const MISSING = '.';

/**
 * Rows by vintage, ascending; observation dates ascend within a vintage. Windows of vintages may be passed one after
 * another: a value that a window repeats from the one before is not a change.
 * @param before the last values before these observations, by date; it is updated.
 * @throws TidemarkError SOURCE_DOCUMENT_INVALID if a date has two different values from the same day on.
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
      const values = `${last.value} and ${value}`;
      throw new TidemarkError('SOURCE_DOCUMENT_INVALID', `${date} has two values from ${realtimeStart} on: ${values}`);
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
 * The rows that each vintage of a span changed, relative to the vintage before the span, with which its answers begin.
 * A vintage that changed nothing has no rows. Rows are made one vintage after the other: a redescribed one has all values.
 * @param isRedescribed whether the second of two vintages, one after the other, describes the series otherwise
 * @throws TidemarkError SOURCE_LAYOUT_UNKNOWN if a value is valid from a day that is not one of the vintages.
 */
export function vintagesIn(
  { before, vintages }: VintageSpan,
  observations: readonly Observation[],
  isRedescribed: (previous: string, vintage: string) => boolean = () => false,
): Iterable<readonly [vintage: string, rows: readonly VintageRow[]]> {
  const known = new Map<string, string>();
  const isBefore = ({ realtimeStart }: Observation) => before !== undefined && realtimeStart <= before;
  vintagesOf(observations.filter(isBefore), known);
  const ofSpan = observations.filter((observation) => !isBefore(observation));
  const dates = new Set(vintages);
  const stray = ofSpan.find(({ realtimeStart }) => !dates.has(realtimeStart));
  if (stray) {
    const what = `${stray.date} is valid from ${stray.realtimeStart}, which is not a requested vintage`;
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answers about observations: ${what}`);
  }
  const changed = vintagesOf(ofSpan, known);
  const redescribed = new Set(
    vintages.filter((vintage, index) => {
      const previous = index === 0 ? before : vintages[index - 1];
      return previous !== undefined && isRedescribed(previous, vintage);
    }),
  );
  return {
    *[Symbol.iterator]() {
      for (const vintage of vintages) {
        yield [vintage, redescribed.has(vintage) ? valuesOn(vintage, observations) : (changed.get(vintage) ?? [])];
      }
    },
  };
}

/** All values that were valid on a day, in the order of their dates. */
function valuesOn(day: string, observations: readonly Observation[]): VintageRow[] {
  const found = new Map<string, Observation>();
  for (const observation of observations) {
    const { date, realtimeStart, realtimeEnd } = observation;
    if (realtimeStart > day || realtimeEnd < day) continue;
    const other = found.get(date);
    if (!other || other.realtimeStart < realtimeStart) found.set(date, observation);
  }
  return [...found.values()].map(({ date, value }) => ({ date, value })).sort((a, b) => compare(a.date, b.date));
}

/** Compares as numbers: `4.69` equals `4.6900000000`. A missing value equals only a missing value. */
export function sameValue(a: string, b: string): boolean {
  if (a === b) return true;
  if (a === MISSING || b === MISSING) return false;
  return new Big(a).eq(new Big(b));
}

const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);

/** A series as a vintage describes it. */
type DescribedSeries = Pick<MacroSeries, 'seriesId' | 'sourceId' | 'metricName'> & Description;

/**
 * The events of one vintage, one per value, in the order of their offsets. They do not contain when the source last
 * changed.
 */
export function eventsOf(
  series: DescribedSeries,
  vintage: string,
  rows: readonly VintageRow[],
  /** The text of a value as it was stored earlier. */
  textOf: (metricId: string, row: VintageRow) => string = (_, { value }) => value,
): RecordedEvent[] {
  const { seriesId, sourceId, metricName, title, unit, frequency, seasonalAdjustment } = series;
  return rows
    .map((change): RecordedEvent => {
      const { date } = change;
      const metricId = createHash('sha256').update(`${sourceId}|${metricName}|${date}|${vintage}`).digest('hex');
      const value = textOf(metricId, change);
      const kind = value === MISSING ? 'string' : 'float';
      // Keys are in alphabetical order; `realtime_start` sorts where the service inserts last_updated_utc before it.
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
        title,
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

/** The answers for a request. */
export interface ProviderContent {
  readonly answers: ProviderAnswers;
  readonly descriptions: Descriptions;
  /** The requested vintages among the answers', ascending. */
  readonly vintages: readonly string[];
  /** When the source last changed the series, as of the fetch. */
  readonly lastUpdatedMs: number;
  /** Replaces what is proved by what the source states now, down to the text. */
  readonly replaces?: boolean;
  /** The last of its vintages was the newest one at this time. */
  readonly throughMs?: number;
}

export function macroSource(catalog: Pick<Catalog, 'valueTexts'>): Source<VintagesRequest> {
  return {
    datasets: [macroSeriesMetrics],
    publishedSha256: async () => undefined,
    async open({ series, content, partitions }): Promise<OpenedDocument> {
      if ('fault' in content) throw content.fault;
      const { answers, descriptions, vintages, lastUpdatedMs, throughMs, replaces } = content;
      const described = new Map(
        vintages.map((vintage) => {
          const description = descriptions.asOf(vintage);
          if (!description) throw descriptions.missing(vintage);
          return [vintage, description];
        }),
      );
      const changed = vintagesIn(
        answers.span,
        answers.observations,
        (previous, vintage) => !isSameDescription(descriptions.asOf(previous), descriptions.asOf(vintage)),
      );
      const keys = partitions.map(({ key }) => key);
      const stored = replaces ? new Map() : await catalog.valueTexts(macroSeriesMetrics, keys);
      return {
        facts: { ...documentOf(series, answers), granularity: 'vintages' },
        checks: throughMs === undefined ? [] : [{ sourceId: series.sourceId, throughMs }],
        async *decode({ frameRawBytes }) {
          for (const [vintage, rows] of changed) {
            const description = described.get(vintage);
            // The answers hold more vintages than were requested.
            if (description === undefined) continue;
            const key = vintageKey(series.sourceId, vintage);
            const frames = new RecordFrames(macroSeriesMetrics, key, frameRawBytes);
            for (const event of eventsOf({ ...series, ...description }, vintage, rows, writtenBefore(stored))) {
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

/** The source may later write an equal number differently; the stored text stays. */
const writtenBefore =
  (stored: ReadonlyMap<string, string | null>) =>
  (metricId: string, { value }: VintageRow): string => {
    const text = stored.get(metricId);
    return typeof text === 'string' && sameValue(text, value) ? text : value;
  };

/** The document of one answer, or of the pages of one. */
function documentOf({ seriesId }: MacroSeries, { span: { before, vintages }, pages }: ProviderAnswers) {
  const hash = createHash('sha256');
  for (const page of pages) hash.update(page);
  return {
    name: `${seriesId} ${before ?? vintages[0]}..${vintages[vintages.length - 1]}`,
    sha256: hash.digest('hex'),
    bytes: pages.reduce((sum, page) => sum + page.length, 0),
  };
}
