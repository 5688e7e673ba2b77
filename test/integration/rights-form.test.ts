/** `rights init`: what it writes is a valid matrix, is no licence until it is filled in, and overwrites nothing. */
import { chown, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { codeOf } from '../../shared/errors.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { writeOwnMatrix } from '../../shared/rights/form.ts';
import { meaningOf, RightsStore, SAMPLE_MATRIX_PATH } from '../../shared/rights/store.ts';
import { startCommand } from '../support/command.ts';
import { given } from '../support/given.ts';
import { OWN_MATRIX } from '../support/serving.ts';
import { testLogger } from '../support/stack.ts';

const isRoot = process.getuid?.() === 0;

let dir: string;
let path: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'tidemark-rights-'));
  path = join(dir, 'rights', 'matrix.json');
});
afterEach(() => rm(dir, { recursive: true }));

const storeOf = (matrix = path) => new RightsStore(matrix, { byokRole: undefined, log: testLogger() });
const sourcesOf = (store: RightsStore) => {
  const current = store.current();
  if ('faults' in current) throw new Error(current.faults.join());
  return current.matrix.sources;
};
const codeOfFault = (work: Promise<unknown>) => work.then(() => undefined, codeOf);

test('a matrix as it is written is valid, hosts every source, and its forms cover synthetic rows only', async () => {
  const { forms, ingestOnly } = await writeOwnMatrix(path, []);
  const store = storeOf();
  expect(store.faults()).toEqual([]);
  const sources = sourcesOf(store);
  expect(ingestOnly).toEqual([]);
  expect(sources.map(({ source }) => source).sort()).toEqual(
    sourcesOf(storeOf(SAMPLE_MATRIX_PATH))
      .map(({ source }) => source)
      .sort(),
  );
  expect(forms.map(({ source }) => source)).toEqual(sources.map(({ source }) => source));
  for (const rights of sources) {
    expect(rights.state).toBe('Hosted Allowed');
    expect(store.signoff(rights)).toEqual({ syntheticOnly: expect.stringContaining('not filled in') });
  }
});

test('a form counts from the moment its last place is filled in', async () => {
  const { forms } = await writeOwnMatrix(path, ['exchange_a']);
  const [form] = forms;
  const [rights] = sourcesOf(storeOf());
  const states: boolean[] = [];
  for (let text = await readFile(form.path, 'utf8'); ; text = text.replace(/\[UNSIGNED:[^\]]*\]/, 'an answer')) {
    await writeFile(form.path, text);
    states.push(storeOf().signoff(rights).syntheticOnly === undefined);
    if (!text.includes('[UNSIGNED:')) break;
  }
  expect(states).toEqual([false, false, false, false, true]);
});

test('places that were emptied are not filled in; nor are those of a form in two bytes a letter', async () => {
  const { forms } = await writeOwnMatrix(path, ['exchange_a']);
  const text = await readFile(forms[0].path, 'utf8');
  const unsigned = { syntheticOnly: expect.any(String) };
  expect(meaningOf(Buffer.from(text.replaceAll(/\[UNSIGNED:[^\]]*\]/g, '')))).toEqual(unsigned);
  expect(meaningOf(Buffer.from(text.replaceAll(/\[UNSIGNED:[^\]]*\]/g, '').replaceAll('\n', '\r\n')))).toEqual(
    unsigned,
  );
  expect(meaningOf(Buffer.from(text, 'utf16le'))).toEqual(unsigned);
  expect(meaningOf(Buffer.from(text.replaceAll(/\[UNSIGNED:[^\]]*\]/g, 'yes')))).toEqual({});
});

test('the artifact of the sample covers synthetic rows only', async () => {
  const store = storeOf(SAMPLE_MATRIX_PATH);
  for (const rights of sourcesOf(store)) {
    expect(store.signoff(rights), rights.source).toEqual({ syntheticOnly: expect.stringContaining('sample') });
  }
  const bytes = await readFile(join(dirname(SAMPLE_MATRIX_PATH), 'sample-data-only.md'));
  expect(meaningOf(Buffer.from(bytes.toString(), 'utf16le'))).toEqual({ syntheticOnly: expect.any(String) });
});

test('the matrices of the sample and of tests declare every dataset with all its sources', () => {
  for (const matrix of [SAMPLE_MATRIX_PATH, OWN_MATRIX]) {
    const declared = sourcesOf(storeOf(matrix)).flatMap(({ source, datasets }) =>
      datasets.map((key) => `${source} ${key}`),
    );
    const there = [...DATASETS.values()].flatMap(({ key, sources }) => sources.map((source) => `${source} ${key}`));
    expect(declared.sort(), matrix).toEqual(there.sort());
  }
});

test('sources that are not named are Ingest Only; one that is none is refused and nothing is written', async () => {
  expect(await codeOfFault(writeOwnMatrix(path, ['exchange_a', 'exchange_z']))).toBe('USAGE');
  expect(await readdir(dir)).toEqual([]);
  const { ingestOnly, forms } = await writeOwnMatrix(path, ['macro', 'exchange_a']);
  expect(forms.map(({ source }) => source)).toEqual(['exchange_a', 'macro']);
  const states = new Map(sourcesOf(storeOf()).map(({ source, state }) => [source, state]));
  expect([states.get('exchange_a'), states.get('macro')]).toEqual(['Hosted Allowed', 'Hosted Allowed']);
  for (const source of ingestOnly) expect(states.get(source)).toBe('Ingest Only');
  expect(ingestOnly.length + forms.length).toBe(states.size);
});

describe('what is there', () => {
  test('a matrix is not overwritten', async () => {
    await mkdir(dirname(path));
    await writeFile(path, 'mine');
    expect(await codeOfFault(writeOwnMatrix(path, []))).toBe('USAGE');
    expect(await readFile(path, 'utf8')).toBe('mine');
    expect(await readdir(join(dir, 'rights', 'signoff'))).toEqual([]);
  });

  test('nor is a form that was filled in, and nothing is written beside it', async () => {
    const form = join(dir, 'rights', 'signoff', 'macro.md');
    await mkdir(dirname(form), { recursive: true });
    await writeFile(form, 'signed');
    expect(await codeOfFault(writeOwnMatrix(path, []))).toBe('USAGE');
    expect(await readdir(dirname(form))).toEqual(['macro.md']);
    expect(await readdir(dirname(path))).toEqual(['signoff']);
    expect(await readFile(form, 'utf8')).toBe('signed');
  });

  test('a place that cannot be written is named', async () => {
    await writeFile(join(dir, 'file'), '');
    expect(await codeOfFault(writeOwnMatrix(join(dir, 'file', 'matrix.json'), []))).toBe('DISK_UNUSABLE');
  });

  given(!isRoot, 'root may write everywhere: run the tests as another user').test(
    'a folder that refuses this user is named with its owner and mode',
    async () => {
      await mkdir(dirname(path), { mode: 0o555 });
      const uid = process.getuid?.();
      await expect(writeOwnMatrix(path, [])).rejects.toMatchObject({
        code: 'DISK_UNUSABLE',
        message: expect.stringContaining(` as user ${uid}; ${dirname(path)} belongs to user ${uid} and has mode 555`),
      });
    },
  );
});

// The service in a container is another user than the owner of the folder, who fills the forms in.
describe('what is written', () => {
  test('may be read by whoever may enter the folder', async () => {
    const { matrix, forms } = await writeOwnMatrix(path, ['macro']);
    for (const file of [matrix, forms[0].path]) expect((await stat(file)).mode & 0o004, file).toBe(0o004);
  });

  given(isRoot, 'only root can give a folder to another user: run the tests as root').test(
    'by root in the folder of another user belongs to that user',
    async () => {
      const [uid, gid] = [4_321, 8_765];
      await mkdir(dirname(path));
      await chown(dirname(path), uid, gid);
      const { matrix, forms } = await writeOwnMatrix(path, ['macro']);
      for (const file of [matrix, forms[0].path, dirname(forms[0].path)])
        expect(await stat(file), file).toMatchObject({ uid, gid });
    },
  );
});

test('the command needs no server, and says what it wrote', async () => {
  const run = (args: readonly string[], more = {}) =>
    startCommand(args, { SVC_STATE_DIR: join(dir, 'state'), ...more }).done;
  const { exit, json, stderr } = await run(['rights', 'init', 'exchange_a']);
  expect(exit, stderr).toBe(0);
  const matrix = join(dir, 'state', 'rights', 'matrix.json');
  expect(json).toEqual({
    command: 'rights',
    action: 'init',
    ok: true,
    matrix,
    forms: [{ source: 'exchange_a', path: join(dirname(matrix), 'signoff', 'exchange_a.md') }],
    ingest_only: expect.arrayContaining(['exchange_b', 'macro', 'bitcoin_core']),
  });
  expect(await readdir(join(dir, 'state'))).toEqual(['rights']);
  const again = await run(['rights', 'init']);
  expect([again.exit, again.json.error.code]).toEqual([2, 'USAGE']);
  const elsewhere = await run(['rights', 'init', '--source-rights-matrix-path', path]);
  expect([elsewhere.exit, elsewhere.json.matrix]).toEqual([0, path]);
  expect((await run(['rights', 'grant'])).exit).toBe(2);
});
