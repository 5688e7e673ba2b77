/** The node that a feed reads: the operator's, by the settings, or the one of a sample, in a folder. */

import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Settings } from '../../../shared/config/settings.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/logger.ts';
import { startBitcoind } from '../../../shared/stack/bitcoind.ts';
import { BitcoinNode, type ChainState } from './node.ts';
import { RpcClient } from './rpc/client.ts';
import { SAMPLE_CHAIN } from './sample/generate.ts';

/* What must hold of a node before anything is taken from it. */

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

export interface OpenedNode extends AsyncDisposable {
  readonly node: BitcoinNode;
  /** The chain it has to be on, by its own name. */
  readonly network: string;
  readonly depth: number;
  /** Where snapshots of its mempool are kept: the folder above `mempool/`. */
  readonly keepIn: string;
}

interface Needs {
  readonly settings: Settings;
  /** A sample's folder. */
  readonly location?: URL;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** @throws TidemarkError CONFIGURATION_INVALID when no node is named. */
export async function openNode({ settings, location, log, signal }: Needs): Promise<OpenedNode> {
  const calls = {
    timeoutMs: settings.SVC_BITCOIN_RPC_TIMEOUT_SECONDS * 1000,
    maxAttempts: settings.SVC_SOURCE_MAX_ATTEMPTS,
    parallel: settings.SVC_BITCOIN_RPC_PARALLEL,
    signal,
    log,
  };
  if (location) {
    const dir = fileURLToPath(location);
    const server = await startBitcoind({ dir: join(dir, 'node'), chain: SAMPLE_CHAIN, log, signal });
    const { url, user, password } = server;
    return {
      node: new BitcoinNode(await RpcClient.open({ ...calls, url: new URL(url), user, password })),
      network: SAMPLE_CHAIN,
      depth: 0,
      keepIn: dir,
      [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
    };
  }
  const url = settings.SVC_BITCOIN_RPC_URL;
  if (!url) {
    throw new TidemarkError(
      'CONFIGURATION_INVALID',
      'SVC_BITCOIN_RPC_URL is not set: it says where the Bitcoin node listens',
    );
  }
  const { SVC_BITCOIN_RPC_USER: user, SVC_BITCOIN_RPC_PASSWORD: password, SVC_BITCOIN_NETWORK: network } = settings;
  return {
    node: new BitcoinNode(await RpcClient.open({ ...calls, url, user, password })),
    network,
    depth: confirmationDepth(settings.SVC_BITCOIN_CONFIRMATION_DEPTH, network),
    keepIn: settings.SVC_STATE_DIR,
    async [Symbol.asyncDispose]() {},
  };
}
