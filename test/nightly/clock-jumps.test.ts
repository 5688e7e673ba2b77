/**
 * The wall clock of real processes jumps by an hour, forwards and back, while they work and while they wait.
 *
 * Faults made on purpose and caught here or in integration/connection-lost, integration/query-backend,
 * integration/changes, integration/power-cut, nightly/out-of-memory: a wait by the wall clock, keepalives of two hours,
 * a read without a time limit, a follower without one, a file that is named before it is synced, a process that nobody
 * restarts.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { type Change, Changes } from '../../client/index.ts';
import { waitForRateLimit } from '../../pipelines/sources/documents/http.ts';
import { PROJECTOR_LOCK } from '../../shared/db/connect.ts';
import { checkMirror } from '../../shared/proof-log/check.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { endProcess, type ProcessRef, processRef, withLock } from '../../shared/stack/processes.ts';
import { childrenOf, type Json, ROOT } from '../support/command.ts';
import { faultsOf, tableFiles } from '../support/lake.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { checkpointOf, logFolderOf } from '../support/proof-log.ts';
import { API_KEY, eventually, OWN_MATRIX } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';

const HOUR_MS = 3_600_000;
const JUMPS = [
  ['forwards', HOUR_MS],
  ['back', -HOUR_MS],
] as const;

describe.each(JUMPS)('a clock that is set %s by an hour', (_, jumpMs) => {
  let dir: string;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'tidemark-clock-'));
  });
  afterEach(() => void vi.restoreAllMocks());
  afterAll(() => rm(dir, { recursive: true }));

  /** The clock of this process jumps as soon as anybody has looked at it, or else in a moment. */
  const jumpAfter = (looks: number) => {
    const now = Date.now.bind(Date);
    let left = looks;
    vi.spyOn(Date, 'now').mockImplementation(() => (left-- > 0 ? now() : now() + jumpMs));
  };

  test('ends no wait for a lock early, and holds none up', async () => {
    const path = join(dir, 'lock');
    await withLock(path, { waitMs: 0 }, async () => {
      jumpAfter(1);
      const startedAt = performance.now();
      await expect(withLock(path, { waitMs: 300 }, async () => {})).rejects.toMatchObject({ code: 'WORK_HELD' });
      expect(performance.now() - startedAt).toBeGreaterThanOrEqual(300);
    });
  });

  test('does not keep a process that ignores its first signal from being killed', async () => {
    const child = spawn('sh', ['-c', 'trap "" TERM; echo ready; while :; do sleep 0.05; done'], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    await once(child.stdout, 'data');
    jumpAfter(1);
    const steps = [
      { signal: 'SIGTERM', waitMs: 100 },
      { signal: 'SIGKILL', waitMs: 10_000 },
    ] as const;
    expect(await endProcess(processRef(child.pid!) as ProcessRef, steps)).toBe(true);
  });

  test('gives another slot of a rate limit to who waits for one: set back, it was waited for an hour', async () => {
    const limit = { name: `jump ${jumpMs}`, spacingMs: 100, directory: dir };
    await waitForRateLimit(limit);
    jumpAfter(2);
    await waitForRateLimit(limit);
  });
});

test('a service, its feeds and a backfill whose clock jumps forwards and back end with what an undisturbed run has', async () => {
  await using system = await System.create();
  await using undisturbed = await System.create();
  const clock = join(system.env.dir, 'clock');
  const folder = join(system.env.dir, 'lake');
  const set = (offsetMs: number) => writeFile(clock, String(offsetMs));
  await set(0);
  const shifted = {
    ...limitsEnv(
      { frameRawBytes: 20_000, heartbeatMs: 1000, exportLeaseMs: 1000 },
      join(ROOT, 'test/support/shifted-clock.mjs'),
    ),
    TIDEMARK_TEST_CLOCK_FILE: clock,
  };
  const up = system.start(['up', '--http-port', '0'], {
    ...shifted,
    SVC_INTERNAL_API_KEY: API_KEY,
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    SVC_LAKE_FOLDER: folder,
    SVC_VERIFY_INTERVAL_SECONDS: '1',
    SVC_SAMPLE: 'false',
  });
  const [said] = await once(up.child.stdout!, 'data');
  const { url } = JSON.parse(String(said)) as { url: string };
  const seen: Change[] = [];
  const leaving = new AbortController();
  const following = (async () => {
    const changes = new Changes({ baseUrl: url, apiKey: API_KEY });
    for await (const change of changes.follow({ since: 0 }, { signal: leaving.signal })) seen.push(change);
  })().catch(() => {});
  const api = async (path: string, body?: object) => {
    const method = body ? 'POST' : 'GET';
    const headers = { 'X-API-Key': API_KEY };
    const answer = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
    return { status: answer.status, text: await answer.text() };
  };
  /** A command that waits for a proof looks every second whether the projector still moves. */
  const lookedAgain = async () => {
    const looks = new Set<string>();
    await eventually(async () => {
      const [{ at }] = await system.rows<{ at: string }>(
        `select max(query_start)::text as at from pg_stat_activity
         where datname = current_database() and application_name = 'tidemark backfill'`,
      );
      return looks.add(at).size > 2;
    }, 'the command has looked again');
  };
  const projects = async () => {
    const held = await system.rows(
      `select 1 from pg_locks where locktype = 'advisory' and granted and classid = ${PROJECTOR_LOCK} and objid = $1
         and database = (select oid from pg_database where datname = current_database())`,
      [datasetOf(DATASET).number],
    );
    return held.length > 0;
  };
  const days = ['2024-01-01', '2024-01-02'];
  const states: string[] = [];
  for (const [index, [, jumpMs]] of JUMPS.entries()) {
    const day = days[index];
    const text = csvOf({ day, firstId: 1 + index * 3000, seed: index, rows: 3000, timeUnit: 'ms' });
    for (const one of [system, undisturbed]) await writeDocument(one.vendor, day, text);
    // The projector stands still, so the clock jumps while the command waits for the proof.
    // Before it has its lock, the command's own projector would take it and prove the day.
    await eventually(projects, 'the projector has its dataset');
    const [projector] = childrenOf(up.child.pid!, 'pipelines/projector/main.ts');
    process.kill(projector, 'SIGSTOP');
    const backfill = system.start(['backfill', DATASET, '--from', day, '--to', day], shifted);
    const published = `select 1 from attempts where partition_key = $1 and state = 'published'`;
    await eventually(async () => (await system.rows(published, [day])).length > 0, `${day} is published`);
    await lookedAgain();
    await set(jumpMs);
    // The clock is off indeed, and `doctor` says so.
    const doctor = await system.start(['doctor', '--check', 'clock'], shifted).done;
    expect(doctor.exit, doctor.stderr).toBe(1);
    expect(doctor.json.checks.find(({ check }: Json) => check === 'clock').state).not.toBe('ok');
    await lookedAgain();
    process.kill(projector, 'SIGCONT');
    const { exit, json, stderr } = await backfill.done;
    expect([exit, json?.proved], stderr).toEqual([0, 1]);
    const read = { sources: [DATASET], time_range: windowOf(day) };
    const rowsOf = async () => JSON.parse((await api('/v1/raw/query', read)).text).rows;
    const rows = await rowsOf();
    expect(rows.length).toBeGreaterThan(2000);
    const submitted = await api('/v1/raw/export', { dataset: DATASET, format: 'csv', time_range: windowOf(day) });
    expect(submitted.status, submitted.text).toBe(202);
    const { status_path } = JSON.parse(submitted.text);
    await set(0);
    expect(await rowsOf()).toEqual(rows);
    const ended = async () => ['succeeded', 'failed'].includes(JSON.parse((await api(status_path)).text).status);
    await eventually(ended, `the export of ${day} is over`);
    states.push(JSON.parse((await api(status_path)).text).status);
    await eventually(() => seen.length === index + 1, `the change of ${day} is heard`);
    const inLake = async () => (await tableFiles(folder).catch(() => undefined))?.some(({ date }) => date === day);
    await eventually(async () => (await inLake()) === true, `${day} is in the lake`);
  }
  await eventually(
    async () => (await system.rows('select 1 from partitions where verified_at is not null')).length === days.length,
    'every day was verified on schedule',
  );
  leaving.abort();
  await following;
  up.child.kill('SIGTERM');
  expect((await up.done).exit).toBe(0);

  expect(states).toEqual(days.map(() => 'succeeded'));
  expect(seen.map(({ number, kind, partition }) => [number, kind, partition])).toEqual(
    days.map((day, index) => [index + 1, 'proved', day]),
  );
  expect((await undisturbed.backfill(days[0], days[1], limitsEnv({ frameRawBytes: 20_000 }))).exit).toBe(0);
  expect(await system.digests()).toEqual(await undisturbed.digests());
  expect(await faultsOf(folder)).toEqual([]);
  expect((await checkMirror(await checkpointOf(system.env), folderSource(logFolderOf(system.env)))).faults).toEqual([]);
  expect((await system.run(['audit', 'verify'])).exit).toBe(0);
  expect((await system.run(['verify', DATASET, '--deep'])).exit).toBe(0);
});

const windowOf = (day: string): [string, string] => [`${day}T00:00:00Z`, `${day}T23:00:00Z`];
