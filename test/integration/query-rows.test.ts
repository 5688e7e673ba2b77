/** Rows of POST /v1/raw/query against an oracle in plain JavaScript: windows, fields, filters, the envelope. */
import { writeFile } from 'node:fs/promises';
import { DuckDBInstance } from '@duckdb/node-api';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DATASET, DAY_MS } from '../support/load-rows.ts';
import { runs } from '../support/seed.ts';
import type { Serving } from '../support/serving.ts';
import {
  at,
  type Body,
  type Cell,
  type Clause,
  FIELDS,
  iso,
  type Mode,
  NATIVE_FIELDS,
  NOW,
  OTHER,
  PROVED_FROM,
  PROVED_TO,
  RANGES,
  type Row,
  type SmallHistory,
  serveSmallHistory,
  TRADES,
  UNPROVED,
  windowRows,
} from '../support/small-history.ts';
import type { TestEnv } from '../support/stack.ts';

let history: SmallHistory;
let env: TestEnv;
let serving: Serving;
const ask = (body: Omit<Body, 'sources'>) => history.ask(body);
const check = (body: Omit<Body, 'sources'>) => history.check(body);

beforeAll(async () => {
  history = await serveSmallHistory();
  ({ env, serving } = history);
});
afterAll(() => history[Symbol.asyncDispose]());

type Asked = { readonly mode: Mode } & Pick<Body, 'instrument'>;

/** A value that occurs, or nearly. */
function values({ mode, instrument }: Asked, field: string): fc.Arbitrary<Cell> {
  const rows = windowRows({ sources: [DATASET], mode, instrument });
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

function clauses(asked: Asked): fc.Arbitrary<Clause> {
  const { mode } = asked;
  return fc.constantFrom(...Object.keys(FIELDS[mode])).chain((field) => {
    const ops =
      FIELDS[mode][field] === 'bool01' ? ['eq', 'ne'] : ['eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in', 'not_in'];
    return fc.constantFrom(...ops).chain((op) => {
      const list = op === 'in' || op === 'not_in';
      const value: fc.Arbitrary<unknown> = list
        ? fc.array(values(asked, field), { minLength: 1, maxLength: 5 })
        : op === 'eq' || op === 'ne'
          ? fc.oneof({ weight: 20, arbitrary: values(asked, field) }, { weight: 1, arbitrary: fc.constant(null) })
          : values(asked, field);
      return value.map((one) => ({ field, op, value: one }));
    });
  });
}

const times = fc.integer({ min: PROVED_FROM - DAY_MS, max: PROVED_TO + DAY_MS });
/** Whole days, whole seconds, or any millisecond. */
const moments = fc.tuple(times, fc.constantFrom(DAY_MS, 1000, 1)).map(([ms, grain]) => Math.floor(ms / grain) * grain);

/** Of either instrument. */
const bodies = (mode: Mode) =>
  fc.constantFrom(undefined, OTHER).chain((instrument) => bodiesOf({ mode, ...(instrument && { instrument }) }));

function bodiesOf(asked: Asked): fc.Arbitrary<Omit<Body, 'sources'>> {
  const { mode } = asked;
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
      filters: fc.option(fc.array(clauses(asked), { maxLength: 3 }), { nil: undefined }),
    })
    .map(({ window, fields, filters }) => ({
      ...asked,
      ...window,
      ...(fields && { fields }),
      ...(filters && { filters }),
    }));
}

describe('any window, fields and filters', () => {
  test.each(['native', 'aligned_1s'] as const)('%s rows are those of the oracle', async (mode) => {
    await fc.assert(fc.asyncProperty(bodies(mode), check), { numRuns: runs(400) });
  });
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

  // Of few rows that pass, the sampler scans all and takes those with the smallest hashes.
  test('a sample of few rows has as many as wanted, from one to all, and a larger one holds the smaller', async () => {
    for (const [field, mode] of [
      ['trade_id', 'native'],
      ['aligned_at_utc', 'aligned_1s'],
    ] as const) {
      const all = windowRows({ sources: [DATASET], mode });
      const time = mode === 'native' ? 'timestamp' : field;
      const filters = [
        { field: time, op: 'gte', value: all[700][time] },
        { field: time, op: 'lt', value: all[720][time] },
      ];
      const passing = (await ask({ mode, filters })).json.rows.map((row: Row) => row[field]);
      expect(passing.length).toBeGreaterThan(5);
      let smaller: unknown[] = [];
      for (let n_random = 1; n_random <= passing.length; n_random++) {
        const { json } = await ask({ mode, filters, n_random, random_seed: 5 });
        const sample = json.rows.map((row: Row) => row[field]);
        expect(sample).toEqual(passing.filter((one: unknown) => sample.includes(one)));
        expect(sample).toHaveLength(n_random);
        expect(sample).toEqual(expect.arrayContaining(smaller));
        smaller = sample;
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
    const where = (test: (trade: (typeof TRADES)[number]) => boolean) =>
      TRADES.filter(test).map((trade) => trade.trade_id);
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
    expect((await raw('eq', '-9223372036854775809')).status).toBe(409);
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
});
