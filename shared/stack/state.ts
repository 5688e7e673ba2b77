/** What is remembered of a stack between processes: `stack.json` and the holder files. Read and written under its lock. */
import { randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from '../log/logger.ts';
import { isAlive, type ProcessRef, processRef } from './processes.ts';
import type { ServerName, ServerRecord } from './server.ts';

export type Records = { readonly [N in ServerName]?: ServerRecord };

export interface StackState {
  readonly version: 1;
  /** Where this was written: a copied folder tells of servers that are not its own. */
  readonly stateDir: string;
  /** How the servers are run; the data stays with the way that made it. */
  readonly kind: 'embedded' | 'docker';
  /** Records outlive their process: the port is used again. */
  readonly servers: Records;
}

export async function readState(stateDir: string): Promise<StackState | undefined> {
  try {
    const state = JSON.parse(await readFile(join(stateDir, 'stack.json'), 'utf8')) as StackState;
    if (state.version !== 1) return undefined;
    return state.stateDir === stateDir ? state : { ...state, stateDir, servers: forgetProcesses(state.servers) };
  } catch {
    // Missing, or cut short by a full disk: servers found running in the folders are ended before new ones start.
    return undefined;
  }
}

/** The records of servers that do not run: only their ports stay. */
export function forgetProcesses(records: Records): Records {
  return Object.fromEntries(
    Object.entries(records).map(([name, { port }]) => [name, { pid: 0, identity: '', port } satisfies ServerRecord]),
  );
}

export function writeState(stateDir: string, kind: StackState['kind'], servers: Records): Promise<void> {
  const state: StackState = { version: 1, stateDir, kind, servers };
  return writeAtomic(join(stateDir, 'stack.json'), `${JSON.stringify(state, null, 2)}\n`, 0o644);
}

/** Replaces a file so that it is whole whenever it is read. */
export async function writeAtomic(path: string, text: string, mode: number): Promise<void> {
  const part = `${path}.${randomBytes(4).toString('hex')}`;
  try {
    await using file = await open(part, 'wx', mode);
    await file.writeFile(text);
    await file.sync();
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
  await rename(part, path);
}

const NO_SPACE: ReadonlySet<string> = new Set(['ENOSPC', 'EDQUOT']);

/**
 * Registers this process as a user of the stack; returns the name to leave with. `others`: how many there are. Where the
 * disk is full and others keep the servers running it goes unregistered: whoever looks for the fault must be let in.
 */
export async function addHolder(stateDir: string, others: number, log: Logger): Promise<string> {
  const name = `${process.pid}-${randomBytes(4).toString('hex')}`;
  const path = join(stateDir, 'holders', name);
  try {
    await mkdir(join(stateDir, 'holders'), { recursive: true });
    await writeAtomic(path, JSON.stringify({ ...processRef(process.pid), stateDir }), 0o644);
  } catch (error) {
    if (others === 0 || !NO_SPACE.has((error as NodeJS.ErrnoException).code ?? '')) throw error;
    log.warn({ stateDir }, 'the disk is full: this process is not registered, and the servers end with the others');
  }
  return name;
}

export async function removeHolder(stateDir: string, name: string): Promise<void> {
  await rm(join(stateDir, 'holders', name), { force: true });
}

/** How many live users there are; the files of dead ones are removed. */
export async function countHolders(stateDir: string): Promise<number> {
  const dir = join(stateDir, 'holders');
  let live = 0;
  for (const name of await readdir(dir).catch(() => [])) {
    let ref: (ProcessRef & { stateDir: string }) | undefined;
    try {
      ref = JSON.parse(await readFile(join(dir, name), 'utf8')) as ProcessRef & { stateDir: string };
    } catch {
      // cut short: its writer is dead, since files here appear whole
    }
    if (ref?.stateDir === stateDir && isAlive(ref)) live++;
    else await rm(join(dir, name), { force: true });
  }
  return live;
}
