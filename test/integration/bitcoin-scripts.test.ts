/** Scripts as text, their kinds and addresses: the same as a real node says, for whatever bytes a script may be. */
import { execFileSync } from 'node:child_process';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { RpcClient } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import { encodeTransaction, input, output } from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { writeAsm } from '../../pipelines/sources/bitcoin/script/asm.ts';
import { scriptKind } from '../../pipelines/sources/bitcoin/script/kinds.ts';
import { TextWriter } from '../../pipelines/sources/bitcoin/text-writer.ts';
import {
  merkleRoot,
  readHeader,
  readTransaction,
  type Transaction,
} from '../../pipelines/sources/bitcoin/wire/block.ts';
import { displayHash, WireReader } from '../../pipelines/sources/bitcoin/wire/bytes.ts';
import { createNode, rpcOf } from '../support/bitcoin.ts';
import { givenData } from '../support/given.ts';

type Chain = 'main' | 'regtest';
const CHAINS: readonly Chain[] = ['main', 'regtest'];
const nodes = new Map<Chain, { node: Awaited<ReturnType<typeof createNode>>; rpc: RpcClient }>();

beforeAll(async () => {
  for (const chain of CHAINS) {
    const node = await createNode({ chain });
    nodes.set(chain, { node, rpc: await rpcOf(node) });
  }
});
afterAll(async () => {
  for (const { node } of nodes.values()) await node[Symbol.asyncDispose]();
});

interface Told {
  readonly txid: string;
  readonly hash: string;
  readonly vin: readonly { readonly coinbase?: string; readonly scriptSig?: Script }[];
  readonly vout: readonly { readonly scriptPubKey: Script & { type: string; address?: string } }[];
}
interface Script {
  readonly asm: string;
  readonly hex: string;
}

async function tellOf(chain: Chain, transactions: readonly Transaction[]): Promise<Told[]> {
  const calls = transactions.map(({ raw }) => ({
    method: 'decoderawtransaction',
    params: [raw.toString('hex'), true],
  }));
  return (await nodes.get(chain)!.rpc.batch(calls)) as Told[];
}

function scriptAsm(script: Buffer, role: 'input' | 'output'): string {
  const writer = new TextWriter(16);
  writeAsm(writer, script, role);
  return writer.take().toString();
}

function expectAlike(chain: Chain, tx: Transaction, told: Told): void {
  expect(displayHash(tx.txid)).toBe(told.txid);
  expect(displayHash(tx.wtxid)).toBe(told.hash);
  for (const [index, { script }] of tx.inputs.entries()) {
    const { coinbase, scriptSig } = told.vin[index];
    if (coinbase !== undefined) continue;
    expect({ hex: script.toString('hex'), asm: scriptAsm(script, 'input') }).toEqual(scriptSig);
  }
  for (const [index, { script }] of tx.outputs.entries()) {
    const { type, address } = scriptKind(script, chain);
    const { scriptPubKey } = told.vout[index];
    const ours = { hex: script.toString('hex'), asm: scriptAsm(script, 'output'), type, address };
    const { hex, asm, type: theirType, address: theirAddress } = scriptPubKey;
    expect(ours).toEqual({ hex, asm, type: theirType, address: theirAddress });
  }
}

const bytes = (minLength: number, maxLength = minLength) =>
  fc.uint8Array({ minLength, maxLength }).map((array) => Buffer.from(array));
const opcode = fc.integer({ min: 0, max: 255 }).map((code) => Buffer.of(code));
const pushOf = (data: fc.Arbitrary<Buffer>) =>
  data.map((value) =>
    value.length < 0x4c
      ? Buffer.concat([Buffer.of(value.length), value])
      : Buffer.concat([Buffer.of(0x4c, value.length), value]),
  );
/** Not in its shortest form. */
const longPush = bytes(0, 30).map((value) => Buffer.concat([Buffer.of(0x4d, value.length, 0), value]));
const integerOf = (length: fc.Arbitrary<number>) =>
  fc
    .tuple(length, fc.constantFrom(0x00, 0x01, 0x7f, 0x80, 0xff), fc.constantFrom(0x00, 0x7f, 0x80))
    .chain(([size, a, b]) =>
      bytes(size).map((body) => {
        body[0] = a;
        if (size > 1) body[1] = b;
        return Buffer.concat([Buffer.of(2, size), body]);
      }),
    );
/** What looks like a signature, and what nearly does. */
const signature = fc
  .tuple(
    integerOf(fc.integer({ min: 1, max: 34 })),
    integerOf(fc.integer({ min: 1, max: 34 })),
    fc.constantFrom(0, 1, 2, 3, 4, 0x81, 0x82, 0x83, 0x84),
    fc.constantFrom(0, 0, 0, 1, -1),
  )
  .map(([r, s, type, off]) => Buffer.concat([Buffer.of(0x30, r.length + s.length + off), r, s, Buffer.of(type)]));
const key = fc.oneof(
  fc.tuple(fc.constantFrom(2, 3, 4), bytes(32)).map(([kind, rest]) => Buffer.concat([Buffer.of(kind), rest])),
  fc.tuple(fc.constantFrom(4, 6, 7, 2), bytes(64)).map(([kind, rest]) => Buffer.concat([Buffer.of(kind), rest])),
);
const small = fc.oneof(
  fc.integer({ min: 0x4f, max: 0x61 }).map((code) => Buffer.of(code)),
  fc.integer({ min: 0, max: 22 }).map((value) => Buffer.of(1, value)),
  bytes(2).map((value) => Buffer.concat([Buffer.of(2), value])),
);
const soup = fc.array(
  fc.oneof(opcode, pushOf(bytes(0, 5)), pushOf(bytes(30, 90)), longPush, pushOf(signature), pushOf(key), small),
  { maxLength: 8 },
);
const multisig = fc
  .tuple(small, fc.array(pushOf(key), { maxLength: 5 }), fc.option(small), fc.constantFrom(0xae, 0xae, 0xaf))
  .map(([m, keys, n, end]) => Buffer.concat([m, ...keys, n ?? Buffer.of(0x50 + keys.length), Buffer.of(end)]));
const program = fc
  .tuple(fc.constantFrom(0, 0, 0x4f, 0x50, 0x51, 0x51, 0x52, 0x60, 0x61), fc.constantFrom(1, 2, 20, 32, 32, 33, 40, 41))
  .chain(([version, size]) => bytes(size).map((body) => Buffer.concat([Buffer.of(version, size), body])));
const template = fc.oneof(
  bytes(20).map((hash) => Buffer.concat([Buffer.from('76a914', 'hex'), hash, Buffer.from('88ac', 'hex')])),
  bytes(20).map((hash) => Buffer.concat([Buffer.from('a914', 'hex'), hash, Buffer.from('87', 'hex')])),
  pushOf(key).map((push) => Buffer.concat([push, Buffer.of(0xac)])),
  fc.constant(Buffer.from('51024e73', 'hex')),
  fc.constant(Buffer.from('00144751e76e8199196d454941c45d1b3a323f1433bd6', 'hex')),
);
const nullData = fc
  .array(fc.oneof(pushOf(bytes(0, 60)), opcode), { maxLength: 4 })
  .map((parts) => Buffer.concat([Buffer.of(0x6a), ...parts]));
const script = fc.oneof(
  soup.map((parts) => Buffer.concat(parts)),
  multisig,
  program,
  template,
  nullData,
  bytes(0, 80),
  pushOf(signature),
);

test.each(CHAINS)('%s: any script reads as the node reads it', async (chain) => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.tuple(script, script), { minLength: 40, maxLength: 80 }), async (pairs) => {
      const transactions = pairs.map(([spent, paid], index) =>
        encodeTransaction({
          version: 2,
          inputs: [input(Buffer.alloc(32, index + 1), index, { script: spent, witness: [Buffer.alloc(0)] })],
          outputs: [output(index, paid)],
          lockTime: 0,
        }),
      );
      const told = await tellOf(chain, transactions);
      for (const [index, tx] of transactions.entries()) expectAlike(chain, tx, told[index]);
    }),
    { numRuns: 40 },
  );
});

test('pushes longer than a script may be, and scripts longer than may be run', async () => {
  const long = [
    Buffer.concat([Buffer.from('4d2823', 'hex'), Buffer.alloc(9000, 1)]),
    Buffer.concat([Buffer.from('4e10270000', 'hex'), Buffer.alloc(10_000, 1)]),
    // a signature in a script that is too long to run is not named as one
    Buffer.concat([Buffer.from('093006020101020101', 'hex'), Buffer.of(1), Buffer.alloc(10_001, 0x61)]),
    Buffer.from('4effffffff00', 'hex'),
    Buffer.from('4d01', 'hex'),
  ];
  const transactions = long.map((bytes, index) =>
    encodeTransaction({
      version: 1,
      inputs: [input(Buffer.alloc(32, 1), index, { script: bytes })],
      outputs: [output(0, bytes)],
      lockTime: 0,
    }),
  );
  const told = await tellOf('main', transactions);
  for (const [index, tx] of transactions.entries()) expectAlike('main', tx, told[index]);
});

const MAGIC_AND_LENGTH = 8;
const BUSY_BLOCK = '../shared/data/bitcoin/mainnet-block-277647.dat.bz2';
givenData('bitcoin/mainnet-block-277647.dat.bz2').test('every script of a busy block of 2014', async () => {
  const file = execFileSync('bzcat', [BUSY_BLOCK], { maxBuffer: 1 << 24 });
  const reader = new WireReader(file, (message) => new Error(message) as never, MAGIC_AND_LENGTH);
  const header = readHeader(reader);
  const transactions = Array.from({ length: reader.count(60) }, () => readTransaction(reader));
  expect(reader.left).toBe(0);
  const told = await tellOf('main', transactions);
  for (const [index, tx] of transactions.entries()) expectAlike('main', tx, told[index]);
  expect(merkleRoot(transactions.map(({ txid }) => txid)).root).toEqual(header.merkleRoot);
});
