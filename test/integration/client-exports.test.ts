/** The client's exports against the running service, and through a proxy that spoils answers. */
import { createHash } from 'node:crypto';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  ContractError,
  ExportFailedError,
  type ExportRequest,
  Exports,
  IncompleteAnswerError,
} from '../../client/index.ts';
import { mirror } from '../../client/mirror/index.ts';
import { runCommand } from '../support/command.ts';
import { type Exports as Service, startExports } from '../support/exports.ts';
import { type HttpFaultProxy, startHttpFaultProxy } from '../support/http-fault-proxy.ts';
import { loadDays, randomDay } from '../support/load-rows.ts';
import { API_KEY } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const REQUEST: ExportRequest = { dataset: 'exchange_a_spot_trades', format: 'csv', month_year: [1, 2024] };

let env: TestEnv;
let service: Service;
let proxy: HttpFaultProxy;
let exports: Exports;
beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-01-01', 10_000, 1, 1)]);
  service = await startExports(env);
});
afterAll(async () => {
  await proxy?.[Symbol.asyncDispose]();
  await service?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});
beforeEach(async () => {
  await proxy?.[Symbol.asyncDispose]();
  proxy = await startHttpFaultProxy(service.serving.url);
  exports = new Exports({ baseUrl: proxy.url, apiKey: API_KEY, maxRetryWaitMs: 2000 });
});

async function whole(parts: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const all: Uint8Array[] = [];
  for await (const part of parts) all.push(part);
  return Buffer.concat(all);
}

const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

test('submit, wait, download: the file of the service, and its manifest', async () => {
  const { export_id, warnings } = await exports.submit(REQUEST);
  expect(warnings).toHaveLength(1);
  const seen: string[] = [];
  const status = await exports.wait(export_id, { onStatus: ({ status: one }) => seen.push(one) });
  expect(seen.at(-1)).toBe('succeeded');
  const bytes = await whole(exports.download(status));
  expect(sha256(bytes)).toBe(status.artifact.checksum_sha256);
  expect(bytes.equals(await service.bytes(export_id))).toBe(true);
  expect(await exports.manifest(export_id)).toMatchObject({ row_count: 10_000, sha256: sha256(bytes) });
  const listed = [];
  for await (const one of exports.list({ status: 'succeeded' })) listed.push(one.export_id);
  expect(listed).toContain(export_id);
});

test('an answer to a submit that is lost makes no second export', async () => {
  const before = (await service.get('/v1/raw/export?limit=100')).json.exports.length;
  proxy.spoil({ cutAfterBytes: 0 });
  await exports.submit(REQUEST, { idempotencyKey: 'mine' }).catch(() => {});
  const { export_id } = await exports.submit(REQUEST, { idempotencyKey: 'mine' });
  expect((await exports.submit(REQUEST, { idempotencyKey: 'mine' })).export_id).toBe(export_id);
  expect((await service.get('/v1/raw/export?limit=100')).json.exports).toHaveLength(before + 1);
});

test('a download that is cut again and again goes on where it stopped', async () => {
  const status = await exports.wait((await exports.submit(REQUEST)).export_id);
  const size = status.artifact.bytes;
  const right = await service.bytes(status.export_id);
  const third = Math.floor(size / 3);
  for (const cuts of [[third], [1, 1, 1], [third, third, 'reset'], [size - 1]] as const) {
    const at = proxy.seen;
    proxy.spoil(...cuts.map((cut) => (cut === 'reset' ? cut : { cutAfterBytes: cut })));
    expect((await whole(exports.download(status))).equals(right)).toBe(true);
    // Each cut cost one more request, and no more.
    expect(proxy.seen - at).toBe(cuts.length + 1);
  }
  expect((await whole(exports.download(status, { from: size - 10 }))).equals(right.subarray(size - 10))).toBe(true);
  expect(await whole(exports.download(status, { from: size }))).toHaveLength(0);
  // One that never gets anywhere ends.
  proxy.spoil(...Array(10).fill({ cutAfterBytes: 0 }));
  await expect(whole(exports.download(status))).rejects.toThrow(IncompleteAnswerError);
});

test('exports are mirrored once, whole, and stay when the service deletes them', async () => {
  const first = await exports.wait((await exports.submit(REQUEST)).export_id);
  const to = join(env.dir, 'mirrored');
  const run = (more: object = {}) =>
    mirror({ from: `${proxy.url}/v1/raw/export`, to, key: API_KEY, pauseMs: 1, ...more });
  const { files } = await run();
  expect(files).toBeGreaterThanOrEqual(1);
  const folder = join(to, 'exports', first.export_id);
  const [name] = first.artifact.files.map((file) => file.name);
  expect((await readdir(folder)).sort()).toEqual([name, 'manifest.json'].sort());
  expect((await readFile(join(folder, name))).equals(await service.bytes(first.export_id))).toBe(true);
  expect(JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8'))).toEqual(
    await exports.manifest(first.export_id),
  );
  expect(await run()).toMatchObject({ kind: 'exports', files, new: 0, unchanged: files, requests: 1, change: null });

  // The list and the manifest come, the file breaks off.
  const second = await exports.wait((await exports.submit({ ...REQUEST, format: 'parquet' })).export_id);
  const before = proxy.seen;
  proxy.spoil({ cutAfterBytes: 1e9 }, { cutAfterBytes: 1e9 }, { cutAfterBytes: 1000 });
  expect(await run()).toMatchObject({ new: 1, unchanged: files, requests: 4 });
  expect(proxy.seen - before).toBe(4);
  const parquet = join(to, 'exports', second.export_id, second.artifact.files[0].name);
  const right = await service.bytes(second.export_id);
  expect((await readFile(parquet)).equals(right)).toBe(true);

  await writeFile(parquet, Buffer.alloc(right.length));
  expect(await run()).toMatchObject({ unchanged: files + 1 });
  expect(await run({ verify: true })).toMatchObject({ replaced: 1, unchanged: files });
  expect((await readFile(parquet)).equals(right)).toBe(true);
  await expect(run({ exports: ['../x'] })).rejects.toMatchObject({ kind: 'usage' });
  await expect(run({ datasets: ['x'] })).rejects.toMatchObject({ kind: 'usage' });

  const one = join(env.dir, 'one');
  const args = ['mirror', `${service.serving.url}/v1/raw/export`, one, '--exports', second.export_id];
  const { exit, json } = await runCommand(args, { SVC_INTERNAL_API_KEY: API_KEY });
  expect([exit, json]).toEqual([0, expect.objectContaining({ kind: 'exports', files: 1, new: 1 })]);
  expect(await readdir(join(one, 'exports'))).toEqual([second.export_id]);
  await rm(one, { recursive: true });
});

test('faults are classes; an export that fails is one too', async () => {
  await expect(exports.submit({ ...REQUEST, n_rows: 5 })).rejects.toThrow(ContractError);
  await service[Symbol.asyncDispose]();
  service = await startExports(env, { worker: false });
  const idle = new Exports({ baseUrl: service.serving.url, apiKey: API_KEY });
  const { export_id } = await idle.submit(REQUEST);
  expect((await idle.cancel(export_id)).error_code).toBe('EXPORT_RUN_CANCELED');
  const failure = await idle.wait(export_id).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(ExportFailedError);
  expect(failure).toMatchObject({ exportId: export_id, code: 'EXPORT_RUN_CANCELED' });
  await expect(idle.wait(export_id, { signal: AbortSignal.abort(new Error('enough')) })).rejects.toThrow('enough');
});
