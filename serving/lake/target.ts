/**
 * Where a lake is written. The writer knows this interface alone; a folder is its only implementation so far.
 *
 * After a kill at any instant each file of rows is whole, and its sha256 is the one in the manifest beside it or in the root
 * manifest: the manifest beside it is renamed before the rows, the root manifest is written last.
 */
import { constants } from 'node:fs';
import { access, lstat, mkdir, open, readdir, readFile, realpath, rename, rm, rmdir } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { explain, TidemarkError } from '../../shared/errors.ts';
import { refuseLinks } from '../../shared/proof-log/folder.ts';
import {
  FILE_MANIFEST,
  fileOf,
  folderOf,
  type LakeFile,
  PARTIAL,
  parseRoot,
  ROOT_MANIFEST,
  ROWS_FILE,
  type RootManifest,
} from './format.ts';

/** A file whose rows and manifest are complete and synced. */
export interface StagedFile {
  readonly rows: string;
  readonly manifest: string;
}

export interface LakeTarget {
  /** Names it, whatever path leads to it. */
  readonly location: string;
  /** The root manifest; undefined for a new lake. @throws TidemarkError USAGE */
  readRoot(): Promise<RootManifest | undefined>;
  /** Replaces the root manifest. @param settled files that were put, and of which it says what they are now */
  writeRoot(bytes: Uint8Array, settled: Iterable<LakeFile>): Promise<void>;
  /** Files that an earlier writer may have put without a root manifest that says so: until one does, this call names them again. */
  takeOver(): Promise<readonly LakeFile[]>;
  /** All files of rows that it holds. */
  files(): AsyncIterable<LakeFile>;
  /** Sizes of a file's rows and of the manifest beside it; undefined where one is missing. */
  sizesOf(file: LakeFile): Promise<{ readonly rows: number; readonly manifest: number } | undefined>;
  /** An empty folder for a file in progress. */
  stage(file: LakeFile): Promise<string>;
  /** Replaces the file. */
  put(file: LakeFile, staged: StagedFile): Promise<void>;
  remove(file: LakeFile): Promise<void>;
}

const ROOT_IN_PROGRESS = `${ROOT_MANIFEST}${PARTIAL}`;
/** What a writer that was killed at its first steps leaves in a new lake. */
const OF_A_NEW_LAKE: ReadonlySet<string> = new Set([PARTIAL, ROOT_IN_PROGRESS]);

/** Joins the folder of a file to a name in `_partial`, from which `takeOver` learns what was in progress. */
const SEPARATOR = '~';

const codeOf = (error: unknown) => String((error as NodeJS.ErrnoException | null)?.code);
const isMissing = (error: unknown) => codeOf(error) === 'ENOENT';
const refused = (folder: string, why: string, cause?: unknown) =>
  new TidemarkError('USAGE', `${folder} cannot be a lake: ${why}`, {
    remedy:
      'Name a folder that is empty, does not exist, or holds a lake of this release, and that this user may write to.',
    cause,
  });

const FULL: ReadonlySet<string> = new Set(['ENOSPC', 'EDQUOT', 'EFBIG']);

/** A fault of the disk under a lake. */
export function notWritten(folder: string, cause: unknown): TidemarkError {
  if (cause instanceof TidemarkError) return cause;
  const why = FULL.has(codeOf(cause)) ? 'its disk is full' : explain(cause);
  return new TidemarkError('DISK_UNUSABLE', `The lake ${folder} cannot be written: ${why}`, { cause });
}

export class FolderTarget implements LakeTarget {
  readonly location: string;

  private constructor(location: string) {
    this.location = location;
  }

  /** Makes the folder where it does not exist, and changes nothing in one that does. @throws TidemarkError USAGE */
  static async open(folder: string): Promise<FolderTarget> {
    try {
      await mkdir(folder, { recursive: true, mode: 0o750 });
      await access(folder, constants.R_OK | constants.W_OK | constants.X_OK);
      return new FolderTarget(await realpath(folder));
    } catch (cause) {
      const isFile = codeOf(cause) === 'EEXIST' || codeOf(cause) === 'ENOTDIR';
      throw refused(folder, isFile ? 'it is a file, or lies below one' : explain(cause), cause);
    }
  }

  async readRoot(): Promise<RootManifest | undefined> {
    const { location } = this;
    let text: string;
    try {
      text = await readFile(join(location, ROOT_MANIFEST), 'utf8');
    } catch (cause) {
      if (!isMissing(cause)) throw refused(location, explain(cause), cause);
      const foreign = (await readdir(location)).filter((name) => !OF_A_NEW_LAKE.has(name));
      if (foreign.length === 0) return undefined;
      throw refused(
        location,
        `it is not empty and has no ${ROOT_MANIFEST} (it holds ${foreign.slice(0, 3).join(', ')})`,
      );
    }
    const found = parseRoot(text);
    if ('fault' in found) throw refused(location, String(found.fault));
    return found;
  }

  async writeRoot(bytes: Uint8Array, settled: Iterable<LakeFile>): Promise<void> {
    const path = join(this.location, ROOT_IN_PROGRESS);
    // Removed first: it may be a link, through which the manifest would be written.
    await rm(path, { force: true });
    const file = await open(path, 'wx', 0o640);
    try {
      await file.writeFile(bytes);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(path, join(this.location, ROOT_MANIFEST));
    await syncFolder(this.location);
    for (const file of settled) {
      await this.#refuseLinks(this.#stageOf(file));
      await rm(this.#stageOf(file), { recursive: true, force: true });
    }
  }

  async takeOver(): Promise<readonly LakeFile[]> {
    const partial = join(this.location, PARTIAL);
    const names = await readdir(partial).catch((error) => {
      if (isMissing(error)) return [];
      throw error;
    });
    return names.flatMap((name) => fileOf(name.replaceAll(SEPARATOR, '/')) ?? []);
  }

  async *files(): AsyncGenerator<LakeFile> {
    for (const dataset of await foldersOf(this.location)) {
      for (const mode of await foldersOf(join(this.location, dataset))) {
        for (const date of await foldersOf(join(this.location, dataset, mode))) {
          const file = fileOf(`${dataset}/${mode}/${date}`);
          if (file) yield file;
        }
      }
    }
  }

  async sizesOf(file: LakeFile) {
    const folder = this.#folderOf(file);
    try {
      const [rows, manifest] = await Promise.all([ROWS_FILE, FILE_MANIFEST].map((name) => lstat(join(folder, name))));
      return rows.isFile() && manifest.isFile() ? { rows: rows.size, manifest: manifest.size } : undefined;
    } catch (error) {
      if (isMissing(error) || codeOf(error) === 'ENOTDIR') return undefined;
      throw error;
    }
  }

  async stage(file: LakeFile): Promise<string> {
    const path = this.#stageOf(file);
    await this.#refuseLinks(path);
    await rm(path, { recursive: true, force: true });
    await mkdir(path, { recursive: true, mode: 0o750 });
    return path;
  }

  async put(file: LakeFile, { rows, manifest }: StagedFile): Promise<void> {
    const folder = this.#folderOf(file);
    await this.#refuseLinks(join(folder, ROWS_FILE));
    const made = await mkdir(folder, { recursive: true, mode: 0o750 });
    await rename(manifest, join(folder, FILE_MANIFEST));
    await rename(rows, join(folder, ROWS_FILE));
    await syncFolder(folder);
    if (made === undefined) return;
    for (let above = dirname(folder); above !== dirname(dirname(made)); above = dirname(above)) await syncFolder(above);
  }

  /** The rows go first: whoever reads by a pattern must not find them any longer, and the root manifest follows at once. */
  async remove(file: LakeFile): Promise<void> {
    const folder = this.#folderOf(file);
    await this.#refuseLinks(join(folder, ROWS_FILE));
    await rm(join(folder, ROWS_FILE), { force: true });
    await rm(join(folder, FILE_MANIFEST), { force: true });
    for (let empty = folder; empty !== this.location; empty = dirname(empty)) {
      try {
        await rmdir(empty);
      } catch (error) {
        if (isMissing(error)) continue;
        if (codeOf(error) === 'ENOTEMPTY' || codeOf(error) === 'EEXIST') return;
        throw error;
      }
    }
  }

  /** Nothing is written or removed through links in the lake. @throws LinkInFolder */
  async #refuseLinks(path: string): Promise<void> {
    await refuseLinks(this.location, relative(this.location, path));
  }

  #stageOf(file: LakeFile): string {
    return join(this.location, PARTIAL, folderOf(file).replaceAll('/', SEPARATOR));
  }

  #folderOf(file: LakeFile): string {
    return join(this.location, folderOf(file));
  }
}

async function foldersOf(path: string): Promise<string[]> {
  const found = await readdir(path, { withFileTypes: true });
  return found.filter((one) => one.isDirectory() && one.name.includes('=')).map(({ name }) => name);
}

async function syncFolder(path: string): Promise<void> {
  const handle = await open(path, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
