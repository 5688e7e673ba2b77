/** Keeping what cannot be fetched again: as it came, once, on the disk before anyone parses it. */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtemp, open, readdir, readFile, rename, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { openDocumentArchive } from '../../pipelines/sources/documents/document-archive.ts';
import { faultOf } from '../support/faults.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'keep-'));
});
afterEach(() => rm(folder, { recursive: true }));

const FETCH = { source_id: 'etf_fund_daily', name: 'holdings.csv', asked: { path: '/holdings.csv' } };
const sha256Of = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');
const filesBelow = async (path: string) =>
  (await readdir(join(folder, path), { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile());

test('any bytes come back as they were, under their sha256', async () => {
  const keep = await openDocumentArchive(folder);
  await fc.assert(
    fc.asyncProperty(fc.uint8Array({ maxLength: 5000 }), async (bytes) => {
      const kept = await keep.put(bytes, FETCH);
      expect(kept).toMatchObject({ ...FETCH, sha256: sha256Of(bytes), bytes: bytes.length });
      expect(Buffer.from(bytes).equals(await keep.read(kept.sha256))).toBe(true);
    }),
    { numRuns: 20 },
  );
});

test('a link that leads out of the archive is not followed, and what it leads to is not repeated', async () => {
  const keep = await openDocumentArchive(join(folder, 'kept'));
  const secret = Buffer.from('secret-of-the-service');
  await writeFile(join(folder, 'secret'), secret);
  const { sha256 } = await keep.put(secret, FETCH);
  const places = [join('objects', sha256.slice(0, 2), sha256), join('fetches', FETCH.source_id)];
  const [object, fetches] = places.map((place) => join(folder, 'kept', place));
  const [record] = await readdir(fetches);
  await rm(object);
  await symlink(join(folder, 'secret'), object);
  const reading = await faultOf(keep.read(sha256), 'SOURCE_REFUSED');
  expect(reading.message).toContain(join(folder, 'kept'));
  await rename(join(fetches, record), join(folder, 'record'));
  const listed = async () => await Array.fromAsync(keep.fetches(FETCH.source_id));
  expect(await listed()).toEqual([]);
  await symlink(join(folder, 'secret'), join(fetches, record));
  await faultOf(listed(), 'SOURCE_REFUSED');
  await rm(join(fetches, record));
  await writeFile(join(fetches, record), secret);
  const damaged = await faultOf(listed(), 'DISK_UNUSABLE');
  expect(`${damaged.message} ${damaged.cause}`).not.toContain('secret');
});

test('the same bytes fetched twice are one object and two fetches, oldest first; a source sees its own', async () => {
  let now = 1_700_000_000_000;
  const keep = await openDocumentArchive(folder, () => now);
  const first = await keep.put(Buffer.from('a page'), FETCH);
  now += 86_400_000;
  const other = await keep.put(Buffer.from('another page'), FETCH);
  const again = await keep.put(Buffer.from('a page'), FETCH);
  await keep.put(Buffer.from('a page'), { ...FETCH, source_id: 'etf_other_daily' });
  expect(await filesBelow('objects')).toHaveLength(2);
  expect(await Array.fromAsync(keep.fetches(FETCH.source_id))).toEqual([first, other, again]);
  expect(await Array.fromAsync(keep.fetches('etf_other_daily'))).toHaveLength(1);
  expect(await Array.fromAsync(keep.fetches('etf_none_daily'))).toEqual([]);
});

test('bytes, names and new folders are synced before `put` returns', async () => {
  const keep = await openDocumentArchive(folder);
  const handle = await open(join(folder, 'any'), 'w');
  const sync = vi.spyOn(Object.getPrototypeOf(handle), 'sync');
  await handle.close();
  try {
    await keep.put(Buffer.from('a page'), FETCH);
    // Object and record with the folder each is named in, and the entries of the four new folders.
    expect(sync).toHaveBeenCalledTimes(4 + 4);
    sync.mockClear();
    await keep.put(Buffer.from('a page'), FETCH);
    expect(sync).toHaveBeenCalledTimes(3);
    sync.mockRejectedValue(new Error('the disk is gone'));
    await faultOf(keep.put(Buffer.from('a third page'), FETCH), 'DISK_UNUSABLE');
  } finally {
    sync.mockRestore();
  }
  expect(await filesBelow('partial')).toEqual([]);
});

test('a kept document that was damaged is not handed out, and is put right when it is fetched again', async () => {
  const keep = await openDocumentArchive(folder);
  const { sha256 } = await keep.put(Buffer.from('a page'), FETCH);
  await writeFile(join(folder, 'objects', sha256.slice(0, 2), sha256), 'a pagf');
  await faultOf(keep.read(sha256), 'SOURCE_CHECKSUM_MISMATCH');
  await keep.put(Buffer.from('a page'), FETCH);
  expect((await keep.read(sha256)).toString()).toBe('a page');
  await faultOf(keep.read('0'.repeat(64)), 'SOURCE_NOT_FOUND');
});

test('names that would leave the folder are refused', async () => {
  const keep = await openDocumentArchive(folder);
  await expect(keep.put(Buffer.from('x'), { ...FETCH, source_id: '../x' })).rejects.toThrow(/is not a source id/);
  await expect(keep.read('../x')).rejects.toThrow(/is not (a|an) (sha256|SHA-256)/);
});

test('a folder that cannot be used is said to be one', async () => {
  await writeFile(join(folder, 'file'), '');
  await faultOf(openDocumentArchive(join(folder, 'file', 'keep')), 'DISK_UNUSABLE');
});

test('what a killed process was writing is forgotten after a day, not sooner', async () => {
  await openDocumentArchive(folder);
  for (const name of ['old', 'new']) await writeFile(join(folder, 'partial', name), 'half a pa');
  const dayBefore = Date.now() / 1000 - 90_000;
  await utimes(join(folder, 'partial', 'old'), dayBefore, dayBefore);
  await openDocumentArchive(folder);
  expect((await filesBelow('partial')).map(({ name }) => name)).toEqual(['new']);
});

test('a process killed at any moment: what it was told is kept is there and whole, and nothing is half there', async () => {
  const module = pathToFileURL(join(import.meta.dirname, '../../pipelines/sources/documents/document-archive.ts')).href;
  const script = `
    const { openDocumentArchive } = await import(${JSON.stringify(module)});
    const keep = await openDocumentArchive(${JSON.stringify(folder)});
    for (let n = 0; ; n++) {
      const kept = await keep.put(Buffer.alloc(200_000, 'page ' + n), ${JSON.stringify(FETCH)});
      console.log(kept.sha256);
    }`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const told: string[] = [];
  for await (const line of createInterface({ input: child.stdout })) {
    told.push(line);
    if (told.length === 20) child.kill('SIGKILL');
  }
  const keep = await openDocumentArchive(folder);
  const kept = await Array.fromAsync(keep.fetches(FETCH.source_id));
  expect(kept.map(({ sha256 }) => sha256)).toEqual(expect.arrayContaining(told));
  for (const { sha256 } of kept) expect(await keep.read(sha256)).toHaveLength(200_000);
  for (const { parentPath, name } of await filesBelow('objects'))
    expect(sha256Of(await readFile(join(parentPath, name)))).toBe(name);
});
