/** Calls to a node that is slow, silent, refusing, cut off or plainly wrong. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { BitcoinNode } from '../../pipelines/sources/bitcoin/node.ts';
import type { RpcOptions } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import type { TidemarkError } from '../../shared/errors.ts';
import { createNode, rpcOf } from '../support/bitcoin.ts';
import { type RpcProxy, startRpcProxy } from '../support/rpc-proxy.ts';

let node: Awaited<ReturnType<typeof createNode>>;
let proxy: RpcProxy;
beforeAll(async () => {
  node = await createNode();
  proxy = await startRpcProxy(node.url);
});
afterAll(async () => {
  await proxy?.[Symbol.asyncDispose]();
  await node?.[Symbol.asyncDispose]();
});
afterEach(() => {
  proxy.mend();
  proxy.requests();
});

const NO_WAIT = { firstMs: 1, maxMs: 1 };
const clientOf = (options: Partial<RpcOptions> = {}) =>
  rpcOf({ ...node, url: proxy.url, user: node.user, password: node.password }, { backoff: NO_WAIT, ...options });

describe('what is spoiled on the way', () => {
  test.each([
    ['a header and no more', { kind: 'cut', afterBytes: 0 }, 'NODE_'],
    ['half an answer', { kind: 'cut', afterBytes: 100 }, 'NODE_UNREACHABLE'],
    ['half an answer that claims to be whole', { kind: 'cut', afterBytes: 100, honest: true }, 'NODE_UNREACHABLE'],
    ['a reset connection', { kind: 'reset' }, 'NODE_UNREACHABLE'],
    ['a full work queue', { kind: 'status', status: 503, body: 'Work queue depth exceeded' }, 'NODE_UNREACHABLE'],
    ['a page of somebody else', { kind: 'status', status: 502, body: '<html>Bad Gateway</html>' }, 'NODE_UNREACHABLE'],
    ['an answer after the deadline', { kind: 'delay', ms: 20_000 }, 'NODE_UNREACHABLE'],
    ['an answer that comes byte by byte', { kind: 'drip', everyMs: 5 }, 'NODE_UNREACHABLE'],
  ] as const)('%s: reported, and gone when it passes', async (_, spoiling, code) => {
    // Where it is no deadline that is met, none is: a busy machine is not what is spoiled here.
    const timeoutMs = spoiling.kind === 'delay' || spoiling.kind === 'drip' ? 150 : 30_000;
    const rpc = await clientOf({ timeoutMs, maxAttempts: 2 });
    proxy.spoil('getblockchaininfo', spoiling);
    const failure = (await rpc.call('getblockchaininfo').catch((error: TidemarkError) => error)) as TidemarkError;
    expect(failure.code).toContain(code);
    expect(failure.message).toContain('after 2 attempts');
    expect(failure.message).not.toContain(node.password);
    expect(proxy.requests()).toHaveLength(2);
    proxy.mend();
    proxy.spoil('getblockchaininfo', spoiling, 1);
    const again = await clientOf({ timeoutMs, maxAttempts: 50 });
    expect(await again.call('getblockchaininfo')).toMatchObject({ chain: 'regtest', blocks: '0' });
    expect(proxy.requests().length).toBeGreaterThan(1);
  });

  test('something that is no node', async () => {
    const rpc = await clientOf();
    for (const body of ['[1,2]', '{"hello":"there"}', 'null', '"text"']) {
      proxy.spoil('getblockcount', { kind: 'rewrite', rewrite: () => body }, 1);
      await expect(rpc.call('getblockcount')).rejects.toMatchObject({ code: 'NODE_ANSWER_INVALID' });
    }
  });
});

test('a node that is down', async () => {
  const rpc = await rpcOf({ url: 'http://127.0.0.1:9', user: 'a', password: 'b' });
  await expect(rpc.call('getblockcount')).rejects.toMatchObject({
    code: 'NODE_UNREACHABLE',
    message: expect.stringContaining('ECONNREFUSED'),
  });
});

test('a wrong password is refused once, not tried again, and not repeated to anyone', async () => {
  const rpc = await clientOf({ password: 'not-the-password', maxAttempts: 4 });
  const failure = (await rpc.call('getblockcount').catch((error: TidemarkError) => error)) as TidemarkError;
  expect(failure).toMatchObject({ code: 'NODE_UNSUITABLE', transient: false });
  expect(JSON.stringify([failure.message, failure.details, String(failure.stack)])).not.toContain('not-the-password');
  expect(proxy.requests()).toHaveLength(1);
});

test('credentials may be in the address', async () => {
  const url = new URL(proxy.url);
  url.username = node.user;
  url.password = node.password;
  const rpc = await rpcOf({ url: url.href, user: undefined as never, password: undefined as never });
  expect(await rpc.call('getblockcount')).toBe('0');
  expect(rpc.endpoint).not.toContain(node.password);
});

test('an address whose credentials are not encoded is a fault of the settings, and is not repeated', async () => {
  const open = rpcOf({
    url: 'http://user:se%cret@127.0.0.1:9',
    user: undefined as never,
    password: undefined as never,
  });
  const failure = (await open.catch((error: TidemarkError) => error)) as TidemarkError;
  expect(failure).toMatchObject({ code: 'CONFIGURATION_INVALID' });
  expect(String(failure.stack)).not.toContain('cret');
});

test('a call the node refuses is told in its own words, and not tried again', async () => {
  const rpc = await clientOf({ maxAttempts: 4 });
  await expect(rpc.call('getblockhash', 77)).rejects.toMatchObject({
    code: 'NODE_ANSWER_INVALID',
    message: expect.stringContaining('Block height out of range'),
    details: { rpc_code: -8 },
  });
  await expect(rpc.call('nosuchmethod')).rejects.toMatchObject({ details: { rpc_code: -32601 } });
  expect(proxy.requests()).toHaveLength(2);
});

describe('batches', () => {
  const hashes = (heights: readonly number[]) =>
    heights.map((height) => ({ method: 'getblockhash', params: [height] }));

  test('one error inside is an error, naming the entry', async () => {
    const rpc = await clientOf();
    expect(await rpc.batch(hashes([0, 0]))).toHaveLength(2);
    await expect(rpc.batch(hashes([0, 5, 0]))).rejects.toMatchObject({
      code: 'NODE_ANSWER_INVALID',
      message: expect.stringContaining('getblockhash (2 of 3): Block height out of range'),
    });
    expect(await rpc.batch([])).toEqual([]);
  });

  test('an entry that is missing, doubled or out of order', async () => {
    const rpc = await clientOf();
    const spoilings: ((entries: unknown[]) => unknown)[] = [
      (entries) => entries.slice(1),
      (entries) => [...entries, entries[0]],
      (entries) => entries.reverse(),
      (entries) => entries[0],
    ];
    for (const change of spoilings) {
      proxy.spoil('getblockhash', { kind: 'rewrite', rewrite: (text) => JSON.stringify(change(JSON.parse(text))) }, 1);
      await expect(rpc.batch(hashes([0, 0, 0]))).rejects.toMatchObject({ code: 'NODE_ANSWER_INVALID' });
    }
  });

  test('an answer whose size is not known before it ends', async () => {
    const rpc = await clientOf();
    proxy.spoil('getblockhash', { kind: 'pieces', bytes: 10_000 });
    const found = await rpc.batch(hashes(Array.from({ length: 3000 }, () => 0)));
    expect(found).toHaveLength(3000);
    expect([...new Set(found)]).toEqual([await rpc.call('getblockhash', 0)]);
  });

  test('heights beyond the tip', async () => {
    await expect(new BitcoinNode(await clientOf()).hashes(0, 3)).rejects.toMatchObject({
      code: 'NODE_HEIGHT_BEYOND_TIP',
    });
  });
});

test('never more calls at once than allowed, however many are asked for', async () => {
  const rpc = await clientOf({ parallel: 3 });
  proxy.spoil('getblockcount', { kind: 'delay', ms: 20 });
  await Promise.all(Array.from({ length: 20 }, () => rpc.call('getblockcount')));
  expect(proxy.most).toBe(3);
  // A failed call gives its place back.
  await Promise.allSettled(Array.from({ length: 9 }, () => rpc.call('nosuchmethod')));
  expect(await rpc.call('getblockhash', 0)).toHaveLength(64);
});

test('an aborted call ends at once', async () => {
  const stopping = new AbortController();
  const rpc = await clientOf({ signal: stopping.signal, maxAttempts: 5 });
  proxy.spoil('getblockcount', { kind: 'delay', ms: 20_000 });
  setTimeout(() => stopping.abort(new Error('told to stop')), 50);
  await expect(rpc.call('getblockcount')).rejects.toThrow('told to stop');
});
