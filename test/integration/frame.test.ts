/** Frames against a naive model of what was loaded, and the faults of their bodies. */
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Json } from '../support/command.ts';
import { type ColumnBody, DAY, type FrameBody, frameOf } from '../support/frame-oracle.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { runs, SEED } from '../support/seed.ts';
import { type Serving, startServing } from '../support/serving.ts';
import type { TestEnv } from '../support/stack.ts';
import { knownMs, SECOND, type World, type WorldPartition, type WorldRow } from '../support/worlds.ts';
import { createWorldsEnv, TRADE_DAYS, WORLDS } from '../support/worlds-env.ts';

let env: TestEnv;
let serving: Serving;
beforeAll(async () => {
  env = await createWorldsEnv();
  serving = await startServing({ databaseUrl: env.databaseUrl });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const iso = (ms: number) => new Date(ms).toISOString();
const ask = (body: object) => serving.send({ path: '/v1/frame', body: JSON.stringify(body) });

/** Values that were compared; nulls do not count. */
let values = 0;

async function check(body: FrameBody): Promise<void> {
  const expected = frameOf(body);
  const answer = await ask(body);
  if (expected === undefined) {
    expect([answer.status, answer.json.code], answer.text.slice(0, 500)).toEqual([404, 'QUERY_NO_DATA']);
    return;
  }
  expect(answer.status, answer.text.slice(0, 500)).toBe(200);
  expect(answer.json.rows).toEqual(expected);
  expect(answer.json.row_count).toBe(expected.length);
  for (const row of expected) {
    for (const { name } of body.columns) if (row[name] !== null) values++;
  }
}

// ---- arbitrary frames ----------------------------------------------------------------------------------------------

const EXCHANGES = ['exchange_a_spot_trades', 'exchange_b_spot_trades', 'exchange_c_spot_trades'];
const maxAge = fc.option(fc.constantFrom(30, 600, 7200, 86_400, 400 * 86_400), { nil: undefined });

const tradeColumn: fc.Arbitrary<ColumnBody> = fc
  .tuple(
    fc.constantFrom(...EXCHANGES),
    fc.constantFrom(
      ...['first', 'last', 'min', 'max', 'sum', 'count', 'vwap', undefined].map(
        (aggregate) => ['price', aggregate] as const,
      ),
      ...['first', 'last', 'min', 'max', 'sum', undefined].map((aggregate) => ['quantity', aggregate] as const),
      ...['first', 'max'].map((aggregate) => ['trade_id', aggregate] as const),
    ),
    fc.option(fc.constantFrom(...TRADE_DAYS[0].trades.slice(0, 9).map(({ price }) => price)), { nil: undefined }),
    maxAge,
  )
  .map(([dataset, [field, aggregate], price, max_age]) => ({
    name: '',
    dataset,
    field,
    ...(aggregate !== undefined && { aggregate }),
    ...(price !== undefined && { filter: [{ field: 'price', op: 'gte' as const, value: price }] }),
    ...(max_age !== undefined && { max_age }),
  }));

const world = (key: string) => WORLDS.find(({ dataset }) => dataset.key === key)!;
const pickOf = <T>(list: readonly T[]) => fc.constantFrom(...list);

const metricColumn = (key: string): fc.Arbitrary<ColumnBody> => {
  const series = [
    ...new Set(
      world(key)
        .rows.filter(({ partition }) => partition.state === 'proved')
        .map(({ cells }) => `${cells.source_id}|${cells.metric_name}`),
    ),
  ];
  return fc.tuple(pickOf(series), maxAge, fc.boolean()).map(([one, max_age, byName]) => {
    const [source, name] = one.split('|');
    // The name of a metric is that of one series, unless it is of a fund.
    const isUnique = series.filter((other) => other.endsWith(`|${name}`)).length === 1;
    return {
      name: '',
      dataset: key,
      field: 'metric_value_float',
      filter: [
        ...(byName && isUnique ? [] : [{ field: 'source_id', op: 'eq' as const, value: source }]),
        { field: 'metric_name', op: 'eq' as const, value: name },
      ],
      ...(max_age !== undefined && { max_age }),
    };
  });
};

const BLOCK_FIELDS: readonly (readonly [key: string, field: string])[] = [
  ['bitcoin_block_headers', 'difficulty'],
  ['bitcoin_block_headers', 'height'],
  ['bitcoin_block_transactions', 'tx_count'],
  ['bitcoin_block_fee_totals', 'fee_total_btc'],
  ['bitcoin_network_hashrate_estimate', 'hashrate_hs'],
  ['bitcoin_circulating_supply', 'circulating_supply_sats'],
];
const blockColumn: fc.Arbitrary<ColumnBody> = fc
  .tuple(pickOf(BLOCK_FIELDS), maxAge, fc.option(fc.integer({ min: 0, max: 90 }), { nil: undefined }))
  .map(([[dataset, field], max_age, height]) => ({
    name: '',
    dataset,
    field,
    ...(max_age !== undefined && { max_age }),
    ...(height !== undefined &&
      dataset === 'bitcoin_block_headers' && { filter: [{ field: 'height', op: 'gte' as const, value: height }] }),
  }));
const mempoolColumn: fc.Arbitrary<ColumnBody> = maxAge.map((max_age) => ({
  name: '',
  dataset: 'bitcoin_mempool_state',
  field: 'tx_count',
  ...(max_age !== undefined && { max_age }),
}));

/** The times about which the worlds have something to say. */
const timesOf = (key: string): number[] => {
  if (EXCHANGES.includes(key)) {
    return TRADE_DAYS.flatMap(({ day, trades }) => [
      Date.parse(`${day}T00:00:00Z`),
      ...trades.slice(0, 20).map(({ timestamp }) => timestamp),
    ]);
  }
  const { rows, partitions } = world(key);
  return [
    ...rows.map(({ ms }) => ms),
    ...partitions.map(({ span }) => (span[0] > 1e9 ? span[0] : rows[0].ms)),
    ...partitions.filter(({ capturedMs }) => capturedMs !== undefined).map(knownMs),
  ];
};

const SHIFTS = [0, 0, 1, -1, SECOND, -3600 * SECOND, 26 * 3600 * SECOND, 3 * DAY];

function bodyOf(
  columns: readonly ColumnBody[],
  [start, length, known]: readonly number[],
  grid: number,
  asOf: number,
  fill: boolean,
): FrameBody {
  return {
    columns: columns.map((column, index) => ({ ...column, name: `c${index}` })),
    grid,
    time_range: [iso(start), iso(start + length)],
    ...(asOf === 1 && { as_of: 'row' }),
    ...(asOf === 2 && { as_of: iso(known) }),
    ...(asOf === 3 && { as_of: iso(start + (known % length)) }),
    ...(fill && { fill: 'previous' as const }),
  };
}

const GRIDS = [1, 7, 60, 420, 900, 3600, 14_400, 86_400, 7 * 86_400, 31 * 86_400];

/** Frames of these columns, with windows about the rows of `key`; a small grid has a short window. */
const framesOf = (column: fc.Arbitrary<ColumnBody>, key: string): fc.Arbitrary<FrameBody> => {
  const time = fc.tuple(pickOf(timesOf(key)), pickOf(SHIFTS)).map(([ms, shift]) => Math.floor(ms + shift));
  return fc
    .tuple(
      fc.array(column, { minLength: 1, maxLength: 4 }),
      time,
      fc.integer({ min: 1, max: 400 }),
      time,
      pickOf(GRIDS),
      fc.integer({ min: 0, max: 3 }),
      fc.boolean(),
    )
    .chain(([columns, start, buckets, known, grid, asOf, fill]) =>
      fc
        .integer({ min: 1, max: grid * SECOND })
        .map((rest) => bodyOf(columns, [start, buckets * grid * SECOND - rest + 1, known], grid, asOf, fill)),
    );
};

describe('any columns, grid, window and time of knowledge', () => {
  const anyColumn = fc.oneof(
    tradeColumn,
    metricColumn('etf_daily_metrics'),
    metricColumn('macro_series_metrics'),
    blockColumn,
    mempoolColumn,
  );
  test.each([
    ['trades', tradeColumn, EXCHANGES[0]],
    ['funds', metricColumn('etf_daily_metrics'), 'etf_daily_metrics'],
    ['series', metricColumn('macro_series_metrics'), 'macro_series_metrics'],
    ['blocks', blockColumn, 'bitcoin_block_headers'],
    ['snapshots', mempoolColumn, 'bitcoin_mempool_state'],
    ['all of them', anyColumn, EXCHANGES[1]],
  ] as const)('of %s', async (_, column, key) => {
    values = 0;
    await fc.assert(fc.asyncProperty(framesOf(column, key), check), { numRuns: runs(400), seed: SEED });
    expect(values).toBeGreaterThan(100);
  });
});

test.each([undefined, 'row', '1970-09-30T12:00:00Z'])(
  'a column by metric_name alone had the proved time of another series, as of %s',
  async (as_of) => {
    const of = (...filter: object[]) => ({
      columns: [{ name: 'x', dataset: 'macro_series_metrics', field: 'metric_value_float', filter }],
      grid: '1d',
      time_range: ['1969-06-01T00:00:00Z', '1971-06-01T00:00:00Z'],
      as_of,
    });
    const facts: Json[] = [];
    for (const [source, name] of [
      ['macro_dgs10', 'treasury_yield_10y'],
      ['macro_fedfunds', 'effective_federal_funds_rate'],
      ['macro_unrate', 'unemployment_rate'],
    ]) {
      const byName = { field: 'metric_name', op: 'eq', value: name };
      const [named, both] = [of(byName), of({ field: 'source_id', op: 'eq', value: source }, byName)];
      const { json } = await ask(named);
      expect(json).toEqual((await ask(both)).json);
      expect(json.rows.some(({ x }: Json) => x !== null)).toBe(true);
      const { runs: proved } = world('macro_series_metrics');
      const { throughMs } = proved.find(({ sourceId }) => sourceId === source)!;
      const known = as_of === undefined || as_of === 'row' ? throughMs : Math.min(throughMs, Date.parse(as_of));
      expect(json.columns[0].proved_through_utc).toBe(iso(known));
      await check({ ...named, grid: 86_400 } as unknown as FrameBody);
      facts.push(json.columns[0]);
    }
    expect(new Set(facts.map((one) => one.proved_from_utc)).size).toBe(3);
  },
);

test.each(EXCHANGES)('fields of one-second rows say the same as those of trades: %s', async (dataset) => {
  const pairs = [
    ['open_price', 'price', 'first'],
    ['close_price', 'price', 'last'],
    ['high_price', 'price', 'max'],
    ['low_price', 'price', 'min'],
  ];
  const columns = [
    ...pairs.flatMap(([second, trade, aggregate]) => [
      { name: second, dataset, field: second, aggregate },
      { name: `of_${second}`, dataset, field: trade, aggregate },
    ]),
    { name: 'trade_count', dataset, field: 'trade_count', aggregate: 'sum' },
    { name: 'of_trade_count', dataset, field: 'price', aggregate: 'count' },
  ];
  for (const grid of [1, 60, 900, 86_400]) {
    const time_range = ['2024-03-01T00:00:00Z', '2024-03-02T12:00:00Z'];
    const { rows } = (await ask({ columns, grid, time_range, fill: 'previous' })).json;
    expect(rows.some((row: Json) => row.trade_count !== null)).toBe(true);
    for (const row of rows) {
      for (const name of [...pairs.map(([second]) => second), 'trade_count']) expect(row[name]).toBe(row[`of_${name}`]);
    }
  }
});

test('metric_value_float of a dataset with one value a block is that value', async () => {
  const dataset = 'bitcoin_circulating_supply';
  const columns = ['metric_value_float', 'circulating_supply_btc'].map((field) => ({ name: field, dataset, field }));
  const { rows } = (await ask({ columns, grid: '1h', time_range: ['2020-06-01T00:00:00Z', '2020-06-02T00:00:00Z'] }))
    .json;
  expect(rows.some((row: Json) => row.metric_value_float !== null)).toBe(true);
  for (const row of rows) expect(row.metric_value_float).toBe(row.circulating_supply_btc);
});

// ---- no look-ahead -------------------------------------------------------------------------------------------------

const PLANTED = 987_654.25;

/** The world with a value that becomes known at `knownAtMs`, about an earlier time. */
function planted(world: World, of: WorldRow, knownAtMs: number): World {
  const { kind } = world.dataset.partition;
  const isVintage = kind === 'vintage';
  const vintageMs = knownAtMs - DAY - 6 * 3_600_000;
  const own = isVintage
    ? { key: `${of.partition.sourceId}:planted`, span: [vintageMs, vintageMs + DAY] as const, lastUpdatedMs: 0 }
    : { key: `${of.partition.key}:2`, span: of.partition.span, capturedMs: knownAtMs };
  const partition: WorldPartition = { ...of.partition, ...own, state: 'proved', ingestedMs: knownAtMs + 5000 };
  const values = { value_kind: 'float', value_text: String(PLANTED), partition_key: own.key };
  // A vintage of the same day would be the same text.
  const vintage = isVintage && { vintage: `${iso(vintageMs).slice(0, 10)}~` };
  const row = { ...of, partition, cells: { ...of.cells, ...values, ...vintage, metric_id: 'f'.repeat(64) } };
  return { ...world, partitions: [...world.partitions, partition], rows: [...world.rows, row] };
}

/** The world whose block is another one, which arrived at `knownAtMs`. */
function replaced(world: World, of: WorldRow, knownAtMs: number): World {
  const partition = { ...of.partition, capturedMs: knownAtMs, ingestedMs: knownAtMs };
  const swap = (row: WorldRow) =>
    row.partition !== of.partition
      ? row
      : { ...row, partition, cells: row === of ? { ...row.cells, hashrate_hs: PLANTED } : row.cells };
  return {
    ...world,
    partitions: world.partitions.map((one) => (one === of.partition ? partition : one)),
    rows: world.rows.map(swap),
  };
}

describe('a value that is known later is in no earlier row', () => {
  const KEYS = ['etf_daily_metrics', 'macro_series_metrics', 'bitcoin_network_hashrate_estimate'];
  test.each(KEYS)('of %s', async (key) => {
    let seen = 0;
    const history = world(key);
    const isMetric = history.dataset.aligned.seriesKey.length > 0;
    const proved = history.rows.filter(({ partition }) => partition.state === 'proved');
    const delays = fc.integer({ min: 1, max: isMetric ? 60 * 86_400 : 5000 }).map((seconds) => seconds * SECOND);
    const cases = fc.tuple(
      fc.constantFrom(...proved),
      delays,
      fc.constantFrom(...(isMetric ? [600, 3600, 86_400, 3 * 86_400] : [60, 300, 600])),
    );
    await fc.assert(
      fc.asyncProperty(cases, async ([of, delay, grid]) => {
        const knownAtMs = of.ms + delay;
        const filter = [
          { field: 'source_id', op: 'eq' as const, value: String(of.cells.source_id) },
          { field: 'metric_name', op: 'eq' as const, value: String(of.cells.metric_name) },
        ];
        const body = {
          columns: [
            {
              name: 'x',
              dataset: key,
              field: isMetric ? 'metric_value_float' : 'hashrate_hs',
              ...(isMetric && { filter }),
            },
          ],
          grid,
          time_range: [iso(Math.max(of.ms, knownAtMs - 200 * grid * SECOND)), iso(knownAtMs + 100 * grid * SECOND)],
          as_of: 'row',
        };
        await loadWorld(env.databaseUrl, isMetric ? planted(history, of, knownAtMs) : replaced(history, of, knownAtMs));
        const { rows = [] } = (await ask(body)).json;
        for (const { known_at_utc, x } of rows) {
          if (x !== PLANTED) continue;
          seen++;
          expect(Date.parse(known_at_utc)).toBeGreaterThanOrEqual(knownAtMs);
        }
      }),
      { numRuns: runs(160), seed: SEED },
    );
    await loadWorld(env.databaseUrl, history);
    // It is there once it is known.
    expect(seen).toBeGreaterThan(10);
  });
});

// ---- answers -------------------------------------------------------------------------------------------------------

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
      const answer = await serving.send({ path: '/v1/frame', body: JSON.stringify(body), headers: { Accept } });
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
    const history = world('macro_series_metrics');
    const of = history.rows.find(
      ({ ms, partition }) => partition.sourceId === 'macro_dgs10' && ms > Date.parse('1970-01-15'),
    )!;
    await loadWorld(env.databaseUrl, planted(history, of, Date.parse('1970-02-20T00:00:01Z')));
    expect((await ask(funds)).json.rows_sha256).toBe(before.rows_sha256);
    await loadWorld(env.databaseUrl, planted(history, of, Date.parse('1970-02-01T00:00:00Z')));
    expect((await ask(funds)).json.rows_sha256).not.toBe(before.rows_sha256);
    await loadWorld(env.databaseUrl, history);
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
    serving.send({
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
    const { status, headers } = await serving.send({
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
    ['with a misspelled key', of({ agregate: 'last' }), '/columns/0/agregate', /did you mean aggregate\?/],
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
    ['with a grid of 32 days', { ...of({}), grid: '32d' }, '/grid', /1 to 2678400/],
    [
      'with 30 February',
      { ...of({}), time_range: ['2024-02-30T00:00:00Z', '2024-03-02T00:00:00Z'] },
      '/time_range/0',
      /ISO-8601/,
    ],
    ['with another as_of', { ...of({}), as_of: 'rows' }, '/as_of', /must be "row"/],
    ['with a fill of zeros', { ...of({}), fill: 'zero' }, '/fill', /null or "previous"/],
    [
      'with a filter on an unknown field',
      of({ filter: { field: 'pryce', op: 'gt', value: 1 } }),
      '/columns/0/filter/field',
      /did you mean price\?/,
    ],
    [
      'with a filter of a text',
      of({ filter: [{ field: 'price', op: 'gt', value: '1' }] }),
      '/columns/0/filter/0/value',
      /number/,
    ],
    [
      'of several series',
      { ...DAY_OF_TRADES, columns: [{ ...UNITS, filter: { field: 'metric_name', op: 'eq', value: 'btc_units' } }] },
      '/columns/0/filter',
      /must name one series of etf_daily_metrics, and admits 3/,
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
  });
});
