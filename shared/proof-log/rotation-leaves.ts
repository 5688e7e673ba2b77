/** Holds the rotations of a log against its leaves: each is the leaf whose index it names, and no leaf states another. */
import { decodeLeaf } from './leaf.ts';
import { keyName, type LogKey, openCheckpoint } from './note.ts';
import { keysFrom } from './rotations.ts';

/** In no member of another leaf: JSON escapes the quotes. */
const MARK = Buffer.from('"kind":"rotated"');

export class RotationLeaves {
  /** Notes by index. */
  readonly #notes = new Map<number, string>();

  see(leaf: Uint8Array, index: number): void {
    if (!Buffer.from(leaf.buffer, leaf.byteOffset, leaf.length).includes(MARK)) return;
    try {
      this.#notes.set(index, decodeLeaf(leaf).note!);
    } catch {
      // It is no rotation, and missed as one.
    }
  }

  /**
   * What is wrong with them, and with the checkpoint by the rotations that only leaves state.
   * @param checkpoint as a note
   * @param seen the leaves [from, to)
   */
  faults(
    known: readonly LogKey[],
    checkpoint: string,
    { from, to }: { readonly from: number; readonly to: number },
  ): string[] {
    const faults: string[] = [];
    let keys: readonly LogKey[];
    try {
      const stated = known.flatMap(({ rotation }) => rotation ?? []);
      keys = keysFrom(known[0], [...stated, ...this.#notes.values()]);
      openCheckpoint(checkpoint, keys);
    } catch (error) {
      return [error instanceof Error ? error.message : String(error)];
    }
    for (const key of keys.slice(known.length - 1, -1))
      faults.push(
        `leaf ${key.to} is the rotation of ${keyName(key)}, and the log does not serve it with its rotations`,
      );
    for (const { to: size, rotation, ...key } of keys) {
      const misplaced = [...this.#notes].some(([index, note]) => note === rotation && index !== size);
      const isSeen = size !== undefined && from <= size && size < to;
      if (misplaced || (isSeen && this.#notes.get(size) !== rotation))
        faults.push(`the rotation of ${keyName(key)} at ${size} leaves is not leaf ${size} of the log`);
    }
    return faults;
  }
}
