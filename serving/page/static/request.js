/** Requests of the explorer's choices, the frame builder's and the first screen's. This file does not use the DOM. */

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

/** As `keys add --datasets` writes it. @param {{ key: string, instrument?: string }} dataset */
export const nameOf = ({ key, instrument }) => (instrument ? `${key}:${instrument}` : key);

/** Of a file, as an export names its own. @param {{ key: string, instrument?: string }} dataset */
export const fileOf = (dataset) => `${nameOf(dataset).replace(':', '.')}.csv`;

/** @param {{ instrument?: string }} dataset @returns {{ instrument?: string }} the member of a body; none for the default */
export const instrumentOf = ({ instrument }) => (instrument ? { instrument } : {});

/**
 * The historical routes take all that the explorer offers, by day. A request without days goes to the query route.
 * @param {Choices} choices
 */
export function requestOf({ dataset, what, mode, fields, window, count, from, to, klineSize, filters, strict }) {
  const known = dataset.modes[mode].fields;
  const body = {
    ...instrumentOf(dataset),
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

/** The columns that pictures and the frame builder begin with: a field, and of a dataset with series the metric. */
const FAVOURITES = {
  etf_daily_metrics: ['metric_value_float', 'btc_units'],
  macro_series_metrics: ['metric_value_float', 'treasury_yield_10y'],
};

/** The fields that a frame takes of a dataset, each once. @param {any} dataset */
export function frameFieldsOf({ modes }) {
  const fields = [...modes.native.fields, ...modes.aligned_1s.fields].filter(({ aggregates }) => aggregates.length > 0);
  return [...new Map(fields.map((field) => [field.name, field])).values()];
}

/**
 * The column of a dataset that says most at a glance; undefined where a frame takes none of it.
 * @param {any} dataset
 */
export function favouriteOf(dataset) {
  const [field, metric] = FAVOURITES[dataset.key] ?? [];
  const floats = frameFieldsOf(dataset).filter(({ dtype }) => dtype === 'float64');
  const chosen = field ?? (dataset.klines_path ? 'price' : (floats.find(({ unit }) => unit) ?? floats[0])?.name);
  if (chosen === undefined) return undefined;
  const at = dataset.series.findIndex(({ metric_name: name }) => name === metric);
  return { dataset, field: chosen, aggregate: 'last', series: dataset.series[at], at };
}

/** Grids and lengths of pictures: a week of hours of what comes by the minute, and a quarter of days of what comes by the day. */
const BY_HOUR = { grid: '1h', n_rows: 168, said: 'by the hour' };
const BY_DAY = { grid: '1d', n_rows: 90, said: 'by the day' };

/**
 * A small frame of the newest values of a dataset; undefined where there are none, or none may be read.
 * @param {any} dataset
 */
export function sparkOf(dataset) {
  const column = favouriteOf(dataset);
  if (!column || dataset.availability.rows === 0 || dataset.rights.refused_with) return undefined;
  const { said, ...window } = dataset.series.length > 0 ? BY_DAY : BY_HOUR;
  const name = column.series?.metric_name ?? column.field;
  return {
    body: { columns: [{ ...columnOf(column), name: 'value' }], ...window },
    label: `${name} of ${nameOf(dataset)}, the newest values ${said}`,
    said: `${name}, ${said}`,
    steps: dataset.klines_path === null,
  };
}

/**
 * The last rows of a dataset, as they are.
 * @param {any} dataset
 * @param {number} count
 */
export const takeOf = (dataset, count) => ({
  path: dataset.historical_path,
  body: { ...instrumentOf(dataset), n_latest_rows: count },
});

/** @param {{ dataset: any, series: any, field: string, aggregate: string }} column */
const columnOf = ({ dataset, series, field, aggregate }) => ({
  dataset: dataset.key,
  ...instrumentOf(dataset),
  field,
  ...(series && {
    filter: Object.entries(series)
      .filter(([name]) => !name.endsWith('_json'))
      .map(([name, value]) => ({ field: name, op: 'eq', value })),
  }),
  ...(dataset.klines_path !== null && aggregate !== 'last' && { aggregate }),
});

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
    columns: columns.map((column, index) => ({ name: names[index], ...columnOf(column) })),
    grid,
    ...(window === 'latest' ? { n_rows: count } : { time_range: [from === '' ? '' : `${from}T00:00:00Z`, end] }),
    ...(row && { as_of: 'row' }),
    ...(previous && { fill: 'previous' }),
  };
  return { path: '/v1/frame', body };
}

/** `a_close`, `a_ethusdt_close`, `btc_units`, `hashrate_hs`. */
function columnName({ dataset, series, field, aggregate }) {
  if (series) return series.metric_name ?? field;
  if (dataset.klines_path === null) return field;
  const symbol = dataset.instrument ? `_${dataset.instrument.toLowerCase().replace(/[^a-z0-9]+/g, '_')}` : '';
  const exchange = dataset.key.replace(/^exchange_|_spot_trades$/g, '') + symbol;
  return `${exchange}_${field === 'price' ? ({ first: 'open', last: 'close', min: 'low', max: 'high' }[aggregate] ?? aggregate) : field}`;
}
