import { expect, test } from 'vitest';
import { createPrivateStack, createTestEnv, execute } from './support/stack.ts';

test('env', async () => {
  await using env = await createTestEnv();
  await execute(env.databaseUrl, 'create extension timescaledb');
  console.log(env, (await execute(env.databaseUrl, 'select version()')).rows);
});
test('priv', async () => {
  await using s = await createPrivateStack();
  await execute(s.stack.databaseUrl, 'create extension timescaledb');
  console.log(s.stack.processes);
  expect(1).toBe(1);
});
