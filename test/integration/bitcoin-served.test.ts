/**
 * A regtest chain of more than 300 blocks with every kind of spend, and a mempool, through the real command: what is served
 * is what the node's own statistics say, and the same whichever way it is asked for.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  coinsOf,
  OPEN_OUTPUT,
  OPEN_WITNESS,
  pay,
  type SampleChain,
} from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { addEveryKind } from '../../pipelines/sources/bitcoin/sample/generate.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { BitcoinSystem, CHAIN_KEYS, eachOfSix } from '../support/bitcoin-system.ts';
import type { Json } from '../support/command.ts';
import { startChain } from '../support/regtest.ts';
import { type Serving, startServing } from '../support/serving.ts';

const TIP = 305;
const MEMPOOL = 'bitcoin_mempool_state';

let bitcoin: BitcoinSystem;
let chain: SampleChain;
let serving: Serving;
beforeAll(async () => {
  bitcoin = await BitcoinSystem.create();
  chain = await startChain(bitcoin.rpc);
  await addEveryKind(chain);
  await chain.addMany(TIP - chain.height);
  // Two that wait, the one spending the other.
  const parent = pay([chain.coinbases[9]], [{ sats: chain.coinbases[9].sats - 5_000, script: OPEN_OUTPUT }], {
    witness: OPEN_WITNESS,
  });
  const [coin] = coinsOf(parent.tx);
  const child = pay([coin], [{ sats: coin.sats - 900, script: OPEN_OUTPUT }], {
    witness: OPEN_WITNESS,
    sequence: 0xffffffff,
  });
  for (const { tx } of [parent, child]) await bitcoin.rpc.call('sendrawtransaction', tx.raw.toString('hex'));
  expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
  expect((await bitcoin.run(['backfill', MEMPOOL])).exit).toBe(0);
  serving = await startServing({ databaseUrl: bitcoin.system.env.databaseUrl });
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await bitcoin?.[Symbol.asyncDispose]();
});

async function served(dataset: string, mode: Mode = 'native'): Promise<Json[]> {
  const { status, json } = (await serving.query({ sources: [dataset], mode })) as Json;
  expect(status).toBe(200);
  return json.rows;
}

/** Satoshis of an amount's digits. */
const sats = (digits: string): bigint => BigInt(digits.replace('.', ''));
const sum = (amounts: readonly bigint[]): bigint => amounts.reduce((total, amount) => total + amount, 0n);
const amountOf = (values: string, name: string): bigint =>
  sats(new RegExp(`"${name}":(\\d+\\.\\d{8})`).exec(values)![1]);

test("every block as it is served is what the node's own statistics say", async () => {
  expect(await bitcoin.proved()).toEqual(eachOfSix(`{[0,${TIP + 1})}`));
  const byHeight = async (dataset: string) =>
    Map.groupBy(await served(dataset), (row) => row.block_height ?? row.height);
  const [headers, transactions, fees, subsidies, , supplies] = await Promise.all(CHAIN_KEYS.map(byHeight));
  const statistics = ['blockhash', 'height', 'ins', 'mediantime', 'outs', 'subsidy', 'swtxs', 'time', 'total_out'];
  const told = (await bitcoin.rpc.batch(
    Array.from({ length: TIP + 1 }, (_, height) => ({
      method: 'getblockstats',
      params: [height, [...statistics, 'totalfee', 'txs']],
    })),
  )) as Json[];
  let supply = 0n;
  for (const [height, { mediantime: _, ...block }] of told.entries()) {
    const all = transactions.get(height)!;
    const paying = all.filter(({ coinbase }) => coinbase === 0);
    const [header] = headers.get(height)!;
    const list = (row: Json, column: string) => JSON.parse(row[column]) as Json[];
    const fee = sum(
      paying.map(({ values }) => amountOf(values, 'input_value_btc_sum') - amountOf(values, 'output_value_btc_sum')),
    );
    expect({
      blockhash: header.block_hash,
      height: `${header.height}`,
      ins: `${paying.reduce((count, row) => count + list(row, 'inputs').length, 0)}`,
      outs: `${all.reduce((count, row) => count + list(row, 'outputs').length, 0)}`,
      subsidy: `${subsidies.get(height)![0].subsidy_sats}`,
      swtxs: `${paying.filter(({ witness_data }) => witness_data !== '[]').length}`,
      time: `${header.timestamp / 1000}`,
      total_out: `${sum(paying.map(({ values }) => amountOf(values, 'output_value_btc_sum')))}`,
      totalfee: `${fee}`,
      txs: `${all.length}`,
    }).toEqual(block);
    expect(fees.get(height)![0].fee_total_btc).toBe(Number(fee) / 1e8);
    expect(all.every(({ block_hash }) => block_hash === header.block_hash)).toBe(true);
    supply += BigInt(block.subsidy);
    expect(BigInt(supplies.get(height)![0].circulating_supply_sats)).toBe(supply);
  }
  const kinds = [...transactions.values()].flat().flatMap(({ outputs }) => JSON.parse(outputs) as Json[]);
  expect(new Set(kinds.map(({ script_type }) => script_type))).toEqual(
    new Set(
      `pubkey pubkeyhash scripthash multisig nulldata witness_v0_keyhash witness_v0_scripthash witness_v1_taproot
       anchor witness_unknown nonstandard`.split(/\s+/),
    ),
  );
});

test("sums of aligned seconds are those of the node's statistics over all blocks", async () => {
  const rows = await served('bitcoin_block_transactions', 'aligned_1s');
  const total = (field: string) => rows.reduce((all, row) => all + row[field], 0);
  const told = (await bitcoin.rpc.batch(
    Array.from({ length: TIP + 1 }, (_, height) => ({ method: 'getblockstats', params: [height, ['txs', 'outs']] })),
  )) as Json[];
  expect(total('tx_count')).toBe(told.reduce((all, { txs }) => all + Number(txs), 0));
  expect(total('coinbase_tx_count')).toBe(TIP + 1);
});

test('what waits is served as the node tells it', async () => {
  const told = (await bitcoin.rpc.call('getrawmempool', true)) as Json;
  const rows = await served(MEMPOOL);
  expect(rows.map(({ txid }) => txid).toSorted()).toEqual(Object.keys(told).toSorted());
  for (const { txid, fee_rate_sat_vb, vsize, first_seen_timestamp, rbf_flag } of rows) {
    const { fees, vsize: size, time, ...entry } = told[txid];
    expect([vsize, first_seen_timestamp, rbf_flag]).toEqual([
      Number(size),
      Number(time),
      Number(entry['bip125-replaceable']),
    ]);
    expect(fee_rate_sat_vb).toBe(Number(sats(fees.base)) / Number(size));
  }
});
