/**
 * The sample for a system without a node: a generated chain on a real node's regtest, the same on every machine for the
 * same days. It has a halving, every kind of spend, and a few mempool snapshots.
 */

import { join } from 'node:path';
import type { Logger } from '../../../../shared/logger.ts';
import type { ReportProgress } from '../../../../shared/stack/apt.ts';
import { startBitcoind } from '../../../../shared/stack/bitcoind.ts';
import { type SnapshotFile, snapshotDir, takeSnapshot } from '../mempool.ts';
import { BitcoinNode } from '../node.ts';
import { RpcClient } from '../rpc/client.ts';
import {
  type Coin,
  coinsOf,
  keyOf,
  MATURITY,
  multisig,
  note,
  OPEN_OUTPUT,
  OPEN_WITNESS,
  type Paying,
  pay,
  payToKey,
  payToKeyHash,
  payToScriptHash,
  payToTaprootKey,
  payToWitnessKeyHash,
  payToWitnessScriptHash,
  SampleChain,
  taprootScript,
} from './chain.ts';

const BTC = 100_000_000;
const FEE = 10_000;

/**
 * Adds spends of every kind from height 101 on: to and from each kind of script, RBF, CPFP, notes, anchors. The sample
 * shows them and tests use them.
 */
export async function addEveryKind(chain: SampleChain): Promise<void> {
  while (chain.height < MATURITY + 2) await chain.add();
  const keys = ['a', 'b', 'c'].map(keyOf);
  const [a, b] = keys;
  const twoOfThree = multisig(2, keys);
  const leaf = Buffer.of(0x51);
  const tree = taprootScript('tree', leaf);
  const wrapped = payToWitnessKeyHash(b);
  const kinds = [
    payToKey(a),
    payToKeyHash(a),
    payToWitnessKeyHash(a),
    payToTaprootKey(b),
    tree.payTo,
    twoOfThree,
    payToScriptHash(twoOfThree),
    payToWitnessScriptHash(twoOfThree),
    payToScriptHash(wrapped),
    payToScriptHash(payToWitnessScriptHash(twoOfThree)),
    // spendable by anyone: an anchor, and a witness program of a future version
    Buffer.from('51024e73', 'hex'),
    Buffer.concat([Buffer.of(0x60, 5), Buffer.from('later')]),
  ];
  const spread = pay(
    [chain.coinbases[1]],
    [
      ...kinds.map((script) => ({ sats: BTC, script })),
      { sats: 0, script: note('a note') },
      { sats: 0, script: Buffer.from('6a', 'hex') },
      // a script that the node has no name for
      { sats: 546, script: Buffer.from('6151ac4dffff', 'hex') },
    ],
    { witness: OPEN_WITNESS },
  );
  await chain.add([spread]);
  const coins = coinsOf(spread.tx);
  const spend = (index: number, more: Parameters<typeof pay>[2] = {}) =>
    pay([coins[index]], [{ sats: BTC - FEE * (index + 1), script: OPEN_OUTPUT }], more);
  const signed = (index: number, scripts: Parameters<SampleChain['sign']>[3] = {}) =>
    chain.sign(spend(index), [coins[index]], keys, scripts);
  await chain.add([
    await signed(0),
    await signed(1),
    await signed(2),
    await signed(3),
    spend(4, { witness: [leaf, tree.control] }),
    await signed(5),
    await signed(6, { redeem: twoOfThree }),
    await signed(7, { witness: twoOfThree }),
    await signed(8, { redeem: wrapped }),
    await signed(9, { redeem: payToWitnessScriptHash(twoOfThree), witness: twoOfThree }),
    spend(10),
    spend(11, { witness: [Buffer.alloc(0), Buffer.alloc(0)] }),
  ]);
  await addUnconfirmedParents(chain, keys[0]);
}

/** Adds a parent and two children in one block (CPFP), replaceable inputs (RBF), and a time lock. */
async function addUnconfirmedParents(chain: SampleChain, key: ReturnType<typeof keyOf>): Promise<void> {
  const half = chain.coinbases[2].sats / 2;
  const parent = pay(
    [chain.coinbases[2]],
    [
      { sats: half, script: payToWitnessKeyHash(key) },
      { sats: half, script: OPEN_OUTPUT },
    ],
    { witness: OPEN_WITNESS, sequence: 0 },
  );
  const [first, second] = coinsOf(parent.tx);
  const child = await chain.sign(pay([first], [{ sats: half - 90_000, script: OPEN_OUTPUT }]), [first], [key]);
  const locked = pay([second], [{ sats: half - 1, script: OPEN_OUTPUT }], {
    witness: OPEN_WITNESS,
    sequence: 0xfffffffe,
    lockTime: chain.height,
  });
  const grandchild = pay([...coinsOf(child.tx), ...coinsOf(locked.tx)], [{ sats: BTC, script: OPEN_OUTPUT }], {
    witness: OPEN_WITNESS,
  });
  await chain.add([parent, child, locked, grandchild]);
}

export const SAMPLE_CHAIN = 'regtest';
/**
 * More than the first halving, which on regtest is at height 150. At 23 minutes each, they take a little less than
 * three days.
 */
export const SAMPLE_BLOCKS = 180;
const INTERVAL_SECONDS = 1_400;

const COINS = 400;
const MAX_PAYMENTS = 16;
const WAITING = 25;
/** Seconds after the last block; at the first snapshot the mempool is empty. */
const SNAPSHOT_SECONDS = [300, 600, 900];
export const SAMPLE_SNAPSHOTS = SNAPSHOT_SECONDS.length;

const RPC_TIMEOUT_MS = 60_000;

export interface SampleNode extends AsyncDisposable {
  readonly node: BitcoinNode;
  readonly snapshots: readonly SnapshotFile[];
}

/** @throws TidemarkError STACK_INSTALL_FAILED, STACK_UNSUPPORTED_MACHINE if no node can be installed. */
export async function startSampleNode(options: {
  /** Created if needed; the caller removes it. */
  readonly directory: string;
  /** The folder above `mempool/`. */
  readonly snapshotsIn: string;
  /** Start of the first of the three days, epoch ms. */
  readonly fromMs: number;
  readonly log: Logger;
  readonly progress?: ReportProgress;
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
    for (const [order, coin] of coins.splice(0, WAITING).entries()) {
      const { tx } = payment(coin, 200 + ((order * 373 + seconds) % 5_000));
      await rpc.call('sendrawtransaction', tx.raw.toString('hex'));
    }
  }
  const kept = cleanup.move();
  return { node, snapshots, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

/** @returns the unspent coins. */
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
    // Varying counts, and none on every eighth block.
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
