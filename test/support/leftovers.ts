/** Servers and folders of test processes that were killed. Each run notes the folders of its tests' own servers. */
import { readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { isAlive, type ProcessRef, processesIn } from '../../shared/stack/processes.ts';

/** A folder with servers, the test process that made it, and that process's run. */
export interface FolderNote {
  readonly dir: string;
  readonly owner: ProcessRef;
  readonly run?: string;
}

export const notesIn = (testStateDir: string): string => join(testStateDir, 'test-folders');

/**
 * Ends what test processes left behind when they were killed.
 * @returns the folders of `run` whose owner has not ended yet, and which are therefore left alone.
 */
export async function endLeftovers(testStateDir: string, run?: string): Promise<string[]> {
  const notes = notesIn(testStateDir);
  const owned: string[] = [];
  for (const name of await readdir(notes).catch(() => [])) {
    const note = await readNote(join(notes, name));
    if (!note) continue;
    if (isAlive(note.owner)) {
      if (note.run === run) owned.push(note.dir);
      continue;
    }
    const state = await readFile(join(note.dir, 'stack', 'stack.json'), 'utf8').catch(() => undefined);
    if (state !== undefined) {
      for (const record of Object.values((JSON.parse(state) as { servers: Record<string, ProcessRef> }).servers)) {
        if (isAlive(record)) kill(record.pid);
      }
    }
    // A Bitcoin node, which no stack knows of (see bitcoin.ts).
    for (const pid of processesIn(join(note.dir, 'node'), 'bitcoind')) kill(pid);
    await rm(note.dir, { recursive: true, force: true });
    await rm(join(notes, name), { force: true });
  }
  return owned;
}

/** Undefined where another process has just removed the note, or has not written all of it and started no server yet. */
async function readNote(path: string): Promise<FolderNote | undefined> {
  try {
    return JSON.parse(await readFile(path, 'utf8'));
  } catch {
    return undefined;
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It ended meanwhile.
  }
}
