/** Files of an artifact as they are now, against what was written: they lie on a disk that others can reach too. */
import { createHash } from 'node:crypto';
import { type FileHandle, lstat } from 'node:fs/promises';
import { join } from 'node:path';
import { openRegular } from '../../shared/files/regular-file.ts';
import { Problem } from '../contract/problems.ts';
import type { StoredArtifact, StoredFile } from './rows.ts';

/** Names and sizes, and when they were last changed. @throws Problem */
export async function checkFiles(directory: string, { files }: StoredArtifact): Promise<void> {
  for (const file of files) {
    const found = await lstat(join(directory, file.name)).catch(() => undefined);
    if (!found?.isFile()) throw missing(file);
    if (found.size !== file.bytes || Math.floor(found.mtimeMs) !== Math.floor(file.modified_ms)) throw altered(file);
  }
}

const missing = ({ name }: StoredFile) =>
  new Problem('EXPORT_ARTIFACT_MISSING', `${name} is no longer there; submit the export again.`);

const altered = ({ name }: StoredFile) =>
  new Problem('EXPORT_ARTIFACT_METADATA_ERROR', `${name} is not what was written; submit the export again.`);

/** A file is read in pieces of this size. */
const PIECE_BYTES = 1024 * 1024;
/** Digests kept; each is of one state of one file. */
const MAX_KEPT = 1000;

/**
 * Opens files that are proved to be what was written: each is hashed when it is first asked for, and again when anything
 * about it has changed. What is sent is read from the very file that was hashed.
 */
export class ProvedFiles {
  readonly #digests = new Map<string, Promise<string>>();

  /** The caller closes it. @throws Problem */
  async open(directory: string, file: StoredFile): Promise<FileHandle> {
    const handle = await openRegular(join(directory, file.name)).catch(() => {
      throw missing(file);
    });
    try {
      const digest = await this.#digestOf(handle);
      if (digest !== file.sha256) throw altered(file);
      return handle;
    } catch (error) {
      await handle.close();
      throw error instanceof Problem ? error : altered(file);
    }
  }

  async #digestOf(handle: FileHandle): Promise<string> {
    const { dev, ino, size, mtimeNs, ctimeNs } = await handle.stat({ bigint: true });
    const state = `${dev} ${ino} ${size} ${mtimeNs} ${ctimeNs}`;
    let digest = this.#digests.get(state);
    if (!digest) {
      digest = hashOf(handle);
      this.#digests.set(state, digest);
      // Its reader went away, or the disk failed: the next one reads again.
      digest.catch(() => this.#digests.delete(state));
      const [oldest] = this.#digests.keys();
      if (this.#digests.size > MAX_KEPT) this.#digests.delete(oldest);
    }
    return await digest;
  }
}

async function hashOf(handle: FileHandle): Promise<string> {
  const hash = createHash('sha256');
  const piece = Buffer.allocUnsafeSlow(PIECE_BYTES);
  for (let at = 0; ; ) {
    const { bytesRead } = await handle.read(piece, 0, piece.length, at);
    if (bytesRead === 0) return hash.digest('hex');
    hash.update(piece.subarray(0, bytesRead));
    at += bytesRead;
  }
}
