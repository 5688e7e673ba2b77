/**
 * The storage changed by hand under the running service: each dataset that needs what is gone says so with the code and
 * the status the contract has for it, on every route; the others, and native rows, go on; and all is well again once it
 * is put right, without a restart.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { loadDays, randomDay } from '../support/load-rows.ts';
import { DATASETS, type Dataset, EXCHANGES } from '../support/oracle/fields.ts';
import { ROW_ROUTES } from '../support/oracle/routes.ts';
import { type Answer, eventually, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const TABLE = 'canonical_aligned_1s_aggregates';
const STREAMS: readonly Dataset[] = ['bitcoin_block_headers', 'bitcoin_block_transactions', 'bitcoin_mempool_state'];
/** Of streams whose frames read aligned rows. */
const FRAME_COLUMNS: Partial<Record<Dataset, { field: string }>> = { bitcoin_mempool_state: { field: 'tx_count' } };
const WITH_ROWS: Dataset = 'exchange_a_spot_trades';

let env: TestEnv;
let serving: Serving;
beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-05-01', 100, 1, 1)]);
  serving = await startServing({ databaseUrl: env.databaseUrl });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

/** A dataset's aligned rows, by each route that serves them. */
async function askAligned(dataset: Dataset): Promise<Answer[]> {
  const body = { mode: 'aligned_1s' };
  const columns = [{ name: 'x', dataset, ...FRAME_COLUMNS[dataset] }];
  const historical = ROW_ROUTES.filter(({ style }) => style.kind !== 'query' && style.dataset === dataset);
  return await Promise.all([
    serving.query({ ...body, sources: [dataset] }),
    serving.query({ ...body, sources: [dataset], n_rows: 5 }),
    serving.query({ ...body, sources: [dataset], n_random: 5 }),
    ...(dataset in FRAME_COLUMNS
      ? [serving.send({ path: '/v1/frame', body: JSON.stringify({ grid: '1h', n_rows: 1, columns }) })]
      : []),
    ...historical.map(({ path }) => serving.send({ path, body: JSON.stringify(body) })),
  ]);
}

function expectViolation(answers: readonly Answer[], dataset: Dataset, detail: RegExp): void {
  const status = STREAMS.includes(dataset) ? 409 : 503;
  for (const answer of answers) {
    expect([dataset, answer.status, answer.json.code]).toEqual([dataset, status, 'ALIGNED_STORAGE_CONTRACT_VIOLATION']);
    expect(answer.json.detail).toMatch(detail);
    expect(answer.headers['retry-after'] !== undefined).toBe(status === 503);
  }
}

function expectServed(answers: readonly Answer[], dataset: Dataset): void {
  const expected = dataset === WITH_ROWS ? 200 : 404;
  for (const answer of answers)
    expect([dataset, answer.status, answer.json.code?.endsWith('_NO_DATA')]).toEqual([
      dataset,
      expected,
      expected === 404 || undefined,
    ]);
}

const readiness = async () => (await serving.send({ method: 'GET', path: '/readyz', key: null })).json.checks;

/** The drift, who is concerned, what is said, and the way back. */
const METRICS: readonly Dataset[] = DATASETS.filter((key) => !STREAMS.includes(key) && !EXCHANGES.includes(key));
const EXCHANGE_KEYS = EXCHANGES as readonly Dataset[];
const DRIFTS: readonly [string, readonly Dataset[], RegExp, string, string][] = [
  [
    'the table is gone',
    DATASETS,
    /table \w+ is missing/,
    `alter table ${TABLE} rename to gone`,
    `alter table gone rename to ${TABLE}`,
  ],
  [
    'a column of all is retyped',
    DATASETS,
    /series_id is int8, declared int4/,
    `alter table ${TABLE} alter series_id type int8`,
    `alter table ${TABLE} alter series_id type int4`,
  ],
  [
    'a column of trades is renamed',
    EXCHANGE_KEYS,
    /close_price is missing/,
    `alter table ${TABLE} rename close_price to last_price`,
    `alter table ${TABLE} rename last_price to close_price`,
  ],
  [
    'a column of metrics is dropped',
    METRICS,
    /metric_value_string is missing/,
    `alter table ${TABLE} drop column metric_value_string`,
    `alter table ${TABLE} add column metric_value_string text`,
  ],
  [
    'a column of streams is dropped',
    STREAMS,
    /bucket_sha256 is missing/,
    `alter table ${TABLE} drop column bucket_sha256`,
    `alter table ${TABLE} add column bucket_sha256 text`,
  ],
  [
    'one of blocks is retyped',
    ['bitcoin_block_headers'],
    /latest_nonce is text, declared int8/,
    `alter table ${TABLE} alter latest_nonce type text`,
    `alter table ${TABLE} alter latest_nonce type int8 using latest_nonce::int8`,
  ],
  [
    'one of transactions is renamed',
    ['bitcoin_block_transactions'],
    /total_output_value_btc is missing/,
    `alter table ${TABLE} rename total_output_value_btc to x`,
    `alter table ${TABLE} rename x to total_output_value_btc`,
  ],
  [
    'one of the mempool is dropped',
    ['bitcoin_mempool_state'],
    /total_vsize is missing/,
    `alter table ${TABLE} drop column total_vsize`,
    `alter table ${TABLE} add column total_vsize int8`,
  ],
];

describe.each(DRIFTS)('%s', (_, concerned, detail, drift, repair) => {
  test('is told by each dataset that needs it, and by no other; and ends with the repair', async () => {
    await execute(env.databaseUrl, drift);
    try {
      for (const dataset of DATASETS) {
        const answers = await askAligned(dataset);
        const estimate = await serving.send({
          path: '/v1/raw/estimate',
          body: JSON.stringify({ mode: 'aligned_1s', sources: [dataset] }),
        });
        if (concerned.includes(dataset)) expectViolation([...answers, estimate], dataset, detail);
        else expectServed(answers, dataset);
      }
      expect((await serving.query({ sources: [WITH_ROWS] })).json.row_count).toBe(100);
      await eventually(async () => (await readiness())?.aligned_storage === 'violated', 'it is not ready');
    } finally {
      await execute(env.databaseUrl, repair);
    }
    for (const dataset of DATASETS) expectServed(await askAligned(dataset), dataset);
    await eventually(async () => (await readiness()).aligned_storage === 'ok', 'it is ready again');
  });
});

describe('native rows', () => {
  const changes: readonly [string, string, string][] = [
    [
      'a column dropped',
      `alter table ${WITH_ROWS} drop column is_best_match`,
      `alter table ${WITH_ROWS} add column is_best_match boolean not null default true`,
    ],
    [
      'a column renamed',
      `alter table ${WITH_ROWS} rename quantity to amount`,
      `alter table ${WITH_ROWS} rename amount to quantity`,
    ],
    [
      'a column retyped',
      `alter table ${WITH_ROWS} alter quantity type numeric`,
      `alter table ${WITH_ROWS} alter quantity type float8`,
    ],
    ['the table gone', `alter table ${WITH_ROWS} rename to gone`, `alter table gone rename to ${WITH_ROWS}`],
  ];

  test.each(changes)('%s is a fault of the storage, not a wrong number and not a 500', async (_, change, repair) => {
    await execute(env.databaseUrl, change);
    try {
      for (const window of [
        {},
        { n_rows: 5 },
        { n_random: 5 },
        { filters: [{ field: 'quantity', op: 'gt', value: 0 }] },
      ]) {
        const answer = await serving.query({ sources: [WITH_ROWS], ...window });
        expect([answer.status, answer.json.code]).toEqual([503, 'QUERY_RUNTIME_ERROR']);
        expect(answer.headers['retry-after']).toBeDefined();
      }
      const klines = await serving.send({ path: '/v1/historical/exchange_a/spot/klines', body: '{}' });
      expect([200, 503]).toContain(klines.status);
      expect((await serving.query({ sources: [WITH_ROWS], mode: 'aligned_1s' })).status).toBe(200);
    } finally {
      await execute(env.databaseUrl, repair);
    }
    expect((await serving.query({ sources: [WITH_ROWS] })).json.row_count).toBe(100);
  });
});
