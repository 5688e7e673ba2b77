/** The bounds of a file of rows, by which engines leave files out. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { expect, test } from 'vitest';
import { statsOf } from '../../serving/lake/delta-write.ts';

test('bounds of texts are in the order of their bytes, as engines compare them, also over groups of rows', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'tidemark-stats-'));
  const path = join(folder, 'rows.parquet');
  const data = ['\u{1F30A}', '\uFFFC', 'a'];
  const columnData = [{ name: 'text', type: 'STRING' as const, data }];
  writeFileSync(path, Buffer.from(parquetWriteBuffer({ columnData, rowGroupSize: 1 })));
  expect(JSON.parse(await statsOf(path))).toEqual({
    numRecords: 3,
    minValues: { text: 'a' },
    maxValues: { text: '\u{1F30A}' },
    nullCount: { text: 0 },
  });
  rmSync(folder, { recursive: true });
});
