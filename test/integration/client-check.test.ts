/** The client's checks, as a program without the project would use them: built, in Node 20 or later, over a real export. */
import { execFileSync } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { tableFromIPC } from 'apache-arrow';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { checkConsistency, checkExport, checkLineage, checkMirror } from '../../client/check/index.ts';
import { ROOT } from '../support/command.ts';
import type { Exports } from '../support/exports.ts';
import { DATASET, type System } from '../support/pipeline.ts';
import { checkpointOf, createLogged, type LoggedSystem, sequence } from '../support/proof-log.ts';
import { API_KEY } from '../support/serving.ts';
import { SMALL_DAYS } from '../support/three-days.ts';

let logged: LoggedSystem;
let system: System;
let exports: Exports;
let key: string;
let manifest: string;
let csv: string;

beforeAll(async () => {
  logged = await createLogged();
  ({ system, exports, key } = logged);
  const folder = await logged.download();
  manifest = await readFile(join(folder, 'manifest.json'), 'utf8');
  csv = await readFile(join(folder, JSON.parse(manifest).files[0].name), 'utf8');
});
afterAll(() => logged[Symbol.asyncDispose]());

const WHOLE = 'every row of 3 whole partitions hashed again from the files and equal to its leaf: 25,000 rows';

/** The rows of the CSV as objects of numbers and texts. */
function rowsOf(text: string): Record<string, string | number>[] {
  const [header, ...lines] = text.trimEnd().split('\n');
  const names = header.split(',');
  return lines.map((line) => {
    const cells = line.split(',');
    return Object.fromEntries(names.map((name, at) => [name, name === 'datetime' ? cells[at] : Number(cells[at])]));
  });
}

test('an export is checked from its CSV, from rows, and from a table of Apache Arrow', async () => {
  const rows = rowsOf(csv);
  const answer = await fetch(`${exports.serving.url}/v1/raw/query`, {
    method: 'POST',
    headers: { 'X-API-Key': API_KEY, Accept: 'application/vnd.apache.arrow.stream' },
    body: JSON.stringify({ sources: [DATASET], time_range: ['2024-03-01T00:00:00Z', '2024-04-01T00:00:00Z'] }),
  });
  expect(answer.status).toBe(200);
  const arrow = tableFromIPC(new Uint8Array(await answer.arrayBuffer()));
  expect(arrow.numRows).toBe(rows.length);
  for (const given of [{ csv }, { rows }, { rows: () => rows.values() }, { rows: arrow }]) {
    const { ok, checked, faults } = await checkExport({ manifest, key, ...given });
    expect([ok, faults]).toEqual([true, []]);
    expect(checked).toContain(WHOLE);
  }
});

test('a value that was changed is found, and a manifest alone says what it holds', async () => {
  const rows = rowsOf(csv).map((row, at) => (at === 9000 ? { ...row, price: Number(row.price) + 0.01 } : row));
  const changed = await checkExport({ manifest, key, rows });
  expect(changed.faults).toEqual([expect.stringMatching(`^${SMALL_DAYS[1].day}: rows_sha256 `)]);
  const alone = await checkExport({ manifest: JSON.parse(manifest), key });
  expect([alone.ok, alone.notChecked]).toEqual([
    true,
    ['rows against leaves (no rows are given): vouched for only by the signed manifest'],
  ]);
});

test('rows that do not come in the order of trade ids are sorted before they are hashed', async () => {
  const { ok, faults } = await checkExport({ manifest, key, rows: rowsOf(csv).toReversed() });
  expect([ok, faults]).toEqual([true, []]);
});

test('lineage and checkpoints are checked, too', async () => {
  const answer = (await exports.get(`/v1/lineage/${DATASET}/5`)).json;
  expect(checkLineage(answer, key)).toMatchObject({ ok: true });
  expect(checkLineage({ ...answer, partition: '2024-03-02' }, key).ok).toBe(false);
  const { note } = await checkpointOf(system.env);
  await system.rows(`insert into proof_leaves (kind, body) values ('restored', convert_to('{}', 'UTF8'))`);
  await sequence(system.env);
  const { note: next } = await checkpointOf(system.env);
  expect(await checkConsistency(note, next, key, exports.serving.url)).toEqual({
    ok: true,
    checked: ['the tree of 4 leaves continues that of 3'],
    notChecked: [],
    faults: [],
  });
  expect(await checkMirror(exports.serving.url, key)).toMatchObject({
    ok: true,
    checked: ['all 4 leaves give the root that was signed'],
  });
  // The old key leads to the one that a renewed log signs with.
  expect((await system.run(['proof-log', 'rotate'])).exit).toBe(0);
  await system.rows(`insert into proof_leaves (kind, body) values ('restored', convert_to('{}', 'UTF8'))`);
  await sequence(system.env);
  const renewed = (await exports.get(`/v1/lineage/${DATASET}/5`)).json;
  const { text: rotations } = await exports.get('/v1/proofs/rotations');
  // For a week checkpoints carry the line of the key before as well.
  expect(checkLineage(renewed, key).ok).toBe(true);
  const [text, lines] = renewed.checkpoint.split('\n\n');
  const later = { ...renewed, checkpoint: `${text}\n\n${lines.split('\n').slice(0, 2).join('\n')}\n` };
  expect(checkLineage(later, key).ok).toBe(false);
  expect(checkLineage(later, `${key}\n${rotations}`)).toMatchObject({ ok: true });
  expect(await checkMirror(exports.serving.url, key)).toMatchObject({ ok: true });
});

test('as JavaScript it needs nothing but Node', async () => {
  const out = join(system.env.dir, 'client');
  execFileSync(process.execPath, [
    join(ROOT, 'node_modules/.bin/tsc'),
    '-p',
    join(ROOT, 'client/check'),
    '--outDir',
    out,
  ]);
  await writeFile(join(out, 'package.json'), '{"type":"module"}');
  await writeFile(join(out, 'manifest.json'), manifest);
  await writeFile(join(out, 'rows.csv'), csv);
  const program = `import { checkExport } from './client/check/index.js';
    import { readFileSync } from 'node:fs';
    const [manifest, csv] = ['manifest.json', 'rows.csv'].map((name) => readFileSync(name, 'utf8'));
    console.log(JSON.stringify(await checkExport({ manifest, csv, key: process.argv[2] })));`;
  await writeFile(join(out, 'program.js'), program);
  const printed = execFileSync(process.execPath, ['program.js', key], { cwd: out, encoding: 'utf8' });
  expect(JSON.parse(printed)).toMatchObject({ ok: true, checked: expect.arrayContaining([WHOLE]) });
  expect(await readFile(join(out, 'manifest.json'), 'utf8')).toBe(manifest);
});
