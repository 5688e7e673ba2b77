/** Which candles the operator's page asks for, and what it draws of the answer. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  centreOf,
  drawnIn,
  moved,
  requestFor,
  SPANS,
  sizeFor,
  type View,
  viewOf,
  zoomed,
} from '../../serving/page/static/candle-view.js';

const DAY = 86_400_000;
const YEARS = { fromMs: Date.parse('2019-03-05T00:00:00Z'), toMs: Date.parse('2024-03-05T00:00:00Z') };
const DATASET = { key: 'exchange_a_spot_trades', klines_path: '/v1/historical/exchange_a/spot/klines' };
const spanNamed = (name: string) => SPANS.findIndex(([each]) => each === name);

test('each span has the size that draws it with at most 2,000 candles', () => {
  const sizes = SPANS.map(([name, lengthMs]) => [name, sizeFor(lengthMs)[0]]);
  expect(sizes).toEqual([
    ['5 years', '1d'],
    ['1 year', '1d'],
    ['3 months', '4h'],
    ['1 month', '1h'],
    ['1 week', '15m'],
    ['1 day', '1m'],
    ['1 hour', '1m'],
    ['1 minute', '1s'],
  ]);
  for (const [, lengthMs] of SPANS) expect(lengthMs / sizeFor(lengthMs)[1]).toBeLessThanOrEqual(2000);
  expect(sizeFor(20 * 366 * DAY)[0]).toBe('1w');
});

const extent = fc
  .tuple(fc.integer({ min: 0, max: 3e12 }), fc.integer({ min: 1000, max: 9 * 366 * DAY }))
  .map(([fromMs, length]) => ({ fromMs, toMs: fromMs + length }));
const span = fc.nat(SPANS.length - 1);

test('a view is whole candles around the moment, within what is proved, whatever is zoomed and moved', () => {
  const steps = fc.array(fc.constantFrom('closer', 'further', 'earlier', 'later'), { maxLength: 20 });
  fc.assert(
    fc.property(extent, span, fc.double({ min: -0.5, max: 1.5, noNaN: true }), steps, (of, first, share, moves) => {
      let view = viewOf(of, first, of.fromMs + share * (of.toMs - of.fromMs));
      const check = () => {
        expect([view.fromMs % view.sizeMs, view.toMs % view.sizeMs]).toEqual([0, 0]);
        expect(view.fromMs).toBeGreaterThan(of.fromMs - view.sizeMs);
        expect(view.toMs).toBeLessThan(of.toMs + view.sizeMs);
        expect(view.fromMs).toBeLessThan(view.toMs);
        expect(view.span).toBeGreaterThanOrEqual(0);
        expect(view.span).toBeLessThan(SPANS.length);
      };
      check();
      for (const move of moves) {
        if (move === 'closer' || move === 'further') view = zoomed(of, view, move === 'closer' ? 1 : -1);
        else view = moved(of, view, move === 'later' ? 1 : -1);
        check();
      }
    }),
  );
});

test('zooming goes from five years to one minute and back, and stays where it is clicked', () => {
  const clickedMs = Date.parse('2021-06-07T08:09:10Z');
  let view: View = viewOf(YEARS, 0, YEARS.toMs);
  expect([view.fromMs, view.toMs, view.size]).toEqual([YEARS.fromMs, YEARS.toMs, '1d']);
  const seen = [view.size];
  for (let at = 1; at < SPANS.length; at++) {
    view = zoomed(YEARS, view, 1, clickedMs);
    seen.push(view.size);
    expect(Math.abs(centreOf(view) - clickedMs)).toBeLessThanOrEqual(view.sizeMs);
  }
  expect(seen).toEqual(['1d', '1d', '4h', '1h', '15m', '1m', '1m', '1s']);
  expect(zoomed(YEARS, view, 1)).toEqual(view);
  for (let at = 1; at < SPANS.length; at++) view = zoomed(YEARS, view, -1);
  expect([view.fromMs, view.toMs]).toEqual([YEARS.fromMs, YEARS.toMs]);
  // A history of two days: the first step is one that shows less.
  const short = { fromMs: YEARS.fromMs, toMs: YEARS.fromMs + 2 * DAY };
  expect(zoomed(short, viewOf(short, 0, short.toMs), 1).span).toBe(spanNamed('1 day'));
});

test('seconds are asked for as one-second rows, everything else as klines of whole days', () => {
  const atMs = Date.parse('2024-02-01T10:30:30Z');
  const minute = viewOf(YEARS, spanNamed('1 minute'), atMs);
  expect(requestFor(DATASET, minute)).toEqual({
    path: '/v1/raw/query',
    body: {
      sources: [DATASET.key],
      mode: 'aligned_1s',
      fields: ['aligned_at_utc', 'open_price', 'high_price', 'low_price', 'close_price', 'quantity_sum'],
      time_range: ['2024-02-01T10:30:00.000Z', '2024-02-01T10:31:00.000Z'],
    },
  });
  const day = requestFor(DATASET, viewOf(YEARS, spanNamed('1 day'), Date.parse('2024-02-01T12:00:00Z')));
  expect(day).toMatchObject({
    path: DATASET.klines_path,
    body: { kline_size: '1m', start_date: '2024-02-01', end_date: '2024-02-01' },
  });
});

test('draws the candles of the view; times without one are empty', () => {
  const view = viewOf(YEARS, spanNamed('1 hour'), Date.parse('2024-02-01T10:30:00Z'));
  const candle = (utc: string, open: number) => ({ datetime: utc, open, high: 9, low: 1, close: 5, volume: 2 });
  const rows = [
    candle('2024-02-01T09:59:00Z', 1),
    candle('2024-02-01T10:00:00Z', 2),
    candle('2024-02-01T10:05:00Z', 6),
    candle('2024-02-01T11:00:00Z', 4),
  ];
  const { candles, volumes, count } = drawnIn(rows, view);
  const first = Date.parse('2024-02-01T10:00:00Z') / 1000;
  expect(candles).toHaveLength(60);
  expect(candles.map(({ time }) => time)).toEqual(Array.from({ length: 60 }, (_, at) => first + 60 * at));
  expect(candles.filter(({ open }) => open !== undefined).map(({ open }) => open)).toEqual([2, 6]);
  expect(volumes.map(({ time, up }) => [time, up])).toEqual([
    [first, true],
    [first + 300, false],
  ]);
  expect(count).toBe(2);
  expect(drawnIn([], view)).toMatchObject({ volumes: [], count: 0 });
});
