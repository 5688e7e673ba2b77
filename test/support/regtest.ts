/** Regtest chains for tests; their blocks are the project's own. */
import type { RpcClient } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import {
  type Coin,
  coinsOf,
  OPEN_OUTPUT,
  OPEN_WITNESS,
  type Paying,
  pay,
  push,
  SampleChain,
  taprootScript,
} from '../../pipelines/sources/bitcoin/sample/chain.ts';

const START_TIME = 1_700_000_000;
const BTC = 100_000_000;
const FEE = 10_000;

export async function startChain(rpc: RpcClient, intervalSeconds = 600): Promise<SampleChain> {
  return await SampleChain.open(rpc, { startTime: START_TIME, intervalSeconds });
}

/** A block of `transactions` transactions of two inputs and two outputs each, from coins made for it. */
export async function addBusyBlock(chain: SampleChain, coins: Coin[], transactions: number): Promise<Coin[]> {
  const paying: Paying[] = [];
  for (let at = 0; paying.length < transactions && at + 1 < coins.length; at += 2) {
    const pair = coins.slice(at, at + 2);
    const half = Math.floor((pair[0].sats + pair[1].sats - 500) / 2);
    const outputs = [0, 1].map(() => ({ sats: half, script: OPEN_OUTPUT }));
    paying.push(pay(pair, outputs, { witness: OPEN_WITNESS }));
  }
  await chain.add(paying);
  return paying.flatMap(({ tx }) => coinsOf(tx));
}

/** Splits coinbases into `count` coins in all, in blocks of their own. */
export async function makeCoins(chain: SampleChain, count: number, firstCoinbase: number): Promise<Coin[]> {
  const coins: Coin[] = [];
  for (let from = firstCoinbase; coins.length < count; from++) {
    const coinbase = chain.coinbases[from];
    const each = Math.floor((coinbase.sats - BTC) / 2_500);
    const split = pay(
      [coinbase],
      Array.from({ length: Math.min(2_500, count - coins.length) }, () => ({ sats: each, script: OPEN_OUTPUT })),
      { witness: OPEN_WITNESS },
    );
    await chain.add([split]);
    coins.push(...coinsOf(split.tx));
  }
  return coins;
}

/** A block of one transaction of 3.98 MB: data in a script of taproot, which is the largest thing a block can hold. */
export async function addHugeTransaction(chain: SampleChain, coin: Coin): Promise<Paying['tx']> {
  const item = push(Buffer.alloc(520, 7));
  // false, if, data, end, true
  const leaf = Buffer.concat([Buffer.of(0, 0x63), ...Array.from({ length: 7_600 }, () => item), Buffer.of(0x68, 0x51)]);
  const { payTo, control } = taprootScript('huge', leaf);
  const fund = pay([coin], [{ sats: coin.sats - FEE, script: payTo }], { witness: OPEN_WITNESS });
  await chain.add([fund]);
  const [funded] = coinsOf(fund.tx);
  const huge = pay([funded], [{ sats: funded.sats - FEE, script: OPEN_OUTPUT }], { witness: [leaf, control] });
  await chain.add([huge]);
  return huge.tx;
}
