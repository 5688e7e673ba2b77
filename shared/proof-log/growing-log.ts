/** A log in a folder, as it grows: its tree, and the tiles that the new leaves change. The sequencer and mirrors write with it. */
import { folderSource, writeTile } from './folder.ts';
import { equalHashes, GrowingTree, HASH_BYTES, type Hash, leafHash } from './merkle.ts';
import {
  encodeEntries,
  hashesOf,
  readEntries,
  readTile,
  TILE_HEIGHT,
  TILE_WIDTH,
  TileFault,
  type TileName,
  widthIn,
} from './tiles.ts';

export class GrowingLog {
  readonly #folder: string;
  readonly #tree: GrowingTree;
  /** By level of tiles: the hashes of the incomplete tile at the right edge. */
  readonly #levels: Hash[][] = [];
  /** The leaves of the incomplete tile. */
  #entries: Uint8Array[] = [];
  /** What has to be written: complete tiles in their order. */
  readonly #complete: (Omit<TileName, 'width'> & { readonly bytes: Buffer })[] = [];

  private constructor(folder: string, tree: GrowingTree) {
    this.#folder = folder;
    this.#tree = tree;
  }

  /** The first `size` leaves of a folder. @throws TileFault when a tile of the edge is missing, or its entries are not the leaves of its hashes */
  static async load(folder: string, size: number): Promise<GrowingLog> {
    const source = folderSource(folder);
    const log = new GrowingLog(folder, await GrowingTree.load(size, hashesOf(source, size)));
    for (let level = 0, hashes = size; hashes > 0; level++, hashes = Math.floor(hashes / TILE_WIDTH)) {
      const index = Math.floor(hashes / TILE_WIDTH);
      const width = widthIn(level, index, size);
      const bytes = width === 0 ? new Uint8Array() : await readTile(source, level, index, size);
      log.#levels[level] = Array.from({ length: width }, (_, at) =>
        bytes.slice(at * HASH_BYTES, (at + 1) * HASH_BYTES),
      );
    }
    if (size % TILE_WIDTH === 0) return log;
    log.#entries = await readEntries(source, Math.floor(size / TILE_WIDTH), size);
    const isWhole = log.#entries.every((entry, at) => equalHashes(leafHash(entry), log.#levels[0][at]));
    if (!isWhole) throw new TileFault('the entries of the last tile are not those of its hashes');
    return log;
  }

  get size(): number {
    return this.#tree.size;
  }

  get root(): Hash {
    return this.#tree.root;
  }

  add(leaf: Uint8Array): void {
    // Copies, of hashes too: small Buffers are parts of the 64 KiB that a connection read or Node pools, and keep them whole.
    this.#entries.push(new Uint8Array(leaf));
    if (this.#entries.length === TILE_WIDTH) {
      const index = Math.floor(this.size / TILE_WIDTH);
      this.#complete.push({ level: 'entries', index, bytes: encodeEntries(this.#entries) });
      this.#entries = [];
    }
    this.#tree.add(leafHash(leaf), (level, index, hash) => this.#hash(level, index, hash));
  }

  #hash(level: number, index: number, hash: Hash): void {
    if (level % TILE_HEIGHT !== 0) return;
    const tileLevel = level / TILE_HEIGHT;
    const hashes = this.#levels[tileLevel] ?? [];
    this.#levels[tileLevel] = hashes;
    hashes.push(new Uint8Array(hash));
    if (hashes.length < TILE_WIDTH) return;
    const tile = Math.floor(index / TILE_WIDTH);
    this.#complete.push({ level: tileLevel, index: tile, bytes: Buffer.concat(hashes) });
    this.#levels[tileLevel] = [];
  }

  /** Writes and syncs what is new, the incomplete tiles last. */
  async write(): Promise<void> {
    for (const { level, index, bytes } of this.#complete.splice(0)) {
      await writeTile(this.#folder, { level, index, width: TILE_WIDTH }, bytes);
    }
    const at = Math.floor(this.size / TILE_WIDTH);
    if (this.#entries.length > 0) {
      const tile = { level: 'entries', index: at, width: this.#entries.length } as const;
      await writeTile(this.#folder, tile, encodeEntries(this.#entries));
    }
    for (const [level, hashes] of this.#levels.entries()) {
      const index = Math.floor(this.size / TILE_WIDTH ** (level + 1));
      if (hashes.length === 0) continue;
      await writeTile(this.#folder, { level, index, width: hashes.length }, Buffer.concat(hashes));
    }
  }
}
