/**
 * The log as static files. A tile holds 256 hashes of one level, every eighth level has tiles, and a tile of entries holds the
 * leaves below a tile of level 0. Format and paths: https://c2sp.org/tlog-tiles.
 */
import { HASH_BYTES, type Hash, type HashAt, nodeHash } from './merkle.ts';

export const TILE_WIDTH = 256;
export const TILE_HEIGHT = 8;
/** An entry's length takes two bytes. */
export const MAX_ENTRY_BYTES = 0xffff;

/** A level of hashes, or the entries. */
export type TileLevel = number | 'entries';

/** A tile is incomplete while it has fewer hashes than 256; its path then names how many. */
export function tilePath(level: TileLevel, index: number, width: number = TILE_WIDTH): string {
  const groups = [index % 1000];
  for (let rest = Math.floor(index / 1000); rest > 0; rest = Math.floor(rest / 1000)) groups.unshift(rest % 1000);
  const names = groups.map((group, at) => `${at < groups.length - 1 ? 'x' : ''}${String(group).padStart(3, '0')}`);
  return `tile/${level}/${names.join('/')}${width === TILE_WIDTH ? '' : `.p/${width}`}`;
}

export interface TileName {
  readonly level: TileLevel;
  readonly index: number;
  readonly width: number;
}

const TILE_PATH =
  /^tile\/(?<level>entries|\d{1,2})\/(?<groups>(?:x\d{3}\/){0,5}\d{3})(?:\.p\/(?<width>[1-9]\d{0,2}))?$/;

/** @returns undefined for a path that names no tile */
export function parseTilePath(path: string): TileName | undefined {
  const match = TILE_PATH.exec(path);
  if (!match) return undefined;
  const { level, groups, width } = match.groups!;
  const name: TileName = {
    level: level === 'entries' ? level : Number(level),
    index: Number(groups.replaceAll(/[x/]/g, '')),
    width: width === undefined ? TILE_WIDTH : Number(width),
  };
  return tilePath(name.level, name.index, name.width) === path ? name : undefined;
}

/** How many hashes or entries the tile has in a log of `size` leaves. */
export function widthIn(level: TileLevel, index: number, size: number): number {
  const hashes = Math.floor(size / 2 ** (level === 'entries' ? 0 : TILE_HEIGHT * level));
  return Math.max(0, Math.min(TILE_WIDTH, hashes - index * TILE_WIDTH));
}

/** Reads a file of the log by its path; undefined where there is none. */
export type TileSource = (path: string) => Promise<Uint8Array | undefined>;

/** A file of the log that is text; undefined where there is none. */
export const textOf = async (source: TileSource, path: string): Promise<string | undefined> => {
  const bytes = await source(path);
  return bytes && Buffer.from(bytes).toString();
};

/** A file of the log that is missing or not of its form. */
export class TileFault extends Error {
  override readonly name = 'TileFault';
}

/** The log does not answer, or has signed nothing yet, which says nothing about what it holds. */
export class LogUnreachable extends Error {
  override readonly name = 'LogUnreachable';
}

/** A file of the log, and how many hashes or entries its path says that it has. @throws TileFault */
async function readFile(source: TileSource, level: TileLevel, index: number, width: number) {
  const path = tilePath(level, index, width);
  const bytes = await source(path);
  if (bytes) return { path, bytes, width };
  // A log may delete an incomplete tile when the tile is complete.
  const whole = width < TILE_WIDTH ? await source(tilePath(level, index)) : undefined;
  if (!whole) throw new TileFault(`the log has no ${path}`);
  return { path: tilePath(level, index), bytes: whole, width: TILE_WIDTH };
}

/** The hashes of a tile as the log of `size` leaves has it; the log may have more of it by now. @throws TileFault */
export async function readTile(source: TileSource, level: number, index: number, size: number): Promise<Uint8Array> {
  const width = widthIn(level, index, size);
  const file = await readFile(source, level, index, width);
  if (file.bytes.length !== file.width * HASH_BYTES) {
    throw new TileFault(`${file.path} has ${file.bytes.length} bytes instead of ${file.width * HASH_BYTES}`);
  }
  return file.bytes.subarray(0, width * HASH_BYTES);
}

/** The leaves of a tile as the log of `size` leaves has it. @throws TileFault */
export async function readEntries(source: TileSource, index: number, size: number): Promise<Uint8Array[]> {
  const width = widthIn('entries', index, size);
  const file = await readFile(source, 'entries', index, width);
  return decodeEntries(file.bytes, file.width).slice(0, width);
}

/** The tiles that a reader keeps: a proof needs a few, and proofs of neighbours the same. */
const KEPT_TILES = 64;

/** The hashes of complete subtrees, from the tiles of a log of `size` leaves. */
export function hashesOf(source: TileSource, size: number): HashAt {
  const kept = new Map<string, Promise<Uint8Array>>();
  const tile = (level: number, index: number): Promise<Uint8Array> => {
    const name = `${level}/${index}`;
    const known = kept.get(name);
    if (known) return known;
    const read = readTile(source, level, index, size);
    kept.set(name, read);
    if (kept.size > KEPT_TILES) kept.delete(kept.keys().next().value!);
    return read;
  };
  return async (level, index) => {
    const tileLevel = Math.floor(level / TILE_HEIGHT);
    // The hashes of the tile's own level that the subtree covers: a power of two of them, all in one tile.
    const count = 2 ** (level % TILE_HEIGHT);
    const first = index * count;
    const tileIndex = Math.floor(first / TILE_WIDTH);
    const bytes = await tile(tileLevel, tileIndex);
    const start = first - tileIndex * TILE_WIDTH;
    if ((start + count) * HASH_BYTES > bytes.length) {
      throw new TileFault(`${tilePath(tileLevel, tileIndex)} does not have hash ${start + count - 1}`);
    }
    let hashes: Hash[] = Array.from({ length: count }, (_, at) =>
      bytes.subarray((start + at) * HASH_BYTES, (start + at + 1) * HASH_BYTES),
    );
    while (hashes.length > 1) {
      hashes = Array.from({ length: hashes.length / 2 }, (_, at) => nodeHash(hashes[2 * at], hashes[2 * at + 1]));
    }
    return hashes[0];
  };
}

/** The bytes of a tile of entries: each with its length before it. */
export function encodeEntries(entries: readonly Uint8Array[]): Buffer {
  const bytes = Buffer.alloc(entries.reduce((sum, entry) => sum + 2 + entry.length, 0));
  let at = 0;
  for (const entry of entries) {
    if (entry.length > MAX_ENTRY_BYTES) throw new TileFault(`an entry has ${entry.length} bytes`);
    at = bytes.writeUInt16BE(entry.length, at);
    bytes.set(entry, at);
    at += entry.length;
  }
  return bytes;
}

/** The `width` entries of a tile. @throws TileFault when there are fewer bytes, or more */
export function decodeEntries(bytes: Uint8Array, width: number): Uint8Array[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const entries: Uint8Array[] = [];
  for (let at = 0; entries.length < width; ) {
    const end = at + 2 <= bytes.length ? at + 2 + view.getUint16(at) : Number.POSITIVE_INFINITY;
    if (end > bytes.length) throw new TileFault(`a tile of entries ends in entry ${entries.length} of ${width}`);
    entries.push(bytes.subarray(at + 2, end));
    at = end;
  }
  const length = entries.reduce((sum, entry) => sum + 2 + entry.length, 0);
  if (length < bytes.length) throw new TileFault(`a tile of ${width} entries goes on after the last one`);
  return entries;
}

/** The entry of one leaf in a log of `size` leaves. @throws TileFault */
export async function readEntry(source: TileSource, index: number, size: number): Promise<Uint8Array> {
  const tile = Math.floor(index / TILE_WIDTH);
  return (await readEntries(source, tile, size))[index - tile * TILE_WIDTH];
}
