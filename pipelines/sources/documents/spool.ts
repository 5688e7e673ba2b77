/**
 * Downloads wait in a spool folder until they are decoded. A file's name tells which process owns it, so that what a
 * killed one left behind can be told from a download under way.
 */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, rm, stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { TidemarkError } from '../../../shared/errors.ts';
import { DAY_MS } from '../../../shared/time/days.ts';

const PREFIX = 'spool';
const SUFFIX = '.part';
/** Processes of another machine on a shared folder cannot be asked whether they live; no document takes this long. */
const FOREIGN_AGE_MS = 3 * DAY_MS;

export interface SpoolFile {
  readonly path: string;
  readonly handle: FileHandle;
}

/** A new, private file in the spool folder, which is made when missing. */
export async function openSpoolFile(spoolDir: string): Promise<SpoolFile> {
  const path = join(spoolDir, [PREFIX, host(), process.pid, startedAt('self'), `${randomUUID()}${SUFFIX}`].join('~'));
  try {
    await mkdir(spoolDir, { recursive: true });
    return { path, handle: await open(path, 'wx', 0o600) };
  } catch (cause) {
    throw new TidemarkError('SPOOL_UNUSABLE', `The spool folder ${spoolDir} cannot be written`, { cause });
  }
}

/** Removes the downloads of processes that are gone; returns how many. Safe to run while others download. */
export async function cleanSpool(spoolDir: string): Promise<number> {
  let removed = 0;
  for (const name of await namesIn(spoolDir)) {
    const owner = ownerOf(name);
    if (owner === undefined) continue;
    const path = join(spoolDir, name);
    const gone =
      owner.host === host() ? !isRunning(owner.pid, owner.startedAt) : await isOlderThan(path, FOREIGN_AGE_MS);
    if (!gone) continue;
    await rm(path, { force: true });
    removed++;
  }
  return removed;
}

interface Owner {
  readonly host: string;
  readonly pid: number;
  readonly startedAt: string;
}

function ownerOf(name: string): Owner | undefined {
  const parts = name.split('~');
  if (parts.length !== 5 || parts[0] !== PREFIX || !name.endsWith(SUFFIX) || !/^\d+$/.test(parts[2])) return undefined;
  return { host: parts[1], pid: Number(parts[2]), startedAt: parts[3] };
}

const host = () => encodeURIComponent(hostname()).replaceAll('~', '%7E');

function isRunning(pid: number, started: string): boolean {
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
  }
  const now = startedAt(pid);
  return started === '' || now === '' || now === started;
}

/** Start of a process in clock ticks since boot where the system tells it, else empty: pids are used again. */
function startedAt(pid: number | 'self'): string {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'latin1');
    // The command name, in brackets, may hold anything; counted from after it, the start time is the 20th field.
    return fields.slice(fields.lastIndexOf(')') + 2).split(' ')[19] ?? '';
  } catch {
    return '';
  }
}

async function isOlderThan(path: string, ageMs: number): Promise<boolean> {
  try {
    return Date.now() - (await stat(path)).mtimeMs > ageMs;
  } catch {
    return false;
  }
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}
