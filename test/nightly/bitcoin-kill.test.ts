/**
 * A backfill of blocks that is killed again and again comes to the digests and rows of an undisturbed one; each event leads back
 * to its bytes.
 */
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { addEveryKind } from '../../pipelines/sources/bitcoin/sample/generate.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { BitcoinSystem, CHAIN_KEYS, eachOfSix } from '../support/bitcoin-system.ts';
import type { Json } from '../support/command.ts';
import { System } from '../support/pipeline.ts';
import { addBusyBlock, makeCoins, startChain } from '../support/regtest.ts';
import { startRpcProxy } from '../support/rpc-proxy.ts';
import { startServing } from '../support/serving.ts';

let bitcoin: BitcoinSystem;
let tip: number;
beforeAll(async () => {
  bitcoin = await BitcoinSystem.create();
  const chain = await startChain(bitcoin.rpc);
  await addEveryKind(chain);
  let coins = await makeCoins(chain, 200, 3);
  for (let block = 0; block < 6; block++) coins = await addBusyBlock(chain, coins, 100);
  await chain.addMany(12);
  tip = chain.height;
});
afterAll(() => bitcoin?.[Symbol.asyncDispose]());

/** Partitions proved; none where the catalog is not there yet. */
const provedNow = async (): Promise<number> => {
  const [{ there }] = await bitcoin.rows<Json>(`select to_regclass('partitions') is not null as there`);
  if (!there) return 0;
  return (await bitcoin.rows<Json>(`select count(*)::int as n from partitions where state = 'proved'`))[0].n;
};

/** Of each dataset: the facts of its proved partitions, and digests of the rows that are served, but for when they came in. */
async function stateOf(system: Pick<System, 'rows'>): Promise<Record<string, Json>> {
  const partitions = await system.rows<Json>(
    `select d.key, p.partition_key, p.rows, p.offsets::text, p.recount, p.manifest->>'rows_hash' as rows_hash,
       p.manifest->>'events_sha256' as events_sha256, p.manifest->'document' as document
     from partitions p join datasets d using (dataset_id) where p.state = 'proved' order by 1, 2`,
  );
  const served: Record<string, Json> = {};
  for (const key of CHAIN_KEYS) {
    const [row] = await system.rows<Json>(
      `select (select md5(string_agg(n, e'\\n' order by n)) from (select t::text as n from ${key} t) n) as native,
         (select md5(string_agg(a, e'\\n' order by a)) from (
            select (to_jsonb(t) - 'latest_ingested_at_utc')::text as a from ${ALIGNED_TABLE} t join datasets using (dataset_id) where key = $1) a)
           as aligned`,
      [key],
    );
    served[key] = row;
  }
  return { partitions, served };
}

test('killed at any instant, started again: proved, and the rows and digests of an undisturbed run', async () => {
  // Each kill falls when so many partitions more are proved: in the middle of the work, however fast the machine is. The
  // last block is never answered, so that there is a middle.
  await using proxy = await startRpcProxy(bitcoin.node.url);
  const hash = (await bitcoin.rpc.call('getblockhash', tip)) as string;
  let isAsked = false;
  const silence = Promise.withResolvers<void>();
  const work = () => {
    isAsked = true;
    return silence.promise;
  };
  proxy.spoil(`"getblock","params":["${hash}"`, { kind: 'after', work });
  for (let kill = 0, before = 0; kill < 3; kill++, before = await provedNow()) {
    isAsked = false;
    const running = bitcoin.start(['backfill', 'bitcoin'], { SVC_BITCOIN_RPC_URL: proxy.url });
    let isOver = false;
    void running.done.finally(() => {
      isOver = true;
    });
    while (!isOver && !isAsked && (await provedNow()) <= before + 2 * kill) await delay(5);
    expect(isOver).toBe(false);
    running.child.kill('SIGKILL');
    await running.done;
  }
  silence.resolve();
  const unfinished = await provedNow();
  const { exit, json, stderr } = await bitcoin.run(['backfill', 'bitcoin']);
  expect({ exit, failed: json?.failed, quarantined: json?.quarantined, stderr }).toMatchObject({
    exit: 0,
    failed: 0,
    quarantined: 0,
  });
  expect(unfinished).toBeLessThan(await provedNow());
  expect(await bitcoin.proved()).toEqual(eachOfSix(`{[0,${tip + 1})}`));
  for (const key of CHAIN_KEYS) {
    const height = key === 'bitcoin_block_headers' ? 'height' : 'block_height';
    const identity = key === 'bitcoin_block_transactions' ? `${height}, transaction_index` : height;
    const [{ heights, rows, once }] = await bitcoin.rows<Json>(
      `select count(distinct ${height})::int as heights, count(*)::int as rows, count(distinct (${identity}))::int as once from ${key}`,
    );
    expect({ heights, rows }, key).toEqual({ heights: tip + 1, rows: once });
  }
  for (const key of ['bitcoin_block_transactions', 'bitcoin_block_fee_totals']) {
    expect((await bitcoin.run(['verify', key, '--deep'])).json, key).toMatchObject({ ok: true });
  }
  expect((await bitcoin.run(['replay', 'bitcoin_block_transactions'])).json).toMatchObject({ ok: true });
  await using undisturbed = await System.create();
  expect((await undisturbed.run(['backfill', 'bitcoin'], bitcoin.settings)).exit).toBe(0);
  const [found, expected] = [await stateOf(bitcoin), await stateOf(undisturbed)];
  expect(found).toEqual(expected);
});

test('an event leads back to the bytes of the block', async () => {
  const hash = (await bitcoin.rpc.call('getblockhash', 7)) as string;
  const header = (await bitcoin.rpc.call('getblockheader', hash, false)) as string;
  await using serving = await startServing({
    databaseUrl: bitcoin.system.env.databaseUrl,
    settings: { SVC_NATS_READER_URL: bitcoin.system.env.natsReaderUrl },
  });
  const { status, json } = (await serving.send({ path: '/v1/lineage/bitcoin_block_headers/7', method: 'GET' })) as Json;
  expect(status).toBe(200);
  expect(JSON.stringify(json)).toContain(createHash('sha256').update(Buffer.from(header, 'hex')).digest('hex'));
  const historical = (await serving.send({
    path: '/v1/historical/bitcoin/block_headers',
    method: 'POST',
    body: JSON.stringify({ mode: 'aligned_1s', n_latest_rows: 2, fields: ['latest_height', 'records_in_bucket'] }),
  })) as Json;
  expect(historical.json.rows).toEqual([
    { latest_height: tip - 1, records_in_bucket: 1 },
    { latest_height: tip, records_in_bucket: 1 },
  ]);
});
