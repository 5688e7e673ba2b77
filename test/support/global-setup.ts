/**
 * One PostgreSQL for the whole run, in a state folder of its own or at TIDEMARK_TEST_DATABASE_URL (a superuser's URL, for
 * trying another version); each test file gets a database on it. Migrating one
 * takes 0.4 s, copying one that is migrated 0.1: there is a template.
 */
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { provisionRoles } from '../../shared/db/roles.ts';
import { createLogger } from '../../shared/log/logger.ts';
import { acquireStack } from '../../shared/stack/stack.ts';
import { SHARED_PROFILE } from './profiles.ts';
import { endLeftovers, execute, withDatabase } from './stack.ts';

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const stateDir = join(project.config.root, '.tidemark', 'test');
  await endLeftovers(stateDir);
  const stack = await acquireStack({
    stateDir,
    databaseUrl: process.env.TIDEMARK_TEST_DATABASE_URL,
    log: createLogger(process.env.TIDEMARK_TEST_LOG ?? 'warn', 'test'),
    progress: (line) => process.stderr.write(`tidemark: ${line}\n`),
    profile: SHARED_PROFILE,
  });
  project.provide('testDatabaseUrl', stack.databaseUrl);
  project.provide('testRoleUrls', stack.databaseUrls);
  project.provide('testStateDir', stateDir);
  const admin = withDatabase(stack.databaseUrl, 'postgres');
  const template = `template_${process.pid}`;
  await makeTemplate(admin, template);
  project.provide('testTemplate', template);
  return async () => {
    await execute(admin, `drop database ${template}`);
    await stack[Symbol.asyncDispose]();
  };
}

async function makeTemplate(admin: string, name: string): Promise<void> {
  // Of a run that was killed, with our number.
  await execute(admin, `drop database if exists ${name}`);
  await execute(admin, `create database ${name}`);
  {
    await using client = await connect({ url: withDatabase(admin, name), name: 'test migrations' });
    await provisionRoles(client, {});
    await migrate(client);
  }
  // TimescaleDB's scheduler would sit in it, and a database in which anybody sits cannot be copied.
  await execute(admin, `alter database ${name} allow_connections false`);
  await execute(admin, `select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '${name}'`);
}
