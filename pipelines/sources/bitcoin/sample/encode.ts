/** Consensus serialisation, written: what samples and tests make blocks of. */
import { sha256d } from '../wire/hash.ts';
import type { Transaction, TxInput, TxOutput } from '../wire/transaction.ts';

export type UnsignedTransaction = Pick<Transaction, 'version' | 'inputs' | 'outputs' | 'lockTime'>;

export function encodeTransaction(tx: UnsignedTransaction): Transaction {
  const head = i32(tx.version);
  const body = [
    count(tx.inputs.length),
    ...tx.inputs.flatMap(({ prevTxid, prevVout, script, sequence }) => [
      prevTxid,
      u32(prevVout),
      field(script),
      u32(sequence),
    ]),
    count(tx.outputs.length),
    ...tx.outputs.flatMap(({ sats, script }) => [u64(sats), field(script)]),
  ];
  const stacks = tx.inputs.flatMap(({ witness }) => [count(witness.length), ...witness.map(field)]);
  const tail = u32(tx.lockTime);
  const plain = Buffer.concat([head, ...body, tail]);
  const txid = sha256d(plain);
  if (tx.inputs.every(({ witness }) => witness.length === 0)) return { ...tx, raw: plain, txid, wtxid: txid };
  const raw = Buffer.concat([head, Buffer.of(0, 1), ...body, ...stacks, tail]);
  return { ...tx, raw, txid, wtxid: sha256d(raw) };
}

export const input = (
  prevTxid: Buffer,
  prevVout: number,
  more: Partial<Pick<TxInput, 'script' | 'sequence' | 'witness'>> = {},
): TxInput => ({ prevTxid, prevVout, script: Buffer.alloc(0), sequence: 0xfffffffd, witness: [], ...more });

export const output = (sats: number, script: Buffer): TxOutput => ({ sats, script });

/** A push of the bytes, in the shortest of the plain forms. */
export function push(bytes: Buffer): Buffer {
  if (bytes.length < 0x4c) return Buffer.concat([Buffer.of(bytes.length), bytes]);
  if (bytes.length < 0x100) return Buffer.concat([Buffer.of(0x4c, bytes.length), bytes]);
  const length = Buffer.alloc(3, 0x4d);
  length.writeUInt16LE(bytes.length, 1);
  return Buffer.concat([length, bytes]);
}

export function count(value: number): Buffer {
  if (value < 0xfd) return Buffer.of(value);
  if (value < 0x10000) {
    const bytes = Buffer.alloc(3, 0xfd);
    bytes.writeUInt16LE(value, 1);
    return bytes;
  }
  return Buffer.concat([Buffer.of(0xfe), u32(value)]);
}

const field = (bytes: Buffer): Buffer => Buffer.concat([count(bytes.length), bytes]);

function i32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32LE(value);
  return bytes;
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

function u64(value: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}
