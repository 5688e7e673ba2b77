/** Readers of Parquet that are in use, on our files: read-parquet.py compares every column with the rows it should have. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { json, text } from 'node:stream/consumers';
import fc from 'fast-check';
import { afterAll, beforeAll, expect } from 'vitest';
import { cellOf } from '../../serving/render/cells.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, shapeOf } from '../../shared/registry/index.ts';
import { type ArtifactLab, artifactLab } from './artifacts.ts';
import { expectedTexts, type GeneratedRows, generatedRows } from './generated-rows.ts';
import { givenTool } from './given.ts';
import { writeParquet } from './read-parquet.ts';
import type { TestEnv } from './stack.ts';
import type { Tool } from './tools.ts';
import { createWorldsEnv } from './worlds-env.ts';

export type ParquetReader = 'pyarrow' | 'polars' | 'duckdb' | 'fastparquet' | 'clickhouse' | 'spark';
export type TableReader = 'delta-rs' | `${'polars' | 'duckdb' | 'clickhouse' | 'spark'}, a table`;

export interface ParquetCase {
  readonly name: string;
  readonly path: string;
  /** Of a table; default its newest. */
  readonly version?: number;
  /** Of a table: its rows alone. */
  readonly instrument?: string;
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
  { path, env }: Tool,
  readers: readonly (ParquetReader | TableReader)[],
  cases: readonly ParquetCase[],
  more: { readonly maintain?: string } = {},
): Promise<Readings> {
  const script = join(import.meta.dirname, 'read-parquet.py');
  const child = spawn(path, [script], { stdio: ['pipe', 'pipe', 'pipe'], cwd: '/', env: { ...process.env, ...env } });
  child.stdin.end(JSON.stringify({ readers, cases, ...more }));
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

/** Generated rows: few of any columns, and many pages of integers whose differences are as wide as they may be, or wider. */
async function generatedFiles(dir: string): Promise<ParquetCase[]> {
  const narrow = wideIntegers(28n, 40_000);
  const wide = wideIntegers(29n, 1000);
  const generated = [...fc.sample(generatedRows, { numRuns: 20, seed: 11 }), narrow, wide];
  return await Promise.all(
    generated.map(async (one, index) => {
      const compression = (['zstd', 'snappy', 'none'] as const)[index % 3];
      const name = `generated-${index}-${compression}`;
      const path = await writeParquet(join(dir, `${name}.parquet`), one, { compression });
      const rows = join(dir, `${name}.json`);
      await writeFile(rows, JSON.stringify({ rows: expectedTexts(one) }));
      return { name, path, rows, fields: one.shape.columns.map(({ field: { name, dtype } }) => ({ name, dtype })) };
    }),
  );
}

/** Integers whose differences spread over so many bits. */
function wideIntegers(bits: bigint, count: number): GeneratedRows {
  const field = { name: 'id', dtype: 'int64', pg: 'int8', nullable: false, doc: '', sql: '', columns: [] } as const;
  const widest = 2n ** bits - 1n;
  let value = 10n ** 15n;
  const rows = Array.from({ length: count }, (_, row) => {
    value += row % 3 === 0 ? widest : BigInt((row * 7919) % 1000);
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64BE(value);
    return { cells: [{ bytes, text: String(value) }], fromMs: 0, toMs: 0 };
  });
  return { shape: { columns: [{ field, cell: cellOf(field) }], hiddenFirst: false }, rows, flushBefore: new Set() };
}

/** Tests that each reader reads every column of every dataset in both modes as the JSON answer has it, and generated rows. */
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
  const name = `${readers.join(', ')}: every column of every dataset in both modes is the answer, in exports, and generated rows are equal`;
  givenTool(tool).test(name, async () => {
    const exported = await exportedWorlds(lab, env.dir);
    expect(exported.length).toBe(2 * DATASETS.size);
    const cases = [...exported, ...(await generatedFiles(env.dir))];
    const { equal, faults, versions } = await readParquet(tool, readers, cases);
    expect(faults).toEqual([]);
    const columns = cases.reduce((sum, { fields }) => sum + fields.length, 0);
    expect(equal).toEqual(Object.fromEntries(readers.map((reader) => [reader, columns])));
    // The matrix, for reports.
    for (const reader of readers) console.info(`${reader} ${versions[reader]}: ${columns} columns equal`);
  });
}
