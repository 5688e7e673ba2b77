import { gzipSync, zstdCompressSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { checkExport } from '../../client/check/index.ts';
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
    faults: [expect.stringMatching(`^${DAY}: the rows have the sha256`)],
  });
});
