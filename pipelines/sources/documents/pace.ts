/**
 * Calls of one address, spaced over all processes of this host. Time is cut into slots, and a call belongs to the
 * process that made the slot's file: creating one is atomic, needs no lock that a killed process could keep, and the
 * clock is the same for all.
 */
import { createHash } from 'node:crypto';
import { chmod, mkdir, open, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../../../shared/errors.ts';

export interface PaceOptions {
  /** What is paced; processes that name the same wait for each other. */
  readonly name: string;
  readonly spacingMs: number;
  readonly signal?: AbortSignal;
  /** Default a folder of the host's temporary directory. */
  readonly directory?: string;
}

/** How late a process may wake up in its slot. Slots are longer by it, so calls never come closer than the spacing. */
const TOLERANCE_MS = 50;
/** Slots this long past are forgotten. */
const KEPT_SLOTS = 20;

const hostDirectory = () => join(tmpdir(), 'tidemark-pace');

/** Where the slots of what is paced lie. A slot's name is its start over its length, the spacing and the tolerance. */
export const folderOf = (name: string, directory = hostDirectory()): string =>
  join(directory, createHash('sha256').update(name).digest('hex').slice(0, 16));

/** Resolves when the caller may make its call, which it must then do at once. */
export async function pace(options: PaceOptions): Promise<void> {
  const { name, spacingMs, signal, directory = hostDirectory() } = options;
  const folder = folderOf(name, directory);
  const slotMs = spacingMs + TOLERANCE_MS;
  try {
    await makeShared(directory);
    await makeShared(folder);
    for (;;) {
      signal?.throwIfAborted();
      const slot = await reserve(folder, Math.ceil(Date.now() / slotMs));
      const startMs = slot * slotMs;
      // While there is time: between the beginning of the slot and the call nothing else is to be waited for.
      await forget(folder, Math.floor(Date.now() / slotMs) - KEPT_SLOTS);
      while (Date.now() < startMs) await sleep(startMs - Date.now(), undefined, { signal });
      if (Date.now() < startMs + TOLERANCE_MS) return;
    }
  } catch (cause) {
    signal?.throwIfAborted();
    throw new TidemarkError('SPOOL_UNUSABLE', `Calls of ${name} cannot be paced: ${folder} is not usable`, { cause });
  }
}

/** The first free slot from `first` on. */
async function reserve(folder: string, first: number): Promise<number> {
  for (let slot = first; ; slot++) {
    try {
      await (await open(join(folder, String(slot)), 'wx')).close();
      return slot;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
  }
}

/** For every user of the host, as the temporary directory is. */
async function makeShared(path: string): Promise<void> {
  const made = await mkdir(path, { recursive: true });
  if (made !== undefined) await chmod(path, 0o1777);
}

async function forget(folder: string, before: number): Promise<void> {
  const old = (await readdir(folder)).filter((name) => Number(name) < before);
  // Of another user's, or gone: either way not ours to remove.
  for (const name of old) await rm(join(folder, name), { force: true }).catch(() => {});
}
