/** Blocks of a real node, of every kind of spend: read twice, once as the node tells and once from bytes, to one row. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { RecordRow } from '../../pipelines/rows/record-rows.ts';
import { readBlocks } from '../../pipelines/sources/bitcoin/blocks.ts';
import { BitcoinNode } from '../../pipelines/sources/bitcoin/node.ts';
import type { NodeBlock } from '../../pipelines/sources/bitcoin/node-answers.ts';
import { DERIVED_DATASETS } from '../../pipelines/sources/bitcoin/rows/derived.ts';
import {
  type ChainDataset,
  type CheckedBlock,
  expectedEvents,
} from '../../pipelines/sources/bitcoin/rows/expected-events.ts';
import { createTransactionRow, derivedRow, headerRow } from '../../pipelines/sources/bitcoin/rows/project.ts';
import type { RpcClient } from '../../pipelines/sources/bitcoin/rpc/client.ts';
import type { SampleChain } from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { addEveryKind } from '../../pipelines/sources/bitcoin/sample/generate.ts';
import { chainSource, consecutive, type HeightRequest, heightRequest } from '../../pipelines/sources/bitcoin/source.ts';
import type { DecodedItem } from '../../pipelines/sources/feed-types.ts';
import { encodeRecord, recordsOf } from '../../shared/frame/records.ts';
import { createNode, rpcOf } from '../support/bitcoin.ts';
import { addBusyBlock, makeCoins, startChain } from '../support/regtest.ts';

let node: Awaited<ReturnType<typeof createNode>>;
let rpc: RpcClient;
let chain: SampleChain;
let blocks: CheckedBlock[];

const ROWS = new Map<ChainDataset, RecordRow>([
  ['bitcoin_block_headers', headerRow],
  ['bitcoin_block_transactions', createTransactionRow()],
  ...DERIVED_DATASETS.map((dataset) => [dataset, derivedRow(dataset)] as const),
]);

beforeAll(async () => {
  node = await createNode();
  rpc = await rpcOf(node);
  chain = await startChain(rpc);
  await addEveryKind(chain);
  await chain.addMany(305 - chain.height);
  blocks = await read(0, chain.height);
});
afterAll(() => node?.[Symbol.asyncDispose]());

async function read(from: number, to: number): Promise<CheckedBlock[]> {
  const source = new BitcoinNode(rpc);
  const hashes = await source.hashes(from, to);
  return await Array.fromAsync(readBlocks(source, { chain: 'regtest', from, to, hashes, lookahead: 4 }));
}

test('what the node tells and what its bytes say make the same rows, for every event of 306 blocks', () => {
  expect(blocks).toHaveLength(306);
  const counted: Record<string, number> = {};
  for (const block of blocks) {
    for (const { dataset, offset, payload, auxiliary, row } of expectedEvents(block, 'regtest')) {
      const [event] = recordsOf(encodeRecord(offset, payload, auxiliary));
      expect(event.offset).toBe(offset);
      expect(ROWS.get(dataset)!(event)).toEqual(row);
      counted[dataset] = (counted[dataset] ?? 0) + 1;
    }
  }
  const transactions = blocks.reduce((sum, { block }) => sum + block.transactions.length, 0);
  expect(transactions).toBeGreaterThan(320);
  for (const dataset of ROWS.keys()) {
    expect(counted[dataset]).toBe(dataset === 'bitcoin_block_transactions' ? transactions : 306);
  }
});

test('blocks read one where the other was are what each is by itself', async () => {
  const source = new BitcoinNode(rpc);
  const held = ({ transactions }: NodeBlock) =>
    transactions.map(({ txid, raw, columns }) => {
      const { inputs, outputs, values, scripts, witnessData } = columns;
      return [txid, ...[raw, inputs, outputs, values, scripts, witnessData].map((bytes) => bytes.toString('latin1'))];
    });
  const kept = await source.block(blocks[0].block.hash);
  for (const { block } of blocks.slice(-12)) {
    const again = await source.block(block.hash);
    expect(held(again)).toEqual(held(block));
    source.release(again);
  }
  expect(held(kept)).toEqual(held(blocks[0].block));
});

describe('the first blocks of the next range', () => {
  /** Remembers what is fetched and released, and fails when told to. */
  class Recorder extends BitcoinNode {
    readonly fetched: number[] = [];
    readonly released: number[] = [];
    readonly failsOnce = new Set<number>();
    #awaited = { count: 0, reached: () => {} };

    override async block(hash: string): Promise<NodeBlock> {
      const height = blocks.findIndex(({ block }) => block.hash === hash);
      this.fetched.push(height);
      if (this.fetched.length === this.#awaited.count) this.#awaited.reached();
      if (this.failsOnce.delete(height)) throw new Error('the call failed');
      return await super.block(hash);
    }

    override release(block: NodeBlock): void {
      this.released.push(block.height);
      super.release(block);
    }

    /** Resolves when that many blocks were asked for. */
    calls(count: number): Promise<void> {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#awaited = { count, reached: resolve };
      return promise;
    }
  }

  const requests = consecutive([heightRequest(10, 14), heightRequest(15, 19), heightRequest(30, 32)]);
  const open = () => {
    const recorder = new Recorder(rpc);
    const source = chainSource({ node: recorder, chain: 'regtest', lookahead: 3 });
    const read = async (request: HeightRequest): Promise<string | undefined> => {
      await using document = await source.open(request);
      const items = await Array.fromAsync(document.decode({ frameRawBytes: 64 * 1024 }));
      const end = items.find(({ kind, dataset }) => kind === 'end' && dataset?.key === 'bitcoin_block_transactions');
      return end?.kind === 'end' ? end.facts.rows_hash : undefined;
    };
    return { recorder, read };
  };

  test('are requested while the last ones of this range are read, and each is fetched once', async () => {
    expect(requests.map(({ following }) => following)).toEqual([{ from: 15, to: 19 }, undefined, undefined]);
    const { recorder, read } = open();
    const called = recorder.calls(7);
    await read(requests[0]);
    await called;
    expect(recorder.fetched).toEqual([10, 11, 12, 13, 14, 15, 16]);
    const ahead = await read(requests[1]);
    expect(recorder.fetched.toSorted((a, b) => a - b)).toEqual([10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
    expect(await open().read(requests[1])).toBe(ahead);
  });

  test('are fetched again if that failed', async () => {
    const { recorder, read } = open();
    recorder.failsOnce.add(15);
    const called = recorder.calls(7);
    await read(requests[0]);
    await called;
    expect(await read(requests[1])).toBe(await open().read(requests[1]));
    expect(recorder.fetched.filter((height) => height === 15)).toEqual([15, 15]);
  });

  test('are forgotten when the next range is another one', async () => {
    const { recorder, read } = open();
    const called = recorder.calls(7);
    await read(requests[0]);
    await called;
    await read(requests[2]);
    expect(recorder.fetched).toEqual([10, 11, 12, 13, 14, 15, 16, 30, 31, 32]);
    expect(recorder.released.toSorted((a, b) => a - b)).toEqual([10, 11, 12, 13, 14, 15, 16, 30, 31, 32]);
  });
});

test("fees, amounts and counts are those of the node's own statistics", async () => {
  const keys = ['totalfee', 'total_out', 'subsidy', 'txs', 'ins', 'outs', 'height', 'time', 'mediantime', 'swtxs'];
  const told = (await rpc.batch(
    blocks.map(({ block }) => ({ method: 'getblockstats', params: [block.hash, keys] })),
  )) as Record<string, string>[];
  for (const [height, { block, fees }] of blocks.entries()) {
    const rest = block.transactions.slice(1);
    const count = (of: 'inputs' | 'outputs', transactions = rest) => transactions.reduce((sum, tx) => sum + tx[of], 0);
    expect(told[height]).toMatchObject({
      height: `${height}`,
      totalfee: `${fees}`,
      total_out: `${rest.reduce((sum, { sums }) => sum + sums.output, 0)}`,
      txs: `${block.transactions.length}`,
      ins: `${count('inputs')}`,
      outs: `${count('outputs', [...block.transactions])}`,
      time: `${block.time}`,
      mediantime: `${block.medianTime}`,
    });
    const subsidy = [...expectedEvents(blocks[height], 'regtest')].find(
      ({ dataset }) => dataset === 'bitcoin_block_subsidy_schedule',
    )!;
    expect(subsidy.row[3]).toBe(Number(told[height].subsidy));
    expect(subsidy.row[2]).toBe(Math.floor(height / 150));
  }
  expect(Math.max(...blocks.map(({ fees }) => fees))).toBeGreaterThan(0);
});

describe('shapes', () => {
  const transactionOf = (height: number, index: number) => {
    const event = [...expectedEvents(blocks[height], 'regtest')].filter(
      ({ dataset }) => dataset === 'bitcoin_block_transactions',
    )[index];
    const [inputs, outputs, values, scripts, witness] = event.row.slice(8, 13).map(String);
    return { inputs, outputs, values, scripts, witness };
  };

  test('a coinbase', () => {
    const { inputs, values, scripts, witness } = transactionOf(7, 0);
    expect(inputs).toMatch(/^\[\{"coinbase_hex":"57[0-9a-f]+","input_index":0,"sequence":4294967295\}\]$/);
    expect(values).toBe(
      '{"input_value_btc_sum":0.00000000,"input_values_btc":[],"output_value_btc_sum":50.00000000,"output_values_btc":[50.00000000,0.00000000]}',
    );
    expect(JSON.parse(scripts).input_script_sig).toEqual([]);
    expect(witness).toBe(`[{"input_index":0,"stack":["${'00'.repeat(32)}"]}]`);
  });

  test('every kind of output, and the empty items of a witness', async () => {
    const everyKind = blocks.findIndex(({ block }) => block.transactions.length === 13);
    const spread = transactionOf(everyKind - 1, 1);
    const types = JSON.parse(spread.outputs).map(({ script_type }: { script_type: string }) => script_type);
    expect(types).toEqual([
      'pubkey',
      'pubkeyhash',
      'witness_v0_keyhash',
      'witness_v1_taproot',
      'witness_v1_taproot',
      'multisig',
      'scripthash',
      'witness_v0_scripthash',
      'scripthash',
      'scripthash',
      'anchor',
      'witness_unknown',
      'nulldata',
      'nulldata',
      'nonstandard',
    ]);
    // A multisig takes one item too many, which is empty.
    expect(JSON.parse(transactionOf(everyKind, 8).witness)[0].stack[0]).toBe('');
    expect(transactionOf(everyKind, 12).witness).toBe('[{"input_index":0,"stack":["",""]}]');
    expect(transactionOf(everyKind, 11).witness).toBe('[]');
  });

  test('keys are sorted and nothing is between them, in all five columns of every transaction', () => {
    const sorted = (value: unknown): unknown => {
      if (Array.isArray(value)) return value.map(sorted);
      if (typeof value !== 'object' || value === null) return value;
      return Object.fromEntries(
        Object.entries(value)
          .sort(([a], [b]) => (a < b ? -1 : 1))
          .map(([key, item]) => [key, sorted(item)]),
      );
    };
    for (const [height, { block }] of blocks.entries()) {
      for (const index of block.transactions.keys()) {
        for (const text of Object.values(transactionOf(height, index))) {
          // JSON.parse forgets the zeros of amounts, which are looked at by themselves.
          const amounts = text.match(/\d+\.\d+/g) ?? [];
          for (const amount of amounts) expect(amount).toMatch(/^\d+\.\d{8}$/);
          const bare = (json: string) =>
            json.replace(/(\d+)\.(\d{8})/g, (_, whole, rest) => String(Number(`${whole}.${rest}`)));
          expect(bare(JSON.stringify(sorted(JSON.parse(text))))).toBe(bare(JSON.stringify(JSON.parse(text))));
          expect(JSON.stringify(JSON.parse(text)).length).toBe(
            amounts.reduce((length, amount) => length - amount.length + String(Number(amount)).length, text.length),
          );
        }
      }
    }
  });
});

test('memory that is freed or used again while blocks are read changes no byte of theirs', async () => {
  let coins = await makeCoins(chain, 1200, 150);
  const from = chain.height + 1;
  for (let block = 0; block < 6; block++) coins = await addBusyBlock(chain, coins, 300);
  const to = chain.height;

  type Run = Extract<DecodedItem, { kind: 'events' }>;
  /** The transactions of a range. Of its frames, `held` are in use at a time, as by a publisher that compresses them. */
  const read = async (source: ReturnType<typeof chainSource>, first: number, last: number, held: number) => {
    await using document = await source.open(heightRequest(first, last));
    const pieces: Buffer[] = [];
    const runs: Run[] = [];
    const take = (run: Run) => {
      pieces.push(Buffer.from(run.raw));
      run.release?.();
    };
    let hash = 0n;
    for await (const item of document.decode({ frameRawBytes: 32 * 1024 })) {
      if (item.dataset?.key !== 'bitcoin_block_transactions') continue;
      if (item.kind === 'end') hash = BigInt(item.facts.rows_hash ?? 0);
      else if (runs.push(item) > held) take(runs.shift()!);
    }
    runs.forEach(take);
    return { bytes: Buffer.concat(pieces), hash };
  };

  const sourceOf = async () =>
    chainSource({ node: new BitcoinNode(await rpcOf(node)), chain: 'regtest', lookahead: 3 });
  const together = await read(await sourceOf(), from, to, 4);
  const alone: Awaited<ReturnType<typeof read>>[] = [];
  // A client and a source of its own for each block: none of their memory was used before, and no frame's is used again.
  for (let height = from; height <= to; height++) {
    alone.push(await read(await sourceOf(), height, height, Number.POSITIVE_INFINITY));
  }
  expect(together.bytes.length).toBeGreaterThan(6 * 300 * 400);
  expect(together.bytes.equals(Buffer.concat(alone.map(({ bytes }) => bytes)))).toBe(true);
  expect(together.hash).toBe(alone.reduce((sum, { hash }) => sum + hash, 0n));
});
