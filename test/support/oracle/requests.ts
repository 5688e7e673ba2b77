/**
 * Requests at random: bodies that are right, then up to two things in them changed, and now and then what is around
 * them: the key, the token, what is accepted, the text itself. What each must be answered with is not known here.
 */
import fc from 'fast-check';
import type { Style } from './body.ts';
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

/** Texts that have broken services before. */
export const HOSTILE_TEXTS: readonly string[] = [
  "'; drop table exchange_a_spot_trades; --",
  '1) or 1=1 --',
  '") union select usename, passwd from pg_shadow --',
  "$1::text'); select pg_sleep(10); --",
  '\\',
  '%s%n{{7*7}}',
  '../../../../etc/passwd',
  "\u0000'",
  '\ud800',
  'a\udc00b',
  '😀👩‍👩‍👧‍👦',
  '\u202e\ufeff\u0001',
  '__proto__',
  'constructor',
  'toString',
  'hasOwnProperty',
  'NaN',
  '',
  ' ',
];

export interface World {
  /** Times between which rows lie. */
  span(dataset: Dataset): Span;
  /** Values of a column that rows have. */
  values(dataset: Dataset, mode: Mode, column: string): readonly (number | string)[];
  readonly tokens: readonly string[];
}

export interface Span {
  readonly fromMs: number;
  readonly toMs: number;
}

export interface Request {
  readonly body: string;
  readonly key: 'right' | 'wrong' | 'none';
  readonly token: string | undefined;
  readonly accept: Accept;
  /** Behind the path, from the question mark. */
  readonly search: string;
}

export interface Accept {
  readonly header: string | undefined;
  /** Media type of the answer; undefined: none of them is served. */
  readonly gives: string | undefined;
}

const JSON_TYPE = 'application/json';
export const NDJSON = 'application/x-ndjson';
export const CSV = 'text/csv';
const ARROW = 'application/vnd.apache.arrow.stream';

const ACCEPTS: readonly Accept[] = [
  { header: JSON_TYPE, gives: JSON_TYPE },
  { header: '*/*', gives: JSON_TYPE },
  { header: 'text/html, application/*;q=0.1', gives: JSON_TYPE },
  { header: NDJSON, gives: NDJSON },
  { header: `${CSV};q=0.9, ${NDJSON};q=0.1`, gives: CSV },
  { header: ARROW, gives: ARROW },
  { header: 'text/html', gives: undefined },
  { header: `${JSON_TYPE};q=0`, gives: undefined },
];
const PLAIN: Accept = { header: undefined, gives: JSON_TYPE };

const often = <T>(usual: T, others: readonly T[]): fc.Arbitrary<T> =>
  fc.oneof({ weight: 19, arbitrary: fc.constant(usual) }, { weight: 1, arbitrary: fc.constantFrom(...others) });

/** Requests with nothing wrong in what they ask for. */
export const rightRequests = (style: Style, world: World): fc.Arbitrary<Request> =>
  fc
    .record({ body: bodies(style, world), token: fc.constantFrom(undefined, ...world.tokens) })
    .map(({ body, token }) => ({ body: JSON.stringify(body), key: 'right', token, accept: PLAIN, search: '' }));

/** Requests of any kind. */
export const anyRequests = (style: Style, world: World): fc.Arbitrary<Request> =>
  fc
    .record({
      body: bodies(style, world),
      changes: fc.array(change, { maxLength: 2 }),
      text: often<(text: string) => string>(
        (text) => text,
        [
          (text) => text.slice(0, -1),
          (text) => text.slice(1),
          (text) => `${text},`,
          (text) => text.replaceAll('"', "'"),
          (text) => ` \n\t${text}\r\n`,
          () => '',
        ],
      ),
      key: often<Request['key']>('right', ['wrong', 'none']),
      token: fc.constantFrom(undefined, undefined, ...world.tokens),
      accept: often(PLAIN, ACCEPTS),
      search: often('', ['?', '?mode=native', '?x']),
    })
    .map(({ body, changes, text, ...rest }) => {
      const changed = changes.reduce<unknown>((value, one) => one(value), body);
      return { ...rest, body: text(JSON.stringify(changed)) };
    });

const mode: fc.Arbitrary<Mode> = fc.constantFrom('native', 'aligned_1s');

function bodies(style: Style, world: World): fc.Arbitrary<Record<string, unknown>> {
  // Of one dataset every answer is foreseen: it is asked for as often as all others together.
  const dataset =
    style.kind === 'query'
      ? fc.oneof(fc.constant<Dataset>('exchange_a_spot_trades'), fc.constantFrom(...DATASETS))
      : fc.constant(style.dataset);
  return fc.tuple(dataset, mode).chain(([key, asked]) => {
    const columns = selectable(style, key, asked);
    const isTrades = style.kind === 'historical' && EXCHANGES.includes(key) && asked === 'native';
    const optional = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined, freq: 2 });
    return fc
      .record({
        mode: asked === 'native' ? fc.constantFrom(undefined, asked) : fc.constant(asked),
        sources: fc.constant(style.kind === 'query' ? [key] : undefined),
        window: style.kind === 'query' ? rangeWindow(world.span(key)) : dateWindow(world.span(key)),
        fields: optional(fc.shuffledSubarray([...columns.keys()], { minLength: 1 })),
        filters: optional(
          fc.array(
            clause(columns, (name) => world.values(key, ...origin(style, asked, name))),
            { maxLength: 3 },
          ),
        ),
        silences: fc.constantFrom(undefined, undefined, 'warn'),
        strict: fc.constantFrom(undefined, false, true),
        view: style.kind === 'query' ? optional(view(key, asked)) : fc.constant(undefined),
        include_datetime_col: isTrades ? fc.constantFrom(undefined, true, false) : fc.constant(undefined),
        as_of: key === 'macro_series_metrics' ? optional(instant(world.span(key))) : fc.constant(undefined),
        kline_size: style.kind === 'klines' ? optional(klineSize) : fc.constant(undefined),
      })
      .map(({ window, view, ...rest }) => ({ ...rest, ...window, ...view }));
  });
}

/** Where values of a column are found: klines have prices of trades. */
function origin({ kind }: Style, asked: Mode, name: string): [Mode, string] {
  return kind === 'klines' && ['open', 'high', 'low', 'close'].includes(name) ? ['native', 'price'] : [asked, name];
}

function selectable(style: Style, dataset: Dataset, asked: Mode): Columns {
  if (style.kind === 'klines') return KLINES[asked];
  const own = columnsOf(dataset, asked);
  const isTrades = style.kind === 'historical' && EXCHANGES.includes(dataset) && asked === 'native';
  return isTrades ? new Map([...UNIFIED_TRADES, ...own]) : own;
}

const view = (dataset: Dataset, asked: Mode) =>
  fc.record({
    view_id: fc.constantFrom(
      asked === 'native' ? `${dataset}_native` : 'aligned_1s_raw',
      'aligned_1s_raw',
      `${dataset}_native`,
    ),
    view_version: fc.constantFrom(1, 1, 1, 2),
  });

const klineSize = fc.oneof(
  fc.integer({ min: 1, max: 2_678_400 }),
  fc.constantFrom('1s', '90s', '1m', '60m', '4h', '1d', '1w', '4w', '5w', '0m', '1M', '1.5h', '01m', 2_678_401, 0, 2.5),
);

const count = fc.oneof(
  fc.integer({ min: 1, max: 5 }),
  fc.integer({ min: 1, max: 500 }),
  fc.constant(Number.MAX_SAFE_INTEGER),
);
const seed = fc.option(fc.integer(), { nil: undefined });

/** An instant near the rows, written in one of the ways there are. */
const instant = ({ fromMs, toMs }: Span) =>
  fc
    .record({
      ms: fc.integer({ min: fromMs - 2 * DAY_MS, max: toMs + 2 * DAY_MS }),
      whole: fc.boolean(),
      zone: fc.constantFrom(0, 0, 0, 330, -480),
      digits: fc.constantFrom('', '', '000', '123456', '999999999999999'),
    })
    .map(({ ms, whole, zone, digits }) => {
      const local = new Date((whole ? Math.floor(ms / DAY_MS) * DAY_MS : ms) + zone * 60_000)
        .toISOString()
        .slice(0, -1);
      const abs = Math.abs(zone);
      const name =
        zone === 0
          ? 'Z'
          : `${zone < 0 ? '-' : '+'}${String(Math.floor(abs / 60)).padStart(2, '0')}:${String(abs % 60).padStart(2, '0')}`;
      return `${local}${digits}${name}`;
    });

const DAY_MS = 86_400_000;

const rangeWindow = (span: Span): fc.Arbitrary<Record<string, unknown>> =>
  fc.oneof(
    fc.constant({}),
    fc.tuple(instant(span), instant(span)).map((times) => ({
      time_range: times.toSorted(
        (a, b) => Date.parse(a.replace(/(\.\d{3})\d*/, '$1')) - Date.parse(b.replace(/(\.\d{3})\d*/, '$1')),
      ),
    })),
    count.map((n_rows) => ({ n_rows })),
    fc.record({ n_random: count, random_seed: seed }),
  );

const dateWindow = (span: Span): fc.Arbitrary<Record<string, unknown>> => {
  const day = fc
    .integer({ min: span.fromMs - 3 * DAY_MS, max: span.toMs + 3 * DAY_MS })
    .map((ms) => new Date(ms).toISOString().slice(0, 10));
  return fc.oneof(
    fc.constant({}),
    fc.tuple(day, day).map((days) => {
      const [start_date, end_date] = days.toSorted();
      return { start_date, end_date };
    }),
    day.map((start_date) => ({ start_date })),
    day.map((end_date) => ({ end_date })),
    count.map((n_latest_rows) => ({ n_latest_rows })),
    fc.record({ n_random_rows: count, random_seed: seed }),
  );
};

const OPS: Record<Dtype, readonly string[]> = {
  int64: ['eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in', 'not_in'],
  float64: ['eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in', 'not_in'],
  timestamp_utc: ['eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in', 'not_in'],
  string: ['eq', 'ne', 'in', 'not_in'],
  uuid: ['eq', 'ne', 'in', 'not_in'],
  bool01: ['eq', 'ne'],
  json: [],
};

/** A clause that is right; its values are such as rows have, or lie about them. */
function clause(columns: Columns, valuesOf: (name: string) => readonly (number | string)[]) {
  const filterable = [...columns].filter(([, dtype]) => OPS[dtype].length > 0);
  return fc.constantFrom(...filterable).chain(([field, dtype]) =>
    fc.constantFrom(...OPS[dtype]).chain((op) => {
      const one = value(dtype, valuesOf(field));
      const given: fc.Arbitrary<unknown> =
        op === 'in' || op === 'not_in' ? fc.array(one, { minLength: 1, maxLength: 4 }) : one;
      const orNull =
        op === 'eq' || op === 'ne'
          ? fc.oneof({ weight: 9, arbitrary: given }, { weight: 1, arbitrary: fc.constant(null) })
          : given;
      return orNull.map((found) => ({ field, op, value: found }));
    }),
  );
}

function value(dtype: Dtype, seen: readonly (number | string)[]): fc.Arbitrary<unknown> {
  const known = seen.length === 0 ? [] : [fc.constantFrom(...seen)];
  switch (dtype) {
    case 'bool01':
      return fc.constantFrom(0, 1);
    case 'int64':
      return fc.oneof(...known, fc.maxSafeInteger(), fc.constantFrom(-(2 ** 62), 2 ** 62, 0));
    case 'float64':
      return fc.oneof(...known, fc.double({ noNaN: true, noDefaultInfinity: true }), fc.constantFrom(0, -1, 5e-324));
    case 'timestamp_utc':
      return fc.oneof(
        ...known.map((one) => fc.tuple(one, fc.constantFrom('Z', 'Z', '5Z', '000001Z')).map(timeOf)),
        fc
          .date({ min: new Date(0), max: new Date('2100-01-01'), noInvalidDate: true })
          .map((date) => date.toISOString()),
        fc.constantFrom('0001-01-01T00:00:00Z', '9999-12-31T23:59:59.999Z', '2024-03-01T00:00:00.0005Z'),
      );
    case 'uuid':
      return fc.oneof(...known, fc.uuid());
    default:
      return fc.oneof(
        ...known,
        fc.string(),
        fc.constantFrom(...HOSTILE_TEXTS.filter((text) => text.isWellFormed() && !text.includes('\0'))),
      );
  }
}

/** Of a row, or a little later than it. */
const timeOf = ([ms, end]: [number | string, string]) => new Date(ms).toISOString().replace('Z', end);

/** Any JSON, numbers that are none of JSON left out. */
const anything = fc.oneof(
  fc.jsonValue({ maxDepth: 2 }),
  fc.constantFrom(...HOSTILE_TEXTS),
  fc.constantFrom<unknown>(null, true, 0, -1, 1.5, '5', [], {}, 2 ** 53, [[]], { a: 1 }),
);

const KEYS = [
  'mode',
  'sources',
  'fields',
  'filters',
  'silences',
  'strict',
  'time_range',
  'n_rows',
  'n_random',
  'random_seed',
  'as_of',
  'view_id',
  'view_version',
  'start_date',
  'end_date',
  'n_latest_rows',
  'n_random_rows',
  'include_datetime_col',
  'kline_size',
  'limit',
  'auth_token',
];

type Change = (body: unknown) => unknown;

/** One thing about a body: a key set, taken away, or something within replaced. */
const change: fc.Arbitrary<Change> = fc.oneof(
  fc.tuple(fc.constantFrom(...KEYS), anything).map(([key, found]) => (body: unknown) => ({
    ...(body as object),
    [key]: found,
  })),
  fc.constantFrom(...KEYS).map((key) => (body: unknown) => ({ ...(body as object), [key]: undefined })),
  fc.tuple(fc.constantFrom(...HOSTILE_TEXTS), anything).map(
    ([key, found]) =>
      (body: unknown) =>
        withKey(body, key, found),
  ),
  fc.tuple(fc.nat(), anything).map(
    ([place, found]) =>
      (body: unknown) =>
        replaceLeaf(body, place, found),
  ),
  fc.tuple(fc.nat(), fc.constantFrom(...HOSTILE_TEXTS)).map(
    ([place, found]) =>
      (body: unknown) =>
        replaceLeaf(body, place, found),
  ),
  anything.map((found) => () => found),
);

function withKey(body: unknown, key: string, found: unknown): unknown {
  const copy = { ...(body as object) };
  // Not an assignment: `__proto__` is to be a key like any other.
  Object.defineProperty(copy, key, { value: found, enumerable: true, configurable: true, writable: true });
  return copy;
}

/** Puts something in the place of one of the values within. */
function replaceLeaf(body: unknown, place: number, found: unknown): unknown {
  let count = 0;
  const countLeaves = (value: unknown): void => {
    if (typeof value === 'object' && value !== null) for (const inner of Object.values(value)) countLeaves(inner);
    else count++;
  };
  countLeaves(body);
  let at = count === 0 ? 0 : place % count;
  const replaced = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(replaced);
    if (typeof value === 'object' && value !== null) {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, replaced(inner)]));
    }
    return at-- === 0 ? found : value;
  };
  return replaced(body);
}
