/** Exports while their stores go away and come back: the broker, the database, the disk of the audit log. */
import { readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { verifyAudit } from '../../shared/audit/verify.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { type Exports, startExports } from '../support/exports.ts';
import { DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import { eventually, migrated } from '../support/serving.ts';
import { createPrivateStack, type PrivateStack } from '../support/stack.ts';

const BODY = { dataset: DATASET, format: 'csv', month_year: [3, 2024] };

let own: PrivateStack;
let exports: Exports;
const settings = { SVC_EXPORT_AUDIT_LOG_PATH: '' };
beforeAll(async () => {
  own = await createPrivateStack();
  await migrated(own.stack.databaseUrl);
  await loadDays(own.stack.databaseUrl, [randomDay('2024-03-01', 2000, 1, 1)]);
  settings.SVC_EXPORT_AUDIT_LOG_PATH = join(own.dir, 'audit');
  exports = await startExports(place(), { settings });
});
afterAll(async () => {
  await exports?.[Symbol.asyncDispose]();
  await own?.[Symbol.asyncDispose]();
});

const place = () => ({
  databaseUrl: own.stack.databaseUrl,
  natsExportUrl: own.stack.natsExportUrl,
  natsOperatorUrl: own.stack.natsOperatorUrl,
  dir: own.dir,
});

async function blocked(): Promise<Client> {
  const client = await connect({ url: own.stack.databaseUrl, name: 'test blocks' });
  await client.query('begin');
  await client.query(`lock table ${DATASET} in access exclusive mode`);
  return client;
}

/** Everything in the audit log, in the order of its files. */
async function recordsIn(directory: string) {
  const names = (await readdir(directory, { recursive: true })).filter((name) => name.endsWith('.jsonl')).sort();
  const texts = await Promise.all(names.map((name) => readFile(join(directory, name), 'utf8')));
  const lines = texts.join('').trim().split('\n');
  return lines.map((line) => JSON.parse(line));
}

/** Messages that the queue was ever given. */
async function everQueued(): Promise<number> {
  await using connection = await connectNats(own.stack.natsExportUrl, 'test');
  const manager = await jetstreamManager(connection, { checkAPI: false });
  return (await manager.streams.info('exports')).state.last_seq;
}

const running = (exportId: string) =>
  eventually(async () => (await exports.status(exportId)).json.status === 'running', `${exportId} runs`);

test('nats-server killed during a run: the run goes on, the export ends once, the queue is there again', async () => {
  const rows = await blocked();
  const { json } = await exports.submit(BODY);
  await running(json.export_id);
  own.kill('nats');
  await rows[Symbol.asyncDispose]();
  expect((await exports.finished(json.export_id)).json).toMatchObject({
    status: 'succeeded',
    progress: { attempt: 1 },
  });
  let again = await exports.submit(BODY);
  await eventually(async () => {
    if (again.status === 202) return true;
    expect(again.json.code).toBe('EXPORT_DISPATCH_ERROR');
    again = await exports.submit(BODY);
    return false;
  }, 'it is taken again');
  expect((await exports.finished(again.json.export_id)).json.status).toBe('succeeded');
  // What was refused is as if it had never been.
  const { json: list } = await exports.get('/v1/raw/export?limit=100');
  expect(list.exports).toHaveLength(2);
});

test('the account of the queue can use it, and nothing else', async () => {
  await using connection = await connectNats(own.stack.natsExportUrl, 'test');
  const manager = await jetstreamManager(connection, { checkAPI: false });
  // What may not be asked is not answered.
  const refused = await jetstreamManager(connection, { checkAPI: false, timeout: 500 });
  expect((await manager.streams.info('exports')).config.retention).toBe('workqueue');
  {
    // Queued twice is queued once; another lease is taken over by who may change the queue, and by nobody else.
    const { ensureExportQueue, ExportQueue } = await import('../../shared/nats/export-queue.ts');
    await exports.serving.app.exports.stopWork();
    await (await ExportQueue.open(own.stack.natsExportUrl, 'test', { leaseMs: 2000, replicas: 1 }))[
      Symbol.asyncDispose
    ]();
    expect((await manager.consumers.info('exports', 'workers')).config.ack_wait).toBe(1_000_000_000);
    await using operator = await connectNats(own.stack.natsOperatorUrl, 'test');
    await ensureExportQueue(operator, { leaseMs: 2000, replicas: 1 });
    await using queue = await ExportQueue.open(own.stack.natsExportUrl, 'test', { leaseMs: 2000, replicas: 1 });
    const size = await queue.size();
    const [id, other] = ['00000000-0000-4000-8000-00000000000a', '00000000-0000-4000-8000-00000000000b'];
    for (const one of [id, id, other, id]) await queue.put(one);
    expect(await queue.size()).toBe(size + 2);
    expect((await manager.consumers.info('exports', 'workers')).config.ack_wait).toBe(2_000_000_000);
    await exports[Symbol.asyncDispose]();
    exports = await startExports(place(), { settings });
    // Of no export: taken out and dropped.
    await eventually(async () => (await queue.size()) === 0, 'they are gone');
  }
  for (const forbidden of [
    () => refused.streams.add({ name: 'other', subjects: ['other.>'] }),
    () => refused.streams.update('exports', { republish: { src: '>', dest: `${DATASET}.x.1.0` } }),
    () => refused.consumers.add('exports', { durable_name: 'other' }),
    () => refused.streams.delete('exports'),
    () => refused.streams.purge('exports'),
    () => refused.streams.info(DATASET),
    () => jetstream(connection, { timeout: 500 }).publish(`${DATASET}.x.1.0`, 'x', { timeout: 500 }),
  ]) {
    await expect(forbidden()).rejects.toThrow();
  }
});

test('the database killed during a run: the run is made again when it is back', async () => {
  const rows = await blocked();
  const { json } = await exports.submit(BODY);
  // A run that has not begun to read when the database dies needs no second one.
  await eventually(async () => {
    const waiting = await rows.query('select from pg_locks where relation = $1::regclass and not granted', [DATASET]);
    return waiting.rowCount === 1;
  }, `${json.export_id} reads`);
  own.kill('postgres');
  await eventually(async () => {
    const { status, json: found } = await exports.status(json.export_id);
    if (status === 503) expect(found.code).toBe('EXPORT_STATUS_ERROR');
    return found.status === 'succeeded';
  }, 'it succeeds');
  const { json: status } = await exports.status(json.export_id);
  expect(status.progress.attempt).toBeGreaterThan(1);
  await expect.poll(async () => (await exports.runs(json.export_id)).length).toBe(1);
});

test('an audit log that cannot be written refuses new exports, and nothing else', async () => {
  const { json } = await exports.run(BODY);
  const audit = settings.SVC_EXPORT_AUDIT_LOG_PATH;
  const rows = await blocked();
  const { json: underWay } = await exports.submit(BODY);
  await running(underWay.export_id);
  const { json: before } = await exports.get('/v1/raw/export?limit=100');
  await rename(audit, `${audit}.away`);
  await writeFile(audit, 'a file where the folder should be');
  const queued = await everQueued();
  const refused = await exports.submit(BODY);
  expect([refused.status, refused.json.code]).toEqual([503, 'EXPORT_AUDIT_WRITE_ERROR']);
  expect(await everQueued()).toBe(queued);
  expect((await exports.get('/v1/raw/export?limit=100')).json.exports).toHaveLength(before.exports.length);
  // What needs no new entry goes on: runs, downloads, cancels, queries, refusals.
  await rows[Symbol.asyncDispose]();
  expect((await exports.finished(underWay.export_id)).json.status).toBe('succeeded');
  expect((await exports.bytes(json.export_id)).length).toBeGreaterThan(0);
  expect((await exports.cancel(json.export_id)).json.code).toBe('EXPORT_ALREADY_FINISHED');
  expect((await exports.serving.query({ sources: [DATASET], n_rows: 1 } as never)).status).not.toBe(503);
  expect((await exports.submit({})).json.code).toBe('EXPORT_CONTRACT_ERROR');
  expect((await exports.get('/readyz')).status).toBe(200);
  await rm(audit);
  await rename(`${audit}.away`, audit);
  expect((await exports.run(BODY)).json.status).toBe('succeeded');
});

test('everything that was done is on record, in order, without a secret; one byte broken is found', async () => {
  const secret = 'do-not-write-this';
  await exports.submit({ ...BODY, auth_token: secret });
  await exports.submit({});
  await exports.serving.send({ path: '/v1/raw/export', body: '{}', key: `wrong ${secret}` });
  const { json } = await exports.run(BODY);
  await exports.bytes(json.export_id);
  const directory = settings.SVC_EXPORT_AUDIT_LOG_PATH;
  // The head is kept in the database soon after.
  await exports[Symbol.asyncDispose]();
  exports = await startExports(place(), { worker: false });
  await using client = await connect({ url: own.stack.databaseUrl, name: 'test' });
  const heads = (await client.query('select chain, sequence::int, hash from export_audit_heads')).rows;
  expect(heads.length).toBeGreaterThan(0);
  const report = await verifyAudit(directory, heads);
  expect(report.findings).toEqual([]);
  const records = await recordsIn(directory);
  expect(JSON.stringify(records)).not.toContain(secret);
  const mine = records.filter((one) => one.export_id === json.export_id);
  expect(mine.map((one) => [one.event, one.payload.from, one.payload.to].filter(Boolean).join(' '))).toEqual([
    'export_submit_intent',
    'export_submit_accepted',
    'export_transition queued running',
    'export_transition running succeeded',
    'export_download',
  ]);
  expect(JSON.parse(mine[0].payload.request)).toEqual(BODY);
  const codes = records.filter((one) => one.event === 'export_submit_rejected').map((one) => one.payload.code);
  expect(codes).toEqual(expect.arrayContaining(['EXPORT_AUTH_TOKEN_UNSUPPORTED', 'EXPORT_CONTRACT_ERROR']));
  expect(records.map((one) => one.event)).toContain('export_access_refused');
  const [segment] = (await readdir(directory, { recursive: true })).filter((name) => name.endsWith('.jsonl'));
  const path = join(directory, segment);
  const bytes = await readFile(path);
  bytes[bytes.length >> 1] ^= 1;
  await writeFile(path, bytes);
  expect((await verifyAudit(directory, heads)).findings.length).toBeGreaterThan(0);
});

test('the intent is on record before anything is dispatched: also of an export that no queue took', async () => {
  const audit = join(own.dir, 'audit-without-a-queue');
  await using alone = await startExports(place(), {
    settings: { SVC_EXPORT_AUDIT_LOG_PATH: audit, SVC_NATS_EXPORT_URL: 'nats://export:none@127.0.0.1:1' },
    worker: false,
  });
  const { status, json } = await alone.submit(BODY);
  expect([status, json.code]).toEqual([503, 'EXPORT_DISPATCH_ERROR']);
  const records = (await recordsIn(audit)).filter(({ export_id }) => export_id !== null);
  expect(records.map(({ event }) => event)).toEqual([
    'export_submit_intent',
    'export_submit_accepted',
    'export_submit_failed',
  ]);
  expect(new Set(records.map(({ export_id }) => export_id)).size).toBe(1);
  expect(JSON.parse(records[0].payload.request)).toEqual(BODY);
});
