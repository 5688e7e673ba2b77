/** Readers of Parquet that are in use, on our files: read-parquet.py compares every column with the rows it should have. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { json, text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect } from 'vitest';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, shapeOf } from '../../shared/registry/index.ts';
import { type ArtifactLab, artifactLab } from './artifacts.ts';
import { givenTool } from './given.ts';
import type { TestEnv } from './stack.ts';
import type { Tool } from './tools.ts';
import { createWorldsEnv } from './worlds-env.ts';

export type ParquetReader = 'pyarrow' | 'polars' | 'duckdb' | 'fastparquet' | 'clickhouse';

export interface ParquetCase {
  readonly name: string;
  readonly path: string;
  /** Path of a JSON document with the rows: objects as the service answers, or lists of texts. */
  readonly rows: string;
  readonly fields: readonly { readonly name: string; readonly dtype: string }[];
}

interface Readings {
  readonly versions: Readonly<Record<string, string>>;
  /** Columns that a reader reads right. */
  readonly equal: Readonly<Record<string, number>>;
  readonly faults: readonly string[];
}

export async function readParquet(
  { path }: Tool,
  readers: readonly ParquetReader[],
  cases: readonly ParquetCase[],
): Promise<Readings> {
  const child = spawn(path, [join(import.meta.dirname, 'read-parquet.py')], { stdio: ['pipe', 'pipe', 'pipe'] });
  child.stdin.end(JSON.stringify({ readers, cases }));
  const [readings, said, [exit]] = await Promise.all([
    json(child.stdout).catch(() => undefined),
    text(child.stderr),
    once(child, 'exit'),
  ]);
  if (exit !== 0) throw new Error(`read-parquet.py ends with ${exit}: ${said}`);
  return readings as Readings;
}

const MODES: readonly Mode[] = ['native', 'aligned_1s'];
const ALL = { time_range: ['1960-01-01T00:00:00Z', '2030-01-01T00:00:00Z'] };

/** Exports of every dataset in both modes, with the answers of the query. */
async function exportedWorlds({ files, serving }: ArtifactLab, dir: string): Promise<ParquetCase[]> {
  const cases: ParquetCase[] = [];
  for (const dataset of DATASETS.values()) {
    for (const mode of MODES) {
      const name = `${dataset.key}.${mode}`;
      const body = { sources: [dataset.key], mode, ...ALL };
      const [{ files: written }, answer] = await Promise.all([files.write(body, 'parquet'), serving.query(body)]);
      const rows = join(dir, `${name}.json`);
      await writeFile(rows, answer.text);
      const fields = shapeOf(dataset, mode).fields.map((field) => ({ name: field.name, dtype: field.dtype }));
      cases.push({ name, path: written[0].path, rows, fields });
    }
  }
  return cases;
}

/** Tests that each reader reads every column of every dataset in both modes as the JSON answer has it. */
export function testReaders(tool: Tool, readers: readonly ParquetReader[]): void {
  let env: TestEnv;
  let lab: ArtifactLab;
  beforeAll(async () => {
    if (tool.missing !== undefined) return;
    env = await createWorldsEnv();
    lab = await artifactLab(env);
  });
  afterAll(async () => {
    await lab?.[Symbol.asyncDispose]();
    await env?.[Symbol.asyncDispose]();
  });
  givenTool(tool).test(`${readers.join(', ')}: every column of every dataset in both modes is the answer`, async () => {
    const cases = await exportedWorlds(lab, env.dir);
    expect(cases.length).toBe(2 * DATASETS.size);
    const { equal, faults, versions } = await readParquet(tool, readers, cases);
    expect(faults).toEqual([]);
    const columns = cases.reduce((sum, { fields }) => sum + fields.length, 0);
    expect(equal).toEqual(Object.fromEntries(readers.map((reader) => [reader, columns])));
    // The matrix, for reports.
    for (const reader of readers) console.info(`${reader} ${versions[reader]}: ${columns} columns equal`);
  });
}
