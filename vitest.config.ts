import { join } from 'node:path';
import { defineConfig } from 'vitest/config';
import { LongestFirst } from './test/support/longest-first.ts';
import { PATIENCE_MS } from './test/support/patience.ts';

// As ./tidemark does, for the services and helpers that tests start without it.
process.env.NODE_COMPILE_CACHE ??= join(import.meta.dirname, 'node_modules/.cache/tidemark-compile');

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    reporters: ['default', './test/support/skipped-reporter.ts'],
    globalSetup: ['test/support/global-setup.ts'],
    setupFiles: ['test/support/setup.ts'],
    // Tests run real servers; two files at once keep a two-core machine busy without making times meaningless.
    pool: 'forks',
    maxWorkers: 2,
    sequence: { sequencer: LongestFirst },
    // Above test/support/patience.ts, so that what was waited for in vain is told. Nothing is expected to be fast.
    testTimeout: 400_000,
    hookTimeout: 400_000,
    teardownTimeout: 60_000,
    expect: { poll: { timeout: PATIENCE_MS } },
  },
});
