/** A process that is ending still works in its folder: its shared memory is in use until the kernel has released it. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, readlinkSync } from 'node:fs';
import { basename } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { isAlive, type ProcessRef, processesIn, processRef } from '../../shared/stack/processes.ts';
import { temporaryDir } from '../support/stack.ts';

function worksIn({ pid }: ProcessRef, dir: string): boolean {
  try {
    return readlinkSync(`/proc/${pid}/cwd`) === dir;
  } catch {
    return false;
  }
}

// PostgreSQL refused to start beside the shared memory of a server that had been killed and was not looked for any more.
test('is found until it has ended', async () => {
  const dir = await temporaryDir();
  // A program of one thread that holds much memory.
  const child = spawn('dd', ['if=/dev/zero', 'of=/dev/null', 'bs=400000000', 'count=1000000'], {
    cwd: dir,
    stdio: 'ignore',
  });
  const exited = once(child, 'exit');
  const ref = processRef(child.pid as number) as ProcessRef;
  const pages = () => Number(readFileSync(`/proc/${ref.pid}/statm`, 'utf8').split(' ')[1]);
  while (pages() * 4096 < 300e6) await sleep(10);
  const program = basename(readlinkSync(`/proc/${ref.pid}/exe`));
  child.kill('SIGKILL');
  let missed = 0;
  do {
    const isFound = processesIn(dir, program).includes(ref.pid);
    // Between the release of its memory and its end, a process has no folder any more.
    if (!isFound && worksIn(ref, dir)) missed++;
  } while (isAlive(ref));
  expect(missed).toBe(0);
  await exited;
});
