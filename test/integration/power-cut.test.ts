/** No file gets its name before the disk has its bytes: a power cut leaves the old file, the whole new one, or none. */
import { type FileHandle, open, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { checkMirror } from '../../shared/proof-log/check.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { type ArtifactLab, artifactLab } from '../support/artifacts.ts';
import { faultsOf, filesIn, writeLake } from '../support/lake.ts';
import { csvOf, DATASET, filesBelow, System, writeDocument } from '../support/pipeline.ts';
import { checkpointOf, logFolderOf, sequence } from '../support/proof-log.ts';

const DAYS = ['2024-01-01', '2024-01-02'];

let system: System;
let lab: ArtifactLab;
beforeAll(async () => {
  system = await System.create();
  lab = await artifactLab(system.env);
  for (const [index, day] of DAYS.entries()) {
    await writeDocument(
      system.vendor,
      day,
      csvOf({ day, firstId: 1 + index * 100, seed: index, rows: 100, timeUnit: 'ms' }),
    );
  }
  expect((await system.backfill(DAYS[0], DAYS[0])).exit).toBe(0);
  await sequence(system.env);
});
afterEach(() => void vi.restoreAllMocks());
afterAll(async () => {
  await lab?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

/** Who asks the disk to keep a file is told that it did not; folders are kept. */
async function loseFiles(): Promise<void> {
  const handle = await open(join(system.env.dir, 'any'), 'w');
  vi.spyOn(Object.getPrototypeOf(handle), 'sync').mockImplementation(async function (this: FileHandle) {
    if ((await this.stat()).isFile()) throw new Error('the disk did not keep it');
  } as () => Promise<void>);
  await handle.close();
}

test('an export', async () => {
  const directory = join(system.env.dir, 'export');
  const body = { sources: [DATASET], time_range: [`${DAYS[0]}T00:00:00Z`, `${DAYS[1]}T00:00:00Z`] };
  const write = (format: 'csv' | 'parquet') => lab.files.write(body, format, { directory: `${directory}-${format}` });
  const named = async () => (await readdir(system.env.dir)).filter((name) => name.startsWith('export-'));
  await loseFiles();
  for (const format of ['csv', 'parquet'] as const) await expect(write(format)).rejects.toThrow();
  expect(await named()).toEqual([]);
  vi.restoreAllMocks();
  for (const format of ['csv', 'parquet'] as const) expect((await write(format)).manifest.row_count).toBe(100);
  expect(await named()).toHaveLength(2);
});

test('a lake', async () => {
  const { databaseUrl } = system.env;
  const folder = join(system.env.dir, 'lake');
  await loseFiles();
  await expect(writeLake({ databaseUrl, folder })).rejects.toThrow();
  expect((await filesIn(folder)).filter((path) => path.includes('_delta_log') || path === '_manifest.json')).toEqual(
    [],
  );
  vi.restoreAllMocks();
  expect((await writeLake({ databaseUrl, folder })).failed).toEqual([]);
  expect(await faultsOf(folder)).toEqual([]);
});

test('the proof log', async () => {
  const folder = logFolderOf(system.env);
  const kept = async () =>
    Promise.all(
      (await filesBelow(folder)).map(async (path) => [path, await readFile(join(folder, path)).catch(() => 'folder')]),
    );
  expect((await system.backfill(DAYS[1], DAYS[1])).exit).toBe(0);
  const before = await kept();
  await loseFiles();
  await expect(sequence(system.env)).rejects.toThrow('the disk did not keep it');
  expect(await kept()).toEqual(before);
  vi.restoreAllMocks();
  expect(await sequence(system.env)).toBe(2);
  expect((await checkMirror(await checkpointOf(system.env), folderSource(folder))).faults).toEqual([]);
});
