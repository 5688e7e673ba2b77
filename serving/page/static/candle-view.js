/** Which candles the chart asks for: spans of time, sizes, requests, and gaps. This file does not use the DOM. */
import { candlesOf } from './series.js';

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** The longest first: each is one step of zooming. */
export const SPANS = /** @type {const} */ ([
  ['5 years', 1827 * DAY],
  ['1 year', 366 * DAY],
  ['3 months', 92 * DAY],
  ['1 month', 31 * DAY],
  ['1 week', 7 * DAY],
  ['1 day', DAY],
  ['1 hour', HOUR],
  ['1 minute', MINUTE],
]);

/** The smallest first. One-second rows are candles of a second; the klines route makes the others. */
const SIZES = /** @type {const} */ ([
  ['1s', SECOND],
  ['1m', MINUTE],
  ['5m', 5 * MINUTE],
  ['15m', 15 * MINUTE],
  ['1h', HOUR],
  ['4h', 4 * HOUR],
  ['1d', DAY],
  ['1w', 7 * DAY],
]);
/** More than a wide screen has room for. */
const MOST_CANDLES = 2000;

/**
 * @typedef {{ fromMs: number, toMs: number }} Extent
 * @typedef {Extent & { span: number, size: string, sizeMs: number }} View `span`: the place in SPANS
 */

/**
 * The smallest size that draws the time with at most `MOST_CANDLES` candles.
 * @param {number} lengthMs
 */
export const sizeFor = (lengthMs) =>
  SIZES.find(([, sizeMs]) => lengthMs / sizeMs <= MOST_CANDLES) ?? SIZES[SIZES.length - 1];

/**
 * A stretch of the proved time around a moment, in whole candles.
 * @param {Extent} extent
 * @param {number} span place in SPANS
 * @param {number} centreMs
 * @returns {View}
 */
export function viewOf(extent, span, centreMs) {
  const lengthMs = Math.min(SPANS[span][1], extent.toMs - extent.fromMs);
  const [size, sizeMs] = sizeFor(lengthMs);
  const latest = extent.toMs - lengthMs;
  const start = Math.min(latest, Math.max(extent.fromMs, centreMs - lengthMs / 2));
  const fromMs = Math.floor(start / sizeMs) * sizeMs;
  return { fromMs, toMs: Math.ceil((start + lengthMs) / sizeMs) * sizeMs, span, size, sizeMs };
}

/** @param {View} view */
export const centreOf = ({ fromMs, toMs }) => (fromMs + toMs) / 2;

/**
 * The next span, around a moment. The ends of SPANS stay.
 * @param {Extent} extent
 * @param {View} view
 * @param {1 | -1} step 1: closer
 */
export function zoomed(extent, view, step, centreMs = centreOf(view)) {
  // Spans beyond what is proved all show the same.
  const longest = Math.max(
    0,
    SPANS.findLastIndex(([, lengthMs]) => lengthMs >= extent.toMs - extent.fromMs),
  );
  const span = Math.min(SPANS.length - 1, Math.max(longest, Math.max(view.span, longest) + step));
  return viewOf(extent, span, centreMs);
}

/**
 * Half a view earlier or later.
 * @param {Extent} extent
 * @param {View} view
 * @param {1 | -1} step
 */
export const moved = (extent, view, step) =>
  viewOf(extent, view.span, centreOf(view) + (step * (view.toMs - view.fromMs)) / 2);

const iso = (ms) => new Date(ms).toISOString();
const dayOf = (ms) => iso(ms).slice(0, 10);

/**
 * @param {{ key: string, klines_path: string }} dataset
 * @param {View} view
 */
export function requestFor({ key, klines_path: path }, { fromMs, toMs, size }) {
  if (size === '1s') {
    const fields = ['aligned_at_utc', 'open_price', 'high_price', 'low_price', 'close_price', 'quantity_sum'];
    const body = { sources: [key], mode: 'aligned_1s', fields, time_range: [iso(fromMs), iso(toMs)] };
    return { path: '/v1/raw/query', body };
  }
  const fields = ['datetime', 'open', 'high', 'low', 'close', 'volume'];
  return { path, body: { kline_size: size, fields, start_date: dayOf(fromMs), end_date: dayOf(toMs - 1) } };
}

/**
 * The candles of the view. A time without one stays empty, so that what is not proved, or without trades, is seen as a gap.
 * @param {readonly any[]} rows
 * @param {View} view
 */
export function drawnIn(rows, { fromMs, toMs, sizeMs }) {
  const { candles, volumes } = (rows.length > 0 ? candlesOf(rows) : undefined) ?? { candles: [], volumes: [] };
  const within = ({ time }) => time * SECOND >= fromMs && time * SECOND < toMs;
  const shown = candles.filter(within);
  const byTime = new Map(shown.map((candle) => [candle.time, candle]));
  // A week begins on a Thursday, as multiples of seven days since 1970 do.
  for (let at = Math.ceil(fromMs / sizeMs) * sizeMs; at < toMs; at += sizeMs) {
    const time = at / SECOND;
    if (!byTime.has(time)) byTime.set(time, { time });
  }
  const points = [...byTime.values()].sort((a, b) => a.time - b.time);
  return { candles: points, volumes: volumes.filter(within), count: shown.length };
}
