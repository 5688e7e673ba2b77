/** Every benchmark at its smallest size: it runs to its end and prints its ratios, whatever was moved since it was last run. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { SUBJECTS } from '../../bench/subjects.ts';
import { ROOT } from '../support/command.ts';

// The rights matrix that two of them named had moved, and nothing failed until somebody measured.
test.each(SUBJECTS)('$name', async ({ name, smallest }) => {
  const args = [join(ROOT, 'bench/main.ts'), name, '--json', '--rounds', '1', ...smallest.split(' ')];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: ROOT });
  const { bench, compared } = JSON.parse(stdout);
  expect(bench).toBe(name);
  for (const { ratio } of compared) {
    for (const { min, median, max } of Object.values<Record<string, number>>(ratio)) {
      expect(min).toBeGreaterThan(0);
      expect(median).toBeGreaterThanOrEqual(min);
      expect(max).toBeGreaterThanOrEqual(median);
    }
  }
  expect(compared.length).toBeGreaterThan(0);
});
