/** One PostgreSQL for the whole run, in a state folder of its own; each test file gets a database on it. */
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { createLogger } from '../../shared/log/logger.ts';
import { acquireStack } from '../../shared/stack/stack.ts';
import { SHARED_PROFILE } from './profiles.ts';
import { endLeftovers } from './stack.ts';

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const stateDir = join(project.config.root, '.tidemark', 'test');
  await endLeftovers(stateDir);
  const stack = await acquireStack({
    stateDir,
    log: createLogger(process.env.TIDEMARK_TEST_LOG ?? 'warn', 'test'),
    progress: (line) => process.stderr.write(`tidemark: ${line}\n`),
    profile: SHARED_PROFILE,
  });
  project.provide('testDatabaseUrl', stack.databaseUrl);
  project.provide('testStateDir', stateDir);
  return () => stack[Symbol.asyncDispose]();
}
