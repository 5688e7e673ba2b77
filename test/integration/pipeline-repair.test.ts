/** Stored rows that are no longer what was proved: found, taken out of service, and put right from the log or the vendor. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { keepRecounted, verifyPartition } from '../../pipelines/projector/verify.ts';
import { writeDay } from '../../pipelines/sources/exchange_a/sample.ts';
import { projectionOf } from '../../pipelines/sources/index.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import { connect } from '../../shared/db/connect.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { exchangeASpotTrades } from '../../shared/registry/datasets/exchange_a_spot_trades.ts';
import type { Answer, Json } from '../support/command.ts';
import { faultOf } from '../support/faults.ts';
import { csvOf, DATASET, DAY_MS, dayNames, System, unitOf, writeDocument } from '../support/pipeline.ts';
import { eventually } from '../support/serving.ts';
import { testLogger } from '../support/stack.ts';
import { compareNative } from '../support/trade-oracle.ts';

const ROWS = 600;
/** Most tests have three days; the one of many damages has a day for each. */
const ALL_DAYS = dayNames('2024-10-01', 14);
const DAYS = ALL_DAYS.slice(0, 3);
const csvOfDay = (index: number, seed = 12) =>
  csvOf({ day: ALL_DAYS[index], rows: ROWS, seed, firstId: 1 + index * ROWS, timeUnit: 'us' });
const startOf = (day: string) => Date.parse(`${day}T00:00:00Z`);
const ALL = `{[${startOf(DAYS[0])},${startOf(DAYS[2]) + DAY_MS})}`;
const states = (json: Json) => json.units.map((each: Json) => each.state);

let system: System;
let csv: string[];
let digests: Json;

async function create(days: readonly string[] = DAYS): Promise<void> {
  system = await System.create();
  csv = [];
  for (const [index, day] of days.entries()) {
    await writeDocument(system.vendor, day, csvOfDay(index));
    csv.push(join(system.env.dir, `${day}.csv`));
    await writeFile(csv[index], csvOfDay(index));
  }
  expect((await system.backfill(days[0], days.at(-1)!)).exit).toBe(0);
  digests = await system.digests();
}

const coverage = async () =>
  (await system.rows('select proved::text as proved, version from coverage where dataset_id = 1'))[0];
const ledger = () => system.rows('select partition_key, kind, reason, details from ledger order by entry_id');
const rangeOf = (index: number) => `[${startOf(ALL_DAYS[index])},${startOf(ALL_DAYS[index]) + DAY_MS})`;

/** The day that a damage names. */
interface Damaged {
  /** Trade ids of the day. */
  readonly first: number;
  readonly last: number;
  readonly rows: string;
  readonly seconds: string;
}

function damagedOf(index: number): Damaged {
  const start = startOf(ALL_DAYS[index]);
  return {
    first: index * ROWS + 7,
    last: (index + 1) * ROWS - 7,
    rows: `"timestamp" >= ${start} and "timestamp" < ${start + DAY_MS}`,
    seconds: `canonical_aligned_1s_aggregates where dataset_id = 1 and aligned_at_utc >= to_timestamp(${start / 1000})
      and aligned_at_utc < to_timestamp(${(start + DAY_MS) / 1000})`,
  };
}

/** One thing done to stored rows by hand, and what shows it. */
const DAMAGES: readonly [string, (day: Damaged) => string, RegExp][] = [
  [
    'a price',
    ({ first }) => `update ${DATASET} set price = price + 0.01 where trade_id = ${first}`,
    /rows_hash.*totals\.price/,
  ],
  [
    'a price by the last bit',
    ({ first }) => `update ${DATASET} set price = price * 1.0000000000000002 where trade_id = ${first}`,
    /rows_hash/,
  ],
  [
    'a flag',
    ({ first }) => `update ${DATASET} set is_buyer_maker = not is_buyer_maker where trade_id = ${first}`,
    /^rows_hash: /,
  ],
  [
    'a time',
    ({ first }) => `update ${DATASET} set "timestamp" = "timestamp" + 1 where trade_id = ${first}`,
    /^rows_hash: /,
  ],
  [
    'two prices exchanged',
    ({ first, last }) => `update ${DATASET} a set price = b.price from ${DATASET} b
     where (a.trade_id, b.trade_id) in ((${first}, ${last}), (${last}, ${first}))`,
    /^rows_hash: /,
  ],
  [
    'a row taken out',
    ({ first }) => `delete from ${DATASET} where trade_id = ${first}`,
    /rows: expected 600, found 599/,
  ],
  [
    'a row added',
    ({ first }) => `insert into ${DATASET} select "timestamp", trade_id + 1000000, price, quantity, quote_quantity,
       is_buyer_maker, is_best_match from ${DATASET} where trade_id = ${first}`,
    /rows: expected 600, found 601/,
  ],
  ['all rows gone', ({ rows }) => `delete from ${DATASET} where ${rows}`, /rows: expected 600, found 0/],
  [
    'a one-second price',
    ({ seconds }) => `update ${seconds.replace(' where', ' set high_price = high_price + 1 where')}
       and aligned_at_utc = (select min(aligned_at_utc) from ${seconds})`,
    /^aligned_hash: /,
  ],
  [
    'a one-second count',
    ({ seconds }) => `update ${seconds.replace(' where', ' set trade_count = trade_count + 1 where')}
       and aligned_at_utc = (select max(aligned_at_utc) from ${seconds})`,
    /aligned_events: expected 600, found 601/,
  ],
  [
    'an aligned row taken out',
    ({ seconds }) => `delete from ${seconds} and aligned_at_utc = (select max(aligned_at_utc) from ${seconds})`,
    /aligned_events: expected 600, found 5\d\d/,
  ],
];
const damage = (index = 1, [, sql] = DAMAGES[0]) => system.client.query(sql(damagedOf(index)));

describe('stored rows that were altered by hand', () => {
  /** Beside and between the damaged days. */
  const SOUND = [0, 6, ALL_DAYS.length - 1];
  const damaged = [...ALL_DAYS.keys()].filter((index) => !SOUND.includes(index));
  const cases = DAMAGES.map((each, at) => ({ index: damaged[at], each, name: each[0] }));
  let before: Json;
  let verify: Answer;
  beforeAll(async () => {
    expect(damaged).toHaveLength(DAMAGES.length);
    await create(ALL_DAYS);
    before = await coverage();
    for (const { index, each } of cases) expect((await damage(index, each)).rowCount, each[0]).toBeGreaterThan(0);
    verify = await system.run(['verify', DATASET]);
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test.each(cases)('$name: verify quarantines that day', async ({ index, each: [, , reason] }) => {
    const day = ALL_DAYS[index];
    expect(unitOf(verify.json, day)).toMatchObject({ state: 'quarantined', reason: expect.stringMatching(reason) });
    const [row] = await system.rows('select state, reason from partitions where partition_key = $1', [day]);
    expect(row).toEqual({ state: 'quarantined', reason: expect.stringMatching(reason) });
    expect((await ledger()).filter(({ partition_key }) => partition_key === day)).toMatchObject([
      { kind: 'quarantined', reason: expect.stringMatching(reason) },
    ]);
  });

  test('verify quarantines no other, and has nothing more to say when it is run again', async () => {
    expect([verify.exit, verify.json.ok, states(verify.json)]).toEqual([
      1,
      false,
      ALL_DAYS.map((_, index) => (SOUND.includes(index) ? 'proved' : 'quarantined')),
    ]);
    const shrunk = await coverage();
    expect(shrunk.proved).toBe(`{${SOUND.map(rangeOf).join()}}`);
    expect(Number(shrunk.version)).toBe(Number(before.version) + damaged.length);
    // A backfill does not pass over it in silence (below).
    expect(states((await system.run(['verify', DATASET])).json)).toEqual(SOUND.map(() => 'proved'));
  });

  test('replay replaces exactly those', async () => {
    const entries = (await ledger()).length;
    const replay = await system.run(['replay', DATASET]);
    expect([replay.exit, states(replay.json)]).toEqual([
      0,
      ALL_DAYS.map((_, index) => (SOUND.includes(index) ? 'identical' : 'replaced')),
    ]);
    expect((await coverage()).proved).toBe(before.proved);
    expect(await system.digests()).toEqual(digests);
    const rows = ALL_DAYS.length * ROWS;
    expect(await compareNative(system, csv, system.env.dir)).toEqual([rows, rows, 0, 0]);
    expect((await ledger()).slice(entries)).toMatchObject(
      damaged.map((index) => ({ partition_key: ALL_DAYS[index], kind: 'replay_replaced' })),
    );
    expect((await system.run(['verify', DATASET, '--deep'])).exit).toBe(0);
  });
});

// One system for the three: each test leaves all days proved, and sound.
describe('three days', () => {
  beforeAll(() => create());
  afterAll(() => system[Symbol.asyncDispose]());

  describe('a stored row that was altered by hand', () => {
    test('replay finds and replaces it also where nobody verified', async () => {
      await damage();
      const replay = await system.run(['replay', DATASET, '--from', DAYS[1], '--to', DAYS[1]]);
      expect([replay.exit, states(replay.json)]).toEqual([0, ['replaced']]);
      expect(unitOf(replay.json, DAYS[1]).reason).toMatch(/rows_hash/);
      expect(await system.digests()).toEqual(digests);
      expect(states((await system.run(['replay', DATASET])).json)).toEqual(['identical', 'identical', 'identical']);
    });

    test('replay of days outside the range given leaves them alone', async () => {
      await damage();
      expect(states((await system.run(['replay', DATASET, '--from', DAYS[2]])).json)).toEqual(['identical']);
      expect(states((await system.run(['verify', DATASET, '--to', DAYS[0]])).json)).toEqual(['proved']);
      expect(states((await system.run(['replay', DATASET])).json)).toEqual(['identical', 'replaced', 'identical']);
    });
  });

  describe('a day that verify quarantined', () => {
    beforeEach(async () => {
      await damage();
      expect((await system.run(['verify', DATASET])).exit).toBe(1);
    });

    test('is not touched by a backfill, and is re-ingested as a new revision', async () => {
      const refused = await system.backfill(DAYS[0], DAYS[2]);
      expect([refused.exit, unitOf(refused.json, DAYS[1]).code]).toEqual([1, 'PARTITION_PROOF_FAILED']);
      const again = await system.reingest(DAYS[1], DAYS[1], 'a row was altered');
      expect([again.exit, again.json.units]).toEqual([
        0,
        [{ dataset: DATASET, partition: DAYS[1], state: 'proved', rows: ROWS }],
      ]);
      const after = await system.digests();
      expect(after[DAYS[1]]).toEqual({ ...digests[DAYS[1]], revision: 2 });
      expect((await coverage()).proved).toBe(ALL);
      expect(await compareNative(system, csv, system.env.dir)).toEqual([3 * ROWS, 3 * ROWS, 0, 0]);
    });

    test('stays out of service when the vendor has a bad document now', async () => {
      await writeDocument(system.vendor, DAYS[1], `${csvOfDay(1)}garbage\n`);
      const { exit, json } = await system.reingest(DAYS[1], DAYS[1], 'try');
      expect([exit, unitOf(json, DAYS[1]).code]).toEqual([1, 'SOURCE_DOCUMENT_INVALID']);
      expect((await coverage()).proved).not.toBe(ALL);
      const status = await system.status();
      expect(status.partitions).toMatchObject({ proved: 2, missing: 0, quarantined: 1 });
      // A try is no proof: without a reason the day stays as it is.
      expect(unitOf((await system.backfill(DAYS[1], DAYS[1])).json, DAYS[1]).state).toBe('quarantined');
      await writeDocument(system.vendor, DAYS[1], csvOfDay(1));
      expect((await system.reingest(DAYS[1], DAYS[1], 'right now')).exit).toBe(0);
      expect((await coverage()).proved).toBe(ALL);
      expect(await compareNative(system, csv, system.env.dir)).toEqual([3 * ROWS, 3 * ROWS, 0, 0]);
    });
  });

  test('a recount that a read asked for quarantines the day only where it confirms the difference', async () => {
    await damage(
      1,
      DAMAGES.find(([name]) => name === 'a row taken out'),
    );
    await system.rows(
      `insert into recount_requests (dataset_id, partition_key, reason)
       select 1, key, 'a read' from unnest($1::text[]) key`,
      [[DAYS[0], DAYS[1], '2024-01-01']],
    );
    const stop = new AbortController();
    const keeping = keepRecounted({
      datasets: [exchangeASpotTrades],
      projectionOf,
      databaseUrl: system.env.databaseUrl,
      log: testLogger(),
      signal: stop.signal,
      firstMs: 0,
    });
    const asked = async () => (await system.rows('select partition_key from recount_requests')).length;
    await eventually(async () => (await asked()) === 0, 'every recount is done');
    stop.abort();
    await keeping;
    const found = await system.rows('select partition_key, state, reason from partitions order by 1');
    expect(found).toEqual([
      { partition_key: DAYS[0], state: 'proved', reason: null },
      {
        partition_key: DAYS[1],
        state: 'quarantined',
        reason: expect.stringMatching(/rows: expected 600, found 599/),
      },
      { partition_key: DAYS[2], state: 'proved', reason: null },
    ]);
    expect((await ledger()).at(-1)).toMatchObject({ kind: 'quarantined', details: { by: 'verify' } });
    expect((await system.run(['replay', DATASET, '--partition', DAYS[1]])).exit).toBe(0);
    expect((await coverage()).proved).toBe(ALL);
  });

  describe('verify', () => {
    test('and replay fail, naming the day, where the log no longer holds its frames', async () => {
      const before = await system.digests();
      await system.rows(`update attempts set manifest_sequence = manifest_sequence - 1 where partition_key = $1`, [
        DAYS[1],
      ]);
      const deep = await system.run(['verify', DATASET, '--deep']);
      expect([deep.exit, states(deep.json)]).toEqual([1, ['proved', 'failed', 'proved']]);
      expect(unitOf(deep.json, DAYS[1])).toMatchObject({ code: 'LOG_DAMAGED' });
      const replay = await system.run(['replay', DATASET]);
      expect([replay.exit, states(replay.json)]).toEqual([1, ['identical', 'failed', 'identical']]);
      // What is served was not found wanting: it is served on.
      expect((await coverage()).proved).toBe(ALL);
      expect(await system.digests()).toEqual(before);
      expect(await system.leftovers()).toEqual([]);
      await system.rows(`update attempts set manifest_sequence = manifest_sequence + 1 where partition_key = $1`, [
        DAYS[1],
      ]);
    });

    test('of a partition that became another revision meanwhile says so, and quarantines nothing', async () => {
      const catalog = new Catalog(system.client);
      const row = await catalog.partition(exchangeASpotTrades, DAYS[1]);
      await writeDocument(system.vendor, DAYS[1], csvOfDay(1, 99));
      expect((await system.reingest(DAYS[1], DAYS[1], 'other content')).exit).toBe(0);
      await using client = await connect({ url: system.env.databaseUrl, name: 'verify test' });
      await using connection = await connectNats(system.env.natsOperatorUrl, 'verify test');
      const needs = {
        dataset: exchangeASpotTrades,
        client,
        catalog,
        connection,
        projection: projectionOf(exchangeASpotTrades),
        batchBytes: 1 << 23,
        deep: false,
      };
      await faultOf(verifyPartition(row!, needs), 'PARTITION_CHANGED');
      expect((await coverage()).proved).toBe(ALL);
      expect((await verifyPartition((await catalog.partition(exchangeASpotTrades, DAYS[1]))!, needs)).state).toBe(
        'proved',
      );
    });
  });
});

describe('a synthetic sample', () => {
  test('that the first real day of another instrument retires is not told of any more', async () => {
    await using own = await System.create();
    const env = { SVC_EXCHANGE_A_ALSO: 'ETHUSDT' };
    await writeDocument(own.vendor, DAYS[0], csvOfDay(0));
    expect((await own.backfill(DAYS[0], DAYS[0])).exit).toBe(0);
    await own.rows('update partitions set synthetic = true');
    await own.rows('update coverage set synthetic = true where dataset_id = 1');
    const statusOf = async () => (await own.run(['status', DATASET], env)).json.datasets[0];
    expect(await statusOf()).toMatchObject({ synthetic: true, rows: ROWS });
    await writeDay({ directory: own.vendor, symbol: 'ETHUSDT', day: DAYS[0], rows: 5, seed: 1, timeUnit: 'ms' });
    const range = ['--from', DAYS[0], '--to', DAYS[0]];
    expect((await own.run(['backfill', DATASET, ...range, '--instrument', 'ETHUSDT'], env)).exit).toBe(0);
    expect(await statusOf()).toMatchObject({ synthetic: false, rows: 0 });
  });

  test('is retired by the first real day, all of it, and does not come back', async () => {
    await using own = await System.create();
    system = own;
    // As a sample leaves it: rows, marked synthetic. Two days; one is later found altered, one stands on the real day.
    for (const [index, day] of DAYS.entries()) await writeDocument(own.vendor, day, csvOfDay(index));
    expect((await own.backfill(DAYS[0], DAYS[1])).exit).toBe(0);
    await own.rows('update partitions set synthetic = true');
    await own.rows('update coverage set synthetic = true where dataset_id = 1');
    await damage();
    expect((await own.run(['verify', DATASET])).exit).toBe(1);

    expect((await own.backfill(DAYS[2], DAYS[2])).exit).toBe(0);
    const [row] = await own.rows('select proved::text as proved, synthetic from coverage where dataset_id = 1');
    expect(row).toEqual({ proved: `{[${startOf(DAYS[2])},${startOf(DAYS[2]) + DAY_MS})}`, synthetic: false });
    expect(await own.rows('select partition_key, state, synthetic from partitions')).toEqual([
      { partition_key: DAYS[2], state: 'proved', synthetic: false },
    ]);
    expect(await own.rows(`select count(*)::int4 as n from ${DATASET}`)).toEqual([{ n: ROWS }]);
    expect(await own.rows('select sum(trade_count)::int4 as n from canonical_aligned_1s_aggregates')).toEqual([
      { n: ROWS },
    ]);
    const retired = await own.rows(`select partition_key from ledger where kind = 'sample_retired' order by 1`);
    expect(retired).toEqual([{ partition_key: DAYS[0] }, { partition_key: DAYS[1] }]);
    expect(states((await own.run(['replay', DATASET])).json)).toEqual(['identical']);
    // The days that were a sample are open for the vendor's own.
    expect((await own.backfill(DAYS[0], DAYS[2])).json).toMatchObject({ ok: true, proved: 2, unchanged: 1 });
    expect((await coverage()).proved).toBe(ALL);
  });

  test('gives way on its own day too', async () => {
    await using own = await System.create();
    system = own;
    await writeDocument(own.vendor, DAYS[0], csvOfDay(0, 5));
    expect((await own.backfill(DAYS[0], DAYS[0])).exit).toBe(0);
    await own.rows('update partitions set synthetic = true');
    await own.rows('update coverage set synthetic = true where dataset_id = 1');
    await writeDocument(own.vendor, DAYS[0], csvOfDay(0));
    expect((await own.backfill(DAYS[0], DAYS[0])).json).toMatchObject({ ok: true, proved: 1 });
    const path = join(own.env.dir, 'day.csv');
    await writeFile(path, csvOfDay(0));
    expect(await compareNative(own, [path], own.env.dir)).toEqual([ROWS, ROWS, 0, 0]);
    expect((await own.status()).synthetic).toBe(false);
  });
});
