import { DAY_MS } from '../../dates.ts';
import type { DatasetDefinition } from '../definition.ts';
import { metricsOf } from '../metrics.ts';

const KEY = 'macro_series_metrics';
const NUMBER = 5;

/**
 * Adds the time at which the source last changed the series, as it reported at the fetch of the row. It is a fact of the
 * partition, outside every digest, and inserted in the order of the sorted keys. The replaced text is unique: a JSON string
 * cannot contain a quoted key with its colon.
 */
const provenanceSql = (
  fact: (column: string) => string,
) => `coalesce(replace(t.provenance_json, '"realtime_start":', '"last_updated_utc":"' || to_char(
  ${fact('last_updated_at')} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || '","realtime_start":'),
  t.provenance_json)`;

/** Days between two publications, plus what a weekend with a holiday, or a late release, adds. */
const DAILY = 5;
const MONTHLY = 45;

const MONTH_MS = 31 * DAY_MS;

/** The end of a vintage's date in US Central time, winter or summer: 06:00 of the next day, UTC. */
const KNOWN_AFTER_MS = DAY_MS + 6 * 3_600_000;

export const macroSeriesMetrics = {
  number: NUMBER,
  key: KEY,
  kind: 'macro_series_metrics',
  title: 'Macro series metrics',
  doc: 'Four macro-economic series with every revision, one row per value that a vintage changed.',
  sources: ['macro'],
  locations: { macro: ['SVC_MACRO_BASE_URL'] },
  partition: { kind: 'vintage', knownAfterMs: KNOWN_AFTER_MS },
  servingState: 'SVC_MACRO_QUERY_SERVING_STATE',
  historicalPath: 'macro/series_metrics',
  cadence: {
    bySource: {
      macro_fedfunds: { everyMs: MONTH_MS },
      macro_cpiaucsl: { everyMs: MONTH_MS },
      macro_unrate: { everyMs: MONTH_MS },
      macro_dgs10: { every: 'market_day' },
    },
  },
  quality: {
    kind: 'published',
    codes: {
      missing: 'MACRO_SOURCE_PUBLISH_MISSING',
      stale: 'MACRO_SOURCE_PUBLISH_STALE',
      units: 'UNIT_CHANGES_WITHIN_SERIES',
    },
    sources: { macro_fedfunds: MONTHLY, macro_cpiaucsl: MONTHLY, macro_unrate: MONTHLY, macro_dgs10: DAILY },
    maxAgeDays: 'SVC_MACRO_SOURCE_PUBLISH_STALE_MAX_AGE_DAYS',
  },
  ...metricsOf({
    number: NUMBER,
    table: KEY,
    // `YYYY-MM-DD`: the day on which the source published the value
    ownColumns: [{ name: 'vintage', pg: 'text', shown: 'vintage' }],
    order: ['observed_at_utc', 'source_id', 'metric_name', 'vintage', 'metric_id'],
    seriesKey: ['source_id', 'metric_name'],
    outsideDigests: ['latest_ingested_at_utc', 'provenance_json'],
    provenanceSql,
    // Vintages compare as texts. They decide before the ingest time: the last ingested vintage need not be the latest.
    latestBy: ['t.vintage desc', 't.ingested_at desc', 't.source_offset desc'],
    isPresent: `t.value_text is distinct from '.'`,
    unit: {
      nullable: false,
      doc: 'Unit with its base, as the vintage names it.',
    },
    provenance: {
      nullable: false,
      doc: "Series, title, unit, vintage (`realtime_start`) and the source's `last_updated_utc`.",
    },
    docs: {
      metricId: 'sha256 of `source_id|metric_name|observation_date|realtime_start`.',
      observed: 'Midnight UTC of the observation date, not of publication.',
      dimensions: 'Series, observation date, frequency and seasonal adjustment.',
    },
  }),
} as const satisfies DatasetDefinition;
