/**
 * The sample of a system without a node: a chain of our own on a real node's regtest, the same on every machine for the
 * same days, with a halving, every kind of spend, and a mempool that was looked at a few times.
 */
import { join } from 'node:path';
import type { Logger } from '../../../../shared/log/logger.ts';
import type { Progress } from '../../../../shared/stack/apt-download.ts';
import { startBitcoind } from '../../../../shared/stack/bitcoind.ts';
import { type SnapshotFile, snapshotDir, takeSnapshot } from '../mempool.ts';
import { BitcoinNode } from '../node.ts';
import { RpcClient } from '../rpc/client.ts';
import { type Coin, coinsOf, OPEN_OUTPUT, OPEN_WITNESS, type Paying, pay, SampleChain } from './chain.ts';
import { addEveryKind } from './kinds.ts';

export const SAMPLE_CHAIN = 'regtest';
/** Past the first halving, which on regtest is at height 150; 23 minutes apart they take a little less than three days. */
export const SAMPLE_BLOCKS = 180;
const INTERVAL_SECONDS = 1_400;

const COINS = 400;
const MAX_PAYMENTS = 16;
const WAITING = 25;
/** After the last block; at the first one the mempool is empty. */
const SNAPSHOT_SECONDS = [300, 600, 900];
export const SAMPLE_SNAPSHOTS = SNAPSHOT_SECONDS.length;

const RPC_TIMEOUT_MS = 60_000;

export interface SampleNode extends AsyncDisposable {
  readonly node: BitcoinNode;
  readonly snapshots: readonly SnapshotFile[];
}

/** @throws TidemarkError STACK_INSTALL_FAILED, STACK_UNSUPPORTED_MACHINE where no node can be had. */
export async function startSampleNode(options: {
  /** Made if needed; removed by the caller. */
  readonly directory: string;
  /** The folder above `mempool/`. */
  readonly snapshotsIn: string;
  /** Start of the first of the three days, epoch ms. */
  readonly fromMs: number;
  readonly log: Logger;
  readonly progress?: Progress;
  readonly signal?: AbortSignal;
}): Promise<SampleNode> {
  const { directory, snapshotsIn, fromMs, log, progress, signal } = options;
  await using cleanup = new AsyncDisposableStack();
  const server = cleanup.use(
    await startBitcoind({ dir: join(directory, 'node'), chain: SAMPLE_CHAIN, log, progress, signal }),
  );
  const { user, password } = server;
  const url = new URL(server.url);
  const rpc = await RpcClient.open({
    url,
    user,
    password,
    timeoutMs: RPC_TIMEOUT_MS,
    maxAttempts: 1,
    parallel: 3,
    signal,
  });
  const chain = await SampleChain.open(rpc, { startTime: fromMs / 1000, intervalSeconds: INTERVAL_SECONDS });
  const coins = await build(chain);
  const node = new BitcoinNode(rpc);
  const snapshots: SnapshotFile[] = [];
  for (const [index, seconds] of SNAPSHOT_SECONDS.entries()) {
    const time = chain.time + seconds;
    await rpc.call('setmocktime', time);
    snapshots.push(
      await takeSnapshot(node, {
        dir: snapshotDir(snapshotsIn, SAMPLE_CHAIN),
        chain: SAMPLE_CHAIN,
        now: () => time * 1000,
      }),
    );
    if (index === SNAPSHOT_SECONDS.length - 1) break;
    for (const [place, coin] of coins.splice(0, WAITING).entries()) {
      const { tx } = payment(coin, 200 + ((place * 373 + seconds) % 5_000));
      await rpc.call('sendrawtransaction', tx.raw.toString('hex'));
    }
  }
  const kept = cleanup.move();
  return { node, snapshots, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

/** @returns coins that are left. */
async function build(chain: SampleChain): Promise<Coin[]> {
  await addEveryKind(chain);
  const [, , , third] = chain.coinbases;
  const each = Math.floor(third.sats / COINS) - 100;
  const split = pay(
    [third],
    Array.from({ length: COINS }, () => ({ sats: each, script: OPEN_OUTPUT })),
    {
      witness: OPEN_WITNESS,
    },
  );
  await chain.add([split]);
  let coins = coinsOf(split.tx);
  while (chain.height < SAMPLE_BLOCKS) {
    // More on some blocks than on others, none on every eighth.
    const count = chain.height % 8 === 0 ? 0 : 3 + ((chain.height * 7) % (MAX_PAYMENTS - 3));
    const payments = coins
      .slice(0, count)
      .map((coin, index) => payment(coin, 300 + ((chain.height * 131 + index * 977) % 9_000)));
    await chain.add(payments);
    coins = [...coins.slice(count), ...payments.flatMap(({ tx }) => coinsOf(tx))];
  }
  return coins;
}

function payment(coin: Coin, fee: number): Paying {
  return pay([coin], [{ sats: coin.sats - fee, script: OPEN_OUTPUT }], { witness: OPEN_WITNESS });
}
