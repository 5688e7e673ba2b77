/** Several instruments of each exchange over HTTP: every way to ask, and the default as if there were no others. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, expectTypeOf, test } from 'vitest';
import { Changes, ContractError, Exports as ExportsClient, HistoricalData } from '../../client/index.ts';
import { writeDay as writeA } from '../../pipelines/sources/exchange_a/sample.ts';
import { writeDay as writeB } from '../../pipelines/sources/exchange_b/sample.ts';
import { writeDay as writeC } from '../../pipelines/sources/exchange_c/sample.ts';
import { addKey } from '../../shared/keys/store.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import type { Json } from '../support/command.ts';
import { type Exports, startExports } from '../support/exports.ts';
import { System } from '../support/pipeline.ts';
import { sequence } from '../support/proof-log.ts';
import { type Answer, API_KEY } from '../support/serving.ts';
import { natsSettings } from '../support/stack.ts';
import { duckdb } from '../support/trade-oracle.ts';

const FIRST = '2024-03-01';
const LAST = '2024-03-02';
const ROWS = 400;
/** Trade ids of all instruments are the same on purpose. */
const firstIdOf = (day: string) => (day === FIRST ? 1 : 1 + 10 * ROWS);
const RANGE = [`${FIRST}T00:00:00Z`, `${LAST}T12:00:00Z`];

const EXCHANGES = [
  { letter: 'a', byDefault: 'BTCUSDT', other: 'ETHUSDT', odd: '1000SATSUSDT' },
  { letter: 'b', byDefault: 'BTC-USDT', other: 'ETH-USDT', odd: 'BTC-USDC' },
  { letter: 'c', byDefault: 'BTCUSDT', other: 'ETHUSDT', odd: 'SHIB1000USDT' },
].map((one) => ({
  ...one,
  key: `exchange_${one.letter}_spot_trades`,
  dataset: datasetOf(`exchange_${one.letter}_spot_trades`),
}));
type Exchange = (typeof EXCHANGES)[number];
const [A] = EXCHANGES;
/** Configured, and never read. */
const UNREAD = 'SOLUSDT';
/** Was read once, and is configured no more. */
const GONE = A.odd;

const NO_LIMITS = { requestsPerMinute: null, concurrentReads: null, expiresAt: null };

let system: System;
let exports: Exports;
let before: ReadonlyMap<string, string>;

const write = ({ letter }: Exchange, symbol: string, day: string, seed: number) => {
  const common = { directory: system.vendor, day, rows: ROWS, seed };
  if (letter === 'a') return writeA({ ...common, symbol, firstId: firstIdOf(day), timeUnit: 'us' });
  return letter === 'b'
    ? writeB({ ...common, instrument: symbol, firstId: firstIdOf(day) })
    : writeC({ ...common, symbol });
};
const settingsOf = (): Record<string, string> => {
  const folder = pathToFileURL(`${system.vendor}/`).href;
  const also = EXCHANGES.map(({ letter, other, odd }) => [
    `SVC_EXCHANGE_${letter.toUpperCase()}_ALSO`,
    [other, odd].join(),
  ]);
  return {
    ...Object.fromEntries(EXCHANGES.map(({ letter }) => [`SVC_EXCHANGE_${letter.toUpperCase()}_BASE_URL`, folder])),
    ...Object.fromEntries(also),
  };
};

const post = (path: string, body: unknown, headers?: Record<string, string>, key?: string) =>
  exports.serving.send({ path, body: JSON.stringify(body), headers, ...(key !== undefined && { key }) });
const get = (path: string, key?: string) =>
  exports.serving.send({ method: 'GET', path, ...(key !== undefined && { key }) });
const query = (body: object, headers?: Record<string, string>) => post('/v1/raw/query', body, headers);

/** Every way to ask for the default, without a name. */
const asks = ({ key, dataset, letter }: Exchange): (() => Promise<Answer>)[] => {
  const path = `/v1/historical/${dataset.historicalPath}`;
  const klines = `/v1/historical/${dataset.trades!.klinesPath}`;
  return [
    () => query({ sources: [key] }),
    () => query({ sources: [key], mode: 'aligned_1s' }, { accept: 'text/csv' }),
    () => query({ sources: [key], n_random: 20, random_seed: 7 }),
    () => query({ sources: [key], n_rows: 5, filters: [{ field: 'price', op: 'gt', value: 1 }] }),
    () => query({ sources: [key], time_range: RANGE }, { accept: 'application/x-ndjson' }),
    () => post(path, { start_date: FIRST, end_date: LAST }),
    () => post(path, { n_latest_rows: 3, mode: 'aligned_1s' }),
    () => post(klines, { kline_size: '1m', start_date: FIRST, end_date: LAST }),
    () => post(klines, { kline_size: '1h', mode: 'aligned_1s' }),
    () => post('/v1/raw/estimate', { sources: [key], time_range: RANGE }),
    () =>
      post('/v1/frame', {
        columns: [
          { name: 'close', dataset: key, field: 'price' },
          { name: 'n', dataset: key, field: 'price', aggregate: 'count' },
        ],
        ...{ grid: '10m', time_range: RANGE },
      }),
    () => get(`/v1/coverage/${key}`),
    () => get(`/v1/lineage/${key}/${letter === 'c' ? 1 : firstIdOf(LAST)}?date=${LAST}`),
  ];
};
/** What does not change with the proof log's growth. */
const stable = ({ status, headers, text }: Answer) => {
  const { date, 'x-request-id': id, 'x-svc-checkpoint': checkpoint, ...others } = headers;
  expect([date, id]).not.toContain(undefined);
  const body = text.replace(/"(checkpoint|proof_log)":(null|"[^"]*"|\{[^{}]*(\{[^{}]*\})?[^{}]*\})/g, '"$1":0');
  return JSON.stringify([status, { ...others, 'content-length': '' }, body]);
};
const recorded = async () => {
  const found = new Map<string, string>();
  for (const exchange of EXCHANGES) {
    for (const [index, ask] of asks(exchange).entries()) found.set(`${exchange.key} ${index}`, stable(await ask()));
  }
  return found;
};

beforeAll(async () => {
  system = await System.create();
  for (const exchange of EXCHANGES) {
    for (const [index, symbol] of [exchange.byDefault, exchange.other, exchange.odd].entries()) {
      for (const day of index === 2 ? [LAST] : [FIRST, LAST])
        await write(exchange, symbol, day, index * 10 + Number(day.slice(-1)));
    }
  }
  const settings = settingsOf();
  const backfill = async (key: string, ...more: string[]) => {
    const { exit, stderr } = await system.run(['backfill', key, '--from', FIRST, '--to', LAST, ...more], settings);
    expect(exit, stderr).toBe(0);
  };
  for (const { key } of EXCHANGES) await backfill(key);
  exports = await startExports(system.env, {
    // Freshness counts seconds of the clock.
    now: () => Date.parse(`${LAST}T23:00:00Z`),
    settings: {
      ...{ ...natsSettings(system.env), SVC_EXCHANGE_A_ALSO: `${A.other}:${FIRST}..${LAST},${UNREAD}` },
      ...{ SVC_EXCHANGE_B_ALSO: settings.SVC_EXCHANGE_B_ALSO, SVC_EXCHANGE_C_ALSO: settings.SVC_EXCHANGE_C_ALSO },
    },
  });
  before = await recorded();
  for (const { key, other, odd } of EXCHANGES) {
    await backfill(key, '--instrument', other);
    await system.run(['backfill', key, '--from', LAST, '--to', LAST, '--instrument', odd], settings);
  }
}, 180_000);
afterAll(async () => {
  await exports?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

test('the default answers by the byte as it did before there were others, named or not', async () => {
  expect(before.size).toBe(39);
  expect([...before.values()].every((text) => text.startsWith('[200'))).toBe(true);
  const after = await recorded();
  for (const [name, text] of before) expect([name, after.get(name)]).toEqual([name, text]);
  const [named, plain] = [
    await query({ sources: [A.key], instrument: A.byDefault, n_rows: 5 }),
    await query({ sources: [A.key], n_rows: 5 }),
  ];
  expect(stable(named)).toBe(stable(plain));
});

describe.each(EXCHANGES)('$key', ({ key, other, odd, byDefault, dataset, letter }) => {
  const instrument = other;
  const path = `/v1/historical/${dataset.historicalPath}`;
  const klines = `/v1/historical/${dataset.trades!.klinesPath}`;
  const idOf = (day: string) => (letter === 'c' ? '1' : String(firstIdOf(day)));

  test('a query reads the instrument alone, and says so after the sources and in a header', async () => {
    const { status, json, headers } = await query({ sources: [key], instrument });
    expect([status, json.row_count, headers['x-svc-instrument']]).toEqual([200, 2 * ROWS, instrument]);
    expect(Object.keys(json).slice(1, 4)).toEqual(['source', 'sources', 'instrument']);
    expect(json.instrument).toBe(instrument);
    const plain = await query({ sources: [key] });
    expect(plain.json).not.toHaveProperty('instrument');
    const ids = new Set([...json.rows, ...plain.json.rows].map((row: Json) => row.event_id ?? JSON.stringify(row)));
    expect(ids.size).toBe(4 * ROWS);
    const aligned = await query({ sources: [key], instrument, mode: 'aligned_1s' }, { accept: 'text/csv' });
    expect([aligned.status, aligned.headers['x-svc-instrument']]).toEqual([200, instrument]);
    for (const window of [
      { n_rows: 7 },
      { n_random: 7, random_seed: 3 },
      { time_range: RANGE, filters: [{ field: 'price', op: 'gt', value: 0 }] },
    ]) {
      const some = await query({ sources: [key], instrument, ...window });
      const all = new Set(json.rows.map((row: Json) => JSON.stringify(row)));
      expect(some.json.rows.length).toBeGreaterThan(0);
      expect(some.json.rows.filter((row: Json) => !all.has(JSON.stringify(row)))).toEqual([]);
    }
  });

  test('historical rows and klines, natively and by seconds, count the trades of the instrument', async () => {
    const rows = await post(path, { instrument });
    expect([rows.status, rows.json.row_count, rows.json.instrument]).toEqual([200, 2 * ROWS, instrument]);
    const size = Object.keys(rows.json);
    expect(size.indexOf('instrument')).toBe(size.indexOf('sources') + 1);
    for (const kline_size of ['1m', '1h', '7s']) {
      const { json } = await post(klines, { instrument, kline_size });
      expect(json.rows.reduce((sum: number, row: Json) => sum + row.no_of_trades, 0)).toBe(2 * ROWS);
    }
    const aligned = await post(klines, { instrument: odd, kline_size: '1h', mode: 'aligned_1s' });
    expect([aligned.status, aligned.headers['x-svc-instrument']]).toEqual([200, odd]);
  });

  test('estimate, coverage and lineage are of the instrument', async () => {
    const estimate = await post('/v1/raw/estimate', { sources: [key], instrument: odd });
    expect([estimate.json.rows, estimate.json.instrument]).toEqual([ROWS, odd]);
    const coverage = await get(`/v1/coverage/${key}?instrument=${odd}`);
    expect([coverage.json.instrument, coverage.json.totals.proved]).toEqual([odd, { partitions: 1, rows: ROWS }]);
    expect(coverage.json.partitions[0].partition).toBe(`${odd}:${LAST}`);
    expect(coverage.headers['x-svc-instrument']).toBe(odd);
    const ids = new Set<string>();
    for (const asked of [`?date=${LAST}`, `?date=${LAST}&instrument=${instrument}`, `?partition=${odd}:${LAST}`]) {
      const { status, json } = await get(`/v1/lineage/${key}/${idOf(LAST)}${asked}`);
      expect([status, json.instrument]).toEqual([
        200,
        asked.includes('?date') && asked.includes('instrument') ? instrument : asked.includes(odd) ? odd : undefined,
      ]);
      ids.add(json.event_id);
    }
    expect(ids.size).toBe(3);
    const missing = await get(`/v1/lineage/${key}/${idOf(FIRST)}?date=${FIRST}&instrument=${odd}`);
    expect([missing.status, missing.json.code]).toEqual([404, 'LINEAGE_OFFSET_NOT_FOUND']);
  });

  test('an export has its name, its rows and its proof', async () => {
    const { json } = await exports.run({ dataset: key, instrument, format: 'csv', time_range: RANGE });
    expect([json.status, json.instrument, json.dataset]).toEqual(['succeeded', instrument, key]);
    expect(json.artifact.files[0].name).toContain(`${key}.${instrument}.native`);
    const { json: manifest } = await get(`/v1/raw/export/${json.export_id}/manifest`);
    expect([manifest.dataset, manifest.instrument]).toEqual([key, instrument]);
    expect(manifest.proof.listed.map(({ partition }: Json) => partition)).toEqual([
      `${instrument}:${FIRST}`,
      `${instrument}:${LAST}`,
    ]);
    const csv = (await exports.bytes(json.export_id)).toString();
    expect(csv).toBe((await query({ sources: [key], instrument, time_range: RANGE }, { accept: 'text/csv' })).text);
  });

  test('a frame has the default beside another, as DuckDB has them', async () => {
    const columns = [
      { name: 'mine', dataset: key, field: 'price' },
      { name: 'yours', dataset: key, instrument, field: 'price' },
      { name: 'highest', dataset: key, instrument, field: 'price', aggregate: 'max' },
      { name: 'trades', dataset: key, instrument: odd, field: 'price', aggregate: 'count' },
      { name: 'named', dataset: key, instrument: byDefault, field: 'price' },
    ];
    const frame = await post('/v1/frame', { columns, grid: '1h', time_range: RANGE });
    expect(frame.status, frame.text).toBe(200);
    expect(frame.json.sources).toEqual([key]);
    expect(frame.json.columns.map((one: Json) => one.instrument)).toEqual([
      undefined,
      instrument,
      instrument,
      odd,
      undefined,
    ]);
    const table = async (symbol: string) => {
      const file = join(system.env.dir, `${key}-${symbol}.csv`);
      const fields = ['timestamp', 'trade_id', 'price'];
      const { text } = await query(
        { sources: [key], instrument: symbol, time_range: RANGE, fields },
        { accept: 'text/csv' },
      );
      await writeFile(file, text);
      return `(select *, row_number() over () as n, "timestamp" // 3600000 as bucket from read_csv('${file}'))`;
    };
    const expected =
      await duckdb(`select coalesce(a.bucket, b.bucket, c.bucket) * 3600000, a.last, b.last, b.high, coalesce(c.n, 0)
      from (select bucket, arg_max(price, n) as last from ${await table(byDefault)} group by 1) a
      full join (select bucket, arg_max(price, n) as last, max(price) as high from ${await table(instrument)} group by 1) b using (bucket)
      full join (select bucket, count(*) as n from ${await table(odd)} group by 1) c using (bucket) order by 1`);
    const at = new Map(
      expected.map(([ms, ...values]) => [Number(ms), values.map((value) => (value === null ? null : Number(value)))]),
    );
    expect(at.size).toBeGreaterThan(30);
    for (const row of frame.json.rows) {
      const own = at.get(Date.parse(row.datetime));
      if (!own) continue;
      expect([row.mine, row.yours, row.highest, row.trades ?? 0, row.named]).toEqual([...own, own[0]]);
    }
  });

  test.each([
    ['../BTCUSDT', undefined],
    [`X' or '1'='1`, undefined],
    [`${'x'.repeat(33)}`, undefined],
    ['ETHUSDT:2024-03-01', undefined],
    ['', undefined],
    [17, undefined],
    [null, undefined],
    [other.slice(0, -1), other],
    [other.toLowerCase(), other],
  ])('an instrument that is none, %j, is a fault of the contract where it stands', async (name, nearest) => {
    const faultOf = ({ status, json }: Answer) => [status, json.code, json.errors.map(({ pointer }: Json) => pointer)];
    const answers = [
      await query({ sources: [key], instrument: name }),
      await post('/v1/raw/estimate', { sources: [key], instrument: name }),
      await post(path, { instrument: name }),
      await post(klines, { instrument: name }),
      await post('/v1/raw/export', { dataset: key, instrument: name, format: 'csv', n_rows: 1 }),
      await post('/v1/frame', {
        columns: [{ name: 'a', dataset: key, instrument: name, field: 'price' }],
        grid: '1h',
        n_rows: 1,
      }),
    ];
    expect(answers.map(faultOf)).toEqual([
      [409, 'QUERY_CONTRACT_ERROR', ['/instrument']],
      [409, 'QUERY_CONTRACT_ERROR', ['/instrument']],
      [409, 'HISTORICAL_CONTRACT_ERROR', ['/instrument']],
      [409, 'HISTORICAL_CONTRACT_ERROR', ['/instrument']],
      [409, 'EXPORT_CONTRACT_ERROR', ['/instrument']],
      [409, 'QUERY_CONTRACT_ERROR', ['/columns/0/instrument']],
    ]);
    if (nearest !== undefined) expect(answers[0].json.errors[0].message).toContain(`did you mean ${nearest}?`);
    for (const where of [`/v1/coverage/${key}?`, `/v1/lineage/${key}/1?date=${LAST}&`]) {
      const answer = await get(`${where}instrument=${encodeURIComponent(String(name))}`);
      expect(faultOf(answer)).toEqual([409, 'QUERY_CONTRACT_ERROR', ['/instrument']]);
      if (nearest !== undefined) expect(answer.json.errors[0].message).toContain(`did you mean ${nearest}?`);
      const twice = await get(`${where}instrument=${other}&instrument=${encodeURIComponent(String(name))}`);
      expect(faultOf(twice)).toEqual([409, 'QUERY_CONTRACT_ERROR', ['/instrument']]);
    }
    const partition = await get(`/v1/lineage/${key}/1?partition=NOSUCH:${LAST}`);
    expect(faultOf(partition)).toEqual([409, 'QUERY_CONTRACT_ERROR', ['?partition']]);
  });
});

test('a dataset without instruments takes none', async () => {
  for (const where of ['/v1/coverage/macro_series_metrics?', '/v1/lineage/macro_series_metrics/1?']) {
    const asked = await get(`${where}instrument=BTCUSDT`);
    expect([asked.status, asked.json.errors[0].pointer]).toEqual([409, '/instrument']);
  }
  const stray = await get('/v1/changes?instrument=ETHUSDT');
  expect([stray.status, stray.json.errors[0].pointer]).toEqual([409, '?instrument']);
  const { status, json } = await query({ sources: ['macro_series_metrics'], instrument: 'BTCUSDT' });
  expect([status, json.errors]).toEqual([
    409,
    [{ pointer: '/instrument', message: expect.stringContaining('only for trades') }],
  ]);
});

test('outside the interval that the operator states nothing is missing', async () => {
  const time_range = [`${FIRST}T00:00:00Z`, '2024-03-09T00:00:00Z'];
  const codesOf = ({ json }: Answer) => json.warnings.map(({ code }: Json) => code);
  const ofOther = await query({ sources: [A.key], instrument: A.other, time_range });
  const ofDefault = await query({ sources: [A.key], time_range });
  expect([codesOf(ofOther), codesOf(ofDefault)]).toEqual([[], ['WINDOW_EXCEEDS_PROVED_COVERAGE']]);
  const columns = (instrument?: string) => [{ name: 'last', dataset: A.key, instrument, field: 'price' }];
  const frameOf = (instrument?: string) => post('/v1/frame', { columns: columns(instrument), grid: '1d', time_range });
  expect([codesOf(await frameOf(A.other)), codesOf(await frameOf())]).toEqual([[], ['WINDOW_EXCEEDS_PROVED_COVERAGE']]);
});

test('GET /v1/instruments lists what is configured and what was ever proved', async () => {
  const { status, json } = await get(`/v1/instruments?dataset=${A.key}`);
  const of = (instrument: string, more: object) => ({
    ...{ dataset: A.key, instrument, base: null, quote: null, default: false, configured: true, rows: 2 * ROWS },
    ...{ intervals: [{ from: FIRST, to: null, first_proved: FIRST, last_proved: LAST }], ...more },
  });
  expect([status, json]).toEqual([
    200,
    {
      instruments: [
        of(A.byDefault, { default: true }),
        of(A.other, { intervals: [{ from: FIRST, to: LAST, first_proved: FIRST, last_proved: LAST }] }),
        of(GONE, {
          ...{ configured: false, rows: ROWS },
          intervals: [{ from: LAST, to: null, first_proved: LAST, last_proved: LAST }],
        }),
        of(UNREAD, { rows: 0, intervals: [] }),
      ],
    },
  ]);
  expect(Object.keys(json.instruments[0])).toEqual([
    ...['dataset', 'instrument', 'base', 'quote', 'default', 'configured', 'rows', 'intervals'],
  ]);
  const all = await get('/v1/instruments');
  expect(all.json.instruments.map(({ dataset }: Json) => dataset).sort()).toEqual(
    EXCHANGES.flatMap(({ key }) => Array(key === A.key ? 4 : 3).fill(key)),
  );
  const ofB = await get(`/v1/instruments?dataset=${EXCHANGES[1].key}`);
  expect(ofB.json.instruments.map(({ instrument, base, quote }: Json) => [instrument, base, quote])).toEqual([
    ['BTC-USDT', 'BTC', 'USDT'],
    ['ETH-USDT', 'ETH', 'USDT'],
    ['BTC-USDC', 'BTC', 'USDC'],
  ]);
  const wrong = await get('/v1/instruments?dataset=macro_series_metrics');
  expect([wrong.status, wrong.json.errors[0].pointer]).toEqual([409, '?dataset']);
});

test('monitors count what all instruments of an exchange have proved', async () => {
  const { json } = await get('/v1/ops/status');
  const { rows, partitions, synthetic } = json.datasets.find(({ dataset }: Json) => dataset === A.key);
  expect([rows, partitions.proved, synthetic]).toEqual([5 * ROWS, 5, false]);
  const { text } = await get('/metrics');
  expect(text).toContain(`tidemark_proved_rows{dataset="${A.key}"} ${5 * ROWS}\n`);
  expect(text).toContain(`tidemark_partitions{dataset="${A.key}",state="proved"} 5\n`);
});

test('the client lists instruments, names one in each request, and says whose an answer is', async () => {
  const options = { baseUrl: exports.serving.url, apiKey: API_KEY };
  const data = new HistoricalData(options);
  const listed = await data.instruments({ dataset: 'exchange_a_spot_trades' });
  expect(listed).toEqual((await get(`/v1/instruments?dataset=${A.key}`)).json.instruments);
  expect((await data.instruments()).map(({ dataset }) => dataset)).toContain('exchange_c_spot_trades');
  expectTypeOf(data.instruments).parameter(0).not.toExtend<{ dataset: 'etf_daily_metrics' } | undefined>();
  const instrument = A.other;
  const trades = data.get_exchange_a_spot_trades({ instrument });
  const { rows, instrument: named } = await trades;
  expect([named, rows.length]).toEqual([instrument, 2 * ROWS]);
  expect(await data.get_exchange_a_spot_trades({ n_latest_rows: 1 })).not.toHaveProperty('instrument');
  const streamed = await trades.stream();
  expect([streamed.instrument, await Array.fromAsync(streamed.rows)]).toEqual([instrument, rows]);
  const plain = await data.get_exchange_a_spot_trades({ n_latest_rows: 1 }).stream();
  expect(plain).not.toHaveProperty('instrument');
  await plain.close();
  const klines = await data.get_exchange_a_spot_klines({ instrument, kline_size: '1d' });
  expect([klines.instrument, klines.rows.length]).toEqual([instrument, 2]);
  const frame = await data.frame({
    columns: [
      { name: 'btc', dataset: 'exchange_a_spot_trades', field: 'price' },
      { name: 'eth', dataset: 'exchange_a_spot_trades', instrument, field: 'price' },
    ],
    ...{ grid: '1d', n_rows: 1 },
  });
  expect(frame.columns.map((column) => column.instrument)).toEqual([undefined, instrument]);
  expect(frame.rows[0].eth).toBe(rows.at(-1)!.price);
  const files = new ExportsClient(options);
  const submitted = await files.submit({ dataset: 'exchange_a_spot_trades', instrument, format: 'csv', n_rows: 1 });
  expect((await files.wait(submitted.export_id)).instrument).toBe(instrument);
  await sequence(system.env);
  const { changes } = await new Changes(options).page({ dataset: 'exchange_a_spot_trades' });
  expect(new Set(changes.map((change) => change.instrument))).toEqual(new Set([undefined, instrument, GONE]));
  const fault = await Promise.resolve(data.get_exchange_a_spot_trades({ instrument: 'ETHUSD' })).catch(
    (error) => error,
  );
  expect(fault).toBeInstanceOf(ContractError);
  expect(fault.problem.errors).toMatchObject([{ pointer: '/instrument' }]);
});

test('one that is configured and never read has no rows, and one that is read no more keeps them', async () => {
  const unread = await query({ sources: [A.key], instrument: UNREAD, n_rows: 1 });
  expect([unread.status, unread.json.code]).toEqual([404, 'QUERY_NO_DATA']);
  const coverage = await get(`/v1/coverage/${A.key}?instrument=${UNREAD}`);
  expect([coverage.status, coverage.json.proved]).toEqual([200, []]);
  const refused = await post('/v1/raw/export', { dataset: A.key, instrument: UNREAD, format: 'csv', n_rows: 1 });
  expect(refused.json.code).toBe('EXPORT_WINDOW_NOT_PROVED');
  const gone = await query({ sources: [A.key], instrument: GONE });
  expect([gone.status, gone.json.row_count]).toEqual([200, ROWS]);
});

test('a key that is limited to an instrument reads, lists and follows that one', async () => {
  const keyOf = async (name: string, datasets: string[]) =>
    (await addKey(system.client, name, { ...NO_LIMITS, scopes: ['read', 'export'], datasets })).text;
  const [eth, btc, all] = [
    await keyOf('eth', [`${A.key}:${A.other}`]),
    await keyOf('btc', [`${A.key}:${A.byDefault}`]),
    await keyOf('all', [A.key]),
  ];
  const codeOf = async (key: string, instrument?: string) => {
    const { status, json } = await post('/v1/raw/query', { sources: [A.key], instrument, n_rows: 1 }, undefined, key);
    return status === 200 ? 200 : json.code;
  };
  const refused = 'AUTH_DATASET_NOT_COVERED';
  expect([await codeOf(eth, A.other), await codeOf(eth), await codeOf(eth, GONE)]).toEqual([200, refused, refused]);
  expect([await codeOf(btc), await codeOf(btc, A.byDefault), await codeOf(btc, A.other)]).toEqual([200, 200, refused]);
  expect([await codeOf(all), await codeOf(all, A.other)]).toEqual([200, 200]);
  const codes = async (path: string, body: object | undefined, key: string) =>
    (body ? await post(path, body, undefined, key) : await get(path, key)).json.code;
  const column = (instrument?: string) => ({
    name: instrument ?? 'default',
    dataset: A.key,
    instrument,
    field: 'price',
  });
  for (const [path, body] of [
    [`/v1/coverage/${A.key}`],
    [`/v1/lineage/${A.key}/1`],
    ['/v1/raw/estimate', { sources: [A.key] }],
    [`/v1/historical/${A.dataset.historicalPath}`, { n_latest_rows: 1 }],
    ['/v1/raw/export', { dataset: A.key, format: 'csv', n_rows: 1 }],
    ['/v1/frame', { columns: [column(A.other), column()], grid: '1h', n_rows: 1 }],
    [`/v1/coverage/${EXCHANGES[1].key}`],
    [`/v1/instruments?dataset=${EXCHANGES[1].key}`],
  ] as const) {
    expect([path, await codes(path, body, eth)]).toEqual([path, refused]);
  }
  const listed = async (key: string) =>
    (await get('/v1/instruments', key)).json.instruments.map(({ instrument }: Json) => instrument);
  expect([await listed(eth), await listed(btc), await listed(all)]).toEqual([
    [A.other],
    [A.byDefault],
    [A.byDefault, A.other, GONE, UNREAD],
  ]);
  await sequence(system.env);
  const changed = async (key: string) =>
    (await get('/v1/changes', key)).json.changes.map(({ partition, instrument }: Json) => [partition, instrument]);
  expect(await changed(eth)).toEqual([FIRST, LAST].map((day) => [`${A.other}:${day}`, A.other]));
  expect(await changed(btc)).toEqual([
    [FIRST, undefined],
    [LAST, undefined],
  ]);
  expect((await changed(all)).length).toBe(5);
  const unknown = await post(
    '/v1/raw/query',
    { sources: [A.key], instrument: A.byDefault.slice(0, -1) },
    undefined,
    eth,
  );
  expect(unknown.json.errors[0].message).not.toContain(A.byDefault);
});
