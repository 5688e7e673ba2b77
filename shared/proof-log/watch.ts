/** One look at a log that is watched: its key, its checkpoint, whether it continues the last one, and its leaves. */

import { join } from 'node:path';
import { CheckReport, checkConsistency } from './check.ts';
import { CHECKPOINT_FILE, folderSource, KEY_FILE, ROTATIONS_FILE, writeDurably, writeTile } from './folder.ts';
import { equalHashes, GrowingTree, inclusionProof, leafHash, verifyInclusion } from './merkle.ts';
import { type Checkpoint, openCheckpoint, parseRotations, parseVerifier, trustedKeys } from './note.ts';
import {
  decodeEntries,
  hashesOf,
  readTile,
  TILE_WIDTH,
  TileFault,
  type TileLevel,
  type TileSource,
  tilePath,
  widthIn,
} from './tiles.ts';

/** What a watcher remembers between two looks. */
export interface Watched {
  /** Line of the key that it trusts. */
  readonly key: string;
  /** The last checkpoint that it accepted, as a signed note. */
  readonly checkpoint: string;
}

export interface Look {
  readonly report: CheckReport;
  /** What to remember; undefined where something is wrong. */
  readonly watched: Watched | undefined;
  readonly head: Checkpoint | undefined;
}

const textOf = async (source: TileSource, path: string): Promise<string | undefined> => {
  const bytes = await source(path);
  return bytes && Buffer.from(bytes).toString();
};

/** @throws TileFault when the log does not answer, or has no checkpoint yet */
export async function lookAt(
  source: TileSource,
  before: Partial<Watched>,
  random: () => number = Math.random,
): Promise<Look> {
  const report = new CheckReport();
  const line = await textOf(source, KEY_FILE);
  const note = await textOf(source, CHECKPOINT_FILE);
  if (line === undefined || note === undefined) throw new TileFault('the log has no checkpoint yet');
  const rotations = parseRotations((await textOf(source, ROTATIONS_FILE)) ?? '');
  const keys = report.attempt('key', () =>
    trustedKeys(parseVerifier(before.key ?? line), parseVerifier(line), rotations),
  );
  const head = keys && report.attempt('checkpoint', () => openCheckpoint(note, keys));
  if (!keys || !head) return { report, watched: undefined, head };
  const old = before.checkpoint === undefined ? undefined : openCheckpoint(before.checkpoint, keys);
  if (old) {
    const { checked, faults } = await checkConsistency(old, head, source);
    report.checked.push(...checked);
    report.faults.push(...faults);
  }
  if (report.ok) await checkNewLeaves(report, source, old, head);
  if (report.ok) await checkOldTile(report, source, head, random());
  return { report, watched: report.ok ? { key: head.by.line, checkpoint: note } : undefined, head };
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
    const entries = await entriesOf(source, tile, head.size);
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
  const entries = await entriesOf(source, tile, size);
  const hashes = hashesOf(source, size);
  for (const [place, entry] of entries.entries()) {
    const index = tile * TILE_WIDTH + place;
    if (verifyInclusion(leafHash(entry), index, size, await inclusionProof(index, size, hashes), root)) continue;
    report.faults.push(`leaf ${index} is not the one in the tree of ${size} leaves: it was changed`);
    return;
  }
  report.checked.push(`${entries.length} leaves from ${tile * TILE_WIDTH} on are still in the tree`);
}

async function entriesOf(source: TileSource, tile: number, size: number): Promise<Uint8Array[]> {
  return decodeEntries(await readTile(source, 'entries', tile, size), widthIn('entries', tile, size));
}

/** Copies what a folder lacks of a log, its checkpoint last, so that the folder is always a whole log. */
export async function mirror(
  source: TileSource,
  folder: string,
  head: Checkpoint,
  { key, checkpoint }: Watched,
): Promise<void> {
  const here = folderSource(folder);
  const copy = async (level: TileLevel, index: number): Promise<void> => {
    const path = tilePath(level, index, widthIn(level, index, head.size));
    if (await here(path)) return;
    const bytes = await readTile(source, level, index, head.size);
    await writeTile(folder, { level, index, width: widthIn(level, index, head.size) }, bytes);
  };
  for (let index = 0; widthIn('entries', index, head.size) > 0; index++) await copy('entries', index);
  for (let level = 0; widthIn(level, 0, head.size) > 0; level++) {
    for (let index = 0; widthIn(level, index, head.size) > 0; index++) await copy(level, index);
  }
  const rotations = await source(ROTATIONS_FILE);
  if (rotations) await writeDurably(join(folder, ROTATIONS_FILE), rotations);
  await writeDurably(join(folder, KEY_FILE), `${key}\n`);
  await writeDurably(join(folder, CHECKPOINT_FILE), checkpoint);
}
