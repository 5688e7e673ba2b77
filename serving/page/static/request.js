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

/** A text that is not a number, or an integer that a number would round, stays as typed, and the service's fault explains it. */
function scalar(text, dtype) {
  const value = NUMBERS.has(dtype) && text !== '' ? Number(text) : Number.NaN;
  const isExact = dtype === 'int64' ? Number.isSafeInteger(value) || !Number.isInteger(value) : true;
  return Number.isFinite(value) && isExact ? value : text;
}

/**
 * @param {{ path: string, body: object }} request
 * @param {string} origin
 */
export function curlOf({ path, body }, origin) {
  const text = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s "${origin}${path}" \\\n  -H "X-API-Key: $TIDEMARK_KEY" \\\n  -d '${text}'`;
}

/**
 * @param {{ path: string, body: object }} request
 * @param {any} dataset
 * @param {string} origin
 */
export function clientOf({ path, body }, dataset, origin) {
  const method = `get_${dataset.key}`;
  const name = path === dataset.klines_path ? method.replace(/_trades$/, '_klines') : method;
  return clientCode(origin, `${name}(${literal(body)})`);
}

/**
 * @param {{ path: string, body: object }} request
 * @param {string} origin
 */
export function pythonOf({ path, body }, origin) {
  return `import os, requests

answer = requests.post(
    "${origin}${path}",
    headers={"X-API-Key": os.environ["TIDEMARK_KEY"]},
    json=${pythonLiteral(body)},
)
if not answer.ok:
    raise SystemExit(answer.json()["detail"])
print(answer.json()["row_count"])`;
}

/**
 * A frame of the builder's choices. Names follow from what the columns are.
 * @param {{
 *   columns: readonly { dataset: any, series: any, field: string, aggregate: string }[],
 *   grid: string,
 *   window: 'latest' | 'days',
 *   count: number,
 *   from: string,
 *   to: string,
 *   row: boolean,
 *   previous: boolean,
 * }} choices
 */
export function frameRequestOf({ columns, grid, window, count, from, to, row, previous }) {
  const DAY_MS = 86_400_000;
  /** @type {string[]} */
  const names = [];
  for (const column of columns) {
    const name = columnName(column);
    const taken = names.filter((one) => one.replace(/_\d+$/, '') === name).length;
    names.push(taken === 0 ? name : `${name}_${taken + 1}`);
  }
  const end = to === '' ? '' : new Date(Date.parse(to) + DAY_MS).toISOString();
  const body = {
    columns: columns.map(({ dataset, series, field, aggregate }, index) => ({
      name: names[index],
      dataset: dataset.key,
      field,
      ...(series && {
        filter: Object.entries(series)
          .filter(([name]) => !name.endsWith('_json'))
          .map(([name, value]) => ({ field: name, op: 'eq', value })),
      }),
      ...(dataset.klines_path !== null && aggregate !== 'last' && { aggregate }),
    })),
    grid,
    ...(window === 'latest' ? { n_rows: count } : { time_range: [from === '' ? '' : `${from}T00:00:00Z`, end] }),
    ...(row && { as_of: 'row' }),
    ...(previous && { fill: 'previous' }),
  };
  return { path: '/v1/frame', body };
}

/** `a_close`, `btc_units`, `hashrate_hs`. */
function columnName({ dataset, series, field, aggregate }) {
  if (series) return series.metric_name ?? field;
  if (dataset.klines_path === null) return field;
  const exchange = dataset.key.replace(/^exchange_|_spot_trades$/g, '');
  return `${exchange}_${field === 'price' ? ({ first: 'open', last: 'close', min: 'low', max: 'high' }[aggregate] ?? aggregate) : field}`;
}

/**
 * @param {{ path: string, body: object }} request
 * @param {string} origin
 */
export const frameClientOf = ({ body }, origin) => clientCode(origin, `frame(${literal(body)})`);

/**
 * @param {{ path: string, body: object }} request
 * @param {string} origin
 */
export function framePythonOf({ path, body }, origin) {
  return `import os, polars as pl, requests

answer = requests.post(
    "${origin}${path}",
    headers={
        "X-API-Key": os.environ["TIDEMARK_KEY"],
        "Accept": "application/vnd.apache.arrow.stream",
    },
    json=${pythonLiteral(body)},
)
if not answer.ok:
    raise SystemExit(answer.json()["detail"])
print(pl.read_ipc_stream(answer.content))`;
}

/**
 * @param {string} origin
 * @param {string} call of the client
 */
function clientCode(origin, call) {
  const options = `{\n  baseUrl: '${origin}',\n  apiKey: process.env.TIDEMARK_KEY!,\n}`;
  return `import { HistoricalData } from './client/index.ts';

const data = new HistoricalData(${options});
const { rows, warnings } = await data.${call};
console.log(rows.length, warnings);`;
}

/** @param {object} value */
function literal(value) {
  const text = JSON.stringify(value, null, 2);
  if (text === '{}') return '';
  // JavaScript as people write it: names without quotes, and texts in single quotes where they hold none and escape nothing. Each
  // text is matched as a whole, so that a quote which ends one is not taken for the beginning of another.
  return text
    .replaceAll(/^( *)"(\w+)":/gm, '$1$2:')
    .replaceAll(/"((?:[^"\\]|\\.)*)"/g, (whole, inner) => (/['\\]/.test(inner) ? whole : `'${inner}'`));
}

/** @param {object} value */
const pythonLiteral = (value) =>
  JSON.stringify(value).replaceAll(/("(?:[^"\\]|\\.)*")|\b(true|false|null)\b/g, (whole, text, word) =>
    text ? whole : { true: 'True', false: 'False', null: 'None' }[word],
  );
