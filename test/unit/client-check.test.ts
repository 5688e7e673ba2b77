import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { checkExport } from '../../client/check/index.ts';
import { WRONG_SALT } from '../../shared/proof-log/leaf.ts';
import { runCommand } from '../support/command.ts';
import { csvOf, DAY, LOG_KEY, manifestOf } from '../support/signed-export.ts';

test.each<[string, (text: Buffer) => Buffer]>([
  ['rows.csv', (text) => text],
  ['rows.csv.gz', (text) => gzipSync(text)],
  ['rows.csv.zst', (text) => zstdCompressSync(text)],
])('%s as the service sends it was wrong in each line, and its text had another sha256', async (name, pack) => {
  const csv = csvOf(1000);
  const file = { name, bytes: pack(csv) };
  const right = await checkExport({ manifest: manifestOf(csv, file), csv: file.bytes, key: LOG_KEY });
  expect([right.ok, right.faults]).toEqual([true, []]);
  expect(right.checked).toContain(
    'every row of 1 whole partition hashed again from the files and equal to its leaf: 1,000 rows',
  );
  const altered = { name, bytes: pack(Buffer.from(csv.toString().replace('40000.5', '40000.6'))) };
  // With the manifest of the right file, and with one of its own.
  expect(await checkExport({ manifest: manifestOf(csv, file), csv: altered.bytes, key: LOG_KEY })).toMatchObject({
    faults: [expect.stringMatching(/^the file has the sha256/)],
  });
  expect(await checkExport({ manifest: manifestOf(csv, altered), csv: altered.bytes, key: LOG_KEY })).toMatchObject({
    faults: [expect.stringMatching(`^${DAY}: rows_sha256`)],
  });
});

describe('rows in a second frame of zstd, which other programs unpack, were not seen', () => {
  const csv = csvOf(1000);
  const more = Buffer.from('1001,1704067201000,1,1,1,1,0\n');
  const file = { name: 'rows.csv.zst', bytes: Buffer.concat([csv, more].map((text) => zstdCompressSync(text))) };
  // Whoever has the key signs a manifest of that file.
  const manifest = manifestOf(csv, file);

  test('by the client', async () => {
    const found = await checkExport({ manifest, csv: file.bytes, key: LOG_KEY });
    expect(found).toMatchObject({ ok: false, faults: ['rows: the packed file goes on after its end'] });
  });

  test('by the command', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'tidemark-frames-'));
    try {
      await writeFile(join(dir, 'manifest.json'), manifest);
      await writeFile(join(dir, file.name), file.bytes);
      const { exit, json } = await runCommand(['check', dir, '--key', LOG_KEY], {});
      expect([exit, json?.faults]).toEqual([1, [expect.stringMatching(/^rows: /)]]);
    } finally {
      await rm(dir, { recursive: true });
    }
  });
});

test('rows of the sample passed for real ones where the manifest, and not the leaf, said so', async () => {
  const csv = csvOf(10);
  const manifest = manifestOf(csv, { name: 'rows.csv', bytes: csv }, { isSample: true });
  expect((await checkExport({ manifest, csv, key: LOG_KEY })).faults).toEqual([
    `exchange_a_spot_trades ${DAY}: synthetic is false, and true in the leaf`,
  ]);
});

test.each([
  [undefined, []],
  [
    null,
    [
      'the answer has no salt, without which nobody can tell what the leaf commits to: services give it to those who may read the rows',
    ],
  ],
  ['ab', ['the salt is not 64 hexadecimal digits']],
  ['ab'.repeat(32), [WRONG_SALT]],
])('an export whose leaf has the salt %s', async (salt, faults) => {
  const csv = csvOf(10);
  const manifest = manifestOf(csv, { name: 'rows.csv', bytes: csv }, { salt });
  const found = await checkExport({ manifest, csv, key: LOG_KEY });
  expect(found.faults).toEqual(faults.map((fault) => `exchange_a_spot_trades ${DAY}: ${fault}`));
});
