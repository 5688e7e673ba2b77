import { createHash, randomUUID } from 'node:crypto';
import { appendFile, readFile, rename, rm, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gunzipSync, zstdDecompressSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { EXPORT, type Exports, recordsIn, startExports } from '../support/exports.ts';
import { type DayOfTrades, loadDays, randomDay } from '../support/load-rows.ts';
import { HOSTILE_TEXTS } from '../support/oracle/requests.ts';
import { openDuckDb } from '../support/read-parquet.ts';
import { API_KEY, eventually } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const DATASET = 'exchange_a_spot_trades';
const ROWS = 3000;
const DAY = { time_range: ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'] };

let env: TestEnv;
let exports: Exports;
let days: DayOfTrades[];
beforeAll(async () => {
  env = await createMigratedEnv();
  days = [randomDay('2024-03-01', ROWS, 1, 1), randomDay('2024-03-02', ROWS, 1 + ROWS, 2)];
  await loadDays(env.databaseUrl, days);
  exports = await startExports(env);
});
afterAll(async () => {
  await exports?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

const body = (more: object = {}) => ({ dataset: DATASET, format: 'csv', ...DAY, ...more });
const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
const code = async (answer: Promise<{ status: number; json: { code: string } }>) => {
  const { status, json } = await answer;
  return [status, json?.code];
};
const queryCsv = async (request: object) =>
  (await exports.serving.query(JSON.stringify({ sources: [DATASET], ...request }), { Accept: 'text/csv' })).text;

describe('an export', () => {
  test('is accepted, runs, succeeds, and holds the rows of the query', async () => {
    const accepted = await exports.submit(body());
    expect(accepted.status).toBe(202);
    const { export_id: id, ...rest } = accepted.json;
    expect(rest).toEqual({
      status: 'queued',
      api_key: 'owner',
      submitted_at: expect.stringMatching(/Z$/),
      status_path: `${EXPORT}/${id}`,
      rights_state: 'Hosted Allowed',
      rights_provisional: false,
      view_id: `${DATASET}_native`,
      view_version: 1,
      warnings: [],
      as_of_utc: '2024-03-03T00:00:00.000Z',
    });
    expect(accepted.headers.location).toBe(rest.status_path);
    const { json: status } = await exports.finished(id);
    expect(status).toMatchObject({
      export_id: id,
      status: 'succeeded',
      mode: 'native',
      format: 'csv',
      dataset: DATASET,
      source: 'exchange_a',
      submitted_at: rest.submitted_at,
      progress: { rows: ROWS, attempt: 1 },
      artifact: { format: 'csv', uri: `${EXPORT}/${id}/artifact`, row_count: ROWS, expired: false, synthetic: false },
    });
    const bytes = await exports.bytes(id);
    expect(sha256(bytes)).toBe(status.artifact.checksum_sha256);
    expect(bytes.length).toBe(status.artifact.bytes);
    expect(bytes.toString()).toBe(await queryCsv(DAY));
    const manifest = await exports.get(status.artifact.manifest_uri);
    expect(manifest.json).toMatchObject({ row_count: ROWS, sha256: status.artifact.checksum_sha256, dataset: DATASET });
    expect(manifest.json.proof.partitions).toBe(1);
  });

  test('of every window and mode, and of filters, is the query of it', async () => {
    const fields = ['trade_id', 'price'];
    const filtered = { ...DAY, fields, filters: [{ field: 'is_buyer_maker', op: 'eq', value: 1 }] };
    const cases: readonly [object, object][] = [
      [{ month_year: [3, 2024] }, { time_range: ['2024-03-01T00:00:00Z', '2024-04-01T00:00:00Z'] }],
      [
        { n_rows: 10, fields },
        { n_rows: 10, fields },
      ],
      [
        { n_random: 10, random_seed: 5 },
        { n_random: 10, random_seed: 5 },
      ],
      [
        { ...DAY, mode: 'aligned_1s' },
        { ...DAY, mode: 'aligned_1s' },
      ],
      [filtered, filtered],
    ];
    for (const [window, query] of cases) {
      const { json } = await exports.run({ dataset: DATASET, format: 'csv', ...window });
      expect(json.status, JSON.stringify(json)).toBe('succeeded');
      expect((await exports.bytes(json.export_id)).toString()).toBe(await queryCsv(query));
    }
  });

  test('filtered by integers above 2^53 is run with all their digits, and its manifest has them as texts', async () => {
    const clause = (value: unknown) => ({ field: 'trade_id', op: 'lt', value });
    const exact = (request: object) => JSON.stringify(request).replaceAll('"9007199254740993"', '9007199254740993');
    const run = async (request: object) => {
      const accepted = await exports.serving.send({ path: EXPORT, body: exact(request) });
      expect(accepted.status, accepted.text).toBe(202);
      const { json: status } = await exports.finished(accepted.json.export_id);
      expect(status.status, JSON.stringify(status)).toBe('succeeded');
      const { json, text } = await exports.get(status.artifact.manifest_uri);
      // As it was signed, also for a reader that rounds.
      expect(text).toBe(`${JSON.stringify(JSON.parse(text), undefined, 2)}\n`);
      return { manifest: json, rows: status.artifact.row_count };
    };
    const rows = await run(body({ filters: [clause('9007199254740993')] }));
    expect(rows).toMatchObject({ rows: ROWS, manifest: { filters: [clause('9007199254740993')] } });
    const column = { name: 'close', dataset: DATASET, field: 'price', filter: clause('9007199254740993') };
    const frame = await run({ columns: [column], grid: '1h', format: 'csv', ...DAY });
    expect(frame).toMatchObject({ rows: 24, manifest: { frame: { columns: [column] } } });
  });

  test('of a frame is the answer to its body, with the proofs of its datasets', async () => {
    const columns = [
      { name: 'close', dataset: DATASET, field: 'price' },
      { name: 'volume', dataset: DATASET, field: 'quantity', aggregate: 'sum' },
      {
        name: 'large',
        dataset: DATASET,
        field: 'price',
        aggregate: 'count',
        filter: { field: 'quantity', op: 'gt', value: 0.5 },
      },
    ];
    const frame = { columns, grid: '15m', as_of: 'row', ...DAY };
    const headers = { Accept: 'text/csv' };
    const served = await exports.serving.send({ path: '/v1/frame', body: JSON.stringify(frame), headers });
    const { json } = await exports.run({ ...frame, format: 'csv' });
    expect(json).toMatchObject({ status: 'succeeded', view_id: 'frame', datasets: [DATASET], compression: 'none' });
    expect(String(await exports.bytes(json.export_id))).toBe(served.text);
    const { json: manifest } = await exports.get(json.artifact.manifest_uri);
    expect(manifest).toMatchObject({
      dataset: null,
      proof: null,
      as_of: 'row',
      frame: { columns, grid: '15m', fill: null },
      row_count: 96,
      rows_sha256: served.headers['x-svc-rows-sha256'],
      proofs: [{ dataset: DATASET, partitions: 1, listed: [{ partition: '2024-03-01', rows: ROWS }] }],
    });
    expect(manifest.files[0].name).toBe('frame.900s.2024-03-01.as-of-row.csv');
  });

  test('is compressed as asked', async () => {
    const plain = await queryCsv(DAY);
    const { paths } = (await exports.get('/openapi.json')).json;
    const { content: declared } = paths[`${EXPORT}/{export_id}/artifact`].get.responses[200];
    for (const [compression, unpack, type] of [
      ['gzip', gunzipSync, 'application/gzip'],
      ['zstd', zstdDecompressSync, 'application/zstd'],
    ] as const) {
      const { json } = await exports.run(body({ compression }));
      const [first, again] = [await exports.bytes(json.export_id), (await exports.run(body({ compression }))).json];
      expect(unpack(first).toString()).toBe(plain);
      expect(again.artifact.checksum_sha256).toBe(json.artifact.checksum_sha256);
      const { headers } = await exports.get(`${EXPORT}/${json.export_id}/artifact`);
      expect([headers['content-type'], headers['content-disposition']]).toEqual([
        type,
        `attachment; filename="${DATASET}.native.2024-03-01.csv.${compression === 'gzip' ? 'gz' : 'zst'}"`,
      ]);
      expect(Object.keys(declared)).toContain(type);
    }
    const codecs: string[] = [];
    using duck = await openDuckDb();
    for (const compression of ['zstd', 'snappy', 'none']) {
      const { json } = await exports.run(body({ format: 'parquet', compression }));
      const path = join(env.dir, `${compression}.parquet`);
      await writeFile(path, await exports.bytes(json.export_id));
      const [[codec]] = await duck.texts(`select distinct compression from parquet_metadata('${path}')`);
      codecs.push(codec!);
      expect(await duck.texts(`select count(*) from '${path}'`)).toEqual([[String(ROWS)]]);
    }
    expect(codecs).toEqual(['ZSTD', 'SNAPPY', 'UNCOMPRESSED']);
    const wrong = await exports.submit(body({ compression: 'snappy' }));
    expect(wrong.json.errors).toEqual([
      { pointer: '/compression', message: 'must be one of none, gzip, zstd for csv' },
    ]);
  });

  test('of a random sample without a seed keeps the one drawn for it', async () => {
    const { json } = await exports.run({ dataset: DATASET, format: 'csv', n_random: 5 });
    const [warning] = json.warnings;
    expect(warning.code).toBe('WINDOW_RANDOM_SAMPLE');
    const csv = await queryCsv({ n_random: 5, random_seed: warning.details.random_seed });
    expect((await exports.bytes(json.export_id)).toString()).toBe(csv);
  });

  test('past what is proved says so, at submit and in the end', async () => {
    const window = { time_range: ['2024-03-02T00:00:00Z', '2024-03-05T00:00:00Z'] };
    const accepted = await exports.submit(body(window));
    expect(accepted.json.warnings.map((one: { code: string }) => one.code)).toEqual(['WINDOW_EXCEEDS_PROVED_COVERAGE']);
    const { json } = await exports.finished(accepted.json.export_id);
    expect(json.warnings).toEqual(accepted.json.warnings);
    expect(json.artifact.row_count).toBe(ROWS);
    expect(await code(exports.submit(body({ ...window, strict: true })))).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
  });
});

describe('refused at submit', () => {
  const faults: readonly [string, unknown, string][] = [
    ['no window', { dataset: DATASET, format: 'csv' }, ''],
    ['two windows', body({ n_rows: 1 }), '/time_range'],
    ['month 13', { dataset: DATASET, format: 'csv', month_year: [13, 2024] }, '/month_year/0'],
    ['year 0', { dataset: DATASET, format: 'csv', month_year: [1, 0] }, '/month_year/1'],
    ['a month of texts', { dataset: DATASET, format: 'csv', month_year: ['1', '2024'] }, '/month_year/0'],
    ['an unknown dataset', body({ dataset: 'nothing' }), '/dataset'],
    ['no dataset', { format: 'csv', ...DAY }, '/dataset'],
    ['no format', { dataset: DATASET, ...DAY }, '/format'],
    ['an unknown format', body({ format: 'xml' }), '/format'],
    ['a filter of no field', body({ filters: [{ field: 'nothing', op: 'gt', value: 1 }] }), '/filters/0/field'],
    ['an auth_token that is no text', body({ auth_token: 5 }), '/auth_token'],
    ['no object', '[]', ''],
  ];
  test.for(faults)('%s', async ([, request, pointer]) => {
    const { status, json } = await exports.submit(request);
    expect([status, json.code]).toEqual([409, 'EXPORT_CONTRACT_ERROR']);
    expect(json.errors.map((one: { pointer: string }) => one.pointer)).toContain(pointer);
  });

  test('no JSON, parameters in the URL, a key that is none', async () => {
    const send = (raw: object) => code(exports.serving.send({ path: EXPORT, body: JSON.stringify(body()), ...raw }));
    expect(await send({ body: '{' })).toEqual([409, 'EXPORT_CONTRACT_ERROR']);
    expect(await send({ path: `${EXPORT}?format=csv` })).toEqual([409, 'EXPORT_CONTRACT_ERROR']);
    expect(await send({ headers: { 'Idempotency-Key': 'x'.repeat(256) } })).toEqual([409, 'EXPORT_CONTRACT_ERROR']);
    // Two of them were joined, and named an export of their own.
    expect(await send({ headers: { 'Idempotency-Key': ['a', 'b'] } })).toEqual([409, 'EXPORT_CONTRACT_ERROR']);
    expect(await send({ key: null })).toEqual([409, 'AUTH_INVALID_API_KEY']);
    expect(await send({ headers: { Accept: 'text/html' } })).toEqual([406, 'NOT_ACCEPTABLE']);
  });

  test('a caller’s own token, whatever it says', async () => {
    for (const auth_token of ['secret', '']) {
      const answer = await exports.submit(body({ auth_token }));
      expect([answer.status, answer.json.code]).toEqual([409, 'EXPORT_AUTH_TOKEN_UNSUPPORTED']);
      expect(answer.text).not.toContain('secret');
    }
  });

  test('a window of which nothing is proved: the future, the past, a dataset without anything', async () => {
    const future = new Date().getUTCFullYear() + 1;
    for (const one of [
      body({ time_range: undefined, month_year: [1, future] }),
      body({ time_range: undefined, month_year: [12, 9999] }),
      body({ time_range: undefined, month_year: [1, 1970] }),
      // Times of requests begin with the year 1; a month before 1970 was refused as no month.
      body({ time_range: undefined, month_year: [12, 1969] }),
      body({ time_range: undefined, month_year: [1, 1] }),
      body({ dataset: 'exchange_b_spot_trades' }),
      body({ dataset: 'bitcoin_block_headers', time_range: undefined, n_rows: 5 }),
    ]) {
      expect(await code(exports.submit(one)), JSON.stringify(one)).toEqual([409, 'EXPORT_WINDOW_NOT_PROVED']);
    }
  });

  test('strict, of a window that changes: before storage is asked', async () => {
    for (const window of [{ n_rows: 5 }, { n_random: 5 }]) {
      const request = { dataset: 'exchange_b_spot_trades', format: 'csv', strict: true, ...window };
      expect(await code(exports.submit(request))).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
    }
  });
});

test('texts that have broken services are refused, and nothing of them is run', async () => {
  for (const text of HOSTILE_TEXTS) {
    for (const one of [
      { dataset: text },
      { format: text },
      { mode: text },
      { fields: [text] },
      { view_id: text, view_version: 1 },
      { time_range: [text, '2024-03-02T00:00:00Z'] },
      { month_year: [text, 2024], time_range: undefined },
      { auth_token: text },
      { [text || 'x']: 1 },
    ]) {
      const { status, json, text: answer } = await exports.submit(body(one));
      expect([status, /^EXPORT_(CONTRACT_ERROR|AUTH_TOKEN_UNSUPPORTED)$/.test(json.code)], answer).toEqual([409, true]);
    }
  }
});

describe('an Idempotency-Key', () => {
  test('names one export, also for submits at once; another body is a conflict', async () => {
    const key = { 'Idempotency-Key': randomUUID() };
    const all = await Promise.all(Array.from({ length: 5 }, () => exports.submit(body(), key)));
    expect(new Set(all.map(({ status, json }) => `${status} ${json.export_id}`)).size).toBe(1);
    expect(all.filter(({ headers }) => headers['idempotency-replayed'] === undefined)).toHaveLength(1);
    // The same request, written in another way.
    const again = await exports.submit(JSON.stringify({ ...DAY, format: 'csv', dataset: DATASET }, null, 3), key);
    expect(again.json.export_id).toBe(all[0].json.export_id);
    expect(await code(exports.submit(body({ format: 'parquet' }), key))).toEqual([409, 'EXPORT_IDEMPOTENCY_CONFLICT']);
    await exports.finished(all[0].json.export_id);
  });
});

test('an export that nobody announces is found', async () => {
  const exportId = randomUUID();
  const { json } = await exports.run(body());
  await execute(
    env.databaseUrl,
    `insert into exports (export_id, request, request_sha256, dataset_id, mode, format, rights_state, rights_provisional,
       view_id, view_version)
     select '${exportId}', request, request_sha256, dataset_id, mode, format, rights_state, rights_provisional, view_id,
       view_version from exports where export_id = '${json.export_id}'`,
  );
  expect((await exports.finished(exportId)).json.status).toBe('succeeded');
});

describe('the list', () => {
  test('shows exports newest first, a page at a time, by state and dataset', async () => {
    const ids: string[] = [];
    for (let index = 0; index < 3; index++) ids.unshift((await exports.run(body())).json.export_id);
    const first = await exports.get(`${EXPORT}?limit=2&status=succeeded&dataset=${DATASET}`);
    expect(first.json.exports.map((one: { export_id: string }) => one.export_id)).toEqual(ids.slice(0, 2));
    const second = await exports.get(`${EXPORT}?limit=1&cursor=${first.json.next_cursor}`);
    expect(second.json.exports[0].export_id).toBe(ids[2]);
    expect((await exports.get(`${EXPORT}?dataset=macro_series_metrics`)).json).toEqual({
      exports: [],
      next_cursor: null,
    });
    const similar = await exports.get(`${EXPORT}?dataset=${DATASET.slice(0, -1)}`);
    expect(similar.json.detail).toContain(`did you mean ${DATASET}?`);
    for (const query of ['limit=0', 'limit=101', 'status=done', 'cursor=x', 'x=1', 'limit=1&limit=2']) {
      expect(await code(exports.get(`${EXPORT}?${query}`)), query).toEqual([409, 'EXPORT_CONTRACT_ERROR']);
    }
  });
});

describe('an id that is none', () => {
  test.for([
    '..%2f..%2fetc%2fpasswd',
    '..',
    '%2e%2e%2f%2e%2e',
    'x',
    '00000000-0000-4000-8000-000000000000',
    "'; drop table exports; --",
  ])('%s is not found', async (id) => {
    for (const path of [`${EXPORT}/${encodeURI(id)}`, `${EXPORT}/${encodeURI(id)}/artifact`]) {
      const { status, json, text } = await exports.get(path);
      expect([status, ['EXPORT_NOT_FOUND', 'ROUTE_NOT_FOUND'].includes(json.code)], text).toEqual([404, true]);
    }
    expect((await exports.cancel(encodeURI(id))).status).toBe(404);
  });

  test('nor does a name of a file lead out of its folder', async () => {
    const { json } = await exports.run(body());
    for (const name of ['..%2fmanifest.json', 'manifest.json', '%2e%2e', '..%2f..%2f..%2fsecrets.json']) {
      const answer = await exports.get(`${EXPORT}/${json.export_id}/artifact/${name}`);
      expect(answer.status, name).toBe(404);
    }
  });
});

describe('cancel', () => {
  test('of a waiting export is final; of a finished one a conflict', async () => {
    await using idle = await startExports(env, { worker: false, settings: { SVC_STATE_DIR: join(env.dir, 'idle') } });
    // Nobody takes exports until it is canceled: the worker of this file is busy with being stopped.
    await exports[Symbol.asyncDispose]();
    const { json } = await idle.submit(body());
    const canceled = await idle.cancel(json.export_id);
    expect(canceled.json).toMatchObject({ status: 'failed', error_code: 'EXPORT_RUN_CANCELED' });
    expect(await code(idle.cancel(json.export_id))).toEqual([409, 'EXPORT_ALREADY_FINISHED']);
    expect(await code(idle.get(`${EXPORT}/${json.export_id}/artifact`))).toEqual([409, 'EXPORT_ARTIFACT_NOT_READY']);
    exports = await startExports(env);
    // Its message is still there, and means nothing any more.
    await exports.run(body());
    expect((await exports.status(json.export_id)).json.status).toBe('failed');
    expect(await exports.runs(json.export_id)).toEqual([]);
  });
});

describe('the artifact', () => {
  test('is in the audit log once an hour for each file, with what was sent; HEAD, 304 and 416 are not', async () => {
    const { json } = await exports.run(body());
    const { uri, checksum_sha256: sha256 } = json.artifact;
    const { length } = await exports.bytes(json.export_id);
    await exports.bytes(json.export_id);
    await exports.get(uri, { Range: 'bytes=0-9' });
    const none: Record<string, string>[] = [
      { 'If-None-Match': `"${sha256}"` },
      { Range: `bytes=${length}-` },
      { 'If-Match': '"x"' },
    ];
    for (const headers of none) {
      expect((await exports.get(uri, headers)).status).toBeGreaterThanOrEqual(304);
    }
    expect((await exports.serving.send({ method: 'HEAD', path: uri })).status).toBe(200);
    const manifest = (await exports.get(`${EXPORT}/${json.export_id}/manifest`)).text;
    await exports.serving.app.exports.audit.recordDownloads();
    const records = await recordsIn(exports.audit);
    const mine = records.filter(({ event, export_id: id }) => event === 'export_download' && id === json.export_id);
    // The hour may end meanwhile.
    const sums = Object.entries(Object.groupBy(mine, ({ payload }) => payload.file)).map(([file, records]) => [
      file,
      ...['count', 'bytes'].map((name) => records!.reduce((sum, { payload }) => sum + payload[name], 0)),
    ]);
    expect(sums).toEqual([
      [expect.stringMatching(/[.]csv$/), 3, 2 * length + 10],
      [expect.stringMatching(/[.]json$/), 1, manifest.length],
    ]);
  });

  test('is sent in ranges', async () => {
    const { json } = await exports.run(body());
    const uri = json.artifact.uri;
    const whole = await exports.bytes(json.export_id);
    const part = async (range: string, more: object = {}) => {
      const answer = await exports.get(uri, { Range: range, ...more });
      return [answer.status, answer.headers['content-range'], answer.text] as const;
    };
    const slice = (from: number, to: number) => whole.subarray(from, to).toString();
    const size = whole.length;
    expect(await part('bytes=0-9')).toEqual([206, `bytes 0-9/${size}`, slice(0, 10)]);
    expect(await part(`bytes=${size - 5}-`)).toEqual([
      206,
      `bytes ${size - 5}-${size - 1}/${size}`,
      slice(size - 5, size),
    ]);
    expect(await part('bytes=-7')).toEqual([206, `bytes ${size - 7}-${size - 1}/${size}`, slice(size - 7, size)]);
    expect(await part(`bytes=5-${size + 100}`)).toEqual([206, `bytes 5-${size - 1}/${size}`, slice(5, size)]);
    for (const range of ['bytes=0-1,3-4', 'lines=1-2', 'bytes=5-1', 'bytes=-', 'x']) {
      expect((await part(range)).slice(0, 2), range).toEqual([200, undefined]);
    }
    for (const range of [`bytes=${size}-`, 'bytes=-0']) {
      const answer = await exports.get(uri, { Range: range });
      expect([answer.status, answer.json.code, answer.headers['content-range']]).toEqual([
        416,
        'EXPORT_RANGE_NOT_SATISFIABLE',
        `bytes */${size}`,
      ]);
    }
    const etag = `"${json.artifact.checksum_sha256}"`;
    expect((await part('bytes=0-9', { 'If-Range': etag }))[0]).toBe(206);
    expect((await part('bytes=0-9', { 'If-Range': '"other"' }))[0]).toBe(200);
    expect((await part('bytes=0-9', { 'If-Range': `W/${etag}` }))[0]).toBe(200);
    expect((await exports.get(uri, { 'If-None-Match': `"x", ${etag}` })).status).toBe(304);
    expect((await part('bytes=0-9', { 'If-Match': `"x", ${etag}` }))[0]).toBe(206);
    const other = await exports.get(uri, { 'If-Match': '"x"', Range: 'bytes=0-9' });
    expect([other.status, other.json.code, other.headers.etag]).toEqual([412, 'EXPORT_PRECONDITION_FAILED', etag]);
    const head = await exports.serving.send({ method: 'HEAD', path: uri });
    expect([head.status, head.text]).toEqual([200, '']);
    expect(head.headers).toMatchObject({
      etag,
      'content-length': String(size),
      'accept-ranges': 'bytes',
      'content-type': 'text/csv; charset=utf-8; header=present',
    });
    expect(head.headers['content-disposition']).toMatch(/^attachment; filename="[\w.-]+\.csv"$/);
    expect(await code(exports.get(uri, { Accept: 'application/json' }))).toEqual([406, 'NOT_ACCEPTABLE']);
    expect(await code(exports.serving.send({ method: 'GET', path: uri, key: 'wrong' }))).toEqual([
      409,
      'AUTH_INVALID_API_KEY',
    ]);
  });

  const pathOf = async (exportId: string) => {
    const { json } = await exports.status(exportId);
    return join(exports.root, exportId, (await exports.runs(exportId))[0], json.artifact.files[0].name);
  };

  test('deleted or altered behind the service’s back is never sent, and the status says so', async () => {
    const { json } = await exports.run(body());
    const path = await pathOf(json.export_id);
    const bytes = await readFile(path);
    const states = async () => [await code(exports.status(json.export_id)), await code(exports.get(json.artifact.uri))];
    const altered = [503, 'EXPORT_ARTIFACT_METADATA_ERROR'];
    await appendFile(path, 'x');
    expect(await states()).toEqual([altered, altered]);
    // The same size, and even the same time of change: the download looks at every byte.
    const { modified_ms } = (
      await execute(
        env.databaseUrl,
        `select artifact->'files'->0 as f from exports where export_id = '${json.export_id}'`,
      )
    ).rows[0].f;
    const changed = Buffer.from(bytes);
    changed[bytes.length - 3] ^= 1;
    await writeFile(path, changed);
    await utimes(path, modified_ms / 1000, modified_ms / 1000);
    expect(await code(exports.get(json.artifact.uri))).toEqual(altered);
    expect(await code(exports.get(json.artifact.uri))).toEqual(altered);
    await writeFile(path, bytes);
    await utimes(path, modified_ms / 1000, modified_ms / 1000);
    expect((await exports.bytes(json.export_id)).equals(bytes)).toBe(true);
    await rename(path, `${path}.away`);
    expect(await states()).toEqual([
      [503, 'EXPORT_ARTIFACT_METADATA_ERROR'],
      [503, 'EXPORT_ARTIFACT_METADATA_ERROR'],
    ]);
    await rm(join(exports.root, json.export_id), { recursive: true });
    expect((await states())[0]).toEqual([503, 'EXPORT_ARTIFACT_METADATA_ERROR']);
  });

  test('is deleted when its time is over', async () => {
    const { json } = await exports.run(body());
    await execute(
      env.databaseUrl,
      `update exports set expires_at = clock_timestamp() - interval '1 s' where export_id = '${json.export_id}'`,
    );
    expect(await code(exports.get(json.artifact.uri))).toEqual([404, 'EXPORT_ARTIFACT_EXPIRED']);
    const { json: status } = await exports.status(json.export_id);
    expect([status.status, status.artifact.expired]).toEqual(['succeeded', true]);
    await eventually(async () => (await exports.runs(json.export_id)).length === 0, 'its folder is gone');
    expect(await code(exports.get(json.artifact.manifest_uri))).toEqual([404, 'EXPORT_ARTIFACT_EXPIRED']);
  });
});

test('an artifact of several files has one path a file, and its checksum is that of their list', async () => {
  await using split = await startExports(env, {
    settings: { SVC_STATE_DIR: join(env.dir, 'split') },
    limits: { exportSplitRows: 1 },
  });
  await exports[Symbol.asyncDispose]();
  const { json } = await split.run({ dataset: DATASET, format: 'csv', month_year: [3, 2024] });
  const { files, uri, checksum_sha256: whole } = json.artifact;
  expect(files.map((file: { day: string; row_count: number }) => [file.day, file.row_count])).toEqual([
    ['2024-03-01', ROWS],
    ['2024-03-02', ROWS],
  ]);
  const texts: string[] = [];
  for (const file of files) {
    const answer = await split.get(file.uri);
    expect(sha256(Buffer.from(answer.text))).toBe(file.checksum_sha256);
    expect(answer.headers['content-disposition']).toBe(`attachment; filename="${file.name}"`);
    texts.push(answer.text);
  }
  const list = files.map(
    (file: { checksum_sha256: string; name: string }) => `${file.checksum_sha256}  ${file.name}\n`,
  );
  expect(sha256(Buffer.from(list.join('')))).toBe(whole);
  // The artifact's own path leads to what lists them, with and without a client that follows.
  for (const method of ['GET', 'HEAD']) {
    const { status, headers } = await split.serving.send({ method, path: uri });
    expect([status, headers.location]).toEqual([303, json.artifact.manifest_uri]);
  }
  expect(await code(split.get(uri))).toEqual([303, 'EXPORT_ARTIFACT_SPLIT']);
  // Whoever asks for the type of the files is led there too: the manifest was 406 then.
  for (const Accept of ['*/*', 'text/csv']) {
    const followed = await fetch(`${split.serving.url}${uri}`, { headers: { 'X-API-Key': API_KEY, Accept } });
    expect([followed.status, followed.headers.get('content-type')]).toEqual([200, 'application/json']);
    const manifest = (await followed.json()) as { files: { name: string }[] };
    expect(manifest.files.map(({ name }) => name)).toEqual(files.map(({ name }: { name: string }) => name));
  }
  // Compressed, the end of a file held the rows of the next for ever.
  for (const [compression, unpack] of [
    ['gzip', gunzipSync],
    ['zstd', zstdDecompressSync],
  ] as const) {
    const { json: packed } = await split.run({ dataset: DATASET, format: 'csv', month_year: [3, 2024], compression });
    expect([compression, packed.status, packed.artifact.files.length]).toEqual([compression, 'succeeded', 2]);
    for (const [index, { uri: path }] of packed.artifact.files.entries()) {
      const headers = { 'X-API-Key': API_KEY };
      const bytes = await (await fetch(`${split.serving.url}${path}`, { headers })).bytes();
      expect(unpack(bytes).toString()).toBe(texts[index]);
    }
  }
  exports = await startExports(env);
  const month = await queryCsv({ time_range: ['2024-03-01T00:00:00Z', '2024-04-01T00:00:00Z'] });
  expect(texts[0] + texts[1].slice(texts[1].indexOf('\n') + 1)).toBe(month);
});
