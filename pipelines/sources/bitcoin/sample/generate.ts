/**
 * The sample for a system without a node: a generated chain on a real node's regtest, the same on every machine for the
 * same days. Blocks come every ten minutes or so, with more payments and higher fees in busy hours; it has halvings, every
 * kind of spend, and mempool snapshots.
 */

import { join } from 'node:path';
import { DAY_MS } from '../../../../shared/dates.ts';
import type { Logger } from '../../../../shared/logger.ts';
import type { ReportProgress } from '../../../../shared/stack/apt.ts';
import { startBitcoind } from '../../../../shared/stack/bitcoind.ts';
import { activityAt, chance } from '../../../sample/market.ts';
import { SAMPLE_DAYS } from '../../../sample/week.ts';
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
/** A coinbase can be spent 100 blocks later: these come before the week, so that the week's own have payments. */
const EARLY_BLOCKS = MATURITY + 2;
const BLOCKS_A_DAY = 144;
/** Blocks are proved up to the median time of the last eleven: with these after the week, to its end. */
const LATE_BLOCKS = 6;
/** Short, because a node accepts no block whose time lies more than two hours ahead. */
const LATE_SECONDS = 300;
export const SAMPLE_BLOCKS = EARLY_BLOCKS + SAMPLE_DAYS * BLOCKS_A_DAY + LATE_BLOCKS;
const SNAPSHOTS_A_DAY = 2;
export const SAMPLE_SNAPSHOTS = SAMPLE_DAYS * SNAPSHOTS_A_DAY;

const SUBMITTED_TOGETHER = 32;

const COINS = 400;

const RPC_TIMEOUT_MS = 60_000;

export interface SampleNode extends AsyncDisposable {
  readonly node: BitcoinNode;
  readonly snapshots: readonly SnapshotFile[];
}

/** Epoch seconds by height, from the start of the chain on: blocks are found by chance, and so many a day. */
export function blockTimes(fromMs: number): number[] {
  const seed = fromMs / DAY_MS;
  const last = SAMPLE_BLOCKS - LATE_BLOCKS;
  const passed = [0];
  for (let height = 1; height <= last + 1; height++) {
    // A wait for what comes by chance, without those that last for an hour.
    passed.push(passed[height - 1] + Math.min(3, 0.1 - Math.log(1 - chance(seed, height))));
  }
  const early = passed[EARLY_BLOCKS];
  // The last wait ends with the week.
  const toSeconds = (fromMs + SAMPLE_DAYS * DAY_MS) / 1000;
  const seconds = (toSeconds - fromMs / 1000) / (passed[last + 1] - early);
  const times = passed.slice(0, -1).map((waits) => Math.floor(fromMs / 1000 + (waits - early) * seconds));
  return [...times, ...Array.from({ length: LATE_BLOCKS }, (_, index) => toSeconds + (index + 1) * LATE_SECONDS)];
}

/** @throws TidemarkError STACK_INSTALL_FAILED if no node can be installed. */
export async function startSampleNode(options: {
  /** Created if needed; the caller removes it. */
  readonly directory: string;
  /** The folder above `mempool/`. */
  readonly snapshotsIn: string;
  /** Start of the week, epoch ms. */
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
  const times = blockTimes(fromMs);
  const intervalSeconds = (height: number) => times[height] - times[height - 1];
  const chain = await SampleChain.open(rpc, { startTime: times[0], intervalSeconds, together: SUBMITTED_TOGETHER });
  const node = new BitcoinNode(rpc);
  const snapshots: SnapshotFile[] = [];
  const takenAt = snapshotTimes(fromMs);
  for await (const { payments, time } of coming(chain, times)) {
    while (takenAt[snapshots.length] < time) {
      await chain.flush();
      const seconds = takenAt[snapshots.length];
      // At the first snapshot nothing waits.
      if (snapshots.length > 0) await send(rpc, payments, { from: chain.time, to: seconds });
      await rpc.call('setmocktime', seconds);
      const dir = snapshotDir(snapshotsIn, SAMPLE_CHAIN);
      snapshots.push(await takeSnapshot(node, { dir, chain: SAMPLE_CHAIN, now: () => seconds * 1000 }));
      await rpc.call('setmocktime', 0);
    }
  }
  await chain.flush();
  const kept = cleanup.move();
  return { node, snapshots, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

/** Epoch seconds, evenly over the days; the last is taken a quarter of an hour before the week ends. */
function snapshotTimes(fromMs: number): number[] {
  const apart = DAY_MS / 1000 / SNAPSHOTS_A_DAY;
  return Array.from({ length: SAMPLE_SNAPSHOTS }, (_, index) => fromMs / 1000 + (index + 1) * apart - 900);
}

/** What waits for the next block of the chain. */
interface Coming {
  readonly payments: readonly Paying[];
  /** When that block comes, epoch seconds. */
  readonly time: number;
}

/** Builds the chain. Yields before each block, from the first that has payments on. */
async function* coming(chain: SampleChain, times: readonly number[]): AsyncGenerator<Coming> {
  await addEveryKind(chain);
  const [, , , third] = chain.coinbases;
  const each = Math.floor(third.sats / COINS) - 100;
  const outputs = Array.from({ length: COINS }, () => ({ sats: each, script: OPEN_OUTPUT }));
  const split = pay([third], outputs, { witness: OPEN_WITNESS });
  await chain.add([split]);
  let coins = coinsOf(split.tx);
  while (chain.height < SAMPLE_BLOCKS) {
    const height = chain.height + 1;
    const time = times[height];
    const activity = activityAt(time * 1000);
    const count = 1 + Math.round(activity * 8 * chance(height, 1));
    // Of 110 bytes: from 2 satoshis a byte on, and several times as many when others wait, too.
    const payments = coins
      .slice(0, count)
      .map((coin, index) => payment(coin, Math.round(250 + 6_000 * activity * chance(height, 2 + index) ** 2)));
    yield { payments, time };
    await chain.add(payments);
    coins = [...coins.slice(count), ...payments.flatMap(({ tx }) => coinsOf(tx))];
  }
}

/** The node receives the payments one after the other between two times, epoch seconds. */
async function send(
  rpc: RpcClient,
  payments: readonly Paying[],
  { from, to }: { readonly from: number; readonly to: number },
): Promise<void> {
  for (const [index, { tx }] of payments.entries()) {
    await rpc.call('setmocktime', from + Math.ceil(((to - from) * (index + 1)) / (payments.length + 1)));
    await rpc.call('sendrawtransaction', tx.raw.toString('hex'));
  }
}

function payment(coin: Coin, fee: number): Paying {
  return pay([coin], [{ sats: coin.sats - fee, script: OPEN_OUTPUT }], { witness: OPEN_WITNESS });
}
