/** Who is on record as the holder of the service's port (http/port.ts): a later start takes the port back from nobody else. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { mkdir, mkdtempDisposable } from 'node:fs/promises';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { listenOnFree, PortHolders } from '../../serving/http/port.ts';
import { createLogger } from '../../shared/logger.ts';
import { isAlive, processRef } from '../../shared/stack/processes.ts';
import { freePort } from '../../shared/stack/state.ts';
import { faultOf } from '../support/faults.ts';
import { eventually } from '../support/serving.ts';

const log = createLogger('silent', 'test');
const own = { process: processRef(process.pid) };

/** A state folder, the record of a port in it, and holders of this process. */
async function stateOf(port: number) {
  const folder = await mkdtempDisposable(join(tmpdir(), 'holders-'));
  const path = join(folder.path, `http-${port}.json`);
  return {
    stateDir: folder.path,
    recorded: () => (existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : undefined),
    put: (holders: unknown) => writeFileSync(path, JSON.stringify(holders)),
    holders: (supervisor?: number) => new PortHolders({ stateDir: folder.path, supervisor, log }),
    [Symbol.asyncDispose]: () => folder[Symbol.asyncDispose](),
  };
}

/** A port that another program has. */
async function taken(): Promise<{ port: number; server: Server } & AsyncDisposable> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return { port, server, [Symbol.asyncDispose]: async () => void server.close() };
}

/** The record of a process that has ended. */
function ended() {
  const { pid } = spawnSync(process.execPath, ['--version']);
  return { pid, identity: 'ended' };
}

test('a process is on record before it listens, so that one that hangs right afterwards is found', async () => {
  const port = await freePort();
  await using state = await stateOf(port);
  const holders = state.holders(process.ppid);
  const server = createServer();
  let recorded: unknown;
  server.once('listening', () => {
    recorded = state.recorded();
  });
  await listenOnFree(server, '127.0.0.1', port, holders);
  server.close();
  expect(recorded).toEqual([{ ...own, supervisor: processRef(process.ppid) }]);
});

test('a supervisor that is killed before the record is on record as one that is gone', async () => {
  await using state = await stateOf(1234);
  const { pid } = ended();
  await state.holders(pid).claim(1234);
  const [{ supervisor }] = state.recorded();
  expect([supervisor.pid, isAlive(supervisor)]).toEqual([pid, false]);
});

test('a claim keeps other processes on record that run, and no others', async () => {
  await using state = await stateOf(1234);
  const other = { process: processRef(process.ppid) };
  state.put([other, { process: ended(), supervisor: ended() }]);
  const holders = state.holders();
  await holders.claim(1234);
  expect(state.recorded()).toEqual([other, own]);
  await holders.record(1234, [{ pid: process.pid }]);
  expect(state.recorded()).toEqual([own]);
});

test('a process that does not get a port is not on record for it', async () => {
  await using other = await taken();
  await using state = await stateOf(other.port);
  const holders = state.holders(process.ppid);
  const listening = () => listenOnFree(createServer(), '127.0.0.1', other.port, holders);
  for (let start = 0; start < 3; start++) {
    await faultOf(listening(), 'CONFIGURATION_INVALID');
    expect(state.recorded()).toBeUndefined();
  }
});

test('a process whose own supervisor is gone does not take itself for an orphan on the port', async () => {
  await using other = await taken();
  await using state = await stateOf(other.port);
  const fault = await faultOf(
    listenOnFree(createServer(), '127.0.0.1', other.port, state.holders(ended().pid)),
    'CONFIGURATION_INVALID',
  );
  expect(fault.message).toContain('another program does');
});

/** A process that listens on a port. */
async function listener() {
  const script = `require('node:net').createServer().listen(0, '127.0.0.1', function () { console.log(this.address().port) })`;
  const child = spawn(process.execPath, ['-e', script]);
  const exited = once(child, 'exit');
  const [line] = await once(child.stdout, 'data');
  return { port: Number(String(line)), child, exited, [Symbol.dispose]: () => void child.kill() };
}

test.each([
  ['that has ended', ended],
  ['whose number another process has by now', () => ({ pid: process.ppid, identity: 'another' })],
])(
  'a process on the port with a supervisor %s is killed, and the port is taken',
  { tags: ['nightly'] },
  async (_which, supervisor) => {
    using orphan = await listener();
    await using state = await stateOf(orphan.port);
    state.put([{ process: processRef(orphan.child.pid!), supervisor: supervisor() }]);
    const server = createServer();
    await listenOnFree(server, '127.0.0.1', orphan.port, state.holders(process.ppid));
    server.close();
    expect(await orphan.exited).toEqual([null, 'SIGKILL']);
    expect(state.recorded()).toContainEqual({ ...own, supervisor: processRef(process.ppid) });
  },
);

test.each([
  ['with a supervisor that runs', { supervisor: processRef(process.ppid) }],
  ['without a supervisor', {}],
])('a process on the port %s keeps it', async (_which, supervised) => {
  using other = await listener();
  await using state = await stateOf(other.port);
  const holder = { process: processRef(other.child.pid!), ...supervised };
  state.put([holder]);
  await faultOf(
    listenOnFree(createServer(), '127.0.0.1', other.port, state.holders(process.ppid)),
    'CONFIGURATION_INVALID',
  );
  expect([state.recorded(), isAlive(holder.process!)]).toEqual([[holder], true]);
});

test('a process that leaves a port keeps on record who has recorded itself since', async () => {
  await using state = await stateOf(1234);
  const holders = state.holders();
  await holders.claim(1234);
  const other = { process: processRef(process.ppid) };
  state.put([other]);
  await holders.release();
  expect(state.recorded()).toEqual([other]);
});

test('a record that the disk had no room for is written once there is, and a later one is not overwritten by it', {
  tags: ['nightly'],
}, async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'holders-'));
  const stateDir = join(folder.path, 'later');
  const path = (port: number) => join(stateDir, `http-${port}.json`);
  const holders = new PortHolders({ stateDir, supervisor: process.ppid, log });
  await holders.claim(1234);
  await mkdir(stateDir);
  await eventually(() => Promise.resolve(existsSync(path(1234))), 'it is written');
  expect(JSON.parse(readFileSync(path(1234), 'utf8'))).toEqual([{ ...own, supervisor: processRef(process.ppid) }]);
  const others = new PortHolders({ stateDir: join(stateDir, 'none'), supervisor: process.ppid, log });
  await others.claim(1235);
  await mkdir(join(stateDir, 'none'));
  await others.record(1235, [{ pid: process.pid }]);
  await delay(1200);
  expect(JSON.parse(readFileSync(join(stateDir, 'none', 'http-1235.json'), 'utf8'))).toEqual([own]);
});

test('records of two ports that the disk had no room for are both written once there is', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'holders-'));
  const stateDir = join(folder.path, 'later');
  const holders = new PortHolders({ stateDir, supervisor: undefined, log });
  const ports = [1234, 1235];
  for (const port of ports) await holders.record(port, [{ pid: process.pid }]);
  await mkdir(stateDir);
  const written = () => ports.every((port) => existsSync(join(stateDir, `http-${port}.json`)));
  await eventually(() => Promise.resolve(written()), 'both are written');
});
