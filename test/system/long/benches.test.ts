/** Every benchmark at its smallest size: it runs to its end and prints its ratio, whatever was moved since it was last run. */
import { execFile } from 'node:child_process';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { BENCHES } from '../../../bench/benches.ts';
import { ROOT } from '../../support/command.ts';
import { temporaryDir } from '../../support/stack.ts';

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

test('all: one that fails stops no other, and each is compared with its last run', async () => {
  const dir = await temporaryDir();
  try {
    const history = join(dir, 'history.jsonl');
    const args = ['all', '--quick', '--json', '--history', history];
    const env = { ...process.env, TIDEMARK_BENCH_DATABASE_URL: 'nonsense' };
    const failed = await bench([...args, '--only', 'columns,filters'], env).catch((error) => error);
    expect(failed.code).toBe(1);
    expect(failed.stderr).toMatch(/^columns .*: failed \(exit code 1\)$[\s\S]*^Failed: columns /m);
    const first = JSON.parse(failed.stdout);
    expect(first).toEqual({
      bench: 'filters',
      arguments: expect.stringContaining('--rows'),
      date: expect.any(String),
      commit: expect.stringMatching(/^[0-9a-f]{40}\+?$|^unknown$/),
      seconds: expect.any(Number),
      machine: expect.objectContaining({ cores: expect.any(Number) }),
      versions: expect.objectContaining({ node: process.versions.node }),
      noise: expect.objectContaining({ before: expect.anything(), after: expect.anything() }),
      result: expect.objectContaining({ bench: 'filters', ratio: expect.any(Number) }),
    });
    const again = await bench([...args, '--only', 'filters']);
    expect(JSON.parse(again.stdout).compared).toMatchObject({
      date: first.date,
      ratios: expect.arrayContaining([expect.objectContaining({ name: 'ratio', before: first.result.ratio })]),
    });
    expect((await readFile(history, 'utf8')).trim().split('\n')).toHaveLength(2);
  } finally {
    await rm(dir, { recursive: true });
  }
});
