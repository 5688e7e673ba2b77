/**
 * Reads the blocks of a range of heights in order and verifies each before it yields it: header, work, link to the
 * block before, transactions, witness data, amounts. The node's statements are checked against the block's bytes.
 */

import { TidemarkError } from '../../../shared/errors.ts';
import type { BitcoinNode } from './node.ts';
import type { NodeBlock } from './node-answers.ts';
import { eraOf, halvingInterval, subsidyOf } from './rows/derived.ts';
import type { CheckedBlock } from './rows/expected-events.ts';
import {
  type BlockContent,
  type BlockHeader,
  contentFault,
  hasItsWork,
  readHeader,
  readTransaction,
  writeHeader,
} from './wire/block.ts';
import {
  bytesSha256,
  displayHash,
  displayHashAt,
  HASH_BYTES,
  hashFromDisplay,
  MAX_SATS,
  sha256d,
  sha256OfHexInto,
  WireReader,
} from './wire/bytes.ts';
import { TransactionLayout } from './wire/layout.ts';

export interface BlockRange {
  readonly chain: string;
  readonly from: number;
  readonly to: number;
  /** The planned hashes of from..to; if the node switches to another chain meanwhile, the read fails. */
  readonly hashes: readonly string[];
  /** Blocks to prefetch beyond the one in use. */
  readonly lookahead: number;
  /** Takes blocks that were requested before, and requests more when none of this range is left to fetch. */
  readonly ahead?: BlocksAhead;
}

/** Heights, both inclusive. */
export interface Heights {
  readonly from: number;
  readonly to: number;
}

/**
 * The first blocks of the next range, requested while the last ones of this range are read: otherwise the node idles while
 * a unit ends and the next one begins. They are known by their hashes, so that the next range takes only its own.
 */
export class BlocksAhead {
  readonly #node: BitcoinNode;
  readonly #most: number;
  readonly #requested = new Map<string, Promise<NodeBlock>>();
  #following: Heights | undefined;
  #hashes: Promise<readonly string[]> | undefined;
  #started = 0;

  /** @param most blocks to request. A connection to the node has to stay free for the calls before a range is read. */
  constructor(node: BitcoinNode, most: number) {
    this.#node = node;
    this.#most = most;
  }

  /** Begins a range, and forgets the requested blocks that are not in it. */
  begin(hashes: readonly string[], following: Heights | undefined): void {
    for (const [hash, requested] of this.#requested) {
      if (hashes.includes(hash)) continue;
      this.#requested.delete(hash);
      requested.then(
        (block) => this.#node.release(block),
        () => {},
      );
    }
    this.#following = following;
    this.#hashes = undefined;
    this.#started = 0;
  }

  /** Fetches a block of the range, unless it is on its way already; again if that failed. */
  block(hash: string): Promise<NodeBlock> {
    const requested = this.#requested.get(hash);
    this.#requested.delete(hash);
    return requested?.catch(() => this.#node.block(hash)) ?? this.#node.block(hash);
  }

  /** Requests the next block that follows the range. A fault is left to the range that needs the block. */
  async request(): Promise<void> {
    const following = this.#following;
    const index = this.#started++;
    if (!following || index >= this.#most) return;
    const last = Math.min(following.to, following.from + this.#most - 1);
    this.#hashes ??= this.#node.hashes(following.from, last);
    const hash = (await this.#hashes.catch(() => []))[index];
    if (hash === undefined || following !== this.#following) return;
    const block = this.#node.block(hash);
    block.catch(() => {});
    this.#requested.set(hash, block);
  }
}

/** @throws TidemarkError NODE_ANSWER_INVALID, NODE_ANSWER_INVALID, CHAIN_REORGANISED and those of the calls. */
export async function* readBlocks(node: BitcoinNode, range: BlockRange): AsyncGenerator<CheckedBlock> {
  const { from, hashes, chain, lookahead, ahead } = range;
  const fetched: Promise<NodeBlock>[] = [];
  const fetchNext = () => {
    const hash = hashes[next++];
    if (hash === undefined) {
      ahead?.request();
      return;
    }
    const block = (ahead ?? node).block(hash);
    block.catch(() => {}); // The loop below awaits it and gets the error.
    fetched.push(block);
  };
  let next = 0;
  for (let started = 0; started < lookahead; started++) fetchNext();
  let before = await previousOf(node, range);
  for (let index = 0; index < hashes.length; index++) {
    const block = await fetched.shift()!;
    fetchNext();
    const checked = checkBlock(block, { chain, hash: hashes[index], height: from + index, ...before });
    yield checked;
    before = { prevHash: block.hash, prevTime: block.time };
  }
}

interface Before {
  readonly prevHash: string;
  /** For genesis, which has no block before it: 2 x its time - the time of the next block. */
  readonly prevTime: number;
}

async function previousOf(node: BitcoinNode, { from, hashes }: BlockRange): Promise<Before> {
  if (from === 0) {
    const [genesis, second] = await node.hashes(0, 1);
    const [time, nextTime] = [await headerOf(node, genesis), await headerOf(node, second)].map(({ time }) => time);
    return { prevHash: '', prevTime: 2 * time - nextTime };
  }
  const first = await headerOf(node, hashes[0]);
  const prevHash = displayHash(first.prevHash);
  return { prevHash, prevTime: (await headerOf(node, prevHash)).time };
}

async function headerOf(node: BitcoinNode, hash: string): Promise<BlockHeader> {
  const bytes = await node.header(hash);
  if (displayHash(sha256d(bytes)) !== hash) throw invalid(hash, 'its header does not match its hash');
  return readHeader(new WireReader(bytes, (message) => invalid(hash, message)));
}

export interface Expected extends Before {
  readonly chain: string;
  readonly hash: string;
  readonly height: number;
}

function checkBlock(block: NodeBlock, expected: Expected): CheckedBlock {
  const { hash, height, prevHash, prevTime, chain } = expected;
  const header: BlockHeader = {
    version: block.version,
    prevHash: block.prevHash === '' ? Buffer.alloc(32) : hashFromDisplay(block.prevHash),
    merkleRoot: hashFromDisplay(block.merkleRoot),
    time: block.time,
    bits: Number.parseInt(block.bits, 16),
    nonce: block.nonce,
  };
  const bytes = writeHeader(header);
  const digest = sha256d(bytes);
  if (displayHash(digest) !== hash || block.hash !== hash) throw invalid(hash, 'its header does not match its hash');
  if (!hasItsWork(digest, header.bits)) throw invalid(hash, 'its hash does not have the work it claims');
  if (block.height !== height || block.prevHash !== prevHash) {
    throw new TidemarkError(
      'CHAIN_REORGANISED',
      `Block ${hash} at height ${block.height} does not follow ${prevHash || 'the start of the chain'} at height ${height - 1}`,
      { details: { height, hash } },
    );
  }
  const { content, digests } = contentOf(block, hash);
  const fault = contentFault(header, content);
  if (fault) throw invalid(hash, fault);
  let fees = 0;
  for (const [index, { sums }] of block.transactions.entries()) {
    if (index === 0) continue;
    const { input, output } = sums;
    if (output > input || input > MAX_SATS) {
      throw invalid(hash, `transaction ${index} spends ${input} satoshis and pays out ${output}`);
    }
    fees += input - output;
  }
  // No hash of the block covers what its inputs spent. The coinbase is the block's own statement about it.
  if (block.transactions[0].sums.output > fees + subsidyOf(eraOf(height, halvingInterval(chain)))) {
    throw invalid(hash, 'its coinbase claims more than subsidy and fees');
  }
  return { block, header: bytes, digests, fees, rawInterval: block.time - prevTime };
}

/** Checks each transaction's bytes against its id and collects the ids for the merkle root. */
function contentOf({ transactions }: NodeBlock, hash: string): { content: BlockContent; digests: string[] } {
  const layout = new TransactionLayout();
  const count = transactions.length;
  const txids = Buffer.alloc(count * HASH_BYTES);
  const wtxids = Buffer.alloc(count * HASH_BYTES);
  const digests: string[] = [];
  let [coinbase, hasSecondCoinbase, hasWitness]: [BlockContent['coinbase'], boolean, boolean] = [
    undefined,
    false,
    false,
  ];
  for (const [index, { raw, txid }] of transactions.entries()) {
    const fail = (message: string) => invalid(hash, `transaction ${index}: ${message}`);
    const reader = new WireReader(raw, fail);
    layout.read(reader);
    if (reader.left > 0) throw reader.fault(`${reader.left} bytes follow it`);
    const at = index * HASH_BYTES;
    layout.txidInto(txids, at);
    if (displayHashAt(txids, at) !== txid) throw invalid(hash, `transaction ${index} does not match its id`);
    // The hash with witness data is the double digest of the bytes, and the row holds the single one.
    const digest = bytesSha256(raw);
    digests.push(digest);
    if (layout.hasWitness) sha256OfHexInto(wtxids, at, digest);
    else txids.copy(wtxids, at, at, at + HASH_BYTES);
    hasWitness ||= layout.hasWitness;
    if (!layout.isCoinbase) continue;
    if (index === 0) coinbase = readTransaction(new WireReader(raw, fail));
    else hasSecondCoinbase = true;
  }
  return { content: { coinbase, hasSecondCoinbase, hasWitness, count, txids, wtxids }, digests };
}

function invalid(hash: string, what: string): TidemarkError {
  return new TidemarkError('NODE_ANSWER_INVALID', `Block ${hash} is invalid: ${what}`, {
    details: { hash },
    remedy: 'Check the node and any proxy in front of it.',
  });
}
