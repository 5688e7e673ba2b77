/** Lakes in tests: written in the test's own process, and compared with what the service answers. */
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type RootManifest, SPANS } from '../../serving/lake/format.ts';
import { Lake, type LakeOptions, type LakeReport } from '../../serving/lake/lake.ts';
import { FolderTarget, type LakeTarget } from '../../serving/lake/target.ts';
import { freshnessRule } from '../../serving/read/execute/warnings.ts';
import { loadSettings } from '../../shared/config/load.ts';
import { datasetOf } from '../../shared/registry/index.ts';
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
  /** Makes another target of the folder. */
  readonly through?: (folder: LakeTarget) => LakeTarget;
}

export async function openLake(input: LakeInput): Promise<Lake> {
  const { databaseUrl, folder, synthetic = false, matrix = OWN_MATRIX, through = (same) => same } = input;
  const settings = loadSettings({ cwd: '/nowhere', env: {}, flags: { SVC_STATE_DIR: `${folder}-state` } });
  return await Lake.open({
    settings,
    databaseUrl: rolesOf(databaseUrl).export,
    rights: new RightsStore(matrix, { byokRole: undefined, log: testLogger() }),
    freshness: freshnessRule(settings),
    log: testLogger(),
    target: through(await FolderTarget.open(folder)),
    onProgress: input.onProgress,
    synthetic,
    signal: input.signal ?? new AbortController().signal,
  });
}

export async function writeLake(input: LakeInput): Promise<LakeReport> {
  await using lake = await openLake(input);
  return await lake.write();
}

export const rootOf = async (folder: string): Promise<RootManifest> =>
  JSON.parse(await readFile(join(folder, '_manifest.json'), 'utf8'));

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

/** In which ways the folder differs from its root manifest. */
export async function faultsOf(folder: string): Promise<string[]> {
  const { files } = await rootOf(folder);
  const faults: string[] = [];
  const listed = new Set(['_manifest.json']);
  for (const file of files) {
    for (const { path, bytes, sha256: digest } of [file, file.manifest]) {
      listed.add(path);
      const found = await readFile(join(folder, path)).catch(() => undefined);
      if (!found) faults.push(`${path} is missing`);
      else if (found.length !== bytes || sha256(found) !== digest) faults.push(`${path} differs`);
    }
  }
  return [
    ...faults,
    ...(await filesIn(folder)).filter((path) => !listed.has(path)).map((path) => `${path} is unknown`),
  ];
}

/** Compares each file of the lake, read by its hive path, with the service's answer for its window. @returns the number of rows */
export async function expectServed(folder: string, duck: DuckDb, serving: Serving): Promise<number> {
  let rows = 0;
  for (const { dataset, mode, date, path, rows: count } of (await rootOf(folder)).files) {
    const { from, to } = SPANS[datasetOf(dataset).partition.kind].windowOf(date);
    const body = { sources: [dataset], mode, time_range: [new Date(from).toISOString(), new Date(to).toISOString()] };
    const { json } = await serving.query(body);
    const served = (json.rows ?? []).map((row: object) =>
      Object.values(row).map((cell) => (cell === null ? null : String(cell))),
    );
    const stored = await duck.texts(
      `select * exclude (filename, dataset, mode, date) from read_parquet('${folder}/dataset=${dataset}/**/*.parquet',
         hive_partitioning = true, hive_types_autocast = false, filename = true, union_by_name = ${mode === 'native'})
       where false`,
    );
    if (stored.length > 0) throw new Error('no row was asked for');
    const own = await duck.texts(`select * from read_parquet('${join(folder, path)}', hive_partitioning = false)`);
    if (JSON.stringify(own) !== JSON.stringify(served)) throw new Error(`${path} differs from what is served`);
    if (own.length !== count) throw new Error(`${path} has ${own.length} rows, and ${count} in the root manifest`);
    rows += own.length;
  }
  return rows;
}
