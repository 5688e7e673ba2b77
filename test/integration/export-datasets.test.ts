/** Artifacts of every dataset in both modes and formats: the rows of the query, whatever their columns hold. */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, datasetOf, shapeOf } from '../../shared/registry/index.ts';
import { type ArtifactLab, type Artifacts, artifactLab } from '../support/artifacts.ts';
import type { DuckDb } from '../support/read-parquet.ts';
import type { Serving } from '../support/serving.ts';
import type { TestEnv } from '../support/stack.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

const MODES: readonly Mode[] = ['native', 'aligned_1s'];
const ALL = { time_range: ['1960-01-01T00:00:00Z', '2030-01-01T00:00:00Z'] };

let env: TestEnv;
let lab: ArtifactLab;
let files: Artifacts;
let serving: Serving;
let duck: DuckDb;

beforeAll(async () => {
  env = await createWorldsEnv();
  lab = await artifactLab(env);
  ({ files, duck, serving } = lab);
});
afterAll(async () => {
  await lab?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

describe.for([...DATASETS.keys()])('%s', (key) => {
  test.for(MODES)('%s', async (mode) => {
    const body = { sources: [key], mode, ...ALL };
    const { json } = await serving.query(body);
    const expected = json.rows.map((row: object) =>
      Object.values(row).map((cell) => (cell === null ? null : String(cell))),
    );
    expect(expected.length).toBeGreaterThan(7);
    const parquet = await files.write(body, 'parquet');
    expect(await duck.texts(`select * from '${parquet.files[0].path}'`)).toEqual(expected);
    const csv = await files.write(body, 'csv');
    const served = await serving.query(body, { Accept: 'text/csv' });
    expect(await readFile(csv.files[0].path, 'utf8')).toBe(served.text);

    const { fields } = shapeOf(datasetOf(key), mode);
    const columns = await duck.texts(
      `select name, repetition_type from parquet_schema('${parquet.files[0].path}') offset 1`,
    );
    expect(columns).toEqual(fields.map(({ name, nullable }) => [name, nullable ? 'OPTIONAL' : 'REQUIRED']));
    expect(parquet.manifest.schema.map(({ name, unit }) => [name, unit])).toEqual(
      fields.map(({ name, unit }) => [name, unit ?? null]),
    );
  });

  test('its manifest counts the partitions that the rows are of', async () => {
    const { manifest } = await files.write({ sources: [key], ...ALL }, 'csv');
    const { proof, row_count } = manifest;
    expect(proof!.listed).toHaveLength(proof!.partitions);
    expect(proof!.listed.reduce((sum, { rows }) => sum + rows!, 0)).toBe(row_count);
    // As the documentation says how.
    const lines = proof!.listed.map(
      (one) =>
        `${Object.values(one)
          .map((cell) => cell ?? '')
          .join('|')}\n`,
    );
    expect(proof!.sha256).toBe(createHash('sha256').update(lines.join('')).digest('hex'));
  });
});

test('a window of states names the partitions of what is carried into it', async () => {
  const body = { sources: ['etf_daily_metrics'], mode: 'aligned_1s' };
  const { json } = await serving.query({ ...body, ...ALL });
  // No capture is of noon.
  const noon = Date.parse(json.rows[0].aligned_at_utc) + 43_200_000;
  const window = [new Date(noon).toISOString(), new Date(noon + 1000).toISOString()];
  const { rows } = (await serving.query({ ...body, time_range: window })).json;
  const { manifest } = await files.write({ ...body, time_range: window }, 'csv');
  expect(manifest.row_count).toBe(rows.length);
  const carried = new Set(
    rows.map((row: Record<string, string>) => `${row.source_id}:${row.aligned_at_utc.slice(0, 10)}`),
  );
  expect(new Set(manifest.proof!.listed.map(({ partition }) => partition))).toEqual(carried);
});
