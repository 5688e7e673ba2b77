/** What the answer to a frame says beside its values: proved times, warnings, digests, headers; and the faults of a body. */
import { createHash } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { dayKey, marketDaysSince } from '../../shared/dates.ts';
import { planted } from '../support/frame-oracle.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { servedEnv } from '../support/served-env.ts';
import { createWorldsEnv, WORLDS } from '../support/worlds-env.ts';

const served = servedEnv(createWorldsEnv);

const ask = (body: object) => served.serving.send({ path: '/v1/frame', body: JSON.stringify(body) });
const EXCHANGES = ['exchange_a_spot_trades', 'exchange_b_spot_trades', 'exchange_c_spot_trades'];
const CLOSE = { name: 'close', dataset: EXCHANGES[0], field: 'price' };
const DAY_OF_TRADES = { grid: '1h', time_range: ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'] };

describe('an answer', () => {
  const body = {
    columns: [
      CLOSE,
      { name: 'trades', dataset: EXCHANGES[1], field: 'price', aggregate: 'count' },
      { name: 'maker', dataset: EXCHANGES[2], field: 'is_buyer_maker' },
      { name: 'units', dataset: 'bitcoin_mempool_state', field: 'tx_count' },
    ],
    ...DAY_OF_TRADES,
  };

  test('names what is proved of each column, the rights of all datasets, and a digest that any representation has', async () => {
    const { json } = await ask(body);
    expect(Object.keys(json)).toEqual([
      ...['grid_seconds', 'as_of', 'fill', 'sources', 'columns', 'warnings', 'schema', 'rights_state'],
      ...['rights_provisional', 'rows', 'row_count', 'rows_sha256'],
    ]);
    expect(json.sources).toEqual([...EXCHANGES, 'bitcoin_mempool_state']);
    expect(json.columns[0]).toEqual({
      ...CLOSE,
      aggregate: 'last',
      unit: 'quote',
      proved_from_utc: '2024-03-01T00:00:00.000Z',
      proved_through_utc: '2024-03-05T00:00:00.000Z',
      warnings: [],
    });
    // A count once had the unit of its field.
    expect(json.columns.map(({ unit }: { unit: string | null }) => unit)).toEqual(['quote', null, null, null]);
    expect(json.schema.map(({ dtype }: { dtype: string }) => dtype)).toEqual(
      ['timestamp_utc', 'float64', 'int64', 'int64', 'int64'].with(3, 'bool01'),
    );
    // As the documentation says how: length and value of each cell, big-endian.
    const digest = createHash('sha256');
    for (const row of json.rows) {
      for (const { name, dtype } of json.schema) digest.update(cellBytes(row[name], dtype));
    }
    expect(json.rows_sha256).toBe(digest.digest('hex'));
    for (const Accept of ['text/csv', 'application/x-ndjson', 'application/vnd.apache.arrow.stream']) {
      const answer = await served.serving.send({ path: '/v1/frame', body: JSON.stringify(body), headers: { Accept } });
      expect([answer.status, answer.headers['x-svc-rows-sha256']], Accept).toEqual([200, json.rows_sha256]);
      if (Accept === 'text/csv') expect(answer.text.split('\n')[0].trim()).toBe('datetime,close,trades,maker,units');
    }
  });

  test('stays the same for a past window, and its digest says so', async () => {
    const funds = {
      columns: [
        {
          name: 'x',
          dataset: 'macro_series_metrics',
          field: 'metric_value_float',
          filter: { field: 'source_id', op: 'eq', value: 'macro_dgs10' },
        },
      ],
      grid: '1d',
      time_range: ['1970-01-10T00:00:00Z', '1970-02-20T00:00:00Z'],
      as_of: 'row',
    };
    const before = (await ask(funds)).json;
    expect(before.row_count).toBeGreaterThan(10);
    const history = WORLDS.find(({ dataset }) => dataset.key === 'macro_series_metrics')!;
    const of = history.rows.find(
      ({ ms, partition }) => partition.sourceId === 'macro_dgs10' && ms > Date.parse('1970-01-15'),
    )!;
    await loadWorld(served.env.databaseUrl, planted(history, of, Date.parse('1970-02-20T00:00:01Z')));
    expect((await ask(funds)).json.rows_sha256).toBe(before.rows_sha256);
    await loadWorld(served.env.databaseUrl, planted(history, of, Date.parse('1970-02-01T00:00:00Z')));
    expect((await ask(funds)).json.rows_sha256).not.toBe(before.rows_sha256);
    await loadWorld(served.env.databaseUrl, history);
  });

  test('has a warning for each column that lacks proved time, and strict refuses it', async () => {
    const long = { ...body, columns: [CLOSE], time_range: ['2024-03-01T00:00:00Z', '2024-03-05T00:00:00Z'] };
    const { json } = await ask(long);
    expect(json.warnings).toMatchObject([{ code: 'WINDOW_EXCEEDS_PROVED_COVERAGE', details: { columns: ['close'] } }]);
    expect(json.warnings[0].message).toMatch(/^close: The window holds time that is not proved/);
    expect(json.columns[0].warnings).toEqual(['WINDOW_EXCEEDS_PROVED_COVERAGE']);
    const strict = await ask({ ...long, strict: true });
    expect([strict.status, strict.json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
    expect((await ask({ ...body, columns: [CLOSE], strict: true })).status).toBe(200);
  });

  test('has the last buckets up to the end of the trades', async () => {
    const { json } = await ask({ columns: [CLOSE, body.columns[3]], grid: '6h', n_rows: 3 });
    expect(json.rows.map(({ datetime }: { datetime: string }) => datetime)).toEqual([
      '2024-03-04T06:00:00.000Z',
      '2024-03-04T12:00:00.000Z',
      '2024-03-04T18:00:00.000Z',
    ]);
    expect(json.warnings[0].code).toBe('WINDOW_LATEST_ROWS_MUTABLE');
  });

  // The end of its last bucket was taken for today.
  test('of the last buckets has the warnings of age that a query of the last rows has', async () => {
    const source = { field: 'source_id', op: 'eq', value: 'macro_dgs10' };
    for (const [dataset, field, filter, code] of [
      ['exchange_a_spot_trades', 'close_price', undefined, 'ALIGNED_FRESHNESS_STALE'],
      ['macro_series_metrics', 'metric_value_float', source, 'MACRO_SOURCE_PUBLISH_STALE'],
    ] as const) {
      const columns = [{ name: 'value', dataset, field, filter }];
      const codes = async (window: object) => (await ask({ columns, grid: '1d', ...window })).json.columns[0].warnings;
      expect(await codes({ n_rows: 1 })).toContain(code);
      // As of a time, that is today; and a window that ends in the past is complete.
      const world = dataset === CLOSE.dataset ? '2024-03-05' : '1970-03-13';
      expect(await codes({ n_rows: 1, as_of: `${world}T00:00:00Z` })).not.toContain(code);
      expect(await codes({ time_range: [`${world.slice(0, 7)}-01T00:00:00Z`, `${world}T00:00:00Z`] })).not.toContain(
        code,
      );
    }
  });

  test('of the last buckets had a warning of a gap that lies before them', async () => {
    const columns = [
      CLOSE,
      { name: 'supply', dataset: 'bitcoin_circulating_supply', field: 'circulating_supply_sats' },
    ];
    const gapsOf = async (of: (typeof columns)[number], n: number) => {
      const { json } = await ask({ columns: [of], grid: '1h', n_rows: n });
      const found = json.warnings.filter(({ code }: { code: string }) => code === 'WINDOW_EXCEEDS_PROVED_COVERAGE');
      expect(json.columns[0].warnings).toEqual(found.map(({ code }: { code: string }) => code));
      return found.flatMap(({ details }: { details: { gaps: { end: string }[] } }) =>
        details.gaps.map(({ end }) => end),
      );
    };
    // Of the day before; and of heights, the last of which ends in the last bucket.
    expect(await gapsOf(columns[0], 24)).toEqual([]);
    expect(await gapsOf(columns[0], 25)).toEqual(['2024-03-04T00:00:00.000Z']);
    const all = await gapsOf(columns[1], 1000);
    expect(all.length).toBeGreaterThan(1);
    expect(await gapsOf(columns[1], 1)).toEqual(all.slice(-1));
  });

  describe('says of states that are older than twice their cadence how many buckets show them', () => {
    const DAY_MS = 86_400_000;
    const MINUTES_10 = 600_000;
    const dgs10 = { field: 'source_id', op: 'eq', value: 'macro_dgs10' };
    const fedfunds = { ...dgs10, value: 'macro_fedfunds' };
    const blocks = { name: 'own_time', dataset: 'bitcoin_circulating_supply', field: 'block_timestamp' };
    const macro = { name: 'own_time', dataset: 'macro_series_metrics', field: 'observed_at_utc' };
    type Row = { datetime: string; own_time: string | number | null };

    /** A frame of whole buckets below the end of what is proved, its warning, and the ages of its states. */
    async function aged(column: object, grid: string, gridMs: number) {
      const { json: probe } = await ask({ columns: [column], grid: '1d', n_rows: 1 });
      const [from, to] = ['proved_from_utc', 'proved_through_utc'].map((name) => Date.parse(probe.columns[0][name]));
      const range = [Math.max(from, to - 400 * gridMs), to].map((ms) => Math.floor(ms / gridMs) * gridMs);
      const time_range = range.map((ms) => new Date(ms).toISOString());
      const { status, json } = await ask({ columns: [column], grid, time_range });
      expect(status, JSON.stringify(json)).toBe(200);
      const shown = (json.rows as Row[]).flatMap(({ datetime, own_time }) =>
        own_time === null ? [] : [{ endMs: Date.parse(datetime) + gridMs, ownMs: new Date(own_time).getTime() }],
      );
      const ages = shown.map(({ endMs, ownMs }) => endMs - ownMs);
      const stale = json.warnings.find(({ code }: { code: string }) => code === 'STATE_STALE');
      expect(json.columns[0].warnings.includes('STATE_STALE')).toBe(stale !== undefined);
      return { shown, ages, stale, time_range };
    }

    test.each([
      ['1m', 60_000, 0],
      ['5m', 300_000, 0],
      ['10m', MINUTES_10, 0],
      // Judged by the start of a bucket that is longer than the cadence.
      ['1h', 3_600_000, 3_600_000],
    ])('blocks, %s', async (grid, gridMs, more) => {
      const { ages, stale } = await aged(blocks, grid, gridMs);
      const old = ages.filter((age) => age > 2 * MINUTES_10 + more);
      expect(stale?.details.buckets ?? 0).toBe(old.length);
      if (old.length > 0) {
        expect(stale.details.oldest_age_seconds).toBe(Math.floor(Math.max(...old) / 1000));
        expect(stale.message).toMatch(/^own_time: \d+ buckets? holds?/);
        expect(stale.details).toMatchObject({ cadence: '600 s', columns: ['own_time'] });
      }
    });

    test('a column that says how old a state may be has none', async () => {
      const found = await aged(blocks, '1m', 60_000);
      expect(found.stale?.details.buckets).toBeGreaterThan(0);
      expect((await aged({ ...blocks, max_age: '30d' }, '1m', 60_000)).stale).toBeUndefined();
      const strict = { columns: [blocks], grid: '1m', time_range: found.time_range, strict: true };
      expect((await ask(strict)).status).toBe(409);
    });

    test('a daily series counts market days, a monthly one days', async () => {
      const daily = await aged({ ...macro, filter: dgs10 }, '1d', DAY_MS);
      // A value is published a day late, which the next one may be, too.
      const old = daily.shown.filter(({ ownMs, endMs }) => marketDaysSince(dayKey(ownMs), dayKey(endMs - 1)) > 3);
      expect(old.length).toBeGreaterThan(0);
      expect(daily.stale.details).toMatchObject({ buckets: old.length, cadence: 'market day' });
      const monthly = await aged({ ...macro, filter: fedfunds }, '1d', DAY_MS);
      expect(Math.max(...monthly.ages)).toBeGreaterThan(30 * DAY_MS);
      expect(monthly.stale).toBeUndefined();
    });
  });
});

function cellBytes(value: string | number | null, dtype: string): Buffer {
  const size = value === null ? 0 : dtype === 'bool01' ? 1 : 8;
  const bytes = Buffer.alloc(4 + size);
  bytes.writeInt32BE(value === null ? -1 : size);
  if (value === null) return bytes;
  if (dtype === 'bool01') bytes.writeUInt8(Number(value), 4);
  else if (dtype === 'float64') bytes.writeDoubleBE(Number(value), 4);
  else bytes.writeBigInt64BE(BigInt(dtype === 'timestamp_utc' ? Date.parse(String(value)) : Number(value)), 4);
  return bytes;
}

test('a filter by an integer above 2^53 is one like any other, however often it comes', async () => {
  const filtered = (value: string) =>
    served.serving.send({
      path: '/v1/frame',
      body: JSON.stringify({
        columns: [{ ...CLOSE, filter: { field: 'trade_id', op: 'lt', value: '#' } }],
        ...DAY_OF_TRADES,
      }).replace('"#"', value),
    });
  const expected = (await filtered('9007199254740991')).json.rows;
  expect(expected.length).toBeGreaterThan(0);
  // More than the service's connections: one that is lost to each would be missed.
  for (let time = 0; time < 40; time++) {
    const { status, json } = await filtered('9007199254740993');
    expect([status, json.rows]).toEqual([200, expected]);
  }
});

test('the widest frame has headers that a client accepts', async () => {
  const wide = (columns: number, nameBytes: number) => ({
    ...DAY_OF_TRADES,
    time_range: ['2020-01-01T00:00:00Z', DAY_OF_TRADES.time_range[1]],
    grid: '31d',
    columns: Array.from({ length: columns }, (_, at) => ({ ...CLOSE, name: `c${at}_`.padEnd(nameBytes, 'x') })),
  });
  const headersOf = async (body: object) => {
    const { status, headers } = await served.serving.send({
      path: '/v1/frame',
      body: JSON.stringify(body),
      headers: { Accept: 'text/csv' },
    });
    expect(status).toBe(200);
    return [JSON.parse(String(headers['x-svc-columns'])), JSON.parse(String(headers['x-svc-schema']))];
  };
  const [few] = await headersOf(wide(2, 8));
  expect(few[1]).toMatchObject({ dataset: CLOSE.dataset, field: CLOSE.field, warnings: [expect.any(String)] });
  const [some] = await headersOf(wide(15, 8));
  const { dataset, field, aggregate, unit, ...rest } = few[1];
  expect(some[1]).toEqual(rest);
  const [none, schema] = await headersOf(wide(64, 64));
  expect(none).toEqual({ omitted: true });
  expect(schema).toHaveLength(65);
});

describe('a body', () => {
  const UNITS = { name: 'u', dataset: 'etf_daily_metrics', field: 'metric_value_float' };
  const of = (column: object) => ({ columns: [{ ...CLOSE, ...column }], ...DAY_OF_TRADES });
  test.each<[string, object, string, RegExp]>([
    ['without a window', { columns: [CLOSE], grid: '1m' }, '', /must have one of time_range, n_rows/],
    ['with two windows', { ...of({}), n_rows: 3 }, '/time_range', /cannot be given together with n_rows/],
    ['without columns', { ...DAY_OF_TRADES, columns: [] }, '/columns', /at least one column/],
    ['with a name twice', { ...of({}), columns: [CLOSE, CLOSE] }, '/columns/1/name', /repeats \/columns\/0\/name/],
    ['with the name of the time', of({ name: 'datetime' }), '/columns/0/name', /rows have already/],
    ['with a misspelled field', of({ field: 'prise' }), '/columns/0/field', /did you mean price\?/],
    [
      'with a text',
      of({ dataset: 'bitcoin_block_headers', field: 'block_hash' }),
      '/columns/0/field',
      /number, flag or time/,
    ],
    [
      'with an aggregate of a state',
      of({ dataset: 'bitcoin_block_headers', field: 'height', aggregate: 'sum' }),
      '/columns/0/aggregate',
      /only for trades/,
    ],
    [
      'with a mean of quantities',
      of({ field: 'quantity', aggregate: 'vwap' }),
      '/columns/0/aggregate',
      /only for the field price/,
    ],
    ['with a sum of ids', of({ field: 'trade_id', aggregate: 'sum' }), '/columns/0/aggregate', /means nothing/],
    ['with another as_of', { ...of({}), as_of: 'rows' }, '/as_of', /must be "row"/],
    ['with a fill of zeros', { ...of({}), fill: 'zero' }, '/fill', /null or "previous"/],
    [
      'of several series',
      { ...DAY_OF_TRADES, columns: [{ ...UNITS, filter: { field: 'metric_name', op: 'eq', value: 'btc_units' } }] },
      '/columns/0/filter',
      /must name one series of etf_daily_metrics, and admits 3/,
    ],
    [
      'of more series than a sentence names',
      { ...DAY_OF_TRADES, columns: [UNITS] },
      '/columns/0/filter',
      /admits 9: (?:source_id [^;]+; ){5}and 4 more$/,
    ],
    [
      'of a series that is none',
      { ...DAY_OF_TRADES, columns: [{ ...UNITS, filter: [{ field: 'metric_name', op: 'eq', value: 'btc_unit' }] }] },
      '/columns/0/filter',
      /did you mean btc_units\?/,
    ],
  ])('%s is refused with what to do', async (_, body, pointer, message) => {
    const { status, json } = await ask(body);
    expect([status, json.code]).toEqual([409, 'QUERY_CONTRACT_ERROR']);
    expect(json.errors.map((one: { pointer: string }) => one.pointer)).toContain(pointer);
    expect(json.errors.map((one: { message: string }) => one.message).join('\n')).toMatch(message);
    // That of a column without one series had a form of its own, and named a field that takes no filter.
    expect(json.detail.startsWith(json.errors[0].pointer)).toBe(true);
    expect(json.detail).not.toContain('dimensions_json');
  });
});
