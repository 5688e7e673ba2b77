/**
 * What bodies of the contract are valid, judged from its text (keys, types, rules between keys) without any of the
 * service's code: the service parses with schemas, this asks one question after the other. A valid body comes back as
 * what it asks for.
 */
import {
  type Columns,
  columnsOf,
  DATASETS,
  type Dataset,
  type Dtype,
  EXCHANGES,
  KLINES,
  type Mode,
  UNIFIED_TRADES,
} from './fields.ts';
import { isFiner, parseDay, parseTime } from './time.ts';

/** The families of requests that ask for rows. */
export type Style =
  /** /v1/raw/query; with `estimates`, what tells of the same body how much it would be. */
  | { readonly kind: 'query'; readonly estimates?: true }
  | { readonly kind: 'historical'; readonly dataset: Dataset }
  | { readonly kind: 'klines'; readonly dataset: Dataset };

export interface Clause {
  readonly field: string;
  readonly op: string;
  readonly value: unknown;
}

export type AskedWindow =
  | { readonly kind: 'history' }
  /** [fromMs, toMs), an open side undefined. */
  | { readonly kind: 'range'; readonly fromMs: number | undefined; readonly toMs: number | undefined }
  | { readonly kind: 'latest' | 'random'; readonly rows: number };

export interface Asked {
  readonly dataset: Dataset;
  readonly mode: Mode;
  /** Shown columns, in order. */
  readonly shown: Columns;
  readonly columns: Columns;
  readonly filters: readonly Clause[];
  readonly window: AskedWindow;
  readonly strict: boolean;
  readonly warnsOfSilences: boolean;
  readonly klineMs: number | undefined;
}

type Body = Readonly<Record<string, unknown>>;

const KEYS: Record<Style['kind'], readonly string[]> = {
  query: [
    'mode',
    'sources',
    'view_id',
    'view_version',
    'fields',
    'time_range',
    'n_rows',
    'n_random',
    'random_seed',
    'as_of',
    'filters',
    'silences',
    'strict',
  ],
  historical: [
    'mode',
    'start_date',
    'end_date',
    'n_latest_rows',
    'n_random_rows',
    'random_seed',
    'fields',
    'filters',
    'silences',
    'strict',
  ],
  klines: [
    'mode',
    'start_date',
    'end_date',
    'n_latest_rows',
    'n_random_rows',
    'random_seed',
    'fields',
    'filters',
    'silences',
    'strict',
    'kline_size',
  ],
};

/** Its vintages are kept: it may be asked for as of a time. */
const REVISED: Dataset = 'macro_series_metrics';

/** What the body asks for, or undefined where it is not valid. */
export function judge(style: Style, body: unknown): Asked | undefined {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) return undefined;
  const raw = body as Body;
  const given = (key: string) => Object.hasOwn(raw, key);
  const isTrades = style.kind === 'historical' && EXCHANGES.includes(style.dataset);
  const isMacro = style.kind === 'historical' && style.dataset === REVISED;
  const keys = [...KEYS[style.kind], ...(isTrades ? ['include_datetime_col'] : []), ...(isMacro ? ['as_of'] : [])];
  if (!Object.keys(raw).every((key) => keys.includes(key))) return undefined;

  const mode = given('mode') ? raw.mode : 'native';
  if (mode !== 'native' && mode !== 'aligned_1s') return undefined;
  if (given('silences') && raw.silences !== 'warn') return undefined;
  const strict = given('strict') ? raw.strict : false;
  if (typeof strict !== 'boolean') return undefined;
  const dataset = style.kind === 'query' ? onlySource(raw.sources) : style.dataset;
  if (dataset === undefined) return undefined;

  const isTime = typeof raw.as_of === 'string' && parseTime(raw.as_of) !== undefined;
  if (given('as_of') && (dataset !== REVISED || !isTime)) return undefined;

  const withDatetime = given('include_datetime_col') ? raw.include_datetime_col : true;
  if (typeof withDatetime !== 'boolean' || (given('include_datetime_col') && mode !== 'native')) return undefined;
  const klineMs = style.kind === 'klines' ? klineMsOf(given('kline_size') ? raw.kline_size : 60) : undefined;
  if (Number.isNaN(klineMs)) return undefined;
  if (style.kind === 'query' && !isView(raw, dataset, mode)) return undefined;

  const columns = selectable(style, dataset, mode);
  const shown = shownOf(raw, columns, style, mode, withDatetime);
  const filters = filtersOf(given('filters') ? raw.filters : [], columns);
  const window = style.kind === 'query' ? queryWindow(raw) : dateWindow(raw);
  if (!shown || !filters || !window) return undefined;
  return { dataset, mode, shown, columns, filters, window, strict, warnsOfSilences: given('silences'), klineMs };
}

function onlySource(sources: unknown): Dataset | undefined {
  if (!Array.isArray(sources) || sources.length !== 1) return undefined;
  return DATASETS.find((key) => key === sources[0]);
}

/** NaN: no size. */
function klineMsOf(size: unknown): number {
  const units: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };
  const text = typeof size === 'string' ? /^([1-9][0-9]*)([smhdw])$/.exec(size) : null;
  const seconds = text ? Number(text[1]) * units[text[2]] : size;
  const fits = Number.isInteger(seconds) && (seconds as number) >= 1 && (seconds as number) <= 2_678_400;
  return fits ? (seconds as number) * 1000 : Number.NaN;
}

function isView(raw: Body, dataset: Dataset, mode: Mode): boolean {
  const [hasId, hasVersion] = [Object.hasOwn(raw, 'view_id'), Object.hasOwn(raw, 'view_version')];
  if (!hasId && !hasVersion) return true;
  const id = mode === 'native' ? `${dataset}_native` : 'aligned_1s_raw';
  return raw.view_id === id && raw.view_version === 1;
}

/** Columns that fields and filters may name. */
function selectable(style: Style, dataset: Dataset, mode: Mode): Columns {
  if (style.kind === 'klines') return KLINES[mode];
  const own = columnsOf(dataset, mode);
  const isTrades = style.kind === 'historical' && EXCHANGES.includes(dataset) && mode === 'native';
  return isTrades ? new Map([...own, ...UNIFIED_TRADES]) : own;
}

function shownOf(raw: Body, columns: Columns, style: Style, mode: Mode, withDatetime: boolean): Columns | undefined {
  if (!Object.hasOwn(raw, 'fields')) {
    const isTrades = style.kind === 'historical' && EXCHANGES.includes(style.dataset) && mode === 'native';
    const shown = isTrades ? UNIFIED_TRADES : columns;
    return withDatetime ? shown : new Map([...shown].filter(([name]) => name !== 'datetime'));
  }
  const { fields } = raw;
  if (!Array.isArray(fields) || fields.length === 0 || new Set(fields).size < fields.length) return undefined;
  if (!fields.every((name) => columns.has(name))) return undefined;
  if (!withDatetime && fields.includes('datetime')) return undefined;
  return new Map(fields.map((name) => [name, columns.get(name)!]));
}

const ALL_OPS = ['eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in', 'not_in'];
const OPS: Record<Dtype, readonly string[]> = {
  int64: ALL_OPS,
  float64: ALL_OPS,
  timestamp_utc: ALL_OPS,
  string: ['eq', 'ne', 'in', 'not_in'],
  uuid: ['eq', 'ne', 'in', 'not_in'],
  bool01: ['eq', 'ne'],
  json: [],
};
const MAX_CLAUSES = 64;
const MAX_VALUES = 10_000;

function filtersOf(filters: unknown, columns: Columns): Clause[] | undefined {
  if (!Array.isArray(filters) || filters.length > MAX_CLAUSES) return undefined;
  return filters.every((clause) => isClause(clause, columns)) ? filters : undefined;
}

function isClause(clause: unknown, columns: Columns): clause is Clause {
  if (typeof clause !== 'object' || clause === null || Array.isArray(clause)) return false;
  if (Object.keys(clause).toSorted().join() !== 'field,op,value') return false;
  const { field, op, value } = clause as Clause;
  const dtype = columns.get(field);
  if (dtype === undefined || !OPS[dtype].includes(op)) return false;
  if (value === null) return op === 'eq' || op === 'ne';
  if (op !== 'in' && op !== 'not_in') return isValue(dtype, value);
  return (
    Array.isArray(value) &&
    value.length > 0 &&
    value.length <= MAX_VALUES &&
    value.every((element) => isValue(dtype, element))
  );
}

function isValue(dtype: Dtype, value: unknown): boolean {
  switch (dtype) {
    case 'int64':
      return typeof value === 'number' && Number.isInteger(value) && value >= -(2 ** 63) && value < 2 ** 63;
    case 'float64':
      return typeof value === 'number' && Number.isFinite(value);
    case 'bool01':
      return value === 0 || value === 1;
    case 'timestamp_utc':
      return typeof value === 'string' && parseTime(value) !== undefined;
    case 'uuid':
      return typeof value === 'string' && /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(value);
    case 'string':
      return typeof value === 'string' && !value.includes('\0') && value.isWellFormed();
    case 'json':
      return false;
  }
}

const isCount = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 1;

function seedIsRight(raw: Body, selector: string): boolean {
  if (!Object.hasOwn(raw, 'random_seed')) return true;
  return Object.hasOwn(raw, selector) && Number.isSafeInteger(raw.random_seed);
}

function queryWindow(raw: Body): AskedWindow | undefined {
  const given = ['time_range', 'n_rows', 'n_random'].filter((key) => Object.hasOwn(raw, key));
  if (given.length > 1 || !seedIsRight(raw, 'n_random')) return undefined;
  switch (given[0]) {
    case 'n_rows':
      return isCount(raw.n_rows) ? { kind: 'latest', rows: raw.n_rows as number } : undefined;
    case 'n_random':
      return isCount(raw.n_random) ? { kind: 'random', rows: raw.n_random as number } : undefined;
    case 'time_range': {
      const range = raw.time_range;
      if (!Array.isArray(range) || range.length !== 2) return undefined;
      const [start, end] = range.map((text) => (typeof text === 'string' ? parseTime(text) : undefined));
      if (!start || !end || !(start.ns < end.ns)) return undefined;
      const ceil = (time: typeof start) => (isFiner(time) ? time.ms + 1 : time.ms);
      return { kind: 'range', fromMs: ceil(start), toMs: ceil(end) };
    }
    default:
      return { kind: 'history' };
  }
}

const DAY_MS = 86_400_000;

function dateWindow(raw: Body): AskedWindow | undefined {
  const dates = ['start_date', 'end_date'].filter((key) => Object.hasOwn(raw, key));
  const given = [
    ...(dates.length > 0 ? ['dates'] : []),
    ...['n_latest_rows', 'n_random_rows'].filter((key) => Object.hasOwn(raw, key)),
  ];
  if (given.length > 1 || !seedIsRight(raw, 'n_random_rows')) return undefined;
  switch (given[0]) {
    case 'n_latest_rows':
      return isCount(raw.n_latest_rows) ? { kind: 'latest', rows: raw.n_latest_rows as number } : undefined;
    case 'n_random_rows':
      return isCount(raw.n_random_rows) ? { kind: 'random', rows: raw.n_random_rows as number } : undefined;
    case 'dates': {
      const parsed = dates.map((key) => (typeof raw[key] === 'string' ? parseDay(raw[key]) : undefined));
      if (parsed.includes(undefined)) return undefined;
      const [fromMs, lastMs] = ['start_date', 'end_date'].map((key) => parsed[dates.indexOf(key)]);
      if (fromMs !== undefined && lastMs !== undefined && fromMs > lastMs) return undefined;
      return { kind: 'range', fromMs, toMs: lastMs === undefined ? undefined : lastMs + DAY_MS };
    }
    default:
      return { kind: 'history' };
  }
}
