/** Files in the order of what they took when they were last recorded: the longest first, so that workers end together. */
import { readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

export const RECORDED_TIMES = join(import.meta.dirname, '..', 'times.json');

/**
 * Milliseconds by path below `test/`; `npm run test:times -- --record` writes it from the last reports.
 * TIDEMARK_TEST_TIMES names another such file (test/mutants/main.ts begins with the nearest tests by one).
 */
export function recordedTimes(): Readonly<Record<string, number>> {
  return JSON.parse(readFileSync(process.env.TIDEMARK_TEST_TIMES ?? RECORDED_TIMES, 'utf8'));
}

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const times = recordedTimes();
    // A file that nobody has recorded begins at once: it may be the longest.
    const timeOf = ({ moduleId }: TestSpecification) =>
      times[relative(join(import.meta.dirname, '..'), moduleId)] ?? Number.POSITIVE_INFINITY;
    return [...files].sort((a, b) => timeOf(b) - timeOf(a) || a.moduleId.localeCompare(b.moduleId));
  }
}
