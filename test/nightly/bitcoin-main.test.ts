/** The first 256 blocks of the real chain, from a real node, through the real command to rows that are served. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { BitcoinSystem, CHAIN_KEYS, eachOfSix, submitMainnetBlocks } from '../support/bitcoin-system.ts';
import type { Json } from '../support/command.ts';
import { givenData } from '../support/given.ts';
import { startServing } from '../support/serving.ts';

const KNOWN_ANSWERS = '../shared/data/bitcoin/known-answers-heights-0-100.json';
const DERIVED = [
  'bitcoin_block_fee_totals',
  'bitcoin_block_subsidy_schedule',
  'bitcoin_network_hashrate_estimate',
  'bitcoin_circulating_supply',
];

givenData('bitcoin/mainnet-blocks-1-256.bz2').describe('chain main', () => {
  let bitcoin: BitcoinSystem;
  beforeAll(async () => {
    bitcoin = await BitcoinSystem.create({ chain: 'main', configuration: ['maxtipage=99999999999'] });
    await submitMainnetBlocks(bitcoin.rpc);
  });
  afterAll(() => bitcoin?.[Symbol.asyncDispose]());

  test('with six confirmations 250 heights are proved, the others are said to be unsettled', async () => {
    const { exit, json, stderr } = await bitcoin.backfill(0, 255);
    expect({ exit, failed: json?.failed, stderr }).toMatchObject({ exit: 1, failed: 6 });
    const failed = json.units.filter(({ state }: Json) => state === 'failed');
    expect(failed.map(({ partition, code }: Json) => [partition, code])).toEqual(
      CHAIN_KEYS.map(() => ['250-255', 'NODE_HEIGHT_BEYOND_TIP']),
    );
    expect(await bitcoin.proved()).toEqual(eachOfSix('{[0,250)}'));
    // An offline node never leaves its initial download; a note says so, and its blocks are ingested.
    expect(stderr).toContain('still downloading blocks');
  });

  test('with none all 256 are; what was proved is not fetched again', async () => {
    const { exit, json } = await bitcoin.backfill(0, 255, { SVC_BITCOIN_CONFIRMATION_DEPTH: '0' });
    expect(exit).toBe(0);
    expect(json).toMatchObject({ failed: 0, quarantined: 0, refused: 0 });
    expect(json.proved).toBe(6 * 6);
    expect(json.unchanged).toBeGreaterThan(6);
    expect(await bitcoin.proved()).toEqual(eachOfSix('{[0,256)}'));
  });

  test('counts and sums of each day of heights 0 to 100 are the known ones', async () => {
    const answers = JSON.parse(readFileSync(KNOWN_ANSWERS, 'utf8')).run_1_fingerprints;
    await using serving = await startServing({ databaseUrl: bitcoin.system.env.databaseUrl });
    const ask = async (dataset: string, mode: string, day: string, filters: Json[]): Promise<Json[]> => {
      const end = new Date(Date.parse(day) + 86_400_000).toISOString();
      const body = { sources: [dataset], mode, time_range: [`${day}T00:00:00Z`, end], filters };
      const { status, json } = (await serving.query(body)) as Json;
      return status === 404 ? [] : json.rows;
    };
    const sum = (rows: Json[], field: string) => rows.reduce((total, row) => total + row[field], 0);
    // The relative tolerance is that of adding doubles in another order.
    const expectClose = (found: number, expected: number) =>
      expect(Math.abs(found - expected)).toBeLessThanOrEqual(1e-12 * Math.abs(expected));
    for (const [day, native] of Object.entries<Json>(answers.native)) {
      const upTo100 = [{ field: 'block_height', op: 'lte', value: 100 }];
      const [fees, subsidies, rates, supplies] = await Promise.all(
        DERIVED.map((key) => ask(key, 'native', day, upTo100)),
      );
      expect([fees, subsidies, rates, supplies].reduce((count, rows) => count + rows.length, 0)).toBe(native.row_count);
      expectClose(sum(fees, 'fee_total_btc'), native.fee_total_btc_sum);
      expectClose(sum(subsidies, 'subsidy_btc'), native.subsidy_btc_sum);
      expectClose(sum(rates, 'hashrate_hs'), native.hashrate_hs_sum);
      expectClose(sum(supplies, 'circulating_supply_btc'), native.circulating_supply_btc_sum);
      if (native.row_count === 0) continue;
      const times = [fees, subsidies, rates, supplies].flat().map((row) => row.block_timestamp);
      expect(Math.min(...times) - Date.parse(day)).toBe(native.first_event_offset_ms);
      expect(Date.parse(day) + 86_400_000 - Math.max(...times)).toBe(native.last_event_offset_ms);
    }
    const days = Object.keys(answers.native);
    expect([...days].sort()).toEqual(days);
    const blocks = days.map((day) => answers.native[day].row_count / 4);
    expect(blocks.slice(-3)).toEqual([14, 61, 25]);
  });

  test('aligned values of each day are those of its blocks', async () => {
    const answers = JSON.parse(readFileSync(KNOWN_ANSWERS, 'utf8')).run_1_fingerprints;
    for (const [day, { row_count, metric_value_float_sum }] of Object.entries<Json>(answers.aligned_1s)) {
      const [{ rows, total }] = await bitcoin.rows<Json>(
        `select count(*)::int as rows, coalesce(sum(metric_value_float), 0) as total
         from canonical_aligned_1s_aggregates a join datasets d using (dataset_id)
         where d.key = any ($1) and aligned_at_utc >= $2::date and aligned_at_utc < $2::date + 1
           and (a.provenance_json::jsonb ->> 'source_offset_or_equivalent')::int <= 100`,
        [DERIVED, day],
      );
      expect(rows, day).toBe(row_count);
      expect(Math.abs(total - metric_value_float_sum)).toBeLessThanOrEqual(1e-12 * metric_value_float_sum);
    }
  });

  test('the first payment of block 170 can be read', async () => {
    await using serving = await startServing({ databaseUrl: bitcoin.system.env.databaseUrl });
    const { json } = (await serving.query({
      sources: ['bitcoin_block_transactions'],
      filters: [
        { field: 'block_height', op: 'eq', value: 170 },
        { field: 'coinbase', op: 'eq', value: 0 },
      ],
    })) as Json;
    expect(json.rows).toHaveLength(1);
    const [payment] = json.rows;
    expect(payment).toMatchObject({
      txid: 'f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16',
      block_hash: '00000000d1145790a8694403d4063f323d499e655c83426834d4ce2f8dd4a2ee',
      transaction_index: 1,
      datetime: '2009-01-12T03:30:25.000Z',
      source_chain: 'main',
      values:
        '{"input_value_btc_sum":50.00000000,"input_values_btc":[50.00000000],"output_value_btc_sum":50.00000000,"output_values_btc":[10.00000000,40.00000000]}',
    });
    expect(payment.inputs).toContain(
      '"prev_txid":"0437cd7f8525ceed2324359c2d0ba26006d92d856a9c20fa0241106ee5a597c9","prev_vout":0,"prevout_value_btc":50.00000000',
    );
    expect(JSON.parse(payment.outputs).map(({ script_type }: Json) => script_type)).toEqual(['pubkey', 'pubkey']);
    expect(JSON.parse(payment.scripts).input_script_sig[0].asm).toMatch(/^304[0-9a-f]+\[ALL\]$/);
  });

  test("fees and amounts of every block are those of the node's own statistics", async () => {
    const served = await bitcoin.rows<Json>(
      `select f.block_height::int as height, f.block_hash, f.fee_total_sats::text as fees, s.subsidy_sats::text as subsidy,
         (select sum(t.output_value_sats)::text from bitcoin_block_transactions t
          where t.block_height = f.block_height and not t.coinbase) as paid,
         (select count(*)::text from bitcoin_block_transactions t where t.block_height = f.block_height) as transactions
       from bitcoin_block_fee_totals f join bitcoin_block_subsidy_schedule s using (block_height) order by 1`,
    );
    expect(served).toHaveLength(256);
    const told = (await bitcoin.rpc.batch(
      served.map(({ block_hash }) => ({
        method: 'getblockstats',
        params: [block_hash, ['totalfee', 'subsidy', 'total_out', 'txs', 'height']],
      })),
    )) as Json[];
    for (const [index, { height, fees, subsidy, paid, transactions }] of served.entries()) {
      expect(told[index]).toEqual({
        height: `${height}`,
        totalfee: fees,
        subsidy,
        total_out: paid ?? '0',
        txs: transactions,
      });
    }
  });

  test('genesis is like any other block, and its interval is that to the next one', async () => {
    await using serving = await startServing({ databaseUrl: bitcoin.system.env.databaseUrl });
    const ask = async (dataset: string, field: string) => {
      const { json } = (await serving.query({
        sources: [dataset],
        filters: [{ field, op: 'eq', value: 0 }],
      })) as Json;
      return json.rows;
    };
    expect(await ask('bitcoin_block_headers', 'height')).toEqual([
      expect.objectContaining({
        block_hash: '000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f',
        prev_hash: '',
        version: 1,
        nonce: 2083236893,
        difficulty: 1,
        timestamp: 1231006505000,
      }),
    ]);
    expect(await ask('bitcoin_network_hashrate_estimate', 'block_height')).toEqual([
      expect.objectContaining({ observed_interval_seconds: 463160, hashrate_hs: 2 ** 32 / 463160 }),
    ]);
    const [{ inputs }] = await ask('bitcoin_block_transactions', 'block_height');
    expect(Buffer.from(JSON.parse(inputs)[0].coinbase_hex, 'hex').toString('latin1')).toContain(
      'The Times 03/Jan/2009 Chancellor on brink of second bailout for banks',
    );
  });

  test('every second, replayed and verified, is as it was', async () => {
    for (const key of ['bitcoin_block_headers', 'bitcoin_block_transactions', 'bitcoin_network_hashrate_estimate']) {
      const replay = await bitcoin.run(['replay', key]);
      expect(replay.json, key).toMatchObject({ ok: true });
      const verify = await bitcoin.run(['verify', key, '--deep']);
      expect(verify.json, key).toMatchObject({ ok: true });
    }
  });
});
