/**
 * Tests that need what not every machine has: where it is missing they are skipped, and say why in their name, so that
 * reports and the summary of a run tell it (skipped-reporter.ts).
 */
import { existsSync } from 'node:fs';
import { describe, type TestOptions, test } from 'vitest';

/** @param reason why the tests are skipped where `isThere` does not hold. */
export function given(isThere: boolean, reason: string) {
  const named = (name: string) => (isThere ? name : `${name} [skipped: ${reason}]`);
  return {
    describe: (name: string, tests: () => void) => describe.skipIf(!isThere)(named(name), tests),
    test: (name: string, work: () => void | Promise<void>, options: TestOptions | number = {}) =>
      test.skipIf(!isThere)(named(name), typeof options === 'number' ? { timeout: options } : options, work),
  };
}

/** Real data of others, kept beside the project. @param path below `../shared/data`. */
export const givenData = (path: string) => {
  const place = `../shared/data/${path}`;
  return given(existsSync(place), `there is no ${place}`);
};
