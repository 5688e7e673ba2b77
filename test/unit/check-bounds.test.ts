/** Files that say of themselves what no manifest allows: a check ends before it takes memory or time for that. */
import { truncateSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { parquetMetadata } from 'hyparquet';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { feedParquet } from '../../pipelines/cli/parquet-feed.ts';
import { Retryable, requestDocument } from '../../pipelines/sources/documents/http.ts';
import { RowDigests } from '../../shared/proof-log/rows.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { rowLayoutOf } from '../../shared/registry/proof-rows.ts';
import { runCommand } from '../support/command.ts';
import { csvOf, LOG_KEY, manifestOf } from '../support/signed-export.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'tidemark-bounds-'));
});
afterEach(() => rm(dir, { recursive: true }));

const layout = rowLayoutOf(datasetOf('exchange_a_spot_trades'));
const FIELDS = ['trade_id', 'timestamp', 'price', 'quantity', 'quote_quantity', 'is_buyer_maker', 'is_best_match'];

describe('a Parquet file', () => {
  const fed = async (bytes: Uint8Array, maxRows?: number) => {
    const path = join(dir, 'rows.parquet');
    writeFileSync(path, bytes);
    const digests = new RowDigests(layout, [{ partition: '2024-01-01', document_sha256: null }]);
    return await feedParquet(path, { layout, digests }, FIELDS, maxRows);
  };
  const written = () =>
    Buffer.from(
      parquetWriteBuffer({ columnData: FIELDS.map((name) => ({ name, data: [1n], type: 'INT64' as const })) }),
    );
  /** The file with another footer. */
  const withFooter = (footer: Buffer) => {
    const end = Buffer.alloc(8);
    end.writeUInt32LE(footer.length);
    end.write('PAR1', 4);
    return Buffer.concat([Buffer.from('PAR1'), footer, end]);
  };
  const varint = (value: number): number[] =>
    value < 128 ? [value] : [(value % 128) | 128, ...varint(Math.floor(value / 128))];
  /** A footer of one row group, both of which say so many rows. */
  const claiming = (rows: number, ofGroup = rows) => {
    const element = (name: string, more: number[]) => [...more, name.length, ...Buffer.from(name), 0];
    const root = element('root', [0x48]).slice(0, -1);
    // Fields 1 version, 2 schema (a root with `num_children`), 3 num_rows, 4 row_groups without columns.
    return withFooter(
      Buffer.from([
        ...[0x15, 2, 0x19, 0x1c, ...root, 0x15, 0, 0],
        ...[0x16, ...varint(rows * 2), 0x19, 0x1c, 0x19, 0x0c, 0x16, 0, 0x16, ...varint(ofGroup * 2), 0, 0],
      ]),
    );
  };

  test('whose footer says more rows than the manifest', async () => {
    await expect(fed(claiming(2_000_000_000), 1000)).rejects.toThrow(
      'the footer says 2000000000 rows, and the manifest 1000',
    );
    await expect(fed(written(), 0)).rejects.toThrow('the footer says 1 rows, and the manifest 0');
  });

  test('whose row group says more rows than are read at once, or others than the footer', async () => {
    await expect(fed(claiming(2_000_000_000))).rejects.toThrow('a row group says 2000000000 rows, and at most 4194304');
    await expect(fed(claiming(5, 6))).rejects.toThrow('the footer says 5 rows, and 6 in its row groups');
  });

  test('whose footer says to be longer than the file, or has lists that are', async () => {
    const long = written();
    long.writeUInt32LE(0xffffffff, long.length - 8);
    await expect(fed(long)).rejects.toThrow('the footer says that it has 4294967295 bytes');
    // Lists of lists, each of 32 million elements: the reader took 256 MB for each level.
    const nested = Buffer.from(Array.from({ length: 40 }, () => [0xf9, ...varint(32 * 1024 * 1024)]).flat());
    await expect(fed(withFooter(Buffer.concat([Buffer.from([0x19]), nested])))).rejects.toThrow(
      'a list of 33554432 elements',
    );
    await expect(fed(withFooter(Buffer.alloc(200, 0x1c)))).rejects.toThrow('more than 64 levels');
  });

  test('whose pages say more values than their row group has rows', async () => {
    const bytes = written();
    const { row_groups: groups } = parquetMetadata(new Uint8Array(bytes).buffer);
    // The page has field 8, the header of a data page of version 2, with its field 1, the count 1; 63 is the largest number in a byte.
    const start = Number(groups[0].columns[0].meta_data!.data_page_offset);
    const at = bytes.indexOf(Buffer.from([0x5c, 0x15, 2]), start);
    expect(at).toBeGreaterThan(start);
    bytes[at + 2] = 126;
    await expect(fed(bytes)).rejects.toThrow('a page says that it has 63 values, and its row group 1 rows');
  });
});

describe('the command', () => {
  const check = (manifest: string, ...files: [string, Buffer][]) => {
    writeFileSync(join(dir, 'manifest.json'), manifest);
    for (const [name, bytes] of files) writeFileSync(join(dir, name), bytes);
    return runCommand(['check', dir, '--key', LOG_KEY], {});
  };

  test('reads no file that is larger than its manifest says, and none twice', async () => {
    const csv = csvOf(10);
    const manifest = manifestOf(csv, { name: 'rows.csv', bytes: csv });
    writeFileSync(join(dir, 'rows.csv'), csv);
    // 8 TB on the disk of nobody: reading them would take hours.
    truncateSync(join(dir, 'rows.csv'), 8e12);
    const { json } = await check(manifest);
    expect(json?.faults).toContainEqual(`rows.csv has 8000000000000 bytes, and ${csv.length} in the manifest`);
    const twice = JSON.parse(manifest);
    twice.files.push(twice.files[0]);
    truncateSync(join(dir, 'rows.csv'), csv.length);
    const { json: refused } = await check(JSON.stringify(twice));
    expect(refused?.error.message).toContain('twice');
  });

  test('reads no manifest that is larger than any, and stops at the rows that the manifest says', async () => {
    const csv = csvOf(10);
    const packed = gzipSync(
      Buffer.concat([csv, Buffer.alloc(15_000_000, csv.subarray(csv.lastIndexOf('\n', csv.length - 2) + 1))]),
    );
    const { json } = await check(manifestOf(csv, { name: 'rows.csv.gz', bytes: packed }), ['rows.csv.gz', packed]);
    expect(json?.faults).toEqual(['rows: the files hold more rows than the manifest says']);
    truncateSync(join(dir, 'manifest.json'), 8e12);
    const { json: refused } = await runCommand(['check', dir, '--key', LOG_KEY], {});
    expect(refused?.error.message).toContain('has 8000000000000 bytes, and at most 67108864 are read');
  });
});

test('a vendor that drips, never silent and above the slowest rate, ends', async () => {
  const server = createServer((_, response) => {
    const timer = setInterval(() => response.write(Buffer.alloc(8)), 2);
    response.on('close', () => clearInterval(timer));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const url = new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
    const limits = { timeoutMs: 30_000, minBytesPerSecond: 0, maxBytes: 20_000, limitName: 'test', graceMs: 60 };
    // 4,000 bytes a second: faster than the slowest rate of a silence, and slower than the mean.
    const fetched = requestDocument({ url, ...limits }, async ({ body }) => {
      for await (const _ of body);
    });
    const fault = await fetched.catch((error: unknown) => error);
    expect(fault).toBeInstanceOf(Retryable);
    expect((fault as Retryable).fault).toMatchObject({ code: 'SOURCE_UNREACHABLE', details: { timed_out: true } });
  } finally {
    server.closeAllConnections();
    server.close();
  }
});
