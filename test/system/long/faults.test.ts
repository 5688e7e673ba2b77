/**
 * Three minutes of a campaign of faults, as `npm run faults` runs it. TIDEMARK_TEST_CAMPAIGN asks for it until campaigns have run for
 * hours without a fault of their own: the seed draws the schedule, but what a fault meets depends on the machine.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect } from 'vitest';
import { ROOT } from '../../support/command.ts';
import { given } from '../../support/given.ts';

const SEED = 20_240_601;

const isAsked = process.env.TIDEMARK_TEST_CAMPAIGN === '1';

async function campaign(): Promise<void> {
  const args = [join(ROOT, 'test/faults/main.ts'), '--seed', String(SEED), '--minutes', '3', '--json'];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const [out, log, [exit]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
  console.log(log);
  expect(exit, `${out}\n${log}`).toBe(0);
  const { failures, faults_total, answers, oracles } = JSON.parse(out);
  expect(failures).toEqual([]);
  expect(faults_total).toBeGreaterThan(20);
  expect(answers).toBeGreaterThan(20);
  expect(oracles).toMatchObject({ 'every row verifies against the log': expect.any(Number) });
}

given(isAsked, 'TIDEMARK_TEST_CAMPAIGN=1 asks for a campaign of faults').test(
  'three minutes of faults: nothing is lost, doubled or served unproved',
  campaign,
  1_200_000,
);
