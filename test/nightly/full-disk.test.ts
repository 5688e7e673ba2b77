/** What an operator needs on a disk that is full: a lock, a look at the system, a true answer about what lives, and nothing lost. */
import { execFileSync } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { openRuns, RunRecorder } from '../../shared/db/runs.ts';
import { checkMirror } from '../../shared/proof-log/check.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { exchangeASpotTrades } from '../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { withLock } from '../../shared/stack/processes.ts';
import { acquireStack } from '../../shared/stack/stack.ts';
import { type Json, startCommand } from '../support/command.ts';
import { given, NO_MOUNT } from '../support/given.ts';
import { faultsOf, filesIn, writeLake } from '../support/lake.ts';
import { csvOf, DATASET, dayNames, digestsOf, System, writeDocument } from '../support/pipeline.ts';
import { PRIVATE_PROFILE } from '../support/profiles.ts';
import { checkpointOf, logFolderOf, sequence } from '../support/proof-log.ts';
import { eventually, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, natsSettings, type TestEnv, testLogger } from '../support/stack.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

/** A disk of its own for each test that fills one: only root can mount it, and not in every container. */
function mounted(path: string, megabytes: number): boolean {
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m,mode=0755`, 'tmpfs', path], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

const probe = await mkdtemp(join(tmpdir(), 'tidemark-mount-'));
const canMount = mounted(probe, 1);
if (canMount) execFileSync('umount', [probe]);
await rm(probe, { recursive: true });

const fill = (disk: string) => writeFile(join(disk, 'rest'), Buffer.alloc(512 << 20)).catch(({ code }) => code);

given(canMount, NO_MOUNT).describe('on a full disk', () => {
  let disk: string;
  beforeAll(async () => {
    disk = await mkdtemp(join(tmpdir(), 'tidemark-full-'));
  });
  afterAll(() => rm(disk, { recursive: true }));

  test('a lock needs no space', async () => {
    mounted(disk, 1);
    try {
      await writeFile(join(disk, 'old.lock'), '');
      expect(await fill(disk)).toBe('ENOSPC');
      for (const name of ['old.lock', 'new.lock']) {
        const path = join(disk, name);
        await withLock(path, { waitMs: 0 }, async () => {
          await expect(withLock(path, { waitMs: 0 }, async () => {})).rejects.toMatchObject({ code: 'WORK_HELD' });
        });
      }
    } finally {
      execFileSync('umount', [disk]);
    }
  });

  test('a service that does not fit says what to do', async () => {
    mounted(disk, 1);
    try {
      expect(await fill(disk)).toBe('ENOSPC');
      const settings = { SVC_STATE_DIR: join(disk, 'state'), SVC_SAMPLE: 'false', SVC_HTTP_PORT: '0' };
      const { exit, json, stderr } = await startCommand(['up'], settings).done;
      expect([exit, json?.error.code], stderr).toEqual([1, 'DISK_UNUSABLE']);
      expect(json.error.remedy).toContain('Check the space');
    } finally {
      execFileSync('umount', [disk]);
    }
  });

  test('status and doctor look at a service that lives, and do not call it killed', async () => {
    mounted(disk, 400);
    try {
      const stateDir = join(disk, 'state');
      await mkdir(stateDir);
      await using stack = await acquireStack({ stateDir, log: testLogger(), profile: PRIVATE_PROFILE });
      {
        await using client = await connect({ url: stack.databaseUrl, name: 'test' });
        await migrate(client);
      }
      const needs = { databaseUrl: stack.databaseUrl, datasets: [exchangeASpotTrades] };
      await using _run = await RunRecorder.open({
        ...needs,
        kind: 'follow',
        subject: 'exchange_a',
        command: './tidemark up',
      });
      expect(await fill(disk)).toBe('ENOSPC');
      const settings = { SVC_STATE_DIR: stateDir, SVC_SAMPLE: 'false' };
      const status = await startCommand(['status'], settings).done;
      expect([status.exit, status.json?.ok], status.stderr).toEqual([0, true]);
      const { json, stderr } = await startCommand(['doctor'], settings).done;
      const of = (name: string) => json?.checks.find(({ check }: Json) => check === name);
      expect([of('connections')?.state, of('work')?.state], `${stderr} ${JSON.stringify(json)}`).toEqual(['ok', 'ok']);
      // The visitors have left the servers to who holds them.
      await execute(stack.databaseUrl, 'select 1');
    } finally {
      execFileSync('umount', ['-l', disk]);
    }
  });
});

given(canMount, NO_MOUNT).describe('both stores and the proof log on a full disk', () => {
  test.each([
    ['the disk of all', ''],
    ['the disk of the database', 'servers/postgres'],
  ])('%s: a backfill says so, loses nothing, and goes on where there is room again', async (_, place) => {
    await using undisturbed = await System.create();
    const days = dayNames('2024-01-01', 3);
    for (const [index, day] of days.entries()) {
      const text = csvOf({ day, firstId: 1 + index * 50_000, seed: index, rows: 50_000, timeUnit: 'ms' });
      await writeDocument(undisturbed.vendor, day, text);
    }
    const disk = await mkdtemp(join(tmpdir(), 'tidemark-full-'));
    await chmod(disk, 0o755);
    const stateDir = join(disk, 'state');
    const small = join(stateDir, place);
    if (place === '') {
      await mkdir(stateDir);
      mounted(small, 400);
    } else {
      // Made on another disk, because a server makes its folder for the user it runs as.
      await (await acquireStack({ stateDir, log: testLogger(), profile: PRIVATE_PROFILE }))[Symbol.asyncDispose]();
      execFileSync('cp', ['-a', small, join(disk, 'copy')]);
      mounted(small, 250);
      execFileSync('cp', ['-a', `${disk}/copy/.`, small]);
    }
    try {
      await using stack = await acquireStack({ stateDir, log: testLogger(), profile: PRIVATE_PROFILE });
      stack.supervise();
      const settings = {
        SVC_DATABASE_URL: stack.databaseUrl,
        ...natsSettings(stack),
        SVC_STATE_DIR: stateDir,
        SVC_EXCHANGE_A_BASE_URL: undisturbed.settings.SVC_EXCHANGE_A_BASE_URL,
        SVC_STREAM_MAX_BYTES: String(1 << 22),
      };
      const backfill = (from: string, to: string) =>
        startCommand(['backfill', DATASET, '--from', from, '--to', to], settings).done;
      const first = await backfill(days[0], days[0]);
      expect([first.exit, first.json?.proved], first.stderr).toEqual([0, 1]);
      expect(await fill(small)).toBe('ENOSPC');
      await using serving = await startServing({ databaseUrl: stack.databaseUrl });
      const reads = [{ n_rows: 5 }, { mode: 'aligned_1s', n_rows: 5 }, { n_random: 5 }];
      for (const body of reads) expect((await serving.query({ sources: [DATASET], ...body })).status).toBe(200);
      const full = startCommand(['backfill', DATASET, '--from', days[1], '--to', days[2]], settings);
      if (place === '') {
        // The log is the first to need space.
        const { exit, json, stderr } = await full.done;
        expect([exit, json.units.map(({ code }: Json) => code)], stderr).toEqual([1, ['LOG_FULL', 'LOG_FULL']]);
      } else {
        let said = '';
        full.child.stderr!.on('data', (text) => {
          said += text;
        });
        await eventually(() => said.includes('No space left on device'), 'it says what is wrong');
      }
      execFileSync('mount', ['-o', 'remount,size=1g', small]);
      // A projector that lacks space tries again by itself, and the command waits for it.
      if (place !== '') expect((await full.done).json).toMatchObject({ ok: true, proved: 2 });
      const again = await backfill(days[0], days[2]);
      expect([again.exit, again.json?.ok], again.stderr).toEqual([0, true]);
      expect((await undisturbed.backfill(days[0], days[2])).exit).toBe(0);
      await using client = await connect({ url: stack.databaseUrl, name: 'test' });
      expect(await digestsOf(client)).toEqual(await undisturbed.digests());
      await sequence({ dir: disk, databaseUrl: stack.databaseUrl });
      const changes = await serving.send({ method: 'GET', path: '/v1/changes' });
      expect(changes.json.changes.map(({ number, partition }: Json) => [number, partition])).toEqual(
        days.map((day, index) => [index + 1, day]),
      );
      const { faults } = await checkMirror(await checkpointOf({ dir: disk }), folderSource(logFolderOf({ dir: disk })));
      expect(faults).toEqual([]);
    } finally {
      execFileSync('umount', ['-l', small]);
      await rm(disk, { recursive: true });
    }
  });
});

given(canMount, NO_MOUNT).describe('a lake on a full disk', () => {
  // Its files are small: one of a few rows has 10 kB.
  test('ends with what to do, holds whole files alone, and goes on where there is room again', async () => {
    await using env = await createWorldsEnv();
    const disk = await mkdtemp(join(tmpdir(), 'tidemark-full-'));
    mounted(disk, 1);
    try {
      const folder = join(disk, 'lake');
      const rest = join(disk, 'rest');
      await writeFile(rest, Buffer.alloc(700 << 10));
      await expect(writeLake({ databaseUrl: env.databaseUrl, folder })).rejects.toMatchObject({
        code: 'DISK_UNUSABLE',
        cause: { code: 'ENOSPC' },
      });
      for (const path of await filesIn(folder)) {
        const bytes = await readFile(join(folder, path));
        const isWhole = path.endsWith('.parquet')
          ? bytes.subarray(-4).toString() === 'PAR1'
          : JSON.parse(bytes.toString());
        expect(isWhole, path).toBeTruthy();
      }
      execFileSync('mount', ['-o', 'remount,size=64m', disk]);
      expect((await writeLake({ databaseUrl: env.databaseUrl, folder })).failed).toEqual([]);
      expect(await faultsOf(folder)).toEqual([]);
    } finally {
      execFileSync('umount', ['-l', disk]);
      await rm(disk, { recursive: true });
    }
  });
});

describe('a run whose progress the database refuses to write', () => {
  let env: TestEnv;
  beforeAll(async () => {
    env = await createMigratedEnv();
  });
  afterAll(() => env[Symbol.asyncDispose]());

  // It gave its connection up, as if that were lost, and its lock with it: doctor called it killed.
  test('is alive all the same', async () => {
    const needs = { databaseUrl: env.databaseUrl, datasets: [exchangeASpotTrades] };
    await using client = await connect({ url: env.databaseUrl, name: 'test' });
    await using run = await RunRecorder.open({
      ...needs,
      kind: 'follow',
      subject: 'exchange_a',
      command: './tidemark up',
    });
    const holder = async () => {
      const { rows } = await client.query(
        `select pid from pg_locks where locktype = 'advisory' and objid = $1::int8::oid and objsubid = 2 and granted
           and database = (select oid from pg_database where datname = current_database())`,
        [run.id],
      );
      return rows.map(({ pid }) => pid);
    };
    const before = await holder();
    expect(before).toHaveLength(1);
    await client.query('alter table runs add constraint full_disk check (proved is null) not valid');
    await run.write({ proved: 1 });
    expect(await holder()).toEqual(before);
    expect((await openRuns(client)).map(({ run_id }) => run_id)).toContain(run.id);
    await client.query('alter table runs drop constraint full_disk');
    await run.write({ proved: 2 });
    expect((await openRuns(client))[0]).toMatchObject({ run_id: run.id, proved: 2 });
    // A connection that is really lost is made again, with its lock.
    await client.query('select pg_terminate_backend($1, 10000)', before);
    await run.write({ proved: 3 });
    expect(await holder()).toHaveLength(1);
    expect(await holder()).not.toEqual(before);
  });
});
