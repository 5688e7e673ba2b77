/** One look at a log that is watched: its key, its checkpoint, whether it continues the last one, and its leaves. */

import { join } from 'node:path';
import { CheckReport, checkConsistency } from './check.ts';
import { CHECKPOINT_FILE, folderSource, KEY_FILE, LinkInFolder, ROTATIONS_FILE, writeDurably } from './folder.ts';
import { GrowingLog } from './growing-log.ts';
import {
  equalHashes,
  GrowingTree,
  HASH_BYTES,
  type Hash,
  inclusionProof,
  leafHash,
  verifyInclusion,
} from './merkle.ts';
import {
  type Checkpoint,
  type LogKey,
  NoteFault,
  openCheckpoint,
  parseCheckpoint,
  parseVerifier,
  type SignedCheckpoint,
} from './note.ts';
import { RotationLeaves } from './rotation-leaves.ts';
import { parseRotations, trustedKeys } from './rotations.ts';
import { hashesOf, LogUnreachable, readEntries, TILE_WIDTH, TileFault, type TileSource, textOf } from './tiles.ts';

/** What a watcher remembers between two looks. */
export interface Watched {
  /** Line of the key that it trusts. */
  readonly key: string;
  /** Line of the key that it trusted at first; rotations lead from it to `key`. */
  readonly firstKey: string;
  /** The rotations that it followed, as signed notes. */
  readonly rotations?: string;
  /** The last checkpoint that it accepted, as a signed note. */
  readonly checkpoint: string;
  /** Hashes of the last leaves, in base64: they show whether a log that shrank is one that was restored. */
  readonly tail?: string;
}

export interface Look {
  readonly report: CheckReport;
  /** What to remember; undefined where something is wrong. */
  readonly watched: Watched | undefined;
  readonly head: SignedCheckpoint | undefined;
}

/** Leaves that a look reads at most: a log may say to have any number. */
export const MAX_LEAVES_A_LOOK = 1_000_000;
/** Leaves whose hashes a watcher remembers. */
const MAX_TAIL = 1024;

export interface LookOptions {
  readonly random?: () => number;
  readonly maxLeaves?: number;
  /** A checkpoint that was signed longer ago is a fault. */
  readonly maxAgeMs?: number;
  readonly now?: () => number;
}

/** @throws LogUnreachable */
export async function lookAt(
  source: TileSource,
  before: Partial<Watched>,
  { random = Math.random, maxLeaves = MAX_LEAVES_A_LOOK, maxAgeMs, now = Date.now }: LookOptions = {},
): Promise<Look> {
  const report = new CheckReport();
  const line = await textOf(source, KEY_FILE);
  const note = await textOf(source, CHECKPOINT_FILE);
  if (line === undefined || note === undefined) throw new LogUnreachable('the log has no checkpoint yet');
  const rotations = [
    ...parseRotations(before.rotations ?? ''),
    ...parseRotations((await textOf(source, ROTATIONS_FILE)) ?? ''),
  ];
  const trusted = before.firstKey ?? before.key;
  const keys = report.attempt(`the key of a tree of ${note.split('\n', 2)[1]} leaves`, () => {
    const named = parseVerifier(line);
    return trustedKeys(trusted === undefined ? named : parseVerifier(trusted), named, rotations);
  });
  const head = keys && report.attempt('checkpoint', () => openCheckpoint(note, keys));
  if (!keys || !head) return { report, watched: undefined, head };
  checkAge(report, head, { maxAgeMs, now: now() });
  const { checkpoint: last } = before;
  const old = last === undefined ? undefined : report.attempt('remembered', () => openCheckpoint(last, keys));
  if (!report.ok) return { report, watched: undefined, head };
  const more = head.size - (old?.size ?? 0);
  if (more > maxLeaves) {
    report.faults.push(
      `the log says ${more} leaves more than at the last look, and a look reads at most ${maxLeaves}: if it may have them, name a higher --max-leaves`,
    );
    return { report, watched: undefined, head };
  }
  let tail: Uint8Array = Buffer.from(before.tail ?? '', 'base64');
  try {
    if (old && head.size < old.size) report.faults.push(await shrunk(source, old, head, tail));
    else if (old) {
      const { checked, faults } = await checkConsistency(old, head, source);
      report.checked.push(...checked);
      report.faults.push(...faults);
    }
    if (report.ok) tail = await checkNewLeaves(report, source, { old, head, keys, note, tail });
    if (report.ok && head.size > 0) await checkOldTile(report, source, head, random());
  } catch (error) {
    // Tiles are written before the checkpoint is signed: one that is missing was taken away.
    if (!(error instanceof TileFault)) throw error;
    report.faults.push(error.message);
  }
  if (!report.ok) return { report, watched: undefined, head };
  const firstKey = trusted ?? line.trim();
  const followed = keys.flatMap(({ rotation }) => rotation ?? []);
  const watched: Watched = {
    ...{ key: head.by.line, firstKey, checkpoint: note },
    ...(followed.length > 0 && { rotations: followed.join('') }),
    tail: Buffer.from(tail).toString('base64'),
  };
  return { report, watched, head };
}

/** Clocks of two machines may differ by so much. */
const CLOCKS_DIFFER_MS = 300_000;

function checkAge(
  report: CheckReport,
  { signedAt, size }: SignedCheckpoint,
  { maxAgeMs, now }: { readonly maxAgeMs: number | undefined; readonly now: number },
): void {
  const at = signedAt === undefined ? undefined : new Date(signedAt * 1000).toISOString();
  const what =
    at === undefined
      ? `the checkpoint of ${size} leaves has no time`
      : `the checkpoint of ${size} leaves was signed at ${at}`;
  const age = signedAt === undefined ? Number.POSITIVE_INFINITY : now - signedAt * 1000;
  if (maxAgeMs === undefined) {
    if (at !== undefined) report.checked.push(what);
  } else if (age > maxAgeMs) {
    report.faults.push(
      `${what}, and it may be ${inSeconds(maxAgeMs)} old: an idle log is signed again all the time, so that a newer one is kept back, or nobody signs it`,
    );
  } else if (age < -CLOCKS_DIFFER_MS)
    report.faults.push(`${what}, which is still to come: the clock there, or here, is wrong`);
  else report.checked.push(`${what}, ${inSeconds(age)} ago`);
}

const inSeconds = (ms: number): string => `${Math.max(0, Math.round(ms / 1000)).toLocaleString('en-US')} s`;

/** What a log is that has fewer leaves than before: one that was restored from a backup continues to the tree that was seen. */
async function shrunk(source: TileSource, old: Checkpoint, head: Checkpoint, tail: Uint8Array): Promise<string> {
  const what = `the log shrank from ${old.size} to ${head.size} leaves`;
  const lost = old.size - head.size;
  const known = tail.length / HASH_BYTES;
  if (lost > known) {
    return `${what}: whether it was restored from a backup or forked, only a mirror of it tells (./tidemark check MIRROR --log URL)`;
  }
  const tree = await GrowingTree.load(head.size, hashesOf(source, head.size));
  const isOwn = equalHashes(tree.root, head.root);
  for (let at = known - lost; at < known; at++) tree.add(tail.subarray(at * HASH_BYTES, (at + 1) * HASH_BYTES));
  return isOwn && equalHashes(tree.root, old.root)
    ? `${what}, which are the first of them: it was restored from a backup. Its operator has to restore the newer tiles, such as those of a mirror, before it signs another leaf`
    : `${what}, which are not the first of them: it forked, and history was rewritten`;
}

interface NewLeaves {
  readonly old: Checkpoint | undefined;
  readonly head: Checkpoint;
  readonly keys: readonly LogKey[];
  readonly note: string;
  readonly tail: Uint8Array;
}

/** The leaves since the last look, all of them: with them the old tree must become the new one. @returns the tail then */
async function checkNewLeaves(
  report: CheckReport,
  source: TileSource,
  { old, head, keys, note, tail }: NewLeaves,
): Promise<Uint8Array> {
  const from = old?.size ?? 0;
  const tree = await GrowingTree.load(from, hashesOf(source, from));
  if (old && !equalHashes(tree.root, old.root)) {
    report.faults.push(
      `the tiles of the first ${from} leaves do not give the root that was signed: a tile was changed`,
    );
    return tail;
  }
  const rotated = new RotationLeaves();
  let hashes: Hash[] = [];
  for (let tile = Math.floor(from / TILE_WIDTH); tile * TILE_WIDTH < head.size; tile++) {
    const entries = await readEntries(source, tile, head.size);
    for (const entry of entries.slice(Math.max(0, from - tile * TILE_WIDTH))) {
      const hash = leafHash(entry);
      rotated.see(entry, tree.size);
      hashes.push(hash);
      tree.add(hash);
    }
    hashes = hashes.slice(-MAX_TAIL);
  }
  if (!equalHashes(tree.root, head.root)) {
    report.faults.push(
      `the leaves ${from} to ${head.size - 1} do not give the root that was signed: a leaf was changed`,
    );
    return tail;
  }
  report.checked.push(`${head.size - from} new leaves are in the tree of ${head.size}`);
  report.faults.push(...rotated.faults(keys, note, { from, to: head.size }));
  return Buffer.concat([tail, ...hashes]).subarray(-MAX_TAIL * HASH_BYTES);
}

/** The leaves of one earlier tile, chosen at random: over time every leaf is looked at again. */
async function checkOldTile(
  report: CheckReport,
  source: TileSource,
  { size, root }: Checkpoint,
  at: number,
): Promise<void> {
  const tile = Math.floor((at * size) / TILE_WIDTH);
  const entries = await readEntries(source, tile, size);
  const hashes = hashesOf(source, size);
  for (const [place, entry] of entries.entries()) {
    const index = tile * TILE_WIDTH + place;
    if (verifyInclusion(leafHash(entry), index, size, await inclusionProof(index, size, hashes), root)) continue;
    report.faults.push(`leaf ${index} is not the one in the tree of ${size} leaves: it was changed`);
    return;
  }
  report.checked.push(`${entries.length} leaves from ${tile * TILE_WIDTH} on are still in the tree`);
}

/** Tiles whose leaves a mirror holds in memory before it writes them. */
const MIRRORED_TILES = 64;

/**
 * Copies the leaves that a folder lacks of a log, and makes their tiles of them. Its checkpoint comes last and only if the leaves
 * give its root, so that the folder is always a whole log: what a service sends for a file the second time may be something else.
 * @returns what is wrong
 * @throws LogUnreachable
 */
export async function mirror(
  source: TileSource,
  folder: string,
  head: Checkpoint,
  watched: Watched,
): Promise<string | undefined> {
  try {
    return await copyLeaves(source, folder, head, watched);
  } catch (error) {
    if (error instanceof TileFault || error instanceof NoteFault || error instanceof LinkInFolder) return error.message;
    throw error;
  }
}

async function copyLeaves(
  source: TileSource,
  folder: string,
  head: Checkpoint,
  { key, checkpoint, rotations }: Watched,
): Promise<string | undefined> {
  const note = await textOf(folderSource(folder), CHECKPOINT_FILE);
  // The folder is the watcher's own: its signature was verified when it was written.
  const own = note === undefined ? undefined : parseCheckpoint(note);
  if (own && own.size > head.size) return `the mirror ${folder} has ${own.size} leaves, and the log ${head.size}`;
  const grown = await loadMirror(folder, own);
  if (!grown) return `the tiles of the mirror ${folder} do not give its checkpoint: begin another one`;
  for (let tile = Math.floor(grown.size / TILE_WIDTH); tile * TILE_WIDTH < head.size; tile++) {
    for (const entry of (await readEntries(source, tile, head.size)).slice(grown.size - tile * TILE_WIDTH))
      grown.add(entry);
    if ((tile + 1) % MIRRORED_TILES === 0) await grown.write();
  }
  if (!equalHashes(grown.root, head.root))
    return `the ${head.size} leaves that were copied do not give the root that was signed`;
  await grown.write();
  const served = (await textOf(source, ROTATIONS_FILE)) ?? '';
  const notes = new Set([...parseRotations(served), ...parseRotations(rotations ?? '')]);
  if (notes.size > 0) await writeDurably(join(folder, ROTATIONS_FILE), [...notes].join(''));
  await writeDurably(join(folder, KEY_FILE), `${key}\n`);
  await writeDurably(join(folder, CHECKPOINT_FILE), checkpoint);
  return undefined;
}

async function loadMirror(folder: string, own: Checkpoint | undefined): Promise<GrowingLog | undefined> {
  try {
    const grown = await GrowingLog.load(folder, own?.size ?? 0);
    return !own || equalHashes(grown.root, own.root) ? grown : undefined;
  } catch (error) {
    if (error instanceof TileFault) return undefined;
    throw error;
  }
}
