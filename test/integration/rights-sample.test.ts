/** The sample's artifact grants synthetic rows only, wherever rows can leave the service; a right withdrawn stops exports. */
import { copyFile, cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { NO_INSTRUMENTS } from '../../serving/contract/instruments.ts';
import type { ProofLog } from '../../serving/discovery/proof-log.ts';
import type { ExportRow } from '../../serving/exports/rows.ts';
import { exportRunner } from '../../serving/exports/worker.ts';
import type { Reader } from '../../serving/read/execute/answer.ts';
import type { FrameReader } from '../../serving/read/frame/frame.ts';
import { BufferPool } from '../../serving/render/response.ts';
import { RightsStore } from '../../shared/rights/store.ts';
import { EXPORT, type Exports, startExports } from '../support/exports.ts';
import { claimOther, DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import { type Answer, eventually, OWN_MATRIX, SAMPLE_MATRIX } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv, testLogger } from '../support/stack.ts';

const RANGE = ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'];
const REFUSED = [409, 'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING'];
const EXPORT_REFUSED = [409, 'EXPORT_RIGHTS_LEGAL_SIGNOFF_MISSING'];
const KLINES = '/v1/historical/exchange_a/spot/klines';

let env: TestEnv;
let exports: Exports;
let matrixPath: string;

const outcome = ({ status, json }: Answer) => [status, json?.code];
const query = (body: object = {}, on = exports) => on.serving.query({ sources: [DATASET], ...body });
const post = (path: string, body: object) => exports.serving.send({ path, body: JSON.stringify(body) });
const exported = (more: object = {}) => ({ dataset: DATASET, format: 'csv', time_range: RANGE, ...more });

/** What is proved came from the sample's own generator, or from a vendor. */
const mark = (synthetic: boolean) =>
  execute(
    env.databaseUrl,
    `update partitions set synthetic = ${synthetic}; update coverage set synthetic = ${synthetic}, version = version + 1`,
  );

/** A folder with a copy of a matrix and its artifacts. */
async function use(matrix: string): Promise<void> {
  await cp(dirname(matrix), dirname(matrixPath), { recursive: true });
  await copyFile(matrix, matrixPath);
}

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 100, 1000, 1)]);
  // Neither the path nor the version tells that it is the sample's.
  matrixPath = join(env.dir, 'rights', 'mine.json');
  await mkdir(dirname(matrixPath));
  await use(SAMPLE_MATRIX);
  // Without a worker: the queue is everybody's, and each test that runs exports has a service and a folder of its own.
  exports = await startExports(env, { rightsMatrixPath: matrixPath, worker: false });
});
afterAll(async () => {
  await exports?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});
beforeEach(() => use(SAMPLE_MATRIX));
afterEach(() => mark(false));

/** Every way to rows, and what it answers where they may not be served. */
const WAYS: readonly [string, () => Promise<Answer>, readonly unknown[]][] = [
  ['query', () => query({ time_range: RANGE }), REFUSED],
  ['query of the history', () => query(), REFUSED],
  ['query, aligned', () => query({ time_range: RANGE, mode: 'aligned_1s' }), REFUSED],
  ['query of the newest rows', () => query({ n_rows: 3 }), REFUSED],
  ['query of the newest rows again', () => query({ n_rows: 3 }), REFUSED],
  ['query of random rows', () => query({ n_random: 3 }), REFUSED],
  ['strict query', () => query({ n_rows: 3, strict: true }), REFUSED],
  [
    'query of a window without rows',
    () => query({ time_range: ['2030-01-01T00:00:00Z', '2030-01-02T00:00:00Z'] }),
    REFUSED,
  ],
  ['historical', () => post('/v1/historical/exchange_a/spot/trades', { n_latest_rows: 3 }), REFUSED],
  ['klines', () => post(KLINES, { kline_size: '1h' }), REFUSED],
  ['aligned klines', () => post(KLINES, { kline_size: '1h', mode: 'aligned_1s', n_latest_rows: 2 }), REFUSED],
  ['estimate', () => post('/v1/raw/estimate', { sources: [DATASET], time_range: RANGE }), REFUSED],
  ['lineage', () => exports.get(`/v1/lineage/${DATASET}/1000`), REFUSED],
  ['lineage of an offset that is not there', () => exports.get(`/v1/lineage/${DATASET}/1`), REFUSED],
  ['lineage of what is no offset', () => exports.get(`/v1/lineage/${DATASET}/x`), REFUSED],
  ['export', () => exports.submit(exported()), EXPORT_REFUSED],
  ['strict export', () => exports.submit(exported({ time_range: undefined, n_rows: 3, strict: true })), EXPORT_REFUSED],
];

describe('real rows under the sample matrix', () => {
  test.each(WAYS)('%s is refused, and the answer names the remedy', async (_, ask, refused) => {
    const answer = await ask();
    expect(outcome(answer), answer.text.slice(0, 300)).toEqual(refused);
    expect(answer.json.detail).toContain('./tidemark rights init');
    expect(answer.json.detail).toContain('SVC_SOURCE_RIGHTS_MATRIX_PATH');
    expect(answer.text).not.toContain(env.dir);
  });

  test('rows of the sample are served, marked', async () => {
    await mark(true);
    const answer = await query({ n_rows: 3 });
    expect([answer.status, answer.json.row_count, answer.headers['x-svc-synthetic']]).toEqual([200, 3, 'true']);
    expect((await exports.submit(exported())).status).toBe(202);
  });

  test('one real partition among synthetic ones, proved or served again, is enough', async () => {
    await mark(true);
    await execute(env.databaseUrl, 'update partitions set synthetic = false');
    expect(outcome(await query({ n_rows: 3 }))).toEqual(REFUSED);
  });

  test('an artifact of the sample is known by what it says, in whatever lines and folder', async () => {
    const path = join(dirname(matrixPath), 'sample-data-only.md');
    const text = await readFile(path, 'utf8');
    for (const same of [text.replaceAll('\n', '\r\n'), `\ufeff${text}\n\n`, text.replaceAll('\n', ' ')]) {
      await writeFile(path, same);
      expect(outcome(await query({ n_rows: 3 }))).toEqual(REFUSED);
    }
    await writeFile(path, 'The agreement with the vendor, signed.');
    expect((await query({ n_rows: 3 })).status).toBe(200);
  });

  test('of several sources one under the sample is enough', async () => {
    const matrix = JSON.parse(await readFile(OWN_MATRIX, 'utf8'));
    const [first] = Object.keys(matrix.sources).filter((source) => source.startsWith('etf_'));
    await use(OWN_MATRIX);
    await execute(
      env.databaseUrl,
      `insert into partitions (dataset_id, partition_key, state, attempt, revision, synthetic, rows, source_id)
       select dataset_id, 'real', 'proved', 1, 1, false, 1, '${first}' from coverage
       where dataset_id not in (select dataset_id from partitions)`,
    );
    expect(outcome(await query({ sources: ['etf_daily_metrics'] }))).toEqual([404, 'QUERY_NO_DATA']);
    matrix.sources[first].legal_signoff_artifact = 'sample-data-only.md';
    await writeFile(matrixPath, JSON.stringify(matrix));
    expect(outcome(await query({ sources: ['etf_daily_metrics'] }))).toEqual(REFUSED);
    expect((await query({ n_rows: 3 })).status).toBe(200);
    await execute(env.databaseUrl, `delete from partitions where partition_key = 'real'`);
  });

  test('GET /v1/datasets says that reads are refused', async () => {
    const rightsOf = async (key: string) =>
      (await exports.get('/v1/datasets')).json.datasets.find((dataset: { key: string }) => dataset.key === key).rights;
    expect(await rightsOf(DATASET)).toMatchObject({ refused_with: REFUSED[1] });
    expect(await rightsOf('macro_series_metrics')).toMatchObject({ refused_with: null });
    await mark(true);
    expect(await rightsOf(DATASET)).toMatchObject({ refused_with: null });
  });
});

test('GET /v1/datasets says that reads of an instrument are refused, though the default has nothing but its sample', async () => {
  await mark(true);
  const eth = await claimOther(env.databaseUrl, DATASET, 'ETHUSDT');
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 10, 1000, 1)], { dataset: eth });
  expect(outcome(await query({ n_rows: 3, instrument: 'ETHUSDT' }))).toEqual(REFUSED);
  const { json } = await exports.get('/v1/datasets');
  const { rights } = json.datasets.find(({ key }: { key: string }) => key === DATASET);
  expect(rights).toMatchObject({ refused_with: REFUSED[1] });
});

describe('what becomes real after it was asked about', () => {
  test('between the check of the rights and the read: not one row leaves', async () => {
    await mark(true);
    const { plain } = exports.serving.app.limiters;
    const held = await Promise.all(
      Array.from({ length: plain.limits.running }, () => plain.acquire(new AbortController().signal, 'small')),
    );
    const answer = query({ n_rows: 3 });
    await eventually(() => plain.load.waiting === 1, 'the read waits for a slot, its rights are checked');
    await mark(false);
    for (const slot of held) slot.release();
    expect(outcome(await answer)).toEqual(REFUSED);
  });

  test('between submit and run: the export fails, and leaves no file', async () => {
    await using idle = await startExports(env, {
      rightsMatrixPath: matrixPath,
      worker: false,
      settings: { SVC_EXPORT_ROOT_DIR: join(env.dir, 'later') },
    });
    await mark(true);
    const accepted = await idle.submit(exported());
    expect(accepted.status).toBe(202);
    await mark(false);
    idle.serving.app.exports.work();
    const { json } = await idle.finished(accepted.json.export_id);
    expect([json.status, json.error_code]).toEqual(['failed', EXPORT_REFUSED[1]]);
    expect(json.error_message).toContain('./tidemark rights init');
    expect(await idle.runs(accepted.json.export_id)).toEqual([]);
  });
});

describe('finished artifacts', () => {
  const WHAT = ['artifact', 'manifest'];

  test('of real rows are refused as soon as the matrix is the sample’s', async () => {
    await use(OWN_MATRIX);
    await using own = await startExports(env, {
      rightsMatrixPath: matrixPath,
      settings: { SVC_EXPORT_ROOT_DIR: join(env.dir, 'real') },
    });
    const { json } = await own.run(exported());
    const paths = [
      ...WHAT.map((what) => `${EXPORT}/${json.export_id}/${what}`),
      `${json.artifact.uri}/${json.artifact.files[0].name}`,
    ];
    for (const path of paths) expect((await own.get(path)).status, path).toBe(200);
    await use(SAMPLE_MATRIX);
    for (const path of paths) {
      const answer = await own.get(path);
      expect(outcome(answer), path).toEqual(EXPORT_REFUSED);
      expect(answer.json.detail).toContain('./tidemark rights init');
    }
  });

  test('of real rows, whole and left by a worker that was killed, are not taken as a run’s under the sample', async () => {
    await use(OWN_MATRIX);
    await using own = await startExports(env, {
      rightsMatrixPath: matrixPath,
      settings: { SVC_EXPORT_ROOT_DIR: join(env.dir, 'left') },
    });
    const { json } = await own.run(exported());
    const [fence] = await own.runs(json.export_id);
    // Nothing is read for an artifact that is there already, so no snapshot is asked either.
    const run = exportRunner({
      reader: undefined as unknown as Reader,
      frames: undefined as unknown as FrameReader,
      proofLog: undefined as unknown as ProofLog,
      signer: async () => undefined,
      instruments: { parse: async (_, parse) => parse(NO_INSTRUMENTS) },
      rights: new RightsStore(matrixPath, { byokRole: undefined, log: testLogger() }),
      buffers: new BufferPool(),
      now: Date.now,
      splitRows: 1_000_000,
    });
    const row = { exportId: json.export_id, request: exported() } as unknown as ExportRow;
    const call = {
      directory: join(own.root, json.export_id, fence),
      signal: new AbortController().signal,
      onProgress: () => {},
    };
    expect((await run(row, call)).artifact.sha256).toBe(json.artifact.checksum_sha256);
    await use(SAMPLE_MATRIX);
    await expect(run(row, call)).rejects.toMatchObject({ code: EXPORT_REFUSED[1] });
  });

  test('of the sample stay what they are when the first real partition is proved', async () => {
    await mark(true);
    await using own = await startExports(env, {
      rightsMatrixPath: matrixPath,
      settings: { SVC_EXPORT_ROOT_DIR: join(env.dir, 'synthetic') },
    });
    const { json } = await own.run(exported());
    expect(json.artifact.synthetic).toBe(true);
    await mark(false);
    expect((await own.get(json.artifact.uri)).status).toBe(200);
  });
});

test('a right or a serving state that is withdrawn stops submits, runs and downloads alike', async () => {
  const path = join(env.dir, 'matrix.json');
  const artifact = join(env.dir, 'signed.txt');
  await writeFile(artifact, 'signed');
  const write = (rights_state: string) =>
    writeFile(
      path,
      JSON.stringify({
        version: '1',
        sources: {
          exchange_a: {
            rights_state,
            rights_provisional: false,
            datasets: [DATASET],
            legal_signoff_artifact: artifact,
          },
        },
      }),
    );
  await write('Hosted Allowed');
  await using own = await startExports(env, {
    rightsMatrixPath: path,
    worker: false,
    settings: { SVC_EXPORT_ROOT_DIR: join(env.dir, 'withdrawn') },
  });
  const waiting = await own.submit(exported());
  expect(waiting.status).toBe(202);
  const refused: readonly [() => Promise<unknown>, string][] = [
    [() => write('Ingest Only'), 'EXPORT_RIGHTS_INGEST_ONLY'],
    [() => rm(artifact), 'EXPORT_RIGHTS_LEGAL_SIGNOFF_MISSING'],
  ];
  for (const [withdraw, problem] of refused.toReversed()) {
    await withdraw();
    expect(outcome(await own.submit(exported()))).toEqual([409, problem]);
    await write('Hosted Allowed');
    await writeFile(artifact, 'signed');
  }
  await write('Ingest Only');
  own.serving.app.exports.work();
  expect((await own.finished(waiting.json.export_id)).json).toMatchObject({
    status: 'failed',
    error_code: 'EXPORT_RIGHTS_INGEST_ONLY',
  });
  await write('Hosted Allowed');
  const { json } = await own.run(exported());
  await write('Ingest Only');
  expect(outcome(await own.get(json.artifact.uri))).toEqual([409, 'EXPORT_RIGHTS_INGEST_ONLY']);
  await writeFile(path, '{');
  expect(outcome(await own.get(json.artifact.uri))).toEqual([503, 'EXPORT_RIGHTS_RESOLUTION_ERROR']);
  expect(outcome(await own.submit(exported()))).toEqual([503, 'EXPORT_RIGHTS_RESOLUTION_ERROR']);
});
