/** A child of a command that is started again, whatever ended it or kept it from starting. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { expect, test } from 'vitest';
import { type ChildOptions, type SpawnedChild, SupervisedChild } from '../../pipelines/cli/child.ts';
import { PROCESS_IO, PROJECT_ROOT } from '../../pipelines/cli/io.ts';
import type { Logger } from '../../shared/logger.ts';
import { eventually } from '../support/serving.ts';
import { temporaryDir } from '../support/stack.ts';

interface Warning {
  readonly fault?: string;
}

async function optionsOf(warnings: Warning[], more: Partial<ChildOptions> = {}): Promise<ChildOptions> {
  const path = join(await temporaryDir(), 'child.mjs');
  await writeFile(path, 'console.log("started"); setInterval(() => {}, 1000);');
  const log = { warn: (warning: Warning) => void warnings.push(warning) } as unknown as Logger;
  return { name: 'child', module: relative(PROJECT_ROOT, path), inherits: PROCESS_IO.env, log, ...more };
}

function notStarted(): SpawnedChild {
  const child = spawn('/nowhere/at/all', { stdio: ['pipe', 'pipe', 'pipe'] });
  return { child, exited: once(child, 'exit') as SpawnedChild['exited'] };
}

// The rejection was nobody's, and ended the command with all that it supervised.
test('a child that could not be started ended the command', async () => {
  const warnings: Warning[] = [];
  const lines: string[] = [];
  const options = await optionsOf(warnings, { onLine: (line) => void lines.push(line) });
  await using child = new SupervisedChild(options, notStarted());
  await eventually(async () => lines.length > 0, 'the next start');
  expect(lines).toEqual(['started']);
  expect(child.pid).toBeGreaterThan(0);
  expect(warnings).toMatchObject([{ child: 'child', waitMs: 100, fault: expect.stringContaining('ENOENT') }]);
});

test('a child that can never be started is tried again and again, and its end is not awaited', async () => {
  const warnings: Warning[] = [];
  // The system refuses an environment of this size.
  const options = await optionsOf(warnings, { env: { TOO_LONG: 'x'.repeat(1 << 20) } });
  await using child = new SupervisedChild(options);
  await eventually(async () => warnings.length > 1, 'two tries');
  for (const { fault } of warnings) expect(fault).toContain('E2BIG');
  expect(child.pid).toBeUndefined();
  await using _other = new SupervisedChild(options, notStarted());
});
