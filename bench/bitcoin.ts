/**
 * Blocks of thousands of transactions from a regtest node to proved and visible in all datasets of the chain, beside the bare fetch of
 * the same blocks by RPC: `getblockhash` and `getblock` with the spent outputs, answers dropped unread, one call after another and as
 * many at once as the ingest makes. The node produces the same JSON for all three. Each round has blocks of its own, and includes
 * process starts.
 */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { WITH_PREVOUTS } from '../pipelines/sources/bitcoin/node.ts';
import { SINGLE_BLOCKS } from '../pipelines/sources/bitcoin/proved-chain.ts';
import { RpcClient } from '../pipelines/sources/bitcoin/rpc/client.ts';
import {
  type Coin,
  coinsOf,
  MATURITY,
  OPEN_OUTPUT,
  OPEN_WITNESS,
  type Paying,
  pay,
  SampleChain,
} from '../pipelines/sources/bitcoin/sample/chain.ts';
import { LIMITS } from '../shared/config/limits.ts';
import { type Bitcoind, startBitcoind } from '../shared/stack/bitcoind.ts';
import { timed } from './measure.ts';
import { connected } from './others.ts';
import { ended, startCommand } from './service.ts';
import { subject } from './subject.ts';

const START_TIME = 1_700_000_000;
const OUTPUTS_OF_A_SPLIT = 2_500;
/** As many as a feed makes. */
const CALLS = LIMITS.nodeCalls;

export const bitcoin = subject({
  name: 'bitcoin',
  compares: 'blocks from the node to proved, beside the bare RPC fetch of the same blocks',
  options: { blocks: 100, transactions: 2000 },
  rounds: 3,
  smallest: '--blocks 1 --transactions 2',
  async run(lab, { blocks, transactions }) {
    const { directory, stack, log, note, rounds } = lab;
    await using node = await startBitcoind({ dir: join(directory, 'node'), chain: 'regtest', log, progress: note });
    note(`making ${(rounds + 1) * blocks} blocks of ${transactions} transactions`);
    const first = await makeBlocks(node, (rounds + 1) * blocks, transactions);
    const settings = {
      SVC_BITCOIN_RPC_URL: node.url,
      SVC_BITCOIN_RPC_USER: node.user,
      SVC_BITCOIN_RPC_PASSWORD: node.password,
      SVC_BITCOIN_NETWORK: 'regtest',
    };
    const backfill = (from: number, to: number) => {
      const range = ['--from-height', `${from}`, '--to-height', `${to}`];
      return ended(startCommand(stack.stateDir, ['backfill', 'bitcoin', ...range, '--json'], settings));
    };
    // The blocks below are ingested first, so that a round ingests its own blocks only.
    await backfill(0, first - 1);
    const settle = async () => {
      await using client = await connected(stack.databaseUrl);
      await client.pg.query('checkpoint');
    };
    const fromOf = (round: number) => first + round * blocks;
    const fetched = (calls: number) =>
      timed((round) => fetchBlocks(node, fromOf(round), fromOf(round) + blocks - 1, calls), settle);
    await lab.compare(`${blocks} blocks of ${transactions} transactions`, {
      tidemark: timed((round) => backfill(fromOf(round), fromOf(round) + blocks - 1), settle),
      'bare fetch': fetched(1),
      [`bare fetch, ${CALLS} at once`]: fetched(CALLS),
    });
  },
});

/** @returns the height of the first block of many transactions. */
async function makeBlocks(node: Bitcoind, blocks: number, transactions: number): Promise<number> {
  const { user, password } = node;
  const rpc = await RpcClient.open({
    url: new URL(node.url),
    user,
    password,
    timeoutMs: 60_000,
    maxAttempts: 1,
    parallel: 1,
  });
  const chain = await SampleChain.open(rpc, { startTime: START_TIME, intervalSeconds: 600 });
  const wanted = transactions * 2;
  await chain.addMany(MATURITY + Math.ceil(wanted / OUTPUTS_OF_A_SPLIT) + 1);
  let coins: Coin[] = [];
  for (let coinbase = 1; coins.length < wanted; coinbase++) {
    const { sats } = chain.coinbases[coinbase];
    const count = Math.min(OUTPUTS_OF_A_SPLIT, wanted - coins.length);
    const each = Math.floor((sats * 0.9) / count);
    const split = pay(
      [chain.coinbases[coinbase]],
      Array.from({ length: count }, () => ({ sats: each, script: OPEN_OUTPUT })),
      {
        witness: OPEN_WITNESS,
      },
    );
    await chain.add([split]);
    coins.push(...coinsOf(split.tx));
  }
  // Partitions of several blocks begin at round heights.
  while ((chain.height + 1) % 100 !== 0) await chain.add();
  const first = chain.height + 1;
  for (let block = 0; block < blocks; block++) {
    const payments: Paying[] = [];
    for (let at = 0; at + 1 < coins.length; at += 2) {
      const half = Math.floor((coins[at].sats + coins[at + 1].sats - 500) / 2);
      payments.push(
        pay(
          coins.slice(at, at + 2),
          [0, 1].map(() => ({ sats: half, script: OPEN_OUTPUT })),
          { witness: OPEN_WITNESS },
        ),
      );
    }
    await chain.add(payments);
    coins = payments.flatMap(({ tx }) => coinsOf(tx));
  }
  // Near the tip every block is a partition of its own, unlike in a history.
  await chain.addMany(SINGLE_BLOCKS);
  return first;
}

/** The baseline, in a process of its own. */
const FETCHER = `
const [url, user, password, from, to, calls] = process.argv.slice(1);
const headers = { authorization: 'Basic ' + Buffer.from(user + ':' + password).toString('base64') };
async function call(method, ...params) {
  const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify({ id: 1, method, params }) });
  if (!answer.ok) throw new Error(method + ': HTTP ' + answer.status);
  return Buffer.from(await answer.arrayBuffer());
}
let next = Number(from);
async function fetchBlocks() {
  while (next <= Number(to)) {
    const { result } = JSON.parse(await call('getblockhash', next++));
    await call('getblock', result, ${WITH_PREVOUTS});
  }
}
await Promise.all(Array.from({ length: Number(calls) }, fetchBlocks));`;

const fetchBlocks = ({ url, user, password }: Bitcoind, from: number, to: number, calls: number): Promise<void> =>
  ended(
    spawn(
      process.execPath,
      ['--input-type=module', '-e', FETCHER, url, user, password, `${from}`, `${to}`, `${calls}`],
      { stdio: ['ignore', 'ignore', 'inherit'] },
    ),
  );
