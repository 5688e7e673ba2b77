/**
 * A quarter of an hour of a campaign of faults, as `npm run faults` runs it. The seed draws the schedule, but what a fault meets also depends
 * on the timing of the machine: a failure prints the seed and the schedule, and need not come again.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { ROOT } from '../support/command.ts';

const SEED = 20_240_601;

test('a quarter of an hour of faults: nothing is lost, doubled or served unproved', async () => {
  const args = [join(ROOT, 'test/faults/main.ts'), '--seed', String(SEED), '--minutes', '15', '--json'];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const [out, log, [exit]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
  console.log(log);
  expect(exit, `${out}\n${log}`).toBe(0);
  const { failures, faults_total, answers, oracles } = JSON.parse(out);
  expect(failures).toEqual([]);
  // A machine that is busy with other tests gets to fewer.
  expect(faults_total).toBeGreaterThan(20);
  expect(answers).toBeGreaterThan(100);
  expect(oracles).toMatchObject({ 'every row verifies against the log': expect.any(Number) });
}, 2_400_000);
