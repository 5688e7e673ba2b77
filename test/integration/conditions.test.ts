/** GET /v1/conditions: every word and every reason by planted days, in each format, for those who may read the rows and others. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { HistoricalData } from '../../client/index.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import type { Json } from '../support/command.ts';
import { type Exports, startExports } from '../support/exports.ts';
import { System } from '../support/pipeline.ts';
import { API_KEY } from '../support/serving.ts';
import { VENDOR_A, VENDOR_B, VENDOR_C, VENDORS, type Vendor } from '../support/vendors.ts';

const MINUTE = 60_000;
const dayMs = (day: string) => Date.parse(`${day}T00:00:00Z`);
const day = (number: number) => `2024-03-${String(number).padStart(2, '0')}`;

type Event = readonly [id: number, ms: number, price: string, quantity: string];
const LINES: Readonly<Record<string, (events: readonly Event[]) => string>> = {
  [VENDOR_A.dataset]: (events) =>
    events.map(([id, ms, price, quantity]) => `${id},${price},${quantity},1,${ms},True,True\n`).join(''),
  [VENDOR_B.dataset]: (events) =>
    `instrument_name,trade_id,side,price,size,created_time\n${events
      .map(([id, ms, price, quantity]) => `BTC-USDT,${id},buy,${price},${quantity},${ms}\n`)
      .join('')}`,
  [VENDOR_C.dataset]: (events) =>
    `id,timestamp,price,volume,side\n${events
      .map(([id, ms, price, quantity]) => `${id},${ms},${price},${quantity},buy\n`)
      .join('')}`,
};

let system: System;
let exports: Exports;
const now = dayMs(day(9)) + DAY_MS / 2;

const write = async ({ dataset, put, pack }: Vendor, of: string, events: readonly Event[]) =>
  await put(system.vendor, of, pack(of, LINES[dataset](events)));
const settings = () =>
  Object.assign({}, ...VENDORS.map((vendor) => vendor.settings(system.vendor))) as Record<string, string>;
const run = async (...args: string[]) => await system.run(args, settings());
const backfill = ({ dataset }: Vendor, from: number, to: number, ...more: string[]) =>
  run('backfill', dataset, '--from', day(from), '--to', day(to), ...more);

const get = (query: Record<string, string>, headers?: Record<string, string>) =>
  exports.serving.send({
    method: 'GET',
    path: `/v1/conditions?${new URLSearchParams(query)}`,
    ...(headers && { headers }),
  });
async function conditionsOf({ dataset }: Vendor, from: number, to: number): Promise<Json[]> {
  const { status, json } = await get({ dataset, from: day(from), to: day(to), silences: 'list' });
  expect(status, JSON.stringify(json)).toBe(200);
  return json.conditions;
}
const words = (conditions: Json[]) => conditions.map(({ condition, reasons }) => [condition, ...reasons].join(' '));

beforeAll(async () => {
  system = await System.create();
  const at = (number: number, minutes: number) => dayMs(day(number)) + minutes * MINUTE;
  const plain = (number: number, firstId: number): Event[] => [
    [firstId, at(number, 1), '10.05000000', '0.50000000'],
    [firstId + 1, at(number, 1439), '10.10000000', '0.75000000'],
  ];
  await write(VENDOR_A, day(1), [
    [100, at(1, 10), '10.05000000', '0.50000000'],
    [101, at(1, 11), '10.10000000', '0.75000000'],
    [102, at(1, 131), '10.15000000', '1.00000000'],
    [103, at(1, 1410), '10.15000000', '1.00000000'],
  ]);
  // The first follows the last of the day before by its id; ids are missing before the third day.
  await write(VENDOR_A, day(2), plain(2, 104));
  await write(VENDOR_A, day(3), [
    [200, at(3, 60), '10.00000000', '3.00000000'],
    [201, at(3, 60), '20.00000000', '6.00000000'],
  ]);
  for (const [number, firstId] of [
    [5, 300],
    [6, 302],
    [7, 304],
  ] as const)
    await write(VENDOR_A, day(number), plain(number, firstId));
  await backfill(VENDOR_A, 1, 7);
  await write(VENDOR_A, day(5), [
    [300, at(5, 1), '11.00000000', '1.00000000'],
    [301, at(5, 1439), '10.00000000', '1.00000000'],
  ]);
  await backfill(VENDOR_A, 5, 5, '--compare');
  await system.rows(`update ${VENDOR_A.dataset} set price = price + 1 where trade_id = 302`);
  await run('verify', VENDOR_A.dataset);
  // A file day of B begins at 16:00 UTC of the day before.
  const ofB = (number: number, minutes: number) => at(number, minutes - 480);
  await write(VENDOR_B, day(1), [
    [50, ofB(1, 0), '10.5', '0.003'],
    [51, ofB(1, 50), '10', '0.006'],
    [54, ofB(1, 52), '10', '0.006'],
    [55, ofB(1, 1439), '10', '0.006'],
  ]);
  await write(VENDOR_B, day(2), [
    [60, ofB(2, 2), '1', '1'],
    [61, ofB(2, 2), '3', '1'],
    [62, ofB(2, 1439), '3', '1'],
  ]);
  await backfill(VENDOR_B, 1, 2);
  await write(VENDOR_C, day(1), [
    [1, at(1, 0), '1.5', '0.01'],
    [2, at(1, 59), '1.5', '0.01'],
    [3, at(1, 118), '1.5', '0.01'],
  ]);
  await write(VENDOR_C, day(2), [
    [1, at(2, 0), '1.5', '0.01'],
    [2, at(2, 61), '1.5', '0.01'],
  ]);
  await backfill(VENDOR_C, 1, 2);
  exports = await startExports(system.env, { now: () => now });
}, 180_000);
afterAll(async () => {
  await exports?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

test('every word of exchange A, and why', async () => {
  expect(words(await conditionsOf(VENDOR_A, 1, 10))).toEqual([
    'available',
    'degraded silence_unknown',
    'available',
    'missing not_proved',
    'degraded late_arrival',
    'missing quarantined',
    'available',
    'pending',
    'pending',
    'pending',
  ]);
  const before = (await get({ dataset: VENDOR_A.dataset, from: '2024-02-28', to: '2024-02-29' })).json.conditions;
  expect(words(before)).toEqual(['missing not_proved', 'missing not_proved']);
});

test('the facts of a day, with a silence over its end that the next day ends', async () => {
  const [first, second, third, fourth] = await conditionsOf(VENDOR_A, 1, 4);
  expect(first).toEqual({
    day: day(1),
    start_utc: '2024-03-01T00:00:00.000Z',
    end_utc: '2024-03-02T00:00:00.000Z',
    condition: 'available',
    reasons: [],
    observed_increment: { price: '0.05', quantity: '0.25' },
    silences: {
      count: 3,
      longest_ms: 1279 * MINUTE,
      unknown: 0,
      list: [
        [11, 131],
        [131, 1410],
        [1410, 1441],
      ].map(([from, to]) => ({
        from_utc: new Date(dayMs(day(1)) + from * MINUTE).toISOString(),
        to_utc: new Date(dayMs(day(1)) + to * MINUTE).toISOString(),
        ms: (to - from) * MINUTE,
        state: 'proved',
      })),
    },
    ids_missing: 0,
    repeats: 0,
    first: '2024-03-01T00:10:00.000Z',
    last: '2024-03-01T23:30:00.000Z',
    document: expect.objectContaining({
      name: VENDOR_A.document(day(1)),
      sha256: expect.stringMatching(/^[0-9a-f]{64}$/),
      captured_utc: expect.any(String),
    }),
    revisions: [{ revision: 1, proved_at_utc: expect.any(String) }],
  });
  expect(second.silences.list.map(({ state }: Json) => state)).toEqual(['proved', 'unknown']);
  // The day after it is not proved.
  expect([third.silences.count, third.observed_increment]).toEqual([0, { price: '10', quantity: '3' }]);
  expect([fourth.silences, fourth.document, fourth.revisions]).toEqual([null, null, []]);
  const { json } = await get({ dataset: VENDOR_A.dataset, from: day(1), to: day(1) });
  expect(json.conditions[0].silences).toEqual({ count: 3, longest_ms: 1279 * MINUTE, unknown: 0 });
});

test('exchange B: days of its files, missing ids, and silences that only neighbouring ids prove', async () => {
  const [first, second] = await conditionsOf(VENDOR_B, 1, 2);
  expect([first.start_utc, first.end_utc]).toEqual(['2024-02-29T16:00:00.000Z', '2024-03-01T16:00:00.000Z']);
  expect(words([first, second])).toEqual(['degraded ids_missing', 'available']);
  expect([first.ids_missing, first.observed_increment]).toEqual([2, { price: '0.5', quantity: '0.003' }]);
  expect(first.silences.list.map(({ ms, state }: Json) => [ms / MINUTE, state])).toEqual([
    [50, 'proved'],
    [2, 'unknown'],
    [1387, 'proved'],
    [3, 'unknown'],
  ]);
});

test('exchange C: no silence is proved, and one above an hour degrades the day', async () => {
  const conditions = await conditionsOf(VENDOR_C, 1, 2);
  expect(words(conditions)).toEqual(['degraded silence_unknown', 'degraded silence_unknown']);
  expect(conditions.map(({ silences }) => [silences.count, silences.unknown])).toEqual([
    [3, 3],
    [1, 1],
  ]);
});

test('the formats have the same days', async () => {
  const query = { dataset: VENDOR_A.dataset, from: day(1), to: day(6) };
  const { json } = await get(query);
  const lines = await get(query, { accept: 'application/x-ndjson' });
  expect(lines.headers['content-type']).toBe('application/x-ndjson');
  expect(
    lines.text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line)),
  ).toEqual(json.conditions);
  const csv = await get(query, { accept: 'text/csv' });
  const [header, ...rows] = csv.text
    .trimEnd()
    .split('\n')
    .map((line) => line.split(','));
  expect(csv.headers['content-type']).toBe('text/csv; charset=utf-8; header=present');
  const column = (name: string) => rows.map((row) => row[header.indexOf(name)]);
  expect(column('condition')).toEqual(json.conditions.map(({ condition }: Json) => condition));
  expect(column('reasons')[1]).toBe('silence_unknown');
  expect(column('observed_increment.price')).toEqual(['0.05', '0.05', '10', '', '0.05', '']);
  expect((await get(query, { accept: 'text/html' })).json.code).toBe('NOT_ACCEPTABLE');
});

test('all twelve datasets answer, with the members that the catalogue lists', async () => {
  const { json } = await exports.serving.send({ method: 'GET', path: '/v1/datasets' });
  expect(json.datasets).toHaveLength(12);
  for (const { key, conditions: members } of json.datasets) {
    const { status, json: answer } = await get({ dataset: key, from: day(1), to: day(2) });
    expect([key, status, answer.dataset, answer.conditions.length]).toEqual([key, 200, key, 2]);
    expect(Object.keys(answer.conditions[0]).slice(5)).toEqual(members);
  }
  expect([...DATASETS.values()].filter(({ partition }) => partition.kind === 'file_day')).toHaveLength(3);
});

test.each([
  [{ from: day(1), to: day(2) }, '?dataset'],
  [{ dataset: 'exchange_z', from: day(1), to: day(2) }, '?dataset'],
  [{ dataset: VENDOR_A.dataset, to: day(2) }, '?from'],
  [{ dataset: VENDOR_A.dataset, from: '2024-02-30', to: day(2) }, '?from'],
  [{ dataset: VENDOR_A.dataset, from: day(3), to: day(2) }, '?from'],
  [{ dataset: VENDOR_A.dataset, from: '1900-01-01', to: '2024-01-01' }, '?to'],
  [{ dataset: VENDOR_A.dataset, from: day(1), to: day(2), silences: 'all' }, '?silences'],
  [{ dataset: VENDOR_A.dataset, from: day(1), to: day(2), instrument: 'NONE' }, '/instrument'],
])('%j is refused', async (query, pointer) => {
  const { json } = await get(query as unknown as Record<string, string>);
  expect([json.code, json.errors[0].pointer]).toEqual(['QUERY_CONTRACT_ERROR', pointer]);
});

test('the client has the same', async () => {
  const client = new HistoricalData({ baseUrl: exports.serving.url, apiKey: API_KEY });
  const request = { dataset: 'exchange_a_spot_trades', from: day(1), to: day(2) } as const;
  const found = await client.conditions({ ...request, silences: 'list', instrument: undefined });
  expect(found).toEqual(await conditionsOf(VENDOR_A, 1, 2));
  expect(found[0].silences?.list?.[0].state).toBe('proved');
});

describe('silences of a request that asks', () => {
  const post = (path: string, body: Json) => exports.serving.send({ method: 'POST', path, body: JSON.stringify(body) });
  const time = (number: number, minutes: number) => new Date(dayMs(day(number)) + minutes * MINUTE).toISOString();
  const range = (from: string, to: string) => ({ time_range: [from, to] });
  const warnedOf = ({ json }: { json: Json }) =>
    (json.warnings as Json[]).filter(({ code }) => code === 'SILENCE_WITHIN_WINDOW').map(({ details }) => details);
  const ofA = (from: number, to: number) => ({ start: time(1, from), end: time(1, to), state: 'proved' });
  const details = (dataset: string, count: number, unknown: number, longest: Json) => ({
    ...{ dataset, count, unknown, longest },
    longest_ms: Date.parse(longest.end) - Date.parse(longest.start),
  });
  const { dataset } = VENDOR_A;
  const LONGEST = details(dataset, 3, 0, ofA(131, 1410));

  test.each([
    ['the whole day', range(time(1, 0), time(2, 0)), LONGEST],
    ['a part of one', range(time(1, 10), time(1, 12)), details(dataset, 1, 0, ofA(11, 131))],
    ['none', range(time(1, 10), time(1, 11)), undefined],
    // It began the day before.
    [
      'the start of a day',
      range(time(2, 0), time(2, 1.5)),
      details(dataset, 2, 0, { ...ofA(0, 0), start: time(2, 1), end: time(2, 1439) }),
    ],
    ['the latest rows', { n_rows: 1 }, undefined],
    [
      'the latest two rows',
      { n_rows: 2 },
      details(dataset, 1, 0, { state: 'proved', start: time(7, 1), end: time(7, 1439) }),
    ],
  ] as const)('a query: %s', async (_, window, expected) => {
    const body = { sources: [dataset], ...window };
    const warned = await post('/v1/raw/query', { ...body, silences: 'warn' });
    const silent = await post('/v1/raw/query', body);
    expect([warned.status, silent.status]).toEqual([200, 200]);
    expect(warnedOf(warned)).toEqual(expected === undefined ? [] : [expected]);
    expect(warnedOf(silent)).toEqual([]);
    expect(warned.json.rows).toEqual(silent.json.rows);
  });

  test('without a proof, and of datasets without trades', async () => {
    const body = { sources: [VENDOR_C.dataset], ...range(time(1, 0), time(1, 60)), silences: 'warn' };
    const { json } = await post('/v1/raw/query', body);
    const found = json.warnings.find(({ code }: Json) => code === 'SILENCE_WITHIN_WINDOW');
    expect([found.details.count, found.details.unknown, found.details.longest_ms]).toEqual([2, 2, 59 * MINUTE]);
    expect(found.message).toContain(`${VENDOR_C.dataset}: 2 times above a minute without a trade`);
    const other = await post('/v1/raw/query', { sources: ['bitcoin_block_headers'], silences: 'warn' });
    expect(other.json.code).toBe('QUERY_NO_DATA');
  });

  test('frames, klines, estimates and strict requests follow', async () => {
    const columns = [{ name: 'price', dataset, field: 'price' }];
    const window = range(time(1, 0), time(2, 0));
    const frame = { columns, grid: '1h', ...window };
    expect(warnedOf(await post('/v1/frame', { ...frame, silences: 'warn' }))).toEqual([
      { ...LONGEST, columns: ['price'] },
    ]);
    expect(warnedOf(await post('/v1/frame', frame))).toEqual([]);
    const days = { start_date: day(1), end_date: day(1), silences: 'warn' };
    expect(warnedOf(await post('/v1/historical/exchange_a/spot/trades', days))).toEqual([LONGEST]);
    expect(warnedOf(await post('/v1/historical/exchange_a/spot/klines', { ...days, kline_size: '1h' }))).toEqual([
      LONGEST,
    ]);
    const latest = { n_latest_rows: 1, kline_size: '1m', silences: 'warn' };
    expect(warnedOf(await post('/v1/historical/exchange_a/spot/klines', latest))).toEqual([]);
    const query = { sources: [dataset], ...window, silences: 'warn' };
    expect(warnedOf(await post('/v1/raw/estimate', query))).toEqual([LONGEST]);
    expect(warnedOf(await post('/v1/raw/estimate', { sources: [dataset], n_rows: 1, silences: 'warn' }))).toEqual([]);
    const strict = await post('/v1/raw/query', { ...query, strict: true });
    expect([strict.json.code, warnedOf(strict)]).toEqual(['STRICT_MODE_WARNING_FAILURE', [LONGEST]]);
    for (const one of ['list', true, null]) {
      const refused = await post('/v1/raw/query', { ...query, silences: one });
      expect(refused.json.errors).toEqual([{ pointer: '/silences', message: 'must be "warn"' }]);
    }
  });

  test('an export states them when it is submitted', async () => {
    const body = { dataset, format: 'csv', ...range(time(1, 0), time(2, 0)), silences: 'warn' };
    const submitted = await post('/v1/raw/export', body);
    expect(submitted.status, submitted.text).toBe(202);
    expect(warnedOf(submitted)).toEqual([LONGEST]);
  });
});

describe('afterwards', () => {
  test('a vendor that goes back to the document that is proved degrades its day no longer', async () => {
    const partition = `partition_key = '${day(5)}' and dataset_id = 1`;
    const late = async () => words(await conditionsOf(VENDOR_A, 5, 5));
    expect(await late()).toEqual(['degraded late_arrival']);
    const left = await system.rows(`update late_arrivals set left_at = now() where ${partition} returning revision_id`);
    expect([left.length, await late()]).toEqual([1, ['available']]);
    await system.rows(`update late_arrivals set left_at = null where ${partition}`);
    expect(await late()).toEqual(['degraded late_arrival']);
  });

  test('a reingest makes the day available again, with two revisions', async () => {
    expect(
      (await run('reingest', VENDOR_A.dataset, '--from', day(5), '--to', day(5), '--reason', 'republished')).exit,
    ).toBe(0);
    const [fifth] = await conditionsOf(VENDOR_A, 5, 5);
    expect([...words([fifth]), fifth.observed_increment.price]).toEqual(['available', '1']);
    expect(fifth.revisions.map(({ revision }: Json) => revision)).toEqual([1, 2]);
  });

  test('of blocks, a height that no partition of the day has is missing; a day whose blocks were all retracted is', async () => {
    const { key, number } = DATASETS.get('bitcoin_block_headers')!;
    const plant = async (of: number, heights: string, state: string) => {
      const from = dayMs(day(of)) + Number(heights.slice(1, 4)) * MINUTE;
      await system.rows(
        `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, span)
         values ($1, $2::text, $3, 1, 1, $4, $5, false, $2::text::int8range)`,
        [number, heights, state, from, from + 3 * MINUTE],
      );
    };
    const found = async () => (await get({ dataset: key, from: day(5), to: day(6) })).json.conditions;
    await plant(5, '[100,103)', 'proved');
    await plant(5, '[103,105)', 'proved');
    expect([words(await found())[0], (await found())[0].ids_missing]).toEqual(['available', 0]);
    await plant(5, '[107,109)', 'proved');
    await plant(6, '[109,110)', 'quarantined');
    expect([words(await found()), (await found())[0].ids_missing]).toEqual([
      ['degraded ids_missing', 'missing quarantined'],
      2,
    ]);
    await system.rows(
      `insert into proof_leaves (dataset_id, partition_key, attempt, kind, body) values ($1, '[109,110)', 1, 'retracted', 'x')`,
      [number],
    );
    expect(words(await found())[1]).toBe('missing retracted');
  });

  test('whoever may not read the rows learns nothing that depends on them', async () => {
    const matrix = join(system.env.dir, 'none.json');
    await writeFile(matrix, JSON.stringify({ sources: {} }));
    await using other = await startExports(system.env, { now: () => now, rightsMatrixPath: matrix, worker: false });
    const path = `/v1/conditions?${new URLSearchParams({ dataset: VENDOR_A.dataset, from: day(1), to: day(3) })}`;
    const { json } = await other.serving.send({ method: 'GET', path });
    expect(words(json.conditions)).toEqual(['available', 'available', 'available']);
    for (const one of json.conditions) {
      expect([one.observed_increment, one.silences, one.ids_missing, one.first, one.document]).toEqual(
        Array(5).fill(null),
      );
    }
  });
});
