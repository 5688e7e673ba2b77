/** Lakes in tests: written in the test's own process, and compared with what the service answers. */
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { LakeFolder } from '../../serving/lake/folder.ts';
import { Lake, type LakeOptions, type LakeReport } from '../../serving/lake/lake.ts';
import { freshnessRule } from '../../serving/read/execute/warnings.ts';
import type { Limits } from '../../shared/config/limits.ts';
import { loadSettings } from '../../shared/config/load.ts';
import { dataFileOf } from '../../shared/mirror/delta-log.ts';
import {
  type LakeManifest,
  noteName,
  parseFileManifest,
  parseLakeManifest,
  partsOf,
  proofsOf,
  readVersion,
} from '../../shared/mirror/lake-manifest.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { RightsStore } from '../../shared/rights/store.ts';
import type { DuckDb } from './read-parquet.ts';
import { OWN_MATRIX } from './rights.ts';
import type { Serving } from './serving.ts';
import { rolesOf, testLogger } from './stack.ts';

export interface LakeInput {
  readonly databaseUrl: string;
  readonly folder: string;
  readonly synthetic?: boolean;
  readonly matrix?: string;
  readonly signal?: AbortSignal;
  readonly onProgress?: LakeOptions['onProgress'];
  readonly limits?: Partial<Limits>;
  readonly now?: () => number;
}

export async function openLake(input: LakeInput): Promise<Lake> {
  const { databaseUrl, folder, synthetic = false, matrix = OWN_MATRIX } = input;
  const loaded = loadSettings({ cwd: '/nowhere', env: {}, flags: { SVC_STATE_DIR: `${folder}-state` } });
  const settings = { ...loaded, limits: { ...loaded.limits, lakeCommitMs: 0, ...input.limits } };
  const freshness = freshnessRule(settings);
  return await Lake.open({
    settings,
    databaseUrl: rolesOf(databaseUrl).export,
    rights: new RightsStore(matrix, { byokRole: undefined, log: testLogger() }),
    freshness: { ...freshness, now: input.now ?? freshness.now },
    log: testLogger(),
    folder: await LakeFolder.open(folder),
    onProgress: input.onProgress,
    synthetic,
    signal: input.signal ?? new AbortController().signal,
  });
}

export async function writeLake(input: LakeInput): Promise<LakeReport> {
  await using lake = await openLake(input);
  return await lake.write();
}

/** The newest version of a table, and the file that it has on each date. */
export interface TableFile {
  readonly dataset: string;
  readonly mode: Mode;
  readonly date: string;
  /** Below the lake. */
  readonly path: string;
  readonly name: string;
  readonly rows: number;
  readonly bytes: number;
  readonly sha256: string;
  readonly manifest: string;
}

export const rootOf = async (folder: string): Promise<LakeManifest> =>
  parseLakeManifest(await readFile(join(folder, '_manifest.json')));

export const manifestOf = async (folder: string, { manifest }: Pick<TableFile, 'manifest'>) =>
  JSON.parse(await readFile(join(folder, manifest), 'utf8'));

/** All files that the newest versions of the tables have, sorted by path. */
export async function tableFiles(folder: string): Promise<TableFile[]> {
  const { tables } = await rootOf(folder);
  const all = await Promise.all(
    tables.map(async (note) => {
      const { files } = await readVersion(note, (name) => readFile(join(folder, note.table, '_delta_log', name)));
      const { dataset, mode } = partsOf(note.table);
      return await Promise.all(
        files.map(async (file): Promise<TableFile> => {
          const { row_count: rows } = await manifestOf(folder, file);
          return { ...file, dataset, mode: mode as Mode, date: dataFileOf(file.name)!.date, rows };
        }),
      );
    }),
  );
  return all.flat().sort((a, b) => (a.path < b.path ? -1 : 1));
}

const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

/** Paths of all files below the folder, outside `_partial`. */
export async function filesIn(folder: string): Promise<string[]> {
  const found = await readdir(folder, { recursive: true, withFileTypes: true });
  return found
    .filter((one) => one.isFile())
    .map((one) => join(one.parentPath, one.name).slice(folder.length + 1))
    .filter((path) => !path.startsWith('_partial'))
    .sort();
}

/** In which ways the folder differs from what its notes and logs say. Files of older versions are not looked at. */
export async function faultsOf(folder: string): Promise<string[]> {
  const faults: string[] = [];
  const notes = await rootOf(folder);
  for (const { table, version } of notes.tables) {
    const own = await readFile(join(folder, proofsOf(table), noteName(version)), 'utf8').catch(() => undefined);
    if (own === undefined || JSON.parse(own).version !== version) faults.push(`${table} has no note of ${version}`);
  }
  for (const file of await tableFiles(folder)) {
    const { path, bytes, sha256: digest, dataset, mode } = file;
    const found = await readFile(join(folder, path)).catch(() => undefined);
    if (!found) faults.push(`${path} is missing`);
    else if (found.length !== bytes || sha256(found) !== digest) faults.push(`${path} differs`);
    parseFileManifest(await readFile(join(folder, file.manifest)), `${dataset}/${mode}`, file);
  }
  return faults;
}

/** The rows of a table as DuckDB reads its files, in the order of the service. */
export async function tableRows(folder: string, duck: DuckDb, files: readonly TableFile[]): Promise<unknown[][]> {
  if (files.length === 0) return [];
  const rows: unknown[][] = [];
  for (const { path } of files) {
    rows.push(...(await duck.texts(`select * from read_parquet('${join(folder, path)}', hive_partitioning = false)`)));
  }
  return rows;
}

/** Compares the rows of each table with all that the service answers: each row once, with its whole validity. @returns the number of rows */
export async function expectServed(folder: string, duck: DuckDb, serving: Serving): Promise<number> {
  let rows = 0;
  const files = Map.groupBy(await tableFiles(folder), ({ dataset, mode, name }) =>
    [dataset, mode, dataFileOf(name)!.instrument].filter((part) => part !== undefined).join('/'),
  );
  for (const [table, own] of files) {
    const [dataset, mode, instrument] = table.split('/');
    const { json } = await serving.query({
      sources: [dataset],
      mode,
      time_range: EVER,
      ...(instrument && { instrument }),
    });
    const served = (json.rows ?? []).map((row: object) =>
      Object.values(row).map((cell) => (cell === null ? null : String(cell))),
    );
    const stored = await tableRows(folder, duck, own);
    const at = stored.findIndex((row, index) => JSON.stringify(row) !== JSON.stringify(served[index]));
    if (at >= 0 || stored.length !== served.length) {
      throw new Error(
        `${table} has ${stored.length} rows of ${served.length}; row ${at}: ${JSON.stringify(stored[at])} for ${JSON.stringify(served[at])}`,
      );
    }
    const stated = own.reduce((sum, file) => sum + file.rows, 0);
    if (stated !== stored.length) throw new Error(`${table} has ${stored.length} rows, and ${stated} in its manifests`);
    rows += stored.length;
  }
  return rows;
}

const EVER = ['1900-01-01T00:00:00Z', '2100-01-01T00:00:00Z'];
