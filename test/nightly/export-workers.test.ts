/**
 * Export workers against each other and against what may happen to them: killed, frozen, stopped, left without their
 * stores. However it goes, an export ends once, with one artifact, of the same bytes.
 */

import { once } from 'node:events';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { connect } from '../../shared/db/connect.ts';
import { EXPORT, type ExportEnv, type Exports, spawnWorker, startExports } from '../support/exports.ts';
import { DATASET, loadBulk } from '../support/load-rows.ts';
import { eventually, OWN_MATRIX } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const ROWS = 60_000;
/** Long enough to be killed in the middle of it. */
const LONG = { dataset: DATASET, format: 'csv', month_year: [5, 2024] };
/** Where a run is held by a lock, or only its end counts. */
const BODY = { dataset: DATASET, format: 'csv', n_rows: 5000 };

let env: TestEnv;
/** Submits and looks; runs nothing. */
let exports: Exports;
/** Bytes of the artifacts, made without a disturbance. */
let undisturbed: Buffer;
let undisturbedLong: Buffer;
beforeAll(async () => {
  env = await createMigratedEnv();
  await loadBulk(env.databaseUrl, { fromDay: '2024-05-01', days: 1, rowsPerDay: ROWS });
  {
    await using calm = await startExports(env);
    undisturbed = await calm.bytes((await calm.run(BODY)).json.export_id);
    undisturbedLong = await calm.bytes((await calm.run(LONG)).json.export_id);
  }
  exports = await startExports(env, { worker: false, settings: { SVC_EXPORT_MAX_QUEUE: '100' } });
});
afterAll(async () => {
  await exports?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

/** What a test that failed half-way would leave to the next ones: workers, a lock, exports that nobody ends. */
const workers = new Set<ReturnType<typeof spawnWorker>>();
const blocks = new Set<AsyncDisposable>();
afterEach(async () => {
  for (const worker of workers) {
    worker.kill('SIGKILL');
    await ended(worker);
  }
  workers.clear();
  for (const block of blocks) await block[Symbol.asyncDispose]();
  blocks.clear();
  for (const status of ['queued', 'running']) {
    const { json } = await exports.get(`${EXPORT}?status=${status}`);
    for (const { export_id } of json.exports) await exports.cancel(export_id);
  }
});

function startWorker(options?: Parameters<typeof spawnWorker>[1]): ReturnType<typeof spawnWorker> {
  const worker = spawnWorker(env, options);
  workers.add(worker);
  return worker;
}

const submit = async (): Promise<string> => {
  const { status, json, text } = await exports.submit(BODY);
  expect(status, text).toBe(202);
  return json.export_id;
};

/** Nothing can be read until disposal: a run stands still in its first statement. */
async function blockedRows(databaseUrl: string): Promise<AsyncDisposable> {
  const client = await connect({ url: databaseUrl, name: 'test blocks' });
  await client.query('begin');
  blocks.add(client);
  await client.query(`lock table ${DATASET} in access exclusive mode`);
  return client;
}

const running = async (exportId: string, attempt = 1) => {
  await eventually(async () => {
    const { json } = await exports.status(exportId);
    return json.status === 'running' && json.progress.attempt === attempt;
  }, `${exportId} runs for the ${attempt}. time`);
};

const expectOneArtifact = (exportId: string) => expectOne(exports, exportId, undisturbed);

test('killed three times at random moments, workers finish every export once, with the same bytes', () =>
  killWorkers({ env, exports, body: LONG, undisturbed: undisturbedLong, kills: 3 }));

test('a worker that was frozen while another took over changes nothing when it wakes', async () => {
  const frozen = startWorker({ settings: { SVC_EXPORT_MAX_CONCURRENCY: '1' } });
  await frozen.ready;
  const rows = await blockedRows(env.databaseUrl);
  const exportId = await submit();
  await running(exportId);
  frozen.kill('SIGSTOP');
  await rows[Symbol.asyncDispose]();
  const other = startWorker();
  await expectOneArtifact(exportId);
  const { json: before } = await exports.status(exportId);
  other.kill('SIGKILL');
  await ended(other);
  frozen.kill('SIGCONT');
  // It works through what it had, learns that it does not count, and takes the next: it alone is there, for one at a time.
  const next = await submit();
  await expectOneArtifact(next);
  expect((await exports.status(exportId)).json).toEqual(before);
  await expectOneArtifact(exportId);
});

test('of two workers that race for one export the later one makes it, whoever is first', async () => {
  // Neither takes anything back, however long the other one shows no sign of life on a machine that is busy.
  const limits = { exportLeaseMs: 3_600_000 };
  const first = startWorker({ limits });
  await first.ready;
  const rows = await blockedRows(env.databaseUrl);
  const exportId = await submit();
  await running(exportId);
  first.kill('SIGSTOP');
  await execute(env.databaseUrl, `update exports set due_at = due_at - interval '1 day' where state = 'running'`);
  startWorker({ limits });
  await running(exportId, 2);
  first.kill('SIGCONT');
  await rows[Symbol.asyncDispose]();
  await expectOneArtifact(exportId);
  expect(await exports.runs(exportId)).toEqual(['2']);
});

test('an export whose worker dies again and again has failed', async () => {
  const limits = { exportCrashes: 2 };
  const rows = await blockedRows(env.databaseUrl);
  const exportId = await submit();
  for (let attempt = 1; attempt <= 2; attempt++) {
    const worker = startWorker({ limits });
    await running(exportId, attempt);
    worker.kill('SIGKILL');
    await ended(worker);
  }
  await rows[Symbol.asyncDispose]();
  await using calm = await startExports(env, { limits });
  const { json } = await calm.finished(exportId);
  expect(json).toMatchObject({ status: 'failed', error_code: 'EXPORT_RUN_FAILED' });
  expect(json.error_message).toContain('2 times');
});

describe('in the process of the service', () => {
  test('what runs is given back when it stops, and begun again by the next, without a crash being counted', async () => {
    const rows = await blockedRows(env.databaseUrl);
    const exportId = await submit();
    {
      await using _stopped = await startExports(env);
      await running(exportId);
    }
    expect((await exports.status(exportId)).json.status).toBe('running');
    await rows[Symbol.asyncDispose]();
    await using _next = await startExports(env, { limits: { exportCrashes: 1 } });
    await expectOneArtifact(exportId);
  });

  test('a run that is canceled ends, and leaves nothing behind', async () => {
    await using one = await startExports(env);
    const rows = await blockedRows(env.databaseUrl);
    const exportId = await submit();
    await running(exportId);
    const { json } = await one.cancel(exportId);
    expect(json).toMatchObject({ status: 'failed', error_code: 'EXPORT_RUN_CANCELED' });
    await eventually(async () => (await one.runs(exportId)).length === 0, 'its folder is gone');
    await rows[Symbol.asyncDispose]();
    // The worker is free for the next.
    await expectOneArtifact(await submit());
    expect((await one.status(exportId)).json.status).toBe('failed');
  });

  test('a folder that a killed run left is cleared; folders of exports that are not ours are not touched', async () => {
    const { mkdir, writeFile } = await import('node:fs/promises');
    const exportId = await submit();
    const stranger = join(exports.root, '00000000-0000-4000-8000-000000000001', '1');
    await mkdir(stranger, { recursive: true });
    {
      await using one = await startExports(env);
      await one.finished(exportId);
    }
    const left = join(exports.root, exportId, '0.partial-abc');
    await mkdir(left);
    await writeFile(join(left, 'half.csv'), 'x');
    await using _next = await startExports(env);
    await expectOneArtifact(exportId);
    expect(await readdir(join(stranger, '..'))).toEqual(['1']);
  });

  test('an export root that cannot be written fails the export, and says so without a path', async () => {
    const { writeFile } = await import('node:fs/promises');
    const file = join(env.dir, 'a-file');
    await writeFile(file, '');
    await using one = await startExports(env, { settings: { SVC_EXPORT_ROOT_DIR: file } });
    const { json } = await one.run(BODY);
    expect(json).toMatchObject({ status: 'failed', error_code: 'EXPORT_RUN_FAILED' });
    expect(json.error_message).toBe('The export root is not writable; the operator has to repair it.');
  });

  test('a full queue refuses one more, with 503, and takes it when there is room', async () => {
    await using one = await startExports(env, {
      worker: false,
      settings: { SVC_EXPORT_MAX_QUEUE: '1', SVC_EXPORT_MAX_CONCURRENCY: '1' },
    });
    const first = await one.submit(BODY);
    const second = await one.submit(BODY);
    expect([first.status, second.status, second.json.code, second.headers['retry-after']]).toEqual([
      202,
      503,
      'EXPORT_QUEUE_LIMIT_REACHED',
      '10',
    ]);
    // Nothing of it is left.
    const listed = await one.get('/v1/raw/export?status=queued');
    expect(listed.json.exports).toHaveLength(1);
    one.serving.app.exports.work();
    await one.finished(first.json.export_id);
    expect((await one.submit(BODY)).status).toBe(202);
  });
});

test('a source whose callers bring their own credentials takes no other export from a worker of its own', async () => {
  const matrix = JSON.parse(await readFile(OWN_MATRIX, 'utf8'));
  for (const source of Object.values<{ legal_signoff_artifact: string }>(matrix.sources))
    source.legal_signoff_artifact = join(dirname(OWN_MATRIX), source.legal_signoff_artifact);
  matrix.sources.macro.rights_state = 'BYOK Required';
  const path = join(env.dir, 'byok.json');
  await writeFile(path, JSON.stringify(matrix));
  const { json } = await exports.submit(BODY);
  startWorker({ settings: { SVC_SOURCE_RIGHTS_MATRIX_PATH: path, SVC_BYOK_DATABASE_ROLE: 'somebody' } });
  const { json: status } = await exports.finished(json.export_id);
  expect([status.status, status.error_code]).toEqual(['succeeded', undefined]);
});

// Export workers that are killed, and what must be left of an export however that went.

/** A worker is started after each kill: on a busy machine that alone takes minutes. */
const FINISHED_MS = 300_000;

const ended = (child: { exitCode: number | null; signalCode: string | null } & NodeJS.EventEmitter) =>
  child.exitCode !== null || child.signalCode !== null ? Promise.resolve() : once(child, 'exit');

/** One artifact, the right one, and nothing beside it. */
async function expectOne(exports: Exports, exportId: string, bytes: Buffer, withinMs?: number): Promise<void> {
  const { json } = await exports.finished(exportId, withinMs);
  expect(json.status, JSON.stringify(json)).toBe('succeeded');
  expect((await exports.bytes(exportId)).equals(bytes)).toBe(true);
  await eventually(async () => (await exports.runs(exportId)).length === 1, 'one folder is left');
  const [run] = await exports.runs(exportId);
  expect((await readdir(join(exports.root, exportId, run))).sort()).toEqual(
    [json.artifact.files[0].name, 'manifest.json'].sort(),
  );
}

interface Kills {
  readonly env: ExportEnv;
  /** Submits and looks; runs nothing. */
  readonly exports: Exports;
  readonly body: object;
  /** Bytes of the artifact, made without a disturbance. */
  readonly undisturbed: Buffer;
  readonly kills: number;
}

/** Kills one worker after the other at random moments; the last one finishes what they left. */
async function killWorkers({ env, exports, body, undisturbed, kills }: Kills): Promise<void> {
  const random = seededRandom(10);
  const ids: string[] = [];
  const start = () => {
    const worker = spawnWorker(env, { limits: { exportCrashes: 1000 } });
    return Object.assign(worker, {
      async [Symbol.asyncDispose]() {
        worker.kill('SIGKILL');
        await ended(worker);
      },
    });
  };
  for (let kill = 0; kill < kills; kill++) {
    // There is always one that nobody has tried: those of the dead come again after the lease.
    const { status, json, text } = await exports.submit(body);
    expect(status, text).toBe(202);
    ids.push(json.export_id);
    await using worker = start();
    await worker.ready;
    await delay(random() * 300);
  }
  await using last = start();
  // Others may have finished everything before it listens for signals.
  await last.ready;
  for (const id of ids) await expectOne(exports, id, undisturbed, FINISHED_MS);
  last.kill('SIGTERM');
  await ended(last);
  expect(last.exitCode).toBe(0);
}
