/** Blocks in the columnstore of the server that TIDEMARK_TEST_DATABASE_URL names: many partitions share each chunk. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { SampleChain } from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { BitcoinSystem, CHAIN_KEYS } from '../support/bitcoin-system.ts';
import type { Json } from '../support/command.ts';
import { compactNow, mixedChunks } from '../support/compaction.ts';
import { givenOtherDatabase } from '../support/given.ts';
import { startChain } from '../support/regtest.ts';
import { type Serving, startServing } from '../support/serving.ts';

const TIP = 160;
const TRANSACTIONS = 'bitcoin_block_transactions';

givenOtherDatabase.describe('blocks in the columnstore', () => {
  let bitcoin: BitcoinSystem;
  let chain: SampleChain;
  let serving: Serving;
  beforeAll(async () => {
    bitcoin = await BitcoinSystem.create();
    await bitcoin.system.client.query(`do $$ begin execute format(
        'alter database %I set timescaledb.max_tuples_decompressed_per_dml_transaction = 10', current_database()); end $$`);
    chain = await startChain(bitcoin.rpc);
    // More than a day of blocks, so that several chunks hold transactions; the genesis block lies in 2011.
    await chain.addMany(TIP - chain.height);
    serving = await startServing({ databaseUrl: bitcoin.system.env.databaseUrl });
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await bitcoin?.[Symbol.asyncDispose]();
  });

  const run = async (...args: string[]) => await bitcoin.run(args);
  const done = async (...args: string[]): Promise<Json> => {
    const { exit, json } = await run(...args);
    expect(exit, JSON.stringify(json)).toBe(0);
    return json;
  };
  /** @returns the tables of which it compacted chunks. */
  const compact = async (): Promise<string[]> => {
    const { units } = await compactNow(bitcoin.system.env.databaseUrl);
    expect(new Set(units.map(({ state }: Json) => state))).toEqual(new Set(['compacted']));
    return [...new Set<string>(units.map(({ table }: Json) => table))].sort();
  };
  const compacted = async (table: string): Promise<number> =>
    (
      await bitcoin.rows(
        `select 1 from timescaledb_information.chunks where is_compressed and hypertable_name = '${table}'`,
      )
    ).length;
  const proved = async () => {
    await done('verify', 'all', '--deep');
    const { units } = await done('replay', 'all', '--verify-only');
    expect(new Set(units.map(({ state }: Json) => state))).toEqual(new Set(['identical']));
  };
  const digests = () =>
    bitcoin.rows(`select dataset_id, partition_key, revision, manifest->>'rows_hash' as rows_hash, aligned_hash, recount
      from partitions where state = 'proved' order by 1, 2`);
  const reads = async (): Promise<string[]> => {
    const texts: string[] = [];
    for (const key of CHAIN_KEYS) {
      for (const mode of ['native', 'aligned_1s'] as const) {
        const { status, json } = await serving.query({ sources: [key], mode, n_rows: 100 });
        expect(status).toBe(200);
        texts.push(JSON.stringify(json.rows));
      }
    }
    return texts;
  };

  test('answer as before, take later blocks of their days, and lose what is ingested again', async () => {
    expect((await bitcoin.backfill(0, TIP - 20)).exit).toBe(0);
    const [rows, before] = [await reads(), await digests()];
    expect(await compact()).toEqual([...CHAIN_KEYS, ALIGNED_TABLE].sort());
    expect(await compacted(TRANSACTIONS)).toBeGreaterThan(1);
    expect(await reads()).toEqual(rows);
    await proved();
    expect(await digests()).toEqual(before);

    // Into the chunk of the last day, beside its columns.
    expect((await bitcoin.backfill(TIP - 19, TIP)).exit).toBe(0);
    await proved();
    const later = await reads();
    expect(later).not.toEqual(rows);
    await compact();
    expect(await reads()).toEqual(later);
    await proved();

    const mixed = () => mixedChunks((sql) => bitcoin.rows(sql), TRANSACTIONS);
    const heights = ['--from-height', '20', '--to-height', '39'];
    await bitcoin.rows(`update ${TRANSACTIONS} set txid = txid || '0' where block_height = 30`);
    const { exit, json } = await run('verify', TRANSACTIONS);
    const quarantined = json.units.filter(({ state }: Json) => state === 'quarantined');
    expect([exit, quarantined.map(({ partition }: Json) => partition)]).toEqual([1, ['20-39']]);
    await done('reingest', 'bitcoin', ...heights, '--reason', 'a trial');
    // It lies in one chunk of a day.
    expect((await mixed()).length).toBe(1);
    expect(await reads()).toEqual(later);
    await proved();
    expect(await compact()).toContain(TRANSACTIONS);
    expect(await mixed()).toEqual([]);
    expect(await reads()).toEqual(later);
  });
});
