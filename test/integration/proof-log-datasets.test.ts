/** Every dataset's rows give the digest of their leaf again, from CSV and from Parquet: what answers show is what was proved. */
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { stateProved, storedRowsSha256 } from '../../pipelines/projector/logged-proof.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { holdSecret } from '../../shared/db/proof-secret.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { DATASETS, type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { loggedColumns, rowLayoutOf } from '../../shared/registry/proof-rows.ts';
import { runCommand } from '../support/command.ts';
import { type Exports, startExports } from '../support/exports.ts';
import { checkpointOf, logFolderOf, sequence } from '../support/proof-log.ts';
import type { TestEnv } from '../support/stack.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

let env: TestEnv;
let client: Client;
let exports: Exports;
let key: string;

beforeAll(async () => {
  env = await createWorldsEnv();
  client = await connect({ url: env.databaseUrl, name: 'test' });
  await holdSecret(client, logFolderOf(env));
  for (const dataset of DATASETS.values()) await logAll(dataset);
  await sequence(env);
  exports = await startExports(env);
  key = (await checkpointOf(env)).verifier.line;
});
afterAll(async () => {
  await exports?.[Symbol.asyncDispose]();
  await client?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

async function logAll(dataset: DatasetDefinition): Promise<void> {
  for (const row of await new Catalog(client).partitions(dataset, undefined, undefined)) {
    if (row.state !== 'proved') continue;
    // The worlds are loaded without a publisher, and have manifests of little.
    const manifest = {
      document: { name: 'made', sha256: '' },
      rows_hash: '',
      ...row.manifest,
      rows: row.rows,
    } as unknown as Manifest;
    await stateProved(
      client,
      dataset,
      { ...row, manifest },
      { rowsSha256: await storedRowsSha256(client, dataset, row), facts: row.facts ?? '{}' },
    );
  }
}

describe.for([...DATASETS.keys()])('%s', (dataset) => {
  test.for(['csv', 'parquet'])('%s', async (format) => {
    const window = { time_range: ['1960-01-01T00:00:00Z', '2030-01-01T00:00:00Z'] };
    const { json } = await exports.run({ dataset, format, ...window });
    expect(json.status, JSON.stringify(json)).toBe('succeeded');
    const folder = join(env.dir, `${dataset}-${format}`);
    await mkdir(folder);
    const { text } = await exports.get(`/v1/raw/export/${json.export_id}/manifest`);
    await writeFile(join(folder, 'manifest.json'), text);
    const { files, row_count, proof } = JSON.parse(text);
    for (const { name } of files) await rename(join(exports.root, json.export_id, '1', name), join(folder, name));
    const checked = await runCommand(['check', folder, '--key', key], {});
    expect(checked.json.faults).toEqual([]);
    const partitions = `${proof.partitions} whole partition${proof.partitions === 1 ? '' : 's'}`;
    expect(checked.json.checked).toContain(
      `every row of ${partitions} hashed again from the files and equal to its leaf: ${row_count.toLocaleString('en-US')} rows`,
    );
  });
});

test('the digest covers every stored column that a row shows; what it leaves out is what no row shows', () => {
  const omitted = [...DATASETS.values()].flatMap((dataset) => {
    const logged = new Set(loggedColumns(dataset).map(({ name }) => name));
    return dataset.native.columns.flatMap(({ name }) => (logged.has(name) ? [] : [`${dataset.key} ${name}`]));
  });
  expect(omitted).toEqual([
    'bitcoin_block_headers payload_sha256',
    'bitcoin_block_transactions input_value_sats',
    'bitcoin_block_transactions output_value_sats',
    'bitcoin_block_transactions payload_sha256',
    'bitcoin_mempool_state payload_sha256',
    'bitcoin_network_hashrate_estimate raw_interval_seconds',
  ]);
  for (const line of omitted) {
    const [dataset, column] = line.split(' ');
    expect(datasetOf(dataset).native.fields.some((field) => field.column === column)).toBe(false);
    expect(rowLayoutOf(datasetOf(dataset)).columns.some(({ name }) => name === column)).toBe(false);
  }
});
