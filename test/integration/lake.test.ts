/** The lake: every proved partition in Delta tables below a folder, kept equal to what the service serves. */
import { writeFileSync } from 'node:fs';
import { cp, mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { LakeReport } from '../../serving/lake/lake.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { PROOF_LOG_LOCK } from '../../shared/db/connect.ts';
import { actionsOf, commitName, dataFileOf, readSnapshot } from '../../shared/mirror/delta-log.ts';
import { DATASETS, datasetOf, shapeOf } from '../../shared/registry/index.ts';
import {
  expectServed,
  faultsOf,
  filesIn,
  type LakeInput,
  manifestOf,
  openLake,
  rootOf,
  tableFiles,
  writeLake,
} from '../support/lake.ts';
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

const A = 'exchange_a_spot_trades';
const NATIVE = `${A}/native`;
const DAY = `dataset_id = ${datasetOf(A).number} and partition_key = '2024-03-02'`;

const write = (more: Partial<LakeInput> = {}) => writeLake({ databaseUrl: env.databaseUrl, folder, ...more });
const begin = () => cp(written, folder, { recursive: true, preserveTimestamps: true });
const sql = (text: string) => execute(env.databaseUrl, text);
const of = (dataset: string) => `dataset_id = ${datasetOf(dataset).number}`;
/** Another time of proof for a day of exchange A, or its own again: its rows are read anew, and are the same. */
const moveProof = (sign: string) =>
  sql(`update partitions set proved_at = proved_at ${sign} interval '1 ms' where ${DAY}`);
/** Other prices of that day, or its own again, with a proof of their own. */
const revise = async (sign: string) => {
  await sql(`update ${A} set price = price ${sign} 1 where trade_id >= 1060 and trade_id < 1100`);
  await moveProof(sign);
};
const filesOf = async (dataset: string) => (await tableFiles(folder)).filter((file) => file.dataset === dataset);
const pathsOf = async (dataset: string) => (await filesOf(dataset)).map(({ path }) => path);
const pathsNow = async () => (await tableFiles(folder)).map(({ path }) => path);
/** The dates whose files were replaced, removed or added since. */
async function changedSince(before: readonly string[]): Promise<string[]> {
  const now = await pathsNow();
  const changed = [...before.filter((path) => !now.includes(path)), ...now.filter((path) => !before.includes(path))];
  return [...new Set(changed.map((path) => path.split('/').slice(0, 3).join('/')))].sort();
}
const logOf = (table: string, name = '') => join(folder, table, '_delta_log', name);
const commitOf = async (table: string, version: number) =>
  actionsOf('', await readFile(logOf(table, commitName(version))));
const noteOf = async (table: string) => (await rootOf(folder)).tables.find((note) => note.table === table)!;
const versionOf = async (table: string) => (await noteOf(table))?.version;
const belowDay = async (table = NATIVE) =>
  (await filesIn(folder)).filter((path) => path.startsWith(`${table}/date=2024-03-02`));
const leaf = (kind: string, index = 0) =>
  sql(`insert into proof_leaves (leaf_index, dataset_id, partition_key, attempt, kind, body)
       values (${index}, ${datasetOf(A).number}, '2024-03-02', 1, '${kind}', 'x')`);

describe('a lake of all datasets', () => {
  test('equals the service table by table, and a second run commits nothing', async () => {
    await begin();
    expect(report).toMatchObject({ removed: 0, replaced: 0, skipped: [], failed: [], folder: written });
    expect(await faultsOf(folder)).toEqual([]);
    const { tables, lake_version, synthetic } = await rootOf(folder);
    expect({ lake_version, synthetic }).toEqual({ lake_version: 2, synthetic: false });
    expect(tables).toHaveLength(2 * DATASETS.size);
    expect(await expectServed(folder, duck, serving)).toBe(report.rows);
    for (const file of await tableFiles(folder)) {
      expect(await manifestOf(folder, file)).toMatchObject({ sha256: file.sha256, files: [{ name: file.name }] });
    }
    expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 0, files: report.files });
    for (const { table } of tables) expect(await versionOf(table)).toBe(0);
  });

  test('commits that old readers understand: protocol, schema, statistics, and the change', async () => {
    await begin();
    const [info, protocol, metaData, txn, ...adds] = await commitOf(NATIVE, 0);
    expect(info.commitInfo).toMatchObject({ operation: 'WRITE', engineInfo: 'tidemark', change: 0, checkpoint: null });
    expect(protocol).toEqual({ protocol: { minReaderVersion: 1, minWriterVersion: 2 } });
    expect(metaData.metaData!.partitionColumns).toEqual(['date', 'instrument']);
    expect(txn.txn).toMatchObject({ appId: 'tidemark', version: 0 });
    const { fields } = JSON.parse(metaData.metaData!.schemaString);
    expect(fields.map(({ name }: { name: string }) => name)).toEqual([
      ...shapeOf(datasetOf(A), 'native').fields.map(({ name }) => name),
      ...['date', 'instrument'],
    ]);
    for (const { add } of adds) {
      const [rows] = await duck.rows(
        `select count(*)::int as n, min(trade_id)::int as low, max(trade_id)::int as high
         from read_parquet('${join(folder, NATIVE, add!.path)}', hive_partitioning = false)`,
      );
      const { numRecords, minValues, maxValues, nullCount } = JSON.parse(add!.stats!);
      const found = [numRecords, minValues.trade_id, maxValues.trade_id, nullCount.price];
      expect(found).toEqual([rows.n, rows.low, rows.high, 0]);
      expect(minValues.datetime).toMatch(/^2024-03-0\d.*Z$/);
      expect(add!.partitionValues).toEqual({ date: dataFileOf(add!.path)!.date, instrument: 'BTCUSDT' });
    }
    const macro = (await commitOf('macro_series_metrics/native', 0)).flatMap(({ add }) => add ?? []);
    for (const { partitionValues, stats, path } of macro) {
      expect(partitionValues).toEqual({ year: dataFileOf(path)!.date });
      const { nullCount, numRecords, minValues } = JSON.parse(stats!);
      expect([nullCount.provenance_json, nullCount.metric_value_bool]).toEqual([0, numRecords]);
      expect(minValues.metric_value_bool).toBeUndefined();
    }
  });

  test('file days that begin at 16:00 UTC make files of UTC days', async () => {
    await begin();
    const files = (await filesOf('exchange_b_spot_trades')).filter(({ mode }) => mode === 'native');
    // Of 2024-03-01, -02 and -04, each from 16:00 of the day before or of the day on.
    expect(files.length).toBeGreaterThan(3);
    for (const { path, date } of files) {
      const days = await duck.texts(
        `select distinct (datetime at time zone 'UTC')::date::text from '${join(folder, path)}'`,
      );
      expect(days).toEqual([[date]]);
    }
  });
});

describe('what changes in the catalog', () => {
  test('a revision is a version of its table, and the one before stays what it was', async () => {
    await begin();
    const before = await pathsNow();
    const [old] = (await filesOf(A)).filter(({ mode, date }) => mode === 'native' && date === '2024-03-02');
    await revise('+');
    try {
      expect(await write()).toMatchObject({ written: 0, replaced: 1, removed: 0 });
      expect(await changedSince(before)).toEqual([`${NATIVE}/date=2024-03-02`]);
      expect([await versionOf(NATIVE), await versionOf('etf_daily_metrics/native')]).toEqual([1, 0]);
      expect(await faultsOf(folder)).toEqual([]);
      await expectServed(folder, duck, serving);
      // As of version 0.
      const { files } = await readSnapshot((name) => readFile(logOf(NATIVE, name)), 0, null);
      expect([...files.keys()]).toContain(old.name);
      const [now] = (await filesOf(A)).filter(({ mode, date }) => mode === 'native' && date === '2024-03-02');
      const priceIn = async (path: string) =>
        Number((await duck.texts(`select price from '${join(folder, path)}' where trade_id = 1060`))[0][0]);
      expect((await priceIn(now.path)) - (await priceIn(old.path))).toBeCloseTo(1);
    } finally {
      await revise('-');
    }
  });

  // Only its time tells the proof of restored rows from that of altered ones: attempt, revision and counts are the same.
  test('rows that a replay restored replace those that the lake had in their place', async () => {
    await begin();
    const before = await pathsOf(A);
    await revise('+');
    try {
      expect(await write()).toMatchObject({ replaced: 1 });
      expect(await pathsOf(A)).not.toEqual(before);
    } finally {
      await revise('-');
    }
    expect(await write()).toMatchObject({ written: 0, replaced: 1, removed: 0 });
    // The file has the name that it had at first, which an older version has removed.
    expect(await pathsOf(A)).toEqual(before);
    expect(await faultsOf(folder)).toEqual([]);
    await expectServed(folder, duck, serving);
    expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 0 });
  });

  test('a proof that changes no row is no version', async () => {
    await begin();
    await moveProof('+');
    const before = await pathsNow();
    expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 0 });
    expect(await changedSince(before)).toEqual([]);
    // The manifest is of the state that was compared: the next run reads nothing.
    const { manifest } = (await filesOf(A)).find(({ date }) => date === '2024-03-02')!;
    const { mtimeMs } = await stat(join(folder, manifest));
    await write();
    expect((await stat(join(folder, manifest))).mtimeMs).toBe(mtimeMs);
    await moveProof('-');
  });

  test('what a revision replaced goes when its time is over, and the log is read from a checkpoint', async () => {
    await begin();
    const HOUR = 3_600_000;
    let now = Date.now();
    const later = () => write({ now: () => now, limits: { lakeKeepMs: HOUR } });
    for (let round = 0; round < 12; round++) {
      await revise(round % 2 === 0 ? '+' : '-');
      await later();
      now += HOUR / 4;
    }
    expect(await versionOf(NATIVE)).toBe(12);
    expect(await readdir(logOf(NATIVE))).toContain('00000000000000000010.checkpoint.parquet');
    expect(JSON.parse(await readFile(logOf(NATIVE, '_last_checkpoint'), 'utf8'))).toMatchObject({ version: 10 });
    expect((await belowDay()).length).toBeLessThan(7);
    expect(await faultsOf(folder)).toEqual([]);
    expect(await noteOf(NATIVE)).toMatchObject({ log_checkpoint: 10 });
    expect(await readdir(logOf(NATIVE))).not.toContain(commitName(9));
    expect(await later()).toMatchObject({ written: 0, replaced: 0, removed: 0 });
    expect(await expectServed(folder, duck, serving)).toBe(report.rows);
  });

  test('a quarantine removes the day and its bytes at once, and a release brings it back', async () => {
    await begin();
    const day = Date.parse('2024-03-04T00:00:00Z');
    const range = `int8multirange(int8range(${day}, ${day + DAY_MS}))`;
    const set = (state: string, sign: string) =>
      sql(`begin; update partitions set state = '${state}' where ${of(A)} and partition_key = '2024-03-04';
        update coverage set proved = proved ${sign} ${range}, version = version + 1 where ${of(A)}; commit`);
    await set('quarantined', '-');
    try {
      // The second that was valid until midnight has no row after it now.
      expect(await write()).toMatchObject({ written: 0, removed: 2 });
      const left = (await filesIn(folder)).filter((path) => path.startsWith(A) && path.includes('2024-03-04'));
      expect(left).toEqual([]);
      await expect(stat(join(folder, NATIVE, 'date=2024-03-04'))).rejects.toThrow('ENOENT');
      expect((await commitOf(NATIVE, 1))[0].commitInfo).toMatchObject({ operation: 'DELETE' });
      expect(await faultsOf(folder)).toEqual([]);
      await expectServed(folder, duck, serving);
    } finally {
      await set('proved', '+');
    }
    expect(await write()).toMatchObject({ written: 2, removed: 0 });
    expect(await faultsOf(folder)).toEqual([]);
  });

  test('what was withdrawn of a date goes with its bytes, also with those that a revision replaced', async () => {
    await begin();
    await revise('+');
    await write();
    const kept = await belowDay();
    expect(kept).toHaveLength(2);
    await revise('-');
    await leaf('quarantined');
    try {
      expect(await write()).toMatchObject({ written: 2, removed: 2, change: 1 });
      const now = await belowDay();
      expect(now).toHaveLength(1);
      expect(kept).not.toContain(now[0]);
      expect(await faultsOf(folder)).toEqual([]);
      expect((await commitOf(NATIVE, 3))[1].txn).toMatchObject({ version: 1 });
      await expectServed(folder, duck, serving);
    } finally {
      await sql('delete from proof_leaves');
    }
  });

  test('a date whose new rows cannot be read has no file: what it held may have been taken back', async () => {
    await begin();
    const [first] = (await filesOf(A)).filter(({ mode }) => mode === 'native');
    const miscount = (by: number) =>
      sql(`update partitions set rows = rows + ${by} where ${of(A)} and partition_key = '${first.date}'`);
    await miscount(1);
    try {
      const report = await write();
      expect(report.failed.map(({ path }) => path)).toContain(`${NATIVE}/date=${first.date}/instrument=BTCUSDT`);
      expect(await pathsOf(A)).not.toContain(first.path);
      expect(await filesIn(folder)).not.toContain(first.path);
      expect(await faultsOf(folder)).toEqual([]);
    } finally {
      await miscount(-1);
    }
    expect((await write()).failed).toEqual([]);
    expect(await pathsOf(A)).toContain(first.path);
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
      expect([
        failed.every(({ path }) => path.endsWith('/date=2024-03-02/instrument=BTCUSDT')),
        failed.length,
        change,
      ]).toEqual([true, 1, 0]);
      await sql(leave);
      expect(await lake.write()).toMatchObject({ failed: [], change: 1 });
      expect(await faultsOf(folder)).toEqual([]);
    } finally {
      await sql(comeBack);
      await miscount(-1);
      await sql('delete from proof_leaves');
    }
  });

  test('rights that are taken back remove the rows of a dataset, and the report says why', async () => {
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
    expect((await filesIn(folder)).filter((path) => path.includes('/date=') || path.includes('/year='))).toEqual([]);
    expect(await faultsOf(folder)).toEqual([]);
    // A matrix that covers synthetic rows only does not cover these.
    expect((await write({ matrix: SAMPLE_MATRIX })).skipped).toHaveLength(DATASETS.size);
  });

  test('a rights matrix that cannot be read stops the writer, and nothing is deleted', async () => {
    await begin();
    const before = await filesIn(folder);
    const matrix = join(env.dir, `matrix-${lakes}.json`);
    for (const prepare of [() => writeFile(matrix, '{'), () => rm(matrix)]) {
      await prepare();
      await expect(write({ matrix })).rejects.toMatchObject({
        code: 'CONFIGURATION_INVALID',
        message: expect.stringContaining('The rights matrix is invalid'),
      });
      expect(await filesIn(folder)).toEqual(before);
    }
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

  test('a row after it ends the validity of one in a file before', { tags: ['nightly'] }, async () => {
    await begin();
    const state = async () => {
      const files = (await filesOf('macro_series_metrics')).filter(({ mode }) => mode === 'aligned_1s');
      return await Promise.all(files.map(async (file) => (await manifestOf(folder, file)).run.state_sha256));
    };
    const before = await state();
    // Vintages of the last year alone.
    const year = (await filesOf('macro_series_metrics')).at(-1)!.date;
    const last = `${of('macro_series_metrics')} and state = 'proved' and to_ms > ${Date.UTC(Number(year), 0)}`;
    const { rowCount } = await sql(`update partitions set attempt = attempt + 1 where ${last}`);
    expect(rowCount).toBeGreaterThan(0);
    await write();
    const after = await state();
    expect(after.every((digest, index) => digest !== before[index])).toBe(true);
    await sql(`update partitions set attempt = attempt - 1 where ${last}`);
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
      const before = await pathsNow();
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
    const held = async (dataset: string) =>
      (await rootOf(folder)).tables
        .filter(({ table }) => table.startsWith(dataset))
        .reduce((sum, { files }) => sum + files, 0);
    const listed = () => held('');
    try {
      const whole = await listed();
      const before = await held('etf_daily_metrics');
      expect(before).toBeGreaterThan(0);
      await sql(`select pg_terminate_backend(pid) from pg_stat_activity
        where application_name in ('tidemark lake', 'tidemark serving') and datname = current_database()`);
      const text = await readFile(OWN_MATRIX, 'utf8');
      await writeFile(matrix, text.replaceAll('"Hosted Allowed"', '"Ingest Only"'));
      await eventually(async () => (await held('etf_daily_metrics')) === 0, 'the files are gone');
      expect(lake.report().skipped.map(({ why }) => why)).toContainEqual(expect.stringContaining('licence'));
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
      const { written, change } = lake.report();
      await revise('+');
      await sql(`insert into proof_leaves (leaf_index, dataset_id, partition_key, attempt, kind, body)
        select ${change}, dataset_id, partition_key, attempt, 'quarantined', 'x' from partitions where ${DAY}`);
      await eventually(async () => lake.report().written === written + 2, 'the files of the day are others');
    } finally {
      stop.abort();
      await following;
      await sql(`delete from proof_leaves where body = 'x'`);
      await revise('-');
    }
  });
});

describe('what a writer may find', () => {
  test('damaged and missing files are written again, and what a killed writer left goes', async () => {
    await begin();
    const [one, two, three] = await tableFiles(folder);
    await writeFile(join(folder, one.path), 'half a file');
    await rm(join(folder, two.manifest));
    await rm(join(folder, three.path));
    const stray = `date=1999-01-01/instrument=BTCUSDT/0-${'a'.repeat(64)}.parquet`;
    await mkdir(dirname(join(folder, NATIVE, stray)), { recursive: true });
    await writeFile(join(folder, NATIVE, stray), 'left by a killed writer');
    await writeFile(join(folder, NATIVE, 'notes.txt'), 'of somebody else');
    // Their bytes have come back, so that only the statistics of the log are new.
    expect(await write()).toMatchObject({ written: 3, removed: 3 });
    expect(await faultsOf(folder)).toEqual([]);
    const left = (await filesIn(folder)).filter((path) => path.startsWith(NATIVE) && !path.includes('_delta_log'));
    expect(left.filter((path) => !path.includes('date=2024'))).toEqual([`${NATIVE}/notes.txt`]);
    expect(await expectServed(folder, duck, serving)).toBe(report.rows);
  });

  test('whole files that a killed writer did not commit are committed, and not written again', async () => {
    await begin();
    for (const { table } of (await rootOf(folder)).tables) await rm(logOf(table), { recursive: true });
    const { mtimeMs } = await stat(join(folder, (await filesIn(folder)).find((path) => path.endsWith('.parquet'))!));
    expect(await write()).toMatchObject({ written: report.files, replaced: 0, removed: 0 });
    const found = await stat(join(folder, (await filesIn(folder)).find((path) => path.endsWith('.parquet'))!));
    expect(found.mtimeMs).toBe(mtimeMs);
    expect(await faultsOf(folder)).toEqual([]);
    expect(await expectServed(folder, duck, serving)).toBe(report.rows);
  });

  test('commits of others are met: one that changes no file is signed, one that does is undone', async () => {
    await begin();
    const vacuum = { commitInfo: { timestamp: 1, operation: 'VACUUM END', operationParameters: {} } };
    await writeFile(logOf(NATIVE, commitName(1)), `${JSON.stringify(vacuum)}\n`);
    expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 0 });
    expect(await versionOf(NATIVE)).toBe(1);
    await using lake = await openLake({ databaseUrl: env.databaseUrl, folder });
    const [own] = (await filesOf(A)).filter(({ mode }) => mode === 'native');
    const foreign = { path: 'part-0.parquet', size: 3, partitionValues: {}, modificationTime: 1, dataChange: true };
    const optimize = [{ remove: { path: own.name, dataChange: true } }, { add: foreign }];
    await writeFile(logOf(NATIVE, commitName(2)), optimize.map((action) => JSON.stringify(action)).join('\n'));
    await lake.write();
    expect(await versionOf(NATIVE)).toBe(3);
    expect(await faultsOf(folder)).toEqual([]);
    expect(await expectServed(folder, duck, serving)).toBe(report.rows);
  });

  test('a commit of another writer at the very moment is not overwritten', async () => {
    await begin();
    await revise('+');
    try {
      const other = JSON.stringify({ commitInfo: { timestamp: 1, operation: 'VACUUM START' } });
      let isTaken = false;
      // Rows are written before the commit.
      const onProgress = () => {
        if (!isTaken) writeFileSync(logOf(NATIVE, commitName(1)), other);
        isTaken = true;
      };
      expect(await write({ onProgress })).toMatchObject({ replaced: 1 });
      expect(await readFile(logOf(NATIVE, commitName(1)), 'utf8')).toBe(other);
      expect(await versionOf(NATIVE)).toBe(2);
      expect(await faultsOf(folder)).toEqual([]);
    } finally {
      await revise('-');
    }
  });

  test('fields of a later release are added to a table, without values in what is there', async () => {
    await begin();
    const text = await readFile(logOf(NATIVE, commitName(0)), 'utf8');
    const actions = text
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    const { metaData } = actions.find((action) => action.metaData);
    const schema = JSON.parse(metaData.schemaString);
    schema.fields = schema.fields.filter(({ name }: { name: string }) => name !== 'is_best_match');
    schema.fields.push({ name: 'of_old', type: 'string', nullable: false, metadata: {} });
    metaData.schemaString = JSON.stringify(schema);
    await writeFile(logOf(NATIVE, commitName(0)), actions.map((action) => `${JSON.stringify(action)}\n`).join(''));
    await write();
    const evolved = (await commitOf(NATIVE, 1)).find((action) => action.metaData)!.metaData!;
    const fields = JSON.parse(evolved.schemaString).fields as { name: string; nullable: boolean }[];
    const nullable = (name: string) => fields.find((field) => field.name === name)?.nullable;
    expect([nullable('is_best_match'), nullable('of_old'), nullable('price')]).toEqual([true, true, false]);
    expect(evolved.id).toBe(metaData.id);
    schema.fields[0].type = 'string';
    const other = JSON.stringify({ metaData: { ...metaData, schemaString: JSON.stringify(schema) } });
    await writeFile(logOf(NATIVE, commitName(2)), other);
    await expect(write()).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringContaining('its field trade_id is of the type string, not long'),
    });
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
      ['{"lake_version": 1}', 'lake_version is 1, and must be 2'],
      ['{"manifest_version": 1}', 'lake_version is undefined'],
      ['{', 'not JSON'],
      ['{"lake_version": 2}', 'synthetic must be'],
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
