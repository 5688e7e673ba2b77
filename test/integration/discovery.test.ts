/** What there is, over HTTP: datasets and coverage, held against the registry, the catalog and a real backfill. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { OPERATORS_OF } from '../../serving/contract/filters.ts';
import { coverageAnswer } from '../../serving/discovery/coverage-answer.ts';
import { datasetsAnswer } from '../../serving/discovery/datasets.ts';
import { DATASET_KEYS, DATASETS, shapeOf } from '../../shared/registry/index.ts';
import type { Json } from '../support/command.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { type Answer, migrated, type Serving, startServing } from '../support/serving.ts';
import { createTestEnv, execute } from '../support/stack.ts';

const DAY_MS = 86_400_000;
const iso = (ms: number) => new Date(ms).toISOString();
const at = (day: string) => Date.parse(`${day}T00:00:00Z`);
const outcome = ({ status, json }: Answer) => [status, json.code];
/** Proved, proved, missing, proved, quarantined: its ids are taken. */
const DAYS = ['2024-01-01', '2024-01-02', '2024-01-03', '2024-01-04', '2024-01-05'];

let system: System;
let serving: Serving;
let matrixPath: string;
const get = (path: string, headers: Record<string, string> = {}) => serving.send({ method: 'GET', path, headers });
const coverage = async (query = '', dataset = DATASET): Promise<Json> => {
  const answer = await get(`/v1/coverage/${dataset}${query}`);
  expect(answer.status, answer.text).toBe(200);
  coverageAnswer.parse(answer.json);
  return answer.json;
};

const HOSTED = { rights_state: 'Hosted Allowed', rights_provisional: true, legal_signoff_artifact: 'signed.md' };
const declare = (exchangeA: object = {}) =>
  writeFile(
    matrixPath,
    JSON.stringify({
      version: '1',
      sources: {
        exchange_a: { ...HOSTED, datasets: [DATASET], ...exchangeA },
        macro: { ...HOSTED, rights_provisional: false, datasets: ['macro_series_metrics'] },
      },
    }),
  );

beforeAll(async () => {
  system = await System.create();
  for (const [index, day] of DAYS.entries()) {
    const firstId = index === 4 ? 1 : 1 + index * 100;
    await writeDocument(system.vendor, day, csvOf({ day, rows: 100, firstId, seed: index, timeUnit: 'ms' }));
  }
  expect((await system.backfill(DAYS[0], DAYS[1])).exit).toBe(0);
  expect((await system.backfill(DAYS[3], DAYS[3])).exit).toBe(0);
  expect((await system.backfill(DAYS[4], DAYS[4])).exit).toBe(1);
  await writeDocument(system.vendor, DAYS[3], csvOf({ day: DAYS[3], rows: 90, firstId: 301, seed: 9, timeUnit: 'ms' }));
  expect((await system.backfill(DAYS[3], DAYS[3], {}, ['--compare'])).exit).toBe(1);
  matrixPath = join(system.env.dir, 'matrix.json');
  await writeFile(join(system.env.dir, 'signed.md'), 'signed');
  serving = await startServing({
    databaseUrl: system.env.databaseUrl,
    rightsMatrixPath: matrixPath,
    settings: { SVC_MACRO_QUERY_SERVING_STATE: 'shadow' },
  });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await system[Symbol.asyncDispose]();
});
beforeEach(() => declare());

const KNOWN: Readonly<Record<string, string>> = {
  file_day: 'event_time',
  snapshot: 'event_time',
  capture: 'capture',
  vintage: 'vintage',
  height: 'confirmation',
};

describe('/v1/datasets', () => {
  const datasets = async (): Promise<Json> => {
    const answer = await get('/v1/datasets');
    expect(answer.status, answer.text).toBe(200);
    datasetsAnswer.parse(answer.json);
    return Object.fromEntries(answer.json.datasets.map((dataset: Json) => [dataset.key, dataset]));
  };

  test('lists all twelve as the registry has them, with everything a request may name', async () => {
    const found = await datasets();
    expect(Object.keys(found)).toEqual([...DATASET_KEYS]);
    for (const [key, dataset] of DATASETS) {
      const { title, kind, sources, historical_path, klines_path, modes } = found[key];
      expect({ title, kind, sources, historical_path, klines_path }).toEqual({
        title: dataset.title,
        kind: dataset.kind,
        sources: dataset.sources,
        historical_path: `/v1/historical/${dataset.historicalPath}`,
        klines_path: dataset.trades ? `/v1/historical/${dataset.trades.klinesPath}` : null,
      });
      for (const mode of ['native', 'aligned_1s'] as const) {
        const shape = shapeOf(dataset, mode);
        expect(modes[mode]).toEqual({
          view_id: shape.view.id,
          view_version: shape.view.version,
          order: shape.order,
          series_key: mode === 'native' ? [] : dataset.aligned.seriesKey,
          fields: shape.fields.map(({ name, dtype, nullable, unit = null, computed, doc }) => ({
            name,
            dtype,
            nullable,
            unit,
            ...(computed && { computed }),
            doc,
            known: KNOWN[dataset.partition.kind],
            carried: dataset.trades === undefined,
            aggregates: expect.any(Array),
          })),
        });
      }
    }
    const { operators, known } = (await get('/v1/datasets')).json;
    expect(operators).toEqual(OPERATORS_OF);
    expect(Object.keys(known).sort()).toEqual([...new Set(Object.values(KNOWN))].sort());
  });

  test('names the fields and aggregates that a frame takes: those it lists, and no others', async () => {
    const found = await datasets();
    const takes = async (dataset: string, field: string, aggregate?: string) => {
      const columns = [{ name: 'x', dataset, field, ...(aggregate && { aggregate }) }];
      const answer = await serving.send({
        path: '/v1/frame',
        body: JSON.stringify({ columns, grid: '31d', n_rows: 1 }),
      });
      const pointers = (answer.json.errors ?? []).map(({ pointer }: Json) => pointer);
      return !pointers.some((pointer: string) => ['/columns/0/field', '/columns/0/aggregate'].includes(pointer));
    };
    for (const key of [
      DATASET,
      'etf_daily_metrics',
      'bitcoin_block_headers',
      'bitcoin_mempool_state',
      'bitcoin_circulating_supply',
    ]) {
      const listed = new Map<string, Set<string>>();
      for (const mode of ['native', 'aligned_1s']) {
        for (const { name, aggregates } of found[key].modes[mode].fields) {
          listed.set(name, new Set([...(listed.get(name) ?? []), ...aggregates]));
        }
      }
      for (const [name, aggregates] of listed) {
        expect(await takes(key, name), `${key} ${name}`).toBe(aggregates.size > 0);
        if (aggregates.size === 0) continue;
        for (const one of ['first', 'last', 'sum', 'max', 'vwap']) {
          expect(await takes(key, name, one), `${key} ${name} ${one}`).toBe(aggregates.has(one));
        }
      }
    }
  });

  test('says how much is proved', async () => {
    const found = await datasets();
    expect(found[DATASET].availability).toEqual({
      proved_from_utc: iso(at(DAYS[0])),
      proved_through_utc: iso(at(DAYS[4])),
      as_of_utc: iso(at(DAYS[4])),
      partitions: 3,
      rows: 300,
      synthetic: false,
    });
    expect(found.bitcoin_block_headers.availability).toEqual({
      proved_from_utc: null,
      proved_through_utc: null,
      as_of_utc: null,
      partitions: 0,
      rows: 0,
      synthetic: false,
    });
  });

  test('says what rights there are at this moment, and with which code a read is refused', async () => {
    const rights = async (key = DATASET) => (await datasets())[key].rights;
    const hosted = { rights_state: 'Hosted Allowed', rights_provisional: true, serving_state: 'promoted' };
    expect(await rights()).toEqual({ ...hosted, refused_with: null });
    await writeFile(join(system.env.dir, 'signed.md'), '');
    expect(await rights()).toEqual({ ...hosted, refused_with: 'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING' });
    await writeFile(join(system.env.dir, 'signed.md'), 'signed');
    await declare({ rights_state: 'Ingest Only', rights_provisional: false });
    expect(await rights()).toMatchObject({ rights_state: 'Ingest Only', refused_with: 'QUERY_RIGHTS_INGEST_ONLY' });
    expect(await rights('macro_series_metrics')).toEqual({
      rights_state: 'Hosted Allowed',
      rights_provisional: false,
      serving_state: 'shadow',
      refused_with: 'QUERY_SERVING_SHADOW_MODE',
    });
    expect(await rights('exchange_b_spot_trades')).toMatchObject({
      rights_state: null,
      refused_with: 'QUERY_RIGHTS_MISSING_STATE',
    });
    await writeFile(matrixPath, '{');
    expect(await rights()).toMatchObject({ rights_state: null, refused_with: 'QUERY_RIGHTS_RESOLUTION_ERROR' });
    for (const key of DATASET_KEYS) {
      const { json } = await serving.query({ sources: [key], n_rows: 1 });
      expect((await rights(key)).refused_with).toBe(json.code);
    }
  });
});

describe('/v1/coverage/{dataset}', () => {
  test('tells what is proved, missing, quarantined and came late', async () => {
    const answer = await coverage();
    const stretch = (from: number, to: number, partitions: number) => ({
      source_id: 'exchange_a',
      start_utc: iso(from),
      through_utc: iso(to),
      span: { unit: 'epoch_ms', from, to },
      partitions,
      rows: partitions * 100,
    });
    const [first, third, fourth, fifth] = [at(DAYS[0]), at(DAYS[2]), at(DAYS[3]), at(DAYS[4])];
    expect(answer).toMatchObject({
      dataset: DATASET,
      partition_kind: 'file_day',
      synthetic: false,
      as_of_utc: iso(fifth),
      proved: [stretch(first, third, 2), stretch(fourth, fifth, 1)],
      gaps: [
        {
          source_id: 'exchange_a',
          start_utc: iso(third),
          end_utc: iso(fourth),
          span: { unit: 'epoch_ms', from: third, to: fourth },
        },
      ],
      totals: {
        proved: { partitions: 3, rows: 300 },
        quarantined: { partitions: 1, rows: 0 },
        publishing: { partitions: 0, rows: 0 },
        published: { partitions: 0, rows: 0 },
      },
      next_cursor: null,
      late_arrivals_total: 1,
    });
    expect(answer.partitions.map(({ partition, state }: Json) => [partition, state])).toEqual([
      [DAYS[0], 'proved'],
      [DAYS[1], 'proved'],
      [DAYS[3], 'proved'],
      [DAYS[4], 'quarantined'],
    ]);
    const [late] = answer.late_arrivals;
    expect([late.partition, late.reason]).toEqual([DAYS[3], expect.stringContaining('rows')]);
  });

  test('names of each partition the digests, document and times of its proof', async () => {
    const { partitions } = await coverage();
    const stored = await system.rows(
      `select *, extract(epoch from proved_at) * 1000 as at from partitions where dataset_id = 1 order by from_ms`,
    );
    for (const [index, row] of stored.entries()) {
      const { manifest } = row;
      const proved = row.state === 'proved';
      expect(partitions[index]).toEqual({
        partition: row.partition_key,
        source_id: 'exchange_a',
        state: row.state,
        start_utc: iso(at(row.partition_key)),
        end_utc: iso(at(row.partition_key) + DAY_MS),
        rows: proved ? 100 : null,
        aligned_rows: proved ? Number(row.aligned_rows) : null,
        first_offset: manifest.first_offset,
        last_offset: manifest.last_offset,
        rows_hash: manifest.rows_hash,
        events_sha256: manifest.events_sha256,
        document: manifest.document,
        revision: 1,
        attempt: 1,
        synthetic: false,
        ingested_at_utc: iso(manifest.ingested_at_ms),
        proved_at_utc: proved ? iso(Math.floor(Number(row.at))) : null,
        reason: row.reason,
        // No process sequences the proof log here: test/integration/proof-log.test.ts.
        proof_log: {
          state: 'pending',
          leaf_index: null,
          leaf: expect.stringContaining(
            `"kind":"${row.state}","dataset":"exchange_a_spot_trades","partition":"${row.partition_key}"`,
          ),
          salt: expect.stringMatching(/^[0-9a-f]{64}$/),
          inclusion: null,
        },
      });
    }
    expect(partitions[3].reason).toMatch(/ids|offsets/);
    expect(JSON.stringify(partitions)).not.toContain(system.vendor);
  });

  test('pages by cursor: each partition once, whatever comes in between', async () => {
    const all = (await coverage()).partitions;
    const seen: Json[] = [];
    for (let cursor = ''; ; ) {
      const page = await coverage(`?limit=1${cursor}`);
      expect(page.partitions).toHaveLength(1);
      seen.push(...page.partitions);
      if (page.next_cursor === null) break;
      cursor = `&cursor=${page.next_cursor}`;
    }
    expect(seen).toEqual(all);
    expect((await coverage('?limit=4')).next_cursor).toBeNull();
    const two = await coverage('?limit=2');
    expect((await coverage(`?limit=1000&cursor=${two.next_cursor}`)).partitions).toEqual(all.slice(2));
  });

  test('chooses partitions by time and state', async () => {
    const keys = async (query: string) => (await coverage(query)).partitions.map(({ partition }: Json) => partition);
    expect(await keys('?state=quarantined')).toEqual([DAYS[4]]);
    expect(await keys('?state=published')).toEqual([]);
    expect(await keys(`?from=${DAYS[1]}T00:00:00Z`)).toEqual([DAYS[1], DAYS[3], DAYS[4]]);
    expect(await keys(`?from=${DAYS[1]}T23:59:59.999Z&to=${DAYS[3]}T00:00:00.001Z`)).toEqual([DAYS[1], DAYS[3]]);
    expect(await keys(`?to=${DAYS[1]}T00:00:00Z&state=proved`)).toEqual([DAYS[0]]);
    expect(await keys(`?from=${DAYS[2]}T12:00:00%2B00:00&to=${DAYS[2]}T13:00:00Z`)).toEqual([]);
  });

  test('is the same text while nothing changes, and has another version after a change', async () => {
    const [one, two] = [await get(`/v1/coverage/${DATASET}`), await get(`/v1/coverage/${DATASET}`)];
    expect(one.text).toBe(two.text);
    await execute(system.env.databaseUrl, 'update coverage set version = version + 1 where dataset_id = 1');
    expect((await coverage()).version).toBe(one.json.version + 1);
  });

  test('of a dataset of which nothing is proved is empty, not an error', async () => {
    for (const key of DATASET_KEYS.slice(1)) {
      const answer = await coverage('', key);
      expect([answer.proved, answer.gaps, answer.partitions, answer.as_of_utc]).toEqual([[], [], [], null]);
    }
  });
});

describe('partitions that are no stretches of time', () => {
  test('are covered by source, in the unit they are counted in', async () => {
    await using env = await createTestEnv();
    await using other = await startServing({ databaseUrl: env.databaseUrl, rightsMatrixPath: matrixPath });
    await migrated(env.databaseUrl);
    const t = at('2024-02-01');
    const span = (id: number, source: string, from: number, to: number, startMs: number, throughMs: number) =>
      `insert into coverage_spans values (${id}, '${source}', '[${from},${to})', ${startMs}, ${throughMs}, ${throughMs}, 2, 20);`;
    await execute(
      env.databaseUrl,
      // heights 1-10 and 13-20, whose first block is older than the one before; two issuers' days; snapshots
      span(6, 'bitcoin_core', 1, 11, t, t + 5000) +
        span(6, 'bitcoin_core', 13, 21, t + 4000, t + 9000) +
        span(4, 'etf_x_aa_daily', t, t + DAY_MS, t, t + DAY_MS) +
        span(4, 'etf_x_aa_daily', t + 3 * DAY_MS, t + 4 * DAY_MS, t + 3 * DAY_MS, t + 4 * DAY_MS) +
        span(4, 'etf_y_bb_daily', t, t + 2 * DAY_MS, t, t + 2 * DAY_MS) +
        span(8, 'bitcoin_core', t, t + 60_001, t, t + 61_000) +
        `insert into partitions (dataset_id, partition_key, source_id, span, state, attempt, revision, from_ms, to_ms, synthetic, rows)
         values (6, '1-10', 'bitcoin_core', '[1,11)', 'proved', 1, 1, ${t}, ${t + 4999}, false, 20),
           (6, '13-20', 'bitcoin_core', '[13,21)', 'proved', 1, 1, ${t + 4000}, ${t + 9000}, false, 20),
           (6, '21', 'bitcoin_core', '[21,22)', 'publishing', 1, 1, null, null, false, null),
           (6, '22', 'bitcoin_core', '[22,23)', 'publishing', 1, 1, null, null, false, null);`,
    );
    const read = async (key: string, query = '') => {
      const { json } = await other.send({ method: 'GET', path: `/v1/coverage/${key}${query}` });
      return coverageAnswer.parse(json);
    };
    const headers = await read('bitcoin_block_headers');
    expect(headers.proved.map(({ span: { unit, from, to } }) => [unit, from, to])).toEqual([
      ['height', 1, 11],
      ['height', 13, 21],
    ]);
    expect(headers.gaps).toEqual([
      {
        source_id: 'bitcoin_core',
        start_utc: iso(t + 5000),
        end_utc: iso(t + 5000),
        span: { unit: 'height', from: 11, to: 13 },
      },
    ]);
    expect([headers.as_of_utc, headers.totals.proved, headers.totals.publishing]).toEqual([
      iso(t + 9000),
      { partitions: 4, rows: 40 },
      { partitions: 2, rows: 0 },
    ]);
    // Those whose times are not known yet come last, over pages too.
    const keys: string[] = [];
    for (let query = '?limit=1', more = true; more; ) {
      const page = await read('bitcoin_block_headers', query);
      keys.push(...page.partitions.map(({ partition }) => partition));
      query = `?limit=1&cursor=${page.next_cursor}`;
      more = page.next_cursor !== null;
    }
    expect(keys).toEqual(['1-10', '13-20', '21', '22']);
    const etf = await read('etf_daily_metrics');
    expect([
      etf.as_of_utc,
      etf.gaps.map(({ source_id, start_utc, end_utc }) => [source_id, start_utc, end_utc]),
    ]).toEqual([iso(t + 2 * DAY_MS), [['etf_x_aa_daily', iso(t + DAY_MS), iso(t + 3 * DAY_MS)]]]);
    expect((await read('bitcoin_mempool_state')).gaps).toEqual([]);
    const { json } = await other.send({ method: 'GET', path: '/v1/datasets' });
    const etfDataset = json.datasets.find(({ key }: Json) => key === 'etf_daily_metrics');
    expect(etfDataset.availability).toEqual({
      proved_from_utc: iso(t),
      proved_through_utc: iso(t + 4 * DAY_MS),
      as_of_utc: iso(t + 2 * DAY_MS),
      partitions: 6,
      rows: 60,
      synthetic: false,
    });
  });
});

describe('requests', () => {
  test('are 503 while the database is away, and have slots of their own', async () => {
    await using away = await startServing({ databaseUrl: 'postgres://x:y@127.0.0.1:1/z' });
    const answer = await away.send({ method: 'GET', path: '/v1/datasets' });
    expect([...outcome(answer), answer.headers['retry-after']]).toEqual([503, 'QUERY_BACKEND_ERROR', '2']);
    await using narrow = await startServing({
      databaseUrl: system.env.databaseUrl,
      limits: { discoveryRunning: 1, discoveryWaiting: 0 },
    });
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => narrow.send({ method: 'GET', path: '/v1/datasets' })),
    );
    const codes = new Set(answers.map(({ status, json }) => `${status} ${json.code ?? ''}`));
    expect(codes).toEqual(new Set(['200 ', '503 QUERY_QUEUE_LIMIT_REACHED']));
  });
});
