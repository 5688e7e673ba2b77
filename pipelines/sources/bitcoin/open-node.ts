/** The node that a feed reads: the operator's, by the settings, or the one of a sample, in a folder. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Settings } from '../../../shared/config/settings.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log/logger.ts';
import { startBitcoind } from '../../../shared/stack/bitcoind.ts';
import { BitcoinNode } from './node.ts';
import { confirmationDepth } from './prechecks.ts';
import { RpcClient } from './rpc/client.ts';
import { SAMPLE_CHAIN } from './sample/generate.ts';

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
