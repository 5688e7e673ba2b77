/** Files of an artifact as they are now, against what was written: they lie on a disk that others can reach too. */

import { createHash } from 'node:crypto';
import { type FileHandle, lstat, readdir, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { assert } from '../../shared/errors.ts';
import { openRegular } from '../../shared/regular-file.ts';
import { Problem } from '../contract/problems.ts';
import type { StoredArtifact, StoredFile } from './rows.ts';
import { isFinished } from './states.ts';
import type { Folders } from './store.ts';

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

/* Folders of artifacts: one an export, in it one a run, by its fence. Nothing a caller says ever becomes part of a path. */

const EXPORT_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
/** A run's folder, or what it is written in until it is whole. */
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

  /** Where a run's artifact lies, or will. */
  artifact(exportId: string, fence: number): string {
    return join(this.#folder(exportId), String(fence));
  }

  /** What one run left behind. */
  async removeRun(exportId: string, fence: number): Promise<void> {
    await this.#removeRuns(exportId, (number) => number === fence);
  }

  /** What is no longer needed of an export. */
  async removeUnneeded(exportId: string, { state, fence, kept }: Folders): Promise<void> {
    await this.#removeRuns(exportId, (number) => (isFinished(state) ? number !== kept : number < fence));
  }

  /** Ids of exports that have a folder. */
  async present(): Promise<string[]> {
    const names = await readdir(this.#root).catch((error) => {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw error;
    });
    return names.filter(isExportId);
  }

  async #removeRuns(exportId: string, isUnneeded: (fence: number) => boolean): Promise<void> {
    const folder = this.#folder(exportId);
    // What a link leads to is not ours.
    if (!(await lstat(folder).catch(() => undefined))?.isDirectory()) return;
    const names = await readdir(folder).catch(() => []);
    for (const name of names) {
      const fence = RUN_FOLDER.exec(name)?.[1];
      if (fence !== undefined && isUnneeded(Number(fence)))
        await rm(join(folder, name), { recursive: true, force: true });
    }
    // Only where nothing is left.
    await rmdir(folder).catch(() => {});
  }
}
