/** The node's answers as values: which chain it has, its blocks with what their inputs spent, its mempool. */
import { TidemarkError } from '../../../shared/errors.ts';
import { type MempoolAnswer, type NodeBlock, readBlockAnswer, readMempoolAnswer } from './node-answers.ts';
import { flag, hex, integer, record, text } from './rpc/answers.ts';
import type { RpcClient } from './rpc/client.ts';
import type { JsonCursor } from './rpc/json-cursor.ts';
import { TextWriter } from './text-writer.ts';

export interface ChainState {
  readonly chain: string;
  /** Height of the last block that the node has checked. */
  readonly blocks: number;
  /** Height of the last header it knows. */
  readonly headers: number;
  readonly bestHash: string;
  readonly pruned: boolean;
  readonly syncing: boolean;
}

/** Of getblock: transactions with the outputs that their inputs spend; since version 23. */
export const WITH_PREVOUTS = 3;
/** Of an entry a node says about 1 KB: room for half a million of them. */
export const MAX_MEMPOOL_BYTES = 512 * 1024 * 1024;
/** RPC_INVALID_PARAMETER and RPC_INVALID_ADDRESS_OR_KEY: no such height, no such block. */
const NOT_THERE = new Set([-8, -5]);

export class BitcoinNode {
  readonly rpc: RpcClient;
  /** Of blocks that nobody needs any more: megabytes each, which are dear to allocate and to give back. */
  readonly #rooms: TextWriter[] = [];
  readonly #roomOf = new WeakMap<NodeBlock, TextWriter>();

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
      if (!isNotThere(cause)) throw cause;
      throw new TidemarkError(
        'NODE_HEIGHT_BEYOND_TIP',
        `The Bitcoin node at ${this.rpc.place} has no block at some of the heights ${from} to ${to}`,
        { cause },
      );
    }
  }

  /** The 80 bytes of a header. */
  async header(hash: string): Promise<Buffer> {
    return Buffer.from(hex(await this.rpc.call('getblockheader', hash, false), 'getblockheader', 80), 'hex');
  }

  /** Good until it is released; it need not be. */
  async block(hash: string): Promise<NodeBlock> {
    const room = this.#rooms.pop() ?? new TextWriter(0);
    const read = (cursor: JsonCursor) => readBlockAnswer(cursor, room);
    const block = await this.rpc.read({ read }, 'getblock', hash, WITH_PREVOUTS);
    this.#roomOf.set(block, room);
    return block;
  }

  /** Nobody needs the block any more, nor bytes or columns of its transactions. */
  release(block: NodeBlock): void {
    const room = this.#roomOf.get(block);
    if (this.#roomOf.delete(block) && room) this.#rooms.push(room);
  }

  /** What waits, and the bytes that say so: they are kept, because nobody can ask for them again. */
  async mempool(): Promise<MempoolAnswer> {
    const reading = { read: readMempoolAnswer, maxBytes: MAX_MEMPOOL_BYTES, keepsBytes: true };
    return await this.rpc.read(reading, 'getrawmempool', true);
  }
}

const isNotThere = (error: unknown): boolean =>
  error instanceof TidemarkError &&
  error.code === 'NODE_CALL_REFUSED' &&
  NOT_THERE.has(error.details.rpc_code as number);
