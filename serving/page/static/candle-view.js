/** Which candles the chart asks for: spans of time, sizes, requests, and gaps. This file does not use the DOM. */
import { instrumentOf } from './request.js';
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
 * @typedef {Extent & { lengthMs: number, size: string, sizeMs: number }} View whole candles; `lengthMs`: the length asked for
 */

/**
 * The stretches of time that are proved, in order.
 * @param {{ proved: readonly { start_utc: string, through_utc: string }[] }} coverage an answer of /v1/coverage
 * @returns {Extent[]}
 */
export const provedOf = ({ proved }) =>
  proved
    .map(({ start_utc: start, through_utc: through }) => ({ fromMs: Date.parse(start), toMs: Date.parse(through) }))
    .sort((a, b) => a.fromMs - b.fromMs);

/**
 * The smallest size that draws the time with at most `MOST_CANDLES` candles.
 * @param {number} lengthMs
 */
export const sizeFor = (lengthMs) =>
  SIZES.find(([, sizeMs]) => lengthMs / sizeMs <= MOST_CANDLES) ?? SIZES[SIZES.length - 1];

/**
 * A part of the proved time around a moment, in whole candles.
 * @param {Extent} extent
 * @param {number} wantedMs its length
 * @param {number} centreMs
 * @returns {View}
 */
export function viewOf(extent, wantedMs, centreMs) {
  const lengthMs = Math.min(Math.max(wantedMs, MINUTE), extent.toMs - extent.fromMs);
  const [size, sizeMs] = sizeFor(lengthMs);
  const latest = extent.toMs - lengthMs;
  const start = Math.min(latest, Math.max(extent.fromMs, centreMs - lengthMs / 2));
  const fromMs = Math.floor(start / sizeMs) * sizeMs;
  return { fromMs, toMs: Math.ceil((start + lengthMs) / sizeMs) * sizeMs, lengthMs, size, sizeMs };
}

/** @param {Extent} view */
export const centreOf = ({ fromMs, toMs }) => (fromMs + toMs) / 2;

/**
 * The place in SPANS of the view's length; -1 for a length between two of them.
 * @param {Extent} extent
 * @param {View} view
 */
export const spanOf = (extent, { lengthMs }) =>
  SPANS.findLastIndex(([, ms]) => ms === lengthMs || (ms > lengthMs && lengthMs === extent.toMs - extent.fromMs));

/**
 * The next shorter or longer span, around a moment. At the ends of SPANS the length stays.
 * @param {Extent} extent
 * @param {View} view
 * @param {1 | -1} step 1: shorter
 */
export function zoomed(extent, view, step, centreMs = centreOf(view)) {
  const { lengthMs } = view;
  const next = step === 1 ? SPANS.find(([, ms]) => ms < lengthMs) : SPANS.findLast(([, ms]) => ms > lengthMs);
  return viewOf(extent, next?.[1] ?? lengthMs, centreMs);
}

/**
 * Half a view earlier or later.
 * @param {Extent} extent
 * @param {View} view
 * @param {1 | -1} step
 */
export const moved = (extent, view, step) =>
  viewOf(extent, view.lengthMs, centreOf(view) + (step * (view.toMs - view.fromMs)) / 2);

/**
 * The view of what the reader dragged or scaled the drawn candles to.
 * @param {Extent} extent
 * @param {View} drawn
 * @param {{ from: number, to: number }} bars the first and the last to be seen, counted from the first drawn one
 */
export function viewAt(extent, drawn, { from, to }) {
  const { fromMs, toMs, sizeMs } = drawn;
  const seen = { fromMs: fromMs + from * sizeMs, toMs: fromMs + (to + 1) * sizeMs };
  const changeMs = seen.toMs - seen.fromMs - (toMs - fromMs);
  // Dragging alone keeps the length, so that it stays one of SPANS.
  return viewOf(extent, Math.abs(changeMs) < sizeMs / 2 ? drawn.lengthMs : drawn.lengthMs + changeMs, centreOf(seen));
}

/**
 * @param {readonly Extent[]} proved in order
 * @returns {Extent}
 */
export const extentOf = (proved) => ({ fromMs: proved[0].fromMs, toMs: proved[proved.length - 1].toMs });

const iso = (ms) => new Date(ms).toISOString();
const dayOf = (ms) => iso(ms).slice(0, 10);

/**
 * @param {{ key: string, instrument?: string, klines_path: string }} dataset
 * @param {View} view
 */
export function requestFor(dataset, { fromMs, toMs, size }) {
  const { key, klines_path: path } = dataset;
  const instrument = instrumentOf(dataset);
  if (size === '1s') {
    const fields = ['aligned_at_utc', 'open_price', 'high_price', 'low_price', 'close_price', 'quantity_sum'];
    const body = { sources: [key], ...instrument, mode: 'aligned_1s', fields, time_range: [iso(fromMs), iso(toMs)] };
    return { path: '/v1/raw/query', body };
  }
  const fields = ['datetime', 'open', 'high', 'low', 'close', 'volume'];
  const days = { start_date: dayOf(fromMs), end_date: dayOf(toMs - 1) };
  return { path, body: { ...instrument, kline_size: size, fields, ...days } };
}

/**
 * What is drawn of the view. A time without a candle stays empty. `unproved` has every time, with 1 if it is not proved as a
 * whole, else 0.
 * @param {readonly any[]} rows
 * @param {View} view
 * @param {readonly Extent[]} proved in order
 */
export function drawnIn(rows, { fromMs, toMs, sizeMs }, proved) {
  const { candles, volumes } = (rows.length > 0
    ? candlesOf(rows, 'aligned_at_utc' in rows[0] ? 'aligned_at_utc' : 'datetime')
    : undefined) ?? { candles: [], volumes: [] };
  const within = ({ time }) => time * SECOND >= fromMs && time * SECOND < toMs;
  const shown = candles.filter(within);
  const byTime = new Map(shown.map((candle) => [candle.time, candle]));
  const points = [];
  const unproved = [];
  let stretch = 0;
  for (let at = fromMs; at < toMs; at += sizeMs) {
    const time = at / SECOND;
    points.push(byTime.get(time) ?? { time });
    while (stretch < proved.length && proved[stretch].toMs <= at) stretch++;
    const isProved = proved[stretch]?.fromMs <= at && proved[stretch].toMs >= at + sizeMs;
    unproved.push({ time, value: isProved ? 0 : 1 });
  }
  return { candles: points, volumes: volumes.filter(within), unproved, count: shown.length };
}

/**
 * @param {Extent} view
 * @param {readonly Extent[]} proved
 */
export const holdsProved = (view, proved) =>
  proved.some(({ fromMs, toMs }) => fromMs < view.toMs && toMs > view.fromMs);

/**
 * How long the part of the view is that lies in the extent and is not proved.
 * @param {Extent} view
 * @param {readonly Extent[]} proved
 * @returns {number} milliseconds
 */
export function unprovedMs(view, proved) {
  const extent = extentOf(proved);
  const overlap = (of) => Math.max(0, Math.min(of.toMs, view.toMs) - Math.max(of.fromMs, view.fromMs));
  return proved.reduce((rest, stretch) => rest - overlap(stretch), overlap(extent));
}
