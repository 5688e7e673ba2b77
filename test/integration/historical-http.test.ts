/** The historical routes as routes: their envelope, warnings, codes and order of checks. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DATASETS } from '../../shared/registry/index.ts';
import { DATASET, DAY_MS, insertUnproved, loadDays, randomDay } from '../support/load-rows.ts';
import { OWN_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const TRADES = '/v1/historical/exchange_a/spot/trades';
const KLINES = '/v1/historical/exchange_a/spot/klines';
const PATHS = [TRADES, KLINES];

/** Four days after the last proved day: past what aligned rows may be old. */
const NOW = Date.parse('2024-03-08T00:00:00Z');
const DAYS = [randomDay('2024-03-01', 200, 1000, 1), randomDay('2024-03-03', 300, 1400, 2)];
const PROVED_TO = Date.parse('2024-03-04T00:00:00Z');

let env: TestEnv;
let serving: Serving;

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, DAYS);
  await insertUnproved(env.databaseUrl, randomDay('2024-03-02', 100, 1250, 3).trades);
  serving = await startServing({ databaseUrl: env.databaseUrl, now: () => NOW });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const ask = (path: string, body: unknown, on = serving) =>
  on.send({ path, body: typeof body === 'string' ? body : JSON.stringify(body) });
const codes = (answer: { json: { warnings?: { code: string }[] } }) => answer.json.warnings?.map(({ code }) => code);

describe('the body of an answer', () => {
  test.each(PATHS)('%s has exactly the nine keys', async (path) => {
    for (const mode of ['native', 'aligned_1s']) {
      const { status, json, headers } = await ask(path, { mode, start_date: '2024-03-01', end_date: '2024-03-01' });
      expect(status).toBe(200);
      expect(Object.keys(json).sort()).toEqual([
        'mode',
        'rights_provisional',
        'rights_state',
        'row_count',
        'rows',
        'schema',
        'source',
        'sources',
        'warnings',
      ]);
      expect(json).toMatchObject({
        mode,
        source: DATASET,
        sources: [DATASET],
        row_count: json.rows.length,
        warnings: [],
        rights_state: 'Hosted Allowed',
        rights_provisional: false,
      });
      expect(json.schema.map(({ name }: { name: string }) => name)).toEqual(Object.keys(json.rows[0]));
      expect(headers['content-type']).toBe('application/json');
    }
  });

  test('rows are those of a query for the same time, whatever the window', async () => {
    const { fields } = DATASETS.get(DATASET)!.native;
    const names = fields.map(({ name }) => name);
    const same = async (days: object, query: object, mode: string) => {
      const historical = await ask(TRADES, { mode, ...days, ...(mode === 'native' && { fields: names }) });
      const answer = await serving.query({ sources: [DATASET], mode, ...query });
      expect(historical.status).toBe(200);
      expect(historical.json.rows).toEqual(answer.json.rows);
      expect(codes(historical)).toEqual(codes(answer));
    };
    for (const mode of ['native', 'aligned_1s']) {
      await same({}, {}, mode);
      await same(
        { start_date: '2024-03-01', end_date: '2024-03-03' },
        { time_range: ['2024-03-01T00:00:00Z', '2024-03-04T00:00:00Z'] },
        mode,
      );
      await same({ n_latest_rows: 250 }, { n_rows: 250 }, mode);
      await same({ n_random_rows: 20, random_seed: 3 }, { n_random: 20, random_seed: 3 }, mode);
    }
  });
});

describe('warnings', () => {
  test.each(PATHS)('%s: an open end does not warn of the end, a day past what is proved does', async (path) => {
    expect(codes(await ask(path, { start_date: '2024-03-03' }))).toEqual([]);
    expect(codes(await ask(path, { end_date: '2024-03-01' }))).toEqual([]);
    const past = await ask(path, { start_date: '2024-02-29', end_date: '2024-03-04' });
    expect(past.json.warnings).toMatchObject([
      {
        code: 'WINDOW_EXCEEDS_PROVED_COVERAGE',
        details: {
          gaps: [
            { start: '2024-02-29T00:00:00.000Z', end: '2024-03-01T00:00:00.000Z' },
            { start: '2024-03-02T00:00:00.000Z', end: '2024-03-03T00:00:00.000Z' },
            { start: '2024-03-04T00:00:00.000Z', end: '2024-03-05T00:00:00.000Z' },
          ],
          proved_through: new Date(PROVED_TO).toISOString(),
        },
      },
    ]);
    expect(codes(await ask(path, {}))).toEqual(['WINDOW_EXCEEDS_PROVED_COVERAGE']);
  });

  test.each(PATHS)('%s: aligned rows are stale where the end is open or later than what is proved', async (path) => {
    const stale = async (body: object) =>
      codes(await ask(path, { mode: 'aligned_1s', ...body }))!.includes('ALIGNED_FRESHNESS_STALE');
    expect(await stale({ start_date: '2024-03-03' })).toBe(true);
    expect(await stale({ n_latest_rows: 1 })).toBe(true);
    expect(await stale({})).toBe(true);
    expect(await stale({ start_date: '2024-03-03', end_date: '2024-03-04' })).toBe(true);
    expect(await stale({ start_date: '2024-03-03', end_date: '2024-03-03' })).toBe(false);
    expect(codes(await ask(path, { mode: 'native', start_date: '2024-03-03' }))).toEqual([]);
  });

  test.each(PATHS)('%s, strict: any of them is 409, a clean window is not', async (path) => {
    for (const body of [
      { n_latest_rows: 5 },
      { n_random_rows: 5 },
      { start_date: '2024-03-01', end_date: '2024-03-03' },
      { start_date: '2024-03-03', mode: 'aligned_1s' },
    ]) {
      const { status, json } = await ask(path, { ...body, strict: true });
      expect([status, json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
      expect(json.warnings.length).toBeGreaterThan(0);
    }
    expect((await ask(path, { start_date: '2024-03-03', end_date: '2024-03-03', strict: true })).status).toBe(200);
  });
});

describe('what is not there', () => {
  test.each(PATHS)('%s: 404 for windows without a proved part or rows that pass', async (path) => {
    const field = path === TRADES ? 'price' : 'open';
    for (const body of [
      { start_date: '2024-03-02', end_date: '2024-03-02' },
      { start_date: '2024-03-04' },
      { end_date: '2024-02-29' },
      { end_date: '0001-01-01' },
      { start_date: '9999-12-31', end_date: '9999-12-31' },
      { filters: [{ field, op: 'gt', value: 1e9 }] },
      { n_latest_rows: 3, filters: [{ field, op: 'gt', value: 1e9 }] },
      { n_random_rows: 3, filters: [{ field, op: 'gt', value: 1e9 }] },
    ]) {
      const { status, json } = await ask(path, body);
      expect([status, json.code], JSON.stringify(body)).toEqual([404, 'HISTORICAL_NO_DATA']);
    }
    expect((await ask(path, { end_date: '9999-12-31' })).status).toBe(200);
  });
});

describe('refusals', () => {
  test('rights come before strict and rows, for klines as for trades', async () => {
    const matrix = JSON.parse(await readFile(OWN_MATRIX, 'utf8'));
    matrix.sources.exchange_a = {
      ...matrix.sources.exchange_a,
      rights_state: 'Ingest Only',
      rights_provisional: false,
    };
    for (const source of Object.values<{ legal_signoff_artifact?: string }>(matrix.sources)) {
      if (source.legal_signoff_artifact)
        source.legal_signoff_artifact = join(OWN_MATRIX, '..', source.legal_signoff_artifact);
    }
    const rightsMatrixPath = join(env.dir, 'matrix.json');
    await writeFile(rightsMatrixPath, JSON.stringify(matrix));
    await using closed = await startServing({ databaseUrl: env.databaseUrl, rightsMatrixPath });
    for (const path of PATHS) {
      const { status, json } = await ask(path, { n_latest_rows: 1, strict: true }, closed);
      expect([status, json.code]).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
    }
  });

  test('a database that is away', async () => {
    await using lost = await startServing({ databaseUrl: 'postgres://nobody:x@127.0.0.1:1/none' });
    for (const path of PATHS) {
      const { status, json, headers } = await ask(path, {}, lost);
      expect([status, json.code]).toEqual([503, 'HISTORICAL_BACKEND_ERROR']);
      expect(headers['retry-after']).toBeDefined();
    }
  });

  test('native columns that drifted are no failing database', async () => {
    await execute(env.databaseUrl, `alter table ${DATASET} rename column price to cost`);
    try {
      for (const path of PATHS) {
        const { status, json } = await ask(path, { start_date: '2024-03-01', end_date: '2024-03-01' });
        expect([status, json.code]).toEqual([503, 'HISTORICAL_RUNTIME_ERROR']);
      }
    } finally {
      await execute(env.databaseUrl, `alter table ${DATASET} rename column cost to price`);
    }
  });
});

describe('long histories', () => {
  test('a client that goes away in the middle of klines frees the slot and the database', async () => {
    const days = Array.from({ length: 6 }, (_, index) =>
      randomDay(
        new Date(Date.parse('2023-01-01') + index * DAY_MS).toISOString().slice(0, 10),
        8000,
        100_000 + index * 10_000,
        9 + index,
      ),
    );
    await loadDays(env.databaseUrl, days, { rowsPerFrame: 0 });
    const response = await serving.open({ path: KLINES, body: JSON.stringify({ kline_size: 1 }) });
    expect(response.statusCode).toBe(200);
    response.destroy();
    await expect.poll(() => serving.app.limiters.plain.load).toEqual({ running: 0, waiting: 0, parked: 0 });
  });
});
