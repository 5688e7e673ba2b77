/**
 * Ends what a run of tests leaves behind when it is killed. The run's own process holds the other end of this process's
 * standard input: the pipe closes however that process ends, kill -9 included. `node reaper.ts STATE_DIR`; environment:
 * TIDEMARK_TEST_RUN, which every process of the run has inherited, and TIDEMARK_TEST_MEMORY, the run's folder in memory.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { isAlive } from '../../shared/stack/processes.ts';
import { countHolders, readState } from '../../shared/stack/state.ts';
import { endLeftovers } from './leftovers.ts';
import { removeMemoryFolder } from './memory.ts';

/** Processes of the run that are still there, this one excepted. */
function processesOfRun(run: string): number[] {
  const marker = `TIDEMARK_TEST_RUN=${run}`;
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .map(Number)
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes(marker);
      } catch {
        return false; // Gone, or somebody else's.
      }
    });
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // Gone meanwhile.
  }
}

const [stateDir] = process.argv.slice(2);
const run = process.env.TIDEMARK_TEST_RUN ?? 'none';
// A closed terminal or Ctrl-C reaches the whole group; this process has to outlive it.
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, () => {});

let said = '';
process.stdin.setEncoding('utf8').on('data', (text) => {
  said += text;
});
process.stdin.once('close', async () => {
  // A run that is told to end may kill a worker before the worker has ended its servers, and then end as it should.
  for (let left = processesOfRun(run); left.length > 0; left = processesOfRun(run)) {
    for (const pid of left) signal(pid, 'SIGKILL');
    await sleep(50);
  }
  // A killed process loses its environment tens of milliseconds before it counts as ended: it releases its memory first.
  while ((await endLeftovers(stateDir, run)).length > 0) await sleep(50);
  // A run that came to its end has released the shared servers itself. Or the next run holds them already.
  if (said.includes('done') || (await countHolders(stateDir)) > 0) return;
  const state = await readState(stateDir);
  for (const record of Object.values(state?.servers ?? {})) if (isAlive(record)) signal(record.pid, 'SIGKILL');
  await removeMemoryFolder(process.env.TIDEMARK_TEST_MEMORY);
});
