/** A test that is skipped says why, in its name and at the end of the run. */
import { spawnSync } from 'node:child_process';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ROOT } from '../support/command.ts';
import { temporaryDir } from '../support/stack.ts';

const TESTS = join(ROOT, 'test');

test('no test is skipped without a reason: given.ts is the way to do it', async () => {
  const names = (await readdir(TESTS, { recursive: true })).filter((name) => name.endsWith('.test.ts'));
  const silent: string[] = [];
  for (const name of names.filter((one) => !one.endsWith('/skipped.test.ts'))) {
    const text = await readFile(join(TESTS, name), 'utf8');
    if (/\b(skipIf|runIf)\b|\b(test|it|describe)\.(skip|todo|only)\b/.test(text)) silent.push(name);
  }
  expect(silent).toEqual([]);
});

test('the end of a run counts what was skipped by its reason, and not what a filter leaves out', async () => {
  const dir = await temporaryDir();
  const support = (name: string) => JSON.stringify(join(import.meta.dirname, '../support', name));
  await writeFile(
    join(dir, 'some.test.ts'),
    `import { expect, test } from ${JSON.stringify(join(ROOT, 'node_modules/vitest/dist/index.js'))};
     import { given, givenData } from ${support('given.ts')};
     givenData('nobody/has this').describe('of real rows', () => { test('one', () => {}); test('two', () => {}); });
     given(false, 'there is no moon').test('at night', () => {});
     given(true, 'there is no sun').test('by day', () => {});
     test('a note', ({ skip }) => skip('it is too late'));
     test('left out', () => {});`,
  );
  const run = (...more: string[]) =>
    spawnSync(
      join(ROOT, 'node_modules/.bin/vitest'),
      ['run', '--root', dir, `--reporter=${join(import.meta.dirname, '../support/skipped-reporter.ts')}`, ...more],
      { encoding: 'utf8', cwd: ROOT },
    );
  const { stdout, stderr } = run();
  expect(stdout.trim().split('\n'), stderr).toEqual([
    'skipped: 2 tests: there is no ../shared/data/nobody/has this',
    'skipped: 1 test: there is no moon',
    'skipped: 1 test: it is too late',
  ]);
  expect(run('-t', 'left out').stdout).not.toContain('late');
  await rm(dir, { recursive: true, force: true });
});
