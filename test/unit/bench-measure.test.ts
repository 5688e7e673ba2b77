/** What a benchmark reads of the processes it measures. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { afterEach, expect, test } from 'vitest';
import { childrenOf, cpuSeconds, pidsBelow, watch } from '../../bench/measure.ts';

/** Until it has used 0.3 s of CPU, however long that takes beside others. */
const BUSY = 'for (let used = 0; used < 3e5; used = process.cpuUsage().user);';
const PARENT = `
  const child = require('node:child_process').spawn(process.execPath, ['-e', ${JSON.stringify(`${BUSY} console.log('ready'); setInterval(() => {}, 1000)`)}]);
  child.stdout.once('data', () => console.log(child.pid));
  process.stdin.once('end', () => { child.kill(); child.once('exit', () => process.exit()); }).resume();`;

let parent: ReturnType<typeof spawn> | undefined;
afterEach(async () => {
  if (!parent) return;
  parent.stdin!.end();
  await once(parent, 'exit');
});

test('a process is measured with the children of its children, and with nothing else', async () => {
  parent = spawn(process.execPath, ['-e', PARENT], { stdio: ['pipe', 'pipe', 'inherit'] });
  const pid = parent.pid!;
  const watched = watch(pid, 1000);
  const [line] = await once(parent.stdout!, 'data');
  const child = Number(line);
  expect(childrenOf(pid)).toEqual([child]);
  expect(pidsBelow([pid]).sort()).toEqual([pid, child].sort());
  expect(pidsBelow([process.pid])).toEqual(expect.arrayContaining([pid, child]));
  expect(cpuSeconds(pid)).toBeGreaterThan(cpuSeconds(child));
  expect(cpuSeconds(child)).toBeGreaterThanOrEqual(0.25);
  const { cpu, peakMib } = watched.stop();
  expect(cpu).toBeGreaterThanOrEqual(cpuSeconds(child));
  const highest = Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${child}/status`, 'latin1'))![1]) / 1024;
  expect(Math.max(...Object.values(peakMib))).toBeGreaterThanOrEqual(Math.floor(highest) - 1);
});
