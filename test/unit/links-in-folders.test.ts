/** Folders that are written to, and links in them that somebody else made: nothing is written, and nothing removed, through them. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { LakeFolder } from '../../serving/lake/folder.ts';
import { LakeTable } from '../../serving/lake/table.ts';
import { writeTile } from '../../shared/proof-log/folder.ts';
import { sha256Of } from '../support/lake-folder.ts';
import {
  contents,
  copy,
  dir,
  FIRST,
  faultOf,
  isSame,
  keep,
  rowsOf,
  run,
  TRADES,
  useLake,
  write,
} from '../support/mirrored-lake.ts';

/** A folder that links lead to, with a file of somebody else. */
function elsewhere(): string {
  const folder = join(dir, 'elsewhere');
  mkdirSync(folder);
  writeFileSync(join(folder, 'theirs'), 'theirs');
  return folder;
}
const isUntouched = (folder: string) => {
  expect(readdirSync(folder)).toEqual(['theirs']);
  expect(readFileSync(join(folder, 'theirs'), 'utf8')).toBe('theirs');
};

describe('a mirror', () => {
  useLake();

  test.each([['_partial'], [TRADES], [FIRST]])('with a link instead of the folder %s: refused', async (link) => {
    await run();
    const there = elsewhere();
    rmSync(join(copy, link), { recursive: true, force: true });
    symlinkSync(there, join(copy, link));
    contents.delete(FIRST);
    contents.set(FIRST, Buffer.from('other rows'));
    await write();
    expect(await faultOf()).toEqual(['folder', expect.stringContaining(`${join(copy, link)} is a symbolic link`)]);
    isUntouched(there);
    rmSync(join(copy, link));
    await run();
    isSame();
  });

  test('with a link instead of a folder that the source withdraws: nothing is removed through it', async () => {
    await run();
    const there = elsewhere();
    rmSync(join(copy, FIRST), { recursive: true });
    const name = basename(rowsOf(FIRST));
    symlinkSync(there, join(copy, FIRST));
    writeFileSync(join(there, name), '');
    contents.delete(FIRST);
    await write();
    expect(await faultOf()).toEqual(['folder', expect.stringContaining('symbolic link')]);
    expect(existsSync(join(there, name))).toBe(true);
  });

  test('with links instead of files: they are replaced, and what they lead to stays', async () => {
    await run();
    const there = elsewhere();
    for (const path of [rowsOf(FIRST), '_manifest.json', '_mirror.json']) {
      const victim = join(there, 'theirs');
      if (path !== '_mirror.json') {
        rmSync(join(copy, path));
        symlinkSync(victim, join(copy, path));
      }
    }
    const rows = contents.get(FIRST)!;
    await keep(rowsOf(FIRST), rows, 1000);
    const name = `${sha256Of(rows)}.${sha256Of(rowsOf(FIRST)).slice(0, 8)}`;
    symlinkSync(join(there, 'theirs'), join(copy, '_partial', `${name}.etag`));
    symlinkSync(join(there, 'theirs'), join(copy, '_partial', `lock.${process.pid}`));
    await run();
    isSame();
    isUntouched(there);
  });
});

describe('other folders', () => {
  useLake();

  test('a lake is not written through links', async () => {
    const there = elsewhere();
    const location = mkdtempSync(join(tmpdir(), 'linked-lake-'));
    const folder = await LakeFolder.open(location);
    symlinkSync(there, join(location, '_partial'));
    await expect(folder.stage('x')).rejects.toThrow('is a symbolic link');
    rmSync(join(location, '_partial'));
    const table = await LakeTable.open(`${TRADES}/native`, {
      location,
      signer: async () => undefined,
      now: Date.now,
      keepMs: 1,
    });
    const facts = { name: basename(rowsOf(FIRST)), folder: '.', date: '2024-01-01', rows: 1, bytes: 1 };
    const file = { ...facts, sha256: 'a', synthetic: false, state: 'x' };
    for (const link of ['_proofs', TRADES]) {
      const staged = join(await folder.stage('x'), 'rows');
      writeFileSync(staged, '');
      symlinkSync(there, join(location, link));
      await expect(table.stage(file, staged, Buffer.from('{}'))).rejects.toThrow('is a symbolic link');
      rmSync(join(location, link));
    }
    symlinkSync(join(there, 'theirs'), join(location, '_manifest.json'));
    await folder.writeRoot(Buffer.from('{}'));
    isUntouched(there);
    rmSync(location, { recursive: true });
  });

  test('a copy of the proof log is not written through links', async () => {
    const there = elsewhere();
    mkdirSync(copy);
    symlinkSync(there, join(copy, 'tile'));
    await expect(writeTile(copy, { level: 0, index: 0, width: 1 }, Buffer.alloc(32))).rejects.toThrow('symbolic link');
    isUntouched(there);
  });
});
