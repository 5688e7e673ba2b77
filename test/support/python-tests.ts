/** The Python client's own tests, each of which is a test of the file that asks for them. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { run } from '../../shared/stack/processes.ts';
import { ROOT } from './command.ts';
import { given } from './given.ts';
import type { Tool } from './tools.ts';

const CLIENT = join(ROOT, 'client/python');
const MINUTES = 60_000;

export interface PythonTests {
  readonly python: Tool;
  /** Files or tests, below the folder of the tests. */
  readonly files: readonly string[];
  /** Which of them by their marks, such as `not nightly`; all, unless it is given. */
  readonly marks?: string;
  /** Where the service is, once the tests run. */
  readonly environment: () => Record<string, string>;
  readonly timeoutMs?: number;
}

interface Outcome {
  readonly failure?: string | undefined;
  readonly skipped?: string | undefined;
}

/** Runs them in one process of Python, and tells of each what became of it. */
export async function pythonTests(
  name: string,
  { python, files, marks, environment, timeoutMs = 5 * MINUTES }: PythonTests,
): Promise<void> {
  if (python.missing !== undefined) return void given(false, python.missing).test(name, () => {});
  const chosen = [...files.map((file) => join(CLIENT, 'tests', file)), ...(marks === undefined ? [] : ['-m', marks])];
  const names = await collected(python, chosen);
  describe(name, () => {
    let outcomes: ReadonlyMap<string, Outcome>;
    beforeAll(async () => {
      outcomes = await runTests(python, chosen, environment());
    }, timeoutMs);
    for (const one of names) {
      test(one, ({ skip }) => {
        const outcome = outcomes.get(one);
        if (outcome?.skipped !== undefined) skip(outcome.skipped);
        expect(outcome, 'it ran').toBeDefined();
        if (outcome!.failure !== undefined) throw new Error(outcome!.failure);
      });
    }
  });
}

const pytest = (python: Tool, args: readonly string[], env: Record<string, string> = {}) =>
  run(python.path, ['-B', '-m', 'pytest', '-p', 'no:cacheprovider', '-q', ...args], {
    cwd: CLIENT,
    env: { PYTHONPATH: join(CLIENT, 'src'), ...env },
    signal: AbortSignal.timeout(10 * MINUTES),
  });

async function collected(python: Tool, chosen: readonly string[]): Promise<string[]> {
  const { stdout } = await pytest(python, ['--collect-only', ...chosen]);
  return stdout.split('\n').flatMap((line) => (line.includes('::') ? line.slice(line.lastIndexOf('/') + 1) : []));
}

async function runTests(
  python: Tool,
  chosen: readonly string[],
  environment: Record<string, string>,
): Promise<ReadonlyMap<string, Outcome>> {
  const folder = mkdtempSync(join(tmpdir(), 'tidemark-pytest-'));
  try {
    const report = join(folder, 'report.jsonl');
    const env = { ...environment, TIDEMARK_TEST_REPORT: report };
    // A failed test is told from the report.
    await pytest(python, ['--basetemp', join(folder, 'files'), ...chosen], env).catch(() => {});
    const lines = readFileSync(report, 'utf8').trimEnd().split('\n');
    return new Map(lines.map((line) => JSON.parse(line) as [string, Outcome]));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
