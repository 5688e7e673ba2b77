/** Files below a folder. A symbolic link may lead about within the folder; one that leads out of it is refused. */
import type { BigIntStats } from 'node:fs';
import { constants, type FileHandle, lstat, open, realpath } from 'node:fs/promises';
import { relative, sep } from 'node:path';
import { TidemarkError } from '../../../shared/errors.ts';

export interface FileBelow extends AsyncDisposable {
  readonly file: FileHandle;
  /** Of the open file. */
  readonly stats: BigIntStats;
  /** Its path without symbolic links. */
  readonly path: string;
}

/**
 * Opens a file for reading. The folder itself may be reached through links. What is no regular file is opened without
 * waiting for a writer; the caller looks at `stats`.
 * @throws TidemarkError SOURCE_OUTSIDE_FOLDER; faults of the file system as they are.
 */
export async function openBelow(folder: string, path: string): Promise<FileBelow> {
  const real = await resolved(folder, path);
  const file = await open(real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const stats = await file.stat({ bigint: true });
    // A folder on the way may have become a link since: then the path leads elsewhere now, or to another file.
    const named = await lstat(await resolved(folder, real), { bigint: true });
    if (named.ino !== stats.ino || named.dev !== stats.dev) throw outside(folder, path);
    return { file, stats, path: real, [Symbol.asyncDispose]: () => file.close() };
  } catch (error) {
    await file.close();
    throw error;
  }
}

/** All bytes of a file below a folder; faults as of `openBelow`. */
export async function readBelow(folder: string, path: string, signal?: AbortSignal): Promise<Buffer> {
  await using opened = await openBelow(folder, path);
  return await opened.file.readFile({ signal });
}

async function resolved(folder: string, path: string): Promise<string> {
  const real = await realpath(path);
  const way = relative(await realpath(folder), real);
  if (way === '..' || way.startsWith(`..${sep}`)) throw outside(folder, path);
  return real;
}

/** Names the link, never what it leads to. */
function outside(folder: string, path: string): TidemarkError {
  const message = `${path} is a link that leads out of ${folder}, or lies behind one`;
  return new TidemarkError('SOURCE_OUTSIDE_FOLDER', message, { details: { path, folder } });
}
