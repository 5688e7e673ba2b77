/** The folder of an issuer's archived documents: which files belong to which day, and what is said of a folder that is not there. */
import { mkdir, rename, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { openDocumentArchive } from '../../pipelines/sources/documents/document-archive.ts';
import { localBytes } from '../../pipelines/sources/documents/locations.ts';
import { archivedDocuments } from '../../pipelines/sources/etf/captures.ts';
import { FiledBefore } from '../../pipelines/sources/etf/fetch.ts';
import { faultOf } from '../support/faults.ts';
import { temporaryDir } from '../support/stack.ts';

const folderOf = (path: string) => pathToFileURL(`${path}/`);

test('documents of a day are files of its name and files in a folder of its name', async () => {
  const folder = await temporaryDir();
  await mkdir(join(folder, '2024-01-03'));
  const files = ['2024-01-02.csv', '2024-01-02 evening.CSV', '2024-01-03/holdings.csv', '2024-01-03/notes.txt'];
  const others = ['2024-02-30.csv', '2024-01-021.csv', 'readme.csv', '2024-01-04.html'];
  for (const name of [...files, ...others]) await writeFile(join(folder, name), 'x');
  const found = await archivedDocuments(folderOf(folder), 'csv');
  expect(found.map(({ day, name }) => [day, name])).toEqual([
    ['2024-01-02', '2024-01-02.csv'],
    ['2024-01-02', '2024-01-02 evening.CSV'],
    ['2024-01-03', '2024-01-03/holdings.csv'],
  ]);
});

// A blank, a bracket and a hyphen sort before the dot of an extension.
test("the first document of a day came after its later ones, so that its older facts were the day's", async () => {
  const folder = await temporaryDir();
  const files = ['2026-05-06.csv', '2026-05-06 (1).csv', '2026-05-06-2.csv', '2026-05-06_3.csv', '2026-05-07.csv'];
  for (const name of files) await writeFile(join(folder, name), 'x');
  expect((await archivedDocuments(folderOf(folder), 'csv')).map(({ name }) => name)).toEqual(files);
});

test("the tenth copy of a document came after its first, so that the facts of the ninth were the day's", async () => {
  const folder = await temporaryDir();
  const files = ['2026-05-06.csv', ...Array.from({ length: 11 }, (_, index) => `2026-05-06 (${index + 1}).csv`)];
  for (const name of files) await writeFile(join(folder, name), 'x');
  expect((await archivedDocuments(folderOf(folder), 'csv')).map(({ name }) => name)).toEqual(files);
});

// The documents behind the link were skipped without a word.
test('a day whose folder is a symbolic link had no documents', async () => {
  const folder = await temporaryDir();
  const [kept, outside] = [join(folder, 'kept'), await temporaryDir()];
  await mkdir(kept);
  for (const path of [kept, outside]) await writeFile(join(path, 'holdings.csv'), 'x');
  await symlink(kept, join(folder, '2024-01-03'));
  await symlink(outside, join(folder, '2024-01-04'));
  await symlink(join(kept, 'holdings.csv'), join(folder, '2024-01-05.csv'));
  await symlink(join(folder, 'missing'), join(folder, '2024-01-08'));
  const found = await archivedDocuments(folderOf(folder), 'csv');
  expect(found.map(({ name }) => name)).toEqual([
    '2024-01-03/holdings.csv',
    '2024-01-04/holdings.csv',
    '2024-01-05.csv',
  ]);
  const read = ({ url, root }: (typeof found)[number]) =>
    localBytes({ url, root, maxBytes: 10, limitName: 'limit', signal: new AbortController().signal });
  expect(`${await read(found[0])}`).toBe('x');
  await faultOf(read(found[1]), 'SOURCE_REFUSED');
});

test('a folder that does not exist, and a file in its place, are not found', async () => {
  const folder = await temporaryDir();
  await writeFile(join(folder, 'file'), '');
  for (const name of ['missing', 'file']) {
    const path = join(folder, name);
    const fault = await faultOf(archivedDocuments(folderOf(path), 'csv'), 'SOURCE_NOT_FOUND');
    expect(fault.message).toContain(path);
  }
});

test('a folder that cannot be read is unreachable', async () => {
  const path = join(await temporaryDir(), 'loop');
  await symlink(path, path);
  await faultOf(archivedDocuments(folderOf(path), 'csv'), 'SOURCE_UNREACHABLE');
});

// Until the next start of `follow`, every document of the fund failed with the fault of that moment.
test('records of a fund that could not be read once were never read again', async () => {
  const directory = await temporaryDir();
  const archive = await openDocumentArchive(directory);
  const fetch = { source_id: 'fund', name: '2024-01-02.csv', asked: { filed_day: '2024-01-02' } };
  await archive.put(Buffer.from('first'), fetch);
  const [records, away] = [join(directory, 'fetches', 'fund'), join(directory, 'away')];
  await rename(records, away);
  await writeFile(records, '');
  const filed = new FiledBefore(archive);
  await expect(filed.put(Buffer.from('first'), fetch)).rejects.toThrow('ENOTDIR');
  await rename(records, join(directory, 'obstacle'));
  await rename(away, records);
  for (const document of ['first', 'second']) await filed.put(Buffer.from(document), fetch);
  expect(await Array.fromAsync(archive.fetches('fund'))).toHaveLength(2);
});
