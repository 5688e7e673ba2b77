/** Every benchmark at its smallest size: it runs to its end and prints its ratio, whatever was moved since it was last run. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { BENCHES } from '../../bench/benches.ts';
import { ROOT } from '../support/command.ts';

const bench = (args: readonly string[], env: NodeJS.ProcessEnv = process.env) =>
  promisify(execFile)(process.execPath, [join(ROOT, 'bench/main.ts'), ...args], { cwd: ROOT, env });

// The rights matrix that two of them named had moved, and nothing failed until somebody measured.
test.each(
  BENCHES.filter(({ needs }) => needs === undefined).flatMap(({ name, quick }) => quick.map((sizes) => [name, sizes])),
)('%s %s', async (name, options) => {
  const { stdout, stderr } = await bench([name, '--json', ...options.split(' ')]);
  expect(JSON.parse(stdout)).toMatchObject({ bench: name });
  // The soak compares nothing: it counts errors.
  expect(stdout).toMatch(name === 'soak' ? /"ok":true.*"errors":\[\]/ : /"(?:\w+_)?ratio\w*":\s*[\d.]+/);
  expect(stderr).toMatch(
    /^noise before and after: load [\d.]+ and [\d.]+, busy [\d.]+ and [\d.]+, fixed loop [\d.]+\.\.[\d.]+ and/m,
  );
});
