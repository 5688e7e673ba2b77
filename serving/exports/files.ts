/**
 * Compares an artifact's files with what was written, since others can reach the disk too; and the directories of artifacts:
 * one per export, with one per run inside, named by its fence. No caller's text ever becomes part of a path.
 */
import { createHash } from 'node:crypto';
import { type FileHandle, lstat, readdir, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { assert } from '../../shared/errors.ts';
import { openRegular } from '../../shared/regular-file.ts';
import { Problem } from '../contract/problems.ts';
import type { StoredArtifact, StoredFile } from './rows.ts';
import { isFinished } from './states.ts';
import type { RunFolders } from './store.ts';

/** Checks names, sizes and times of modification. @throws Problem */
export async function checkFiles(directory: string, { files }: StoredArtifact): Promise<void> {
  for (const file of files) {
    const found = await lstat(join(directory, file.name)).catch(() => undefined);
    if (!found?.isFile()) throw missing(file);
    if (found.size !== file.bytes || Math.floor(found.mtimeMs) !== Math.floor(file.modified_ms)) throw altered(file);
  }
}

const missing = ({ name }: StoredFile) =>
  new Problem('EXPORT_ARTIFACT_METADATA_ERROR', `${name} is missing. Submit the export again.`);

const altered = ({ name }: StoredFile) =>
  new Problem(
    'EXPORT_ARTIFACT_METADATA_ERROR',
    `${name} differs from what the service wrote. Submit the export again.`,
  );

/** Files are read in chunks of this size. */
const CHUNK_BYTES = 1024 * 1024;
/**
 * Digests to cache; each belongs to one state of one file. A lake of all datasets over seven years has so many files with their
 * manifests. A reader that goes through more than are cached has each file hashed again. All take 55 MB.
 */
const MAX_DIGESTS = 100_000;

/**
 * Opens files that equal what was written. It hashes a file on the first request and again whenever the file's metadata
 * changed. The answer is read from the very file that was hashed.
 */
export class ProvedFiles {
  readonly #digests = new Map<string, Promise<string>>();

  /** The caller closes the handle. @throws Problem */
  async open(directory: string, file: StoredFile): Promise<FileHandle> {
    const handle = await openRegular(join(directory, file.name)).catch(() => {
      throw missing(file);
    });
    try {
      const digest = await this.digestOf(handle);
      if (digest !== file.sha256) throw altered(file);
      return handle;
    } catch (error) {
      await handle.close();
      throw error instanceof Problem ? error : altered(file);
    }
  }

  /** The sha256 of an open file. */
  async digestOf(handle: FileHandle): Promise<string> {
    const { dev, ino, size, mtimeNs, ctimeNs } = await handle.stat({ bigint: true });
    const state = `${dev} ${ino} ${size} ${mtimeNs} ${ctimeNs}`;
    let digest = this.#digests.get(state);
    if (!digest) {
      digest = hashOf(handle);
      this.#digests.set(state, digest);
      // The reader left, or the disk failed: the next request hashes the file again.
      digest.catch(() => this.#digests.delete(state));
      const [oldest] = this.#digests.keys();
      if (this.#digests.size > MAX_DIGESTS) this.#digests.delete(oldest);
    }
    return await digest;
  }
}

async function hashOf(handle: FileHandle): Promise<string> {
  const hash = createHash('sha256');
  const chunk = Buffer.allocUnsafeSlow(CHUNK_BYTES);
  for (let at = 0; ; ) {
    const { bytesRead } = await handle.read(chunk, 0, chunk.length, at);
    if (bytesRead === 0) return hash.digest('hex');
    hash.update(chunk.subarray(0, bytesRead));
    at += bytesRead;
  }
}

const EXPORT_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
/** A run's directory, or its staging directory. */
const RUN_FOLDER = /^(\d+)(?:\.|$)/;

export const isExportId = (text: string): boolean => EXPORT_ID.test(text);

export class ExportDirectories {
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
  }

  #folder(exportId: string): string {
    assert(isExportId(exportId), 'an export id is a UUID');
    return join(this.#root, exportId);
  }

  /** The directory of a run's artifact. */
  artifact(exportId: string, fence: number): string {
    return join(this.#folder(exportId), String(fence));
  }

  /** Removes what one run left behind. */
  async removeRun(exportId: string, fence: number): Promise<void> {
    await this.#removeRuns(exportId, (number) => number === fence);
  }

  /** Removes the directories of an export that are no longer needed. */
  async removeUnneeded(exportId: string, { state, fence, artifactFence }: RunFolders): Promise<void> {
    await this.#removeRuns(exportId, (number) => (isFinished(state) ? number !== artifactFence : number < fence));
  }

  /** Ids of the exports that have a directory. */
  async present(): Promise<string[]> {
    const names = await readdir(this.#root).catch((error) => {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw error;
    });
    return names.filter(isExportId);
  }

  async #removeRuns(exportId: string, isUnneeded: (fence: number) => boolean): Promise<void> {
    const folder = this.#folder(exportId);
    // The target of a link is not the service's to clear.
    if (!(await lstat(folder).catch(() => undefined))?.isDirectory()) return;
    const names = await readdir(folder).catch(() => []);
    for (const name of names) {
      const fence = RUN_FOLDER.exec(name)?.[1];
      if (fence !== undefined && isUnneeded(Number(fence)))
        await rm(join(folder, name), { recursive: true, force: true });
    }
    // Succeeds only when the directory is empty.
    await rmdir(folder).catch(() => {});
  }
}
