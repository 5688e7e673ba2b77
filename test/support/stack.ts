/**
 * Real servers for tests. `createTestEnv()`: a fresh database on the PostgreSQL shared by the run, empty or, from
 * `createMigratedEnv()`, migrated; and an account without streams on its nats-server. `createPrivateStack()`: both servers
 * of one's own, to kill.
 */
import { randomBytes } from 'node:crypto';
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { jetstreamManager } from '@nats-io/jetstream';
import pg from 'pg';
import { expect, inject } from 'vitest';
import { DATABASE_ROLES, type DatabaseRole, roleName } from '../../shared/db/roles.ts';
import { createLogger, type Logger } from '../../shared/logger.ts';
import { urlOfAccount } from '../../shared/nats/accounts.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { type ProcessRef, processRef } from '../../shared/stack/processes.ts';
import type { ServerName } from '../../shared/stack/server.ts';
import { acquireStack, type Stack } from '../../shared/stack/stack.ts';
import { type FolderNote, notesIn } from './leftovers.ts';
import { PRIVATE_PROFILE } from './profiles.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The shared PostgreSQL; a superuser's URL, database `tidemark`. */
    testDatabaseUrl: string;
    /** The same server, through each role of the service. */
    testRoleUrls: Readonly<Record<DatabaseRole, string>>;
    /** The first account of the shared nats-server, through each of its users. */
    testLog: LogUrls;
    testPrograms: Pick<TestEnv, 'postgresBin' | 'natsServer'>;
    /** State folder of the run. */
    testStateDir: string;
    /** The database that migrated ones are copies of. */
    testTemplate: string;
  }
}

/** Silent unless TIDEMARK_TEST_LOG names a level. */
export const testLogger = (): Logger => createLogger(process.env.TIDEMARK_TEST_LOG ?? 'silent', 'test');

/** An account of the log, through each of its users (`shared/nats/accounts.ts`). */
export interface LogUrls {
  /** The one that writes events. */
  readonly natsUrl: string;
  /** The broker account of the projector. */
  readonly natsProjectorUrl: string;
  /** The broker account that may only read. */
  readonly natsReaderUrl: string;
  /** The broker account that makes, changes and removes streams. */
  readonly natsOperatorUrl: string;
}

/** What is made for a call: a database, dropped at disposal, and an account of the log, whose streams are removed then. */
export interface TestEnv extends LogUrls, AsyncDisposable {
  /** Superuser. */
  readonly databaseUrl: string;
  /** The same database through each role of the service; in one that is empty they may do nothing yet. */
  readonly databaseUrls: Readonly<Record<DatabaseRole, string>>;
  /** The same server, database `postgres`. */
  readonly adminDatabaseUrl: string;
  /** An empty folder, removed at disposal. */
  readonly dir: string;
  /** Folder of psql and its kind; undefined where the servers run in Docker. */
  readonly postgresBin: string | undefined;
  /** The nats-server program; undefined where the servers run in Docker. */
  readonly natsServer: string | undefined;
}

/** The log's accounts as a command is given them. */
export const natsSettings = (of: LogUrls) => ({
  SVC_NATS_URL: of.natsUrl,
  SVC_NATS_PROJECTOR_URL: of.natsProjectorUrl,
  SVC_NATS_READER_URL: of.natsReaderUrl,
  SVC_NATS_OPERATOR_URL: of.natsOperatorUrl,
});

/** One account for everything, as on a server without any. */
export const oneNatsAccount = (natsUrl: string) => ({
  ...natsSettings({ natsUrl, natsProjectorUrl: '', natsReaderUrl: '', natsOperatorUrl: '' }),
});

export interface EnvOptions {
  /** A nats-server of one's own instead of an account of the shared one: for tests that fill or fault it. */
  readonly ownLog?: boolean;
}

/** Use as `await using env = await createTestEnv()`, or dispose in afterAll. */
export const createTestEnv = (options?: EnvOptions): Promise<TestEnv> => createEnv('', options);

/** The same with a database of the current schema and no rows. */
export const createMigratedEnv = (options?: EnvOptions): Promise<TestEnv> =>
  createEnv(`TEMPLATE ${inject('testTemplate')}`, options);

/**
 * The same with rows: those that `load` put into the run's second template. The first call of a run makes it, whatever its
 * process, and the calls after it copy it. All calls give the same `load`.
 */
export async function createLoadedEnv(load: (databaseUrl: string) => Promise<void>): Promise<TestEnv> {
  const name = loadedTemplate(inject('testTemplate'));
  await makeOnce(name, load);
  return await createEnv(`TEMPLATE ${name}`);
}

/** The name of the template with rows of a run. */
export const loadedTemplate = (template: string) => `${template}_loaded`;

async function makeOnce(name: string, load: (databaseUrl: string) => Promise<void>): Promise<void> {
  const shared = inject('testDatabaseUrl');
  const admin = new pg.Client({ connectionString: withDatabase(shared, 'postgres') });
  await admin.connect();
  try {
    // Two workers may want it at once. The lock goes with the connection.
    await admin.query('select pg_advisory_lock(hashtext($1))', [name]);
    const made = await admin.query('select 1 from pg_database where datname = $1 and not datallowconn', [name]);
    if (made.rows.length > 0) return;
    // Of a call that failed before it was closed.
    await admin.query(`drop database if exists ${name} with (force)`);
    await admin.query(`create database ${name} owner ${roleName('owner')} template ${inject('testTemplate')}`);
    await load(withDatabase(shared, name));
    await closeTemplate(admin, name);
  } finally {
    await admin.end();
  }
}

/** TimescaleDB's scheduler would sit in it, and a database in which anybody sits cannot be copied. */
export async function closeTemplate(admin: Pick<pg.Client, 'query'>, name: string): Promise<void> {
  await admin.query(`alter database ${name} allow_connections false`);
  await admin.query('select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = $1', [name]);
}

async function createEnv(from: string, { ownLog = false }: EnvOptions = {}): Promise<TestEnv> {
  const sharedUrl = inject('testDatabaseUrl');
  const dir = await temporaryDir();
  const name = `t_${testName()}_${randomBytes(4).toString('hex')}`;
  const admin = withDatabase(sharedUrl, 'postgres');
  await execute(admin, `CREATE DATABASE ${name} OWNER ${roleName('owner')} ${from}`);
  const forget = await remember(dir);
  const log = await (ownLog ? startLog(sharedUrl, dir) : takeAccount(admin));
  const filesDir = join(dir, 'files');
  await mkdir(filesDir);
  return {
    ...log.urls,
    ...inject('testPrograms'),
    databaseUrl: withDatabase(sharedUrl, name),
    databaseUrls: rolesOf(withDatabase(sharedUrl, name)),
    adminDatabaseUrl: admin,
    dir: filesDir,
    async [Symbol.asyncDispose]() {
      await log[Symbol.asyncDispose]();
      await execute(admin, `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`);
      await rm(dir, { recursive: true, force: true });
      await forget();
    },
  };
}

interface TestLog extends AsyncDisposable {
  readonly urls: LogUrls;
}

export const urlsOf = (stack: LogUrls): LogUrls => ({
  natsUrl: stack.natsUrl,
  natsProjectorUrl: stack.natsProjectorUrl,
  natsReaderUrl: stack.natsReaderUrl,
  natsOperatorUrl: stack.natsOperatorUrl,
});

async function startLog(databaseUrl: string, dir: string): Promise<TestLog> {
  const stateDir = join(dir, 'stack');
  const stack = await acquireStack({ stateDir, databaseUrl, log: testLogger(), profile: PRIVATE_PROFILE });
  return { urls: urlsOf(stack), [Symbol.asyncDispose]: () => stack[Symbol.asyncDispose]() };
}

/** Numbers of the shared nats-server's accounts that no test has, for all workers. */
export const FREE_ACCOUNTS = 'test_free_log_accounts';

async function takeAccount(admin: string): Promise<TestLog> {
  const free = `select number from ${FREE_ACCOUNTS} order by number limit 1 for update skip locked`;
  const { rows } = await execute(admin, `delete from ${FREE_ACCOUNTS} where number = (${free}) returning number`);
  if (rows.length === 0) throw new Error('tests have taken all accounts of the shared nats-server');
  const [{ number }] = rows;
  const shared = Object.entries(inject('testLog')).map(([user, url]) => [user, urlOfAccount(url, number)]);
  const urls = Object.fromEntries(shared) as unknown as LogUrls;
  await removeStreams(urls);
  return {
    urls,
    async [Symbol.asyncDispose]() {
      await removeStreams(urls);
      await execute(admin, `insert into ${FREE_ACCOUNTS} values (${number})`);
    },
  };
}

/** Also those of a run that was killed. */
async function removeStreams({ natsOperatorUrl }: LogUrls): Promise<void> {
  await using connection = await connectNats(natsOperatorUrl, 'test', {});
  const { streams } = await jetstreamManager(connection, { checkAPI: false });
  for await (const { config } of streams.list()) await streams.delete(config.name);
}

export interface PrivateStack extends AsyncDisposable {
  readonly stack: Stack;
  /** An empty folder beside the state folder, removed at disposal. */
  readonly dir: string;
  pid(name: ServerName): number;
  /** SIGKILL. */
  kill(name: ServerName): void;
}

/** Both servers of one's own; `supervise` (default) restarts what is killed, on the same port. */
export async function createPrivateStack(options: { readonly supervise?: boolean } = {}): Promise<PrivateStack> {
  const dir = await temporaryDir();
  const forget = await remember(dir);
  const stack = await acquireStack({ stateDir: join(dir, 'stack'), log: testLogger(), profile: PRIVATE_PROFILE });
  if (options.supervise ?? true) stack.supervise();
  const filesDir = join(dir, 'files');
  await mkdir(filesDir);
  const pid = (name: ServerName) => {
    const found = stack.processes.find((entry) => entry.name === name);
    if (!found || found.external) throw new Error(`${name} is not a process that this test may kill`);
    return found.pid;
  };
  return {
    stack,
    dir: filesDir,
    pid,
    kill: (name) => process.kill(pid(name), 'SIGKILL'),
    async [Symbol.asyncDispose]() {
      await stack[Symbol.asyncDispose]();
      await rm(dir, { recursive: true, force: true });
      await forget();
    },
  };
}

/** A folder that servers running as another user can enter. */
export async function temporaryDir(parent = tmpdir()): Promise<string> {
  const dir = await mkdtemp(join(parent, 'tidemark-test-'));
  await chmod(dir, 0o755);
  return dir;
}

export async function execute(url: string, sql: string): Promise<pg.QueryResult> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  await client.connect();
  try {
    return await client.query(sql);
  } finally {
    await client.end();
  }
}

/** A database of the shared server through each role; one of another server as it is given. */
export function rolesOf(databaseUrl: string): Record<DatabaseRole, string> {
  const urls = inject('testRoleUrls');
  const { host, pathname } = new URL(databaseUrl);
  return Object.fromEntries(
    DATABASE_ROLES.map((role) => {
      const isShared = new URL(urls[role]).host === host;
      return [role, isShared ? withDatabase(urls[role], pathname.slice(1)) : databaseUrl];
    }),
  ) as Record<DatabaseRole, string>;
}

/** Hands `work` a connection to put rows into storage with. */
export async function loadRows(url: string, work: (client: pg.Client) => Promise<void>): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await work(client);
  } finally {
    await client.end();
  }
}

export function withDatabase(url: string, database: string): string {
  const result = new URL(url);
  result.pathname = `/${database}`;
  return result.href;
}

/** Notes a folder with servers, so that those of a test process that was killed are found and ended by the next run. */
export async function remember(dir: string): Promise<() => Promise<void>> {
  const notes = notesIn(inject('testStateDir'));
  await mkdir(notes, { recursive: true });
  const path = join(notes, basename(dir));
  const owner = processRef(process.pid) as ProcessRef;
  const note: FolderNote = { dir, owner, run: process.env.TIDEMARK_TEST_RUN };
  await writeFile(path, JSON.stringify(note));
  return () => rm(path, { force: true });
}

function testName(): string {
  const path = expect.getState().testPath ?? 'unknown';
  return basename(path, '.test.ts')
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '_')
    .slice(0, 40);
}
