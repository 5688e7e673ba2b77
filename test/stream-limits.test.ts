/** Streams reserve their limit: on a small disk twelve of them must still find room. */
import { expect, test } from 'vitest';
import { connectNats } from '../shared/nats/connect.ts';
import { ensureStream } from '../shared/nats/stream.ts';
import { createTestEnv } from './support/stack.ts';

test('a limit that the store has no room for is halved until it has, for each stream; an existing one stays', async () => {
  await using env = await createTestEnv();
  await using connection = await connectNats(env.natsOperatorUrl, 'test');
  const PETABYTE = 2 ** 50;
  const limits: number[] = [];
  for (let stream = 0; stream < 4; stream++) {
    limits.push((await ensureStream(connection, `stream_${stream}`, { maxBytes: PETABYTE })).config.max_bytes);
  }
  expect(limits.every((bytes) => bytes >= 256 * 1024 * 1024 && bytes < PETABYTE)).toBe(true);
  expect((await ensureStream(connection, 'stream_0', { maxBytes: PETABYTE })).config.max_bytes).toBe(limits[0]);
});
