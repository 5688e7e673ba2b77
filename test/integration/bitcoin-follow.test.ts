/** A node's chain through the real command: followed, reorganised, asked for twice at once, gone and back. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SampleChain } from '../../pipelines/sources/bitcoin/sample/chain.ts';
import { addEveryKind } from '../../pipelines/sources/bitcoin/sample/generate.ts';
import { hashesDigest } from '../../pipelines/sources/bitcoin/source.ts';
import { connect } from '../../shared/db/connect.ts';
import { createNode } from '../support/bitcoin.ts';
import { BitcoinSystem, CHAIN_KEYS, eachOfSix } from '../support/bitcoin-system.ts';
import type { Json } from '../support/command.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { addHugeTransaction, makeCoins, startChain } from '../support/regtest.ts';
import { startRpcProxy } from '../support/rpc-proxy.ts';
import { limitsEnv } from '../support/small-limits.ts';

let bitcoin: BitcoinSystem;
let chain: SampleChain;
beforeAll(async () => {
  bitcoin = await BitcoinSystem.create();
  chain = await startChain(bitcoin.rpc);
  await addEveryKind(chain);
  await addHugeTransaction(chain, (await makeCoins(chain, 5, 3))[0]);
  await chain.addMany(14);
});
afterAll(() => bitcoin?.[Symbol.asyncDispose]());

const ranges = (tip: number, ...lost: [number, number][]) =>
  `{${[[0, lost[0]?.[0] ?? tip + 1], ...lost.map(([, to], index) => [to, lost[index + 1]?.[0] ?? tip + 1])]
    .filter(([from, to]) => from < to)
    .map(([from, to]) => `[${from},${to})`)
    .join(',')}}`;

describe('a node that cannot be used', () => {
  // One after the other: each has the lease while it asks the node, and others do not wait long for it.
  test.each<[string, Record<string, string>, string]>([
    ['down', { SVC_BITCOIN_RPC_URL: 'http://127.0.0.1:9', ...limitsEnv({ sourceAttempts: 1 }) }, 'NODE_UNREACHABLE'],
    ['another password', { SVC_BITCOIN_RPC_PASSWORD: 'wrong' }, 'NODE_UNSUITABLE'],
    ['another chain', { SVC_BITCOIN_NETWORK: 'main' }, 'NODE_UNSUITABLE'],
    ['below what is ever ingested', { SVC_BITCOIN_HEADERS_START_HEIGHT: '5' }, 'USAGE'],
    ['above what is ever ingested', { SVC_BITCOIN_HEADERS_END_HEIGHT: '5' }, 'USAGE'],
  ])('%s', async (_, env, code) => {
    const { exit, json, stderr, stdout } = await bitcoin.backfill(0, 10, env);
    expect({ exit, code: json.error?.code }).toEqual({ exit: code === 'USAGE' ? 2 : 1, code });
    for (const text of [stdout, stderr]) expect(text).not.toContain(bitcoin.node.password);
    expect(await bitcoin.rows('select * from partitions')).toEqual([]);
  });

  test('pruned', async () => {
    await using pruned = await createNode({ configuration: ['prune=1', 'fastprune=1'] });
    const { json } = await bitcoin.backfill(0, 10, {
      SVC_BITCOIN_RPC_URL: pruned.url,
      SVC_BITCOIN_RPC_PASSWORD: pruned.password,
    });
    expect(json.error.code).toBe('NODE_UNSUITABLE');
  });

  test.each<[string, Record<string, string>, string]>([
    ['--from-height', { SVC_BITCOIN_HEADERS_END_HEIGHT: '10' }, 'Height 20 is above SVC_BITCOIN_HEADERS_END_HEIGHT'],
    ['--to-height', { SVC_BITCOIN_HEADERS_START_HEIGHT: '30' }, 'Height 20 is below SVC_BITCOIN_HEADERS_START_HEIGHT'],
  ])('a %s beyond a bound was an error of the database', async (option, env, message) => {
    const { exit, json } = await bitcoin.run(['backfill', 'bitcoin', option, '20'], env);
    expect({ exit, error: json.error }).toMatchObject({ exit: 2, error: { code: 'USAGE' } });
    expect(json.error.message).toContain(message);
  });

  test('a first height above the tip was a backfill of nothing that went well', async () => {
    const { exit, json } = await bitcoin.run(['backfill', 'bitcoin', '--from-height', '900000']);
    expect({ exit, ok: json.ok, failed: json.failed }).toEqual({ exit: 1, ok: false, failed: 6 });
    expect(json.units[0]).toMatchObject({ partition: '900000', code: 'NODE_HEIGHT_BEYOND_TIP' });
  });

  test('none named', async () => {
    const { exit, json } = await bitcoin.system.run(['backfill', 'bitcoin']);
    expect({ exit, code: json.error.code }).toEqual({ exit: 2, code: 'CONFIGURATION_INVALID' });
    expect(json.error.message).toContain('SVC_BITCOIN_RPC_URL');
  });
});

test('overlapping ranges asked for twice at once: one command names the other, and nothing is doubled', async () => {
  const both = await Promise.all([bitcoin.backfill(0, chain.height), bitcoin.backfill(50, chain.height)]);
  // Where the first ends before the second begins, neither meets the other.
  const codes = both.map(({ exit, json }) => (exit === 0 ? 'proved' : json.error?.code)).sort();
  expect(['WORK_HELD', 'proved']).toContain(codes[0]);
  expect(codes[1]).toBe('proved');
  if (both[0].exit !== 0) expect((await bitcoin.backfill(0, chain.height)).exit).toBe(0);
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
  const [{ blocks, heights }] = await bitcoin.rows<Json>(
    'select count(*)::int as blocks, count(distinct height)::int as heights from bitcoin_block_headers',
  );
  expect([blocks, heights]).toEqual([chain.height + 1, chain.height + 1]);
});

test('the chain that was proved first is pinned for all seven datasets: another is refused, and it need not be given', async () => {
  expect(await bitcoin.rows('select setting, value from pinned_settings')).toEqual([
    { setting: 'SVC_BITCOIN_NETWORK', value: 'regtest' },
  ]);
  for (const feed of ['bitcoin', 'bitcoin_mempool_state']) {
    const { exit, json } = await bitcoin.run(['backfill', feed], { SVC_BITCOIN_NETWORK: 'main' });
    expect([feed, exit, json.error?.code]).toEqual([feed, 2, 'CONFIGURATION_INVALID']);
  }
  // A blank setting is none; the default is main.
  const { exit, json } = await bitcoin.backfill(0, 10, { SVC_BITCOIN_NETWORK: '' });
  expect([exit, json.unchanged]).toEqual([0, 6]);
});

test('a transaction of nearly four megabytes is one row, from events in parts', async () => {
  const [{ height, bytes, index }] = await bitcoin.rows<Json>(
    `select block_height::int as height, transaction_index::int as index, length(witness_data) as bytes
     from bitcoin_block_transactions order by length(witness_data) desc limit 1`,
  );
  expect(bytes).toBeGreaterThan(7_900_000);
  const [{ parts }] = await bitcoin.rows<Json>(
    `select count(*)::int as parts from frames f join datasets d using (dataset_id)
     where d.key = 'bitcoin_block_transactions' and f.first_offset like $1 and f.rows = 0`,
    [`${height}:${index}:%`],
  );
  expect(parts).toBeGreaterThanOrEqual(4);
});

/** Another branch of `blocks` blocks from `back` below the tip, which the node follows. */
let branches = 0;
async function reorganise(back: number, blocks: number): Promise<void> {
  await chain.fork(back);
  branches++;
  for (let block = 0; block < blocks; block++) await chain.add([], { extraNonce: branches });
}

/** Servers start and stop meanwhile, on a machine that may be busy. */
async function eventually(condition: () => Promise<boolean>, what: string): Promise<void> {
  for (const deadline = Date.now() + PATIENCE_MS; !(await condition()); ) {
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE_MS / 1000} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

describe('a reorganisation of three blocks', () => {
  test('below the confirmation depth touches nothing that is proved', async () => {
    const depth = { SVC_BITCOIN_CONFIRMATION_DEPTH: '4' };
    await chain.addMany(4);
    const settled = chain.height - 4;
    expect((await bitcoin.run(['backfill', 'bitcoin'], depth)).exit).toBe(0);
    expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(settled)));
    await reorganise(3, 4);
    const { exit } = await bitcoin.run(['backfill', 'bitcoin'], depth);
    expect(exit).toBe(0);
    expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height - 4)));
    expect(await bitcoin.rows(`select * from partitions where state <> 'proved'`)).toEqual([]);
  });

  test('beyond it quarantines what it touched in all six, goes on above, and a reingest mends it', async () => {
    expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
    const before = chain.height;
    await reorganise(3, 5);
    const { exit, json } = await bitcoin.run(['backfill', 'bitcoin']);
    expect(exit).toBe(1);
    expect(json.quarantined).toBe(3 * 6);
    const lost: [number, number] = [before - 2, before + 1];
    expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height, lost)));
    const seconds = `select count(*)::int as n from canonical_aligned_1s_aggregates a join datasets d using (dataset_id)
      where d.key = 'bitcoin_block_headers' and a.latest_height >= $1 and a.latest_height < $2`;
    expect(await bitcoin.rows(seconds, lost)).toEqual([{ n: 0 }]);
    const ledger = await bitcoin.rows<Json>(
      `select distinct reason from ledger where kind = 'quarantined' and partition_key = $1`,
      [`${before - 2}`],
    );
    expect(ledger).toHaveLength(1);
    expect(ledger[0].reason).toContain("the node's chain has other blocks");
    const reingest = ['reingest', 'bitcoin', '--from-height', `${lost[0]}`, '--to-height', `${lost[1] - 1}`];
    const mended = await bitcoin.run([...reingest, '--reason', 'reorganised']);
    expect(mended.json).toMatchObject({ ok: true, proved: 3 * 6 });
    expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
    expect(await bitcoin.rows(seconds, lost)).toEqual([{ n: 3 }]);
    expect(await brokenLinks()).toEqual([]);
  });
});

test('a backfill of other heights withheld proved blocks and said nothing of it in its summary', {
  tags: ['nightly'],
}, async () => {
  const before = chain.height;
  await reorganise(3, 5);
  const { exit, json } = await bitcoin.backfill(0, 5);
  expect({ exit, ok: json.ok, unchanged: json.unchanged, quarantined: json.quarantined }).toEqual({
    exit: 1,
    ok: false,
    unchanged: expect.any(Number),
    quarantined: 3 * 6,
  });
  const quarantined = json.units.filter(({ state }: Json) => state === 'quarantined');
  expect(new Set(quarantined.map(({ partition }: Json) => Number(partition)))).toEqual(
    new Set([before - 2, before - 1, before]),
  );
  expect(quarantined[0]).toMatchObject({ code: 'CHAIN_REORGANISED', reason: expect.stringContaining('other blocks') });
  expect((await bitcoin.run(['backfill', 'bitcoin'])).json).toMatchObject({ ok: false, quarantined: 3 * 6 });
  const heights = ['--from-height', `${before - 2}`, '--to-height', `${before}`];
  const mended = await bitcoin.run(['reingest', 'bitcoin', ...heights, '--reason', 'reorganised']);
  expect(mended.json).toMatchObject({ ok: true, proved: 3 * 6 });
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
});

test('a backfill that failed after it had retracted blocks did not name them, and the next one found nothing to retract', {
  tags: ['nightly'],
}, async () => {
  expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
  const before = chain.height;
  await reorganise(3, 5);
  await bitcoin.rows(`create function refuse() returns trigger language plpgsql as
    $$ begin raise exception 'refused'; end $$`);
  await bitcoin.rows(`create trigger refuse before insert on ledger for each row
    when (current_setting('application_name') = 'tidemark retraction') execute function refuse()`);
  // With several feeds, the answer has the units of one that failed.
  const { exit, json } = await bitcoin.run(['backfill', 'bitcoin', 'bitcoin_mempool_state']);
  await bitcoin.rows('drop trigger refuse on ledger');
  const retracted = json.units.filter(({ code }: Json) => code === 'CHAIN_REORGANISED');
  expect({
    exit,
    error: json.feeds[0].error?.message,
    partitions: retracted.map(({ partition }: Json) => partition),
  }).toEqual({
    exit: 1,
    error: expect.stringContaining('refused'),
    partitions: [`${before - 2}`, `${before - 1}`, `${before}`],
  });
  expect((await bitcoin.backfill(0, 5)).exit).toBe(1);
  const heights = ['--from-height', `${before - 2}`, '--to-height', `${before}`];
  expect((await bitcoin.run(['reingest', 'bitcoin', ...heights, '--reason', 'reorganised'])).exit).toBe(0);
  expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
});

test('blocks lost where the headers were not proved stayed served in the other five', {
  tags: ['nightly'],
}, async () => {
  const tip = chain.height;
  await bitcoin.rows('update bitcoin_block_headers set nonce = nonce + 1 where height = $1', [tip]);
  expect((await bitcoin.run(['verify', CHAIN_KEYS[0]])).exit).toBe(1);
  await reorganise(1, 3);
  const { exit, json } = await bitcoin.backfill(0, 5);
  expect({ exit, quarantined: json.quarantined }).toEqual({ exit: 1, quarantined: 5 });
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(tip - 1)));
  const heights = ['--from-height', `${tip}`, '--to-height', `${tip}`];
  expect((await bitcoin.run(['reingest', 'bitcoin', ...heights, '--reason', 'reorganised'])).exit).toBe(0);
  expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
});

test('a reorganisation during a backfill: nothing is put on top of what was lost, and what was lost is found at its end', {
  tags: ['nightly'],
}, async () => {
  await using proxy = await startRpcProxy(bitcoin.node.url);
  const before = chain.height;
  await chain.add();
  const height = chain.height;
  proxy.spoil('"getblock"', { kind: 'after', work: () => reorganise(3, 5) }, 1);
  const { exit, json } = await bitcoin.backfill(height, height, { SVC_BITCOIN_RPC_URL: proxy.url });
  expect({ exit, proved: json.proved, failed: json.failed, quarantined: json.quarantined }).toEqual({
    exit: 1,
    proved: 0,
    failed: 6,
    quarantined: 2 * 6,
  });
  expect(json.units.every(({ code }: Json) => code === 'CHAIN_REORGANISED')).toBe(true);
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(before - 2)));
  const heights = ['--from-height', `${before - 1}`, '--to-height', `${before}`];
  expect((await bitcoin.run(['reingest', 'bitcoin', ...heights, '--reason', 'reorganised'])).exit).toBe(0);
  expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
});

/** Blocks that do not follow the block below them. */
const brokenLinks = () =>
  bitcoin.rows<Json>(`select b.height::int from bitcoin_block_headers a
    join bitcoin_block_headers b on b.height = a.height + 1 where b.prev_hash <> a.block_hash`);

test('a block was put on another branch than the block below it, which was published and not proved yet', {
  tags: ['nightly'],
}, async () => {
  await using proxy = await startRpcProxy(bitcoin.node.url);
  await using projector = await connect({ url: bitcoin.system.env.databaseUrl, name: 'test' });
  expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
  await chain.addMany(2);
  const [lost, above] = [chain.height - 1, chain.height];
  // Nothing is proved until the fate of the block above is known.
  await projector.query('begin');
  await projector.query('select from coverage for update');
  proxy.spoil(`[${above}]`, { kind: 'after', work: () => reorganise(2, 3) }, 1);
  // One connection: the block above is not prefetched from the old branch.
  const env = {
    SVC_BITCOIN_RPC_URL: proxy.url,
    ...limitsEnv({ nodeCalls: 1 }),
    SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '0',
  };
  const running = bitcoin.begin(['follow', 'bitcoin'], env);
  const isRead = async () => {
    const [{ n }] = await bitcoin.rows<Json>(
      `select (select count(*) from partitions where partition_key = $1 and state = 'published')
         + (select count(*) from source_failures where code = 'CHAIN_REORGANISED' and last_reason like $2) as n`,
      [`${above}`, `%Block ${above} follows%`],
    );
    return Number(n) >= 6;
  };
  try {
    await eventually(isRead, 'the block above is read');
    await projector.query('rollback');
    await expect
      .poll(() => bitcoin.proved(), { timeout: PATIENCE_MS })
      .toEqual(eachOfSix(ranges(chain.height, [lost, above])));
  } finally {
    running.stop();
  }
  await running.done;
  const heights = ['--from-height', `${lost}`, '--to-height', `${lost}`];
  expect((await bitcoin.run(['reingest', 'bitcoin', ...heights, '--reason', 'reorganised'])).exit).toBe(0);
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
  expect(await brokenLinks()).toEqual([]);
});

test('a lost block was served for ever once a block of the new branch was proved above it', {
  tags: ['nightly'],
}, async () => {
  expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
  const lost = chain.height - 3;
  const other = 'f'.repeat(64);
  const digest = hashesDigest([other]);
  await bitcoin.rows('update bitcoin_block_headers set block_hash = $1 where height = $2', [other, lost]);
  await bitcoin.rows(
    `update partitions set manifest = jsonb_set(manifest, '{document,sha256}', to_jsonb($1::text)) where partition_key = $2`,
    [digest, `${lost}`],
  );
  const { exit, json } = await bitcoin.run(['backfill', 'bitcoin']);
  expect({ exit, quarantined: json.quarantined }).toEqual({ exit: 1, quarantined: 6 });
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height, [lost, lost + 1])));
  const heights = ['--from-height', `${lost}`, '--to-height', `${lost}`];
  expect((await bitcoin.run(['reingest', 'bitcoin', ...heights, '--reason', 'reorganised'])).exit).toBe(0);
  expect(await bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
  expect(await brokenLinks()).toEqual([]);
});

test('a node that lost its last blocks in a crash says nothing about them', async () => {
  const before = await bitcoin.proved();
  await using proxy = await startRpcProxy(bitcoin.node.url);
  const shorter = (text: string) => text.replace(`"blocks":${chain.height}`, `"blocks":${chain.height - 2}`);
  proxy.spoil('getblockchaininfo', { kind: 'rewrite', rewrite: shorter });
  const { exit, stderr } = await bitcoin.backfill(0, 5, { SVC_BITCOIN_RPC_URL: proxy.url });
  expect(exit).toBe(0);
  expect(stderr).toContain('the node has fewer blocks than are proved');
  expect(await bitcoin.proved()).toEqual(before);
});

describe('follow', () => {
  const tipOf = async () => Number(/,(\d+)\)\}$/.exec((await bitcoin.proved())[CHAIN_KEYS[1]])?.[1]) - 1;
  const isComplete = async () =>
    Object.values(await bitcoin.proved()).every((proved) => proved === ranges(chain.height));
  const snapshots = async () =>
    Number(
      (
        await bitcoin.rows<Json>(`select count(*) as n from partitions p join datasets d using (dataset_id)
      where d.key = 'bitcoin_mempool_state' and p.state = 'proved'`)
      )[0].n,
    );

  test('takes new blocks and snapshots as they come; both sides may go and come back', {
    tags: ['nightly'],
  }, async () => {
    const env = { SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '1', ...limitsEnv({ sourceAttempts: 1 }) };
    const running = bitcoin.start(['follow', 'bitcoin'], env);
    try {
      await chain.add();
      await eventually(async () => (await tipOf()) === chain.height, 'a new block');
      await eventually(async () => (await snapshots()) >= 2, 'two snapshots');
      await bitcoin.node.restart();
      await chain.addMany(2);
      await eventually(async () => (await tipOf()) === chain.height, 'blocks after the node came back');
      await chain.add();
      await eventually(async () => (await tipOf()) === chain.height, 'a block after a whole round');
    } finally {
      running.child.kill('SIGKILL');
    }
    await running.done;
    const arrivals = await bitcoin.rows<{ partition_key: string; arrived: boolean }>(
      `select partition_key, captured_ms is not null as arrived from partitions p join datasets d using (dataset_id)
       where d.key = 'bitcoin_block_headers' and p.state = 'proved' order by lower(p.span)`,
    );
    // The first round, which the restart may cut off and repeat, fills in. The last block came after it.
    expect([arrivals[0], arrivals.at(-1)].map((one) => one?.arrived)).toEqual([false, true]);
    await chain.addMany(2);
    const again = bitcoin.begin(['follow', 'bitcoin'], env);
    try {
      await eventually(async () => (await tipOf()) === chain.height, 'blocks after the command came back');
      // Each of the six is proved in its own time.
      await expect.poll(() => bitcoin.proved()).toEqual(eachOfSix(ranges(chain.height)));
    } finally {
      again.stop();
    }
    const { exit, json } = await again.done;
    const faults = json.units.filter(({ code }: Json) => code);
    expect({ exit, ok: json?.ok, faults }).toEqual({ exit: 0, ok: true, faults: [] });
  });

  test('a unit that failed with a backlog behind it left a hole for ever', async () => {
    await using proxy = await startRpcProxy(bitcoin.node.url);
    await chain.addMany(14);
    // The first of two or more units that are planned at once.
    const env = {
      SVC_BITCOIN_RPC_URL: proxy.url,
      SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '0',
      ...limitsEnv({ sourceAttempts: 1 }),
    };
    proxy.spoil('"getblock"', { kind: 'status', status: 503, body: 'busy' }, 1);
    const running = bitcoin.begin(['follow', 'bitcoin'], env);
    try {
      await eventually(isComplete, 'one run without a hole');
    } finally {
      running.stop();
    }
    const { json } = await running.done;
    expect(json).toMatchObject({ failed: 6 });
  });

  test('a node that is away is waited for; the run shows the fault until the node is back', {
    tags: ['nightly'],
  }, async () => {
    await using proxy = await startRpcProxy(bitcoin.node.url);
    const env = {
      SVC_BITCOIN_RPC_URL: proxy.url,
      SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '0',
      ...limitsEnv({ sourceAttempts: 1 }),
    };
    const running = bitcoin.begin(['follow', 'bitcoin'], env);
    const sql = `select failures, fault from runs where kind = 'follow' and subject = 'bitcoin' and pid = $1 and ended_at is null`;
    const run = async () => (await bitcoin.rows<Json>(sql, [process.pid]).catch(() => []))[0];
    try {
      await eventually(async () => (await run()) !== undefined && proxy.requests().length > 0, 'it follows');
      proxy.spoil('getblockchaininfo', { kind: 'status', status: 503, body: 'busy' });
      await eventually(async () => (await run()).failures > 1, 'others see it');
      expect((await run()).fault).toContain('503');
      proxy.mend();
      // No block comes meanwhile.
      await eventually(async () => (await run()).failures === 0, 'it is over');
      expect((await run()).fault).toBeNull();
    } finally {
      running.stop();
    }
    expect((await running.done).exit).toBe(0);
  });

  test('a block whose manifest the log lost was asked for again only after a restart', {
    tags: ['nightly'],
  }, async () => {
    expect((await bitcoin.run(['backfill', 'bitcoin'])).exit).toBe(0);
    await using proxy = await startRpcProxy(bitcoin.node.url);
    await using projector = await connect({ url: bitcoin.system.env.databaseUrl, name: 'test' });
    // Nothing is proved.
    await projector.query('begin');
    await projector.query('select from coverage for update');
    const env = {
      SVC_BITCOIN_RPC_URL: proxy.url,
      ...limitsEnv({ nodeCalls: 1, sourceAttempts: 1 }),
      SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: '0',
    };
    const running = bitcoin.begin(['follow', 'bitcoin'], env);
    try {
      await chain.add();
      const lost = [`${chain.height}`];
      const sql = `select from partitions where partition_key = $1 and state = 'published'`;
      const isPublished = async () => (await bitcoin.rows(sql, lost)).length === 6;
      await eventually(isPublished, 'the block is published');
      // The next one fails, and is asked for again and again.
      proxy.spoil('"getblock"', { kind: 'status', status: 503, body: 'busy' });
      proxy.requests();
      let asked = 0;
      await chain.add();
      await eventually(async () => {
        asked += proxy.requests().filter((body) => body.includes('"getblock"')).length;
        return asked > 2;
      }, 'the next block fails');
      // As its publisher does when it finds that the log lost the manifest.
      await bitcoin.rows(`update attempts set state = 'abandoned' where partition_key = $1`, lost);
      await bitcoin.rows('delete from partitions where partition_key = $1', lost);
      proxy.mend();
      await eventually(isPublished, 'the block is published again');
      await projector.query('rollback');
      await eventually(isComplete, 'all is proved');
    } finally {
      running.stop();
    }
    await running.done;
  });

  test('a snapshot that cannot be read ended the following of blocks', { tags: ['nightly'] }, async () => {
    await using proxy = await startRpcProxy(bitcoin.node.url);
    const env = { SVC_BITCOIN_RPC_URL: proxy.url };
    proxy.spoil('getrawmempool', { kind: 'rewrite', rewrite: () => '{"result":[],"error":null,"id":0}' });
    const running = bitcoin.begin(['follow', 'bitcoin'], env, { SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS: 0.1 });
    try {
      await eventually(
        async () => proxy.requests().some((body) => body.includes('getrawmempool')),
        'a snapshot asked for',
      );
      await chain.add();
      await eventually(async () => (await tipOf()) === chain.height, 'a block after the snapshot failed');
      const before = await snapshots();
      proxy.mend();
      await eventually(async () => (await snapshots()) > before, 'a snapshot once the node answers');
    } finally {
      running.stop();
    }
    const { exit, stderr } = await running.done;
    expect({ exit, said: stderr.split('no snapshot of the mempool').length - 1 }).toEqual({ exit: 0, said: 1 });
  });

  test('a snapshot now, beside those that follow took; an empty one is proved, too', async () => {
    const before = await snapshots();
    const { exit, json } = await bitcoin.run(['backfill', 'bitcoin_mempool_state']);
    expect({ exit, failed: json.failed }).toEqual({ exit: 0, failed: 0 });
    expect(await snapshots()).toBeGreaterThan(before);
    const [{ rows }] = await bitcoin.rows<Json>(
      `select sum(p.rows)::int as rows from partitions p join datasets d using (dataset_id) where d.key = 'bitcoin_mempool_state'`,
    );
    expect(rows).toBe(0);
  });
});
