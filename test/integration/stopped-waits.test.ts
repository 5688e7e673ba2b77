/** A stop is heard while a server is awaited that accepts connections and says nothing: each wait lasted until its limit. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { natsFault } from '../../shared/stack/nats.ts';
import { postgresFault } from '../../shared/stack/postgres.ts';
import { acquireStack } from '../../shared/stack/stack.ts';
import { beginCommand } from '../support/command.ts';
import { System } from '../support/pipeline.ts';
import { eventually } from '../support/serving.ts';
import { testLogger } from '../support/stack.ts';
import { startStoreProxy } from '../support/store-proxy.ts';

let silent: Server;
let sockets: Socket[];
let address: string;

beforeEach(async () => {
  sockets = [];
  silent = createServer((socket) => {
    sockets.push(socket.on('error', () => {}));
    silent.emit('met');
  });
  await once(silent.listen(0, '127.0.0.1'), 'listening');
  address = `127.0.0.1:${(silent.address() as AddressInfo).port}`;
});
afterEach(() => {
  for (const socket of sockets) socket.destroy();
  silent.close();
});

/** Longest time from a stop to the end of a wait. */
const HEARD_MS = 1000;

const WAITS: Readonly<Record<string, (at: string, signal: AbortSignal) => Promise<unknown>>> = {
  'connecting to PostgreSQL': (at, signal) => connect({ url: `postgres://a:b@${at}/x`, name: 'test', signal }),
  'looking whether PostgreSQL answers': (at, signal) => postgresFault(`postgres://a:b@${at}/x`, 60_000, { signal }),
  'connecting to nats-server': (at, signal) => connectNats(`nats://a:b@${at}`, 'test', undefined, signal),
  'looking whether nats-server answers': (at, signal) => natsFault(`nats://a:b@${at}`, 60_000, { signal }),
  'acquiring a given stack': (at, signal) =>
    acquireStack({
      stateDir: '/nowhere',
      databaseUrl: `postgres://a:b@${at}/x`,
      natsUrl: `nats://a:b@${at}`,
      log: testLogger(),
      waitMs: 60_000,
      signal,
    }),
};

test.each(Object.entries(WAITS))('%s', async (_name, wait) => {
  const stopping = new AbortController();
  const waiting = wait(address, stopping.signal);
  waiting.catch(() => {});
  if (sockets.length === 0) await once(silent, 'met');
  const stoppedAt = performance.now();
  stopping.abort(new Error('interrupted'));
  await expect(waiting).rejects.toThrow('interrupted');
  expect(performance.now() - stoppedAt).toBeLessThan(HEARD_MS);
});

test('a command that reads ends although the database does not answer any more', async () => {
  await using system = await System.create();
  await using proxy = await startStoreProxy(system.settings.SVC_DATABASE_URL);
  proxy.muteAt("from partitions where state <> 'proved'");
  const running = beginCommand(['status'], { ...system.settings, SVC_DATABASE_URL: proxy.url });
  await eventually(async () => proxy.isMuted(), 'the command asks');
  const stoppedAt = performance.now();
  running.stop();
  const { exit, json } = await running.done;
  expect([exit, json?.error.code]).toEqual([130, 'INTERRUPTED']);
  expect(performance.now() - stoppedAt).toBeLessThan(HEARD_MS);
});
