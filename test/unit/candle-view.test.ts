/** Which candles the operator's page asks for, and what it draws of the answer. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  centreOf,
  drawnIn,
  extentOf,
  holdsProved,
  moved,
  provedOf,
  requestFor,
  SPANS,
  sizeFor,
  spanOf,
  unprovedMs,
  type View,
  viewAt,
  viewOf,
  zoomed,
} from '../../serving/page/static/candle-view.js';

const DAY = 86_400_000;
/** The most that the page reads of an answer. */
const MOST_ROWS = 10_000;
const YEARS = { fromMs: Date.parse('2019-03-05T00:00:00Z'), toMs: Date.parse('2024-03-05T00:00:00Z') };
const DATASET = { key: 'exchange_a_spot_trades', klines_path: '/v1/historical/exchange_a/spot/klines' };
const lengthOf = (name: string) => SPANS.find(([each]) => each === name)![1];
const nameOf = (place: number) => SPANS[place]?.[0];

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
const length = fc.constantFrom(...SPANS.map(([, ms]) => ms));
const bars = fc.record({
  from: fc.double({ min: -5000, max: 5000, noNaN: true }),
  count: fc.integer({ min: 1, max: 9999 }),
});
const step = fc.oneof(
  fc.constantFrom('closer' as const, 'further' as const, 'earlier' as const, 'later' as const),
  bars,
);

test('a view is whole candles within what is proved, and few rows to read, whatever is zoomed, moved, dragged and scaled', () => {
  fc.assert(
    fc.property(
      extent,
      length,
      fc.double({ min: -0.5, max: 1.5, noNaN: true }),
      fc.array(step, { maxLength: 20 }),
      (of, first, share, steps) => {
        let view = viewOf(of, first, of.fromMs + share * (of.toMs - of.fromMs));
        const check = () => {
          expect([view.fromMs % view.sizeMs, view.toMs % view.sizeMs]).toEqual([0, 0]);
          expect(view.fromMs).toBeGreaterThan(of.fromMs - view.sizeMs);
          expect(view.toMs).toBeLessThan(of.toMs + view.sizeMs);
          expect(view.fromMs).toBeLessThan(view.toMs);
          expect(view.lengthMs).toBeGreaterThanOrEqual(Math.min(60_000, of.toMs - of.fromMs));
          const { body } = requestFor(DATASET, view);
          const asked =
            'start_date' in body
              ? Date.parse(body.end_date) + DAY - Date.parse(body.start_date)
              : view.toMs - view.fromMs;
          expect(asked / view.sizeMs).toBeLessThan(MOST_ROWS);
        };
        check();
        for (const one of steps) {
          if (one === 'closer' || one === 'further') view = zoomed(of, view, one === 'closer' ? 1 : -1);
          else if (one === 'earlier' || one === 'later') view = moved(of, view, one === 'later' ? 1 : -1);
          else view = viewAt(of, view, { from: one.from, to: one.from + one.count - 1 });
          check();
        }
      },
    ),
  );
});

test('zooming goes from five years to one minute and back, and stays where it is clicked', () => {
  const clickedMs = Date.parse('2021-06-07T08:09:10Z');
  let view: View = viewOf(YEARS, SPANS[0][1], YEARS.toMs);
  expect([view.fromMs, view.toMs, view.size]).toEqual([YEARS.fromMs, YEARS.toMs, '1d']);
  const seen = [view.size];
  const names = [nameOf(spanOf(YEARS, view))];
  for (let at = 1; at < SPANS.length; at++) {
    view = zoomed(YEARS, view, 1, clickedMs);
    seen.push(view.size);
    names.push(nameOf(spanOf(YEARS, view)));
    expect(Math.abs(centreOf(view) - clickedMs)).toBeLessThanOrEqual(view.sizeMs);
  }
  expect(seen).toEqual(['1d', '1d', '4h', '1h', '15m', '1m', '1m', '1s']);
  expect(names).toEqual(SPANS.map(([name]) => name));
  expect(zoomed(YEARS, view, 1)).toEqual(view);
  for (let at = 1; at < SPANS.length; at++) view = zoomed(YEARS, view, -1);
  expect([view.fromMs, view.toMs]).toEqual([YEARS.fromMs, YEARS.toMs]);
  expect(zoomed(YEARS, view, -1)).toEqual(view);
  // A history of two days is shown whole as the shortest span that holds it; the first step is one that shows less.
  const short = { fromMs: YEARS.fromMs, toMs: YEARS.fromMs + 2 * DAY };
  const all = viewOf(short, SPANS[0][1], short.toMs);
  expect(nameOf(spanOf(short, all))).toBe('1 week');
  expect(nameOf(spanOf(short, zoomed(short, all, 1)))).toBe('1 day');
});

test('dragging keeps the span and goes where it was dragged; scaling takes what is seen', () => {
  const day = viewOf(YEARS, lengthOf('1 day'), Date.parse('2021-06-07T12:00:00Z'));
  const place = (view: View) => [view.fromMs, view.toMs].map((ms) => new Date(ms).toISOString().slice(5, 16));
  expect(viewAt(YEARS, day, { from: 0, to: 1439 })).toEqual(day);
  // Two hours earlier; the ends of bars are no whole numbers.
  const earlier = viewAt(YEARS, day, { from: -120.2, to: 1319.1 });
  expect(place(earlier)).toEqual(['06-06T21:59', '06-07T22:00']);
  expect(nameOf(spanOf(YEARS, earlier))).toBe('1 day');
  const three = viewAt(YEARS, day, { from: -1440, to: 2 * 1440 - 1 });
  expect([...place(three), three.size]).toEqual(['06-06T00:00', '06-09T00:00', '5m']);
  expect(nameOf(spanOf(YEARS, three))).toBe(undefined);
  expect(zoomed(YEARS, three, 1).lengthMs).toBe(lengthOf('1 day'));
  expect(zoomed(YEARS, three, -1).lengthMs).toBe(lengthOf('1 week'));
  const minutes = viewAt(YEARS, day, { from: 600, to: 619 });
  expect([...place(minutes), minutes.size]).toEqual(['06-07T10:00', '06-07T10:20', '1s']);
  // Beyond what is proved it stays at its end.
  expect(viewAt(YEARS, viewOf(YEARS, lengthOf('1 year'), YEARS.toMs), { from: 300, to: 665 }).toMs).toBe(YEARS.toMs);
});

test('seconds are asked for as aligned rows, everything else as klines of whole days', () => {
  const atMs = Date.parse('2024-02-01T10:30:30Z');
  const minute = viewOf(YEARS, lengthOf('1 minute'), atMs);
  expect(requestFor(DATASET, minute)).toEqual({
    path: '/v1/raw/query',
    body: {
      sources: [DATASET.key],
      mode: 'aligned_1s',
      fields: ['aligned_at_utc', 'open_price', 'high_price', 'low_price', 'close_price', 'quantity_sum'],
      time_range: ['2024-02-01T10:30:00.000Z', '2024-02-01T10:31:00.000Z'],
    },
  });
  const day = requestFor(DATASET, viewOf(YEARS, lengthOf('1 day'), Date.parse('2024-02-01T12:00:00Z')));
  expect(day).toMatchObject({
    path: DATASET.klines_path,
    body: { kline_size: '1m', start_date: '2024-02-01', end_date: '2024-02-01' },
  });
});

const namedIn = (points: readonly { time: number; value: number }[]) =>
  points.filter(({ value }) => value === 1).map(({ time }) => time);
const stretch = (from: string, through: string) => ({ start_utc: `${from}Z`, through_utc: `${through}Z` });

test('draws the candles of the view; times without one are empty, and those that are not proved as a whole are named', () => {
  const view = viewOf(YEARS, lengthOf('1 hour'), Date.parse('2024-02-01T10:30:00Z'));
  const candle = (utc: string, open: number) => ({ datetime: utc, open, high: 9, low: 1, close: 5, volume: 2 });
  const rows = [
    candle('2024-02-01T09:59:00Z', 1),
    candle('2024-02-01T10:00:00Z', 2),
    candle('2024-02-01T10:05:00Z', 6),
    candle('2024-02-01T11:00:00Z', 4),
  ];
  const proved = provedOf({
    proved: [
      stretch('2024-02-01T10:20:00', '2024-02-01T10:40:30'),
      stretch('2024-01-01T00:00:00', '2024-02-01T10:18:00'),
      stretch('2024-02-01T10:40:40', '2024-03-01T00:00:00'),
    ],
  });
  const { candles, volumes, unproved, count } = drawnIn(rows, view, proved);
  const first = Date.parse('2024-02-01T10:00:00Z') / 1000;
  expect(candles).toHaveLength(60);
  expect(candles.map(({ time }) => time)).toEqual(Array.from({ length: 60 }, (_, at) => first + 60 * at));
  expect(candles.filter(({ open }) => open !== undefined).map(({ open }) => open)).toEqual([2, 6]);
  expect(volumes.map(({ time, up }) => [time, up])).toEqual([
    [first, true],
    [first + 300, false],
  ]);
  expect(count).toBe(2);
  expect(unproved.map(({ time }) => time)).toEqual(candles.map(({ time }) => time));
  expect(namedIn(unproved).map((time) => (time - first) / 60)).toEqual([18, 19, 40]);
  expect(unprovedMs(view, proved)).toBe(130_000);
  expect(namedIn(drawnIn([], view, [YEARS]).unproved)).toEqual([]);
  expect(drawnIn([], view, [YEARS])).toMatchObject({ volumes: [], count: 0 });
});

test('a time is named as not proved where any part of it is outside all proved stretches', () => {
  const edges = fc.uniqueArray(fc.integer({ min: 0, max: 40 * 60 }), { minLength: 2, maxLength: 10 });
  fc.assert(
    fc.property(edges, fc.integer({ min: 1, max: 40 }), fc.nat(40 * 60), (cuts, minutes, centre) => {
      const sorted = cuts.toSorted((a, b) => a - b).map((second) => 1e12 + second * 1000);
      const proved = sorted
        .slice(0, sorted.length & ~1)
        .flatMap((fromMs, at) => (at % 2 === 0 ? [{ fromMs, toMs: sorted[at + 1] }] : []));
      const all = extentOf(proved);
      const view = viewOf(all, minutes * 60_000, 1e12 + centre * 1000);
      const isProved = (second: number) => proved.some(({ fromMs, toMs }) => second >= fromMs && second < toMs);
      const seconds = (fromMs: number, toMs: number) =>
        Array.from({ length: (toMs - fromMs) / 1000 }, (_, at) => fromMs + at * 1000);
      const named = namedIn(drawnIn([], view, proved).unproved).map((time) => time * 1000);
      const expected = seconds(view.fromMs, view.toMs)
        .filter((ms) => !isProved(ms))
        .map((ms) => Math.floor(ms / view.sizeMs) * view.sizeMs);
      expect(named).toEqual([...new Set(expected)]);
      const within = seconds(view.fromMs, view.toMs).filter((ms) => ms >= all.fromMs && ms < all.toMs);
      expect(holdsProved(view, proved)).toBe(seconds(view.fromMs, view.toMs).some(isProved));
      expect(unprovedMs(view, proved)).toBe(1000 * within.filter((ms) => !isProved(ms)).length);
    }),
  );
});
