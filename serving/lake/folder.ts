/** The folder of a lake: its root manifest, and files in progress. serving/lake/table.ts has its tables. */
import { constants } from 'node:fs';
import { access, mkdir, readdir, readFile, realpath, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { explain, TidemarkError } from '../../shared/errors.ts';
import {
  type LakeManifest,
  MANIFEST_FILE,
  MirrorFault,
  PARTIAL_FOLDER,
  parseLakeManifest,
} from '../../shared/mirror/lake-manifest.ts';
import { refuseLinks, writeDurably } from '../../shared/proof-log/folder.ts';

/** What a writer that was killed at its first steps leaves in a new lake. */
const isOfANewLake = (name: string): boolean => name === PARTIAL_FOLDER || name.startsWith(`.${MANIFEST_FILE}.`);

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

export class LakeFolder {
  readonly location: string;

  private constructor(location: string) {
    this.location = location;
  }

  /** Makes the folder where it does not exist, and changes nothing in one that does. @throws TidemarkError USAGE */
  static async open(folder: string): Promise<LakeFolder> {
    try {
      await mkdir(folder, { recursive: true, mode: 0o750 });
      await access(folder, constants.R_OK | constants.W_OK | constants.X_OK);
      return new LakeFolder(await realpath(folder));
    } catch (cause) {
      const isFile = codeOf(cause) === 'EEXIST' || codeOf(cause) === 'ENOTDIR';
      throw refused(folder, isFile ? 'it is a file, or lies below one' : explain(cause), cause);
    }
  }

  async readRoot(): Promise<LakeManifest | undefined> {
    const { location } = this;
    let text: string;
    try {
      text = await readFile(join(location, MANIFEST_FILE), 'utf8');
    } catch (cause) {
      if (!isMissing(cause)) throw refused(location, explain(cause), cause);
      const foreign = (await readdir(location)).filter((name) => !isOfANewLake(name));
      if (foreign.length === 0) return undefined;
      throw refused(
        location,
        `it is not empty and has no ${MANIFEST_FILE} (it holds ${foreign.slice(0, 3).join(', ')})`,
      );
    }
    try {
      return parseLakeManifest(Buffer.from(text));
    } catch (cause) {
      if (cause instanceof MirrorFault) throw refused(location, `its ${cause.message}`, cause);
      throw cause;
    }
  }

  async writeRoot(bytes: Uint8Array): Promise<void> {
    await writeDurably(join(this.location, MANIFEST_FILE), bytes, 0o640);
  }

  /** Removes what a killed writer had in progress. */
  async clear(): Promise<void> {
    await rm(join(this.location, PARTIAL_FOLDER), { recursive: true, force: true });
  }

  /** An empty folder for a file in progress. */
  async stage(name: string): Promise<string> {
    const path = await this.unstage(name);
    await mkdir(path, { recursive: true, mode: 0o750 });
    return path;
  }

  async unstage(name: string): Promise<string> {
    const path = join(this.location, PARTIAL_FOLDER, name);
    await refuseLinks(this.location, join(PARTIAL_FOLDER, name));
    await rm(path, { recursive: true, force: true });
    return path;
  }
}
