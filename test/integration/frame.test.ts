/** The values of frames against a naive model of what was loaded (support/frame-oracle.ts); their answers: frame-answers.test.ts. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Json } from '../support/command.ts';
import { type ColumnBody, DAY, type FrameBody, frameOf, PLANTED, planted, replaced } from '../support/frame-oracle.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { runs, SEED } from '../support/seed.ts';
import { servedEnv } from '../support/served-env.ts';
import { knownMs, SECOND } from '../support/worlds.ts';
import { createWorldsEnv, loadOthers, OTHERS, TRADE_DAYS, WORLDS } from '../support/worlds-env.ts';

async function createEnv() {
  const env = await createWorldsEnv();
  await loadOthers(env.databaseUrl);
  return env;
}
// A fixed clock: the ages in the warnings of two equal answers differ where a second ends between them.
const served = servedEnv(createEnv, { now: () => Date.parse('2026-01-01T00:00:00Z') });

const iso = (ms: number) => new Date(ms).toISOString();
const ask = (body: object) => served.serving.send({ path: '/v1/frame', body: JSON.stringify(body) });

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
    fc.constantFrom(...EXCHANGES.flatMap((key) => [[key, undefined] as const, [key, OTHERS[key]] as const])),
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
  .map(([[dataset, instrument], [field, aggregate], price, max_age]) => ({
    name: '',
    dataset,
    ...(instrument !== undefined && { instrument }),
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

test('fields of aligned rows say the same as those of trades', async () => {
  const [dataset] = EXCHANGES;
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
        await loadWorld(
          served.env.databaseUrl,
          isMetric ? planted(history, of, knownAtMs) : replaced(history, of, knownAtMs),
        );
        const { rows = [] } = (await ask(body)).json;
        for (const { known_at_utc, x } of rows) {
          if (x !== PLANTED) continue;
          seen++;
          expect(Date.parse(known_at_utc)).toBeGreaterThanOrEqual(knownAtMs);
        }
      }),
      { numRuns: runs(160), seed: SEED },
    );
    await loadWorld(served.env.databaseUrl, history);
    // It is there once it is known.
    expect(seen).toBeGreaterThan(10);
  });
});
