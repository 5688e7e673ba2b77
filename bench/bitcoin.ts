/**
 * Bitcoin benchmark, on regtest blocks of thousands of transactions. It compares the ingest, from the node to proved and
 * visible in all six datasets, with the bare fetch of the same blocks from the same node by RPC: `getblockhash` and
 * `getblock` with the spent outputs, answers dropped unread, one call after another and as many at once as the ingest makes.
 * The node produces the same JSON for all three. Rounds alternate, each on blocks of its own, and include process starts.
 *
 * Options: --blocks N (100), --transactions N a block (2,000), --rounds N (3), --json.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { Heights } from '../pipelines/sources/bitcoin/blocks.ts';
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
import { connect } from '../shared/db/connect.ts';
import { type Bitcoind, startBitcoind } from '../shared/stack/bitcoind.ts';
import type { Stack } from '../shared/stack/stack.ts';
import { benchHarness, ROOT } from './harness.ts';
import { median, ratioMembers, rounded } from './measure.ts';
import { optionsOf } from './options.ts';

const START_TIME = 1_700_000_000;
const OUTPUTS_OF_A_SPLIT = 2_500;
/** As many as a feed makes. */
export const CALLS = LIMITS.nodeCalls;

export async function run(argv: readonly string[]): Promise<void> {
  const { blocks, transactions, rounds, json } = optionsOf(argv, {
    counts: { blocks: [100, 1], transactions: [2000, 1], rounds: [3, 1] },
  });
  await using harness = await benchHarness('bitcoin');
  const { directory, stack, log, note } = harness;
  await using node = await startBitcoind({ dir: join(directory, 'node'), chain: 'regtest', log, progress: note });
  note(`making ${(rounds + 1) * blocks} blocks of ${transactions} transactions`);
  const first = await makeBlocks(node, (rounds + 1) * blocks, transactions);
  // The blocks below are ingested first, so that a round ingests its own blocks only.
  await backfillBlocks(stack, node, 0, first - 1);
  const ours: number[] = [];
  const serial: number[] = [];
  const parallel: number[] = [];
  // Round 0 is the warm-up of all sides and does not count.
  for (let round = 0; round <= rounds; round++) {
    const from = first + round * blocks;
    const to = from + blocks - 1;
    const fetched: number[] = [];
    for (const calls of [1, CALLS]) {
      await settle(stack);
      fetched.push(await timed(() => fetchBlocks(node, { from, to }, calls)));
    }
    await settle(stack);
    const proved = await timed(() => backfillBlocks(stack, node, from, to));
    const [one, several] = fetched;
    note(
      `heights ${from}-${to}  fetch ${rounded(one)} s, ${CALLS} at once ${rounded(several)} s  tidemark ${rounded(proved)} s  ratio ${rounded(proved / one, 3)}, ${rounded(proved / several, 3)}${round === 0 ? '  (warm-up)' : ''}`,
    );
    if (round === 0) continue;
    ours.push(proved);
    serial.push(one);
    parallel.push(several);
  }
  const ratiosTo = (bare: readonly number[]) => ours.map((seconds, round) => seconds / bare[round]);
  const result = {
    bench: 'bitcoin',
    blocks,
    transactions,
    rounds,
    ...ratioMembers('ratio', ratiosTo(serial)),
    ...ratioMembers('ratio_to_parallel_fetch', ratiosTo(parallel)),
    fetch_blocks_per_second: rounded(blocks / median(serial)),
    parallel_fetch_blocks_per_second: rounded(blocks / median(parallel)),
    tidemark_blocks_per_second: rounded(blocks / median(ours)),
    tidemark_transactions_per_second: Math.round((blocks * transactions) / median(ours)),
  };
  process.stdout.write(json ? `${JSON.stringify(result)}\n` : `${table(result)}\n`);
}

const table = (result: Record<string, unknown>): string =>
  Object.entries(result)
    .map(([name, value]) => `${name.padEnd(34)} ${value}`)
    .join('\n');

/** @returns the height of the first block of many transactions. */
export async function makeBlocks(node: Bitcoind, blocks: number, transactions: number): Promise<number> {
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

/** The whole answer to `getblock` with prevouts, as the node sends it. */
export async function blockAnswer({ url, user, password }: Bitcoind, height: number): Promise<Buffer> {
  const headers = { authorization: `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}` };
  const call = async (method: string, ...params: unknown[]) => {
    const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify({ id: 1, method, params }) });
    if (!answer.ok) throw new Error(`${method}: HTTP ${answer.status}`);
    return Buffer.from(await answer.arrayBuffer());
  };
  const { result } = JSON.parse((await call('getblockhash', height)).toString()) as { result: string };
  return await call('getblock', result, WITH_PREVOUTS);
}

export async function backfillBlocks(stack: Stack, node: Bitcoind, from: number, to: number): Promise<void> {
  const range = ['--from-height', `${from}`, '--to-height', `${to}`];
  await runProgram(join(ROOT, 'tidemark'), ['backfill', 'bitcoin', ...range, '--json'], node, {
    SVC_DATABASE_URL: stack.databaseUrl,
    SVC_NATS_URL: stack.natsUrl,
    SVC_NATS_PROJECTOR_URL: stack.natsProjectorUrl,
    SVC_NATS_OPERATOR_URL: stack.natsOperatorUrl,
    SVC_STATE_DIR: stack.stateDir,
  });
}

/** Fetches blocks in a process of its own, `calls` at once. */
export async function fetchBlocks(
  node: Bitcoind,
  { from, to }: Heights,
  calls: number,
  read: 'drop' | 'parse' = 'drop',
): Promise<void> {
  const args = ['bench/bitcoin-fetch.ts', node.url, `${from}`, `${to}`, `${calls}`, read];
  await runProgram(process.execPath, args, node);
}

/** Runs a program to its end. */
async function runProgram(
  program: string,
  args: readonly string[],
  node: Bitcoind,
  env: NodeJS.ProcessEnv = {},
): Promise<void> {
  const child = spawn(program, args, {
    cwd: ROOT,
    env: {
      ...process.env,
      SVC_BITCOIN_RPC_URL: node.url,
      SVC_BITCOIN_RPC_USER: node.user,
      SVC_BITCOIN_RPC_PASSWORD: node.password,
      SVC_BITCOIN_NETWORK: 'regtest',
      SVC_LOG_LEVEL: 'error',
      ...env,
    },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`${args[0]} ended with ${code}`);
}

async function timed(work: () => Promise<void>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return (performance.now() - startedAt) / 1000;
}

async function settle(stack: Stack): Promise<void> {
  await using client = await connect({ url: stack.databaseUrl, name: 'tidemark bench' });
  await client.query('checkpoint');
}
