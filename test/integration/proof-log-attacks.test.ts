/**
 * Attacks on the proof log, by somebody who may change the database, the files and, in two cases, sign. Each is found by the check
 * that docs/proof-log.md names for it.
 */
import { createHash } from 'node:crypto';
import { cp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { connect, PROOF_LOG_LOCK } from '../../shared/db/connect.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { generateSigner, type Signer } from '../../shared/proof-log/note.ts';
import { signManifest } from '../../shared/proof-log/signed-manifest.ts';
import { keyPathOf, readSigners } from '../../shared/proof-log/signers.ts';
import { readEntries } from '../../shared/proof-log/tiles.ts';
import { lookAt } from '../../shared/proof-log/watch.ts';
import { type Exports, startExports } from '../support/exports.ts';
import { DATASET, System } from '../support/pipeline.ts';
import {
  checkpointOf,
  createLogged,
  forgeLog,
  type LoggedSystem,
  logFolderOf,
  sequence,
} from '../support/proof-log.ts';
import { FROM, SMALL_DAYS, TO, writeDays } from '../support/three-days.ts';

let logged: LoggedSystem;
let system: System;
let exports: Exports;
let key: string;
let log: string;
let signer: Signer;

beforeEach(async () => {
  logged = await createLogged();
  ({ system, exports, key } = logged);
  log = logFolderOf(system.env);
  signer = (await readSigners({ folder: log }))!.current;
});
afterEach(() => logged[Symbol.asyncDispose]());

const DAY = SMALL_DAYS[0].day;
const inDir = (name: string) => join(system.env.dir, name);
const check = async (...args: string[]) => await system.run(['check', ...args, '--key', key]);
const watch = async (url: string, state = 'watch.json') =>
  await system.run(['watch-log', url, '--once', '--state', inDir(state), '--metrics', inDir('watch.prom')]);

const entriesOf = (width: number) => readEntries(folderSource(log), 0, width);

test('a stored row that is altered is in no export that the check accepts, and `verify` finds it', async () => {
  await system.rows(`update ${DATASET} set price = price + 1 where trade_id = 100`);
  const { exit, json } = await check(await logged.download());
  expect([exit, json.faults.length]).toEqual([1, 1]);
  expect(json.faults[0]).toMatch(new RegExp(`^${DAY}: rows_sha256 [0-9a-f]{64} is not what the leaf commits to$`));
  expect((await system.run(['verify', DATASET, '--partition', DAY])).exit).toBe(1);
});

test('rows altered together with every digest of their partition are found by `verify` and by the check of an export', {
  tags: ['nightly'],
}, async () => {
  await system.rows(`update ${DATASET} set price = price + 1 where trade_id = 100`);
  const { json: first } = await system.run(['verify', DATASET, '--partition', DAY]);
  const found = /rows_hash: expected (-?\d+), found (-?\d+)/.exec(first.units[0].reason)!;
  await system.rows(
    `update partitions set state = 'proved', manifest = jsonb_set(manifest, '{rows_hash}', to_jsonb('${found[2]}'::text))
     where partition_key = '${DAY}'`,
  );
  await system.rows(
    `update coverage set proved = (select range_agg(int8range(from_ms, to_ms)) from partitions), version = version + 1`,
  );
  const { exit, json } = await check(await logged.download());
  expect([exit, json.faults]).toEqual([
    1,
    expect.arrayContaining([`${DATASET} ${DAY}: rows_hash ${found[2]} is not what the leaf commits to`]),
  ]);
  const verified = await system.run(['verify', DATASET, '--partition', DAY]);
  expect(verified.json.units[0].reason).toContain(
    `leaf of the proof log: expected what it states, found rows_hash ${found[2]} is not what the leaf commits to`,
  );
});

test('a leaf that is altered in the database has no proof that verifies', async () => {
  await system.rows(
    `update proof_leaves set body = convert_to(replace(convert_from(body, 'UTF8'), '"rows":8000', '"rows":8001'), 'UTF8')
     where leaf_index = 0`,
  );
  expect((await exports.get('/v1/changes?since=0')).text).toContain('"rows":8001');
  const path = inDir('lineage.json');
  await writeFile(path, (await exports.get(`/v1/lineage/${DATASET}/1`)).text);
  const { exit, json } = await check(path);
  expect([exit, json.faults]).toEqual([1, ['leaf: leaf 0 is not in the tree of 3 leaves that was signed']]);
});

test('a tile that is altered is found by the check of a mirror and by a watcher', async () => {
  expect((await watch(log)).exit).toBe(0);
  for (const path of ['tile/entries/000.p/3', 'tile/0/000.p/3']) {
    const bytes = await readFile(join(log, path));
    const altered = Buffer.from(bytes);
    altered[altered.length - 5] ^= 1;
    await writeFile(join(log, path), Buffer.concat([bytes, Buffer.of(0)]));
    expect([(await check(log)).exit, (await watch(log)).exit]).toEqual([1, 1]);
    await rm(join(log, path));
    expect([(await check(log)).exit, (await watch(log)).exit]).toEqual([1, 1]);
    expect(await readFile(inDir('watch.prom'), 'utf8')).toMatch(/^tidemark_watch_consistent.* 0$/m);
    await writeFile(join(log, path), altered);
    expect((await check(log)).exit).toBe(1);
    const { exit, json } = await watch(log);
    expect([path, exit, json.ok]).toEqual([path, 1, false]);
    expect(await readFile(inDir('watch.prom'), 'utf8')).toMatch(/^tidemark_watch_consistent\{log="[^"]+"\} 0$/m);
    await writeFile(join(log, path), bytes);
  }
  expect((await watch(log)).exit).toBe(0);
});

test('a new leaf that is altered is found by a watcher, wherever else it looks', { tags: ['nightly'] }, async () => {
  const source = folderSource(log);
  const { watched } = await lookAt(source, {}, { random: () => 0 });
  await system.rows(
    `insert into proof_leaves (kind, body) select 'restored', convert_to('leaf ' || n, 'UTF8') from generate_series(1, 300) n`,
  );
  await sequence(system.env);
  const path = join(log, 'tile/entries/001.p/47');
  const bytes = await readFile(path);
  await writeFile(path, Buffer.from(bytes.toString('latin1').replace('leaf 290', 'leaf 29x'), 'latin1'));
  const altered = await lookAt(source, watched!, { random: () => 0 });
  expect([altered.watched, altered.report.faults]).toEqual([
    undefined,
    ['the leaves 3 to 302 do not give the root that was signed: a leaf was changed'],
  ]);
  await writeFile(path, bytes);
  const whole = await lookAt(source, watched!, { random: () => 0.99 });
  expect(whole.report.checked).toEqual([
    expect.stringMatching(/^the checkpoint of 303 leaves was signed at 2.*Z$/),
    'the tree of 303 leaves continues that of 3',
    '300 new leaves are in the tree of 303',
    '47 leaves from 256 on are still in the tree',
  ]);
});

test('a checkpoint that is altered does not carry the signature of the log', async () => {
  const path = join(log, 'checkpoint');
  await writeFile(path, (await readFile(path, 'utf8')).replace('\n3\n', '\n2\n'));
  expect((await check(log)).json.faults).toEqual([
    `checkpoint: the signature of ${signer.verifier.name} does not belong to the text`,
  ]);
  expect((await watch(log)).exit).toBe(1);
});

test('a leaf that is left out is missed by the check of an export of its partition', {
  tags: ['nightly'],
}, async () => {
  await using other = await System.create();
  await writeDays(other, SMALL_DAYS);
  expect((await other.backfill(FROM, TO)).exit).toBe(0);
  await other.rows(`delete from proof_leaves where partition_key = '${DAY}'`);
  await sequence(other.env);
  await using service = await startExports(other.env);
  const { json: run } = await service.run({ dataset: DATASET, format: 'csv', month_year: [3, 2024] });
  const folder = inDir('left-out');
  await cp(join(service.root, run.export_id, '1'), folder, { recursive: true });
  const { verifier } = await checkpointOf(other.env);
  const { exit, json } = await system.run(['check', folder, '--key', verifier.line]);
  expect([exit, json.faults]).toEqual([
    1,
    [`${DATASET} ${DAY}: the partition is proved, and the log has no leaf of it`],
  ]);
  const doctor = await other.run(['doctor', '--check', 'proof_log']);
  expect(JSON.stringify(doctor.json)).toContain('./tidemark replay');
  const replayed = await other.run(['replay', DATASET]);
  const states = replayed.json.units.map(({ partition, state }: { partition: string; state: string }) => [
    partition,
    state,
  ]);
  expect(states.filter(([, state]: string[]) => state !== 'identical')).toEqual([[DAY, 'replaced']]);
  expect((await other.run(['doctor', '--check', 'proof_log'])).json.ok).toBe(true);
});

test('history that is rewritten and signed anew with the stolen key is found by a watcher and by two checkpoints', async () => {
  expect((await watch(log)).exit).toBe(0);
  const before = inDir('before.note');
  await cp(join(log, 'checkpoint'), before);
  const entries = await entriesOf(3);
  const rewritten = Buffer.from(String(Buffer.from(entries[0])).replace('"rows":8000', '"rows":8001'));
  const forged = inDir('rewritten');
  await forgeLog(forged, [rewritten, ...entries.slice(1), entries[0]], [signer]);
  // The forged log is whole: only somebody who remembers finds it.
  expect((await check(forged)).exit).toBe(0);
  const seen = await watch(forged);
  expect([seen.exit, seen.json.faults]).toEqual([
    1,
    ['the tree of 4 leaves does not continue that of 3: history was rewritten'],
  ]);
  const compared = await check(before, join(forged, 'checkpoint'), '--log', forged);
  expect([compared.exit, compared.json.faults]).toEqual([1, seen.json.faults]);
});

test('an export with one cell changed is found: by its digest, by the signature, and by its rows', async () => {
  const folder = await logged.download();
  const manifest = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8'));
  const [file] = manifest.files;
  const text = (await readFile(join(folder, file.name), 'utf8')).split('\n');
  const cells = text[500].split(',');
  cells[2] = String(Number(cells[2]) + 0.01);
  text[500] = cells.join(',');
  const bytes = Buffer.from(text.join('\n'));
  await writeFile(join(folder, file.name), bytes);
  const digest = (await check(folder)).json.faults;
  expect(digest).toEqual([expect.stringContaining(`${file.name} has the sha256`)]);
  // The manifest is changed to match.
  const sha256 = createHash('sha256').update(bytes).digest('hex');
  const { signed: _, ...unsigned } = {
    ...manifest,
    sha256,
    bytes: bytes.length,
    files: [{ ...file, sha256, bytes: bytes.length }],
  };
  await writeFile(join(folder, 'manifest.json'), JSON.stringify({ ...unsigned, signed: manifest.signed }));
  expect((await check(folder)).json.faults).toContain(
    'signature of the manifest: the manifest is not the one that was signed',
  );
  // And signed with the stolen key.
  await writeFile(join(folder, 'manifest.json'), JSON.stringify(signManifest(unsigned, signer)));
  const { exit, json } = await check(folder);
  expect([exit, json.faults.length]).toEqual([1, 1]);
  expect(json.faults[0]).toContain('rows_sha256');
});

test('a row that is taken out of an export, with a manifest signed by the stolen key, is missed; one that is added is one too many', {
  tags: ['nightly'],
}, async () => {
  const folder = await logged.download();
  const path = join(folder, 'manifest.json');
  const manifest = JSON.parse(await readFile(path, 'utf8'));
  const [file] = manifest.files;
  const lines = (await readFile(join(folder, file.name), 'utf8')).split('\n');
  const { signed: _, ...unsigned } = manifest;
  const fields = lines[0].split(',');
  const stray = lines[1]
    .split(',')
    .with(fields.indexOf('timestamp'), '0')
    .with(fields.indexOf('datetime'), '1970-01-01T00:00:00.000Z');
  for (const [changed, says] of [
    [lines.toSpliced(500, 1), ['the files hold 24,999 rows', `${DAY}: the files hold 7,999 rows, the leaf says 8000`]],
    [
      lines.toSpliced(500, 0, lines[500]),
      ['the files hold 25,001 rows', `${DAY}: the files hold 8,001 rows, the leaf says 8000`],
    ],
    [
      lines.with(-1, `${stray.join(',')}\n`),
      ['the files hold 25,001 rows', 'the files hold 1 row of none of the partitions of the proof'],
    ],
  ] as const) {
    const bytes = Buffer.from(changed.join('\n'));
    await writeFile(join(folder, file.name), bytes);
    const sha256 = createHash('sha256').update(bytes).digest('hex');
    const forged = { ...unsigned, sha256, bytes: bytes.length, files: [{ ...file, sha256, bytes: bytes.length }] };
    await writeFile(path, JSON.stringify(signManifest(forged, signer)));
    const { exit, json } = await check(folder);
    expect([exit, json.faults]).toEqual([1, says.map((fault) => expect.stringContaining(fault))]);
  }
  await writeFile(path, JSON.stringify(signManifest({ ...unsigned, window: { kind: 'all' } }, signer)));
  expect((await check(folder)).json.faults).toContain(
    'window: {"kind":"all"} has an unknown kind, or times that cannot be read',
  );
});

test.for(['csv', 'parquet'])(
  '%s whose columns are not those of its manifest is refused, whoever signed it',
  { tags: ['nightly'] },
  async (format) => {
    const folder = await logged.download({ format, month_year: [3, 2024] });
    const path = join(folder, 'manifest.json');
    const { signed: _, schema, ...rest } = JSON.parse(await readFile(path, 'utf8'));
    const swapped = [schema[1], schema[0], ...schema.slice(2)];
    await writeFile(path, JSON.stringify(signManifest({ ...rest, schema: swapped }, signer)));
    const { exit, json } = await check(folder);
    expect([exit, json.faults]).toEqual([
      1,
      [`rows: column 1 is ${schema[0].name}, and ${schema[1].name} in the manifest`],
    ]);
  },
);

test('a stale checkpoint is a log that shrank, to whoever saw a newer one', { tags: ['nightly'] }, async () => {
  const stale = inDir('stale');
  await cp(log, stale, { recursive: true });
  await system.rows(`insert into proof_leaves (kind, body) values ('restored', convert_to('{}', 'UTF8'))`);
  await sequence(system.env);
  expect((await watch(log)).exit).toBe(0);
  const { exit, json } = await watch(stale);
  expect([exit, json.faults]).toEqual([
    1,
    [
      expect.stringMatching(
        /^the log shrank from 4 to 3 leaves, which are the first of them: it was restored from a backup\./,
      ),
    ],
  ]);
});

test('two forks that are shown to two watchers are found when they compare their checkpoints', {
  tags: ['nightly'],
}, async () => {
  const entries = await entriesOf(3);
  const fork = inDir('fork');
  await forgeLog(
    fork,
    [...entries.slice(0, 2), Buffer.from(String(Buffer.from(entries[2])).replace('false', 'true '))],
    [signer],
  );
  expect((await watch(log, 'first.json')).exit).toBe(0);
  expect((await watch(fork, 'second.json')).exit).toBe(0);
  const compared = await check(fork, '--log', log);
  expect([compared.exit, compared.json.faults]).toEqual([1, ['two roots were signed for 3 leaves: the log forked']]);
  const { exit, json } = await check(join(log, 'checkpoint'), join(fork, 'checkpoint'));
  expect([exit, json.faults]).toEqual([1, ['two roots were signed for 3 leaves: the log forked']]);
});

test('the sequencer refuses a database that lost signed leaves until an operator says so in the log itself', {
  tags: ['nightly'],
}, async () => {
  await system.rows(`delete from proof_leaves where leaf_index = 2`);
  const [{ root }] = await system.rows<{ root: Buffer }>(`select root from proof_head`);
  const entries = await entriesOf(3);
  const hash = (...parts: Uint8Array[]) => parts.reduce((sum, part) => sum.update(part), createHash('sha256')).digest();
  const two = hash(Buffer.of(1), hash(Buffer.of(0), entries[0]), hash(Buffer.of(0), entries[1]));
  await system.client.query('update proof_head set size = 2, root = $1, signed_size = 2', [two]);
  await expect(sequence(system.env)).rejects.toMatchObject({ code: 'PROOF_LOG_DIVERGED' });
  expect((await system.run(['proof-log', 'restored'])).exit).toBe(2);
  const { exit, json } = await system.run(['proof-log', 'restored', '--reason', 'backup of Monday']);
  expect([exit, json]).toMatchObject([0, { from: 2, to: 3, leaves: 1 }]);
  expect(await sequence(system.env)).toBe(4);
  const bodies = await system.rows(
    `select convert_from(body, 'UTF8') as text, leaf_index from proof_leaves order by leaf_index`,
  );
  expect(bodies[2].text).toBe(Buffer.from(entries[2]).toString());
  expect(JSON.parse(bodies[3].text)).toMatchObject({
    kind: 'restored',
    reason: 'leaves 2 to 2 were lost by the database: backup of Monday',
  });
  expect((await check(log)).exit).toBe(0);
  expect(root.length).toBe(32);
});

test('a database whose leaves are not those of the checkpoint is refused', { tags: ['nightly'] }, async () => {
  await system.client.query('update proof_head set root = $1', [Buffer.alloc(32, 1)]);
  await expect(sequence(system.env)).rejects.toMatchObject({ code: 'PROOF_LOG_DIVERGED' });
});

test('a backup that has lost leaves without their index gets them back once', { tags: ['nightly'] }, async () => {
  await system.rows(`update proof_leaves set leaf_index = null where leaf_index >= 1`);
  const entries = await entriesOf(3);
  const root = createHash('sha256').update(Buffer.of(0)).update(entries[0]).digest();
  await system.client.query('update proof_head set size = 1, root = $1, signed_size = 1', [root]);
  const { exit, json } = await system.run(['proof-log', 'restored', '--reason', 'backup of Monday']);
  expect([exit, json]).toMatchObject([0, { from: 1, to: 3, leaves: 2 }]);
  expect(await sequence(system.env)).toBe(4);
  const bodies = (await entriesOf(4)).map((entry) => Buffer.from(entry).toString());
  expect(bodies.slice(0, 3)).toEqual(entries.map((entry) => Buffer.from(entry).toString()));
  expect(JSON.parse(bodies[3]).kind).toBe('restored');
});

test('without the folder nobody knows which roots were signed: it is refused until an operator says so, then made again byte for byte', {
  tags: ['nightly'],
}, async () => {
  const before = await folderSource(log)('tile/entries/000.p/3');
  const note = await folderSource(log)('checkpoint');
  await system.rows(`insert into proof_leaves (kind, body) values ('restored', convert_to('{}', 'UTF8'))`);
  await rm(log, { recursive: true });
  await expect(sequence(system.env)).rejects.toMatchObject({ code: 'PROOF_LOG_DIVERGED' });
  expect(await folderSource(log)('checkpoint')).toBeUndefined();
  const { exit, json } = await system.run(['proof-log', 'restored', '--reason', 'a new disk']);
  expect([exit, json]).toMatchObject([0, { from: 0, to: 3, leaves: 3 }]);
  expect(await folderSource(log)('tile/entries/000.p/3')).toEqual(before);
  expect(await folderSource(log)('checkpoint')).toEqual(note);
  expect(await sequence(system.env)).toBe(5);
  expect(JSON.parse(Buffer.from((await entriesOf(5))[4]).toString())).toMatchObject({
    kind: 'restored',
    reason: 'leaves 0 to 2 were lost by the folder: a new disk',
  });
  expect(await readFile(keyPathOf(log), 'utf8')).toMatch(/^PRIVATE\+KEY\+tidemark-/);
  expect((await stat(keyPathOf(log))).mode & 0o777).toBe(0o600);
});

test('`restored` of a log that lost nothing says so, and does not wait for the sequencer that goes on', {
  tags: ['nightly'],
}, async () => {
  await using client = await connect({ url: system.env.databaseUrl, name: 'test sequencer' });
  await client.query('select pg_advisory_lock($1, 0)', [PROOF_LOG_LOCK]);
  const { exit, json } = await system.run(['proof-log', 'restored', '--reason', 'a trial']);
  expect([exit, json]).toMatchObject([0, { ok: true, leaves: 0 }]);
});

test('a key that is gone, or another one without a rotation, is refused: the log never changes its key in silence', {
  tags: ['nightly'],
}, async () => {
  const kept = await readFile(keyPathOf(log), 'utf8');
  await system.rows(`insert into proof_leaves (kind, body) values ('restored', convert_to('{}', 'UTF8'))`);
  await rm(keyPathOf(log));
  await expect(sequence(system.env)).rejects.toMatchObject({ code: 'CONFIGURATION_INVALID' });
  for (const other of [generateSigner(signer.verifier.name), generateSigner('another')]) {
    await writeFile(keyPathOf(log), `${other.secret}\n`);
    await expect(sequence(system.env)).rejects.toMatchObject({ code: 'CONFIGURATION_INVALID' });
  }
  await writeFile(keyPathOf(log), kept);
  expect(await sequence(system.env)).toBe(4);
  expect((await stat(keyPathOf(log))).size).toBe(kept.length);
});

test('a renewed key is followed by those who trust the old one, and what the old one signed stays true', {
  tags: ['nightly'],
}, async () => {
  expect((await watch(log)).exit).toBe(0);
  const folder = await logged.download();
  const kept = join(system.env.dir, 'kept.checkpoint');
  await cp(join(log, 'checkpoint'), kept);
  const { json } = await system.run(['proof-log', 'rotate']);
  expect(json.key).not.toBe(key);
  await system.rows(`insert into proof_leaves (kind, body) values ('restored', convert_to('{}', 'UTF8'))`);
  await sequence(system.env);
  const { exit, json: seen } = await watch(log);
  expect([exit, seen.ok]).toEqual([0, true]);
  // The command of the watcher still names the key that it began with.
  const same = await system.run(['watch-log', log, '--once', '--state', inDir('watch.json'), '--key', key]);
  const other = ['--key', generateSigner(signer.verifier.name).verifier.line];
  const wrong = await system.run(['watch-log', log, '--once', '--state', inDir('watch.json'), ...other]);
  expect([same.exit, wrong.exit]).toEqual([0, 2]);
  // As `curl .../v1/proofs/key` keeps it; a file that is none was taken for a log that changed its key.
  await writeFile(inDir('log.key'), `${key}\n`);
  const watchWith = async (named: string) =>
    await system.run(['watch-log', log, '--once', '--state', inDir('watch.json'), '--key', named]);
  const [filed, none] = [await watchWith(inDir('log.key')), await watchWith(inDir('no.key'))];
  expect([filed.exit, none.exit, none.json.error.code]).toEqual([0, 2, 'USAGE']);
  const renewed = 'the key of the log was rotated, and the key before it signed that';
  const mirror = await check(log);
  expect([mirror.exit, mirror.json.checked[0]]).toEqual([0, renewed]);
  const exported = await check(folder, '--log', log);
  expect([exported.exit, exported.json.faults]).toEqual([0, []]);
  expect(exported.json.checked).toContain(renewed);
  const consistent = await check(kept, join(log, 'checkpoint'), '--log', log);
  expect([consistent.exit, consistent.json.checked.at(-1)]).toEqual([0, 'the tree of 5 leaves continues that of 3']);
});
