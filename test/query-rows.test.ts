/**
 * Rows of POST /v1/raw/query against an oracle in plain JavaScript: what was loaded, filtered and cut as the contract
 * says. Storage also holds rows that nothing has proved, before, between and after the proved days.
 */
import { writeFile } from 'node:fs/promises';
import { DuckDBInstance } from '@duckdb/node-api';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { alignedOf, DATASET, DAY_MS, insertUnproved, loadDays, randomDay, type Trade } from './support/load-rows.ts';
import { migrated, type Serving, startServing } from './support/serving.ts';
import { createTestEnv, execute, type TestEnv } from './support/stack.ts';

const NOW = Date.parse('2024-03-10T12:00:00Z');
const iso = (ms: number) => new Date(ms).toISOString();
const at = (text: string) => Date.parse(text);

// 3 March is not proved: an interior gap. The rest of storage is rows that must never come out.
const DAYS = [
  randomDay('2024-03-01', 400, 1000, 1),
  randomDay('2024-03-02', 300, 1400, 2),
  randomDay('2024-03-04', 500, 2100, 3),
  randomDay('2024-03-05', 200, 2600, 4),
];
const UNPROVED = [
  randomDay('2024-02-29', 300, 700, 5),
  randomDay('2024-03-03', 400, 1700, 6),
  randomDay('2024-03-06', 300, 2800, 7),
];
const RANGES = [
  { from: at('2024-03-01'), to: at('2024-03-03') },
  { from: at('2024-03-04'), to: at('2024-03-06') },
];
const PROVED_FROM = RANGES[0].from;
const PROVED_TO = RANGES[1].to;

const TRADES = DAYS.flatMap((day) => day.trades);

type Cell = number | string;
type Row = Record<string, Cell>;

const nativeRow = (trade: Trade): Row => ({ ...trade, datetime: iso(trade.timestamp) });
const NATIVE = TRADES.map(nativeRow);
/** Second, and the row without its validity, which depends on the window. */
const ALIGNED = DAYS.flatMap((day) => alignedOf(day.trades));

const NATIVE_FIELDS = {
  trade_id: 'int64',
  timestamp: 'int64',
  price: 'float64',
  quantity: 'float64',
  quote_quantity: 'float64',
  is_buyer_maker: 'bool01',
  is_best_match: 'bool01',
  datetime: 'timestamp_utc',
} as const;
const ALIGNED_FIELDS = {
  aligned_at_utc: 'timestamp_utc',
  open_price: 'float64',
  high_price: 'float64',
  low_price: 'float64',
  close_price: 'float64',
  quantity_sum: 'float64',
  quote_volume_sum: 'float64',
  trade_count: 'int64',
  valid_from_utc: 'timestamp_utc',
  valid_to_utc_exclusive: 'timestamp_utc',
} as const;
type Mode = 'native' | 'aligned_1s';
const FIELDS: Record<Mode, Record<string, string>> = { native: NATIVE_FIELDS, aligned_1s: ALIGNED_FIELDS };

interface Clause {
  readonly field: string;
  readonly op: string;
  readonly value: unknown;
}
interface Body {
  readonly sources: readonly string[];
  readonly mode?: Mode;
  readonly fields?: readonly string[];
  readonly time_range?: readonly [string, string];
  readonly n_rows?: number;
  readonly n_random?: number;
  readonly random_seed?: number;
  readonly filters?: readonly Clause[];
  readonly strict?: boolean;
}

/** All rows of a window, before filters, as the contract describes them. */
function windowRows(body: Body): Row[] {
  const [from, to] = body.time_range?.map(at) ?? [PROVED_FROM, PROVED_TO];
  if (body.mode !== 'aligned_1s') return NATIVE.filter((row) => +row.timestamp >= from && +row.timestamp < to);
  return ALIGNED.flatMap(({ aligned_at_ms, ...cells }, index) => {
    if (aligned_at_ms < from || aligned_at_ms >= to) return [];
    const range = RANGES.find((one) => aligned_at_ms >= one.from && aligned_at_ms < one.to)!;
    const next = ALIGNED[index + 1]?.aligned_at_ms ?? Number.POSITIVE_INFINITY;
    const second = iso(aligned_at_ms);
    const validTo = iso(Math.min(next, range.to, to));
    return [{ aligned_at_utc: second, ...cells, valid_from_utc: second, valid_to_utc_exclusive: validTo }];
  });
}

function passes(row: Row, mode: Mode, { field, op, value }: Clause): boolean {
  const isTime = FIELDS[mode][field] === 'timestamp_utc';
  const cell = isTime ? at(row[field] as string) : (row[field] as number);
  // Times of the tests have at most milliseconds; what is finer is tested by hand below.
  const of = (one: unknown) => (isTime ? at(one as string) : (one as number));
  switch (op) {
    case 'eq':
      return value !== null && cell === of(value);
    case 'ne':
      return value === null || cell !== of(value);
    case 'gt':
      return cell > of(value);
    case 'gte':
      return cell >= of(value);
    case 'lt':
      return cell < of(value);
    case 'lte':
      return cell <= of(value);
    case 'in':
      return (value as unknown[]).some((one) => cell === of(one));
    default:
      return !(value as unknown[]).some((one) => cell === of(one));
  }
}

function expected(body: Body): Row[] {
  const mode = body.mode ?? 'native';
  let rows = windowRows(body).filter((row) => (body.filters ?? []).every((clause) => passes(row, mode, clause)));
  if (body.n_rows !== undefined) rows = rows.slice(-body.n_rows);
  const names = body.fields ?? Object.keys(FIELDS[mode]);
  return rows.map((row) => Object.fromEntries(names.map((name) => [name, row[name]])));
}

let env: TestEnv;
let serving: Serving;

beforeAll(async () => {
  env = await createTestEnv();
  await migrated(env.databaseUrl);
  await loadDays(env.databaseUrl, DAYS, { rowsPerFrame: 60 });
  for (const day of UNPROVED) await insertUnproved(env.databaseUrl, day.trades);
  serving = await startServing({ databaseUrl: env.databaseUrl, now: () => NOW });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const ask = (body: Omit<Body, 'sources'>) => serving.query({ sources: [DATASET], ...body });

async function check(body: Omit<Body, 'sources'>): Promise<void> {
  const full = { sources: [DATASET], ...body };
  const answer = await serving.query(full);
  const rows = expected(full);
  if (rows.length === 0) {
    expect([answer.status, answer.json.code]).toEqual([404, 'QUERY_NO_DATA']);
    return;
  }
  expect(answer.status, answer.text.slice(0, 500)).toBe(200);
  expect(answer.json.rows).toEqual(rows);
  expect(answer.json.row_count).toBe(rows.length);
}

/** A value that occurs, or nearly. */
function values(mode: Mode, field: string): fc.Arbitrary<Cell> {
  const rows = windowRows({ sources: [DATASET], mode });
  const cells = fc.constantFrom(...rows.map((row) => row[field]));
  switch (FIELDS[mode][field]) {
    case 'timestamp_utc':
      return fc.tuple(cells, fc.integer({ min: -2, max: 2 })).map(([cell, shift]) => iso(at(cell as string) + shift));
    case 'bool01':
      return fc.constantFrom<Cell>(0, 1);
    case 'int64':
      return fc.tuple(cells, fc.integer({ min: -2, max: 2 })).map(([cell, shift]) => (cell as number) + shift);
    default:
      return fc.oneof(cells, fc.double({ noNaN: true, noDefaultInfinity: true }));
  }
}

function clauses(mode: Mode): fc.Arbitrary<Clause> {
  return fc.constantFrom(...Object.keys(FIELDS[mode])).chain((field) => {
    const ops =
      FIELDS[mode][field] === 'bool01' ? ['eq', 'ne'] : ['eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in', 'not_in'];
    return fc.constantFrom(...ops).chain((op) => {
      const list = op === 'in' || op === 'not_in';
      const value: fc.Arbitrary<unknown> = list
        ? fc.array(values(mode, field), { minLength: 1, maxLength: 5 })
        : op === 'eq' || op === 'ne'
          ? fc.oneof({ weight: 20, arbitrary: values(mode, field) }, { weight: 1, arbitrary: fc.constant(null) })
          : values(mode, field);
      return value.map((one) => ({ field, op, value: one }));
    });
  });
}

const times = fc.integer({ min: PROVED_FROM - DAY_MS, max: PROVED_TO + DAY_MS });
/** Whole days, whole seconds, or any millisecond. */
const moments = fc.tuple(times, fc.constantFrom(DAY_MS, 1000, 1)).map(([ms, grain]) => Math.floor(ms / grain) * grain);

function bodies(mode: Mode): fc.Arbitrary<Omit<Body, 'sources'>> {
  const timeRange = fc
    .tuple(moments, moments)
    .filter(([a, b]) => a !== b)
    .map(([a, b]): Partial<Body> => ({ time_range: [iso(Math.min(a, b)), iso(Math.max(a, b))] }));
  const window = fc.oneof(
    timeRange,
    fc.integer({ min: 1, max: 1500 }).map((n_rows): Partial<Body> => ({ n_rows })),
    fc.constant<Partial<Body>>({}),
  );
  return fc
    .record({
      window,
      fields: fc.option(fc.shuffledSubarray(Object.keys(FIELDS[mode]), { minLength: 1 }), { nil: undefined }),
      filters: fc.option(fc.array(clauses(mode), { maxLength: 3 }), { nil: undefined }),
    })
    .map(({ window, fields, filters }) => ({
      mode,
      ...window,
      ...(fields && { fields }),
      ...(filters && { filters }),
    }));
}

describe('any window, fields and filters', () => {
  test.each(['native', 'aligned_1s'] as const)(
    '%s rows are those of the oracle',
    async (mode) => {
      await fc.assert(fc.asyncProperty(bodies(mode), check), { numRuns: 400 });
    },
    120_000,
  );
});

describe('windows', () => {
  test('without a selector: the proved history, and nothing that is not proved', async () => {
    await check({});
    await check({ mode: 'aligned_1s' });
    const { json } = await ask({});
    const unproved = new Set(UNPROVED.flatMap((day) => day.trades.map((trade) => trade.trade_id)));
    expect(unproved.size).toBe(1000);
    expect(json.rows.filter((row: Row) => unproved.has(row.trade_id as number))).toEqual([]);
  });

  test('the start is inclusive, the end exclusive, to the millisecond and finer', async () => {
    const { timestamp } = TRADES[10];
    const inside = (from: string, to: string) => ask({ time_range: [from, to] });
    const first = iso(timestamp);
    const ids = (await inside(first, iso(timestamp + 1))).json.rows.map((row: Row) => row.trade_id);
    expect(ids).toEqual(TRADES.filter((trade) => trade.timestamp === timestamp).map((trade) => trade.trade_id));
    // A tenth of a millisecond later the row is outside; as an end, that later moment leaves it in.
    const later = first.replace('Z', '1Z');
    expect((await inside(later, iso(timestamp + 1))).status).toBe(404);
    expect((await inside(first, later)).json.rows.length).toBe(ids.length);
    expect((await inside(iso(timestamp - 1), first)).status).toBe(404);
  });

  test('an offset is another way to write the same instant', async () => {
    const z = await ask({ time_range: ['2024-03-01T12:00:00Z', '2024-03-02T00:00:00Z'] });
    const offset = await ask({ time_range: ['2024-03-01T14:30:00+02:30', '2024-03-01T19:00:00-05:00'] });
    expect(offset.json.rows).toEqual(z.json.rows);
  });

  test.each(['native', 'aligned_1s'] as const)('n_rows: the last n in order, over days and gaps, %s', async (mode) => {
    const total = windowRows({ sources: [DATASET], mode }).length;
    for (const n_rows of [
      1,
      2,
      199,
      200,
      201,
      600,
      699,
      700,
      701,
      total - 1,
      total,
      total + 1,
      Number.MAX_SAFE_INTEGER,
    ]) {
      await check({ mode, n_rows });
    }
  });

  test('windows without any proved part are 404', async () => {
    for (const mode of ['native', 'aligned_1s'] as const) {
      for (const day of ['2024-02-29', '2024-03-03', '2024-03-06', '2019-01-01', '9999-12-30']) {
        const answer = await ask({ mode, time_range: [`${day}T00:00:00Z`, `${day}T23:00:00Z`] });
        expect([answer.status, answer.json.code]).toEqual([404, 'QUERY_NO_DATA']);
      }
    }
  });

  test('a filter may be finer than rows are', async () => {
    const { timestamp, trade_id } = TRADES[10];
    const finer = iso(timestamp).replace('Z', '5Z');
    const ids = async (op: string, value: unknown) => {
      const answer = await ask({ filters: [{ field: 'datetime', op, value }], fields: ['trade_id', 'timestamp'] });
      return answer.status === 404 ? [] : answer.json.rows.map((row: Row) => row.trade_id);
    };
    const where = (test: (trade: Trade) => boolean) => TRADES.filter(test).map((trade) => trade.trade_id);
    expect(await ids('eq', finer)).toEqual([]);
    expect(await ids('in', [finer])).toEqual([]);
    expect(await ids('in', [finer, iso(timestamp)])).toContain(trade_id);
    expect(await ids('ne', finer)).toEqual(where(() => true));
    expect(await ids('not_in', [finer])).toEqual(where(() => true));
    expect(await ids('gt', finer)).toEqual(where((trade) => trade.timestamp > timestamp));
    expect(await ids('gte', finer)).toEqual(where((trade) => trade.timestamp > timestamp));
    expect(await ids('lt', finer)).toEqual(where((trade) => trade.timestamp <= timestamp));
    expect(await ids('lte', finer)).toEqual(where((trade) => trade.timestamp <= timestamp));
  });

  test('integers in filters are exact past 2^53, and 1.0 is 1', async () => {
    const raw = (op: string, value: string) =>
      serving.query(`{"sources":["${DATASET}"],"filters":[{"field":"trade_id","op":"${op}","value":${value}}]}`);
    expect((await raw('lt', '9223372036854775807')).json.row_count).toBe(TRADES.length);
    expect((await raw('gt', '-9223372036854775808')).json.row_count).toBe(TRADES.length);
    expect((await raw('eq', '1010.0')).json.rows[0].trade_id).toBe(1010);
    expect((await raw('eq', '9223372036854775808')).status).toBe(409);
    expect((await raw('eq', '1010.5')).status).toBe(409);
  });

  test('rows are complete and exact, as another reader of the same JSON sees them', async () => {
    const answer = await ask({ time_range: ['2024-03-01T00:00:00Z', '2024-03-03T00:00:00Z'] });
    await writeFile(`${env.dir}/answer.json`, answer.text);
    const loaded = TRADES.filter((trade) => trade.timestamp < RANGES[0].to);
    const lines = loaded.map((t) => [t.trade_id, t.timestamp, t.price, t.quantity, t.quote_quantity].join(','));
    await writeFile(`${env.dir}/loaded.csv`, `trade_id,timestamp,price,quantity,quote_quantity\n${lines.join('\n')}\n`);
    const duckdb = await (await DuckDBInstance.create()).connect();
    const columns = 'trade_id::bigint, timestamp::bigint, price::double, quantity::double, quote_quantity::double';
    const served = `select r.trade_id, r.timestamp, r.price, r.quantity, r.quote_quantity
      from (select unnest(rows) as r from read_json('${env.dir}/answer.json', maximum_object_size=100000000))`;
    const difference = await duckdb.runAndReadAll(`with served as (select ${columns} from (${served})),
      loaded as (select ${columns} from read_csv('${env.dir}/loaded.csv'))
      select (select count(*) from served), (select count(*) from (from served except from loaded)),
        (select count(*) from (from loaded except from served))`);
    expect(difference.getRows()[0].map(Number)).toEqual([loaded.length, 0, 0]);
  });
});

describe('the envelope', () => {
  test('native', async () => {
    const { json, headers } = await ask({ time_range: ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'] });
    expect(Object.keys(json)).toEqual([
      'mode',
      'source',
      'sources',
      'warnings',
      'freshness',
      'schema',
      'view_id',
      'view_version',
      'rights_state',
      'rights_provisional',
      'rows',
      'row_count',
    ]);
    expect(json).toMatchObject({
      mode: 'native',
      source: DATASET,
      sources: [DATASET],
      warnings: [],
      freshness: null,
      view_id: `${DATASET}_native`,
      view_version: 1,
      rights_state: 'Hosted Allowed',
      rights_provisional: false,
    });
    expect(json.schema).toEqual(Object.entries(NATIVE_FIELDS).map(([name, dtype]) => ({ name, dtype })));
    expect(headers['content-type']).toBe('application/json');
    expect(headers['x-svc-synthetic']).toBeUndefined();
  });

  test('aligned, with freshness', async () => {
    const { json } = await ask({ mode: 'aligned_1s', fields: ['trade_count', 'aligned_at_utc'] });
    expect(json).toMatchObject({ mode: 'aligned_1s', view_id: 'aligned_1s_raw', view_version: 1 });
    expect(json.schema).toEqual([
      { name: 'trade_count', dtype: 'int64' },
      { name: 'aligned_at_utc', dtype: 'timestamp_utc' },
    ]);
    expect(json.freshness).toEqual({ as_of_utc: iso(PROVED_TO), lag_seconds: (NOW - PROVED_TO) / 1000 });
    expect(Object.keys(json.rows[0])).toEqual(['trade_count', 'aligned_at_utc']);
  });

  test('pinned views', async () => {
    const range = { time_range: ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'] as const };
    const pinned = (mode: Mode, view_id: unknown, view_version: unknown) =>
      serving.query({ sources: [DATASET], mode, view_id, view_version, ...range });
    expect((await pinned('native', `${DATASET}_native`, 1)).status).toBe(200);
    expect((await pinned('aligned_1s', 'aligned_1s_raw', 1)).status).toBe(200);
    for (const answer of [
      await pinned('native', 'aligned_1s_raw', 1),
      await pinned('aligned_1s', `${DATASET}_native`, 1),
      await pinned('aligned_1s', 'aligned_1s_raw', 2),
      await pinned('native', 'no_such_view', 1),
    ]) {
      expect([answer.status, answer.json.code]).toEqual([409, 'QUERY_CONTRACT_ERROR']);
    }
  });
});

describe('warnings', () => {
  const codes = (answer: { json: { warnings: { code: string }[] } }) => answer.json.warnings.map(({ code }) => code);

  test('an interior gap is named, with and without a window; the end only with one', async () => {
    const gap = { start: '2024-03-03T00:00:00.000Z', end: '2024-03-04T00:00:00.000Z' };
    const history = await ask({});
    expect(history.json.warnings).toEqual([
      {
        code: 'WINDOW_EXCEEDS_PROVED_COVERAGE',
        message: expect.any(String),
        details: { gaps: [gap], gaps_total: 1, proved_from: iso(PROVED_FROM), proved_through: iso(PROVED_TO) },
      },
    ]);
    const past = await ask({ time_range: ['2024-02-29T12:00:00Z', '2024-03-06T01:00:00Z'] });
    expect(past.json.warnings[0].details.gaps).toEqual([
      { start: '2024-02-29T12:00:00.000Z', end: '2024-03-01T00:00:00.000Z' },
      gap,
      { start: '2024-03-06T00:00:00.000Z', end: '2024-03-06T01:00:00.000Z' },
    ]);
    const within = await ask({ time_range: ['2024-03-01T00:00:00Z', '2024-03-03T00:00:00Z'] });
    expect(within.json.warnings).toEqual([]);
  });

  test('n_rows names the gaps its rows reach across, and only those', async () => {
    expect(codes(await ask({ n_rows: 700 }))).toEqual(['WINDOW_LATEST_ROWS_MUTABLE']);
    const across = ['WINDOW_LATEST_ROWS_MUTABLE', 'WINDOW_EXCEEDS_PROVED_COVERAGE'];
    expect(codes(await ask({ n_rows: 701 }))).toEqual(across);
    // A filter leaves the newest days out of the search, not out of what the answer reaches across.
    const early = { filters: [{ field: 'trade_id', op: 'lt', value: 1100 }] };
    expect(codes(await ask({ n_rows: 5, ...early }))).toEqual(across);
    expect(codes(await ask({ n_rows: 5000, ...early }))).toEqual(across);
    expect(
      codes(
        await ask({
          mode: 'aligned_1s',
          n_rows: 5,
          filters: [{ field: 'aligned_at_utc', op: 'gte', value: '2024-03-05T00:00:00Z' }],
        }),
      ),
    ).toEqual(['WINDOW_LATEST_ROWS_MUTABLE', 'ALIGNED_FRESHNESS_STALE']);
  });

  test('stale aligned rows: by the lag, for windows that reach past what is proved', async () => {
    const stale = await ask({ mode: 'aligned_1s', n_rows: 5 });
    expect(codes(stale)).toEqual(['WINDOW_LATEST_ROWS_MUTABLE', 'ALIGNED_FRESHNESS_STALE']);
    const fixed = await ask({ mode: 'aligned_1s', time_range: ['2024-03-04T00:00:00Z', '2024-03-06T00:00:00Z'] });
    expect(codes(fixed)).toEqual([]);
    const past = await ask({ mode: 'aligned_1s', time_range: ['2024-03-04T00:00:00Z', '2024-03-06T00:00:00.001Z'] });
    expect(codes(past)).toEqual(['WINDOW_EXCEEDS_PROVED_COVERAGE', 'ALIGNED_FRESHNESS_STALE']);
    await using fresh = await startServing({ databaseUrl: env.databaseUrl, now: () => PROVED_TO + 172_800_000 });
    expect(codes(await fresh.query({ sources: [DATASET], mode: 'aligned_1s', n_rows: 5 }))).toEqual([
      'WINDOW_LATEST_ROWS_MUTABLE',
    ]);
    await using before = await startServing({ databaseUrl: env.databaseUrl, now: () => PROVED_TO - 5000 });
    const early = await before.query({ sources: [DATASET], mode: 'aligned_1s', n_rows: 5 });
    expect(early.json.freshness.lag_seconds).toBe(0);
  });

  test('strict: a warning is a 409 that carries it, and a clean answer is the same answer', async () => {
    for (const body of [
      { n_rows: 5 },
      { n_random: 5 },
      {},
      { time_range: ['2024-03-05T00:00:00Z', '2024-03-07T00:00:00Z'] as const },
      { time_range: ['2024-03-06T00:00:00Z', '2024-03-07T00:00:00Z'] as const },
    ]) {
      const answer = await ask({ ...body, strict: true });
      expect([answer.status, answer.json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
      expect(answer.json.warnings.length).toBeGreaterThan(0);
    }
    const range = { time_range: ['2024-03-04T00:00:00Z', '2024-03-06T00:00:00Z'] as const };
    const strict = await ask({ ...range, strict: true });
    expect(strict.json).toEqual((await ask(range)).json);
  });
});

describe('random samples', () => {
  const cases = {
    'native, by the frames index': {},
    'native, filtered': { filters: [{ field: 'is_buyer_maker', op: 'eq', value: 1 }] },
    'aligned, by seconds': { mode: 'aligned_1s' },
    'aligned, filtered': { mode: 'aligned_1s', filters: [{ field: 'trade_count', op: 'gte', value: 1 }] },
  } as const;

  test.each(Object.entries(cases))('%s: distinct proved rows in order, replayed by the seed', async (_, body) => {
    const all = expected({ sources: [DATASET], ...body });
    const texts = all.map((row) => JSON.stringify(row));
    for (const n_random of [1, 2, 7, 100, all.length - 1, all.length, all.length + 5, 5_000_000]) {
      const answer = await ask({ ...body, n_random, random_seed: 42 });
      expect(answer.status, answer.text.slice(0, 300)).toBe(200);
      const places = answer.json.rows.map((row: Row) => texts.indexOf(JSON.stringify(row)));
      expect(places).not.toContain(-1);
      expect(places).toEqual([...new Set<number>(places)].sort((a, b) => a - b));
      expect(places.length).toBe(Math.min(n_random, all.length));
      const again = await ask({ ...body, n_random, random_seed: 42 });
      expect(again.json.rows).toEqual(answer.json.rows);
    }
    const other = await ask({ ...body, n_random: 100, random_seed: 43 });
    const first = await ask({ ...body, n_random: 100, random_seed: 42 });
    expect(other.json.rows).not.toEqual(first.json.rows);
  });

  test.each(Object.entries(cases))('%s: every row is as likely', async (_, body) => {
    const all = expected({ sources: [DATASET], ...body });
    const key = 'mode' in body ? 'aligned_at_utc' : 'trade_id';
    const place = new Map(all.map((row, index) => [row[key], index]));
    const size = new Array<number>(50).fill(0);
    for (let index = 0; index < all.length; index++) size[Math.floor((index * 50) / all.length)]++;
    // Many rows of few samples, and few of many: they are found in different ways.
    for (const [n_random, draws] of [
      [50, 60],
      [4, 500],
    ]) {
      // Fifty classes of neighbouring rows, so that dense and sparse stretches would show.
      const classes = new Array<number>(50).fill(0);
      for (let seed = 0; seed < draws; seed++) {
        const { json } = await ask({ ...body, n_random, random_seed: seed, fields: [key] });
        for (const row of json.rows) classes[Math.floor((place.get(row[key])! * 50) / all.length)]++;
      }
      const chi = classes.reduce((sum, count, index) => {
        const mean = (draws * n_random * size[index]) / all.length;
        return sum + (count - mean) ** 2 / mean;
      }, 0);
      // 49 degrees of freedom: 99.99 % of samples lie below 95 (less still without replacement). Seeds are fixed.
      expect(chi).toBeLessThan(95);
    }
  });

  test('the server draws a seed, says which, and it replays', async () => {
    const drawn = await ask({ n_random: 20 });
    const { code, details } = drawn.json.warnings[0];
    expect(code).toBe('WINDOW_RANDOM_SAMPLE');
    expect(Number.isSafeInteger(details.random_seed)).toBe(true);
    const again = await ask({ n_random: 20, random_seed: details.random_seed });
    expect(again.json.rows).toEqual(drawn.json.rows);
    expect((await ask({ n_random: 20 })).json.rows).not.toEqual(drawn.json.rows);
  });

  test('a partition without a frames index is sampled too', async () => {
    await execute(
      env.databaseUrl,
      `create table frames_kept as table frames; delete from frames where partition_key = '2024-03-04'`,
    );
    try {
      const answer = await ask({ n_random: 700, random_seed: 3 });
      const known = new Set(TRADES.map((trade) => trade.trade_id));
      expect(answer.json.row_count).toBe(700);
      expect(answer.json.rows.every((row: Row) => known.has(row.trade_id as number))).toBe(true);
    } finally {
      await execute(env.databaseUrl, 'truncate frames; insert into frames table frames_kept; drop table frames_kept');
    }
  });
});

describe('random samples of dense aligned days', () => {
  test('are rows as they are, valid until the next one, and every row is as likely', async () => {
    await using own = await createTestEnv();
    await migrated(own.databaseUrl);
    const days = [randomDay('2024-04-01', 30_000, 1, 11), randomDay('2024-04-02', 20_000, 30_001, 12)];
    await loadDays(own.databaseUrl, days);
    await using dense = await startServing({ databaseUrl: own.databaseUrl });
    const rows = days.flatMap((day) => alignedOf(day.trades));
    // Few enough seconds to be tried, more than are numbered.
    expect(rows.length).toBeGreaterThan(20_000);
    expect(rows.length).toBeLessThan(60_000);
    const place = new Map(rows.map((row, index) => [iso(row.aligned_at_ms), index]));
    const classes = new Array<number>(50).fill(0);
    const draws = 40;
    for (let random_seed = 0; random_seed < draws; random_seed++) {
      const body = { sources: [DATASET], mode: 'aligned_1s', n_random: 100, random_seed };
      const { json } = await dense.query(body);
      const places = json.rows.map((row: Row) => place.get(row.aligned_at_utc as string));
      expect(places).toEqual([...new Set<number>(places)].sort((a, b) => a - b));
      expect(places.length).toBe(100);
      for (const row of json.rows as Record<string, string>[]) {
        const index = place.get(row.aligned_at_utc)!;
        const { aligned_at_ms: _, ...cells } = rows[index];
        expect(row).toMatchObject(cells);
        expect(row.valid_to_utc_exclusive).toBe(iso(rows[index + 1]?.aligned_at_ms ?? at('2024-04-03')));
        classes[Math.floor((index * 50) / rows.length)]++;
      }
      if (random_seed === 0) expect((await dense.query(body)).json.rows).toEqual(json.rows);
    }
    const mean = (draws * 100) / 50;
    expect(classes.reduce((sum, count) => sum + (count - mean) ** 2 / mean, 0)).toBeLessThan(95);
  });
});

describe('coverage is looked at in the snapshot of the read', () => {
  test('a partition that is no longer proved is not served again, nor one served before it is proved', async () => {
    const last = { n_rows: 3 };
    const before = await ask(last);
    expect((await ask(last)).json.rows).toEqual(before.json.rows);
    await execute(
      env.databaseUrl,
      `begin; update partitions set state = 'quarantined' where partition_key = '2024-03-05';
       update coverage set proved = proved - int8multirange(int8range(${at('2024-03-05')}, ${at('2024-03-06')})), version = version + 1; commit`,
    );
    try {
      const after = await ask(last);
      expect(after.json.rows).toEqual(DAYS[2].trades.slice(-3).map(nativeRow));
      expect((await ask({ time_range: ['2024-03-05T00:00:00Z', '2024-03-06T00:00:00Z'] })).status).toBe(404);
      const aligned = await ask({ mode: 'aligned_1s', n_rows: 1 });
      expect(aligned.json.rows[0].valid_to_utc_exclusive).toBe('2024-03-05T00:00:00.000Z');
      expect(aligned.json.freshness.as_of_utc).toBe('2024-03-05T00:00:00.000Z');
    } finally {
      await execute(
        env.databaseUrl,
        `begin; update partitions set state = 'proved' where partition_key = '2024-03-05';
         update coverage set proved = proved + int8multirange(int8range(${at('2024-03-05')}, ${at('2024-03-06')})), version = version + 1; commit`,
      );
    }
    expect((await ask(last)).json.rows).toEqual(before.json.rows);
  });

  test('a reader sees a revision whole or not at all, whatever it asks', async () => {
    const [from, to] = [at('2024-03-05'), at('2024-03-06')];
    const aligned = `canonical_aligned_1s_aggregates where aligned_at_utc >= '2024-03-05Z' and aligned_at_utc < '2024-03-06Z'`;
    const native = `exchange_a_spot_trades where timestamp >= ${from} and timestamp < ${to}`;
    await execute(
      env.databaseUrl,
      `create table kept_native as select * from ${native}; create table kept_aligned as select * from ${aligned}`,
    );
    const coverage = (sign: string) =>
      `update coverage set proved = proved ${sign} int8multirange(int8range(${from}, ${to})), version = version + 1`;
    const state = (name: string) => `update partitions set state = '${name}' where partition_key = '2024-03-05'`;
    const out = `begin; delete from ${native}; delete from ${aligned}; ${state('quarantined')}; ${coverage('-')}; commit`;
    const back = `begin; insert into exchange_a_spot_trades table kept_native; insert into canonical_aligned_1s_aggregates table kept_aligned;
      ${state('proved')}; ${coverage('+')}; commit`;
    const bodies: Omit<Body, 'sources'>[] = [
      { n_rows: 3 },
      { mode: 'aligned_1s', n_rows: 3 },
      { mode: 'aligned_1s', n_rows: 3, filters: [{ field: 'trade_count', op: 'gte', value: 1 }] },
      {},
      { n_random: 5, random_seed: 1 },
      { mode: 'aligned_1s', n_random: 5, random_seed: 1 },
      { n_random: 60, random_seed: 1, filters: [{ field: 'price', op: 'gt', value: 0 }] },
    ];
    const rowsOf = async (body: Omit<Body, 'sources'>) => {
      const answer = await ask(body);
      return answer.status === 200 ? JSON.stringify(answer.json.rows) : `${answer.status} ${answer.text}`;
    };
    const withDay = await Promise.all(bodies.map(rowsOf));
    await execute(env.databaseUrl, out);
    const withoutDay = await Promise.all(bodies.map(rowsOf));
    for (const [index, rows] of withDay.entries()) expect(withoutDay[index]).not.toBe(rows);
    let flips = 0;
    let done = false;
    const flipping = (async () => {
      while (!done) {
        await execute(env.databaseUrl, flips % 2 === 0 ? back : out);
        flips++;
      }
    })();
    const seen = new Set<string>();
    for (let round = 0; round < 60 || (seen.size < bodies.length * 2 && round < 1000); round++) {
      await Promise.all(
        bodies.map(async (body, index) => {
          const rows = await rowsOf(body);
          expect([withDay[index], withoutDay[index]]).toContain(rows);
          seen.add(`${index} ${rows === withDay[index]}`);
        }),
      );
    }
    done = true;
    await flipping;
    if (flips % 2 === 0) await execute(env.databaseUrl, back);
    await execute(env.databaseUrl, 'drop table kept_native, kept_aligned');
    // Both were met by every kind of read.
    expect(seen.size).toBe(bodies.length * 2);
  });

  test('a count that does not agree with the rows is a fault, not a short answer', async () => {
    await execute(env.databaseUrl, `update partitions set rows = rows + 1000 where partition_key = '2024-03-05'`);
    try {
      await using fresh = await startServing({ databaseUrl: env.databaseUrl });
      const answer = await fresh.query({ sources: [DATASET], n_rows: 1000 });
      expect([answer.status, answer.json.code]).toEqual([503, 'QUERY_RUNTIME_ERROR']);
    } finally {
      await execute(env.databaseUrl, `update partitions set rows = rows - 1000 where partition_key = '2024-03-05'`);
    }
    await check({ n_rows: 1000 });
  });

  test('nothing proved at all', async () => {
    await using empty = await createTestEnv();
    await migrated(empty.databaseUrl);
    await insertUnproved(empty.databaseUrl, UNPROVED[0].trades);
    await using fresh = await startServing({ databaseUrl: empty.databaseUrl });
    for (const mode of ['native', 'aligned_1s']) {
      for (const window of [
        {},
        { n_rows: 5 },
        { n_random: 5 },
        { time_range: ['2024-01-01T00:00:00Z', '2025-01-01T00:00:00Z'] },
      ]) {
        const answer = await fresh.query({ sources: [DATASET], mode, ...window });
        expect([answer.status, answer.json.code]).toEqual([404, 'QUERY_NO_DATA']);
      }
    }
    const unregistered = await fresh.query({ sources: ['exchange_b_spot_trades'] });
    expect([unregistered.status, unregistered.json.code]).toEqual([404, 'QUERY_NO_DATA']);
  });

  test('a synthetic sample says so', async () => {
    await using sample = await createTestEnv();
    await migrated(sample.databaseUrl);
    await loadDays(sample.databaseUrl, [DAYS[0]], { synthetic: true });
    await using fresh = await startServing({ databaseUrl: sample.databaseUrl });
    const answer = await fresh.query({ sources: [DATASET], n_rows: 1 });
    expect(answer.headers['x-svc-synthetic']).toBe('true');
  });
});
