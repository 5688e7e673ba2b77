/** Builds a request from the explorer's choices, and the same request as commands. This file does not use the DOM. */

/**
 * @typedef {{
 *   dataset: any,
 *   what: 'rows' | 'klines',
 *   mode: 'native' | 'aligned_1s',
 *   fields: readonly string[],
 *   window: 'latest' | 'random' | 'days' | 'all',
 *   count: number,
 *   from: string,
 *   to: string,
 *   klineSize: string,
 *   filters: readonly { field: string, op: string, value: string }[],
 *   strict: boolean,
 * }} Choices
 */

/**
 * The historical routes take all that the explorer offers, by day. A request without days goes to the query route.
 * @param {Choices} choices
 */
export function requestOf({ dataset, what, mode, fields, window, count, from, to, klineSize, filters, strict }) {
  const known = dataset.modes[mode].fields;
  const body = {
    ...(mode !== 'native' && { mode }),
    ...(what === 'klines' && { kline_size: klineSize }),
    ...(window === 'latest' && { n_latest_rows: count }),
    ...(window === 'random' && { n_random_rows: count }),
    ...(window === 'days' && from !== '' && { start_date: from }),
    ...(window === 'days' && to !== '' && { end_date: to }),
    ...(fields.length > 0 && what === 'rows' && { fields: [...fields] }),
    ...(filters.length > 0 && {
      filters: filters.map(({ field, op, value }) => ({
        field,
        op,
        value: typedValue(value, op, what === 'klines' ? 'float64' : known.find(({ name }) => name === field)?.dtype),
      })),
    }),
    ...(strict && { strict: true }),
  };
  return { path: what === 'klines' ? dataset.klines_path : dataset.historical_path, body };
}

const NUMBERS = new Set(['int64', 'float64', 'bool01']);

/**
 * @param {string} text as it was typed
 * @param {string} op
 * @param {string | undefined} dtype
 */
function typedValue(text, op, dtype) {
  if (op === 'in' || op === 'not_in') return text.split(',').map((part) => scalar(part.trim(), dtype));
  return text.trim() === 'null' ? null : scalar(text.trim(), dtype);
}

/** A text that is not a number stays as typed, and the service's fault explains it. */
const scalar = (text, dtype) =>
  NUMBERS.has(dtype) && text !== '' && Number.isFinite(Number(text)) ? Number(text) : text;

/**
 * @param {{ path: string, body: object }} request
 * @param {string} origin
 */
export function curlOf({ path, body }, origin) {
  const text = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s "${origin}${path}" \\\n  -H "X-API-Key: $SVC_INTERNAL_API_KEY" \\\n  -d '${text}'`;
}

/**
 * @param {{ path: string, body: object }} request
 * @param {any} dataset
 * @param {string} origin
 */
export function clientOf({ path, body }, dataset, origin) {
  const method = `get_${dataset.key}`;
  const name = path === dataset.klines_path ? method.replace(/_trades$/, '_klines') : method;
  return `import { HistoricalData } from './client/index.ts';

const data = new HistoricalData({
  baseUrl: '${origin}',
  apiKey: process.env.SVC_INTERNAL_API_KEY!,
});
const { rows, warnings } = await data.${name}(${literal(body)});
console.log(rows.length, warnings);`;
}

/**
 * @param {{ path: string, body: object }} request
 * @param {string} origin
 */
export function pythonOf({ path, body }, origin) {
  return `import os, requests

answer = requests.post(
    "${origin}${path}",
    headers={"X-API-Key": os.environ["SVC_INTERNAL_API_KEY"]},
    json=${pythonLiteral(body)},
)
answer.raise_for_status()
print(answer.json()["row_count"])`;
}

/** @param {object} value */
function literal(value) {
  const text = JSON.stringify(value, null, 2);
  // JavaScript as people write it: names without quotes, and texts in single quotes where they hold none.
  return text === '{}' ? '' : text.replaceAll(/^( *)"(\w+)":/gm, '$1$2:').replaceAll(/"([^"'\\]*)"/g, "'$1'");
}

/** @param {object} value */
const pythonLiteral = (value) =>
  JSON.stringify(value).replaceAll(/("(?:[^"\\]|\\.)*")|\b(true|false|null)\b/g, (whole, text, word) =>
    text ? whole : { true: 'True', false: 'False', null: 'None' }[word],
  );
