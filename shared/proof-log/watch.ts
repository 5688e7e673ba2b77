/** One look at a log that is watched: its key, its checkpoint, whether it continues the last one, and its leaves. */

import { join } from 'node:path';
import { CheckReport, checkConsistency } from './check.ts';
import { CHECKPOINT_FILE, folderSource, KEY_FILE, LinkInFolder, ROTATIONS_FILE, writeDurably } from './folder.ts';
import { GrowingLog } from './growing-log.ts';
import { equalHashes, GrowingTree, inclusionProof, leafHash, verifyInclusion } from './merkle.ts';
import {
  type Checkpoint,
  NoteFault,
  openCheckpoint,
  parseCheckpoint,
  parseRotations,
  parseVerifier,
  trustedKeys,
} from './note.ts';
import { hashesOf, LogUnreachable, readEntries, TILE_WIDTH, TileFault, type TileSource, textOf } from './tiles.ts';

/** What a watcher remembers between two looks. */
export interface Watched {
  /** Line of the key that it trusts. */
  readonly key: string;
  /** Line of the key that it trusted at first; rotations lead from it to `key`. */
  readonly firstKey: string;
  /** The last checkpoint that it accepted, as a signed note. */
  readonly checkpoint: string;
}

export interface Look {
  readonly report: CheckReport;
  /** What to remember; undefined where something is wrong. */
  readonly watched: Watched | undefined;
  readonly head: Checkpoint | undefined;
}

/** Leaves that a look reads at most: a log may say to have any number. */
export const MAX_LEAVES_A_LOOK = 1_000_000;

/** @throws LogUnreachable */
export async function lookAt(
  source: TileSource,
  before: Partial<Watched>,
  random: () => number = Math.random,
  maxLeaves: number = MAX_LEAVES_A_LOOK,
): Promise<Look> {
  const report = new CheckReport();
  const line = await textOf(source, KEY_FILE);
  const note = await textOf(source, CHECKPOINT_FILE);
  if (line === undefined || note === undefined) throw new LogUnreachable('the log has no checkpoint yet');
  const rotations = parseRotations((await textOf(source, ROTATIONS_FILE)) ?? '');
  const keys = report.attempt('key', () =>
    trustedKeys(parseVerifier(before.key ?? line), parseVerifier(line), rotations),
  );
  const head = keys && report.attempt('checkpoint', () => openCheckpoint(note, keys));
  if (!keys || !head) return { report, watched: undefined, head };
  const old = before.checkpoint === undefined ? undefined : openCheckpoint(before.checkpoint, keys);
  const more = head.size - (old?.size ?? 0);
  if (more > maxLeaves) {
    report.faults.push(
      `the log says ${more} leaves more than at the last look, and a look reads at most ${maxLeaves}: if it may have them, name a higher --max-leaves`,
    );
    return { report, watched: undefined, head };
  }
  try {
    if (old) {
      const { checked, faults } = await checkConsistency(old, head, source);
      report.checked.push(...checked);
      report.faults.push(...faults);
    }
    if (report.ok) await checkNewLeaves(report, source, old, head);
    if (report.ok && head.size > 0) await checkOldTile(report, source, head, random());
  } catch (error) {
    // Tiles are written before the checkpoint is signed: one that is missing was taken away.
    if (!(error instanceof TileFault)) throw error;
    report.faults.push(error.message);
  }
  const firstKey = before.firstKey ?? before.key ?? line.trim();
  return { report, watched: report.ok ? { key: head.by.line, firstKey, checkpoint: note } : undefined, head };
}

/** The leaves since the last look, all of them: with them the old tree must become the new one. */
async function checkNewLeaves(
  report: CheckReport,
  source: TileSource,
  old: Checkpoint | undefined,
  head: Checkpoint,
): Promise<void> {
  const from = old?.size ?? 0;
  const tree = await GrowingTree.load(from, hashesOf(source, from));
  if (old && !equalHashes(tree.root, old.root)) {
    report.faults.push(
      `the tiles of the first ${from} leaves do not give the root that was signed: a tile was changed`,
    );
    return;
  }
  for (let tile = Math.floor(from / TILE_WIDTH); tile * TILE_WIDTH < head.size; tile++) {
    const entries = await readEntries(source, tile, head.size);
    for (const entry of entries.slice(Math.max(0, from - tile * TILE_WIDTH))) tree.add(leafHash(entry));
  }
  if (equalHashes(tree.root, head.root))
    report.checked.push(`${head.size - from} new leaves are in the tree of ${head.size}`);
  else
    report.faults.push(
      `the leaves ${from} to ${head.size - 1} do not give the root that was signed: a leaf was changed`,
    );
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
  { key, checkpoint }: Watched,
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
  const rotations = await source(ROTATIONS_FILE);
  if (rotations) await writeDurably(join(folder, ROTATIONS_FILE), rotations);
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
