/**
 * Where servers of tests keep their files: in memory, if the machine has room, since making and copying databases is slow on
 * a disk. That holds for the servers that a run shares and for `system/stack`, which copies clusters (20 s in memory, 60 s on
 * a slow disk). Other servers of a test's own stay on the disk: nats-server reserves a share of it for the test's streams.
 */
import { createHash } from 'node:crypto';
import { readFileSync, statfsSync } from 'node:fs';
import { rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const MEMORY = '/dev/shm';
const GIB = 1024 ** 3;
/** Far more than a run holds at a time (0.2 GiB). The shared nats-server reserves a multiple of what there is (profiles.ts). */
const FREE_BYTES = 8 * GIB;

/** A folder of the tree in memory, or undefined: see `memoryOrDisk`. */
export function memoryFolder(root: string): string | undefined {
  const parent = memoryOrDisk();
  if (parent !== MEMORY) return undefined;
  return join(parent, `tidemark-tests-${createHash('sha256').update(root).digest('hex').slice(0, 12)}`);
}

/** Removes the folder under another name: the next run of the tree may make its own meanwhile. */
export async function removeMemoryFolder(folder: string | undefined): Promise<void> {
  if (!folder) return;
  const gone = `${folder}-${process.pid}`;
  try {
    await rename(folder, gone);
  } catch {
    return; // There is none.
  }
  await rm(gone, { recursive: true, force: true });
}

/**
 * /dev/shm where it has room and executes programs (a container's default does neither), or the temporary folder. A TMPDIR
 * that is set is used in any case.
 */
export const memoryOrDisk = (): string => (process.env.TMPDIR === undefined && isRoomy() ? MEMORY : tmpdir());

function isRoomy(): boolean {
  try {
    const mount = readFileSync('/proc/mounts', 'utf8')
      .split('\n')
      .map((line) => line.split(' '))
      .findLast(([, path]) => path === MEMORY);
    const { bavail, bsize } = statfsSync(MEMORY);
    return (
      mount !== undefined &&
      !mount[3].split(',').includes('noexec') &&
      bavail * bsize >= FREE_BYTES &&
      process.availableMemory() >= FREE_BYTES
    );
  } catch {
    return false; // Another operating system.
  }
}
