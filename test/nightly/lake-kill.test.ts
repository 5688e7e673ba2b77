/**
 * The lake as processes: killed at any instant it leaves whole files that its manifests describe, and the next run goes on; the
 * command follows real days, revisions and quarantines.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { MODES } from '../../serving/lake/format.ts';
import { PROOF_LOG_LOCK } from '../../shared/db/connect.ts';
import { commitName, dataFileOf, logFileOf, readSnapshot } from '../../shared/mirror/delta-log.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { LakeReader } from '../faults/lake-reader.ts';
import { ROOT } from '../support/command.ts';
import { expectServed, faultsOf, manifestOf, rootOf, tableFiles, writeLake } from '../support/lake.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { sequence } from '../support/proof-log.ts';
import { openDuckDb } from '../support/read-parquet.ts';
import { SEED } from '../support/seed.ts';
import { eventually, OWN_MATRIX, startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { execute, rolesOf } from '../support/stack.ts';
import { tablesPython } from '../support/tools.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

const KILLS = 14;
const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

/** The process that writes a lake, as the command starts it. */
function spawnLake(databaseUrl: string, folder: string) {
  const child = spawn(process.execPath, [join(ROOT, 'serving/lake/lake-main.ts'), '--stdin'], {
    env: { PATH: process.env.PATH, NODE_COMPILE_CACHE: join(ROOT, 'node_modules/.cache/tidemark-compile') },
    stdio: ['pipe', 'ignore', 'inherit'],
  });
  child.stdin!.end(
    JSON.stringify({
      cwd: ROOT,
      parent: process.pid,
      settings: {
        SVC_DATABASE_URL: rolesOf(databaseUrl).export,
        SVC_INTERNAL_API_KEY: 'none',
        SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
        SVC_LOG_LEVEL: 'error',
        SVC_STATE_DIR: `${folder}-state`,
        SVC_LAKE_FOLDER: folder,
      },
    }),
  );
  return child;
}

/**
 * Reads the lake as an engine does: each table at its newest version. All of its files are there and whole, so that no version is
 * torn. A file that the log has removed meanwhile may be gone. @returns files looked at
 */
async function look(folder: string): Promise<number> {
  let looked = 0;
  for (const dataset of DATASETS.keys()) {
    for (const mode of MODES) {
      const table = join(folder, dataset, mode);
      const read = (name: string) => readFile(join(table, '_delta_log', name));
      const versionNow = async () => {
        const names = await readdir(join(table, '_delta_log')).catch(() => []);
        const files = names.flatMap((name) => logFileOf(name) ?? []);
        const checkpoints = files.filter(({ isCheckpoint }) => isCheckpoint).map(({ version }) => version);
        const version = Math.max(-1, ...files.map((file) => file.version));
        return { version, checkpoint: checkpoints.length > 0 ? Math.max(...checkpoints) : null };
      };
      const { version, checkpoint } = await versionNow();
      if (version < 0) continue;
      const { files } = await readSnapshot(read, version, checkpoint);
      for (const name of files.keys()) {
        const bytes = await readFile(join(table, name)).catch(() => undefined);
        if (bytes && sha256(bytes) === dataFileOf(name)!.sha256) looked++;
        else if ((await versionNow()).version === version)
          throw new Error(`${table}/${name} is not there, or not whole`);
      }
    }
  }
  return looked;
}

const listing = async (folder: string): Promise<Set<string>> =>
  new Set(await readdir(folder, { recursive: true }).catch(() => []));

test(`killed ${KILLS} times while files are written, replaced and removed`, async () => {
  await using env = await createWorldsEnv();
  const folder = join(env.dir, 'lake');
  let random = SEED;
  const draw = (below: number) => {
    random = (random * 1_103_515_245 + 12_345) % 2 ** 31;
    return random % below;
  };
  using duck = await openDuckDb();
  const python = await tablesPython();
  const reader = python.missing === undefined ? new LakeReader(python, folder) : undefined;
  let looked = 0;
  let kills = 0;
  for (let start = 1; kills < KILLS; start++) {
    const child = spawnLake(env.databaseUrl, folder);
    const ended = once(child, 'exit');
    // It dies after so many changes of the folder: a clock would run out before its first file where the machine does much else.
    // The fourth is let end, so that what the others replace and remove is there.
    let changes = start === 4 ? Number.POSITIVE_INFINITY : 1 + draw(60);
    let before = await listing(folder);
    while (changes > 0 && child.exitCode === null) {
      const now = await listing(folder);
      changes -= before.symmetricDifference(now).size;
      before = now;
      if (draw(3) === 0) looked += await look(folder);
      await delay(1);
    }
    child.kill('SIGKILL');
    const [exit] = await ended;
    expect(exit ?? 0, 'the writer failed').toBe(0);
    kills += Number(exit === null);
    looked += await look(folder);
    // Some of what is there has to be written again.
    await execute(
      env.databaseUrl,
      `update partitions set attempt = attempt + 1 where state = 'proved'
      and hashtext(partition_key || '${start}') % 3 = 0`,
    );
  }
  expect(looked).toBeGreaterThan(KILLS);
  await reader?.stop();
  expect(reader?.faults ?? [], JSON.stringify(reader?.reads)).toEqual([]);
  console.info(`other engines read it: ${JSON.stringify(reader?.reads ?? python.missing)}`);
  const report = await writeLake({ databaseUrl: env.databaseUrl, folder });
  expect(report.failed).toEqual([]);
  expect(await faultsOf(folder)).toEqual([]);
  const calm = join(env.dir, 'calm');
  await writeLake({ databaseUrl: env.databaseUrl, folder: calm });
  const rowsOf = async (of: string) => (await tableFiles(of)).map(({ path, sha256: digest }) => [path, digest]);
  expect(await rowsOf(folder)).toEqual(await rowsOf(calm));
  // As DuckDB reads it, every cell of every file is what the service answers.
  await using serving = await startServing({ databaseUrl: env.databaseUrl });
  expect(await expectServed(folder, duck, serving)).toBe(report.rows);
});

test('the command writes, follows, and obeys; `check` holds its files against the proof log', async () => {
  await using system = await System.create();
  const folder = join(system.env.dir, 'lake');
  const own = { SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX };
  const days = ['2024-01-01', '2024-01-02', '2024-01-03'];
  const put = async (index: number, rows: number) => {
    const text = csvOf({ day: days[index], firstId: 1 + index * 1000, seed: rows, rows, timeUnit: 'ms' });
    await writeDocument(system.vendor, days[index], text);
  };
  const dates = async () => {
    const files = await tableFiles(folder).catch(() => []);
    const manifests = await Promise.all(files.map((file) => manifestOf(folder, file).catch(() => undefined)));
    return [...new Set(manifests.map((one, at) => `${files[at].date} r${one?.proof.listed[0].revision}`))];
  };
  await put(0, 100);
  expect((await system.backfill(days[0], days[0])).exit).toBe(0);
  await sequence(system.env);
  const once = await system.run(['lake', '--to', folder], own);
  expect(once.json, once.stderr).toMatchObject({ command: 'lake', ok: true, folder, files: 2, written: 2, change: 1 });
  expect(await dates()).toEqual(['2024-01-01 r1']);
  const checked = await system.run(['check', folder, '--log', join(system.env.dir, 'state', 'proof-log')]);
  expect(checked.exit, checked.stderr + checked.stdout).toBe(0);

  const following = system.begin(['lake', '--to', folder, '--follow'], { ...own, ...limitsEnv({ lakeCommitMs: 0 }) });
  try {
    await put(1, 50);
    await put(2, 60);
    expect((await system.backfill(days[1], days[2])).exit).toBe(0);
    await sequence(system.env);
    await eventually(async () => (await dates()).length === 3, 'three days');
    const isFirst = ({ date, mode }: { date: string; mode: string }) => date === days[0] && mode === 'native';
    const before = (await tableFiles(folder)).find(isFirst);
    await put(1, 70);
    expect((await system.reingest(days[1], days[1], 'republished')).exit).toBe(0);
    await sequence(system.env);
    await eventually(async () => (await dates()).includes('2024-01-02 r2'), 'the revision');
    await system.rows(`update ${DATASET} set price = price + 1 where trade_id = 2001`);
    expect((await system.run(['verify', DATASET])).exit).toBe(1);
    // Withdrawn rows go before their leaf has an index.
    await eventually(async () => (await dates()).length === 2, 'the quarantine');
    await sequence(system.env);
    await eventually(async () => (await rootOf(folder)).change === 5, 'the last change');
    expect(await dates()).toEqual(['2024-01-01 r1', '2024-01-02 r2']);
    expect((await tableFiles(folder)).find(isFirst)).toEqual(before);
    const second = await system.run(['lake', '--to', folder], own);
    expect([second.exit, second.json.error.code]).toEqual([3, 'WORK_HELD']);
    const forgets = await system.run(['lake', '--to', folder, '--forget']);
    expect([forgets.exit, forgets.json.error.code]).toEqual([3, 'WORK_HELD']);
  } finally {
    following.stop();
  }
  const { exit, json } = await following.done;
  expect([exit, json.ok]).toEqual([0, true]);
  // The days and the revision, and each time the last second of the day before.
  expect(json.replaced).toBeGreaterThan(2);
  expect(await faultsOf(folder)).toEqual([]);
  const check = async () => {
    const { exit: code, json: answer } = await system.run([
      'check',
      folder,
      '--log',
      join(system.env.dir, 'state', 'proof-log'),
    ]);
    return [code, answer.faults.join('; ')];
  };
  expect(await check()).toEqual([0, '']);
  const [altered] = await tableFiles(folder);
  const rows = await readFile(join(folder, altered.path));
  await writeFile(
    join(folder, altered.path),
    Buffer.concat([rows.subarray(0, 100), Buffer.from('x'), rows.subarray(101)]),
  );
  expect(await check()).toEqual([1, expect.stringMatching(/has the sha256 \w+, and \w+ in the manifest/)]);
  await writeFile(join(folder, altered.path), rows);
  const unsigned = join(folder, DATASET, 'native/_delta_log', commitName(999));
  await writeFile(unsigned, '{}');
  expect(await check()).toEqual([1, `${DATASET}/native: version 999 of its log has no signed note`]);
  await rm(unsigned);
  const { lakes } = (await system.run(['status'])).json;
  expect(lakes).toMatchObject([{ folder, files: 4, change: 5, behind: 0, fault: null }]);
  // A lake whose folder was deleted stayed in `status` and metrics for good.
  const forget = (to: string, ...more: string[]) => system.run(['lake', '--to', to, '--forget', ...more]);
  for (const more of ['--follow', '--synthetic']) {
    const { exit: code, json: answer } = await forget(folder, more);
    expect([code, answer.error.message]).toEqual([2, expect.stringContaining('it takes neither')]);
  }
  const link = join(system.env.dir, 'link');
  await symlink(system.env.dir, link);
  const forgotten = await forget(join(link, 'lake'));
  expect([forgotten.exit, forgotten.json]).toEqual([0, { command: 'lake', ok: true, folder, forgotten: true }]);
  expect((await system.run(['status'])).json.lakes).toEqual([]);
  expect(await dates()).toEqual(['2024-01-01 r1', '2024-01-02 r2']);
  const unknown = await forget(folder);
  expect([unknown.exit, unknown.json.error.message]).toEqual([2, `No lake of ${folder} is on record`]);
  const refused = await system.run(['lake', '--to', join(ROOT, 'package.json')], own);
  expect([refused.exit, refused.json.error.code]).toEqual([2, 'USAGE']);
});

// The lake stated the change of a day that was proved after it had read what to write, and never wrote that day.
test('a day that is proved while the lake waits for the signature of another is written, too', async () => {
  await using system = await System.create();
  const folder = join(system.env.dir, 'lake');
  const days = ['2024-01-01', '2024-01-02', '2024-01-03'];
  for (const [index, day] of days.entries()) {
    const text = csvOf({ day, firstId: 1 + index * 1000, seed: 1, rows: 30, timeUnit: 'ms' });
    await writeDocument(system.vendor, day, text);
  }
  expect((await system.backfill(days[0], days[0])).exit).toBe(0);
  await sequence(system.env);
  const following = system.begin(['lake', '--to', folder, '--follow'], {
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    ...limitsEnv({ lakeCommitMs: 0 }),
  });
  const dates = async () => [...new Set((await tableFiles(folder)).map(({ date }) => date))];
  try {
    await eventually(async () => (await dates().catch(() => [])).length === 1, 'the first day');
    // As a sequencer that is at work: what has no index yet is waited for.
    await system.rows(`select pg_advisory_lock(${PROOF_LOG_LOCK}, 4711)`);
    expect((await system.backfill(days[1], days[1])).exit).toBe(0);
    const waits = `select 1 from pg_stat_activity where datname = current_database() and application_name = 'tidemark lake'
      and query like '%signed_size%'`;
    await eventually(async () => (await system.rows(waits)).length > 0, 'the lake waits');
    expect((await system.backfill(days[2], days[2])).exit).toBe(0);
    await sequence(system.env);
    await eventually(async () => (await rootOf(folder)).change === 3, 'the last change');
    expect(await dates()).toEqual(days);
  } finally {
    following.stop();
    await following.done;
  }
});

test('`up` keeps the lake of its setting', async () => {
  await using system = await System.create();
  const folder = join(system.env.dir, 'lake');
  await writeDocument(
    system.vendor,
    '2024-01-01',
    csvOf({ day: '2024-01-01', firstId: 1, seed: 1, rows: 30, timeUnit: 'ms' }),
  );
  const own = { SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX, SVC_LAKE_FOLDER: folder };
  const up = system.start(['up', '--http-port', '0'], { ...own, SVC_INTERNAL_API_KEY: 'a-key', SVC_SAMPLE: 'false' });
  try {
    expect((await system.backfill('2024-01-01', '2024-01-01')).exit).toBe(0);
    const files = () =>
      tableFiles(folder).then(
        ({ length }) => length,
        () => 0,
      );
    await eventually(async () => (await files()) === 2, 'the day in the lake');
  } finally {
    up.child.kill('SIGTERM');
    await up.done;
  }
  expect(await faultsOf(folder)).toEqual([]);
});
