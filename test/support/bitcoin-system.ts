/** A whole system beside a real node: what the operator's command makes of the node's chain. */
import { execFileSync } from 'node:child_process';
import { CHAIN_DATASETS } from '../../pipelines/sources/bitcoin/datasets.ts';
import type { RpcClient } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import type { Settings } from '../../shared/config/settings.ts';
import { createNode, rpcOf } from './bitcoin.ts';
import type { Answer, Begun, Json, Running } from './command.ts';
import { System } from './pipeline.ts';
import { limitsEnv } from './small-limits.ts';

export const CHAIN_KEYS = CHAIN_DATASETS.map(({ key }) => key);

export class BitcoinSystem implements AsyncDisposable {
  readonly system: System;
  readonly node: Awaited<ReturnType<typeof createNode>>;
  readonly rpc: RpcClient;
  readonly network: string;

  private constructor(system: System, node: Awaited<ReturnType<typeof createNode>>, rpc: RpcClient, network: string) {
    this.system = system;
    this.node = node;
    this.rpc = rpc;
    this.network = network;
  }

  static async create(options: Parameters<typeof createNode>[0] = {}): Promise<BitcoinSystem> {
    const node = await createNode(options);
    return new BitcoinSystem(await System.create(), node, await rpcOf(node), options.chain ?? 'regtest');
  }

  get settings(): Record<string, string> {
    return {
      SVC_BITCOIN_RPC_URL: this.node.url,
      SVC_BITCOIN_RPC_USER: this.node.user,
      SVC_BITCOIN_RPC_PASSWORD: this.node.password,
      SVC_BITCOIN_NETWORK: this.network,
      ...limitsEnv({ nodePollMs: 50 }),
    };
  }

  /** The command as a process. */
  start(args: readonly string[], env: Readonly<Record<string, string>> = {}): Running {
    return this.system.start(args, { ...this.settings, ...env });
  }

  /** The command in this process, until it is told to stop. */
  begin(args: readonly string[], env: Readonly<Record<string, string>> = {}, settings?: Partial<Settings>): Begun {
    return this.system.begin(args, { ...this.settings, ...env }, settings);
  }

  /** The command in this process. */
  run(args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<Answer> {
    return this.system.run(args, { ...this.settings, ...env });
  }

  backfill(from: number, to: number, env: Readonly<Record<string, string>> = {}): Promise<Answer> {
    return this.run(['backfill', 'bitcoin', '--from-height', `${from}`, '--to-height', `${to}`], env);
  }

  rows<R extends object = Record<string, Json>>(sql: string, values: unknown[] = []): Promise<R[]> {
    return this.system.rows<R>(sql, values);
  }

  /** Proved heights of each of the six datasets, as PostgreSQL writes ranges: `{[0,250)}`. */
  async proved(): Promise<Record<string, string>> {
    const rows = await this.rows<{ key: string; proved: string }>(
      'select d.key, c.proved::text from coverage c join datasets d using (dataset_id) where d.key = any ($1)',
      [CHAIN_KEYS],
    );
    return Object.fromEntries(rows.map(({ key, proved }) => [key, proved]));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.system[Symbol.asyncDispose]();
    await this.node[Symbol.asyncDispose]();
  }
}

/** The same for all six. */
export const eachOfSix = <T>(value: T): Record<string, T> => Object.fromEntries(CHAIN_KEYS.map((key) => [key, value]));

const MAINNET_BLOCKS = '../shared/data/bitcoin/mainnet-blocks-1-256.bz2';

/** Gives a node on chain main the real blocks 1 to 255. */
export async function submitMainnetBlocks(rpc: RpcClient): Promise<void> {
  const file = execFileSync('bzcat', [MAINNET_BLOCKS], { maxBuffer: 1 << 24 });
  // magic, length, block
  for (let at = 0; at < file.length; ) {
    const end = at + 8 + file.readUInt32LE(at + 4);
    const verdict = await rpc.call('submitblock', file.toString('hex', at + 8, end));
    if (verdict !== null) throw new Error(`the node takes no block: ${verdict}`);
    at = end;
  }
}
