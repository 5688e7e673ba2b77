/** Who is on record as the holder of the service's port (http/port.ts): a later start takes the port back from nobody else. */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, mkdtempDisposable } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { listenOnFree, PortHolders } from '../../serving/http/port.ts';
import { createLogger } from '../../shared/logger.ts';
import { isAlive, processRef } from '../../shared/stack/processes.ts';
import { freePort } from '../../shared/stack/state.ts';
import { eventually } from '../support/serving.ts';

const log = createLogger('silent', 'test');
const temporary = () => mkdtempDisposable(join(tmpdir(), 'holders-'));

test('a process that stood still between listening and its record kept its port for good: it is on record before it listens', async () => {
  await using folder = await temporary();
  const port = await freePort();
  const path = join(folder.path, `http-${port}.json`);
  const holders = new PortHolders({ stateDir: folder.path, supervisor: process.ppid, log });
  const server = createServer();
  let recorded: unknown;
  server.once('listening', () => {
    recorded = existsSync(path) && JSON.parse(readFileSync(path, 'utf8'));
  });
  await listenOnFree(server, '127.0.0.1', port, holders);
  server.close();
  expect(recorded).toEqual([{ process: processRef(process.pid), supervisor: processRef(process.ppid) }]);
  // Others on record stay there until it is known that this process listens.
  await new PortHolders({ stateDir: folder.path, supervisor: undefined, log }).claim(port);
  expect(JSON.parse(readFileSync(path, 'utf8'))).toHaveLength(2);
  await holders.record(port, [{ pid: process.pid, supervisor: process.ppid }]);
  expect(JSON.parse(readFileSync(path, 'utf8'))).toEqual(recorded);
});

test('a process whose supervisor was killed before the record kept its port for good: the supervisor is on record as gone', async () => {
  await using folder = await temporary();
  const { pid } = spawnSync(process.execPath, ['--version']);
  const holders = new PortHolders({ stateDir: folder.path, supervisor: pid, log });
  await holders.claim(1234);
  const [{ supervisor }] = JSON.parse(readFileSync(join(folder.path, 'http-1234.json'), 'utf8'));
  expect([supervisor.pid, isAlive(supervisor)]).toEqual([pid, false]);
});

test('a record that the disk had no room for is written once there is', async () => {
  await using folder = await temporary();
  const stateDir = join(folder.path, 'later');
  const holders = new PortHolders({ stateDir, supervisor: undefined, log });
  await holders.record(1234, [{ pid: process.pid }]);
  await mkdir(stateDir);
  await eventually(() => Promise.resolve(existsSync(join(stateDir, 'http-1234.json'))), 'it is written');
  expect(JSON.parse(readFileSync(join(stateDir, 'http-1234.json'), 'utf8'))).toEqual([
    { process: processRef(process.pid) },
  ]);
});
