/** Files that are on the disk under their name, or not there at all: what cannot be fetched again is written so. */
import { randomUUID } from 'node:crypto';
import { mkdir, open, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';

/** The name appears only when all bytes are on the disk, and is itself on the disk on return. `partial`: until then. */
export async function writeDurably(
  path: string,
  bytes: Uint8Array,
  partial = `${path}.part-${randomUUID()}`,
): Promise<void> {
  await makeDirectory(dirname(path));
  try {
    await using file = await open(partial, 'wx', 0o600);
    await file.writeFile(bytes);
    await file.sync();
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
  await rename(partial, path);
  await syncDirectory(dirname(path));
}

/** A new folder is on the disk when its parent's entry of it is. */
export async function makeDirectory(path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true, mode: 0o700 });
  if (first === undefined) return;
  for (let at = path; at.length >= first.length; at = dirname(at)) await syncDirectory(dirname(at));
}

export async function syncDirectory(path: string): Promise<void> {
  await using folder = await open(path, 'r');
  await folder.sync();
}
