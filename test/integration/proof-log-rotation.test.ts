/**
 * A key that was rotated away signs no more. Somebody kept the private key of each rotation, has a copy of the log, and signs a tree
 * of one leaf more: every reader refuses it, whether it knows the log or sees it for the first time.
 */
import { cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { checkConsistency, checkExport, checkLineage, checkMirror } from '../../client/check/index.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { generateSigner, openCheckpoint, type Signer } from '../../shared/proof-log/note.ts';
import { keysIn, rotationNote } from '../../shared/proof-log/rotations.ts';
import { signManifest } from '../../shared/proof-log/signed-manifest.ts';
import { keyPathOf, readSigners } from '../../shared/proof-log/signers.ts';
import { readEntries } from '../../shared/proof-log/tiles.ts';
import { placeOf, writeLake } from '../support/lake-folder.ts';
import { DATASET, type System } from '../support/pipeline.ts';
import {
  checkpointOf,
  createLogged,
  forgeLog,
  type LoggedSystem,
  logFolderOf,
  sequence,
} from '../support/proof-log.ts';

let logged: LoggedSystem;
let system: System;
let log: string;
/** The keys, the first one first; the last one is the log's. */
const signers: Signer[] = [];
/** Before the first rotation, and after each: the state of a watcher who looked then. */
const states: string[] = [];
let size: number;
let lineage: Record<string, unknown>;
let exported: string;

const inDir = (name: string) => join(system.env.dir, name);
const watch = async (url: string, ...args: string[]) => await system.run(['watch-log', url, '--once', ...args]);
const nameOf = ({ verifier: { line } }: Signer) => line.split('+').slice(0, 2).join('+');
const lineOf = ({ verifier }: Signer) => verifier.line;

async function look(name: string, ...args: string[]): Promise<void> {
  const { exit, json } = await watch(log, '--state', inDir(name), ...args);
  expect([exit, json.faults]).toEqual([0, []]);
  states.push(name);
}

beforeAll(async () => {
  logged = await createLogged();
  ({ system } = logged);
  log = logFolderOf(system.env);
  signers.push((await readSigners({ folder: log }))!.current);
  exported = await logged.download();
  await look('watch-0.json');
  for (const at of [1, 2]) {
    // A leaf waits already: the rotation comes before it.
    await system.rows(`insert into proof_leaves (kind, body) values ('restored', convert_to('leaf ${at}', 'UTF8'))`);
    const { exit, json } = await system.run(['proof-log', 'rotate']);
    expect([exit, json.until]).toEqual([0, expect.stringMatching(/Z$/)]);
    signers.push((await readSigners({ folder: log }))!.current);
    expect(json.key).toBe(signers[at].verifier.line);
    size = await sequence(system.env);
    await look(`watch-${at}.json`, '--key', signers[0].verifier.line);
  }
  lineage = (await logged.exports.get(`/v1/lineage/${DATASET}/1`)).json;
});
afterAll(() => logged[Symbol.asyncDispose]());

const rotations = () => readFile(join(log, 'rotations'), 'utf8');

test('a rotation is a leaf of the index that it names, before what waited, and its own note is in it', async () => {
  const entries = await readEntries(folderSource(log), 0, size);
  const leaves = entries.map((entry) => Buffer.from(entry).toString());
  const notes = [leaves[3], leaves[5]].map((leaf) => JSON.parse(leaf));
  expect(notes.map(({ kind, dataset }) => [kind, dataset])).toEqual(Array(2).fill(['rotated', null]));
  expect(notes.map(({ note }) => note).join('')).toBe(await rotations());
  expect(notes.map(({ note }) => note.split('\n')[2])).toEqual(['3', '5']);
  const { json } = await logged.exports.get('/v1/changes?since=3&limit=1');
  expect(json.changes[0]).toMatchObject({ number: 4, kind: 'rotated', note: notes[0].note });
});

test('a checkpoint has the lines of the key, of its time and of the keys before it; a follower of any accepts it', async () => {
  const { note } = await checkpointOf(system.env);
  const lines = note.split('\n\n')[1].trimEnd().split('\n');
  expect(lines).toHaveLength(4);
  for (const { verifier } of signers) expect(openCheckpoint(note, [verifier]).size).toBe(size);
  expect(openCheckpoint(note, keysIn(`${lineOf(signers[0])}\n${await rotations()}`)).by.line).toBe(lineOf(signers[2]));
  // The one whose time is over is gone, from the checkpoint and from the file.
  const kept = await readFile(keyPathOf(log), 'utf8');
  expect(kept.trimEnd().split('\n')).toEqual(signers.map(({ secret }) => secret));
  const later = await readSigners({ folder: log }, Date.now() + 8 * 86_400_000);
  expect([later!.current.secret, later!.before]).toEqual([signers[2].secret, []]);
});

/** A copy of the log with one leaf more, signed with a key that was rotated. */
async function forged(name: string, by: readonly Signer[]): Promise<string> {
  const folder = inDir(name);
  await rm(folder, { recursive: true, force: true });
  await cp(log, folder, { recursive: true });
  const entries = await readEntries(folderSource(log), 0, size);
  await forgeLog(folder, [...entries, Buffer.from('forged')], by);
  return folder;
}

/** How a forger hides the rotation: in no way, in the files beside the leaves, or in both. */
const DISGUISES = ['none', 'without rotations', 'with a rotation of his own'] as const;

describe.for([
  ['the first', 0],
  ['the second', 1],
] as const)('a tree of one leaf more that %s key signs', ([_, at]) => {
  test.for(DISGUISES)(
    'is refused by watchers that know the log and by those that do not, disguise: %s',
    async (disguise) => {
      const folder = await forged(`forged-${at}`, [signers[at]]);
      if (disguise === 'without rotations') await rm(join(folder, 'rotations'));
      if (disguise === 'with a rotation of his own') {
        const own = generateSigner(signers[0].verifier.name);
        const turn = { next: own.verifier, size: size + 1, untilMs: Date.now() };
        await writeFile(join(folder, 'rotations'), (await rotations()) + rotationNote(signers[at], turn));
      }
      const unlinked = `no rotation leads from the trusted key ${lineOf(signers[0])} to ${lineOf(signers[at])}`;
      const says =
        disguise === 'with a rotation of his own'
          ? `the key ${nameOf(signers[at])} was rotated twice, to ${nameOf(signers[at + 1])} at `
          : `the checkpoint of ${size + 1} leaves is signed with ${nameOf(signers[at])}, which was rotated and signs trees of at most ${[3, 5][at]} leaves`;
      const refused = async (what: string, run: ReturnType<typeof watch>) => {
        const { exit, json } = await run;
        // Nothing shows that the key that the copy names is one of the log's.
        const isUnlinked =
          at > 0 &&
          disguise === 'without rotations' &&
          /^(?:fresh |check |watch-0)/.test(what) &&
          !what.endsWith(lineOf(signers[at]));
        expect([what, exit, json.faults?.join('\n')]).toEqual([
          what,
          1,
          expect.stringContaining(isUnlinked ? unlinked : says),
        ]);
      };
      for (const { verifier } of signers.slice(0, at + 1)) {
        await rm(inDir('fresh.json'), { force: true });
        await refused(`fresh ${verifier.line}`, watch(folder, '--state', inDir('fresh.json'), '--key', verifier.line));
        await refused(`check ${verifier.line}`, system.run(['check', folder, '--key', verifier.line]));
      }
      await rm(inDir('fresh.json'), { force: true });
      await refused('fresh, without a key', watch(folder, '--state', inDir('fresh.json')));
      for (const state of states) {
        await cp(inDir(state), inDir('following.json'));
        await refused(state, watch(folder, '--state', inDir('following.json')));
      }
    },
  );

  test('is refused under the newest key, by its name and size', async () => {
    const folder = await forged(`forged-${at}`, [signers[at]]);
    for (const run of [
      watch(folder, '--state', inDir('newest.json'), '--key', lineOf(signers[2])),
      system.run(['check', folder, '--key', lineOf(signers[2])]),
    ]) {
      const { exit, json } = await run;
      expect([exit, json.faults.length]).toEqual([1, 1]);
      expect(json.faults[0]).toContain(nameOf(signers[at]));
    }
  });

  test('is refused by check, the client, the mirror of a lake and exports', async () => {
    const folder = await forged(`forged-${at}`, [signers[at]]);
    const note = await readFile(join(folder, 'checkpoint'), 'utf8');
    await writeFile(inDir('forged.checkpoint'), note);
    const key = `${lineOf(signers[0])}\n${await rotations()}`;
    await writeFile(inDir('log.key'), key);
    const signed = `is signed with ${nameOf(signers[at])}, which was rotated`;
    const says = `the checkpoint of ${size + 1} leaves ${signed}`;
    // A lineage answer, one checkpoint, two checkpoints.
    const answer = { ...lineage, checkpoint: note };
    await writeFile(inDir('lineage.json'), JSON.stringify(answer));
    const old = join(log, 'checkpoint');
    for (const args of [['lineage.json'], ['forged.checkpoint'], [old, 'forged.checkpoint']]) {
      const paths = args.map((path) => (path === old ? old : inDir(path)));
      for (const trust of [
        ['--key', inDir('log.key'), '--log', folder],
        ['--key', lineOf(signers[0]), '--log', log],
      ]) {
        const { exit, json } = await system.run(['check', ...paths, ...trust]);
        expect([exit, json.faults.join('\n')]).toEqual([1, expect.stringContaining(says)]);
      }
    }
    const faultsOf = async (result: Promise<{ faults: readonly string[] }> | { faults: readonly string[] }) =>
      (await result).faults.join('\n');
    expect(await faultsOf(checkLineage(answer, key))).toContain(says);
    await expect(checkMirror(folder, lineOf(signers[0]))).rejects.toThrow(says);
    await expect(checkConsistency(note, note, lineOf(signers[0]), logged.exports.serving.url)).rejects.toThrow(says);
    // An export: signed again, over the forged checkpoint, over a true one, and over none.
    const { signed: _signed, ...manifest } = JSON.parse(await readFile(join(exported, 'manifest.json'), 'utf8'));
    const { note: head } = await checkpointOf(system.env);
    for (const checkpoint of [note, head, null]) {
      const proof_log = { ...manifest.proof_log, checkpoint };
      const text = JSON.stringify(signManifest({ ...manifest, proof_log }, signers[at]));
      expect(await faultsOf(checkExport({ manifest: text, key }))).toContain(`the manifest ${signed}`);
      const folder = inDir(`export-${at}`);
      await cp(exported, folder, { recursive: true });
      await writeFile(join(folder, 'manifest.json'), text);
      const { exit, json } = await system.run(['check', folder, '--key', lineOf(signers[0]), '--log', log]);
      expect([exit, json.faults.join('\n')]).toEqual([1, expect.stringContaining(`the manifest ${signed}`)]);
    }
    // A lake.
    const lake = inDir(`lake-${at}`);
    await mkdir(lake, { recursive: true });
    const rows = new Map([[placeOf(DATASET, '2024-01-01'), Buffer.from('rows')]]);
    await writeLake(lake, rows, { change: size + 1, signer: signers[at] });
    const mirrored = await system.run([
      'mirror',
      pathToFileURL(`${lake}/`).href,
      inDir(`lake-copy-${at}`),
      '--key',
      inDir('log.key'),
    ]);
    expect([mirrored.exit, mirrored.json.error.message]).toEqual([
      1,
      expect.stringContaining(`the manifest ${signed}`),
    ]);
  });
});

test('what the keys signed while it was their turn stays true, and the log goes on', async () => {
  const key = ['--key', lineOf(signers[0]), '--log', log];
  for (const path of [exported, log]) {
    const { exit, json } = await system.run(['check', path, ...key]);
    expect([exit, json.faults]).toEqual([0, []]);
  }
  await system.rows(`insert into proof_leaves (kind, body) values ('restored', convert_to('next', 'UTF8'))`);
  const next = await sequence(system.env);
  expect(next).toBe(size + 1);
  for (const state of states) expect((await watch(log, '--state', inDir(state))).exit).toBe(0);
});

test('a rotation whose leaf is missing, or another, is a fault', async () => {
  const entries = await readEntries(folderSource(log), 0, size);
  const folder = inDir('leafless');
  for (const instead of ['{}', Buffer.from(entries[5]).toString()]) {
    await cp(log, folder, { recursive: true });
    await forgeLog(folder, entries.with(3, Buffer.from(instead)), [signers[2]]);
    const { exit, json } = await watch(folder, '--state', inDir('leafless.json'), '--key', lineOf(signers[0]));
    expect([exit, json.faults]).toEqual([
      1,
      expect.arrayContaining([`the rotation of ${nameOf(signers[0])} at 3 leaves is not leaf 3 of the log`]),
    ]);
  }
});

test('the sequencer of a key that was rotated signs no more: it says which key is missing', async () => {
  const path = keyPathOf(log);
  const kept = await readFile(path, 'utf8');
  await writeFile(path, `${signers[0].secret}\n`);
  await expect(sequence(system.env)).rejects.toMatchObject({
    code: 'CONFIGURATION_INVALID',
    cause: {
      message: expect.stringContaining(
        `${nameOf(signers[0])} was rotated, and the private key of ${nameOf(signers[2])}`,
      ),
    },
  });
  expect((await system.run(['proof-log', 'rotate'])).exit).not.toBe(0);
  await writeFile(path, kept);
});

test('a rotation that is cut off leaves the old key in use, and the next one takes its turn', async () => {
  const path = keyPathOf(log);
  const kept = await readFile(path, 'utf8');
  // The key was kept, and no note of it was written.
  await writeFile(path, `${kept}${generateSigner(signers[0].verifier.name).secret}\n`);
  await sequence(system.env);
  const { note } = await checkpointOf(system.env);
  const keys = keysIn(`${lineOf(signers[0])}\n${await rotations()}`);
  expect(openCheckpoint(note, keys).by.line).toBe(lineOf(signers[2]));
  const { json } = await system.run(['proof-log', 'rotate']);
  await sequence(system.env);
  const { verifier, note: next } = await checkpointOf(system.env);
  const all = keysIn(`${lineOf(signers[0])}\n${await rotations()}`);
  expect([verifier.line, openCheckpoint(next, all).by.line]).toEqual([json.key, json.key]);
  expect((await readFile(path, 'utf8')).trimEnd().split('\n')).toHaveLength(4);
});
