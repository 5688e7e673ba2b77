/** What must hold of a node before anything is taken from it. */
import { TidemarkError } from '../../../shared/errors.ts';
import type { BitcoinNode, ChainState } from './node.ts';

/** Blocks that follow a block before it is taken for settled; on regtest, where nobody else mines, none. */
const CONFIRMATIONS = 6;

export const confirmationDepth = (setting: number | undefined, network: string): number =>
  setting ?? (network === 'regtest' ? 0 : CONFIRMATIONS);

/** @throws TidemarkError NODE_CHAIN_MISMATCH, NODE_PRUNED and those of the call. */
export async function checkNode(node: BitcoinNode, network: string): Promise<ChainState> {
  const state = await node.chainState();
  const { place } = node.rpc;
  if (state.chain !== network) {
    throw new TidemarkError(
      'NODE_CHAIN_MISMATCH',
      `The Bitcoin node at ${place} is on chain ${state.chain}, SVC_BITCOIN_NETWORK is ${network}`,
      { details: { node: place, chain: state.chain, network } },
    );
  }
  if (state.pruned) {
    throw new TidemarkError('NODE_PRUNED', `The Bitcoin node at ${place} is pruned: it no longer has every block`, {
      details: { node: place },
    });
  }
  return state;
}

/** The highest block that is settled; -1 when none is. */
export const settledTip = ({ blocks }: Pick<ChainState, 'blocks'>, depth: number): number =>
  Math.max(-1, blocks - depth);

/** For a person: that the node is still getting blocks, and how far it is. */
export function syncNote({ syncing, blocks, headers }: ChainState): string | undefined {
  if (!syncing && blocks >= headers) return undefined;
  const how =
    blocks < headers
      ? `it has checked ${blocks} of the ${headers} it knows of`
      : `there may be more than the ${blocks} it has`;
  return `the node is still getting blocks: ${how}; what it has checked is taken`;
}
