/** Blocks with the least work there is, which a node on regtest takes. */
import { type BlockHeader, hasItsWork, merkleRoot, writeHeader } from '../wire/block.ts';
import { sha256d } from '../wire/hash.ts';
import type { Transaction } from '../wire/transaction.ts';
import { count, encodeTransaction, input, output, push } from './encode.ts';

const REGTEST_BITS = 0x207fffff;
/** Version bits of BIP 9, none set. */
const VERSION = 0x20000000;

export interface BlockPlan {
  readonly prevHash: Buffer;
  readonly height: number;
  /** Epoch seconds. */
  readonly time: number;
  /** What the coinbase takes: subsidy and fees. */
  readonly reward: number;
  readonly payTo: Buffer;
  /** Without the coinbase. */
  readonly transactions: readonly Transaction[];
  /** Told apart from another block at the same place. */
  readonly extraNonce?: number;
}

export interface MinedBlock {
  readonly hash: Buffer;
  readonly header: BlockHeader;
  readonly transactions: readonly Transaction[];
  readonly raw: Buffer;
}

export function mine(plan: BlockPlan): MinedBlock {
  const transactions = [coinbase(plan), ...plan.transactions];
  const { root } = merkleRoot(transactions.map(({ txid }) => txid));
  const header: BlockHeader = {
    version: VERSION,
    prevHash: plan.prevHash,
    merkleRoot: root,
    time: plan.time,
    bits: REGTEST_BITS,
    nonce: 0,
  };
  for (let nonce = 0; ; nonce++) {
    const bytes = writeHeader({ ...header, nonce });
    const hash = sha256d(bytes);
    if (!hasItsWork(hash, REGTEST_BITS)) continue;
    const raw = Buffer.concat([bytes, count(transactions.length), ...transactions.map((tx) => tx.raw)]);
    return { hash, header: { ...header, nonce }, transactions, raw };
  }
}

/** With the height in its script (BIP 34) and the witness commitment (BIP 141). */
function coinbase({ height, reward, payTo, transactions, extraNonce = 0 }: BlockPlan): Transaction {
  const reserved = Buffer.alloc(32);
  const { root } = merkleRoot([reserved, ...transactions.map(({ wtxid }) => wtxid)]);
  const commitment = sha256d(Buffer.concat([root, reserved]));
  return encodeTransaction({
    version: 2,
    inputs: [
      input(Buffer.alloc(32), 0xffffffff, {
        script: Buffer.concat([heightPush(height), push(Buffer.from(`sample ${extraNonce}`))]),
        sequence: 0xffffffff,
        witness: [reserved],
      }),
    ],
    outputs: [output(reward, payTo), output(0, Buffer.concat([Buffer.from('6a24aa21a9ed', 'hex'), commitment]))],
    lockTime: 0,
  });
}

/** As the node expects it: small heights by their opcode, others as the shortest number. */
function heightPush(height: number): Buffer {
  if (height === 0) return Buffer.of(0);
  if (height <= 16) return Buffer.of(0x50 + height);
  const bytes: number[] = [];
  for (let rest = height; rest > 0; rest = Math.floor(rest / 256)) bytes.push(rest % 256);
  if (bytes[bytes.length - 1] >= 0x80) bytes.push(0);
  return push(Buffer.from(bytes));
}
