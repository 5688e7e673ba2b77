/** A node's answers as typed values: its chain, its blocks with the prevouts of their inputs, its mempool. */
import { TidemarkError } from '../../../shared/errors.ts';
import { type MempoolAnswer, type NodeBlock, readBlockAnswer, readMempoolAnswer } from './node-answers.ts';
import { flag, hex, integer, record, text } from './rpc/answers.ts';
import type { RpcClient } from './rpc/client.ts';
import type { JsonCursor } from './rpc/json-cursor.ts';
import { TextWriter } from './text-writer.ts';

export interface ChainState {
  readonly chain: string;
  /** Height of the last block that the node has validated. */
  readonly blocks: number;
  /** Height of the last header that it knows. */
  readonly headers: number;
  readonly bestHash: string;
  readonly pruned: boolean;
  readonly syncing: boolean;
}

/** Of getblock: transactions with the outputs that their inputs spend; since version 23. */
export const WITH_PREVOUTS = 3;
/** Of an entry a node says about 1 KB: room for half a million of them. */
export const MAX_MEMPOOL_BYTES = 512 * 1024 * 1024;
/** RPC_INVALID_PARAMETER: no such height. */
const NO_SUCH_HEIGHT = -8;
/** RPC_INVALID_ADDRESS_OR_KEY: no such block. */
const NO_SUCH_BLOCK = -5;

export class BitcoinNode {
  readonly rpc: RpcClient;
  /** Writers of released blocks, for reuse: each holds megabytes, which are expensive to allocate and to collect. */
  readonly #writers: TextWriter[] = [];
  readonly #writerOf = new WeakMap<NodeBlock, TextWriter>();

  constructor(rpc: RpcClient) {
    this.rpc = rpc;
  }

  async chainState(): Promise<ChainState> {
    const info = record(await this.rpc.call('getblockchaininfo'), 'getblockchaininfo');
    return {
      chain: text(info.chain, 'chain'),
      blocks: integer(info.blocks, 'blocks'),
      headers: integer(info.headers, 'headers'),
      bestHash: hex(info.bestblockhash, 'bestblockhash', 32),
      pruned: flag(info.pruned, 'pruned'),
      syncing: flag(info.initialblockdownload, 'initialblockdownload'),
    };
  }

  /** Hashes of the heights from..to. @throws TidemarkError NODE_HEIGHT_BEYOND_TIP */
  async hashes(from: number, to: number): Promise<string[]> {
    const calls = Array.from({ length: to - from + 1 }, (_, index) => ({
      method: 'getblockhash',
      params: [from + index],
    }));
    try {
      return (await this.rpc.batch(calls)).map((hash) => hex(hash, 'getblockhash', 32));
    } catch (cause) {
      if (!isRefusal(cause, NO_SUCH_HEIGHT)) throw cause;
      throw new TidemarkError(
        'NODE_HEIGHT_BEYOND_TIP',
        `The Bitcoin node at ${this.rpc.endpoint} has no block at some of the heights ${from} to ${to}`,
        { cause },
      );
    }
  }

  /** The 80 bytes of a header. @throws TidemarkError CHAIN_REORGANISED */
  async header(hash: string): Promise<Buffer> {
    const header = await this.rpc.call('getblockheader', hash, false).catch((cause) => this.#refused(hash, cause));
    return Buffer.from(hex(header, 'getblockheader', 80), 'hex');
  }

  /** The block's buffers are valid until `release`, which is optional. @throws TidemarkError CHAIN_REORGANISED */
  async block(hash: string): Promise<NodeBlock> {
    const writer = this.#writers.pop() ?? new TextWriter(0);
    const read = (cursor: JsonCursor) => readBlockAnswer(cursor, writer);
    const block = await this.rpc
      .read({ read }, 'getblock', hash, WITH_PREVOUTS)
      .catch((cause) => this.#refused(hash, cause));
    this.#writerOf.set(block, writer);
    return block;
  }

  /** The node named each hash that it is asked for. A crash may have taken its last blocks meanwhile. */
  #refused(hash: string, cause: unknown): never {
    if (!isRefusal(cause, NO_SUCH_BLOCK)) throw cause;
    const message = `The Bitcoin node at ${this.rpc.endpoint} no longer has block ${hash}`;
    throw new TidemarkError('CHAIN_REORGANISED', message, { cause, details: { hash } });
  }

  /** Reuses the block's memory. The block, its bytes and its columns become invalid. */
  release(block: NodeBlock): void {
    const writer = this.#writerOf.get(block);
    if (this.#writerOf.delete(block) && writer) this.#writers.push(writer);
  }

  /**
   * The waiting transactions, and the bytes of the answer: the caller stores them, because the node cannot repeat the
   * answer.
   */
  async mempool(): Promise<MempoolAnswer> {
    const reading = { read: readMempoolAnswer, maxBytes: MAX_MEMPOOL_BYTES, keepsBytes: true };
    return await this.rpc.read(reading, 'getrawmempool', true);
  }
}

const isRefusal = (error: unknown, rpcCode: number): boolean =>
  error instanceof TidemarkError && error.code === 'NODE_ANSWER_INVALID' && error.details.rpc_code === rpcCode;
