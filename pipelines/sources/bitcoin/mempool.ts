/**
 * Snapshots of the mempool. The node cannot repeat an earlier answer, so a snapshot is synced to a file before anything
 * of it is published. Publishing reads the file, so a later process can publish a snapshot that an earlier one took.
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
import { enterObject, integerAt, JsonCursor, JsonMembers, plainTextAt, shown } from './rpc/json-cursor.ts';

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

const FILE = /^(\d{12,15})\.json\.zst$/;
const FORMAT = 1;
/** Size of an unpacked snapshot: the answer and its head. */
const MAX_SNAPSHOT_BYTES = MAX_MEMPOOL_BYTES + 1024;

export interface SnapshotFile {
  readonly takenAtMs: number;
  readonly path: string;
}

export interface MempoolSnapshot {
  readonly takenAtMs: number;
  readonly chain: string;
  readonly entries: readonly MempoolEntry[];
  readonly document: { readonly name: string; readonly sha256: string; readonly bytes: number };
}

/** The folder of a chain's snapshots. */
export const snapshotDir = (stateDir: string, chain: string): string => join(stateDir, 'mempool', chain);

/**
 * Takes a snapshot and stores it.
 * @throws TidemarkError DISK_UNUSABLE if it cannot be stored, and those of the call.
 */
export async function takeSnapshot(
  node: BitcoinNode,
  options: { readonly dir: string; readonly chain: string; readonly now: () => number },
): Promise<SnapshotFile> {
  const { dir, chain, now } = options;
  const info = record(await node.rpc.call('getmempoolinfo'), 'getmempoolinfo');
  if (!flag(info.loaded, 'loaded')) {
    throw new TidemarkError(
      'NODE_UNREACHABLE',
      `The Bitcoin node at ${node.rpc.endpoint} is still loading its mempool`,
    );
  }
  // The time just before the call. An entry may still arrive between this time and the answer.
  const takenAtMs = now();
  // Parses the entries now, while the node can still be asked again if some cannot be read.
  const { bytes } = await node.mempool();
  const head = `{"format":${FORMAT},"chain":${JSON.stringify(chain)},"taken_at_ms":${takenAtMs},"getrawmempool":`;
  const path = join(dir, `${takenAtMs}.json.zst`);
  const whole = await compress(Buffer.concat([Buffer.from(head), bytes, Buffer.from('}')]));
  try {
    await writeDurably(path, whole);
  } catch (cause) {
    throw new TidemarkError('DISK_UNUSABLE', `The mempool snapshot cannot be written to ${dir}`, { cause });
  }
  return { takenAtMs, path };
}

/** The stored snapshots, oldest first. */
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

/** @throws TidemarkError SOURCE_DOCUMENT_INVALID if the file is not a complete snapshot of ours. */
export async function readSnapshot({ path, takenAtMs }: SnapshotFile, chain: string): Promise<MempoolSnapshot> {
  const bytes = await readInFolder(dirname(path), path);
  const name = `${chain}-mempool-${takenAtMs}.json.zst`;
  try {
    const cursor = new JsonCursor(await decompress(bytes, { maxOutputLength: MAX_SNAPSHOT_BYTES }));
    const found = readDocument(cursor);
    if (found.format !== FORMAT || found.chain !== chain || found.takenAtMs !== takenAtMs || !found.entries) {
      throw new Error(`it holds chain ${found.chain} at ${found.takenAtMs}, format ${found.format}`);
    }
    const { entries } = found;
    return { takenAtMs, chain, entries, document: { name, sha256: sha256Hex(bytes), bytes: bytes.length } };
  } catch (cause) {
    throw new TidemarkError('SOURCE_DOCUMENT_INVALID', `The mempool snapshot ${path} cannot be read`, {
      details: { document: name },
      cause,
    });
  }
}

const DOCUMENT = new JsonMembers('format', 'chain', 'taken_at_ms', 'getrawmempool');

function readDocument(cursor: JsonCursor) {
  const found: { format?: number; chain?: string; takenAtMs?: number; entries?: readonly MempoolEntry[] } = {};
  enterObject(cursor, 'snapshot');
  while (cursor.member()) {
    switch (DOCUMENT.nameAt(cursor)) {
      case 'format':
        found.format = integerAt(cursor, 'format');
        break;
      case 'chain':
        plainTextAt(cursor, 'chain');
        found.chain = shown(cursor);
        break;
      case 'taken_at_ms':
        found.takenAtMs = integerAt(cursor, 'taken_at_ms');
        break;
      case 'getrawmempool':
        found.entries = readMempoolAnswer(cursor).entries;
        break;
      default:
        cursor.skip();
    }
  }
  cursor.finish();
  return found;
}

/** Yields the events in the order of their txid. */
export function* mempoolEvents({ takenAtMs, chain, entries }: MempoolSnapshot): Generator<RecordedEvent> {
  for (const { txid, feeSats, vsize, firstSeen, replaceable } of entries) {
    const offset = `${takenAtMs}:${txid}`;
    // The keys are sorted.
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
