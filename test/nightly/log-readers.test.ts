/**
 * Readers of others over a log that grew, was rotated twice and restored once: Tessera's fsck, and a reader that was written from
 * docs/proof-log.md alone.
 */
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { GrowingLog } from '../../shared/proof-log/growing-log.ts';
import { encodeLeaf, logLeaf } from '../../shared/proof-log/leaf.ts';
import { type Signer, signCheckpoint } from '../../shared/proof-log/note.ts';
import { readSigners } from '../../shared/proof-log/signers.ts';
import { run } from '../../shared/stack/processes.ts';
import { ROOT } from '../support/command.ts';
import { given, givenTool } from '../support/given.ts';
import { serveFolder } from '../support/lake-folder.ts';
import { DATASET } from '../support/pipeline.ts';
import {
  backUpLog,
  checkpointOf,
  createLogged,
  type LoggedSystem,
  logFolderOf,
  sequence,
} from '../support/proof-log.ts';
import { logFsck } from '../support/tools.ts';

/** fsck waits for ever where it finds no tile. */
const TIMEOUT_MS = 300_000;

let logged: LoggedSystem;
let log: string;
let prefix: string;
let programs: string;
const signers: Signer[] = [];
/** Files of checkpoints and answers that were kept on the way. */
const kept: string[] = [];

const inDir = (name: string) => join(logged.system.env.dir, name);

async function grow(count: number): Promise<void> {
  for (let at = 0; at < count; at++) {
    const leaf = encodeLeaf(logLeaf({ kind: 'restored', reason: `leaf ${at} ${count}` }));
    await logged.system.client.query(`insert into proof_leaves (kind, body) values ('restored', $1)`, [leaf]);
  }
  await sequence(logged.system.env);
}

async function keep(): Promise<void> {
  const [note, answer] = [inDir(`kept-${kept.length}.note`), inDir(`kept-${kept.length}.json`)];
  await writeFile(note, (await checkpointOf(logged.system.env)).note);
  await writeFile(answer, (await logged.exports.get(`/v1/lineage/${DATASET}/1`)).text);
  kept.push(note, answer);
}

async function rotate(): Promise<void> {
  expect((await logged.system.run(['proof-log', 'rotate'])).exit).toBe(0);
  signers.push((await readSigners({ folder: log }))!.current);
}

const watch = async () =>
  await logged.system.run([
    ...['watch-log', logged.exports.serving.url, '--once', '--state', inDir('watch.json'), '--mirror', inDir('mirror')],
    ...['--key', signers[0].verifier.line],
  ]);

beforeAll(async () => {
  programs = await mkdtemp(join(tmpdir(), 'tidemark-readers-'));
  logged = await createLogged();
  log = logFolderOf(logged.system.env);
  prefix = `${logged.exports.serving.url}/v1/proofs/`;
  signers.push((await readSigners({ folder: log }))!.current);
  await keep();
  await grow(300);
  await rotate();
  await grow(300);
  await keep();
  const restore = await backUpLog(logged.system.client, log, inDir('backup'));
  await grow(40);
  await rotate();
  await grow(100);
  await keep();
  expect((await watch()).exit).toBe(0);
  await restore();
  expect((await watch()).json.faults).toEqual([expect.stringContaining('it was restored from a backup')]);
  await cp(inDir('mirror'), log, { recursive: true });
  const restored = await logged.system.run(['proof-log', 'restored', '--reason', 'backup of Monday']);
  expect([restored.exit, restored.json]).toMatchObject([0, { leaves: 141 }]);
  await grow(20);
  await keep();
  expect((await watch()).exit).toBe(0);
});
afterAll(async () => {
  await logged[Symbol.asyncDispose]();
  await rm(programs, { recursive: true });
});

test('the log of the readers has grown, and its mirror is whole', async () => {
  const { size } = await checkpointOf(logged.system.env);
  expect(size).toBe(3 + 300 + 1 + 300 + 40 + 1 + 100 + 1 + 20);
  const { exit, json } = await logged.system.run(['check', inDir('mirror'), '--key', signers[0].verifier.line]);
  expect([exit, json.faults]).toEqual([0, []]);
});

const hasGo = await run('go', ['version'], { check: false }).then(
  ({ code }) => code === 0,
  () => false,
);
given(hasGo, 'go is missing: apt-get install golang').describe('the reader that was written from the page', () => {
  const read = async (...args: string[]) => {
    const program = join(programs, 'log-reader');
    await run('go', ['build', '-o', program, join(ROOT, 'test/data/clients/log-reader.go')]);
    return await run(program, args, { check: false });
  };

  test('accepts the log under each of its keys, and what was kept on the way', async () => {
    for (const [at, { verifier }] of signers.entries()) {
      const { code, stdout } = await read(prefix, verifier.line, ...(at === 0 ? kept : []));
      expect([code, stdout]).toEqual([
        0,
        expect.stringMatching(`^766 leaves, ${3 - at} keys, 1 tiles above level 0, signed `),
      ]);
      if (at > 0) continue;
      expect(stdout.match(/the log continues the checkpoint of \d+ leaves/g)).toHaveLength(4);
      expect(stdout.match(/leaf \d is in the tree of \d+ leaves/g)).toHaveLength(4);
    }
  });

  test('refuses a tree of one leaf more that a rotated key signed, and a leaf that is altered', async () => {
    const forged = inDir('forged');
    for (const by of [[signers[0]], [signers[1], signers[0]]]) {
      await rm(forged, { recursive: true, force: true });
      await cp(log, forged, { recursive: true });
      const grown = await GrowingLog.load(forged, 766);
      grown.add(Buffer.from('{}'));
      await grown.write();
      const head = { origin: by[0].verifier.name, size: grown.size, root: grown.root };
      await writeFile(join(forged, 'checkpoint'), signCheckpoint(head, by));
      await using server = await serveFolder(forged);
      const { code, stdout } = await read(server.url, signers[0].verifier.line);
      expect([code, stdout]).toEqual([1, expect.stringMatching(/^WRONG none of the keys of its size signed/)]);
    }
    await rm(forged, { recursive: true, force: true });
    await cp(log, forged, { recursive: true });
    const path = join(forged, 'tile/entries/001');
    const bytes = await readFile(path);
    bytes[100] ^= 1;
    await writeFile(path, bytes);
    await using server = await serveFolder(forged);
    expect((await read(server.url, signers[0].verifier.line)).stdout).toMatch(
      /^WRONG leaf 256 is not that of its tile/,
    );
  });
});

const fsck = await logFsck();
givenTool(fsck).describe('the fsck of Tessera', () => {
  /** It ends with 0 whatever it finds, and with one worker never. */
  const found = async (url: string) => {
    await writeFile(inDir('log.key'), signers.at(-1)!.verifier.line);
    const args = ['-storage_url', url, '-public_key', inDir('log.key'), '-ui=false', '-N', '8'];
    const { stdout, stderr } = await run(join(fsck.path, 'fsck'), args, {
      check: false,
      signal: AbortSignal.timeout(60_000),
    });
    return stdout + stderr;
  };

  test('reads the log from the service and from its folder', { timeout: TIMEOUT_MS }, async () => {
    for (const url of [prefix, pathToFileURL(`${log}/`).href])
      expect(await found(url)).toContain("Successfully fsck'd log with size 766");
  });

  test('finds a leaf that is altered', { timeout: TIMEOUT_MS }, async () => {
    const altered = inDir('altered');
    await cp(log, altered, { recursive: true });
    const path = join(altered, 'tile/entries/001');
    const bytes = await readFile(path);
    bytes[100] ^= 1;
    await writeFile(path, bytes);
    expect(await found(pathToFileURL(`${altered}/`).href)).not.toContain('Successfully');
  });
});
