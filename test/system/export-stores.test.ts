/** Exports while stores go away and come back: the log, the database, the disk of the audit log. */
import { readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { verifyAudit } from '../../shared/audit/verify.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { type Exports, recordsIn, startExports } from '../support/exports.ts';
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

const place = () => ({ databaseUrl: own.stack.databaseUrl, dir: own.dir });

async function blocked(): Promise<Client> {
  const client = await connect({ url: own.stack.databaseUrl, name: 'test blocks' });
  await client.query('begin');
  await client.query(`lock table ${DATASET} in access exclusive mode`);
  return client;
}

const running = (exportId: string) =>
  eventually(async () => (await exports.status(exportId)).json.status === 'running', `${exportId} runs`);

test('nats-server killed during a run: the run goes on, and others are taken and run without it', async () => {
  const rows = await blocked();
  const { json } = await exports.submit(BODY);
  await running(json.export_id);
  own.kill('nats');
  await rows[Symbol.asyncDispose]();
  expect((await exports.finished(json.export_id)).json).toMatchObject({
    status: 'succeeded',
    progress: { attempt: 1 },
  });
  expect((await exports.run(BODY)).json.status).toBe('succeeded');
});

test('the database away: a submit is 503 and leaves nothing; with a key it is the same export once the database is back', async () => {
  const total = async () => (await exports.get('/v1/raw/export?limit=100')).json.exports.length;
  const before = await total();
  own.kill('postgres');
  const key = { 'Idempotency-Key': 'once' };
  const ids = new Set<string>();
  const isTaken = async () => {
    const { status, json } = await exports.submit(BODY, key);
    if (status === 202) ids.add(json.export_id);
    else expect([status, json.code]).toEqual([503, 'EXPORT_DISPATCH_ERROR']);
    return status === 202;
  };
  await eventually(isTaken, 'it is taken');
  // A backend may outlive the server for a moment and take it: then the database is away now.
  const [exportId] = ids;
  await eventually(async () => (await exports.status(exportId)).json.status === 'succeeded', 'it succeeds');
  await eventually(isTaken, 'it is taken again');
  expect(ids.size).toBe(1);
  expect(await total()).toBe(before + 1);
});

test('the database killed during a run: the run is made again when it is back, and no worker counts as dead', async () => {
  // It might take the export over.
  await using _other = await startExports(place(), { settings });
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
  await using client = await connect({ url: own.stack.databaseUrl, name: 'test' });
  const { rows: found } = await client.query('select crashes from exports where export_id = $1', [json.export_id]);
  expect(found).toEqual([{ crashes: 0 }]);
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
  const refused = await exports.submit(BODY);
  expect([refused.status, refused.json.code]).toEqual([503, 'EXPORT_AUDIT_WRITE_ERROR']);
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

test('the intent is on record before anything is dispatched: also of an export that the database did not take', async () => {
  const audit = join(own.dir, 'audit-of-what-was-not-taken');
  await using alone = await startExports(place(), { settings: { SVC_EXPORT_AUDIT_LOG_PATH: audit }, worker: false });
  await using client = await connect({ url: own.stack.databaseUrl, name: 'test' });
  // The commit fails: all statements before it are done.
  await client.query(`create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$`);
  await client.query(
    'create constraint trigger refused after insert on exports deferrable initially deferred for each row execute function refuse()',
  );
  const { status, json } = await alone.submit(BODY);
  await client.query('drop trigger refused on exports; drop function refuse()');
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
