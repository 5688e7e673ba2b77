/**
 * Snapshots of the mempool. What the node said cannot be asked for again, so a snapshot is a file on disk, synced, before
 * anything is published of it; a snapshot is published from its file, by whoever comes next if need be.
 */
import { readdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { zstdCompress, zstdDecompress } from 'node:zlib';
import { TidemarkError } from '../../../shared/errors.ts';
import { sha256Hex } from '../../../shared/frame/codec.ts';
import { writeDurably } from '../documents/document-archive.ts';
import { readInFolder } from '../documents/locations.ts';
import type { RecordedEvent } from '../record-frames.ts';
import { type BitcoinNode, MAX_MEMPOOL_BYTES } from './node.ts';
import { type MempoolEntry, readMempoolAnswer } from './node-answers.ts';
import { flag, record } from './rpc/answers.ts';
import { enterObject, integerAt, JsonCursor, JsonKeys, plainTextAt, shown } from './rpc/json-cursor.ts';

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

const FILE = /^(\d{12,15})\.json\.zst$/;
const FORMAT = 1;
/** Of one snapshot unpacked: the answer, and its head. */
const MAX_SNAPSHOT_BYTES = MAX_MEMPOOL_BYTES + 1024;

export interface SnapshotFile {
  readonly takenAtMs: number;
  readonly path: string;
}

export interface Snapshot {
  readonly takenAtMs: number;
  readonly chain: string;
  readonly entries: readonly MempoolEntry[];
  readonly document: { readonly name: string; readonly sha256: string; readonly bytes: number };
}

/** Where the snapshots of a chain are kept. */
export const snapshotDir = (stateDir: string, chain: string): string => join(stateDir, 'mempool', chain);

/**
 * Takes a snapshot and keeps it.
 * @throws TidemarkError SPOOL_UNUSABLE when it cannot be kept, and those of the call.
 */
export async function takeSnapshot(
  node: BitcoinNode,
  options: { readonly dir: string; readonly chain: string; readonly now: () => number },
): Promise<SnapshotFile> {
  const { dir, chain, now } = options;
  const info = record(await node.rpc.call('getmempoolinfo'), 'getmempoolinfo');
  if (!flag(info.loaded, 'loaded')) {
    throw new TidemarkError('NODE_UNREACHABLE', `The Bitcoin node at ${node.rpc.place} is still loading its mempool`);
  }
  // The time just before the node was asked: nothing that is in the answer came later than the answer.
  const takenAtMs = now();
  // Entries that cannot be read are found here, while the node can still be asked.
  const { bytes } = await node.mempool();
  const head = `{"format":${FORMAT},"chain":${JSON.stringify(chain)},"taken_at_ms":${takenAtMs},"getrawmempool":`;
  const path = join(dir, `${takenAtMs}.json.zst`);
  const whole = await compress(Buffer.concat([Buffer.from(head), bytes, Buffer.from('}')]));
  try {
    await writeDurably(path, whole);
  } catch (cause) {
    throw new TidemarkError('SPOOL_UNUSABLE', `The mempool snapshot cannot be kept in ${dir}`, { cause });
  }
  return { takenAtMs, path };
}

/** Snapshots there are, oldest first. */
export async function snapshotFiles(dir: string): Promise<SnapshotFile[]> {
  const names = await readdir(dir).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
  return names
    .flatMap((name) => {
      const match = FILE.exec(name);
      return match ? [{ takenAtMs: Number(match[1]), path: join(dir, name) }] : [];
    })
    .sort((a, b) => a.takenAtMs - b.takenAtMs);
}

/** @throws TidemarkError SOURCE_ROW_INVALID when the file is not one of ours, whole. */
export async function readSnapshot({ path, takenAtMs }: SnapshotFile, chain: string): Promise<Snapshot> {
  const bytes = await readInFolder(dirname(path), path);
  const name = `${chain}-mempool-${takenAtMs}.json.zst`;
  try {
    const cursor = new JsonCursor(await decompress(bytes, { maxOutputLength: MAX_SNAPSHOT_BYTES }));
    const found = readDocument(cursor);
    if (found.format !== FORMAT || found.chain !== chain || found.takenAtMs !== takenAtMs || !found.entries) {
      throw new Error(`it is of ${found.chain} at ${found.takenAtMs}, format ${found.format}`);
    }
    const { entries } = found;
    return { takenAtMs, chain, entries, document: { name, sha256: sha256Hex(bytes), bytes: bytes.length } };
  } catch (cause) {
    throw new TidemarkError('SOURCE_ROW_INVALID', `The mempool snapshot ${path} cannot be read`, {
      details: { document: name },
      cause,
    });
  }
}

const DOCUMENT = new JsonKeys(['format', 'chain', 'taken_at_ms', 'getrawmempool']);

function readDocument(cursor: JsonCursor) {
  const found: { format?: number; chain?: string; takenAtMs?: number; entries?: readonly MempoolEntry[] } = {};
  enterObject(cursor, 'snapshot');
  while (cursor.member()) {
    switch (DOCUMENT.placeOf(cursor.bytes, cursor.start, cursor.end)) {
      case 0:
        found.format = integerAt(cursor, 'format');
        break;
      case 1:
        plainTextAt(cursor, 'chain');
        found.chain = shown(cursor);
        break;
      case 2:
        found.takenAtMs = integerAt(cursor, 'taken_at_ms');
        break;
      case 3:
        found.entries = readMempoolAnswer(cursor).entries;
        break;
      default:
        cursor.skip();
    }
  }
  cursor.finish();
  return found;
}

/** In order of txid. */
export function* mempoolEvents({ takenAtMs, chain, entries }: Snapshot): Generator<RecordedEvent> {
  for (const { txid, feeSats, vsize, firstSeen, replaceable } of entries) {
    const offset = `${takenAtMs}:${txid}`;
    // Keys in their sorted order.
    const payload = Buffer.from(
      JSON.stringify({
        fee_sats: feeSats,
        first_seen_timestamp: firstSeen,
        rbf_flag: replaceable,
        snapshot_at_unix_ms: takenAtMs,
        source_chain: chain,
        txid,
        vsize,
      }),
    );
    yield {
      offset,
      payload,
      row: [takenAtMs, feeSats, vsize, firstSeen, replaceable, txid, chain, sha256Hex(payload)],
    };
  }
}
