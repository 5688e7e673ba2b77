/**
 * A chain on a node's regtest, built block by block with chosen times and transactions, so it is the same on every
 * machine.
 */

import { createECDH } from 'node:crypto';
import { TidemarkError } from '../../../../shared/errors.ts';
import { eraOf, halvingInterval, subsidyOf } from '../rows/derived.ts';
import type { RpcClient } from '../rpc/client.ts';
import { OP } from '../script/asm.ts';
import { hash160 } from '../script/kinds.ts';
import {
  type BlockHeader,
  hasItsWork,
  merkleRoot,
  readTransaction,
  type Transaction,
  type TxInput,
  type TxOutput,
  writeHeader,
} from '../wire/block.ts';
import { displayHash, hashFromDisplay, sha256, sha256d, WireReader } from '../wire/bytes.ts';

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

/** A push of the bytes, in the shortest plain form. */
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

export interface Key {
  /** Compressed. */
  readonly publicKey: Buffer;
  /** In the form that the node imports on a test chain. */
  readonly wif: string;
}

const CURVE = 'secp256k1';
const CURVE_ORDER = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n;
const TEST_SECRET = 0xef;

export function keyOf(name: string): Key {
  return keyFromSecret(sha256(Buffer.from(`tidemark sample ${name}`)));
}

function keyFromSecret(secret: Buffer): Key {
  return {
    publicKey: publicKeyOf(secret),
    wif: base58Check(Buffer.concat([Buffer.of(TEST_SECRET), secret, Buffer.of(1)])),
  };
}

function publicKeyOf(secret: Buffer): Buffer {
  const curve = createECDH(CURVE);
  curve.setPrivateKey(secret);
  return curve.getPublicKey(null, 'compressed');
}

const ALPHABET = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';

function base58Check(payload: Buffer): string {
  const bytes = Buffer.concat([payload, sha256d(payload).subarray(0, 4)]);
  let text = '';
  for (let value = BigInt(`0x${bytes.toString('hex')}`); value > 0n; value /= 58n)
    text = ALPHABET[Number(value % 58n)] + text;
  return text;
}

const op = (...codes: number[]): Buffer => Buffer.of(...codes);

export const payToKey = ({ publicKey }: Key): Buffer => Buffer.concat([push(publicKey), op(OP.CHECKSIG)]);

export const payToKeyHash = ({ publicKey }: Key): Buffer =>
  Buffer.concat([op(OP.DUP, OP.HASH160), push(hash160(publicKey)), op(OP.EQUALVERIFY, OP.CHECKSIG)]);

export const payToScriptHash = (script: Buffer): Buffer =>
  Buffer.concat([op(OP.HASH160), push(hash160(script)), op(OP.EQUAL)]);

export const payToWitnessKeyHash = ({ publicKey }: Key): Buffer => Buffer.concat([op(0), push(hash160(publicKey))]);

export const payToWitnessScriptHash = (script: Buffer): Buffer => Buffer.concat([op(0), push(sha256(script))]);

export const multisig = (needed: number, keys: readonly Key[]): Buffer =>
  Buffer.concat([
    op(OP.ONE - 1 + needed),
    ...keys.map(({ publicKey }) => push(publicKey)),
    op(OP.ONE - 1 + keys.length, OP.CHECKMULTISIG),
  ]);

/** An unspendable output that holds data. */
export const note = (text: string): Buffer => Buffer.concat([op(OP.RETURN), push(Buffer.from(text))]);

/** The output key is the untweaked key: the node signs for it without further information. */
export const payToTaprootKey = ({ publicKey }: Key): Buffer => Buffer.concat([op(OP.ONE), push(publicKey.subarray(1))]);

/** A taproot output that a script may spend, and the control block that proves it. */
export function taprootScript(name: string, script: Buffer): { readonly payTo: Buffer; readonly control: Buffer } {
  const secret = sha256(Buffer.from(`tidemark sample ${name}`));
  const inner = publicKeyOf(secret);
  const leaf = tagged('TapLeaf', Buffer.concat([op(LEAF_VERSION), count(script.length), script]));
  const tweak = tagged('TapTweak', Buffer.concat([inner.subarray(1), leaf]));
  // The key with an even y represents both; if y was odd, its secret is the negated one.
  const even = inner[0] === 2 ? toNumber(secret) : CURVE_ORDER - toNumber(secret);
  const tweaked = (even + toNumber(tweak)) % CURVE_ORDER;
  const outer = publicKeyOf(Buffer.from(tweaked.toString(16).padStart(64, '0'), 'hex'));
  const parity = outer[0] === 3 ? 1 : 0;
  return {
    payTo: Buffer.concat([op(OP.ONE), push(outer.subarray(1))]),
    control: Buffer.concat([op(LEAF_VERSION | parity), inner.subarray(1)]),
  };
}

const LEAF_VERSION = 0xc0;

const toNumber = (bytes: Buffer): bigint => BigInt(`0x${bytes.toString('hex')}`);

function tagged(tag: string, bytes: Buffer): Buffer {
  const prefix = sha256(Buffer.from(tag));
  return sha256(Buffer.concat([prefix, prefix, bytes]));
}

const REGTEST_BITS = 0x207fffff;
/** The version bits of BIP 9 with none set. */
const VERSION = 0x20000000;

export interface BlockPlan {
  readonly prevHash: Buffer;
  readonly height: number;
  /** Epoch seconds. */
  readonly time: number;
  /** The coinbase's amount: subsidy and fees. */
  readonly reward: number;
  readonly payTo: Buffer;
  /** All but the coinbase. */
  readonly transactions: readonly Transaction[];
  /** Distinguishes it from another block at the same height. */
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

/** A coinbase with the height in its script (BIP 34) and the witness commitment (BIP 141). */
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

/** The form that the node expects: an opcode for small heights, otherwise the shortest number. */
function heightPush(height: number): Buffer {
  if (height === 0) return Buffer.of(0);
  if (height <= 16) return Buffer.of(0x50 + height);
  const bytes: number[] = [];
  for (let rest = height; rest > 0; rest = Math.floor(rest / 256)) bytes.push(rest % 256);
  if (bytes[bytes.length - 1] >= 0x80) bytes.push(0);
  return push(Buffer.from(bytes));
}

/** A spendable output. */
export interface Coin {
  readonly txid: Buffer;
  readonly vout: number;
  readonly sats: number;
  readonly script: Buffer;
}

/** A script that anyone can satisfy, with space for bytes that look like a signature and a key: drop, drop, true. */
const OPEN_SCRIPT = Buffer.from('757551', 'hex');
export const OPEN_OUTPUT = Buffer.concat([Buffer.of(0, 32), sha256(OPEN_SCRIPT)]);
export const OPEN_WITNESS = [Buffer.alloc(71, 0x30), Buffer.alloc(33, 0x02), OPEN_SCRIPT];

/** Confirmations that a coinbase needs before it can be spent. */
export const MATURITY = 100;
const REGTEST = 'regtest';

export interface BlockOptions {
  /** Epoch seconds; by default the previous block's time plus the interval. */
  readonly time?: number;
  readonly extraNonce?: number;
  readonly payTo?: Buffer;
}

export interface ChainOptions {
  /** Epoch seconds; the first block comes one interval later. */
  readonly startTime: number;
  /** Between a block and the one before it: the same for all, or by the block's height. */
  readonly intervalSeconds: number | ((height: number) => number);
  /** Blocks that are submitted in one call, which takes a third of the time; `flush` submits the last of them. Default 1. */
  readonly together?: number;
}

export class SampleChain {
  readonly #rpc: RpcClient;
  readonly #intervalOf: (height: number) => number;
  readonly #together: number;
  /** Mined blocks that the node has not been given. */
  #waiting: Pick<MinedBlock, 'raw'>[] = [];
  /** Coinbases by height, starting at 1. */
  readonly coinbases: Coin[] = [];
  #tip: Buffer;
  #time: number;
  #height = 0;

  private constructor(rpc: RpcClient, tip: Buffer, { startTime, intervalSeconds, together = 1 }: ChainOptions) {
    this.#rpc = rpc;
    this.#tip = tip;
    this.#time = startTime;
    this.#together = together;
    this.#intervalOf = typeof intervalSeconds === 'number' ? () => intervalSeconds : intervalSeconds;
  }

  /** Starts on top of genesis. The node must have no other block. */
  static async open(rpc: RpcClient, options: ChainOptions): Promise<SampleChain> {
    return new SampleChain(rpc, hashFromDisplay((await rpc.call('getblockhash', 0)) as string), options);
  }

  get height(): number {
    return this.#height;
  }

  get tip(): string {
    return displayHash(this.#tip);
  }

  /** Time of the last block, epoch seconds. */
  get time(): number {
    return this.#time;
  }

  /**
   * Mines one block of these transactions, collects their fees in its coinbase, and submits it to the node, where blocks are
   * submitted together with those that wait.
   */
  async add(transactions: readonly Paying[] = [], options: BlockOptions = {}): Promise<MinedBlock> {
    const height = this.#height + 1;
    const time = options.time ?? this.#time + this.#intervalOf(height);
    const fees = transactions.reduce((sum, { fee }) => sum + fee, 0);
    const block = mine({
      prevHash: this.#tip,
      height,
      time,
      reward: subsidyOf(eraOf(height, halvingInterval(REGTEST))) + fees,
      payTo: options.payTo ?? OPEN_OUTPUT,
      transactions: transactions.map(({ tx }) => tx),
      extraNonce: options.extraNonce,
    });
    this.#waiting.push(block);
    this.#tip = block.hash;
    this.#height = height;
    this.#time = time;
    this.coinbases[height] = coinsOf(block.transactions[0])[0];
    if (this.#waiting.length >= this.#together) await this.flush();
    return block;
  }

  async addMany(count: number): Promise<void> {
    for (let added = 0; added < count; added++) await this.add();
  }

  /** Submits the blocks that wait. */
  async flush(): Promise<void> {
    const blocks = this.#waiting;
    this.#waiting = [];
    if (blocks.length > 0) await this.#submit(blocks, this.#height - blocks.length + 1);
  }

  /** Submits a foreign block. The node also accepts one on a branch that is not the best. */
  async submit(block: Pick<MinedBlock, 'raw'>): Promise<void> {
    await this.flush();
    await this.#submit([block], this.#height + 1);
  }

  async #submit(blocks: readonly Pick<MinedBlock, 'raw'>[], first: number): Promise<void> {
    const calls = blocks.map(({ raw }) => ({ method: 'submitblock', params: [raw.toString('hex')] }));
    for (const [index, verdict] of (await this.#rpc.batch(calls)).entries()) {
      if (verdict === null || verdict === 'inconclusive') continue;
      throw new TidemarkError('NODE_ANSWER_INVALID', `The node refused block ${first + index}: ${String(verdict)}`);
    }
  }

  /** Goes back by some blocks. New blocks form another branch, which the node follows once it is the longer one. */
  async fork(blocksBack: number): Promise<void> {
    await this.flush();
    this.#height -= blocksBack;
    this.#tip = hashFromDisplay((await this.#rpc.call('getblockhash', this.#height)) as string);
    const header = (await this.#rpc.call('getblockheader', this.tip)) as { time: string };
    this.#time = Number(header.time);
    this.coinbases.length = this.#height + 1;
  }

  /** Has the node sign. Its signatures are deterministic. */
  async sign(paying: Paying, coins: readonly Coin[], keys: readonly Key[], scripts: Scripts = {}): Promise<Paying> {
    const spent = coins.map(({ txid, vout, sats, script }) => ({
      txid: displayHash(txid),
      vout,
      scriptPubKey: script.toString('hex'),
      amount: `${Math.floor(sats / 1e8)}.${String(sats % 1e8).padStart(8, '0')}`,
      ...(scripts.redeem ? { redeemScript: scripts.redeem.toString('hex') } : {}),
      ...(scripts.witness ? { witnessScript: scripts.witness.toString('hex') } : {}),
    }));
    const wifs = keys.map(({ wif }) => wif);
    const signed = (await this.#rpc.call('signrawtransactionwithkey', paying.tx.raw.toString('hex'), wifs, spent)) as {
      hex: string;
      complete: boolean;
      errors?: unknown;
    };
    if (!signed.complete) {
      throw new TidemarkError('NODE_ANSWER_INVALID', `The node cannot sign: ${JSON.stringify(signed.errors)}`);
    }
    return { tx: transactionFrom(signed.hex), fee: paying.fee };
  }
}

export interface Scripts {
  readonly redeem?: Buffer;
  readonly witness?: Buffer;
}

/** A transaction and the fee that it leaves to the miner. */
export interface Paying {
  readonly tx: Transaction;
  readonly fee: number;
}

/** Spends coins to outputs. The inputs carry `witness`, or nothing until they are signed. */
export function pay(
  coins: readonly Coin[],
  outputs: readonly { readonly sats: number; readonly script: Buffer }[],
  more: { readonly witness?: readonly Buffer[]; readonly sequence?: number; readonly lockTime?: number } = {},
): Paying {
  const { witness = [], sequence, lockTime = 0 } = more;
  const tx = encodeTransaction({
    version: 2,
    inputs: coins.map(({ txid, vout }) =>
      input(txid, vout, sequence === undefined ? { witness } : { witness, sequence }),
    ),
    outputs: outputs.map(({ sats, script }) => output(sats, script)),
    lockTime,
  });
  const spent = coins.reduce((sum, { sats }) => sum + sats, 0);
  return { tx, fee: spent - outputs.reduce((sum, { sats }) => sum + sats, 0) };
}

export const coinsOf = ({ txid, outputs }: Transaction): Coin[] =>
  outputs.map(({ sats, script }, vout) => ({ txid, vout, sats, script }));

function transactionFrom(hex: string): Transaction {
  const fail = (message: string) => new TidemarkError('NODE_ANSWER_INVALID', `The node's transaction: ${message}`);
  return readTransaction(new WireReader(Buffer.from(hex, 'hex'), fail));
}
