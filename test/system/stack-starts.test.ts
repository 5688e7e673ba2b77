/** Starts of the embedded servers that meet others' servers and folders, or fail half-way. */
import { execFileSync } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, readFile, readlink, rename, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { connect, MIGRATION_LOCK } from '../../shared/db/connect.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { chooseServerRuntime } from '../../shared/stack/docker.ts';
import { natsUrl } from '../../shared/stack/nats.ts';
import { chooseCacheDir } from '../../shared/stack/packages.ts';
import { processesIn, serverUser } from '../../shared/stack/processes.ts';
import { SERVER_NAMES, type ServerName } from '../../shared/stack/server.ts';
import { acquireStack, type Stack } from '../../shared/stack/stack.ts';
import { freePort, loadSecrets, natsPasswords } from '../../shared/stack/state.ts';
import { given } from '../support/given.ts';
import { memoryOrDisk } from '../support/memory.ts';
import { PRIVATE_PROFILE } from '../support/profiles.ts';
import { temporaryDir, testLogger } from '../support/stack.ts';

/** A state folder that was made and stopped, with a message in its log. */
let made: string;
let dir: string;
const cleanup: AsyncDisposable[] = [];

const common = { log: testLogger(), profile: PRIVATE_PROFILE };

beforeAll(async () => {
  made = await temporaryDir(memoryOrDisk());
  await using stack = await acquireStack({ ...common, stateDir: join(made, 'state') });
  await using connection = await connectNats(stack.natsOperatorUrl, 'test');
  await (await jetstreamManager(connection)).streams.add({ name: 'KEPT', subjects: ['kept'] });
  await jetstream(connection).publish('kept', 'one');
});
afterAll(() => rm(made, { recursive: true, force: true }));

beforeEach(async () => {
  dir = await temporaryDir(memoryOrDisk());
  copyTo('state');
});
afterEach(async () => {
  for (const one of cleanup.splice(0).reverse()) await one[Symbol.asyncDispose]();
  await rm(dir, { recursive: true, force: true });
});

/** With the owners of its files. */
const copyTo = (name: string) => execFileSync('cp', ['-a', join(made, 'state'), join(dir, name)]);

async function acquire(name = 'state'): Promise<Stack> {
  const stack = await acquireStack({ ...common, stateDir: join(dir, name) });
  cleanup.push(stack);
  return stack;
}

const portOf = (stack: Stack, name: ServerName) =>
  Number(new URL(name === 'postgres' ? stack.databaseUrl : stack.natsUrl).port);

// A copy has the passwords and the ports of its original, so its start took the original's servers for its own.
test.each(SERVER_NAMES)(
  '%s of a copied state folder started on the port of its original, and used that one',
  async (name) => {
    const original = await acquire();
    copyTo('copy');
    const stateDir = join(dir, 'copy');
    const secrets = await loadSecrets(stateDir);
    const { createServers } = await chooseServerRuntime(stateDir, { ...common, stateDir });
    const server = createServers(secrets).find((one) => one.name === name)!;
    await expect(server.start(portOf(original, name))).rejects.toMatchObject({ code: 'STACK_START_FAILED' });
    const record = await server.start(await freePort());
    cleanup.push({ [Symbol.asyncDispose]: () => server.stop(record) });
    expect(await server.isAlive(record)).toBe(true);
    if (name !== 'nats') return;
    // Under the copy's name, the log of the original's is there.
    await using connection = await connectNats(natsUrl(record, 'operator', natsPasswords(secrets)), 'test');
    const { streams } = await jetstreamManager(connection);
    expect((await streams.getMessage('KEPT', { seq: 1 }))?.string()).toBe('one');
  },
);

// Nobody held them, and so nobody stopped them.
test.each([
  ['the record of the servers', 'stack.json', ['stack.json', 'x']],
  ['the holder', 'holders', undefined],
] as const)('a start that could not write %s left its servers running', async (_what, name, folder) => {
  const state = join(dir, 'state');
  await rm(join(state, name), { recursive: true });
  // The record cannot replace a folder, and a file takes no holder.
  if (folder) await mkdir(join(state, ...folder), { recursive: true });
  else await writeFile(join(state, name), '');
  await expect(acquire()).rejects.toThrow(/EISDIR|EEXIST|ENOTEMPTY|ENOTDIR/);
  expect(processesIn(join(state, 'servers', 'postgres'), 'postgres')).toEqual([]);
  expect(processesIn(join(state, 'servers', 'nats'), 'nats-server')).toEqual([]);
});

// Both changed the same tables: one of them ended with "tuple concurrently updated".
test('a start changed owners and privileges while another process migrated', async () => {
  const stack = await acquire();
  await using other = await connect({ url: stack.databaseUrl, name: 'test' });
  await other.query('create table ledger (x int)');
  const ownerAfterStart = async () => {
    await acquire();
    const { rows } = await other.query(`select tableowner from pg_tables where tablename = 'ledger'`);
    return rows[0].tableowner;
  };
  await other.query('select pg_advisory_lock($1, 0)', [MIGRATION_LOCK]);
  expect(await ownerAfterStart()).toBe('tidemark');
  await other.query('select pg_advisory_unlock_all()');
  expect(await ownerAfterStart()).toBe('tidemark_owner');
  const { rows: locks } = await other.query(`select from pg_locks where locktype = 'advisory'`);
  expect(locks).toEqual([]);
});

test('a state folder of another tree is refused before anything in it changes, and its servers are stopped again', async () => {
  {
    await using stack = await acquire();
    await using other = await connect({ url: stack.databaseUrl, name: 'test' });
    await other.query(
      `create table schema_migrations (name text, sha256 text);
       insert into schema_migrations values ('0017_runs.sql', '00')`,
    );
  }
  await expect(acquire()).rejects.toMatchObject({
    code: 'DATABASE_UNSUITABLE',
    message: expect.stringContaining('0017_runs.sql'),
  });
  const state = join(dir, 'state');
  expect(processesIn(join(state, 'servers', 'postgres'), 'postgres')).toEqual([]);
  expect(processesIn(join(state, 'servers', 'nats'), 'nats-server')).toEqual([]);
});

test('a state folder without the password of an account is of another tree: it stays as it is', async () => {
  const path = join(dir, 'state', 'secrets.json');
  const { natsProjectorPassword, ...others } = JSON.parse(await readFile(path, 'utf8'));
  await writeFile(path, JSON.stringify(others));
  await expect(acquire()).rejects.toMatchObject({
    code: 'STACK_START_FAILED',
    message: expect.stringContaining('secrets.json lacks natsProjectorPassword'),
  });
  expect(JSON.parse(await readFile(path, 'utf8'))).toEqual(others);
  expect(natsProjectorPassword).toBeTypeOf('string');
});

given(
  process.getuid?.() === 0,
  'only root has a state folder that the servers cannot enter: run the tests as root',
).describe('a state folder that the servers cannot enter', () => {
  const stores = new Set<string>();
  beforeEach(() => chmod(dir, 0o700));
  afterEach(async () => {
    for (const store of stores) await rm(store, { recursive: true });
    stores.clear();
  });

  /** @returns the folder of its data. */
  async function choose(name: string): Promise<string> {
    const stateDir = join(dir, name, 'state');
    await mkdir(stateDir, { recursive: true });
    await chooseServerRuntime(stateDir, { ...common, stateDir });
    const store = await readlink(join(stateDir, 'servers'));
    stores.add(store);
    return store;
  }

  // Its data was renamed, with advice to delete it.
  test('was moved and moved back, and started empty', async () => {
    const store = await choose('one');
    await writeFile(join(store, 'data'), 'kept');
    await rename(join(dir, 'one'), join(dir, 'two'));
    const other = await choose('two');
    expect(other).not.toBe(store);
    await rename(join(dir, 'two'), join(dir, 'one'));
    expect(await choose('one')).toBe(store);
    expect(await readFile(join(store, 'data'), 'utf8')).toBe('kept');
    // A new folder in its place has other passwords, so its servers could not use the data.
    await rm(join(dir, 'one'), { recursive: true });
    expect(await choose('one')).toBe(store);
    expect(await readdir(store)).not.toContain('data');
    const aside = (await readdir(dirname(store))).find((name) => name.startsWith(`${basename(store)}.removed-`))!;
    stores.add(join(dirname(store), aside));
    expect(await readFile(join(dirname(store), aside, 'data'), 'utf8')).toBe('kept');
  });

  test('and that has its data inside was refused with EISDIR', async () => {
    const servers = join(dir, 'one', 'state', 'servers');
    await mkdir(servers, { recursive: true });
    await expect(choose('one')).rejects.toMatchObject({
      code: 'STACK_START_FAILED',
      message: expect.stringContaining(`User nobody cannot enter the state folder ${dirname(servers)}`),
    });
  });
});

given(process.getuid?.() === 0, 'only root starts the servers under another account').describe(
  "the user's umask",
  () => {
    const before = process.umask();
    afterEach(() => {
      process.umask(before);
      vi.unstubAllEnvs();
    });

    // The servers' account could not read what root wrote, and the next start under another umask left it as it was.
    test('a first start, and one over what an earlier one made unreadable', async () => {
      await mkdir(join(dir, 'new'));
      process.umask(0o027);
      await (await acquire('new'))[Symbol.asyncDispose]();
      const cluster = join(dir, 'new', 'servers', 'postgres');
      await chmod(join(cluster, 'postgresql.conf'), 0o600);
      await chmod(join(cluster, 'conf.d'), 0o700);
      await acquire('new');
    });

    test('the folder of the programs may be entered, also one that an earlier start made', async () => {
      const parent = await mkdtemp(join(tmpdir(), 'tidemark-cache-'));
      cleanup.push({ [Symbol.asyncDispose]: () => rm(parent, { recursive: true, force: true }) });
      await chmod(parent, 0o755);
      vi.stubEnv('XDG_CACHE_HOME', parent);
      process.umask(0o077);
      const cache = join(parent, 'tidemark');
      expect(await chooseCacheDir(serverUser(cache))).toBe(cache);
      await chmod(cache, 0o700);
      expect(await chooseCacheDir(serverUser(cache))).toBe(cache);
    });
  },
);

given(process.getuid?.() === 0, 'only root starts the servers under another account').describe('SVC_RUN_AS', () => {
  // An account of every Debian that no daemon has.
  const runAs = 'games';
  const account = serverUser('/nowhere', runAs);
  const start = async (name: string, more: { readonly runAs?: string }) => {
    const stack = await acquireStack({ ...common, ...more, stateDir: join(dir, name) });
    cleanup.push(stack);
    return stack;
  };

  test('names the account of both servers and of their files', async () => {
    const stack = await start('new', { runAs });
    expect(stack.serverUid).toBe(account.uid);
    for (const { pid } of stack.processes) expect((await stat(`/proc/${pid}`)).uid).toBe(account.uid);
    expect((await stat(join(dir, 'new', 'servers', 'postgres'))).uid).toBe(account.uid);
    await stack[Symbol.asyncDispose]();
    // Later starts need not name it.
    expect((await start('new', {})).serverUid).toBe(account.uid);
  });

  test.each([
    ['tidemark-none', /no such account: make it/],
    ['root', /refuses to run/],
    ['--help', /no such account/],
    [runAs, /is of user \d+: stop what runs, then chown -R games: /],
  ])('is refused as %s, before a server starts', async (name, message) => {
    await expect(start('state', { runAs: name })).rejects.toMatchObject({
      code: 'CONFIGURATION_INVALID',
      message: expect.stringMatching(message),
    });
  });
});
