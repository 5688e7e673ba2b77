/** Engines on the tables of a lake: all twelve datasets in both modes, an old version, and after what delta-rs may do to a table. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, shapeOf } from '../../shared/registry/index.ts';
import { ROOT } from './command.ts';
import { givenTool } from './given.ts';
import { expectServed, faultsOf, writeLake } from './lake.ts';
import { type ParquetCase, readParquet, type TableReader } from './parquet-readers.ts';
import { openDuckDb } from './read-parquet.ts';
import { type Serving, startServing } from './serving.ts';
import { execute } from './stack.ts';
import type { Tool } from './tools.ts';
import { createWorldsEnv } from './worlds-env.ts';

const EVER = ['1900-01-01T00:00:00Z', '2100-01-01T00:00:00Z'];
const REVISED = 'exchange_a_spot_trades';
const MODES: readonly Mode[] = ['native', 'aligned_1s'];

/** The tables, with what the service answers now. */
async function tablesOf(serving: Serving, lake: string, prefix: string): Promise<ParquetCase[]> {
  const cases: ParquetCase[] = [];
  for (const dataset of DATASETS.values()) {
    for (const mode of MODES) {
      const rows = `${lake}-${prefix}.${dataset.key}.${mode}.json`;
      await writeFile(rows, (await serving.query({ sources: [dataset.key], mode, time_range: EVER })).text);
      const fields = shapeOf(dataset, mode).fields.map(({ name, dtype }) => ({ name, dtype }));
      cases.push({ name: `${dataset.key}/${mode}`, path: join(lake, dataset.key, mode), rows, fields });
    }
  }
  return cases;
}

/** The blocks of docs/lake.md, by a word of each. */
const PAGE = readFileSync(join(ROOT, 'docs/lake.md'), 'utf8');
const blockOf = (word: string) =>
  [...PAGE.matchAll(/```python\n([^`]+)```/g)].map(([, block]) => block).find((block) => block.includes(word))!;
const WORDS: Readonly<Record<TableReader, string>> = {
  'delta-rs': 'DeltaTable',
  'polars, a table': 'scan_delta',
  'duckdb, a table': 'delta_scan',
  'clickhouse, a table': 'deltaLakeLocal',
  'spark, a table': 'spark.read',
};
/** As `pyspark --jars` begins. */
const SPARK = `import glob, os
os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[1] --conf spark.ui.enabled=false --jars " + ",".join(
    glob.glob(os.environ["DELTA_JARS"] + "/*.jar")) + " pyspark-shell"
`;

/** @param maintains whether delta-rs is there, to do to a table what it can */
export function testEngines(tool: Tool, engines: readonly TableReader[], maintains = false): void {
  const name = `${engines.join('; ')}: every cell of every table is what the service answers, and an old version what it answered then`;
  givenTool(tool).test(name, async () => {
    // A pattern over files would count those of older versions.
    expect(PAGE).not.toMatch(/\*\*?\/|\*\.parquet/);
    await using env = await createWorldsEnv();
    const { databaseUrl } = env;
    const folder = join(env.dir, 'lake');
    await using serving = await startServing({ databaseUrl });
    const write = () => writeLake({ databaseUrl, folder });
    expect(await write()).toMatchObject({ failed: [], skipped: [] });
    const before = await tablesOf(serving, folder, 'before');
    await execute(
      databaseUrl,
      `update ${REVISED} set price = price + 1 where trade_id = 1060;
       update partitions set proved_at = proved_at + interval '1 ms' where partition_key = '2024-03-02'
         and dataset_id = ${DATASETS.get(REVISED)!.number}`,
    );
    expect(await write()).toMatchObject({ replaced: 1 });
    const now = await tablesOf(serving, folder, 'now');
    const old = before.filter((one) => one.name === `${REVISED}/native`).map((one) => ({ ...one, version: 0 }));
    const cases = [...now, ...old];
    const columns = (of: readonly ParquetCase[]) => of.reduce((sum, { fields }) => sum + fields.length, 0);
    const { equal, faults, versions } = await readParquet(tool, engines, cases);
    expect(faults).toEqual([]);
    expect(equal).toEqual(Object.fromEntries(engines.map((engine) => [engine, columns(cases)])));
    // The table, for reports.
    for (const engine of engines) {
      console.info(`${engine} ${versions[engine]}: ${cases.length} tables, ${columns(cases)} columns equal`);
    }
    for (const engine of engines) {
      const block = blockOf(WORDS[engine]).replaceAll('/tmp/lake', folder);
      const input = engine.startsWith('spark') ? SPARK + block : block;
      const own = { ...process.env, ...tool.env };
      // ClickHouse reads what lies below the folder that it runs in.
      const said = execFileSync(tool.path, ['-'], { input, encoding: 'utf8', cwd: folder, env: own });
      expect(said.trim(), engine).toBe('150');
    }
    if (!maintains) return;
    const maintain = join(folder, REVISED, 'native');
    const touched = now.filter((one) => one.path === maintain);
    const after = await readParquet(tool, engines, touched, { maintain });
    expect(after.faults).toEqual([]);
    expect(await write()).toMatchObject({ written: 0, replaced: 0, removed: 0 });
    expect(await faultsOf(folder)).toEqual([]);
    using duck = await openDuckDb();
    await expectServed(folder, duck, serving);
    expect((await readParquet(tool, engines, touched)).faults).toEqual([]);
  });
}
