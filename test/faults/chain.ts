/** A regtest node for campaigns: its chain grows and is reorganised, and what a kill took from the node is given back to it. */
import { join } from 'node:path';
import { CHAIN_DATASETS } from '../../pipelines/sources/bitcoin/datasets.ts';
import { RpcClient } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import type { SampleChain } from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { createLogger } from '../../shared/logger.ts';
import { type Bitcoind, startBitcoind } from '../../shared/stack/bitcoind.ts';
import { startChain } from '../support/regtest.ts';

export const CHAIN_KEYS: ReadonlySet<string> = new Set(CHAIN_DATASETS.map(({ key }) => key));

export class Chain implements AsyncDisposable {
  readonly node: Bitcoind;
  readonly #rpc: RpcClient;
  readonly #chain: SampleChain;
  #branches = 0;
  /** Every block that the node was given, in the order of its heights. */
  readonly #blocks: string[] = [];

  private constructor(node: Bitcoind, rpc: RpcClient, chain: SampleChain) {
    this.node = node;
    this.#rpc = rpc;
    this.#chain = chain;
  }

  static async open(folder: string): Promise<Chain> {
    const node = await startBitcoind({
      chain: 'regtest',
      dir: join(folder, 'node'),
      log: createLogger('silent', 'campaign'),
    });
    const rpc = await RpcClient.open({
      ...{ url: new URL(node.url), user: node.user, password: node.password },
      ...{ timeoutMs: 30_000, maxAttempts: 20, parallel: 4 },
    });
    return new Chain(node, rpc, await startChain(rpc));
  }

  get height(): number {
    return this.#chain.height;
  }

  /** Settings of a process that reads the node, by way of this port. */
  settings(port = new URL(this.node.url).port): Record<string, string> {
    const url = new URL(this.node.url);
    url.port = String(port);
    return {
      SVC_BITCOIN_RPC_URL: url.href,
      SVC_BITCOIN_RPC_USER: this.node.user,
      SVC_BITCOIN_RPC_PASSWORD: this.node.password,
      SVC_BITCOIN_NETWORK: 'regtest',
      SVC_BITCOIN_RPC_TIMEOUT_SECONDS: '3',
      SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '4',
    };
  }

  /** Takes blocks off the end of the chain, and mines others, more of them. */
  async grow(blocks: number, takenOff: number): Promise<void> {
    if (takenOff > 0) {
      await this.#chain.fork(takenOff);
      this.#branches++;
      this.#blocks.length = this.#chain.height;
    }
    for (let at = 0; at < blocks + takenOff; at++) {
      const { raw } = await this.#chain.add([], { extraNonce: this.#branches });
      this.#blocks.push(raw.toString('hex'));
    }
  }

  /** The node is killed and started again. It may have lost its last blocks, and gets them from a peer. */
  async kill(): Promise<void> {
    await this.node.kill();
    await this.node.restart();
    await this.giveBack();
  }

  async giveBack(): Promise<void> {
    for (const block of this.#blocks) await this.#rpc.call('submitblock', block);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.node[Symbol.asyncDispose]();
  }
}
