/** The Bitcoin node that samples and tests bring with them. */
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startBitcoind } from '../../shared/stack/bitcoind.ts';
import { isAlive, processRef } from '../../shared/stack/processes.ts';
import { createNode } from '../support/bitcoin.ts';
import { testLogger } from '../support/stack.ts';

let node: Awaited<ReturnType<typeof createNode>>;
beforeAll(async () => {
  node = await createNode();
});
afterAll(() => node?.[Symbol.asyncDispose]());

async function ask(method: string, password = node.password): Promise<{ status: number; result?: unknown }> {
  const answer = await fetch(node.url, {
    method: 'POST',
    headers: { authorization: `Basic ${Buffer.from(`${node.user}:${password}`).toString('base64')}` },
    body: JSON.stringify({ id: 1, method, params: [] }),
  });
  const text = await answer.text();
  return { status: answer.status, result: text === '' ? undefined : JSON.parse(text).result };
}

test('answers on loopback, with its generated password only', async () => {
  expect(await ask('getblockcount')).toEqual({ status: 200, result: 0 });
  expect((await ask('getblockcount', 'wrong')).status).toBe(401);
  expect(new URL(node.url).hostname).toBe('127.0.0.1');
});

test('the password is on no command line and in no log, and its file is ours alone', () => {
  const dir = join(node.dir, 'node');
  const commandLine = readFileSync(`/proc/${node.pid}/cmdline`, 'utf8');
  expect(commandLine).toContain(dir);
  for (const text of [commandLine, readFileSync(node.logFile, 'utf8')]) expect(text).not.toContain(node.password);
  expect(statSync(join(dir, 'bitcoin.conf')).mode & 0o077).toBe(0);
});

test('asks nobody and listens to nobody', async () => {
  const info = (await ask('getnetworkinfo')).result as { connections: number; networks: unknown[] };
  expect(info.connections).toBe(0);
  const peers = (await ask('getpeerinfo')).result;
  expect(peers).toEqual([]);
});

test('killed, it comes back on its port with its password', async () => {
  const before = node.pid;
  await node.kill();
  await expect(ask('getblockcount')).rejects.toThrow();
  await node.restart();
  expect(node.pid).not.toBe(before);
  expect((await ask('getblockcount')).status).toBe(200);
});

test('a node left over in a folder is ended by the next one there', { tags: ['nightly'] }, async () => {
  const left = processRef(node.pid)!;
  await using next = await startBitcoind({ dir: join(node.dir, 'node'), chain: 'regtest', log: testLogger() });
  expect(isAlive(left)).toBe(false);
  expect(next.pid).not.toBe(left.pid);
});

test('a configuration it refuses is reported with its own words', async () => {
  const start = startBitcoind({
    dir: join(node.dir, 'refused'),
    chain: 'regtest',
    configuration: ['prune=-7'],
    log: testLogger(),
  });
  await expect(start).rejects.toMatchObject({ code: 'STACK_START_FAILED', message: expect.stringContaining('Prune') });
});
