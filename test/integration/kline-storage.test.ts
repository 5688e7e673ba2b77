/**
 * Kept klines through the life of partitions: proved in any order, revised, quarantined, released, replayed, altered, and made
 * later. Exchange B, whose file days begin at 16:00 UTC, so that two of them share each day of UTC.
 */
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { type ExchangeBDay, writeDay } from '../../pipelines/sources/exchange_b/sample.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { exchangeBSpotTrades as dataset } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { KEPT_SIZES_MS } from '../../shared/registry/kept-klines.ts';
import type { Json } from '../support/command.ts';
import { type AnyTrade, alignedKlines, nativeKlines } from '../support/kline-oracle.ts';
import { System } from '../support/pipeline.ts';

const dayOf = (index: number, seed = index): ExchangeBDay => ({
  day: `2024-03-0${index}`,
  rows: 3000,
  seed,
  firstId: index * 1_000_000,
  gaps: 0.05,
});
const DAYS = [1, 2, 3].map((index) => dayOf(index));
let system: System;
let env: Record<string, string>;

beforeAll(async () => {
  system = await System.create();
  env = { SVC_EXCHANGE_B_BASE_URL: pathToFileURL(`${system.vendor}/`).href };
  for (const day of DAYS) await writeDay({ directory: system.vendor, ...day });
});
afterAll(() => system[Symbol.asyncDispose]());

const run = async (...args: string[]): Promise<{ exit: number | null; json: Json }> => await system.run(args, env);
const backfill = async (index: number) => {
  const { day } = DAYS[index];
  expect((await run('backfill', dataset.key, '--from', day, '--to', day)).exit).toBe(0);
};
const shared = () =>
  system.rows<Json>(
    `select start_ms::float8, first_partition, first_revision, second_partition, second_revision from shared_klines order by 1`,
  );
const counts = async () => {
  const [row] = await system.rows<Json>(
    `select (select count(*)::int from native_klines) as native, (select count(*)::int from aligned_klines) as aligned,
       (select count(*)::int from shared_klines) as shared`,
  );
  return row;
};
/** All kept klines and their digests, to compare two states of the database. */
const everything = () =>
  system.rows<Json>(
    `select 'native' as kind, to_jsonb(k) - 'first_revision' - 'second_revision' as row from native_klines k
     union all select 'aligned', to_jsonb(k) from aligned_klines k
     union all select 'shared', to_jsonb(k) - 'first_revision' - 'second_revision' from shared_klines k
     union all select partition_key, to_jsonb(klines_sha256 || inexact_seconds::text) from partitions order by 1, 2`,
  );

/** The condition for the kline of the day's first minute that has trades. */
const firstMinute = (day: string): string =>
  `size_s = 60 and start_ms = (select min(start_ms) from native_klines where size_s = 60 and start_ms >= ${Date.parse(day)})`;

beforeEach(async () => {
  // Each test begins with all three days proved.
  for (const index of [2, 0, 1]) await backfill(index);
  expect((await run('verify', dataset.key)).exit).toBe(0);
});

test('are those of the stored rows, shared ones keyed by both partitions', async () => {
  const rows = await system.rows<Json>(
    `select t.trade_id::float8, t.timestamp::float8, t.price, t.size as quantity, (t.side = 'sell')::int as is_buyer_maker
     from ${dataset.native.table} t order by 1`,
  );
  const seconds = await system.rows<Json>(
    `select *, (extract(epoch from aligned_at_utc) * 1000)::float8 as aligned_at_ms, trade_count::float8
     from canonical_aligned_1s_aggregates where dataset_id = ${dataset.number} order by aligned_at_utc`,
  );
  const from = Date.parse(DAYS[0].day) - DAY_MS / 3;
  const isWhole = (startMs: number, sizeMs: number): boolean =>
    startMs >= from && startMs + sizeMs <= from + 3 * DAY_MS;
  for (const sizeMs of KEPT_SIZES_MS) {
    const whole = <K extends { datetime?: string | number }>(all: readonly K[]) =>
      all
        .map(({ datetime, ...kline }) => ({ start_ms: Date.parse(String(datetime)), ...kline }))
        .filter(({ start_ms }) => isWhole(start_ms, sizeMs));
    const table = sizeMs === DAY_MS ? 'shared_klines' : 'native_klines';
    const native = await system.rows<Json>(
      `select *, start_ms::float8, no_of_trades::float8, makers::float8 / no_of_trades as maker_ratio from ${table} k
       where size_s = ${sizeMs / 1000} order by k.start_ms`,
    );
    const expected = whole(nativeKlines(rows as unknown as AnyTrade[], sizeMs));
    expect(native).toMatchObject(expected);
    expect(native).toHaveLength(expected.length);
    if (sizeMs === DAY_MS) continue;
    const aligned = await system.rows<Json>(
      `select *, start_ms::float8, no_of_trades::float8 from aligned_klines k where size_s = ${sizeMs / 1000} order by k.start_ms`,
    );
    expect(aligned).toMatchObject(whole(alignedKlines(seconds as never, sizeMs)));
  }
  const of = (index: number) => ({
    start_ms: Date.parse(DAYS[index].day),
    first_partition: DAYS[index].day,
    first_revision: 1,
    second_partition: DAYS[index + 1].day,
    second_revision: 1,
  });
  expect(await shared()).toEqual([of(0), of(1)]);
});

test('go with a quarantine, and come back with a release and with a replay', { tags: ['nightly'] }, async () => {
  const before = await everything();
  const full = await counts();
  const price = (by: number) =>
    system.client.query(
      `update ${dataset.native.table} set price = price + ${by} where trade_id = (select max(trade_id) - 5 from ${dataset.native.table}
       where trade_id < 3000000)`,
    );
  await price(1);
  expect((await run('verify', dataset.key)).exit).toBe(1);
  const without = await counts();
  expect(without.shared).toBe(0);
  expect(without.native).toBeLessThan(full.native);
  await price(-1);
  expect((await run('quarantine', 'release', dataset.key, DAYS[1].day, '--reason', 'a trial')).exit).toBe(0);
  expect(await everything()).toEqual(before);
  await price(1);
  expect((await run('verify', dataset.key)).exit).toBe(1);
  expect((await run('replay', dataset.key)).exit).toBe(0);
  expect(await everything()).toEqual(before);
});

test.each([
  ['altered ones', `update native_klines set close = close + 1 where ${firstMinute(DAYS[1].day)}`],
  [
    'seconds that are said to be exact, or not,',
    `update partitions set inexact_seconds = inexact_seconds + '{[1,2)}' where partition_key = '${DAYS[1].day}'`,
  ],
])('%s quarantine their partition, and a replay mends them', async (_, alter) => {
  const before = await everything();
  await system.client.query(alter);
  expect((await run('replay', dataset.key, '--verify-only')).json.units.map(({ state }: Json) => state)).toEqual([
    'identical',
    'differs',
    'identical',
  ]);
  const { json } = await run('verify', dataset.key);
  expect(json.units[1]).toMatchObject({ state: 'quarantined', reason: expect.stringMatching(/^klines_sha256: /) });
  expect((await run('replay', dataset.key)).exit).toBe(0);
  expect(await everything()).toEqual(before);
  expect((await run('verify', dataset.key, '--deep')).exit).toBe(0);
});

test('a shared one that was altered quarantines the earlier of its partitions', { tags: ['nightly'] }, async () => {
  const before = await everything();
  const alter = () =>
    system.client.query(`update shared_klines set iqr = iqr + 1 where first_partition = '${DAYS[1].day}'`);
  await alter();
  const { json } = await run('verify', dataset.key);
  expect(json.units.map(({ state }: Json) => state)).toEqual(['proved', 'quarantined', 'proved']);
  expect(json.units[1].reason).toBe('shared klines: expected that of 2024-03-02T00:00:00.000Z, found another');
  expect((await run('replay', dataset.key)).exit).toBe(0);
  expect(await everything()).toEqual(before);
  await alter();
  expect((await run('replay', dataset.key)).json.units[1].reason).toBe('differed in shared klines');
  expect(await everything()).toEqual(before);
});

// The search for the quartiles of a shared kline went on past the last price.
test('rows that are gone end the verification of both days that share them', { tags: ['nightly'] }, async () => {
  const before = await everything();
  const [day, next] = [DAYS[0].day, DAYS[1].day];
  const from = Date.parse(next) - DAY_MS / 3;
  await system.client.query(
    `delete from ${dataset.native.table} where "timestamp" >= ${from} and "timestamp" < ${from + DAY_MS}`,
  );
  const { json } = await run('verify', dataset.key, '--partition', day);
  expect(json.units[0].reason).toBe(`shared klines: expected that of ${day}T00:00:00.000Z, found other rows`);
  expect((await run('verify', dataset.key, '--partition', next)).json.units[0].reason).toMatch(
    /^rows: expected 3000, found 0/,
  );
  expect((await run('replay', dataset.key)).exit).toBe(0);
  expect(await everything()).toEqual(before);
});

test('that were altered together with their digest are found by a deep verification', {
  tags: ['nightly'],
}, async () => {
  const key = DAYS[0].day;
  const digest = `update partitions set klines_sha256 = $1 where partition_key = '${key}' returning klines_sha256`;
  const [{ was }] = await system.rows<Json>(
    `select klines_sha256 as was from partitions where partition_key = '${key}'`,
  );
  const alter = (by: number) =>
    system.client.query(`update native_klines set close = close + $1 where ${firstMinute(key)}`, [by]);
  await alter(1);
  const found = (await run('verify', dataset.key, '--partition', key)).json.units[0].reason as string;
  expect((await run('replay', dataset.key)).exit).toBe(0);
  await alter(1);
  await system.rows(digest, [/found ([0-9a-f]{64})/.exec(found)![1]]);
  expect((await run('verify', dataset.key, '--partition', key)).exit).toBe(0);
  const deep = await run('verify', dataset.key, '--partition', key, '--deep');
  expect(deep.json.units[0].reason).toMatch(new RegExp(`^klines of the log: expected [0-9a-f]{64}, found ${was}$`));
  expect((await run('replay', dataset.key)).exit).toBe(0);
});

test('a revision replaces them, and the shared ones name it', async () => {
  await writeDay({ directory: system.vendor, ...dayOf(2, 77) });
  const { day } = DAYS[1];
  const revised = await run('reingest', dataset.key, '--from', day, '--to', day, '--reason', 'a trial');
  expect(revised.exit).toBe(0);
  const revisions = (await shared()).map(({ first_revision, second_revision }) => [first_revision, second_revision]);
  expect(revisions).toEqual([
    [1, 2],
    [2, 1],
  ]);
  expect((await run('verify', dataset.key, '--deep')).exit).toBe(0);
});

test('that become others as they are stored fail their proof, and those of before stay', async () => {
  const before = await everything();
  const { day } = DAYS[1];
  await system.client.query(
    `create function another_close() returns trigger language plpgsql as $$
       begin new.close := new.close + 1; return new; end $$;
     create trigger another_close before insert on native_klines for each row when (new.size_s = 900)
       execute function another_close()`,
  );
  try {
    const { exit } = await run('reingest', dataset.key, '--from', day, '--to', day, '--reason', 'a trial');
    expect(exit).toBe(1);
  } finally {
    await system.client.query('drop function another_close cascade');
  }
  const [{ reason }] = await system.rows<Json>(
    `select reason from attempts where partition_key = '${day}' order by attempt desc limit 1`,
  );
  expect(reason).toMatch(/^klines_sha256: expected [0-9a-f]{64}, found [0-9a-f]{64}$/);
  expect(await everything()).toEqual(before);
});
