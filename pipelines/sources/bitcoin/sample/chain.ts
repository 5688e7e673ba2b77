/** A chain on a node's regtest, block by block, its times and transactions chosen here and so the same everywhere. */
import { TidemarkError } from '../../../../shared/errors.ts';
import type { RpcClient } from '../rpc/client.ts';
import { eraOf, halvingInterval, subsidyOf } from '../schedule.ts';
import { displayHash, hashFromDisplay, sha256 } from '../wire/hash.ts';
import { WireReader } from '../wire/reader.ts';
import { readTransaction, type Transaction } from '../wire/transaction.ts';
import { encodeTransaction, input, output } from './encode.ts';
import type { Key } from './keys.ts';
import { type MinedBlock, mine } from './mine.ts';

/** An output that can be spent. */
export interface Coin {
  readonly txid: Buffer;
  readonly vout: number;
  readonly sats: number;
  readonly script: Buffer;
}

/** A script anyone can satisfy, with room for bytes that look like a signature and a key: drop, drop, true. */
const OPEN_SCRIPT = Buffer.from('757551', 'hex');
export const OPEN_OUTPUT = Buffer.concat([Buffer.of(0, 32), sha256(OPEN_SCRIPT)]);
export const OPEN_WITNESS = [Buffer.alloc(71, 0x30), Buffer.alloc(33, 0x02), OPEN_SCRIPT];

/** Confirmations a coinbase needs before it may be spent. */
export const MATURITY = 100;
const REGTEST = 'regtest';

export interface BlockOptions {
  /** Epoch seconds; default: the interval after the block before. */
  readonly time?: number;
  readonly extraNonce?: number;
  readonly payTo?: Buffer;
}

export class SampleChain {
  readonly #rpc: RpcClient;
  readonly #intervalSeconds: number;
  /** Coinbases by height, from 1. */
  readonly coinbases: Coin[] = [];
  #tip: Buffer;
  #time: number;
  #height = 0;

  private constructor(rpc: RpcClient, tip: Buffer, options: { startTime: number; intervalSeconds: number }) {
    this.#rpc = rpc;
    this.#tip = tip;
    this.#time = options.startTime;
    this.#intervalSeconds = options.intervalSeconds;
  }

  /** On top of genesis. The node must have nothing else yet. */
  static async open(
    rpc: RpcClient,
    options: { readonly startTime: number; readonly intervalSeconds: number },
  ): Promise<SampleChain> {
    return new SampleChain(rpc, hashFromDisplay((await rpc.call('getblockhash', 0)) as string), options);
  }

  get height(): number {
    return this.#height;
  }

  get tip(): string {
    return displayHash(this.#tip);
  }

  /** Of the last block, epoch seconds. */
  get time(): number {
    return this.#time;
  }

  /** Mines one block of these transactions, whose fees the coinbase takes, and hands it to the node. */
  async add(transactions: readonly Paying[] = [], options: BlockOptions = {}): Promise<MinedBlock> {
    const height = this.#height + 1;
    const time = options.time ?? this.#time + this.#intervalSeconds;
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
    await this.submit(block);
    this.#tip = block.hash;
    this.#height = height;
    this.#time = time;
    this.coinbases[height] = coinsOf(block.transactions[0])[0];
    return block;
  }

  async addMany(count: number): Promise<void> {
    for (let added = 0; added < count; added++) await this.add();
  }

  /** What the node makes of a block of somebody else's; a branch that is not the best is taken too. */
  async submit(block: Pick<MinedBlock, 'raw'>): Promise<void> {
    const verdict = await this.#rpc.call('submitblock', block.raw.toString('hex'));
    if (verdict !== null && verdict !== 'inconclusive') {
      throw new TidemarkError('NODE_CALL_REFUSED', `The node takes no block ${this.#height + 1}: ${String(verdict)}`);
    }
  }

  /** Goes back by some blocks: what is added now is another branch, which the node follows once it is the longer one. */
  async fork(blocksBack: number): Promise<void> {
    this.#height -= blocksBack;
    this.#tip = hashFromDisplay((await this.#rpc.call('getblockhash', this.#height)) as string);
    const header = (await this.#rpc.call('getblockheader', this.tip)) as { time: string };
    this.#time = Number(header.time);
    this.coinbases.length = this.#height + 1;
  }

  /** Signatures by the node, which makes the same ones each time. */
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
      throw new TidemarkError('NODE_CALL_REFUSED', `The node cannot sign: ${JSON.stringify(signed.errors)}`);
    }
    return { tx: transactionFrom(signed.hex), fee: paying.fee };
  }
}

export interface Scripts {
  readonly redeem?: Buffer;
  readonly witness?: Buffer;
}

/** A transaction and what it leaves to the miner. */
export interface Paying {
  readonly tx: Transaction;
  readonly fee: number;
}

/** Spends coins to outputs; the inputs carry `witness`, or nothing until they are signed. */
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
