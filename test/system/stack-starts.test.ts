/** Starts of the embedded servers that meet others' servers and folders, or fail half-way. */
import { execFileSync } from 'node:child_process';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { connectNats } from '../../shared/nats/connect.ts';
import { chooseServerRuntime } from '../../shared/stack/docker.ts';
import { natsUrl } from '../../shared/stack/nats.ts';
import { processesIn } from '../../shared/stack/processes.ts';
import { SERVER_NAMES, type ServerName } from '../../shared/stack/server.ts';
import { acquireStack, type Stack } from '../../shared/stack/stack.ts';
import { freePort, loadSecrets, natsPasswords } from '../../shared/stack/state.ts';
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
