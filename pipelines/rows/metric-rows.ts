/**
 * Events of metrics as storage rows: what the ETF and the macro dataset have in common on the projector's side. A payload is a JSON object with sorted keys; the row takes its texts over as they are.
 */
import { TidemarkError } from '../../shared/errors.ts';
import type { StoredValue } from '../../shared/proof/row-facts.ts';
import { etfDailyMetrics } from '../../shared/registry/datasets/etf_daily_metrics.ts';
import { macroSeriesMetrics } from '../../shared/registry/datasets/macro_series_metrics.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import { dayKey, parseDay } from '../../shared/time/days.ts';
import { type RecordRow, RecordRows } from './record-rows.ts';
import type { Projection } from './types.ts';

/** Values of the columns after the partition's key; undefined: the event is not of the partition's day. */
type OwnColumns = (payload: Payload, day: string) => readonly StoredValue[] | undefined;

type Payload = Readonly<Record<string, unknown>>;

const NUMBER = /^-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

/** What the text of a value is, by its kind. */
const TEXTS: Readonly<Record<string, (text: unknown) => boolean>> = {
  int: (text) => typeof text === 'string' && /^-?\d+$/.test(text) && Number.isSafeInteger(Number(text)),
  float: (text) => typeof text === 'string' && NUMBER.test(text) && Number.isFinite(Number(text)),
  string: (text) => typeof text === 'string',
  bool: (text) => text === 'true' || text === 'false',
  null: (text) => text === null,
};

function metricRow(dataset: DatasetDefinition, key: string, own: OwnColumns): RecordRow {
  const { sourceId, span } = keyFacts(dataset, key);
  const day = dayKey(span?.from ?? 0);
  return ({ offset, payload: bytes }) => {
    const fault = (what: string, cause?: unknown) =>
      new TidemarkError('LOG_FRAME_CORRUPT', `The event ${offset} of ${key} cannot be read: ${what}`, { cause });
    const payload = parse(bytes, fault);
    const text = (name: string): string => {
      const value = payload[name];
      if (typeof value !== 'string' || value === '') throw fault(`${name} is no text`);
      return value;
    };
    const object = (name: string): string => {
      const value = payload[name];
      if (typeof value !== 'object' || value === null) throw fault(`${name} is no object`);
      return JSON.stringify(value);
    };
    const unit = payload.metric_unit;
    if (unit !== null && typeof unit !== 'string') throw fault('metric_unit is no text');
    const { metric_value_text: value } = payload;
    const kind = text('metric_value_kind');
    if (!Object.hasOwn(TEXTS, kind) || !TEXTS[kind](value)) throw fault(`its value is no ${kind}`);
    if (text('metric_id') !== offset) throw fault(`it is of ${text('metric_id')}`);
    if (text('source_id') !== sourceId) throw fault(`it is of ${text('source_id')}`);
    const observed = text('observed_at_utc');
    const atMs = parseDay(observed.slice(0, 10));
    if (atMs === undefined || new Date(atMs).toISOString() !== observed) throw fault('observed_at_utc is no midnight');
    const owned = own(payload, day);
    if (owned === undefined) throw fault(`it is not of ${day}`);
    return [
      atMs,
      offset,
      sourceId,
      text('metric_name'),
      unit,
      kind,
      value as string | null,
      object('dimensions'),
      object('provenance'),
      key,
      ...owned,
    ];
  };
}

function parse(bytes: Buffer, fault: (what: string, cause?: unknown) => TidemarkError): Payload {
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString());
  } catch (cause) {
    throw fault('it is no JSON', cause);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw fault('it is no JSON object');
  return value as Payload;
}

function metricProjection(dataset: DatasetDefinition, own: OwnColumns): Projection {
  const { native, aligned } = dataset;
  const { seconds } = aligned;
  if (!seconds) throw new TypeError(`${dataset.key} declares no seconds`);
  return { createRows: ({ key }) => new RecordRows(native, metricRow(dataset, key, own)), seconds };
}

/** By dataset key. */
export const METRIC_PROJECTIONS: Readonly<Record<string, Projection>> = {
  [etfDailyMetrics.key]: metricProjection(etfDailyMetrics, ({ observed_at_utc }, day) =>
    String(observed_at_utc).startsWith(day) ? [] : undefined,
  ),
  [macroSeriesMetrics.key]: metricProjection(macroSeriesMetrics, ({ provenance }, day) =>
    (provenance as Payload).realtime_start === day ? [day] : undefined,
  ),
};
