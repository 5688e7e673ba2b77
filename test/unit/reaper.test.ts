/** The process that ends what a killed run of tests leaves behind (test/support/reaper.ts). */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { isAlive, type ProcessRef, processRef } from '../../shared/stack/processes.ts';
import { type FolderNote, notesIn } from '../support/leftovers.ts';
import { temporaryDir } from '../support/stack.ts';

const REAPER = join(import.meta.dirname, '../support/reaper.ts');

/** A process without the run's environment, as a killed process is while it releases its memory. */
function processFor(seconds: number): { ref: ProcessRef; ended: Promise<unknown> } {
  const child = spawn('sleep', [String(seconds)], { env: { PATH: process.env.PATH }, stdio: 'ignore' });
  return { ref: processRef(child.pid as number) as ProcessRef, ended: once(child, 'exit') };
}

// The reaper left the servers of a worker that was being killed: it counted as alive, and nobody came back for them.
test('servers of a process that is about to end are ended after it', async () => {
  const stateDir = await temporaryDir();
  const [owner, server] = [processFor(0.7), processFor(600)];
  const note: FolderNote = { dir: join(stateDir, 'tests'), owner: owner.ref, run: 'this-run' };
  await mkdir(join(note.dir, 'stack'), { recursive: true });
  await writeFile(join(note.dir, 'stack', 'stack.json'), JSON.stringify({ servers: { postgres: server.ref } }));
  await mkdir(notesIn(stateDir));
  await writeFile(join(notesIn(stateDir), 'tests'), JSON.stringify(note));

  const reaper = spawn(process.execPath, [REAPER, stateDir], {
    env: { ...process.env, TIDEMARK_TEST_RUN: 'this-run', TIDEMARK_TEST_MEMORY: '' },
    stdio: ['pipe', 'ignore', 'inherit'],
  });
  const reaped = once(reaper, 'exit');
  reaper.stdin.end();
  await reaped;
  try {
    expect(isAlive(owner.ref)).toBe(false);
    // The reaper sends a signal and does not wait; a busy machine ends the process a moment later.
    await expect.poll(() => isAlive(server.ref), { timeout: 10_000 }).toBe(false);
    expect(await readdir(notesIn(stateDir))).toEqual([]);
  } finally {
    if (isAlive(server.ref)) process.kill(server.ref.pid, 'SIGKILL');
    await Promise.all([owner.ended, server.ended]);
  }
});
