/** Files in folders that others can reach too: only a regular file is opened. */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';

/** It is a folder, a pipe, a device, a socket or a link. */
export class NotRegularFile extends Error {
  override readonly name = 'NotRegularFile';
}

/** Of a link, and of a socket or a device that nobody serves. */
const IRREGULAR: ReadonlySet<unknown> = new Set(['ELOOP', 'ENXIO', 'ENODEV']);

/**
 * Opens for reading without following a link and without waiting: the open of a pipe that nobody writes to would keep one
 * of the process's few threads for file work for ever.
 * @throws NotRegularFile, or what the system says, as ENOENT.
 */
export async function openRegular(path: string): Promise<FileHandle> {
  let file: FileHandle;
  try {
    file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (cause) {
    if (IRREGULAR.has((cause as NodeJS.ErrnoException).code)) throw new NotRegularFile('no regular file', { cause });
    throw cause;
  }
  try {
    if ((await file.stat()).isFile()) return file;
  } catch (error) {
    await file.close();
    throw error;
  }
  await file.close();
  throw new NotRegularFile('no regular file');
}
