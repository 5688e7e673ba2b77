/** What another chain has on the same heights is no reorganisation: a sample gives way, real blocks stay. */
import { expect, test } from 'vitest';
import { BitcoinSystem, eachOfSix } from '../support/bitcoin-system.ts';
import { startChain } from '../support/regtest.ts';
import { eventually } from '../support/serving.ts';

const SAMPLE_TIP = 10;
const TIP = 13;

/** As a sample leaves it: proved rows of another chain, marked synthetic. */
async function withSample(): Promise<BitcoinSystem> {
  const bitcoin = await BitcoinSystem.create();
  const chain = await startChain(bitcoin.rpc);
  await chain.addMany(SAMPLE_TIP);
  expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
  await bitcoin.rows('update partitions set synthetic = true');
  await bitcoin.rows(`update coverage set synthetic = true where proved <> '{}'`);
  await chain.fork(SAMPLE_TIP - 2);
  while (chain.height < TIP) await chain.add([], { extraNonce: 1 });
  return bitcoin;
}

async function expectRealAlone(bitcoin: BitcoinSystem): Promise<void> {
  expect(await bitcoin.proved()).toEqual(eachOfSix(`{[0,${TIP + 1})}`));
  expect(await bitcoin.rows(`select * from partitions where synthetic or state <> 'proved'`)).toEqual([]);
  const kinds = `select distinct kind from ledger where kind in ('quarantined', 'sample_retired')`;
  expect(await bitcoin.rows(kinds)).toEqual([{ kind: 'sample_retired' }]);
  expect(await bitcoin.rows('select count(*)::int as n from bitcoin_block_headers')).toEqual([{ n: TIP + 1 }]);
}

test('the first real backfill takes a sample out, and asks for nothing', async () => {
  await using bitcoin = await withSample();
  const { exit, json } = await bitcoin.backfill(0, TIP);
  expect({ exit, quarantined: json.quarantined }).toEqual({ exit: 0, quarantined: 0 });
  await expectRealAlone(bitcoin);
});

test('a sample that was quarantined holds nothing up', async () => {
  await using bitcoin = await withSample();
  await bitcoin.rows(`update partitions set state = 'quarantined', reason = 'found altered'`);
  const { exit, json } = await bitcoin.backfill(0, TIP);
  expect({ exit, quarantined: json.quarantined }).toEqual({ exit: 0, quarantined: 0 });
  await expectRealAlone(bitcoin);
});

test('follow begins with the first real block, not above the sample', async () => {
  await using bitcoin = await withSample();
  const running = bitcoin.start(['follow', 'bitcoin'], { SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '0' });
  const isThere = async () => Object.values(await bitcoin.proved()).every((proved) => proved === `{[0,${TIP + 1})}`);
  await eventually(isThere, 'the real blocks are proved');
  running.child.kill('SIGTERM');
  await running.done;
  await expectRealAlone(bitcoin);
});

test('settings that name a node of another chain quarantine nothing', async () => {
  await using bitcoin = await BitcoinSystem.create();
  const chain = await startChain(bitcoin.rpc);
  await chain.addMany(5);
  const snapshot = ['backfill', 'bitcoin_mempool_state'];
  const mismatch = { exit: 1, code: 'NODE_UNSUITABLE' };
  const run = async (command: string[]) => {
    const { exit, json } = await bitcoin.run(command);
    return { exit, code: json.error?.code };
  };
  expect((await bitcoin.run(snapshot)).exit).toBe(0);
  const renamed = `update partitions set manifest = jsonb_set(manifest::jsonb, '{document,name}', to_jsonb($1::text))`;
  await bitcoin.rows(renamed, ['main-mempool-1.json.zst']);
  expect(await run(snapshot)).toEqual(mismatch);
  expect(await run(['backfill', 'bitcoin'])).toEqual(mismatch);
  await bitcoin.rows(renamed, ['regtest-mempool-1.json.zst']);
  expect((await bitcoin.backfill(0, 5)).exit).toBe(0);
  await bitcoin.rows(
    `update partitions set manifest = jsonb_set(manifest::jsonb, '{document,name}',
       to_jsonb('main-blocks-' || partition_key)) where state = 'proved'`,
  );
  for (const command of [
    ['backfill', 'bitcoin'],
    ['follow', 'bitcoin'],
    ['reingest', 'bitcoin', '--from-height', '5', '--to-height', '5', '--reason', 'x'],
  ]) {
    expect(await run(command)).toEqual(mismatch);
  }
  expect(await run(snapshot)).toEqual(mismatch);
  expect(await bitcoin.proved()).toEqual(eachOfSix('{[0,6)}'));
  expect(await bitcoin.rows(`select * from partitions where state <> 'proved'`)).toEqual([]);
});
