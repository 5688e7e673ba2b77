/** Snapshots of a real mempool: on disk before anything else, and the same when they are read again. */
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  mempoolEvents,
  readSnapshot,
  snapshotDir,
  snapshotFiles,
  takeSnapshot,
} from '../../pipelines/sources/bitcoin/mempool.ts';
import { BitcoinNode } from '../../pipelines/sources/bitcoin/node.ts';
import { readMempoolAnswer } from '../../pipelines/sources/bitcoin/node-answers.ts';
import { mempoolRow } from '../../pipelines/sources/bitcoin/rows/project.ts';
import type { RpcClient } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import { JsonCursor } from '../../pipelines/sources/bitcoin/rpc/json-cursor.ts';
import {
  type Coin,
  coinsOf,
  OPEN_OUTPUT,
  OPEN_WITNESS,
  pay,
  type SampleChain,
} from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { displayHash } from '../../pipelines/sources/bitcoin/wire/bytes.ts';
import { encodeRecord, recordsOf } from '../../shared/frame/records.ts';
import { createNode, rpcOf } from '../support/bitcoin.ts';
import { givenData } from '../support/given.ts';
import { makeCoins, startChain } from '../support/regtest.ts';
import { startRpcProxy } from '../support/rpc-proxy.ts';

let node: Awaited<ReturnType<typeof createNode>>;
let rpc: RpcClient;
let chain: SampleChain;
let coins: Coin[];
let dir: string;
const source = () => new BitcoinNode(rpc);

beforeAll(async () => {
  node = await createNode();
  rpc = await rpcOf(node);
  chain = await startChain(rpc);
  await chain.addMany(101);
  coins = await makeCoins(chain, 30, 1);
  dir = snapshotDir(node.dir, 'regtest');
  await rpc.call('setmocktime', chain.time + 60);
});
afterAll(() => node?.[Symbol.asyncDispose]());

async function send(coin: Coin, fee: number, sequence?: number) {
  const { tx } = pay([coin], [{ sats: coin.sats - fee, script: OPEN_OUTPUT }], { witness: OPEN_WITNESS, sequence });
  await rpc.call('sendrawtransaction', tx.raw.toString('hex'));
  return tx;
}

test('an empty mempool is a snapshot too', async () => {
  const taken = await takeSnapshot(source(), { dir, chain: 'regtest', now: () => 1_700_000_000_000 });
  const snapshot = await readSnapshot(taken, 'regtest');
  expect(snapshot).toMatchObject({ takenAtMs: 1_700_000_000_000, chain: 'regtest', entries: [] });
  expect([...mempoolEvents(snapshot)]).toEqual([]);
});

test('fees to the satoshi, sizes, first sights and signals; rows as the projector makes them', async () => {
  const now = chain.time + 60;
  const plain = await send(coins[0], 1_234);
  const final = await send(coins[1], 777, 0xffffffff);
  // A child whose parent waits too, and one that may be replaced because its parent may.
  const child = await send(coinsOf(plain)[0], 2_001, 0xffffffff);
  const taken = await takeSnapshot(source(), { dir, chain: 'regtest', now: () => 1_700_000_001_234 });
  const snapshot = await readSnapshot(taken, 'regtest');
  const entry = (tx: typeof plain) => snapshot.entries.find(({ txid }) => txid === displayHash(tx.txid));
  const told = (await rpc.call('getrawmempool', true)) as Record<
    string,
    { vsize: string; 'bip125-replaceable': boolean }
  >;
  expect(entry(plain)).toMatchObject({ feeSats: 1_234, firstSeen: now, replaceable: true });
  expect(entry(final)).toMatchObject({ feeSats: 777 });
  expect(entry(child)).toMatchObject({ feeSats: 2_001 });
  for (const one of snapshot.entries) {
    expect(one.vsize).toBe(Number(told[one.txid].vsize));
    expect(one.replaceable).toBe(told[one.txid]['bip125-replaceable']);
  }
  expect(snapshot.entries.map(({ txid }) => txid)).toEqual(snapshot.entries.map(({ txid }) => txid).toSorted());
  const events = [...mempoolEvents(snapshot)];
  expect(events).toHaveLength(3);
  for (const { offset, payload, auxiliary, row } of events) {
    const [event] = recordsOf(encodeRecord(offset, payload, auxiliary));
    expect(event.offset).toBe(offset);
    expect(mempoolRow(event)).toEqual(row);
    const facts = JSON.parse(event.payload.toString());
    expect(Object.keys(facts)).toEqual(Object.keys(facts).toSorted());
  }
});

test('snapshots are listed oldest first; parts of a write that was killed are none', async () => {
  writeFileSync(join(dir, '1700000002000.json.zst.part-abcd'), 'half');
  expect((await snapshotFiles(dir)).map(({ takenAtMs }) => takenAtMs)).toEqual([1_700_000_000_000, 1_700_000_001_234]);
  expect(await snapshotFiles(join(dir, 'nothing'))).toEqual([]);
});

test('a file that was damaged, or is of another chain or time, is refused', async () => {
  const [first] = await snapshotFiles(dir);
  const bytes = readFileSync(first.path);
  const damaged = join(node.dir, 'damaged');
  mkdirSync(damaged);
  const path = join(damaged, '1700000000000.json.zst');
  for (const at of [5, bytes.length >> 1, bytes.length - 3]) {
    const copy = Buffer.from(bytes);
    copy[at] ^= 0x40;
    writeFileSync(path, copy);
    const read = await readSnapshot({ path, takenAtMs: first.takenAtMs }, 'regtest').catch((error) => error);
    // A bit that zstd does not look at may change nothing; then what is read is what was written.
    if (!(read instanceof Error)) expect(read.entries).toEqual([]);
    else expect(read).toMatchObject({ code: 'SOURCE_DOCUMENT_INVALID' });
  }
  writeFileSync(path, bytes.subarray(0, bytes.length - 1));
  await expect(readSnapshot({ path, takenAtMs: first.takenAtMs }, 'regtest')).rejects.toMatchObject({
    code: 'SOURCE_DOCUMENT_INVALID',
  });
  await expect(readSnapshot(first, 'main')).rejects.toMatchObject({ code: 'SOURCE_DOCUMENT_INVALID' });
  await expect(readSnapshot({ ...first, takenAtMs: 1 }, 'regtest')).rejects.toMatchObject({
    code: 'SOURCE_DOCUMENT_INVALID',
  });
});

test('what cannot be kept is not taken', async () => {
  writeFileSync(join(node.dir, 'file'), '');
  const take = takeSnapshot(source(), { dir: join(node.dir, 'file', 'sub'), chain: 'regtest', now: Date.now });
  await expect(take).rejects.toMatchObject({ code: 'DISK_UNUSABLE' });
});

test('an entry that is no entry is refused while the node can still be asked, and nothing is kept', async () => {
  await using proxy = await startRpcProxy(node.url);
  const spoiled = new BitcoinNode(await rpcOf({ ...node, url: proxy.url, user: node.user, password: node.password }));
  const empty = join(node.dir, 'spoiled');
  for (const [from, to, said = 'The node'] of [
    ['"vsize":', '"vsize":0.5,"x":'],
    ['"base":', '"base":-1,"x":'],
    // As nodes from version 32 on answer.
    ['"bip125-replaceable":', '"x":', '-deprecatedrpc=bip125'],
  ]) {
    proxy.mend();
    proxy.spoil('getrawmempool', { kind: 'rewrite', rewrite: (text) => text.replace(from, to) });
    const take = takeSnapshot(spoiled, { dir: empty, chain: 'regtest', now: Date.now });
    await expect(take).rejects.toMatchObject({ code: 'NODE_ANSWER_INVALID', message: expect.stringContaining(said) });
  }
  proxy.mend();
  proxy.spoil('getmempoolinfo', {
    kind: 'rewrite',
    rewrite: (text) => text.replace('"loaded":true', '"loaded":false'),
  });
  const loading = takeSnapshot(spoiled, { dir: empty, chain: 'regtest', now: Date.now });
  await expect(loading).rejects.toMatchObject({
    code: 'NODE_UNREACHABLE',
    message: expect.stringContaining('loading'),
  });
  expect(existsSync(empty) ? readdirSync(empty) : []).toEqual([]);
});

const RECORDED = '../shared/data/bitcoin/getrawmempool_true_regtest_2025-04.json';
givenData('bitcoin/getrawmempool_true_regtest_2025-04.json').test('a recorded answer of another node', () => {
  const [entry] = readMempoolAnswer(new JsonCursor(readFileSync(RECORDED))).entries;
  expect(entry).toEqual({
    txid: 'ece7a7280379ee681f692fa5b2e4c496a0c964f39cd9ecf879d537bb59c7c05c',
    // written 0.00000141 or 1.41e-06
    feeSats: 141,
    vsize: 141,
    firstSeen: 1_745_150_923,
    replaceable: true,
  });
});
