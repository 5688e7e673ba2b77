/**
 * What a process keeps for long has memory of its own. A small Buffer of Node is a part of 64 KiB, which it keeps as a whole: 879
 * messages of a few hundred bytes kept 55 MiB.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, test } from 'vitest';
import { LAYOUTS } from '../../client/check/layouts.ts';
import { changeOf } from '../../serving/changes/change-feed.ts';
import type { Cell } from '../../shared/proof-log/cells.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { GrowingLog } from '../../shared/proof-log/growing-log.ts';
import { RowDigests } from '../../shared/proof-log/rows.ts';
import { readEntries } from '../../shared/proof-log/tiles.ts';

setFlagsFromString('--expose-gc');
const collect: () => void = runInNewContext('gc');

/** Bytes outside the heap that are still referred to. The second collection waits for what the first one frees. */
function arrayBuffers(): number {
  collect();
  collect();
  return process.memoryUsage().arrayBuffers;
}

/** A Buffer of Node's pool, as a driver or `Buffer.from` gives it. */
function pooled(content: string): Buffer {
  const bytes = Buffer.from(content);
  expect(bytes.buffer.byteLength).toBe(Buffer.poolSize);
  return bytes;
}

test('a change, which the feed keeps for its listeners', () => {
  const body = pooled('{"v":2,"dataset":"exchange_a_spot_trades","reason":"größer"}');
  const { event } = changeOf({ leaf_index: '41', dataset_id: 1, body, salt: null });
  expect(event.buffer.byteLength).toBe(event.length);
  expect(String(event)).toMatch(/^id: 42\ndata: \{.*"größer".*\}\n\n$/);
});

test('leaves and their hashes, which the proof log keeps until their tile is complete', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tidemark-kept-'));
  try {
    const log = await GrowingLog.load(folder, 0);
    const before = arrayBuffers();
    for (let leaf = 0; leaf < 100; leaf++) {
      const read = pooled(`leaf ${leaf}`);
      log.add(read);
      read.fill(0);
      // What else the process does meanwhile.
      for (let used = 0; used < Buffer.poolSize; used += 16_384) Buffer.allocUnsafe(16_384);
    }
    expect(arrayBuffers() - before).toBeLessThan(20 * Buffer.poolSize);
    await log.write();
    const kept = await readEntries(folderSource(folder), 0, 100);
    expect(Buffer.from(kept[99]).toString()).toBe('leaf 99');
  } finally {
    await rm(folder, { recursive: true });
  }
});

test('a check kept the rows of all blocks of an export, so that a month of transactions did not fit into memory', () => {
  const layout = LAYOUTS.bitcoin_block_transactions;
  const [blocks, each] = [50, 20];
  const keys = Array.from({ length: blocks }, (_, height) => String(height));
  const expected = keys.map((partition) => ({ partition, document_sha256: null, rows: each }));
  const digests = new RowDigests(layout, expected);
  const before = arrayBuffers();
  const cellsOf: Readonly<Record<string, Cell>> = { block_timestamp: 0, coinbase: 0 };
  const long = 'ab'.repeat(10_000);
  // Out of order within their block.
  for (const key of keys) {
    for (let index = each - 1; index >= 0; index--) {
      const row: Readonly<Record<string, Cell>> = { ...cellsOf, block_height: key, transaction_index: index };
      digests.add(
        layout.columns.map(({ fields }) => fields.map((name) => row[name] ?? long)),
        [key],
        [],
      );
    }
  }
  // All rows have 160 MB.
  expect(arrayBuffers() - before).toBeLessThan(16_000_000);
  const found = digests.digests();
  expect(found.map(({ partition, rows }) => [partition, rows])).toEqual(keys.map((key) => [key, each]));
  expect(new Set(found.map(({ sha256 }) => sha256)).size).toBe(blocks);
});
