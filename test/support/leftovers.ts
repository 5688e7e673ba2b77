/** Servers and folders of test processes that were killed. */
import { readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { isAlive, type ProcessRef, processesIn } from '../../shared/stack/processes.ts';

/** Ends what earlier test processes left behind when they were killed. */
export async function endLeftovers(testStateDir: string): Promise<void> {
  const notes = join(testStateDir, 'test-folders');
  for (const name of await readdir(notes).catch(() => [])) {
    const note = JSON.parse(await readFile(join(notes, name), 'utf8')) as { dir: string; owner: ProcessRef };
    if (isAlive(note.owner)) continue;
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
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It ended meanwhile.
  }
}
