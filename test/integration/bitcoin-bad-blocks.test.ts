/**
 * Blocks that are not what their hash says, and blocks whose fees nobody can tell: none of them becomes an event.
 *
 * Faults made on purpose and caught here or in unit/documents-generate, unit/etf-archive, integration/bitcoin-follow: a
 * digest not compared, an unreadable folder without its code, a block answer of another shape, a branch read as the
 * best chain.
 */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { readBlocks } from '../../pipelines/sources/bitcoin/blocks.ts';
import { BitcoinNode } from '../../pipelines/sources/bitcoin/node.ts';
import {
  type Coin,
  encodeTransaction,
  input,
  OPEN_OUTPUT,
  OPEN_WITNESS,
  output,
  pay,
  type SampleChain,
} from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { contentFault, merkleRoot } from '../../pipelines/sources/bitcoin/wire/block.ts';
import { ERROR_CODES, type TidemarkError } from '../../shared/errors.ts';
import { createNode, rpcOf } from '../support/bitcoin.ts';
import { addHugeTransaction, makeCoins, startChain } from '../support/regtest.ts';
import { type RpcProxy, startRpcProxy } from '../support/rpc-proxy.ts';

let node: Awaited<ReturnType<typeof createNode>>;
let proxy: RpcProxy;
let chain: SampleChain;
let coins: Coin[];
/** Height of a block with a coinbase and four payments. */
let height: number;

const payment = (coin: Coin) =>
  pay([coin], [{ sats: coin.sats - 1_000, script: OPEN_OUTPUT }], { witness: OPEN_WITNESS });

beforeAll(async () => {
  node = await createNode();
  chain = await startChain(await rpcOf(node));
  await chain.addMany(101);
  coins = await makeCoins(chain, 20, 1);
  await chain.add(coins.splice(0, 4).map(payment));
  height = chain.height;
  proxy = await startRpcProxy(node.url);
});
afterAll(async () => {
  await proxy?.[Symbol.asyncDispose]();
  await node?.[Symbol.asyncDispose]();
});
afterEach(() => proxy.mend());

async function read(from: number, to: number, hashes?: string[]): Promise<number> {
  const source = new BitcoinNode(await rpcOf({ ...node, url: proxy.url, user: node.user, password: node.password }));
  const range = { chain: 'regtest', from, to, hashes: hashes ?? (await source.hashes(from, to)), lookahead: 2 };
  return (await Array.fromAsync(readBlocks(source, range))).length;
}

interface Told {
  result: Record<string, unknown> & {
    tx: (Record<string, unknown> & { hex: string; vin: Record<string, unknown>[]; vout?: unknown })[];
  };
}

/** Changes the node's answer about the block. */
function change(edit: (block: Told['result']) => void): void {
  proxy.spoil('getblock"', {
    kind: 'rewrite',
    rewrite: (text) => {
      const told = JSON.parse(text) as Told;
      edit(told.result);
      return JSON.stringify(told);
    },
  });
}

/** Another byte at a place counted from the end. */
const flipped = (hex: string, fromEnd: number): string => {
  const bytes = Buffer.from(hex, 'hex');
  bytes[bytes.length - fromEnd] ^= 1;
  return bytes.toString('hex');
};

test('as it is, it is read', async () => {
  expect(await read(height, height)).toBe(1);
});

test.each<[string, string, (block: Told['result']) => void]>([
  ['another nonce', 'its header does not match its hash', (block) => (block.nonce = Number(block.nonce) + 1)],
  ['another time', 'its header does not match its hash', (block) => (block.time = Number(block.time) + 1)],
  [
    'another root',
    'its header does not match its hash',
    (block) => (block.merkleroot = flipped(block.merkleroot as string, 1)),
  ],
  ['another link', 'its header does not match its hash', (block) => (block.previousblockhash = block.hash)],
  ['another hash', 'its header does not match its hash', (block) => (block.hash = flipped(block.hash as string, 1))],
  ['a transaction left out', 'do not match its merkle root', (block) => block.tx.pop()],
  ['a transaction twice', 'do not match its merkle root', (block) => block.tx.push(block.tx[2])],
  ['transactions in another order', 'do not match its merkle root', (block) => block.tx.push(...block.tx.splice(1, 1))],
  ['no coinbase', 'first transaction is not a coinbase', (block) => block.tx.shift()],
  ['two coinbases', 'second coinbase', (block) => (block.tx[2] = block.tx[0])],
  [
    'another amount in the bytes',
    'transaction 1 does not match its id',
    (block) => {
      const { hex } = block.tx[1];
      // the amount is eight bytes before the 35 of its script, which the witness follows
      block.tx[1].hex = flipped(hex, 4 + 1 + 71 + 2 + 33 + 2 + 3 + 1 + 35 + 8);
    },
  ],
  ['another id', 'transaction 1 does not match its id', (block) => (block.tx[1].txid = block.tx[2].txid)],
  // The id does not cover it, the coinbase's commitment does.
  [
    'another witness',
    "witness data differs from its coinbase's commitment",
    (block) => (block.tx[1].hex = flipped(block.tx[1].hex, 20)),
  ],
  ['bytes behind a transaction', '1 bytes follow it', (block) => (block.tx[1].hex += '00')],
  ['a transaction cut short', 'are announced', (block) => (block.tx[1].hex = block.tx[1].hex.slice(0, 100))],
  [
    'inputs that are worth less',
    'pays out',
    (block) => Object.assign(block.tx[1].vin[0].prevout as object, { value: 0.00000001 }),
  ],
])('%s: refused', async (_, message, edit) => {
  change(edit);
  await expect(read(height, height)).rejects.toMatchObject({
    code: 'NODE_ANSWER_INVALID',
    message: expect.stringContaining(message),
  });
});

test('inputs that are worth a little less: the coinbase takes more than there is', async () => {
  change((block) => {
    const prevout = block.tx[1].vin[0].prevout as { value: number };
    prevout.value = Number((prevout.value - 0.000005).toFixed(8));
  });
  await expect(read(height, height)).rejects.toMatchObject({
    code: 'NODE_ANSWER_INVALID',
    message: expect.stringContaining('coinbase claims more than subsidy and fees'),
  });
});

test.each<[string, (block: Told['result']) => void]>([
  ['no transactions', (block) => Object.assign(block, { tx: undefined })],
  ['a height that is a fraction', (block) => (block.height = 1.5)],
  ['a negative time', (block) => (block.time = -1)],
  ['a hash that is too short', (block) => (block.merkleroot = 'ab')],
  [
    'an amount of nine places',
    (block) => Object.assign(block.tx[1].vin[0].prevout as object, { value: '0.000000001' }),
  ],
])('an answer with %s: refused', async (_, edit) => {
  change(edit);
  await expect(read(height, height)).rejects.toMatchObject({ code: 'NODE_ANSWER_INVALID' });
});

test('an answer that is cut and claims to be whole is asked for again, and told', async () => {
  for (const afterBytes of [30, 500, 2_500]) {
    proxy.spoil('getblock"', { kind: 'cut', afterBytes, honest: true });
    await expect(read(height, height), `${afterBytes}`).rejects.toMatchObject({ code: 'NODE_UNREACHABLE' });
    proxy.mend();
  }
  proxy.spoil('getblock"', { kind: 'rewrite', rewrite: () => '{"result":null,"error":{"code":-1,"message":"no"}}' });
  await expect(read(height, height)).rejects.toMatchObject({ code: 'NODE_ANSWER_INVALID' });
});

test.each(['getblock"', 'getblockheader'])(
  'a node that lost blocks in a crash after it named them refused %s for good',
  async (method) => {
    const gone = '{"result":null,"error":{"code":-5,"message":"Block not found"}}';
    proxy.spoil(method, { kind: 'rewrite', rewrite: () => gone });
    const failure = (await read(height, height).catch((error: TidemarkError) => error)) as TidemarkError;
    expect({ code: failure.code, transient: ERROR_CODES[failure.code].transient }).toEqual({
      code: 'CHAIN_REORGANISED',
      transient: true,
    });
  },
);

test.each<[string, (block: Told['result']) => void]>([
  ['of a script with escapes', (block) => Object.assign(block.tx[1].vin[0].scriptSig as object, { asm: 'a"b' })],
  ['without a script', (block) => Object.assign(block.tx[1].vin[0], { scriptSig: undefined })],
  ['with a hash in capitals', (block) => Object.assign(block.tx[1].vin[0], { txid: 'AB'.repeat(32) })],
  ['with outputs in another order', (block) => Object.assign((block.tx[1].vout as object[])[0], { n: 1 })],
  ['with a list for an amount', (block) => Object.assign(block.tx[1].vin[0].prevout as object, { value: [1] })],
])('an answer %s: refused', async (_, edit) => {
  change(edit);
  await expect(read(height, height)).rejects.toMatchObject({ code: 'NODE_ANSWER_INVALID' });
});

test('numbers that arrive as strings are read all the same', async () => {
  change((block) => {
    for (const name of ['height', 'version', 'time', 'mediantime', 'nonce', 'difficulty', 'size'])
      block[name] = String(block[name]);
    for (const tx of block.tx) {
      for (const vin of tx.vin) {
        const prevout = vin.prevout as { value: number } | undefined;
        if (prevout) Object.assign(prevout, { value: prevout.value.toFixed(8) });
      }
    }
  });
  expect(await read(height, height)).toBe(1);
});

test('a node that does not say what inputs spent is refused, not taken for one without fees', async () => {
  change((block) => {
    delete block.tx[3].vin[0].prevout;
  });
  await expect(read(height, height)).rejects.toMatchObject({ code: 'NODE_ANSWER_INVALID' });
});

test('a block of a branch that was never the best has no undo data', async () => {
  const rpc = await rpcOf(node);
  const best = chain.tip;
  await chain.fork(1);
  await chain.add(coins.splice(0, 2).map(payment), { extraNonce: 1 });
  expect(await rpc.call('getbestblockhash')).toBe(best);
  await expect(read(height, height, [chain.tip])).rejects.toMatchObject({ code: 'NODE_ANSWER_INVALID' });
  await chain.fork(1);
  await chain.add([], { extraNonce: 2 });
  await chain.add();
  await chain.add();
  height = chain.height - 2;
});

test('hashes of two branches do not follow each other', async () => {
  const source = new BitcoinNode(await rpcOf(node));
  const hashes = await source.hashes(height - 1, height + 1);
  expect(await read(height - 1, height + 1, hashes)).toBe(3);
  await expect(read(height - 1, height + 1, [hashes[0], hashes[2], hashes[1]])).rejects.toMatchObject({
    code: 'CHAIN_REORGANISED',
    message: expect.stringContaining(`does not follow ${hashes[0]} at height ${height - 1}`),
  });
  await expect(read(height, height, [hashes[0]])).rejects.toMatchObject({ code: 'CHAIN_REORGANISED' });
});

test('a list of transactions that repeats within its merkle tree is told from the one it looks like', () => {
  const transactions = [1, 2, 3].map((n) =>
    encodeTransaction({
      version: 1,
      inputs: [
        n === 1 ? input(Buffer.alloc(32), 0xffffffff, { script: Buffer.of(1, 1) }) : input(Buffer.alloc(32, n), 0),
      ],
      outputs: [output(1, Buffer.of(0x51))],
      lockTime: 0,
    }),
  );
  const { root } = merkleRoot(transactions.map(({ txid }) => txid));
  const twice = [...transactions, transactions[2]];
  expect(merkleRoot(twice.map(({ txid }) => txid)).root).toEqual(root);
  const header = { version: 1, prevHash: root, merkleRoot: root, time: 0, bits: 0, nonce: 0 };
  const content = (of: typeof transactions) => ({
    coinbase: of[0],
    hasSecondCoinbase: false,
    hasWitness: false,
    count: of.length,
    txids: Buffer.concat(of.map(({ txid }) => txid)),
    wtxids: Buffer.concat(of.map(({ wtxid }) => wtxid)),
  });
  expect(contentFault(header, content(transactions))).toBeUndefined();
  expect(contentFault(header, content(twice))).toContain('repeat');
});

test('a transaction of nearly four megabytes is one transaction', async () => {
  const huge = await addHugeTransaction(chain, coins.splice(0, 1)[0]);
  expect(huge.raw.length).toBeGreaterThan(3_900_000);
  expect(await read(chain.height, chain.height)).toBe(1);
});
