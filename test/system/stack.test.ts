/** The lifecycle of the embedded servers, on real ones: attach, keep, recover, leave. */

import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { cp, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, inject, test } from 'vitest';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { asUser, isAlive, processRef, serverUser } from '../../shared/stack/processes.ts';
import type { ServerName } from '../../shared/stack/server.ts';
import { acquireStack, type Stack, type StackProcess } from '../../shared/stack/stack.ts';
import { memoryOrDisk } from '../support/memory.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { PRIVATE_PROFILE } from '../support/profiles.ts';
import { execute, temporaryDir, testLogger } from '../support/stack.ts';

/** A state folder that was made and stopped: a copy of it starts at once, where a new one makes its cluster first. */
let made: string;
/** What a making that was interrupted left in it before. */
let half: string;
let dir: string;
const open: AsyncDisposable[] = [];
const children: ChildProcess[] = [];

beforeAll(async () => {
  made = await temporaryDir(memoryOrDisk());
  half = join(made, 'state', 'servers', 'postgres.new-killed', 'data');
  await mkdir(half, { recursive: true });
  await writeFile(join(half, 'PG_VERSION'), '17\n');
  if (process.getuid?.() === 0) await execFileAsRoot(['chown', '-R', '65534:65534', join(made, 'state', 'servers')]);
  const stack = await acquireStack({ stateDir: join(made, 'state'), log: testLogger(), profile: PRIVATE_PROFILE });
  await stack[Symbol.asyncDispose]();
  await rm(join(made, 'state', 'log'), { recursive: true });
});
afterAll(() => rm(made, { recursive: true, force: true }));

beforeEach(async () => {
  dir = await temporaryDir(memoryOrDisk());
  // With the owners of its files.
  execFileSync('cp', ['-a', join(made, 'state'), join(dir, 'state')]);
});

afterEach(async () => {
  for (const child of children.splice(0)) {
    if (child.exitCode === null && child.signalCode === null) await ended(child, 'SIGTERM');
  }
  for (const stack of open.splice(0)) await stack[Symbol.asyncDispose]();
  await rm(dir, { recursive: true, force: true });
});

/** `state` is there; another is made. */
async function acquire(
  name = 'state',
  given: { databaseUrl?: string; natsUrl?: string } = {},
  profile = PRIVATE_PROFILE,
): Promise<Stack> {
  const stack = await acquireStack({ stateDir: join(dir, name), ...given, log: testLogger(), profile });
  open.push(stack);
  return stack;
}

interface Held {
  readonly child: ChildProcess;
  readonly answer: {
    owned: boolean;
    processes: StackProcess[];
    databaseUrl: string;
    natsUrl: string;
    code?: string;
    message?: string;
    remedy?: string;
  };
}

/** Another process that holds the stack, in a process group of its own. */
async function holder(env: NodeJS.ProcessEnv = process.env, name = 'state'): Promise<Held> {
  const script = join(import.meta.dirname, '../support', 'hold-stack.ts');
  const child = spawn(process.execPath, [script, join(dir, name)], {
    env,
    detached: true,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  children.push(child);
  const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream });
  const line = await new Promise<string>((resolve, reject) => {
    lines.once('line', resolve);
    child.once('exit', (code) => reject(new Error(`the holder ended with ${code} before it answered`)));
  });
  return { child, answer: JSON.parse(line) as Held['answer'] };
}

async function ended(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  const exit = new Promise((resolve) => child.once('exit', resolve));
  child.kill(signal);
  await exit;
}

const pidsOf = ({ processes }: { processes: readonly StackProcess[] }) => processes.map(({ pid }) => pid);
const pidOf = (stack: Stack, name: ServerName) => stack.processes.find((entry) => entry.name === name)?.pid as number;
const alive = (pids: readonly number[]) => pids.filter((pid) => processRef(pid) !== undefined);

async function until<T>(what: string, probe: () => Promise<T | undefined> | T | undefined): Promise<T> {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await Promise.resolve(probe()).catch(() => undefined);
    if (found !== undefined) return found;
    if (Date.now() > deadline) throw new Error(`waited in vain until ${what}`);
    await sleep(50);
  }
}

async function withNats<T>(url: string, use: (connection: NatsConnection) => Promise<T>): Promise<T> {
  await using connection = await connectNats(url, 'stack test');
  return await use(connection);
}

const addMessage = (url: string, text: string) =>
  withNats(url, async (connection) => {
    const manager = await jetstreamManager(connection);
    await manager.streams.add({ name: 'KEPT', subjects: ['kept'] }).catch(() => {});
    await jetstream(connection).publish('kept', text);
  });

const messages = (url: string) =>
  withNats(url, async (connection) => {
    const manager = await jetstreamManager(connection);
    const { state } = await manager.streams.info('KEPT');
    const found: string[] = [];
    for (let seq = state.first_seq; seq <= state.last_seq; seq++) {
      found.push((await manager.streams.getMessage('KEPT', { seq }))?.string() ?? '');
    }
    return found;
  });

const rows = async (url: string) => (await execute(url, 'SELECT v FROM kept ORDER BY v')).rows.map(({ v }) => v);

describe('holding', () => {
  test('a second holder attaches to the same servers; the last one to leave stops them', async () => {
    const first = await acquire();
    const second = await acquire();
    expect([first.owned, second.owned]).toEqual([true, false]);
    expect(pidsOf(second)).toEqual(pidsOf(first));
    expect(second.databaseUrl).toBe(first.databaseUrl);
    await first[Symbol.asyncDispose]();
    await execute(second.databaseUrl, 'SELECT 1');
    await second[Symbol.asyncDispose]();
    expect(alive(pidsOf(second))).toEqual([]);
    expect(await readFile(join(dir, 'state/log/postgres.log'), 'utf8')).toMatch(/database system is shut down\s*$/);
  });

  test('of processes that start at the same moment one starts the servers, the others attach', async () => {
    // In a folder that is not there yet.
    const holders = await Promise.all([1, 2, 3].map(() => holder(process.env, 'new')));
    expect(holders.filter(({ answer }) => answer.owned)).toHaveLength(1);
    const pids = pidsOf(holders[0].answer);
    for (const { answer } of holders) expect(pidsOf(answer)).toEqual(pids);
    await Promise.all(holders.slice(0, 2).map(({ child }) => ended(child, 'SIGTERM')));
    expect(alive(pids)).toEqual(pids);
    await ended(holders[2].child, 'SIGTERM');
    expect(alive(pids)).toEqual([]);
  });

  test('servers of a killed holder are adopted as they are, and stopped by the adopter', async () => {
    const { child, answer } = await holder();
    await ended(child, 'SIGKILL');
    expect(alive(pidsOf(answer))).toEqual(pidsOf(answer));
    const stack = await acquire();
    expect(stack.owned).toBe(false);
    expect(pidsOf(stack)).toEqual(pidsOf(answer));
    await stack[Symbol.asyncDispose]();
    expect(alive(pidsOf(answer))).toEqual([]);
  });

  test('a holder that was killed does not keep the servers running', async () => {
    const stack = await acquire();
    const { child } = await holder();
    await ended(child, 'SIGKILL');
    await stack[Symbol.asyncDispose]();
    expect(alive(pidsOf(stack))).toEqual([]);
  });

  test('an interrupt of the terminal does not reach the servers', async () => {
    const { child, answer } = await holder();
    process.kill(-(child.pid as number), 'SIGINT');
    await sleep(300);
    expect(alive(pidsOf(answer))).toEqual(pidsOf(answer));
    await execute(answer.databaseUrl, 'SELECT 1');
  });

  test('the servers end even when their state folder was removed meanwhile', async () => {
    const stack = await acquire();
    await rm(join(dir, 'state', 'stack.json'));
    await stack[Symbol.asyncDispose]();
    expect(alive(pidsOf(stack))).toEqual([]);
  });
});

describe('keeping', () => {
  test('a second start finds data, addresses and secrets as they were, and needs no other program', async () => {
    const before = await acquire();
    await execute(before.databaseUrl, 'CREATE TABLE kept (v int); INSERT INTO kept VALUES (1), (2)');
    await addMessage(before.natsOperatorUrl, 'one');
    await before[Symbol.asyncDispose]();
    // Without apt, dpkg and docker on the PATH nothing could be fetched.
    const { answer } = await holder({ ...process.env, PATH: '/nonexistent' });
    expect(answer).toMatchObject({ owned: true, databaseUrl: before.databaseUrl, natsUrl: before.natsUrl });
    expect(await rows(answer.databaseUrl)).toEqual([1, 2]);
    expect(await messages(answer.natsUrl)).toEqual(['one']);
    const after = await acquire();
    expect(after.apiKey).toBe(before.apiKey);
    expect(after.apiKey).toMatch(/^[0-9a-f]{48}$/);
    expect((await stat(join(dir, 'state', 'secrets.json'))).mode & 0o777).toBe(0o600);
  });

  test('a copy of a state folder starts servers of its own beside the original', { tags: ['nightly'] }, async () => {
    const original = await acquire();
    await execute(original.databaseUrl, 'CREATE TABLE kept (v int); INSERT INTO kept VALUES (7)');
    await original[Symbol.asyncDispose]();
    await cp(join(dir, 'state'), join(dir, 'copy'), { recursive: true });
    const { uid, gid } = serverUser(join(dir, 'state', 'servers'));
    if (uid !== undefined) await execFileAsRoot(['chown', '-R', `${uid}:${gid}`, join(dir, 'copy', 'servers')]);
    const again = await acquire();
    await cp(join(dir, 'state', 'stack.json'), join(dir, 'copy', 'stack.json'));
    const copy = await acquire('copy');
    expect(copy.owned).toBe(true);
    expect(pidsOf(copy)).not.toEqual(pidsOf(again));
    expect(await rows(copy.databaseUrl)).toEqual([7]);
  });

  test('the servers accept every setting they are given', async () => {
    const stack = await acquire();
    expect((await execute(stack.databaseUrl, 'SELECT * FROM pg_file_settings WHERE error IS NOT NULL')).rows).toEqual(
      [],
    );
    const wanted = {
      jit: 'off',
      random_page_cost: '1.1',
      max_locks_per_transaction: '1024',
      wal_level: 'replica',
      listen_addresses: '127.0.0.1',
      shared_preload_libraries: 'timescaledb',
    };
    const found = await execute(stack.databaseUrl, 'SELECT name, setting FROM pg_settings');
    const settings = Object.fromEntries(found.rows.map(({ name, setting }) => [name, setting]));
    expect(settings).toMatchObject(wanted);
    await execute(stack.databaseUrl, 'CREATE EXTENSION IF NOT EXISTS timescaledb');
    const { rows: versions } = await execute(
      stack.databaseUrl,
      "SELECT extversion, current_setting('timescaledb.license') AS license FROM pg_extension WHERE extname = 'timescaledb'",
    );
    expect(versions).toEqual([{ extversion: expect.stringMatching(/^2\.\d+\.\d+$/), license: 'apache' }]);
  });
});

describe('recovering', () => {
  test('a killed server comes back on its port with what it had acknowledged', async () => {
    const stack = await acquire();
    stack.supervise();
    const urls = [stack.databaseUrl, stack.natsUrl];
    await execute(stack.databaseUrl, 'CREATE TABLE kept (v int)');
    await addMessage(stack.natsOperatorUrl, 'zero');
    for (let round = 1; round <= 2; round++) {
      await execute(stack.databaseUrl, `INSERT INTO kept VALUES (${round})`);
      await addMessage(stack.natsOperatorUrl, String(round));
      const before = pidsOf(stack);
      for (const pid of before) process.kill(pid, 'SIGKILL');
      await until('both are back', () =>
        alive(before).length === 0 && pidsOf(stack).every((pid) => !before.includes(pid)) ? true : undefined,
      );
      await until('PostgreSQL answers', () => rows(stack.databaseUrl));
    }
    expect([stack.databaseUrl, stack.natsUrl]).toEqual(urls);
    expect(await rows(stack.databaseUrl)).toEqual([1, 2]);
    expect(await messages(stack.natsOperatorUrl)).toEqual(['zero', '1', '2']);
  });

  test('two supervisors of one stack start a killed server once', { tags: ['nightly'] }, async () => {
    const [first, second] = [await acquire(), await acquire()];
    first.supervise();
    second.supervise();
    process.kill(pidOf(first, 'postgres'), 'SIGKILL');
    const old = pidOf(first, 'postgres');
    await until('both know the new one', () =>
      pidOf(first, 'postgres') !== old && pidOf(second, 'postgres') !== old ? true : undefined,
    );
    expect(pidsOf(first)).toEqual(pidsOf(second));
    const log = await readFile(join(dir, 'state/log/postgres.log'), 'utf8');
    expect(log.match(/starting PostgreSQL/g)).toHaveLength(2);
  });

  test('without a supervisor the next to come starts what was killed, on the same port', async () => {
    const first = await acquire();
    process.kill(pidOf(first, 'postgres'), 'SIGKILL');
    process.kill(pidOf(first, 'nats'), 'SIGKILL');
    await until('both are dead', () => (alive(pidsOf(first)).length === 0 ? true : undefined));
    const second = await acquire();
    expect([second.databaseUrl, second.natsUrl]).toEqual([first.databaseUrl, first.natsUrl]);
    await execute(first.databaseUrl, 'SELECT 1');
    await second[Symbol.asyncDispose]();
    await first[Symbol.asyncDispose]();
    expect(alive(pidsOf(second))).toEqual([]);
  });

  test('servers left behind that hang are replaced', { tags: ['nightly'] }, async () => {
    const { child, answer } = await holder();
    for (const pid of pidsOf(answer)) process.kill(pid, 'SIGSTOP');
    await ended(child, 'SIGKILL');
    // What is stopped stays silent, however long it is asked.
    const stack = await acquire('state', {}, { ...PRIVATE_PROFILE, responseTimeoutMs: 300 });
    expect(stack.owned).toBe(true);
    expect(alive(pidsOf(answer))).toEqual([]);
    await execute(stack.databaseUrl, 'SELECT 1');
  });

  test('servers nobody remembers are ended before new ones open their files', { tags: ['nightly'] }, async () => {
    const { child, answer } = await holder();
    await ended(child, 'SIGKILL');
    await rm(join(dir, 'state', 'stack.json'));
    // None of them ends by itself, however long it is waited for.
    const stack = await acquire('state', {}, { ...PRIVATE_PROFILE, responseTimeoutMs: 300 });
    expect(stack.owned).toBe(true);
    expect(alive(pidsOf(answer))).toEqual([]);
    await execute(stack.databaseUrl, 'SELECT 1');
  });

  test('a postmaster.pid whose number now belongs to another program does not stop the start', async () => {
    const before = await acquire();
    await before[Symbol.asyncDispose]();
    const data = join(dir, 'state', 'servers', 'postgres');
    const user = serverUser(join(dir, 'state', 'servers'));
    const stranger = spawn('sleep', ['600'], { ...asUser(user), stdio: 'ignore' });
    children.push(stranger);
    await writeFile(join(data, 'postmaster.pid'), `${stranger.pid}\n${data}\n`);
    const after = await acquire();
    await execute(after.databaseUrl, 'SELECT 1');
    expect(isAlive(processRef(stranger.pid as number) ?? { pid: 0, identity: '' })).toBe(true);
  });

  // An operator's shell in PostgreSQL's data folder was taken for a backend, and killed at the next start.
  test.each([
    ['postgres', 'postgres'],
    ['nats', 'nats'],
  ] as const)('what works in the folder of %s and is no server of ours is left alone', async (name, folder) => {
    const stack = await acquire();
    const servers = join(dir, 'state', 'servers');
    const cwd = join(servers, folder);
    const stranger = spawn('sleep', ['600'], { ...asUser(serverUser(servers)), cwd, stdio: 'ignore' });
    children.push(stranger);
    const ref = processRef(stranger.pid as number)!;
    const old = pidOf(stack, name);
    process.kill(old, 'SIGKILL');
    await until('it is dead', () => (alive([old]).length === 0 ? true : undefined));
    const after = await acquire();
    expect(pidOf(after, name)).not.toBe(old);
    expect(isAlive(ref)).toBe(true);
  });

  test('a cluster whose making was interrupted is made anew', async () => {
    const stack = await acquire();
    await execute(stack.databaseUrl, 'SELECT 1');
    await expect(stat(half)).rejects.toThrow(/ENOENT/);
  });
});

describe('given addresses', () => {
  test('are used as they are, and nothing is started', async () => {
    const own = await acquire();
    const stack = await acquire('given', { databaseUrl: own.databaseUrl, natsUrl: own.natsUrl });
    expect(stack).toMatchObject({
      databaseUrl: own.databaseUrl,
      natsUrl: own.natsUrl,
      owned: false,
      apiKey: undefined,
    });
    expect(stack.processes.every(({ external }) => external)).toBe(true);
    await stack[Symbol.asyncDispose]();
    expect(alive(pidsOf(own))).toEqual(pidsOf(own));
    await expect(stat(join(dir, 'given'))).rejects.toThrow(/ENOENT/);
  });

  test('one of the two starts only the other', async () => {
    const stack = await acquire('new', { databaseUrl: inject('testDatabaseUrl') });
    expect(stack.processes).toMatchObject([
      { name: 'postgres', pid: 0, external: true },
      { name: 'nats', external: false },
    ]);
    await expect(stat(join(dir, 'new/servers/postgres'))).rejects.toThrow(/ENOENT/);
  });

  test('that do not answer are named, without their password', async () => {
    const database = new URL(inject('testDatabaseUrl'));
    const refused = await acquire('state', { databaseUrl: 'postgres://user:hunter2@127.0.0.1:9/nowhere' }).catch(
      (e) => e,
    );
    expect(refused).toMatchObject({ code: 'DATABASE_UNAVAILABLE' });
    expect(refused.message).toContain('127.0.0.1:9/nowhere');
    expect(refused.message).toContain('ECONNREFUSED');
    expect(refused.message).not.toContain('hunter2');

    database.password = 'hunter2';
    const denied = await acquire('state', { databaseUrl: database.href }).catch((e) => e);
    expect(denied).toMatchObject({ code: 'DATABASE_UNAVAILABLE' });
    expect(denied.message).toMatch(/password authentication failed/);
    expect(denied.message).not.toContain('hunter2');

    const broker = await acquire('state', { natsUrl: 'nats://user:hunter2@127.0.0.1:9' }).catch((e) => e);
    expect(broker).toMatchObject({ code: 'LOG_UNAVAILABLE' });
    expect(broker.message).not.toContain('hunter2');
  });
});

test('a machine without apt and without Docker is told the three ways', async () => {
  const { answer } = await holder({ PATH: '/nonexistent', XDG_CACHE_HOME: join(dir, 'empty-cache') });
  expect(answer.code).toBe('STACK_INSTALL_FAILED');
  for (const way of ['Debian or Ubuntu with apt', 'Docker', 'SVC_DATABASE_URL and SVC_NATS_URL']) {
    expect(`${answer.message}; ${answer.remedy}`).toContain(way);
  }
});

async function execFileAsRoot(command: readonly string[]): Promise<void> {
  const child = spawn(command[0], command.slice(1), { stdio: 'inherit' });
  const code = await new Promise((resolve) => child.once('exit', resolve));
  expect(code).toBe(0);
}

// It was an EACCES without a remedy, or advice to remove the folder of another user.
test('a state folder that cannot be used is named with its setting', async () => {
  const dir = await temporaryDir();
  await writeFile(join(dir, 'file'), '');
  const stateDir = join(dir, 'file', 'state');
  await expect(acquireStack({ stateDir, log: testLogger() })).rejects.toMatchObject({
    code: 'CONFIGURATION_INVALID',
    message: expect.stringContaining(`${stateDir} (SVC_STATE_DIR) cannot be used`),
  });
  await rm(dir, { recursive: true });
});
