/** The folder of the proof log: its files as they are served. The sequencer writes them; a static file server can hand them out. */
import { randomBytes } from 'node:crypto';
import { lstat, mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import { basename, dirname, join, normalize, sep } from 'node:path';
import { parseSecret } from './commitment.ts';
import { HASH_BYTES } from './merkle.ts';
import { type LogKey, openCheckpoint, type SignedCheckpoint } from './note.ts';
import {
  decodeEntries,
  encodeEntries,
  parseTilePath,
  TILE_WIDTH,
  type TileName,
  type TileSource,
  tilePath,
} from './tiles.ts';

/** Files of the log beside its tiles. */
export const CHECKPOINT_FILE = 'checkpoint';
export const KEY_FILE = 'key';
export const ROTATIONS_FILE = 'rotations';
const PLAIN_FILES: ReadonlySet<string> = new Set([CHECKPOINT_FILE, KEY_FILE, ROTATIONS_FILE]);

export const isMissing = (error: unknown): boolean =>
  ['ENOENT', 'ENOTDIR'].includes(String((error as NodeJS.ErrnoException | null)?.code));

/** Names in a folder, sorted; none where it is missing. */
export async function namesIn(path: string): Promise<string[]> {
  try {
    return (await readdir(path)).sort();
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
}

export async function readIfThere(path: string): Promise<Buffer | undefined> {
  try {
    return await readFile(path);
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

/** Reads the files of a log's folder, be it the log's own or a mirror of one. */
export function folderSource(folder: string): TileSource {
  return async (path) => {
    const tile = parseTilePath(path);
    if (!tile && !PLAIN_FILES.has(path)) return undefined;
    const bytes = await readIfThere(join(folder, path));
    return bytes ?? (tile && tile.width < TILE_WIDTH ? await beginningOf(folder, tile) : undefined);
  };
}

/** An incomplete tile from a wider one: a mirror has only the tiles of the sizes that it saw, and a complete tile replaces all. */
async function beginningOf(folder: string, { level, index, width }: TileName): Promise<Buffer | undefined> {
  const whole = join(folder, tilePath(level, index));
  const widths = await readdir(`${whole}.p`).catch(() => []);
  const wider = Math.max(...widths.map(Number).filter((other) => other > width));
  const complete = await readIfThere(whole);
  const bytes = complete ?? (await readIfThere(join(folder, tilePath(level, index, wider))));
  if (!bytes) return undefined;
  if (level !== 'entries') return bytes.subarray(0, width * HASH_BYTES);
  return encodeEntries(decodeEntries(bytes, complete ? TILE_WIDTH : wider).slice(0, width));
}

/** Replaces a file so that readers see the old or the new one, and a power cut leaves one of them. */
export async function writeDurably(path: string, bytes: Uint8Array | string, mode = 0o644): Promise<void> {
  const part = join(dirname(path), `.${basename(path)}.${randomBytes(4).toString('hex')}`);
  await makeFolder(dirname(path));
  try {
    await using file = await open(part, 'wx', mode);
    await file.writeFile(bytes);
    await file.sync();
    await rename(part, path);
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
  await syncFolder(dirname(path));
}

export async function syncFolder(path: string): Promise<void> {
  await using folder = await open(path);
  await folder.sync();
}

/** Makes a folder and those above it. A power cut loses the entry of a new folder unless the one that holds it is synced. */
export async function makeFolder(path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true });
  if (first === undefined) return;
  for (let made = path; made.length >= first.length; made = dirname(made)) await syncFolder(dirname(made));
}

/** A folder that is written to has a link on the way, and what is written would end up elsewhere. */
export class LinkInFolder extends Error {
  override readonly name = 'LinkInFolder';
  /** As errors of the file system have it. */
  readonly path: string;

  constructor(path: string) {
    super(`${path} is a symbolic link, and nothing is written through links. Remove it`);
    this.path = path;
  }
}

/**
 * Refuses a path whose folders below `root` are links. The root itself may be reached through links: its owner named it.
 * @param path relative to the root; its last name is not looked at, since a rename or a removal takes the link itself
 * @throws LinkInFolder
 */
export async function refuseLinks(root: string, path: string): Promise<void> {
  const names = normalize(path).split(sep).slice(0, -1);
  for (let at = 1; at <= names.length; at++) {
    const folder = join(root, ...names.slice(0, at));
    const found = await lstat(folder).catch((error) => {
      if (isMissing(error)) return undefined;
      throw error;
    });
    if (!found) return;
    if (found.isSymbolicLink()) throw new LinkInFolder(folder);
  }
}

/** Writes a tile. Incomplete ones of the same place stay until it is complete: earlier checkpoints refer to them. */
export async function writeTile(folder: string, { level, index, width }: TileName, bytes: Uint8Array): Promise<void> {
  const path = tilePath(level, index, width);
  await refuseLinks(folder, path);
  await writeDurably(join(folder, path), bytes);
  if (width === TILE_WIDTH) await rm(join(folder, `${tilePath(level, index)}.p`), { recursive: true, force: true });
}

/** The last checkpoint of a folder; undefined where there is none. @throws NoteFault */
export async function readCheckpoint(
  folder: string,
  keys: readonly LogKey[],
): Promise<{ readonly note: string; readonly checkpoint: SignedCheckpoint } | undefined> {
  const note = (await readIfThere(join(folder, CHECKPOINT_FILE)))?.toString();
  if (note === undefined) return undefined;
  return { note, checkpoint: openCheckpoint(note, keys) };
}

/** The file of the secret of which salts are made, beside the folder as well. */
export const secretPathOf = (folder: string): string => `${folder}.secret`;

/** @throws SaltFault where the file holds something else */
export async function readSecret(folder: string): Promise<Buffer | undefined> {
  const text = await readIfThere(secretPathOf(folder));
  return text && parseSecret(text.toString().trim(), secretPathOf(folder));
}

export const writeSecret = (folder: string, secret: Uint8Array): Promise<void> =>
  writeDurably(secretPathOf(folder), `${Buffer.from(secret).toString('hex')}\n`, 0o600);
