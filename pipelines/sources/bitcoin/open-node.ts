/**
 * Opens the node that a feed reads: the operator's, from the settings, or a sample's, from a folder. Checks it before
 * anything is read.
 */

import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Settings } from '../../../shared/config/settings.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/logger.ts';
import { confirmationDepth } from '../../../shared/registry/blocks.ts';
import { startBitcoind } from '../../../shared/stack/bitcoind.ts';
import { BitcoinNode, type ChainState } from './node.ts';
import { RpcClient } from './rpc/client.ts';
import { SAMPLE_CHAIN } from './sample/generate.ts';

/** @throws TidemarkError NODE_UNSUITABLE and those of the call. */
export async function checkNode(node: BitcoinNode, network: string): Promise<ChainState> {
  const state = await node.chainState();
  const { endpoint } = node.rpc;
  if (state.chain !== network) {
    throw new TidemarkError(
      'NODE_UNSUITABLE',
      `The Bitcoin node at ${endpoint} is on chain ${state.chain}, but SVC_BITCOIN_NETWORK is ${network}`,
      {
        details: { node: endpoint, chain: state.chain, network },
        remedy: 'Correct the setting or the URL of the node.',
      },
    );
  }
  if (state.pruned) {
    throw new TidemarkError('NODE_UNSUITABLE', `The Bitcoin node at ${endpoint} is pruned: it has deleted old blocks`, {
      details: { node: endpoint },
      remedy: 'Run the node with prune=0: Tidemark needs every block.',
    });
  }
  return state;
}

/** The highest settled block; -1 if there is none. */
export const settledTip = ({ blocks }: Pick<ChainState, 'blocks'>, depth: number): number =>
  Math.max(-1, blocks - depth);

/** A note for the operator while the node is still downloading blocks. */
export function syncNote({ syncing, blocks, headers }: ChainState): string | undefined {
  if (!syncing && blocks >= headers) return undefined;
  const how = blocks < headers ? `it has validated ${blocks} of ${headers}` : `there may be more than its ${blocks}`;
  return `the node is still downloading blocks: ${how}; the validated ones are ingested`;
}

export interface OpenedNode extends AsyncDisposable {
  readonly node: BitcoinNode;
  /** The chain that it must be on, by the node's own name. */
  readonly network: string;
  readonly depth: number;
  /** The folder above `mempool/`, which holds the snapshots. */
  readonly keepIn: string;
}

interface Needs {
  readonly settings: Settings;
  /** The folder of a sample; without it, the settings name the node. */
  readonly location?: URL;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** @throws TidemarkError CONFIGURATION_INVALID if no node is configured. */
export async function openNode({ settings, location, log, signal }: Needs): Promise<OpenedNode> {
  const calls = {
    timeoutMs: settings.SVC_BITCOIN_RPC_TIMEOUT_SECONDS * 1000,
    maxAttempts: settings.limits.sourceAttempts,
    parallel: settings.limits.nodeCalls,
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
      'SVC_BITCOIN_RPC_URL is not set: set it to the address of the Bitcoin node',
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
