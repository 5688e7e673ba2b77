/** Opens files in folders that other users can write to: regular files only. */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';

/** The path names a folder, a pipe, a device, a socket or a link. */
export class NotRegularFile extends Error {
  override readonly name = 'NotRegularFile';
}

/** Error codes of opening a link, and of opening a socket or a device that nobody serves. */
const IRREGULAR: ReadonlySet<unknown> = new Set(['ELOOP', 'ENXIO', 'ENODEV']);

/**
 * Opens a file for reading; it neither follows a link nor waits. Waiting for the writer of a pipe would occupy one of the
 * process's few threads for file work for ever.
 * @throws NotRegularFile, or the system's error, such as ENOENT.
 */
export async function openRegular(path: string): Promise<FileHandle> {
  let file: FileHandle;
  try {
    file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (cause) {
    if (IRREGULAR.has((cause as NodeJS.ErrnoException).code)) throw new NotRegularFile('not a regular file', { cause });
    throw cause;
  }
  try {
    if ((await file.stat()).isFile()) return file;
  } catch (error) {
    await file.close();
    throw error;
  }
  await file.close();
  throw new NotRegularFile('not a regular file');
}
