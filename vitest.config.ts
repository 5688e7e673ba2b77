import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { defineConfig } from 'vitest/config';
import { PATIENCE_MS } from './test/support/patience.ts';

// As ./tidemark does, for the services and helpers that tests start without it.
process.env.NODE_COMPILE_CACHE ??= join(import.meta.dirname, 'node_modules/.cache/tidemark-compile');

/** One report a set of levels, for `.ci/`; `npm test` writes unit+integration+system. */
const levels = process.argv.flatMap((argument, index) => (argument === '--project' ? process.argv[index + 1] : []));
const report = join(import.meta.dirname, `.tidemark/test/report-${levels.join('+') || 'all'}.json`);

const shared = {
  setupFiles: ['test/support/setup.ts'],
  // One more than cores: tests wait for servers and processes for a fifth of their time.
  maxWorkers: availableParallelism() + 1,
  // Above test/support/patience.ts, so that what was waited for in vain is named. Nothing is expected to be fast.
  // At night a test has every run of its property, and its engines' tables are all read: eight times as much.
  testTimeout: (PATIENCE_MS + 280_000) * (process.env.TIDEMARK_TEST_RUNS === 'all' ? 8 : 1),
  hookTimeout: PATIENCE_MS + 280_000,
  expect: { poll: { timeout: PATIENCE_MS } },
};

/** Levels whose tests talk to real servers. */
const onServers = { ...shared, pool: 'forks' as const, globalSetup: ['test/support/global-setup.ts'] };

/** The levels; test/README.md says what lives in each. */
export default defineConfig({
  test: {
    teardownTimeout: 60_000,
    // Node runs the TypeScript of the tests as it runs that of the product.
    experimental: { viteModuleRunner: false },
    reporters: ['default', './test/support/skipped-reporter.ts', ['json', { outputFile: report }]],
    tags: [{ name: 'nightly', description: 'Too long for `npm test`; `npm run test:nightly` runs it.' }],
    projects: [
      // Files of a worker share its modules: importing the product again takes a fifth of the time.
      { test: { ...shared, name: 'unit', include: ['test/unit/**/*.test.ts'], pool: 'threads', isolate: false } },
      // And its process: starting one takes a second a file.
      { test: { ...onServers, name: 'integration', include: ['test/integration/**/*.test.ts'], isolate: false } },
      { test: { ...onServers, name: 'system', include: ['test/system/**/*.test.ts'] } },
      { test: { ...onServers, name: 'nightly', include: ['test/nightly/**/*.test.ts'] } },
      // The servers are in containers there. Each test continues where the one before it ended.
      { test: { ...shared, name: 'containers', include: ['test/containers/**/*.test.ts'], pool: 'forks' as const } },
    ],
  },
});
