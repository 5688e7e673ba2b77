/** Several instruments of each exchange, from the vendors' documents to proved rows, through real servers and the real command. */
import { createHash } from 'node:crypto';
import { copyFile, mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { writeDay as writeA } from '../../pipelines/sources/exchange_a/sample.ts';
import { generateLines, writeDay as writeB } from '../../pipelines/sources/exchange_b/sample.ts';
import { writeDay as writeC } from '../../pipelines/sources/exchange_c/sample.ts';
import { DAY_MS, dayKey } from '../../shared/dates.ts';
import { unprovedFailures } from '../../shared/db/runs.ts';
import { secretPathOf } from '../../shared/proof-log/folder.ts';
import { exchangeASpotTrades } from '../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { exchangeBSpotTrades } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { exchangeCSpotTrades } from '../../shared/registry/datasets/exchange_c_spot_trades.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { readCatalogFacts } from '../../shared/status/catalog-facts.ts';
import { buildZip } from '../support/broken-zip.ts';
import type { Json } from '../support/command.ts';
import { fixed } from '../support/decimals.ts';
import { System, unitOf } from '../support/pipeline.ts';
import { logFolderOf, sequence } from '../support/proof-log.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { duckdb } from '../support/trade-oracle.ts';
import { startVendorServer } from '../support/vendor-server.ts';

interface Exchange {
  readonly dataset: DatasetDefinition;
  readonly byDefault: string;
  readonly others: readonly [string, string];
  readonly also: string;
  write(directory: string, symbol: string, day: string, rows: number): Promise<unknown>;
}

const FIRST = '2024-03-01';
const LAST = '2024-03-02';
const ROWS = 1500;
/** Ids of all symbols are the same on purpose. */
const firstIdOf = (day: string) => (day === FIRST ? 1 : 1 + 10 * ROWS);

const EXCHANGES: readonly Exchange[] = [
  {
    dataset: exchangeASpotTrades,
    byDefault: 'BTCUSDT',
    others: ['ETHUSDT', '1000SATSUSDT'],
    also: 'SVC_EXCHANGE_A_ALSO',
    write: (directory, symbol, day, rows) =>
      writeA({ directory, symbol, day, rows, seed: rows, firstId: firstIdOf(day), timeUnit: 'us' }),
  },
  {
    dataset: exchangeBSpotTrades,
    byDefault: 'BTC-USDT',
    others: ['ETH-USDT', 'BTC-USDC'],
    also: 'SVC_EXCHANGE_B_ALSO',
    write: (directory, instrument, day, rows) =>
      writeB({ directory, instrument, day, rows, seed: rows, firstId: firstIdOf(day) }),
  },
  {
    dataset: exchangeCSpotTrades,
    byDefault: 'BTCUSDT',
    others: ['ETHUSDT', 'SHIB1000USDT'],
    also: 'SVC_EXCHANGE_C_ALSO',
    write: (directory, symbol, day, rows) => writeC({ directory, symbol, day, rows, seed: rows }),
  },
];

const settingsOf = (system: System): Record<string, string> => {
  const folder = pathToFileURL(`${system.vendor}/`).href;
  return {
    SVC_EXCHANGE_A_BASE_URL: folder,
    SVC_EXCHANGE_B_BASE_URL: folder,
    SVC_EXCHANGE_C_BASE_URL: folder,
    ...Object.fromEntries(EXCHANGES.map(({ also, others }) => [also, others.join()])),
  };
};

/** What does not depend on when a partition came in, of the defaults: rows, seconds, klines, leaves. */
const contentOf = (system: System, { native, number }: DatasetDefinition) =>
  system.rows(
    `select (select md5(string_agg(t::text, '|' order by t."timestamp", t.trade_id)) from ${native.table} t) as rows,
       (select md5(string_agg((to_jsonb(s) - 'series_id')::text, '|' order by s.aligned_at_utc))
        from canonical_aligned_1s_aggregates s where s.dataset_id = ${number}) as seconds,
       (select md5(string_agg(k::text, '|' order by k.size_s, k.start_ms)) from native_klines k where k.dataset_id = ${number}) as klines,
       (select string_agg(((convert_from(l.body, 'UTF8')::jsonb) - 'at')::text, '|' order by l.entry_id) from proof_leaves l
        where l.dataset_id = ${number}) as leaves,
       (select string_agg(partition_key || klines_sha256 || aligned_hash, '|' order by from_ms) from partitions
        where dataset_id = ${number}) as partitions`,
  );

describe.each(EXCHANGES)('$dataset.key', ({ dataset, byDefault, others, also, write }) => {
  const [big, odd] = others;
  let system: System;
  let alone: System;
  let settings: Record<string, string>;
  const run = (args: readonly string[], env: Record<string, string> = {}) => system.run(args, { ...settings, ...env });
  const range = ['--from', FIRST, '--to', LAST];
  beforeAll(async () => {
    [system, alone] = await Promise.all([System.create(), System.create()]);
    settings = settingsOf(system);
    for (const one of [system, alone]) {
      for (const day of [FIRST, LAST]) await write(one.vendor, byDefault, day, ROWS);
    }
    for (const day of [FIRST, LAST]) await write(system.vendor, big, day, ROWS);
    await write(system.vendor, odd, LAST, ROWS / 2);
  });
  afterAll(async () => {
    await system[Symbol.asyncDispose]();
    await alone[Symbol.asyncDispose]();
  });

  test('a backfill reads the default without --instrument, and each that is named with it', async () => {
    const first = await run(['backfill', dataset.key, ...range]);
    expect([first.exit, first.json.units.map(({ partition }: Json) => partition)]).toEqual([0, [FIRST, LAST]]);
    const { exit, json } = await run(['backfill', dataset.key, ...range, '--instrument', big]);
    expect([exit, json.units]).toEqual([
      0,
      [FIRST, LAST].map((day) => ({ dataset: dataset.key, partition: `${big}:${day}`, state: 'proved', rows: ROWS })),
    ]);
    const all = await run(['backfill', dataset.key, '--from', LAST, '--to', LAST, '--instrument', 'all']);
    expect(all.json.units.map(({ partition, state }: Json) => [partition, state])).toEqual([
      [LAST, 'unchanged'],
      [`${big}:${LAST}`, 'unchanged'],
      [`${odd}:${LAST}`, 'proved'],
    ]);
    expect(all.exit).toBe(0);
  });

  test('the default is by the byte what it is without others', async () => {
    // Leaves commit with salts that are made of the log's secret.
    const secretOf = ({ env }: System) => secretPathOf(logFolderOf(env));
    await mkdir(dirname(secretOf(alone)), { recursive: true });
    await copyFile(secretOf(system), secretOf(alone));
    const { exit } = await alone.run(['backfill', dataset.key, ...range], settingsOf(alone));
    expect(exit).toBe(0);
    expect(await contentOf(system, dataset)).toEqual(await contentOf(alone, dataset));
  });

  test('every instrument has its own rows, seconds, klines, coverage, frames and leaves', async () => {
    const found = await system.rows(
      `select s.key, c.proved <> '{}' as covered, p.partitions, p.rows::int,
         (select count(*)::int from ${dataset.native.table}_others t where t.instrument_id = s.dataset_id) as native,
         (select sum(trade_count)::int from canonical_aligned_1s_aggregates a where a.dataset_id = s.dataset_id) as seconds,
         (select sum(no_of_trades)::int from native_klines k where k.dataset_id = s.dataset_id and size_s = 60) as klines,
         (select sum(rows)::int from frames f where f.dataset_id = s.dataset_id) as framed,
         (select count(*)::int from proof_leaves l where l.dataset_id = s.dataset_id) as leaves
       from series s join coverage c using (dataset_id) join lateral (
         select count(*)::int as partitions, sum(rows) as rows from partitions p where p.dataset_id = s.dataset_id) p on true
       where s.dataset_id > 255 order by s.dataset_id`,
    );
    const of = (key: string, partitions: number, rows: number) => ({
      ...{ key, covered: true, partitions, rows, native: rows, seconds: rows, klines: rows, framed: rows },
      leaves: partitions,
    });
    expect(found).toEqual([of(big, 2, 2 * ROWS), of(odd, 1, ROWS / 2)]);
    const leaves = await system.rows(
      `select convert_from(body, 'UTF8')::jsonb ->> 'partition' as key from proof_leaves order by entry_id`,
    );
    expect(leaves.map(({ key }) => key)).toEqual([FIRST, LAST, `${big}:${FIRST}`, `${big}:${LAST}`, `${odd}:${LAST}`]);
  });

  test('no two events of any instruments share an id, and each is found by it', async () => {
    const ids = new Set<string>();
    for (const [instrument, date] of [
      [byDefault, LAST],
      [big, FIRST],
      [big, LAST],
      [odd, LAST],
    ]) {
      const offset = String(dataset.offset.unique ? firstIdOf(date) : 1);
      const { exit, json } = await run(['event', dataset.key, offset, '--date', date, '--instrument', instrument]);
      const key = instrument === byDefault ? date : `${instrument}:${date}`;
      expect([exit, json.partition, json.document.name.includes(instrument)]).toEqual([0, key, true]);
      ids.add(json.event_id);
    }
    expect(ids.size).toBe(4);
  });

  test('verify and replay look at the instrument that is named, and at the default without', async () => {
    const verified = await run(['verify', dataset.key, '--deep', '--instrument', 'all']);
    expect([verified.exit, verified.json.units.map(({ state }: Json) => state)]).toEqual([0, Array(5).fill('proved')]);
    const replayed = await run(['replay', dataset.key, '--instrument', big]);
    expect([replayed.exit, replayed.json.units]).toEqual([
      0,
      [FIRST, LAST].map((day) => ({
        dataset: dataset.key,
        partition: `${big}:${day}`,
        state: 'identical',
        rows: ROWS,
      })),
    ]);
    const plain = await run(['replay', dataset.key, '--verify-only']);
    expect(plain.json.units.map(({ partition }: Json) => partition)).toEqual([FIRST, LAST]);
  });

  test('rows that were altered are quarantined, listed, rebuilt from the log, and nobody else notices', async () => {
    await system.rows(
      `update ${dataset.native.table}_others set price = price + 1 where instrument_id = (
         select dataset_id from series where key = $1) and "timestamp" = (
         select min("timestamp") from ${dataset.native.table}_others)`,
      [big],
    );
    const { exit, json } = await run(['verify', dataset.key, '--instrument', big]);
    expect([exit, json.units.map(({ state }: Json) => state)]).toEqual([1, ['quarantined', 'proved']]);
    const listed = await run(['quarantine']);
    expect(listed.json.partitions.map(({ partition }: Json) => partition)).toEqual([`${big}:${FIRST}`]);
    const status = await run(['status', dataset.key]);
    expect([status.exit, status.json.datasets.map(({ partitions }: Json) => partitions.proved)]).toEqual([1, [2]]);
    expect(status.json.instruments).toEqual([
      { dataset: dataset.key, instrument: big, proved: 1, quarantined: 1, rows: ROWS },
      { dataset: dataset.key, instrument: odd, proved: 1, quarantined: 0, rows: ROWS / 2 },
    ]);
    const doctor = await run(['doctor', '--check', 'partitions']);
    expect(doctor.json.checks.flatMap(({ findings }: Json) => findings)).toContainEqual(
      expect.objectContaining({ fix: `./tidemark quarantine ${dataset.key} --instrument ${big}` }),
    );
    // Monitors alarm on it as well.
    const { facts } = await readCatalogFacts(system.client, false);
    expect(facts.get(dataset.number)?.partitions.quarantined).toBe(1);
    const replayed = await run(['replay', dataset.key, '--partition', `${big}:${FIRST}`]);
    expect([replayed.exit, unitOf(replayed.json, `${big}:${FIRST}`).state]).toEqual([0, 'replaced']);
    const healed = await run(['status', dataset.key, '--instrument', big]);
    expect([healed.exit, healed.json.datasets[0].instrument, healed.json.datasets[0].rows]).toEqual([0, big, 2 * ROWS]);
    expect(await contentOf(system, dataset)).toEqual(await contentOf(alone, dataset));
    // Of the log, which all share, the messages of each are referenced.
    expect((await run(['status', dataset.key])).json.datasets[0].log).toMatchObject({
      unreferenced_messages: 0,
      lag: { frames: 0 },
    });
    const healthy = await run(['doctor', '--check', 'chunks']);
    expect(healthy.json.checks.flatMap(({ findings }: Json) => findings)).toEqual([]);
  });

  test('a day is released and replaced where it is named by its day and --instrument, or by its key', async () => {
    const table = `${dataset.native.table}_others`;
    const altered = (sign: string) =>
      system.rows(
        `update ${table} set price = price ${sign} 4096 where instrument_id = (select dataset_id from series where key = $1)
           and "timestamp" = (select min("timestamp") from ${table})`,
        [big],
      );
    const release = ['quarantine', 'release', dataset.key];
    const named = ['--instrument', big];
    for (const how of [[FIRST, ...named], [`${big}:${FIRST}`]]) {
      await altered('+');
      expect((await run(['verify', dataset.key, '--partition', `${big}:${FIRST}`])).exit).toBe(1);
      await altered('-');
      const released = await run([...release, ...how, '--reason', 'put back']);
      expect([released.exit, released.json.partition, released.json.state]).toEqual([0, `${big}:${FIRST}`, 'proved']);
    }
    const before = await contentOf(system, dataset);
    await write(system.vendor, big, FIRST, ROWS - 1);
    const again = ['reingest', dataset.key, '--from', FIRST, '--to', FIRST, ...named, '--reason', 'published again'];
    const { exit, json } = await run(again);
    expect([exit, json.units[0]]).toMatchObject([0, { partition: `${big}:${FIRST}`, state: 'proved', rows: ROWS - 1 }]);
    expect(await system.rows('select revision from partitions where partition_key = $1', [`${big}:${FIRST}`])).toEqual([
      { revision: 2 },
    ]);
    expect(await contentOf(system, dataset)).toEqual(before);
    const ledger = await run(['ledger', dataset.key, '--kind', 'revision_proved']);
    expect(ledger.json.entries.map(({ partition }: Json) => partition)).toEqual([`${big}:${FIRST}`]);
  });

  test('one that is removed from the settings keeps its rows, and is read no more', async () => {
    const without = { [also]: odd };
    const verified = await run(['verify', dataset.key, '--instrument', big], without);
    expect([verified.exit, verified.json.units.length]).toEqual([0, 2]);
    const { exit, json } = await run(['backfill', dataset.key, ...range, '--instrument', big], without);
    expect([exit, json.error.code, json.error.message]).toEqual([
      2,
      'USAGE',
      expect.stringContaining(`has no instrument "${big}"`),
    ]);
  });

  test.each(['../BTCUSDT', `X' or '1'='1`, 'ETHUSDT:2024-03-01', 'NOSUCH', ''])(
    'an instrument that is none, %j, is refused, and nothing is asked for it',
    async (name) => {
      const { exit, json } = await run(['backfill', dataset.key, ...range, '--instrument', name]);
      expect([exit, json.error.code]).toEqual([2, 'USAGE']);
      expect((await run(['verify', dataset.key, '--instrument', name])).exit).toBe(2);
    },
  );

  test('days outside the interval that the operator knows are not expected', async () => {
    const env = { [also]: `${big}:${FIRST}..${FIRST},${odd}:${LAST}..` };
    const { exit, json } = await run(
      [
        'backfill',
        dataset.key,
        '--from',
        '2024-02-01',
        '--to',
        '2024-03-10',
        '--instrument',
        others.join(),
        '--dry-run',
      ],
      env,
    );
    expect([exit, json.plans[0].partitions]).toEqual([0, { fetch: 8, replace: 0, compare: 0, skip: 2, held: 0 }]);
  });
});

describe('a synthetic sample of several instruments', () => {
  const { dataset, others, write } = EXCHANGES[0];
  const states = (system: System) =>
    system.rows(`select partition_key as key, state, synthetic from partitions order by dataset_id, partition_key`);

  test.each([
    { real: 'BTCUSDT', key: LAST },
    { real: others[0], key: `${others[0]}:${LAST}` },
  ])('goes as a whole with the first real day of $real', async ({ real, key }) => {
    await using system = await System.create();
    const settings = settingsOf(system);
    for (const symbol of ['BTCUSDT', ...others]) await write(system.vendor, symbol, FIRST, ROWS);
    await write(system.vendor, real, LAST, ROWS);
    const day = (date: string, named: string) =>
      system.run(['backfill', dataset.key, '--from', date, '--to', date, '--instrument', named], settings);
    expect((await day(FIRST, 'all')).json.proved).toBe(3);
    // As a sample leaves it: rows, marked synthetic.
    await system.rows('update partitions set synthetic = true');
    await system.rows(`update coverage set synthetic = true where proved <> '{}'`);

    expect((await day(LAST, real)).json).toMatchObject({ ok: true, proved: 1 });
    expect(await states(system)).toEqual([{ key, state: 'proved', synthetic: false }]);
    const rows = await system.rows(
      `select (select count(*)::int from ${dataset.native.table}) + (select count(*)::int from ${dataset.native.table}_others) as native,
         (select sum(trade_count)::int from canonical_aligned_1s_aggregates) as seconds,
         (select sum(no_of_trades)::int from native_klines where size_s = 60) as klines,
         (select count(*)::int from coverage where proved <> '{}') as covered`,
    );
    expect(rows).toEqual([{ native: ROWS, seconds: ROWS, klines: ROWS, covered: 1 }]);
    const verified = await system.run(['verify', dataset.key, '--deep', '--instrument', 'all'], settings);
    expect([verified.exit, verified.json.units.length]).toEqual([0, 1]);
    expect((await day(FIRST, 'all')).json).toMatchObject({ ok: true, proved: 3 });
  });
});

test("what a database lost of an instrument's leaves is that instrument's again, and what failed is over when it is proved", async () => {
  const { dataset, write } = EXCHANGES[0];
  await using system = await System.create();
  const env = { SVC_EXCHANGE_A_ALSO: 'ETHUSDT' };
  const backfill = (from: string) =>
    system.run(['backfill', dataset.key, '--from', from, '--to', LAST, '--instrument', 'all'], env);
  for (const symbol of ['BTCUSDT', 'ETHUSDT']) await write(system.vendor, symbol, FIRST, ROWS);
  await write(system.vendor, 'BTCUSDT', LAST, ROWS);
  const faulty = join(system.vendor, 'spot', 'daily', 'trades', 'ETHUSDT', `ETHUSDT-trades-${LAST}.zip`);
  await writeFile(faulty, 'none');
  await writeFile(`${faulty}.CHECKSUM`, 'none');
  expect((await backfill(FIRST)).json).toMatchObject({ proved: 3, failed: 1 });
  expect((await unprovedFailures(system.client)).map(({ failed_unit: unit }) => unit.partition)).toEqual([
    `ETHUSDT:${LAST}`,
  ]);
  await write(system.vendor, 'ETHUSDT', LAST, ROWS);
  expect((await backfill(LAST)).json).toMatchObject({ proved: 1, failed: 0 });
  expect(await unprovedFailures(system.client)).toEqual([]);

  expect(await sequence(system.env)).toBe(4);
  const leaves = () =>
    system.rows<Json>(
      'select leaf_index, dataset_id, partition_key, salt from proof_leaves where dataset_id is not null order by 1',
    );
  const before = await leaves();
  await system.rows(`delete from proof_leaves`);
  await system.rows(`delete from proof_head`);
  expect((await system.run(['proof-log', 'restored', '--reason', 'a new disk'], env)).exit).toBe(0);
  expect(await leaves()).toEqual(before);
});

describe('follow', () => {
  const { dataset, write } = EXCHANGES[0];
  const dayBefore = (days: number) => dayKey(Date.now() - days * DAY_MS);

  test('proves the new days of every instrument, one after another, and one that fails keeps no other from it', async () => {
    await using system = await System.create();
    const [OLD, LAST] = [dayBefore(2), dayBefore(1)];
    for (const symbol of ['BTCUSDT', 'ETHUSDT', 'ENDEDUSDT']) await write(system.vendor, symbol, LAST, ROWS);
    await using vendor = await startVendorServer(system.vendor);
    const pathOf = (symbol: string) => `spot/daily/trades/${symbol}/${symbol}-trades-${LAST}.zip`;
    vendor.fail(pathOf('BTCUSDT'), { kind: 'status', status: 500 });
    const env = {
      SVC_EXCHANGE_A_BASE_URL: vendor.url.href,
      SVC_EXCHANGE_A_ALSO: `ENDEDUSDT:..${OLD},LATEUSDT,ETHUSDT`,
      ...limitsEnv({ sourceAttempts: 1 }),
    };
    const follow = ['follow', dataset.key, '--instrument', 'all'];
    const running = system.begin(follow, env, { SVC_FOLLOW_FILES_SECONDS: 0.05 });
    onTestFinished(() => running.stop());
    const proved = async () => (await system.rows<Json>('select partition_key k from partitions')).map(({ k }) => k);
    await expect.poll(proved, { timeout: 20_000 }).toEqual([`ETHUSDT:${LAST}`]);
    // Published late.
    await write(system.vendor, 'LATEUSDT', LAST, ROWS);
    await expect.poll(proved, { timeout: 20_000 }).toContain(`LATEUSDT:${LAST}`);
    running.stop();
    const { exit, json } = await running.done;
    expect([exit, json.quarantined]).toEqual([1, 0]);
    expect(
      new Set(
        json.units.filter(({ code }: Json) => code !== 'INTERRUPTED' && code).map(({ partition }: Json) => partition),
      ),
    ).toEqual(new Set([LAST]));
    expect(vendor.requests(pathOf('ENDEDUSDT'))).toEqual([]);
  });
});

describe('a symbol that ended in the middle of a day and began again in the middle of another', () => {
  const dataset = exchangeASpotTrades;
  const SYMBOL = 'LUNAUSDT';
  const [ENDED, BEGAN] = ['2022-05-13', '2022-05-31'];
  const DAYS = ['2022-05-12', ENDED, BEGAN, '2022-06-01'];
  const LISTED = `${SYMBOL}:2022-05-12..${ENDED},${SYMBOL}:${BEGAN}..`;
  const HOURS = 10;
  /** Ids begin anew with the second listing. */
  const lines = (day: string, { firstId = 1, hour = 0 }) =>
    Array.from({ length: HOURS * 60 }, (_, at) => {
      const ms = Date.parse(`${day}T00:00:00Z`) + (hour * 60 + at) * 60_000;
      return [firstId + at, '0.0001', '12', '0.0012', ms, 'True', 'True'].join();
    }).join('\n');
  let system: System;
  const run = (args: readonly string[], also: string) => system.run(args, { SVC_EXCHANGE_A_ALSO: also });
  beforeAll(async () => {
    system = await System.create();
    for (const [at, day] of DAYS.entries()) {
      const name = `${SYMBOL}-trades-${day}`;
      const text = lines(day, { firstId: at % 2 === 0 ? 1 : 1 + HOURS * 60, hour: day === BEGAN ? 14 : 0 });
      const zip = buildZip({ members: [{ name: `${name}.csv`, content: Buffer.from(`${text}\n`) }] });
      const folder = join(system.vendor, 'spot', 'daily', 'trades', SYMBOL);
      await mkdir(folder, { recursive: true });
      await writeFile(join(folder, `${name}.zip`), zip);
      await writeFile(
        join(folder, `${name}.zip.CHECKSUM`),
        `${createHash('sha256').update(zip).digest('hex')}  ${name}.zip\n`,
      );
    }
  });
  afterAll(() => system[Symbol.asyncDispose]());
  const from = ['--from', '2022-05-10', '--to', '2022-06-01', '--instrument', SYMBOL];

  test('is asked for on the days of its intervals, and proved with ids that it had before', async () => {
    const { exit, json } = await run(['backfill', dataset.key, ...from], LISTED);
    expect([exit, json.units.map(({ partition, state, reason }: Json) => [partition, state, reason])]).toEqual([
      0,
      DAYS.map((day) => [`${SYMBOL}:${day}`, 'proved', undefined]),
    ]);
    const verified = await run(['verify', dataset.key, '--deep', '--instrument', SYMBOL], LISTED);
    expect([verified.exit, verified.json.units.length]).toEqual([0, 4]);
    const replayed = await run(['replay', dataset.key, '--instrument', SYMBOL], LISTED);
    expect(replayed.json.units.map(({ state }: Json) => state)).toEqual(Array(4).fill('identical'));
  });

  test('has no gap where it was not listed, and one where nobody says so', async () => {
    const status = async (also: string) =>
      (await run(['status', dataset.key, '--instrument', SYMBOL], also)).json.datasets[0];
    const listed = await status(LISTED);
    expect([listed.partitions.missing, listed.gaps, listed.proved_ranges.length]).toEqual([0, [], 2]);
    const unsaid = await status(SYMBOL);
    expect([unsaid.partitions.missing, unsaid.gaps.length]).toEqual([17, 1]);
  });

  test('has events of one trade id on two days, which have two ids', async () => {
    const event = (date: string) => run(['event', dataset.key, '7', '--date', date, '--instrument', SYMBOL], LISTED);
    const [first, second] = [await event(DAYS[0]), await event(BEGAN)];
    expect([first.exit, second.exit]).toEqual([0, 0]);
    expect(first.json.event_id).not.toBe(second.json.event_id);
    const both = await run(['event', dataset.key, '7', '--instrument', SYMBOL], LISTED);
    expect([both.exit, both.json.error.message]).toEqual([expect.any(Number), expect.stringContaining(BEGAN)]);
  });

  test('is quarantined where its ids repeat within one listing', async () => {
    await using own = await System.create();
    const env = { SVC_EXCHANGE_A_ALSO: SYMBOL, SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${system.vendor}/`).href };
    const days = ['--from', BEGAN, '--to', BEGAN, '--instrument', SYMBOL];
    const first = ['--from', DAYS[0], '--to', DAYS[0], '--instrument', SYMBOL];
    expect((await own.run(['backfill', dataset.key, ...first], env)).exit).toBe(0);
    const { json } = await own.run(['backfill', dataset.key, ...days], env);
    expect(json.units[0]).toMatchObject({ state: 'quarantined', reason: expect.stringContaining('ids overlap') });
  });
});

describe("exchange B's allspot document", () => {
  const dataset = exchangeBSpotTrades;
  const symbols = ['BTC-USDT', 'ETH-USDT', 'BTC-USDC'];
  const WITHOUT = 'LATE-USDT';
  const linesOf = (instrument: string, day: string) => [
    ...generateLines({ day, rows: ROWS, seed: instrument.length, instrument, firstId: firstIdOf(day) }),
  ];
  /** A day of every instrument in one file; `turns`: their rows take turns, as they were traded. */
  async function writeAllspot(directory: string, day: string, order: 'grouped' | 'turns') {
    const [header] = linesOf(symbols[0], day);
    const rows = [...symbols, 'DOGE-USDT'].map((symbol) => linesOf(symbol, day).slice(1));
    const longest = Math.max(...rows.map(({ length }) => length));
    const turns = Array.from({ length: longest }, (_, at) => rows.flatMap((of) => of[at] ?? []));
    const name = `allspot-trades-${day}`;
    const text = [header, ...(order === 'grouped' ? rows.flat() : turns.flat())].join('');
    const zip = buildZip({ members: [{ name: `${name}.csv`, content: Buffer.from(text) }] });
    const folder = join(directory, 'trades', 'daily', day.replaceAll('-', ''));
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, `${name}.zip`), zip);
  }
  let system: System;
  let settings: Record<string, string>;
  beforeAll(async () => {
    system = await System.create();
    settings = { ...settingsOf(system), SVC_EXCHANGE_B_ALSO: `ETH-USDT,BTC-USDC,${WITHOUT}` };
    await writeAllspot(system.vendor, FIRST, 'grouped');
    await writeAllspot(system.vendor, LAST, 'turns');
    for (const instrument of symbols) {
      for (const day of [FIRST, LAST]) {
        await writeB({
          directory: system.vendor,
          day,
          rows: ROWS,
          seed: instrument.length,
          instrument,
          firstId: firstIdOf(day),
        });
      }
    }
  });
  afterAll(() => system[Symbol.asyncDispose]());
  const backfill = (more: readonly string[], env: Record<string, string> = {}) =>
    system.run(['backfill', dataset.key, '--from', FIRST, '--to', LAST, ...more], { ...settings, ...env });

  test('fills the partitions of every instrument that is read, whatever the order of its rows', async () => {
    const { exit, json } = await backfill(['--instrument', symbols.join()], { SVC_EXCHANGE_B_DOCUMENT: 'allspot' });
    expect([exit, json.units.map(({ partition, state, rows }: Json) => [partition, state, rows])]).toEqual([
      0,
      [FIRST, LAST].flatMap((day) =>
        symbols.map((symbol, at) => [at === 0 ? day : `${symbol}:${day}`, 'proved', ROWS]),
      ),
    ]);
    const verified = await system.run(['verify', dataset.key, '--deep', '--instrument', 'all'], settings);
    expect(verified.json.units.filter(({ state }: Json) => state !== 'proved')).toEqual([]);
  });

  test("the same rows from each instrument's own file are unchanged, and the other way round", async () => {
    const single = await backfill(['--instrument', symbols.join(), '--compare']);
    expect([single.exit, single.json.unchanged, single.json.refused]).toEqual([0, 6, 0]);
    const all = await backfill(['--instrument', symbols.join(), '--compare'], { SVC_EXCHANGE_B_DOCUMENT: 'allspot' });
    expect([all.exit, all.json.unchanged, all.json.refused]).toEqual([0, 6, 0]);
  });

  test('an instrument that it has no rows of fails by its name, and the others do not', async () => {
    const { exit, json } = await backfill(['--instrument', 'all'], { SVC_EXCHANGE_B_DOCUMENT: 'allspot' });
    expect([exit, json.failed, json.unchanged]).toEqual([1, 2, 6]);
    expect(unitOf(json, `${WITHOUT}:${FIRST}`)).toMatchObject({ state: 'failed', code: 'SOURCE_DOCUMENT_INVALID' });
  });
});

describe('a coin of which a million cost a cent', () => {
  const SYMBOL = '1000SATSUSDT';
  const DAY = FIRST;
  /** Prices from 1e-8, quantities up to 1e12, in turns with plain ones; `quote` of A is rounded to eight decimals. */
  const rows = Array.from({ length: 4000 }, (_, at) => {
    const price = BigInt(1 + ((at * 7919) % 90_000));
    const quantity = at % 3 === 0 ? 10n ** 13n - BigInt(at) : BigInt(1 + at * 37);
    const units = (price * quantity + 5n) / 10n;
    return {
      id: at + 1,
      price: fixed(String(price), 8),
      quantity: fixed(String(quantity), 1),
      quote: fixed(String(units), 8),
    };
  });
  const ms = (at: number) => Date.parse(`${DAY}T00:00:00Z`) + at * 700;
  let system: System;
  beforeAll(async () => {
    system = await System.create();
  });
  afterAll(() => system[Symbol.asyncDispose]());

  async function put(path: string, text: string) {
    const name = path.split('/').at(-1)!;
    const zip = buildZip({ members: [{ name: `${name}.csv`, content: Buffer.from(text) }] });
    await mkdir(join(system.vendor, path, '..'), { recursive: true });
    await writeFile(join(system.vendor, `${path}.zip`), zip);
    const sha256 = createHash('sha256').update(zip).digest('hex');
    await writeFile(join(system.vendor, `${path}.zip.CHECKSUM`), `${sha256}  ${name}.zip\n`);
  }

  test.each([
    {
      dataset: exchangeASpotTrades as DatasetDefinition,
      also: 'SVC_EXCHANGE_A_ALSO',
      path: `spot/daily/trades/${SYMBOL}/${SYMBOL}-trades-${DAY}`,
      line: ({ id, price, quantity, quote }: (typeof rows)[number], at: number) =>
        [id, price, quantity, quote, ms(at), at % 2 === 0 ? 'True' : 'False', 'True'].join(),
      header: '',
      quantity: 'quantity',
      quote: 'quote::decimal(38,8)',
    },
    {
      dataset: exchangeBSpotTrades as DatasetDefinition,
      also: 'SVC_EXCHANGE_B_ALSO',
      path: `trades/daily/${DAY.replaceAll('-', '')}/${SYMBOL}-trades-${DAY}`,
      line: ({ id, price, quantity }: (typeof rows)[number], at: number) =>
        [SYMBOL, id, at % 2 === 0 ? 'sell' : 'buy', price, quantity, ms(at)].join(),
      header: 'instrument_name,trade_id,side,price,size,created_time\n',
      quantity: 'size',
      quote: 'price::decimal(18,8) * quantity::decimal(20,1)',
    },
  ])('is stored as the nearest doubles, with exact sums, as DuckDB has them: $dataset.key', async (of) => {
    const { dataset, also, path, line, header } = of;
    await put(path, `${header}${rows.map(line).join('\n')}\n`);
    const folder = pathToFileURL(`${system.vendor}/`).href;
    const env = { SVC_EXCHANGE_B_BASE_URL: folder, [also]: SYMBOL };
    const named = ['--from', DAY, '--to', DAY, '--instrument', SYMBOL];
    const { exit, json } = await system.run(['backfill', dataset.key, ...named], env);
    expect([exit, json.units[0].reason, json.rows]).toEqual([0, undefined, rows.length]);
    expect((await system.run(['verify', dataset.key, '--deep', '--instrument', SYMBOL], env)).exit).toBe(0);
    expect((await system.run(['replay', dataset.key, '--instrument', SYMBOL], env)).json.units[0].state).toBe(
      'identical',
    );

    const csv = join(system.env.dir, `${dataset.key}.csv`);
    await writeFile(
      csv,
      rows.map(({ id, price, quantity, quote }, at) => [id, price, quantity, quote, ms(at)].join()).join('\n'),
    );
    const read = `read_csv('${csv}', header = false, columns = {id: 'bigint', price: 'varchar', quantity: 'varchar',
      quote: 'varchar', ms: 'bigint'})`;
    const expected = await duckdb(`select id, price::double, quantity::double from ${read} order by id`);
    const stored = await system.rows<Json>(
      `select trade_id::text as id, price, ${of.quantity} as quantity from ${dataset.native.table}_others order by trade_id`,
    );
    expect(stored.map(({ id, price, quantity }) => [id, price, quantity])).toEqual(
      expected.map(([id, price, quantity]) => [id, Number(price), Number(quantity)]),
    );
    const seconds = await duckdb(`select (ms // 1000) as s, count(*), sum(quantity::decimal(20,1))::varchar,
      sum(${of.quote})::varchar from ${read} group by 1 order by 1`);
    const aligned = await system.rows<Json>(
      `select extract(epoch from aligned_at_utc)::text as s, trade_count::text as n, quantity_sum, quote_volume_sum
       from canonical_aligned_1s_aggregates where dataset_id >> 8 = ${dataset.number} order by aligned_at_utc`,
    );
    expect(
      aligned.map(({ s, n, quantity_sum, quote_volume_sum }) => [Number(s), n, quantity_sum, quote_volume_sum]),
    ).toEqual(seconds.map(([s, n, quantity, quote]) => [Number(s), n, Number(quantity), Number(quote)]));
    const [[quantity]] = await duckdb(`select sum(quantity::decimal(20,1))::varchar from ${read}`);
    const [kline] = await system.rows<Json>(
      `select sum(quantity_total)::text as quantity from native_klines where dataset_id >> 8 = ${dataset.number} and size_s = 60`,
    );
    expect(Number(kline.quantity)).toBe(Number(quantity));
  });
});
