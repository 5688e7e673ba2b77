/** What a chart shows of rows: their time, their candles, their lines. This file does not use the DOM. */

const CANDLES = /** @type {const} */ ([
  ['open', 'high', 'low', 'close', 'volume'],
  ['open_price', 'high_price', 'low_price', 'close_price', 'quantity_sum'],
]);
const NUMERIC = new Set(['float64', 'int64', 'bool01']);
/** The number of lines whose colours differ. */
export const MOST_LINES = 8;

/**
 * The column of the row's time: a timestamp if there is one, else epoch milliseconds.
 * @param {readonly any[]} rows
 */
function timeColumn(rows) {
  const names = Object.keys(rows[0] ?? {});
  const isTime = (value) => typeof value === 'string' && /^\d{4}-\d\d-\d\dT/.test(value);
  const preferred = ['datetime', 'aligned_at_utc'].find((name) => names.includes(name));
  return (
    preferred ??
    names.find((name) => rows.some((row) => isTime(row[name]))) ??
    names.find((name) => rows.every((row) => typeof row[name] === 'number' && row[name] > 1e11 && row[name] < 1e14))
  );
}

/** A time in seconds since 1970. */
const secondsOf = (value) => Math.floor((typeof value === 'number' ? value : Date.parse(value)) / 1000);

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
 * @returns {{ candles: any[], volumes: any[] } | undefined}
 */
export function candlesOf(rows) {
  const time = timeColumn(rows);
  const names = CANDLES.find((known) => known.slice(0, 4).every((name) => name in (rows[0] ?? {})));
  if (time === undefined || names === undefined) return undefined;
  const [open, high, low, close, volume] = names;
  const drawn = rows.filter((row) => row[open] !== null && row[time] !== null);
  return {
    candles: inOrder(
      drawn.map((row) => ({
        time: secondsOf(row[time]),
        open: row[open],
        high: row[high],
        low: row[low],
        close: row[close],
      })),
    ),
    volumes: inOrder(
      drawn
        .filter((row) => typeof row[volume] === 'number')
        .map((row) => ({ time: secondsOf(row[time]), value: row[volume], up: row[close] >= row[open] })),
    ),
  };
}

/**
 * The columns that a chart can draw as lines, the most useful first.
 * @param {readonly any[]} rows
 * @param {readonly { name: string, dtype: string }[]} fields
 */
export function valueColumns(rows, fields) {
  const time = timeColumn(rows);
  const types = new Map(fields.map(({ name, dtype }) => [name, dtype]));
  const names = Object.keys(rows[0] ?? {}).filter(
    (name) =>
      name !== time && NUMERIC.has(types.get(name) ?? 'float64') && rows.some((row) => typeof row[name] === 'number'),
  );
  const weight = (name) =>
    /^(close|price|value)|value_|_value/.test(name)
      ? 0
      : types.get(name) === 'float64'
        ? 1
        : /(_id|_ms|timestamp|height|index)$/.test(name)
          ? 3
          : 2;
  return names.toSorted((a, b) => weight(a) - weight(b));
}

/**
 * One line, or one for each series of a dataset that has several.
 * @param {readonly any[]} rows
 * @param {string} column
 * @param {readonly string[]} seriesKey
 */
export function linesOf(rows, column, seriesKey) {
  const time = timeColumn(rows);
  if (time === undefined) return [];
  const keys = seriesKey.filter((name) => name in rows[0]);
  const drawn = rows.filter((row) => typeof row[column] === 'number' && row[time] !== null);
  const groups = Map.groupBy(drawn, (row) => keys.map((name) => row[name]).join(' · '));
  return [...groups]
    .sort(([, a], [, b]) => b.length - a.length)
    .map(([name, own]) => ({
      name,
      points: inOrder(own.map((row) => ({ time: secondsOf(row[time]), value: row[column] }))),
    }));
}
