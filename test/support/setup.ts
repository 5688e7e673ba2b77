/** Runs before each test file. */
import { join, relative } from 'node:path';
import fc from 'fast-check';
import { afterAll, expect } from 'vitest';
import { SEED } from './seed.ts';
import { writeSpans } from './spans.ts';

// fast-check tells seed and path of what it falsifies; beside them no other seed has to be printed.
fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: SEED });

const ROOT = join(import.meta.dirname, '..', '..');

afterAll(async () => {
  const name = relative(join(ROOT, 'test'), expect.getState().testPath ?? 'unknown');
  await writeSpans(join(ROOT, '.tidemark', 'test', 'spans'), name);
});
