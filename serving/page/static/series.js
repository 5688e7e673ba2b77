/** What a chart shows of rows: their candles and their lines. The schema says which column is the time. This file does not use the DOM. */

const CANDLES = /** @type {const} */ ([
  ['open', 'high', 'low', 'close', 'volume'],
  ['open_price', 'high_price', 'low_price', 'close_price', 'quantity_sum'],
]);
const NUMERIC = new Set(['float64', 'int64', 'bool01']);
/** The number of lines whose colours differ. */
export const MOST_LINES = 8;

/** The column of the row's time: the first of the order that is a timestamp. @param {any} mode of a dataset in /v1/datasets */
export const timeOf = ({ order, fields }) =>
  order.find((name) => fields.some((field) => field.name === name && field.dtype === 'timestamp_utc'));

/** @param {string} utc @returns {number} seconds since 1970 */
const secondsOf = (utc) => Math.floor(Date.parse(utc) / 1000);

/**
 * Charts take each time once and in order. Of several rows of one second, the last one is drawn.
 * @template T
 * @param {readonly { time: number, value?: T }[]} points
 */
function inOrder(points) {
  const byTime = new Map(points.map((point) => [point.time, point]));
  return [...byTime.values()].sort((a, b) => a.time - b.time);
}

/**
 * @param {readonly any[]} rows
 * @param {string} time the column of the time
 * @returns {{ candles: any[], volumes: any[] } | undefined}
 */
export function candlesOf(rows, time) {
  const names = CANDLES.find((known) => known.slice(0, 4).every((name) => name in (rows[0] ?? {})));
  if (names === undefined || !(time in rows[0])) return undefined;
  const [open, high, low, close, volume] = names;
  const drawn = rows.filter((row) => row[open] !== null && row[time] !== null);
  const prices = (row) => ({ open: row[open], high: row[high], low: row[low], close: row[close] });
  const volumes = drawn.filter((row) => typeof row[volume] === 'number');
  return {
    candles: inOrder(drawn.map((row) => ({ time: secondsOf(row[time]), ...prices(row) }))),
    volumes: inOrder(
      volumes.map((row) => ({ time: secondsOf(row[time]), value: row[volume], up: row[close] >= row[open] })),
    ),
  };
}

/**
 * The columns that a chart can draw as lines, the most useful first: those that most rows have, then values, then measures.
 * @param {readonly any[]} rows
 * @param {readonly { name: string, dtype: string }[]} fields
 */
export function valueColumns(rows, fields) {
  const types = new Map(fields.map(({ name, dtype }) => [name, dtype]));
  const held = (name) => rows.filter((row) => typeof row[name] === 'number').length;
  const names = Object.keys(rows[0] ?? {}).filter(
    (name) => NUMERIC.has(types.get(name) ?? 'float64') && held(name) > 0,
  );
  const weight = (name) => {
    if (/_float$|^(close|price)$/.test(name)) return 0;
    if (/(_id|_ms|timestamp|height|index|nonce|version)$/.test(name)) return 3;
    return (types.get(name) ?? 'float64') === 'float64' ? 1 : 2;
  };
  return names.toSorted((a, b) => weight(a) - weight(b));
}

/**
 * One line, or one for each series of a dataset that has several, each with the unit that its rows state.
 * @param {readonly any[]} rows
 * @param {string} column
 * @param {{ time: string, keys?: readonly string[], unit?: string | null }} how
 */
export function linesOf(rows, column, { time, keys = [], unit = null }) {
  const known = keys.filter((name) => name in (rows[0] ?? {}) && !name.endsWith('_json'));
  const drawn = rows.filter((row) => typeof row[column] === 'number' && row[time]);
  const groups = Map.groupBy(drawn, (row) => known.map((name) => row[name]).join(' · '));
  return [...groups]
    .sort(([, a], [, b]) => b.length - a.length)
    .map(([name, own]) => ({
      name: name || column,
      unit: own[0].metric_unit ?? unit,
      points: inOrder(own.map((row) => ({ time: secondsOf(row[time]), value: row[column] }))),
    }));
}
