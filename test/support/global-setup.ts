/**
 * One PostgreSQL and one nats-server for the whole run, in a state folder of its own; PostgreSQL may instead be at
 * TIDEMARK_TEST_DATABASE_URL (a superuser's URL, for trying another version). Each test file gets a database and an account
 * of the log. Migrating a database takes 0.4 s, copying one that is migrated 0.1: there is a template.
 * The first file that wants loaded worlds makes a second one (`worlds-env.ts`). The levels of a run share it: whichever begins first starts it, and it stops with the last.
 * Unit tests do not come here.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { provisionRoles } from '../../shared/db/roles.ts';
import { createLogger } from '../../shared/logger.ts';
import { acquireStack, type Stack } from '../../shared/stack/stack.ts';
import { countHolders } from '../../shared/stack/state.ts';
import { endLeftovers } from './leftovers.ts';
import { memoryFolder, removeMemoryFolder } from './memory.ts';
import { LOG_ACCOUNTS, SHARED_PROFILE } from './profiles.ts';
import { closeTemplate, execute, FREE_ACCOUNTS, loadedTemplate, urlsOf, withDatabase } from './stack.ts';

interface SharedServers extends AsyncDisposable {
  readonly stateDir: string;
  readonly stack: Stack;
  readonly template: string;
}

/** Each level loads this file for itself; what they share hangs on the process. */
const shared = globalThis as { tidemarkTestServers?: { users: number; servers: Promise<SharedServers> } };

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  shared.tidemarkTestServers ??= { users: 0, servers: startServers(project.config.root) };
  const { tidemarkTestServers } = shared;
  tidemarkTestServers.users++;
  const { stateDir, stack, template } = await tidemarkTestServers.servers;
  project.provide('testDatabaseUrl', stack.databaseUrl);
  project.provide('testRoleUrls', stack.databaseUrls);
  project.provide('testLog', urlsOf(stack));
  project.provide('testPrograms', {
    postgresBin: stack.runtime?.postgresBin,
    natsServer: stack.runtime?.natsServer,
  });
  project.provide('testStateDir', stateDir);
  project.provide('testTemplate', template);
  return async () => {
    if (--tidemarkTestServers.users > 0) return;
    delete shared.tidemarkTestServers;
    await (await tidemarkTestServers.servers)[Symbol.asyncDispose]();
  };
}

async function startServers(root: string): Promise<SharedServers> {
  const memory = memoryFolder(root);
  const stateDir = join(memory ?? join(root, '.tidemark'), 'test');
  await endLeftovers(stateDir);
  if ((await countHolders(stateDir)) > 0) {
    throw new Error(
      `Another run of the tests uses the servers of this tree (${stateDir}). Wait until it ends, or end it.`,
    );
  }
  await removeMemoryFolder(memory);
  // For the reaper. A run inside a test has a folder of its own, or none.
  process.env.TIDEMARK_TEST_MEMORY = memory ?? '';
  process.env.TIDEMARK_TEST_RUN = `${process.pid}-${Date.now()}`;
  const reaper = spawn(process.execPath, [join(import.meta.dirname, 'reaper.ts'), stateDir], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  reaper.unref();
  const stack = await acquireStack({
    stateDir,
    databaseUrl: process.env.TIDEMARK_TEST_DATABASE_URL,
    log: createLogger(process.env.TIDEMARK_TEST_LOG ?? 'warn', 'test'),
    progress: (line) => process.stderr.write(`tidemark: ${line}\n`),
    profile: SHARED_PROFILE,
  });
  const admin = withDatabase(stack.databaseUrl, 'postgres');
  await execute(admin, `drop table if exists ${FREE_ACCOUNTS}`);
  await execute(admin, `create table ${FREE_ACCOUNTS} as select generate_series(1, ${LOG_ACCOUNTS}) as number`);
  const template = `template_${process.pid}`;
  await makeTemplate(admin, template);
  return {
    stateDir,
    stack,
    template,
    async [Symbol.asyncDispose]() {
      await execute(admin, `drop database ${template}`);
      await execute(admin, `drop database if exists ${loadedTemplate(template)} with (force)`);
      await stack[Symbol.asyncDispose]();
      await removeMemoryFolder(memory);
      reaper.stdin.end('done\n');
      if (reaper.exitCode === null) await once(reaper, 'exit');
    },
  };
}

async function makeTemplate(admin: string, name: string): Promise<void> {
  // Of a run that was killed, with our number.
  for (const old of [name, loadedTemplate(name)]) await execute(admin, `drop database if exists ${old}`);
  await execute(admin, `create database ${name}`);
  {
    await using client = await connect({ url: withDatabase(admin, name), name: 'test migrations' });
    await provisionRoles(client, {});
    await migrate(client);
  }
  await using client = await connect({ url: admin, name: 'test template' });
  await closeTemplate(client, name);
}
