/**
 * Bodies of all historical routes, right and wrong, against the contract said once more: which keys are at fault.
 *
 * Faults made on purpose and caught here or in unit/mistakes, nightly/contract-property: a reversed comparison of the
 * raw query, two windows in one request accepted, warnings lost from an error.
 */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { OPERATORS_OF } from '../../serving/contract/filters.ts';
import { historicalParser } from '../../serving/contract/historical.ts';
import { Params } from '../../serving/db/pg-messages.ts';
import { DATASET_KEYS, DATASETS, type Dtype, type Field, shapeOf } from '../../shared/registry/index.ts';
import { KLINE_FIELDS } from '../../shared/registry/trades.ts';
import { type Json, parseJson } from '../../shared/strict-json.ts';

const ROUTES = DATASET_KEYS.flatMap((key) => {
  const dataset = DATASETS.get(key)!;
  const rows = { name: dataset.historicalPath, dataset, kind: 'rows' as const };
  return dataset.trades ? [rows, { name: dataset.trades.klinesPath, dataset, kind: 'klines' as const }] : [rows];
});
type Route = (typeof ROUTES)[number];
type Mode = 'native' | 'aligned_1s';

const UNIFIED = ['trade_id', 'timestamp', 'price', 'quantity', 'is_buyer_maker', 'datetime'];

/** Names a request may use, and what they are. */
function columns({ dataset, kind }: Route, mode: Mode): ReadonlyMap<string, Dtype> {
  const of = (fields: readonly Field[]) => new Map(fields.map(({ name, dtype }) => [name, dtype]));
  if (kind === 'klines') return of(KLINE_FIELDS[mode]);
  const own = of(shapeOf(dataset, mode).fields);
  if (!dataset.trades || mode !== 'native') return own;
  return new Map([
    ...UNIFIED.map((name): [string, Dtype] => [name, name === 'quantity' ? 'float64' : (own.get(name) ?? 'bool01')]),
    ...own,
  ]);
}

test('the fifteen of the contract come first', () => {
  expect(ROUTES.slice(0, 15).map(({ name }) => name)).toEqual([
    'exchange_a/spot/trades',
    'exchange_a/spot/klines',
    'exchange_b/spot/trades',
    'exchange_b/spot/klines',
    'exchange_c/spot/trades',
    'exchange_c/spot/klines',
    'etf/daily_metrics',
    'macro/series_metrics',
    'bitcoin/block_headers',
    'bitcoin/block_transactions',
    'bitcoin/mempool_state',
    'bitcoin/block_fee_totals',
    'bitcoin/block_subsidy_schedule',
    'bitcoin/network_hashrate_estimate',
    'bitcoin/circulating_supply',
  ]);
});

// ---- values, each with whether it is one ---------------------------------------------------------------------------

interface Given {
  readonly value: unknown;
  readonly ok: boolean;
}

const good = (value: unknown): Given => ({ value, ok: true });
const bad = (value: unknown): Given => ({ value, ok: false });
const oneOf = (right: readonly unknown[], wrong: readonly unknown[]) =>
  fc.oneof(
    { weight: 5, arbitrary: fc.constantFrom(...right.map(good)) },
    { weight: 1, arbitrary: fc.constantFrom(...wrong.map(bad)) },
  );

const COUNTS = oneOf([1, 100, Number.MAX_SAFE_INTEGER], [0, -1, 1.5, '5', true, null, [1], {}, 2 ** 53]);
const DAYS = oneOf(
  ['2024-03-01', '2024-02-29', '1970-01-01', '9999-12-31', '0001-01-01'],
  ['2024-02-30', '2023-02-29', '2024-3-1', '2024-03-01T00:00:00Z', ' 2024-03-01', '24-03-01', '', 20240301, null, true],
);
const SIZES = oneOf(
  [1, 60, 2_678_400, '1s', '60s', '1m', '4h', '31d', '4w', '2678400s', '44640m'],
  [
    0,
    -60,
    60.5,
    2_678_401,
    '60',
    '0m',
    '00m',
    '01m',
    '1M',
    '1 m',
    '-1m',
    '1.5h',
    '1y',
    '',
    '5w',
    '32d',
    'm',
    true,
    null,
    [60],
  ],
);
const FLAGS = oneOf([true, false], [0, 1, 'true', null, []]);
const SEEDS = oneOf([0, -7, 2 ** 40], [1.5, '1', true, null, 2 ** 53]);
const MODES = oneOf(['native', 'aligned_1s'], ['NATIVE', '', null, 1, 'aligned']);

const VALUES: Readonly<Record<Dtype, [unknown, unknown]>> = {
  int64: [5, '5'],
  float64: [0.25, 'x'],
  string: ['x', 5],
  uuid: ['00000000-0000-8000-8000-000000000000', 'x'],
  bool01: [1, true],
  timestamp_utc: ['2024-03-01T00:00:00Z', '2024-03-01'],
  json: ['x', 'x'],
};

function fieldsOf(names: readonly string[]): fc.Arbitrary<Given> {
  return fc.oneof(
    { weight: 4, arbitrary: fc.shuffledSubarray([...names], { minLength: 1 }).map(good) },
    {
      weight: 1,
      arbitrary: fc
        .constantFrom<unknown>(
          [],
          null,
          'price',
          [names[0], names[0]],
          [1],
          ['no_such_field'],
          ['__proto__'],
          [names[0].toUpperCase()],
        )
        .map(bad),
    },
  );
}

function filtersOf(types: ReadonlyMap<string, Dtype>): fc.Arbitrary<Given> {
  const clause = fc.constantFrom(...types).chain(([field, dtype]): fc.Arbitrary<Given> => {
    const ops = OPERATORS_OF[dtype];
    const others = ['eq', 'gt', 'in', 'like'].filter((op) => !(ops as readonly string[]).includes(op));
    const [right, wrong] = VALUES[dtype];
    const list = (op: string, value: unknown) => (op === 'in' || op === 'not_in' ? [value] : value);
    const wrongs = [
      bad({ field, op: others[0], value: right }),
      bad({ field: 'no_such_field', op: 'eq', value: right }),
      bad({ field, op: 'eq' }),
      bad({ field, op: 'eq', value: right, extra: 1 }),
      bad(null),
      bad([field, 'eq', right]),
      ...ops.map((op) => bad({ field, op, value: list(op, wrong) })),
      ...ops.filter((op) => op === 'in').map((op) => bad({ field, op, value: right })),
    ];
    const rights = ops.map((op) => good({ field, op, value: list(op, right) }));
    return fc.oneof(...(rights.length > 0 ? [{ weight: 6, arbitrary: fc.constantFrom(...rights) }] : []), {
      weight: 1,
      arbitrary: fc.constantFrom(...wrongs),
    });
  });
  return fc.oneof(
    {
      weight: 6,
      arbitrary: fc
        .array(clause, { maxLength: 3 })
        .map((clauses) => ({ value: clauses.map(({ value }) => value), ok: clauses.every(({ ok }) => ok) })),
    },
    { weight: 1, arbitrary: fc.constantFrom<unknown>(null, {}, 'x').map(bad) },
  );
}

interface Case {
  readonly body: Record<string, unknown>;
  /** Keys of the body that are at fault. */
  readonly faults: readonly string[];
}

function cases(route: Route): fc.Arbitrary<Case> {
  return fc.option(MODES, { nil: undefined }).chain((mode) => {
    const asked = mode?.ok ? (mode.value as Mode) : 'native';
    const types = columns(route, asked);
    const keys: Record<string, fc.Arbitrary<Given>> = {
      start_date: DAYS,
      end_date: DAYS,
      n_latest_rows: COUNTS,
      n_random_rows: COUNTS,
      random_seed: SEEDS,
      fields: fieldsOf([...types.keys()]),
      filters: filtersOf(types),
      strict: FLAGS,
      include_datetime_col: FLAGS,
      kline_size: SIZES,
      time_range: fc.constant(bad(['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'])),
      constructor: fc.constant(bad(1)),
    };
    const own = ['include_datetime_col', 'kline_size', 'time_range', 'constructor'];
    const likely = (name: string) => (own.includes(name) && !isOwn(route, name) ? 20 : name.startsWith('n_') ? 4 : 2);
    const options = Object.entries(keys).map(([name, arbitrary]) => [
      name,
      fc
        .option(arbitrary, { nil: undefined, freq: 1 })
        .chain((given) => fc.integer({ min: 1, max: likely(name) }).map((roll) => (roll === 1 ? given : undefined))),
    ]);
    const record = fc.record(Object.fromEntries(options) as Record<string, fc.Arbitrary<Given | undefined>>);
    return record.map((givens) => toCase(route, asked, { mode, ...givens }));
  });
}

const isOwn = ({ dataset, kind }: Route, name: string) =>
  (name === 'kline_size' && kind === 'klines') ||
  (name === 'include_datetime_col' && kind === 'rows' && dataset.trades !== undefined);

function toCase(route: Route, mode: Mode, givens: Record<string, Given | undefined>): Case {
  const entries = Object.entries(givens).filter((entry): entry is [string, Given] => entry[1] !== undefined);
  const body = Object.fromEntries(entries.map(([name, { value }]) => [name, value]));
  const has = (name: string) => Object.hasOwn(body, name);
  const faults = new Set(entries.filter(([, { ok }]) => !ok).map(([name]) => name));
  for (const name of ['kline_size', 'include_datetime_col']) if (has(name) && !isOwn(route, name)) faults.add(name);
  const selectors = [['start_date', 'end_date'], ['n_latest_rows'], ['n_random_rows']].filter((keys) => keys.some(has));
  if (selectors.length > 1) for (const name of selectors.flat().filter(has)) faults.add(name);
  if (has('random_seed') && !has('n_random_rows')) faults.add('random_seed');
  const [start, end] = [givens.start_date, givens.end_date];
  if (start?.ok && end?.ok && (start.value as string) > (end.value as string)) faults.add('start_date');
  if (isOwn(route, 'include_datetime_col') && has('include_datetime_col')) {
    if (mode !== 'native') faults.add('include_datetime_col');
    else if (body.include_datetime_col === false && Array.isArray(body.fields) && body.fields.includes('datetime')) {
      faults.add('fields');
    }
  }
  return { body, faults: [...faults].sort() };
}

describe.each(ROUTES)('$name', (route) => {
  const parse = historicalParser(route.dataset, route.kind);
  const parsed = (body: unknown) => parse(parseJson(JSON.stringify(body)));

  test('any body: refused exactly when a key is at fault, and every one of them is named', () => {
    let refused = 0;
    const runs = 1500;
    fc.assert(
      fc.property(cases(route), ({ body, faults }) => {
        const outcome = parsed(body);
        const named = 'faults' in outcome ? outcome.faults.map(({ pointer }) => pointer.split('/')[1]) : [];
        expect([...new Set(named)].sort()).toEqual(faults);
        if (faults.length > 0) refused++;
      }),
      { numRuns: runs },
    );
    // Neither side of the contract is tested by a handful.
    expect(Math.min(refused, runs - refused)).toBeGreaterThan(100);
  });

  test('bodies that are no object', () => {
    for (const body of [null, [], 'x', 1, true] satisfies Json[]) {
      expect(parse(body)).toEqual({ faults: [{ pointer: '', message: 'must be a JSON object' }] });
    }
  });

  test('{} is the native history, with the documented columns', () => {
    const outcome = parsed({});
    if ('faults' in outcome) throw new Error(JSON.stringify(outcome.faults));
    const { read } = outcome.value;
    expect(outcome.value).toMatchObject({ mode: 'native', strict: false, window: { kind: 'history' } });
    const names = route.dataset.trades && route.kind === 'rows' ? UNIFIED : [...columns(route, 'native').keys()];
    expect(read.fields.map(({ name }) => name)).toEqual(names);
    expect(read.klineMs).toBe(route.kind === 'klines' ? 60_000 : undefined);
  });
});

describe('windows of days', () => {
  const parse = historicalParser(DATASETS.get('exchange_a_spot_trades')!, 'rows');
  const windowOf = (body: Json) => {
    const outcome = parse(body);
    if ('faults' in outcome) throw new Error(JSON.stringify(outcome.faults));
    return outcome.value.window;
  };
  const ms = (text: string) => Date.parse(text);

  test('both days are included, either side may be open', () => {
    expect(windowOf({ start_date: '2024-02-28', end_date: '2024-02-29' })).toEqual({
      kind: 'range',
      fromMs: ms('2024-02-28T00:00:00Z'),
      toMs: ms('2024-03-01T00:00:00Z'),
    });
    expect(windowOf({ start_date: '2024-02-29' })).toEqual({
      kind: 'range',
      fromMs: ms('2024-02-29T00:00:00Z'),
      toMs: undefined,
    });
    expect(windowOf({ end_date: '2024-02-29' })).toEqual({
      kind: 'range',
      fromMs: undefined,
      toMs: ms('2024-03-01T00:00:00Z'),
    });
  });

  test('the last day there is ends within the years of four digits', () => {
    const window = windowOf({ end_date: '9999-12-31' });
    expect(window.kind === 'range' && new Date(window.toMs!).toISOString()).toBe('9999-12-31T23:59:59.999Z');
  });

  test('without datetime: the other columns; naming it as well is a fault', () => {
    const outcome = parse({ include_datetime_col: false });
    if ('faults' in outcome) throw new Error(JSON.stringify(outcome.faults));
    expect(outcome.value.read.fields.map(({ name }) => name)).toEqual(UNIFIED.slice(0, -1));
    expect(parse({ include_datetime_col: false, fields: ['price', 'datetime'] })).toMatchObject({
      faults: [{ pointer: '/fields/1' }],
    });
    expect(parse({ include_datetime_col: true, mode: 'aligned_1s' })).toMatchObject({
      faults: [{ pointer: '/include_datetime_col' }],
    });
  });
});

// The bounds of a window cover the time that rows are ordered by; of any other time the condition alone decides.
test('a time between two milliseconds parts the rows after the earlier one, whichever time of a row it is compared with', () => {
  const parse = historicalParser(DATASETS.get('bitcoin_block_headers')!, 'rows');
  const conditionOf = (op: string, value: string) => {
    const outcome = parse({ mode: 'aligned_1s', filters: [{ field: 'latest_ingested_at_utc', op, value }] });
    if ('faults' in outcome) throw new Error(JSON.stringify(outcome.faults));
    const params = new Params();
    return [outcome.value.read.filters[0].test(params), params.list];
  };
  const [whole, finer] = ['2024-01-15T00:00:00.123Z', '2024-01-15T00:00:00.1230001Z'];
  for (const op of ['gt', 'gte']) expect(conditionOf(op, finer)).toEqual(conditionOf('gt', whole));
  for (const op of ['lt', 'lte']) expect(conditionOf(op, finer)).toEqual(conditionOf('lte', whole));
});
