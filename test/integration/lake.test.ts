/** The lake: every proved partition as Parquet below a folder, kept equal to what the service serves. */
import { cp, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { LakeFile } from '../../serving/lake/format.ts';
import type { LakeReport } from '../../serving/lake/lake.ts';
import type { LakeTarget, StagedFile } from '../../serving/lake/target.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { PROOF_LOG_LOCK } from '../../shared/db/connect.ts';
import { DATASETS, datasetOf, shapeOf } from '../../shared/registry/index.ts';
import { expectServed, faultsOf, filesIn, openLake, rootOf, writeLake } from '../support/lake.ts';
import { csvOf, System, writeDocument } from '../support/pipeline.ts';
import { sequence } from '../support/proof-log.ts';
import { type DuckDb, openDuckDb } from '../support/read-parquet.ts';
import { OWN_MATRIX } from '../support/rights.ts';
import { eventually, SAMPLE_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { execute, type TestEnv } from '../support/stack.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

let env: TestEnv;
let duck: DuckDb;
let serving: Serving;
let folder: string;
/** A lake of what is loaded, to begin with a copy of it, and what its writer reported. */
let written: string;
let report: LakeReport;
let lakes = 0;

beforeAll(async () => {
  env = await createWorldsEnv();
  duck = await openDuckDb();
  serving = await startServing({ databaseUrl: env.databaseUrl });
  written = join(env.dir, 'lake');
  report = await writeLake({ databaseUrl: env.databaseUrl, folder: written });
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  duck?.[Symbol.dispose]();
  await env?.[Symbol.asyncDispose]();
});
beforeEach(() => {
  folder = join(env.dir, `lake-${lakes++}`);
});

const write = (more: { synthetic?: boolean; matrix?: string } = {}) =>
  writeLake({ databaseUrl: env.databaseUrl, folder, ...more });
const begin = () => cp(written, folder, { recursive: true });
const sql = (text: string) => execute(env.databaseUrl, text);
const DAY = `dataset_id = ${datasetOf('exchange_a_spot_trades').number} and partition_key = '2024-03-02'`;
/** Another time of proof for a day of exchange A, or its own again. */
const moveProof = (sign: string) =>
  sql(`update partitions set proved_at = proved_at ${sign} interval '1 ms' where ${DAY}`);
const pathsOf = async (dataset: string) =>
  (await rootOf(folder)).files.filter((file) => file.dataset === dataset).map(({ path }) => path);
const times = async () => {
  const { files } = await rootOf(folder);
  return new Map(
    await Promise.all(files.map(async ({ path }) => [path, (await stat(join(folder, path))).mtimeMs] as const)),
  );
};
/** The paths whose files were replaced, removed or added since. */
async function changedSince(before: ReadonlyMap<string, number>): Promise<string[]> {
  const now = await times();
  return [...new Set([...before.keys(), ...now.keys()])].filter((path) => before.get(path) !== now.get(path)).sort();
}

describe('a lake of all datasets', () => {
  test('equals the service file by file, in types that need no cast, and a second run writes nothing', async () => {
    await begin();
    expect(report).toMatchObject({ removed: 0, replaced: 0, skipped: [], failed: [], folder: written });
    expect(await faultsOf(folder)).toEqual([]);
    const { files, lake_version, synthetic } = await rootOf(folder);
    expect({ lake_version, synthetic }).toEqual({ lake_version: 1, synthetic: false });
    expect(files.map(({ path }) => path)).toEqual(files.map(({ path }) => path).toSorted());
    expect(new Set(files.map((file) => `${file.dataset} ${file.mode}`)).size).toBe(2 * DATASETS.size);
    expect(await expectServed(folder, duck, serving)).toBe(report.rows);
    for (const { path, manifest, rows, sha256, proof_sha256 } of files) {
      const beside = JSON.parse(await readFile(join(folder, manifest.path), 'utf8'));
      expect(beside).toMatchObject({ row_count: rows, sha256, files: [{ name: 'rows.parquet' }] });
      expect(beside.proof.sha256).toBe(proof_sha256);
      expect(path).toMatch(/rows\.parquet$/);
    }
    const before = await times();
    expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 0, files: report.files });
    expect(await changedSince(before)).toEqual([]);
  });

  test('hive paths are columns, and all files of a dataset have one schema', async () => {
    await begin();
    for (const { key } of DATASETS.values()) {
      for (const mode of ['native', 'aligned_1s'] as const) {
        const [[rows]] = await duck.texts(
          `select count(*) from read_parquet('${folder}/**/*.parquet', hive_partitioning = true, union_by_name = true)
           where dataset = '${key}' and mode = '${mode}'`,
        );
        const files = (await rootOf(folder)).files.filter((file) => file.dataset === key && file.mode === mode);
        expect(Number(rows)).toBe(files.reduce((sum, file) => sum + file.rows, 0));
        const types = await duck.texts(
          `select distinct name, type, coalesce(converted_type, '') from parquet_schema('${folder}/dataset=${key}/mode=${mode}/*/*.parquet')
           where name <> 'schema'`,
        );
        expect(types.length).toBe(shapeOf(datasetOf(key), mode).fields.length);
      }
    }
  });

  test('file days that begin at 16:00 UTC make files of UTC days', async () => {
    await begin();
    const paths = await pathsOf('exchange_b_spot_trades');
    // Of 2024-03-01, -02 and -04, each from 16:00 of the day before or of the day on.
    const dates = [...new Set(paths.map((path) => /date=([\d-]+)/.exec(path)![1]))];
    expect(dates.length).toBeGreaterThan(3);
    const [day] = await duck.rows(
      `select count(distinct (datetime::timestamptz)::date)::int as days from '${join(folder, paths.find((p) => p.includes('native'))!)}'`,
    );
    expect(day.days).toBe(1);
  });
});

describe('what changes in the catalog', () => {
  const A = 'exchange_a_spot_trades';
  const of = (dataset: string) => `dataset_id = ${datasetOf(dataset).number}`;

  test('a revision replaces the files of its day alone, and they have the new revision', async () => {
    await begin();
    const before = await times();
    const set = (number: number) => sql(`update partitions set revision = ${number}, attempt = ${number} where ${DAY}`);
    await set(2);
    expect(await write()).toMatchObject({ written: 0, replaced: 2, removed: 0 });
    expect(await changedSince(before)).toEqual(
      ['aligned_1s', 'native'].map((mode) => `dataset=${A}/mode=${mode}/date=2024-03-02/rows.parquet`),
    );
    const { files } = await rootOf(folder);
    expect(files.find(({ path }) => path.includes(`${A}/mode=native/date=2024-03-02`))).toMatchObject({ revision: 2 });
    expect(await faultsOf(folder)).toEqual([]);
    await set(1);
  });

  // Only its time tells the proof of restored rows from that of altered ones: attempt, revision and counts are the same.
  test('rows that a replay restored replace those that the lake had in their place', async () => {
    await begin();
    await moveProof('+');
    expect(await write()).toMatchObject({ written: 0, replaced: 2, removed: 0 });
    await moveProof('-');
  });

  test('a quarantine removes the day, its folders too, and a release brings it back', async () => {
    await begin();
    const day = Date.parse('2024-03-04T00:00:00Z');
    const range = `int8multirange(int8range(${day}, ${day + 86_400_000}))`;
    const number = datasetOf(A).number;
    const set = (state: string, sign: string) =>
      sql(`begin; update partitions set state = '${state}' where dataset_id = ${number} and partition_key = '2024-03-04';
        update coverage set proved = proved ${sign} ${range}, version = version + 1 where dataset_id = ${number}; commit`);
    await set('quarantined', '-');
    try {
      expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 2 });
      expect((await filesIn(folder)).filter((path) => path.includes(`${A}/`) && path.includes('2024-03-04'))).toEqual(
        [],
      );
      await expect(stat(join(folder, `dataset=${A}/mode=native/date=2024-03-04`))).rejects.toThrow('ENOENT');
      expect(await faultsOf(folder)).toEqual([]);
      await expectServed(folder, duck, serving);
    } finally {
      await set('proved', '+');
    }
    expect(await write()).toMatchObject({ written: 2, replaced: 0, removed: 0 });
    expect(await faultsOf(folder)).toEqual([]);
  });

  test('a date whose new rows cannot be read has no file: what it held may have been taken back', async () => {
    await begin();
    const [first] = (await pathsOf(A)).filter((path) => path.includes('mode=native'));
    const miscount = (by: number) =>
      sql(
        `update partitions set rows = rows + ${by} where ${of(A)} and partition_key = '${/date=([\d-]+)/.exec(first)![1]}'`,
      );
    await miscount(1);
    try {
      const report = await write();
      expect(report.failed.map(({ path }) => path)).toContain(first);
      expect(await pathsOf(A)).not.toContain(first);
      expect(await filesIn(folder)).not.toContain(first);
      expect(await faultsOf(folder)).toEqual([]);
    } finally {
      await miscount(-1);
    }
    expect((await write()).failed).toEqual([]);
    expect(await pathsOf(A)).toContain(first);
  });

  test.each([
    [
      'its partition is quarantined',
      `update partitions set state = 'quarantined' where ${DAY}`,
      `update partitions set state = 'proved' where ${DAY}`,
    ],
    [
      'its dataset is refused as a whole',
      `update coverage set synthetic = true where ${of(A)}`,
      `update coverage set synthetic = false where ${of(A)}`,
    ],
  ])('a file that could not be written holds up the lake no longer when %s', async (_, leave, comeBack) => {
    await begin();
    const miscount = (by: number) => sql(`update partitions set rows = rows + ${by} where ${DAY}`);
    await miscount(1);
    await using lake = await openLake({ databaseUrl: env.databaseUrl, folder });
    try {
      await sql(
        `insert into proof_leaves (leaf_index, dataset_id, partition_key, attempt, kind, body)
         values (0, ${datasetOf(A).number}, '2024-03-02', 1, 'quarantined', 'x')`,
      );
      const { failed, change } = await lake.write();
      expect([failed.every(({ path }) => path.includes('date=2024-03-02')), failed.length, change]).toEqual([
        true,
        1,
        0,
      ]);
      await sql(leave);
      expect(await lake.write()).toMatchObject({ failed: [], change: 1 });
      expect(await faultsOf(folder)).toEqual([]);
    } finally {
      await sql(comeBack);
      await miscount(-1);
      await sql('delete from proof_leaves');
    }
  });

  test('rights that are taken back remove a dataset, and the report says why', async () => {
    await begin();
    const matrix = JSON.parse(await readFile(SAMPLE_MATRIX, 'utf8'));
    const source = Object.entries<{ datasets: string[] }>(matrix.sources).find(([, { datasets }]) =>
      datasets.includes(A),
    )![0];
    const own = join(env.dir, `matrix-${lakes}.json`);
    await writeFile(
      own,
      JSON.stringify({ ...matrix, sources: { [source]: { ...matrix.sources[source], rights_state: 'Ingest Only' } } }),
    );
    const report = await write({ matrix: own });
    expect(report.files).toBe(0);
    expect(report.skipped.find(({ dataset }) => dataset === A)?.why).toContain('licence');
    expect(await filesIn(folder)).toEqual(['_manifest.json']);
    // A matrix that covers synthetic rows only does not cover these.
    expect((await write({ matrix: SAMPLE_MATRIX })).skipped).toHaveLength(DATASETS.size);
  });

  test('a file that was refused while another one was written is written by the next pass', async () => {
    await begin();
    const day = Date.parse('2024-03-02T00:00:00Z');
    const cover = (sign: string) =>
      sql(`update coverage set proved = proved ${sign} int8multirange(int8range(${day}, ${day + DAY_MS})),
        version = version + 1 where ${of(A)}`);
    const revise = (by: number) => sql(`update partitions set attempt = attempt + ${by} where ${DAY}`);
    await revise(1);
    const [isRead, isRefused] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const staged: string[] = [];
    /** The first file is put once the second is refused, which is read when its day is not covered. */
    const through = (folder: LakeTarget): LakeTarget => {
      const [stage, put] = [folder.stage.bind(folder), folder.put.bind(folder)];
      return Object.assign(folder, {
        async stage(file: LakeFile) {
          if (staged.push(file.mode) === 2) {
            await isRead.promise;
            await cover('-');
          }
          return await stage(file);
        },
        async put(file: LakeFile, files: StagedFile) {
          if (file.mode === staged[0]) {
            isRead.resolve();
            await isRefused.promise;
            await cover('+');
          }
          await put(file, files);
        },
      });
    };
    const before = await times();
    const report = await writeLake({
      databaseUrl: env.databaseUrl,
      folder,
      through,
      onProgress: () => isRefused.resolve(),
    });
    expect(report).toMatchObject({ written: 0, replaced: 2, removed: 0, failed: [] });
    expect(staged).toHaveLength(3);
    expect(await changedSince(before)).toHaveLength(2);
    await revise(-1);
  });

  test('synthetic rows are written only where they are wanted', { tags: ['nightly'] }, async () => {
    await sql(`update coverage set synthetic = true where ${of(A)}`);
    try {
      const without = await write();
      expect(without.skipped).toEqual([{ dataset: A, why: 'its rows are synthetic; --synthetic writes them' }]);
      expect(await pathsOf(A)).toEqual([]);
      expect(await write({ synthetic: true })).toMatchObject({ written: 6, skipped: [] });
      expect(await rootOf(folder)).toMatchObject({ synthetic: true });
      expect(await write()).toMatchObject({ removed: 6 });
      expect(await rootOf(folder)).toMatchObject({ synthetic: false });
    } finally {
      await sql(`update coverage set synthetic = false where ${of(A)}`);
    }
  });

  test('a state that is carried into a file belongs to its state', { tags: ['nightly'] }, async () => {
    await begin();
    const metrics = 'macro_series_metrics';
    const paths = (mode: string) => pathsOf(metrics).then((all) => all.filter((path) => path.includes(mode)));
    const [last] = (await paths('aligned_1s')).slice(-1);
    const year = Number(/date=(\d+)/.exec(last)![1]);
    // Vintages that end before the last year concern it only by what is carried into it.
    const of = `dataset_id = ${datasetOf(metrics).number} and state = 'proved'`;
    const early = await sql(`select count(*)::int as n from partitions where ${of} and to_ms <= ${Date.UTC(year, 0)}`);
    expect(early.rows[0].n).toBeGreaterThan(0);
    const before = await times();
    await sql(`update partitions set attempt = attempt + 1 where ${of} and to_ms <= ${Date.UTC(year, 0)}`);
    await write();
    const changed = await changedSince(before);
    expect(changed).toContain(last);
    expect(changed).not.toContain(last.replace('aligned_1s', 'native'));
  });

  test('a file is replaced when later blocks prolong the validity of its rows', { tags: ['nightly'] }, async () => {
    const { number } = datasetOf('bitcoin_block_headers');
    const { rows } = await sql(
      `select from_ms, to_ms from partitions where dataset_id = ${number} and state = 'proved' order by from_ms`,
    );
    const last = Number(rows.at(-1).from_ms);
    await sql(`create table lake_spans as select * from coverage_spans where dataset_id = ${number}`);
    try {
      // As before the last blocks came: rows of their date are there, and the median time has not reached them.
      await sql(
        `update coverage_spans set through_ms = least(through_ms, ${last - 3_600_000}) where dataset_id = ${number}`,
      );
      await write();
      const before = await times();
      await sql(`delete from coverage_spans where dataset_id = ${number}`);
      await sql('insert into coverage_spans select * from lake_spans');
      expect(await write()).toMatchObject({ removed: 0 });
      const changed = await changedSince(before);
      expect(changed.filter((path) => path.includes('aligned_1s'))).not.toEqual([]);
      expect(changed.filter((path) => path.includes('native'))).toEqual([]);
      await expectServed(folder, duck, serving);
    } finally {
      await sql('drop table lake_spans');
    }
  });
});

describe('a lake that is followed', () => {
  test('outlives lost connections, and loses what rights no longer allow', { tags: ['nightly'] }, async () => {
    await begin();
    // With its sign-off, which lies beside it.
    const rights = join(env.dir, 'followed');
    await cp(dirname(OWN_MATRIX), rights, { recursive: true });
    const matrix = join(rights, basename(OWN_MATRIX));
    const stop = new AbortController();
    await using lake = await openLake({ databaseUrl: env.databaseUrl, folder, matrix, signal: stop.signal });
    const following = lake.follow(() => {});
    const held = async (dataset: string) => (await pathsOf(dataset)).length;
    const listed = async () => (await rootOf(folder)).files.length;
    try {
      const whole = await listed();
      const before = await held('etf_daily_metrics');
      expect(before).toBeGreaterThan(0);
      await sql(`select pg_terminate_backend(pid) from pg_stat_activity
        where application_name in ('tidemark lake', 'tidemark serving') and datname = current_database()`);
      const text = await readFile(OWN_MATRIX, 'utf8');
      await writeFile(matrix, text.replaceAll('"Hosted Allowed"', '"Nothing Allowed"'));
      await eventually(async () => (await held('etf_daily_metrics')) === 0, 'the files are gone');
      expect(lake.report().skipped.map(({ why }) => why)).toContainEqual(expect.stringContaining('matrix is invalid'));
      await writeFile(matrix, text);
      await eventually(async () => (await held('etf_daily_metrics')) === before, 'the files are back');
      // Those of other datasets may still be written: a writer that stops then leaves files that the next one lists.
      await eventually(async () => (await listed()) === whole, 'the files of all datasets are back');
    } finally {
      stop.abort();
      await following;
    }
    expect(await faultsOf(folder)).toEqual([]);
  });

  test('writes what a leaf is about that had its index when the lake looked', { tags: ['nightly'] }, async () => {
    await begin();
    const stop = new AbortController();
    await using lake = await openLake({ databaseUrl: env.databaseUrl, folder, signal: stop.signal });
    const following = lake.follow(() => {});
    try {
      // The first round compares everything, those after it only what leaves name.
      const stated = async () => (await sql(`select from lakes where folder = '${folder}'`)).rowCount === 1;
      await eventually(stated, 'the first round is over');
      const { replaced, change } = lake.report();
      await moveProof('+');
      await sql(`insert into proof_leaves (leaf_index, dataset_id, partition_key, attempt, kind, body)
        select ${change}, dataset_id, partition_key, attempt, 'quarantined', 'x' from partitions where ${DAY}`);
      await eventually(async () => lake.report().replaced === replaced + 2, 'the files of the day are others');
    } finally {
      stop.abort();
      await following;
      await sql(`delete from proof_leaves where body = 'x'`);
      await moveProof('-');
    }
  });
});

describe('what a writer may find', () => {
  test('blocks of one partition that are years apart make files of their dates alone', {
    tags: ['nightly'],
  }, async () => {
    await begin();
    const before = await pathsOf('bitcoin_block_headers');
    const stretch = (by: string) =>
      sql(`update partitions set to_ms = to_ms ${by} 1000 * 86400000::int8 where (dataset_id, from_ms) =
        (select dataset_id, max(from_ms) from partitions where dataset_id = ${datasetOf('bitcoin_block_headers').number}
           and state = 'proved' group by dataset_id)`);
    await stretch('+');
    try {
      expect(await write()).toMatchObject({ written: 0, failed: [] });
      expect(await pathsOf('bitcoin_block_headers')).toEqual(before);
    } finally {
      await stretch('-');
    }
  });

  test('damaged, missing and foreign files below its own paths are written again or removed', async () => {
    await begin();
    const [one, two, three] = (await rootOf(folder)).files;
    await writeFile(join(folder, one.path), 'half a file');
    await rm(join(folder, two.manifest.path));
    await rm(join(folder, three.path));
    const stray = join(folder, 'dataset=exchange_a_spot_trades/mode=native/date=1999-01-01');
    await mkdir(stray);
    await writeFile(join(stray, 'rows.parquet'), 'left by a killed writer');
    expect(await write()).toMatchObject({ removed: 1 });
    expect(await faultsOf(folder)).toEqual([]);
  });

  test('a file that was put before a kill is written again, whatever its size', { tags: ['nightly'] }, async () => {
    await begin();
    const [{ path, bytes }] = (await rootOf(folder)).files;
    await writeFile(join(folder, path), Buffer.alloc(bytes));
    await mkdir(join(folder, '_partial', path.split('/').slice(0, 3).join('~')), { recursive: true });
    await write();
    expect(await faultsOf(folder)).toEqual([]);
  });

  test('folders that are none of its own are refused and left alone', async () => {
    const file = join(env.dir, 'a-file');
    await writeFile(file, 'text');
    const refuse = async (to: string, why: string) => {
      const writing = writeLake({ databaseUrl: env.databaseUrl, folder: to });
      await expect(writing).rejects.toMatchObject({
        code: 'USAGE',
        message: expect.stringContaining(why),
      });
    };
    await refuse(file, 'it is a file');
    await refuse(join(file, 'below'), 'below one');
    await mkdir(folder);
    await writeFile(join(folder, 'other.txt'), 'text');
    await refuse(folder, 'not empty');
    await rm(join(folder, 'other.txt'));
    for (const [text, why] of [
      ['{"lake_version": 2}', 'version 2'],
      ['{"manifest_version": 1}', 'not that of a lake'],
      ['{', 'not JSON'],
      ['{"lake_version": 1}', 'damaged'],
    ]) {
      await writeFile(join(folder, '_manifest.json'), text);
      await refuse(folder, why);
      expect(await readFile(join(folder, '_manifest.json'), 'utf8')).toBe(text);
    }
    expect(await filesIn(folder)).toEqual(['_manifest.json']);
  });

  test('a second writer of the folder is refused', async () => {
    await using _first = await openLake({ databaseUrl: env.databaseUrl, folder });
    await expect(write()).rejects.toMatchObject({ code: 'WORK_HELD' });
  });
});

test('a lake that was interrupted was answered as a whole one', { tags: ['nightly'] }, async () => {
  await using system = await System.create();
  for (const [index, day] of ['2024-01-01', '2024-01-02'].entries()) {
    await sequence(system.env);
    await writeDocument(system.vendor, day, csvOf({ day, firstId: 1 + index * 30, seed: 1, rows: 30, timeUnit: 'ms' }));
    expect((await system.backfill(day, day)).exit).toBe(0);
  }
  // As a sequencer that is at work: the lake waits for the signature of the second day.
  await system.rows(`select pg_advisory_lock(${PROOF_LOG_LOCK}, 4711)`);
  const running = system.begin(['lake', '--to', folder], { SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX });
  const waits = `select 1 from pg_stat_activity where datname = current_database() and application_name = 'tidemark lake'
    and query like '%signed_size%'`;
  await eventually(async () => (await system.rows(waits)).length > 0, 'the lake waits');
  running.stop();
  const { exit, json } = await running.done;
  expect({ exit, json }).toMatchObject({ exit: 130, json: { ok: false, interrupted: true, files: 0, failed: [] } });
});
