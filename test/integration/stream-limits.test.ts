/** Streams reserve their limit: on a small disk twelve of them must still find room, and without room the service still runs. */
import { once } from 'node:events';
import { jetstreamManager } from '@nats-io/jetstream';
import { expect, test } from 'vitest';
import { SETTINGS } from '../../shared/config/settings.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { ensureStream, JS_ERROR, jsErrorCode } from '../../shared/nats/stream.ts';
import { System } from '../support/pipeline.ts';
import { OWN_MATRIX } from '../support/serving.ts';
import { createTestEnv } from '../support/stack.ts';

test('a limit that the store has no room for is halved until it has, for each stream; an existing one stays', async () => {
  await using env = await createTestEnv({ ownLog: true });
  await using connection = await connectNats(env.natsOperatorUrl, 'test');
  const PETABYTE = 2 ** 50;
  const limits: number[] = [];
  for (let stream = 0; stream < 4; stream++) {
    limits.push((await ensureStream(connection, `stream_${stream}`, { maxBytes: PETABYTE })).config.max_bytes);
  }
  expect(limits.every((bytes) => bytes >= 256 * 1024 * 1024 && bytes < PETABYTE)).toBe(true);
  expect((await ensureStream(connection, 'stream_0', { maxBytes: PETABYTE })).config.max_bytes).toBe(limits[0]);
});

// On a disk of 64 GB the first streams took everything, and five datasets and the changes had no stream.
test('streams that come last get room from what the first have reserved and do not use', async () => {
  await using env = await createTestEnv({ ownLog: true });
  await using connection = await connectNats(env.natsOperatorUrl, 'test');
  const { streams } = await jetstreamManager(connection);
  const GIB = 2 ** 30;
  const foreign = new Map<string, number>();
  const reserve = async (name: string, bytes: number) => {
    try {
      await streams.add({ name, subjects: [name], max_bytes: bytes });
      foreign.set(name, bytes);
    } catch (error) {
      expect(jsErrorCode(error)).toBe(JS_ERROR.STORAGE_RESOURCES_EXCEEDED);
    }
  };
  // Leaves 6 to 7 GiB of the store. Streams of 2^n fill the rest, each once. One stays in any case: with the last stream nats-server
  // removes their folder, and a stream that is created meanwhile fails ("error creating store").
  await reserve('foreign', 2 ** 20);
  await reserve('room', 6 * GIB);
  for (let bytes = 2 ** 50; bytes >= GIB; bytes /= 2) await reserve(`foreign_${bytes}`, bytes);
  if (foreign.delete('room')) await streams.delete('room');
  const names = Array.from({ length: 14 }, (_, index) => `stream_${index}`);
  for (const name of names) await ensureStream(connection, name, { maxBytes: 8 * GIB });
  const limits = await Promise.all(names.map(async (name) => (await streams.info(name)).config.max_bytes));
  expect(Math.min(...limits)).toBeGreaterThanOrEqual(GIB / 4);
  expect(limits.reduce((sum, bytes) => sum + bytes, 0)).toBeLessThanOrEqual(7 * GIB);
  for (const [name, bytes] of foreign) expect((await streams.info(name)).config.max_bytes).toBe(bytes);
});

// The sample of the first dataset ended `up` with LOG_MISCONFIGURED, and the HTTP service with it.
test('a store with no room for the sample ends no service: `up` says what failed and goes on', {
  tags: ['nightly'],
}, async () => {
  await using system = await System.create('migrated', { ownLog: true });
  {
    await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
    const { streams } = await jetstreamManager(connection);
    for (let bytes = 2 ** 50; bytes > 2 ** 20; bytes /= 2) {
      await streams
        .add({ name: `reserved_${bytes}`, subjects: [`reserved.${bytes}`], max_bytes: bytes })
        .catch(() => {});
    }
  }
  // One sample is enough: of the others there are sources.
  const sources = Object.keys(SETTINGS).filter((name) => /^SVC_(?!EXCHANGE_B_BASE).*_(BASE|RPC)_URL$/.test(name));
  const { child, done } = system.start(['up'], {
    ...Object.fromEntries(sources.map((name) => [name, 'http://127.0.0.1:9/'])),
    SVC_INTERNAL_API_KEY: 'key',
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    SVC_HTTP_PORT: '0',
  });
  let said = '';
  child.stderr?.on('data', (text) => {
    said += text;
  });
  const url = await Promise.race([
    once(child.stdout!, 'data').then(([line]) => (JSON.parse(line).url as string | undefined) ?? String(line)),
    done.then(({ stdout }) => `ended: ${stdout}`),
  ]);
  expect(url).toMatch(/^http:/);
  expect((await fetch(`${url}/healthz`)).status).toBe(200);
  expect(said).toMatch(/LOG_MISCONFIGURED.*has no room to reserve \d+ bytes.*the sample could not be loaded/);
  child.kill('SIGTERM');
  expect((await done).exit).toBe(0);
});
