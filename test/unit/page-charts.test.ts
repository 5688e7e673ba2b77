/** What the page's charts, calendar and links make of answers. */
import { expect, test } from 'vitest';
import { daysOf, rowDaysRequest, shownState, silentSlots } from '../../serving/page/static/days.js';
import { findingsOf } from '../../serving/page/static/findings.js';
import { numberText, stretch } from '../../serving/page/static/format.js';
import { hashOf, placeOf } from '../../serving/page/static/place.js';
import { candlesOf, linesOf, timeOf } from '../../serving/page/static/series.js';

const field = (name: string, dtype: string) => ({ name, dtype });
const ETF = {
  order: ['observed_at_utc', 'source_id'],
  fields: [
    field('metric_value_string', 'string'),
    field('metric_value_float', 'float64'),
    field('observed_at_utc', 'timestamp_utc'),
    field('ingested_at_utc', 'timestamp_utc'),
  ],
};

test('a metric whose text looks like a time was taken for the time of the row, so that charts stood on "Invalid Date"', () => {
  expect(timeOf(ETF)).toBe('observed_at_utc');
  const row = (metric: string, unit: string, text: string, value: number | null) => ({
    metric_name: metric,
    metric_unit: unit,
    metric_value_string: text,
    metric_value_float: value,
    observed_at_utc: '2024-01-02T00:00:00.000Z',
  });
  const rows = [row('at', 'UTC', '2024-01-01T00:00:00Z', null), row('a', 'USD', '2', 2), row('b', 'BTC', '3', 3)];
  const lines = linesOf(rows, 'metric_value_float', { time: 'observed_at_utc', keys: ['metric_name'] });
  const time = Date.parse('2024-01-02') / 1000;
  expect(lines).toEqual([
    { name: 'a', unit: 'USD', points: [{ time, value: 2 }] },
    { name: 'b', unit: 'BTC', points: [{ time, value: 3 }] },
  ]);
});

test('rows without a whole candle are not drawn as candles', () => {
  expect(candlesOf([{ datetime: '2024-01-01T00:00:00Z', open: 1 }], 'datetime')).toBe(undefined);
});

test('proved days without rows were shown as those with rows', () => {
  const DAY = 86_400_000;
  const from = Date.parse('2024-01-01');
  const proved = [{ source_id: 's', start_utc: '2024-01-01T00:00:00Z', through_utc: '2024-01-04T00:00:00Z' }];
  const coverage = { partition_kind: 'height', proved, gaps: [], partitions: [] };
  const states = (withRows?: Set<string>) => {
    const { stateOf } = daysOf(coverage, undefined, withRows);
    return [0, 1, 2, 3].map((day) => stateOf(from + day * DAY));
  };
  expect(states()).toEqual(['available', 'available', 'available', 'none']);
  expect(states(new Set(['2024-01-01', '2024-01-03']))).toEqual(['available', 'empty', 'available', 'none']);
});

test('a day is shown by its condition, and what coverage knows besides', () => {
  const of = (state: 'available' | 'part' | 'empty' | 'missing' | 'none', condition: string, ...reasons: string[]) =>
    shownState(state, { condition, reasons });
  expect(shownState('part', undefined)).toBe('part');
  expect([of('part', 'available'), of('empty', 'available'), of('missing', 'available')]).toEqual([
    'part',
    'empty',
    'available',
  ]);
  expect([of('available', 'degraded', 'ids_missing'), of('none', 'pending')]).toEqual(['degraded', 'pending']);
  expect([of('available', 'missing', 'retracted'), of('missing', 'missing', 'not_proved')]).toEqual([
    'quarantined',
    'missing',
  ]);
  // Nothing is missing where nothing was to be expected.
  expect([of('missing', 'missing', 'not_listed'), of('none', 'missing', 'not_proved')]).toEqual(['none', 'none']);
});

test('each silence marks slots of the day: those that it fills for the most part, one at least', () => {
  const view = { fromMs: Date.parse('2024-01-01T00:00:00Z'), toMs: Date.parse('2024-01-01T00:10:00Z'), sizeMs: 60_000 };
  const silence = (from: string, to: string, state: string) => ({ from_utc: `${from}Z`, to_utc: `${to}Z`, state });
  const slots = silentSlots(
    [
      silence('2023-12-31T23:00:00', '2024-01-01T00:01:31', 'unknown'),
      silence('2024-01-01T00:03:29.5', '2024-01-01T00:04:30.5', 'proved'),
      silence('2024-01-01T00:08:31', '2024-01-02T08:00:00', 'proved'),
    ],
    view,
  );
  expect(slots.map(({ value }) => value)).toEqual([2, 2, 0, 1, 1, 0, 0, 0, 0, 1]);
  expect([slots[0].time, slots[9].time]).toEqual([view.fromMs / 1000, view.toMs / 1000 - 60]);
});

test('which days have rows is asked for where a day is no partition of its own', () => {
  const native = { order: ['observed_at_utc'], fields: [{ name: 'height', aggregates: ['last'] }] };
  const modes = { native, aligned_1s: { fields: [] } };
  const dataset = { key: 'd', partition_kind: 'height', series: [], modes, historical_path: '/h' };
  const window = { from: Date.parse('2024-01-01'), to: Date.parse('2025-01-01') };
  expect(rowDaysRequest({ ...dataset, partition_kind: 'file_day' }, window)).toBe(undefined);
  expect(rowDaysRequest(dataset, window)).toMatchObject({
    path: '/v1/frame',
    body: { columns: [{ dataset: 'd', field: 'height', max_age: '1d' }], grid: '1d' },
  });
  const body = { fields: ['observed_at_utc'], start_date: '2024-01-01', end_date: '2024-12-31' };
  const metrics = { ...dataset, series: [{ source_id: 's' }] };
  expect(rowDaysRequest(metrics, window)).toEqual({ path: '/h', body, time: 'observed_at_utc' });
  const filters = [{ field: 'source_id', op: 'eq', value: 's' }];
  expect(rowDaysRequest(metrics, window, 's')).toMatchObject({ body: { ...body, filters } });
});

test('an address leads to the choices that it was made of', () => {
  const choices = { dataset: 'd', filters: '[{"value":"a&b=c #?"}]', count: '5' };
  expect(placeOf(hashOf('explore', { ...choices, fields: '', strict: false }))).toEqual({ view: 'explore', choices });
  expect(placeOf('')).toEqual({ view: '', choices: {} });
});

test('all was green while a dataset with rows was refused', () => {
  const status = { checks: {}, log_fault: null, datasets: [], runs: [], queues: [] };
  const dataset = { key: 'd', rights: { refused_with: 'QUERY_RIGHTS_INGEST_ONLY' }, availability: { rows: 1 } };
  expect(findingsOf(status, [dataset])).toMatchObject([
    { weight: 'warn', text: 'd is not served: QUERY_RIGHTS_INGEST_ONLY.' },
  ]);
  expect(findingsOf(status, [dataset, { ...dataset, key: 'e' }])).toMatchObject([
    { text: 'd, e are not served: QUERY_RIGHTS_INGEST_ONLY.' },
  ]);
  expect(findingsOf(status, [{ ...dataset, rights: { refused_with: null } }])).toEqual([]);
});

test('numbers at an axis show none of the noise of computing, and every satoshi', () => {
  expect([-4.065758e-19, 1e-8, 0.00003103, 60675.11, 2_443_000_000].map(numberText)).toEqual([
    '0',
    '0.00000001',
    '0.00003103',
    '60,675.11',
    '2.443B',
  ]);
});

test('a stretch of whole days names its last day, one day once, and any other its ends', () => {
  const at = (day: string, time = '00:00:00.000') => `2026-11-${day}T${time}Z`;
  expect(stretch(at('22'), at('29'))).toEqual(['2026-11-22', '2026-11-28']);
  expect(stretch(at('22'), at('23'))).toEqual(['2026-11-22']);
  // A capture ends a millisecond after it.
  expect(stretch(at('27'), at('27', '00:00:00.001'))).toEqual(['2026-11-27']);
  expect(stretch(at('22', '12:00:00.000'), at('23'))).toEqual(['2026-11-22 12:00', '2026-11-23 00:00']);
});
