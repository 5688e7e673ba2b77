/** Every benchmark at its smallest size: it runs to its end and prints its ratio, whatever was moved since it was last run. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { ROOT } from '../../support/command.ts';

// The rights matrix that two of them named had moved, and nothing failed until somebody measured.
test.each([
  ['ingest', '--rows 500 --rounds 1 --days 1'],
  ['export', '--rows 500 --rounds 1'],
  ['lake', '--rows 500 --rounds 1'],
  ['listeners', '--listeners 20 --changes 2 --seconds 1'],
  ['query', '--rows 500 --rounds 1 --latest 2 --only rows'],
  ['query', '--rows 500 --rounds 1 --latest 2 --only latest'],
  ['klines', '--month-rows 500 --days 2 --thin-rows 500 --thin-days 3 --rounds 1'],
  ['filters', '--rows 2000 --days 2 --rounds 1'],
  ['peers', '--rows 5000 --days 2 --rounds 1'],
  ['proof-log', '--rows 5000 --leaves 600 --ingest-rows 20000 --rounds 1'],
  ['years', '--rows 5000 --days 1 --thin-days 2 --rounds 1'],
  ['macro', '--monthly 2 --daily 2'],
  ['bitcoin', '--blocks 1 --transactions 2 --rounds 1'],
  ['load', '--seconds 1 --chunks 11 --clients 2'],
])('%s %s', async (name, options) => {
  const argv = [join(ROOT, 'bench/main.ts'), name, '--json', ...options.split(' ')];
  const { stdout } = await promisify(execFile)(process.execPath, argv, { cwd: ROOT });
  expect(JSON.parse(stdout)).toMatchObject({ bench: name });
  expect(stdout).toMatch(/"ratio\w*":\s*[\d.]+/);
});
