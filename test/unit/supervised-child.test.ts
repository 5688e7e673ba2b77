/** A child of a command that is started again, whatever ended it or kept it from starting. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
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

const STAYS = 'console.log("started"); setInterval(() => {}, 1000);';

async function optionsOf(
  warnings: Warning[],
  more: Partial<ChildOptions> = {},
  script: string = STAYS,
): Promise<ChildOptions> {
  const path = join(await temporaryDir(), 'child.mjs');
  await writeFile(path, script);
  const note = (warning: Warning) => void warnings.push(warning);
  const log = { warn: note, error: note } as unknown as Logger;
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

/** Counts its starts beside itself, and does at each what `steps` says. */
const stepwise = (...steps: string[]) => `
  import { readFileSync, writeFileSync } from 'node:fs';
  const path = new URL('starts', import.meta.url);
  let starts = 0;
  try { starts = Number(readFileSync(path, 'utf8')); } catch {}
  writeFileSync(path, String(starts + 1));
  ${steps.map((step, index) => `if (starts === ${index}) { ${step} }`).join('\n  ')}
  if (starts >= ${steps.length}) { ${STAYS} }`;

// Another program had its port for a moment, and the command went on without its service.
test.each([
  ['whose lines are read', true],
  ['whose lines nobody reads', false],
])('a child %s was up, and one refusal ended it for ever', async (_, isHeard) => {
  const warnings: Warning[] = [];
  const lines: string[] = [];
  let refusals = 0;
  const script = stepwise(
    `console.log('up'); setTimeout(() => process.kill(process.pid, 'SIGKILL'), 50);`,
    'process.exit(2);',
  );
  const options = await optionsOf(
    warnings,
    { onRefusal: () => void refusals++, ...(isHeard && { onLine: (line) => void lines.push(line) }) },
    script,
  );
  const starts = join(PROJECT_ROOT, options.module, '..', 'starts');
  await using _child = new SupervisedChild(options);
  await eventually(async () => (await readFile(starts, 'utf8').catch(() => '')) === '3', 'the third start');
  if (isHeard) await eventually(async () => lines.includes('started'), 'its line');
  expect(refusals).toBe(0);
  expect(warnings).toMatchObject([
    { signal: 'SIGKILL', waitMs: 100 },
    { child: 'child', waitMs: 200 },
  ]);
});

test('a child that has never been up and refuses its settings is not started again, though it says why', async () => {
  const warnings: Warning[] = [];
  const refused = Promise.withResolvers<void>();
  const lines: string[] = [];
  const options = await optionsOf(
    warnings,
    { onRefusal: refused.resolve, onLine: (line) => void lines.push(line) },
    stepwise('process.exit(1);', `console.log('why'); process.exitCode = 2;`),
  );
  await using _child = new SupervisedChild(options);
  await refused.promise;
  expect(lines).toEqual(['why']);
  expect(warnings).toMatchObject([{ code: 1 }]);
});
