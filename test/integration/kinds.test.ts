/** Heights, snapshots and captures through the whole pipeline: real log, real database, adapters of a few lines. */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { storedEvent } from '../../pipelines/cli/commands/event.ts';
import { replayPartition } from '../../pipelines/cli/commands/replay.ts';
import { DirtyBuckets } from '../../pipelines/projector/dirty-buckets.ts';
import { deleteReplacedRows } from '../../pipelines/projector/retract.ts';
import { verifyPartition } from '../../pipelines/projector/verify.ts';
import type { UnitResult } from '../../pipelines/publisher/backfill.ts';
import { createPool } from '../../shared/db/connect.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { heightKey } from '../../shared/registry/keys.ts';
import {
  capture,
  documentOf,
  ETF,
  HEADERS,
  header,
  KindSystem,
  type MadeDocument,
  MEMPOOL,
  projectionOf,
  TRANSACTIONS,
  transaction,
} from '../support/kinds.ts';

const START = Date.parse('2026-01-01T00:00:00Z');
/** Three blocks a second: partitions share seconds wherever they are cut. */
const timeOf = (height: number) => START + Math.floor(height / 3) * 1000;
const throughOf = (height: number) => timeOf(height) + 1000;

const blocks = (from: number, to = from, salt = ''): MadeDocument =>
  documentOf({
    dataset: HEADERS,
    key: heightKey(from, to),
    events: Array.from({ length: to - from + 1 }, (_, index) => header(from + index, timeOf(from + index), salt)),
    source: { through_ms: throughOf(to) },
  });

const states = (units: readonly UnitResult[]) => units.map(({ partition, state, code }) => [partition, code ?? state]);

const proofNeeds = (system: KindSystem, dataset: DatasetDefinition) => ({
  dataset,
  client: system.client,
  catalog: system.catalog,
  connection: system.operator,
  projection: projectionOf(dataset),
  batchBytes: 1 << 22,
});

// Until autovacuum came by, reads that join rows with their partitions timed out after a long history.
test('many small partitions are known to the planner when they are proved', { tags: ['nightly'] }, async () => {
  await using system = await KindSystem.create();
  system.project([HEADERS]);
  await system.ingest(
    [HEADERS],
    Array.from({ length: 70 }, (_, height) => blocks(height)),
  );
  const analyzed = () =>
    system.rows(`select relname from pg_stat_user_tables where last_analyze is not null and (relname = 'partitions' or relname in
      (select chunk_name from timescaledb_information.chunks where hypertable_name = '${HEADERS.native.table}'))`);
  await system.until(async () => (await analyzed()).length === 2);
});

describe('blocks', () => {
  let system: KindSystem;
  beforeAll(async () => {
    system = await KindSystem.create();
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('published ahead of the projector are proved together, in few transactions', async () => {
    const documents = [blocks(0, 9), ...Array.from({ length: 20 }, (_, index) => blocks(10 + index))];
    const ingesting = system.ingest([HEADERS], documents);
    await system.until(async () => {
      const [{ n }] = await system.rows(`select count(*) as n from attempts where state = 'published'`);
      return Number(n) === 21;
    });
    system.project([HEADERS]);
    // A commit shows all of its partitions at once: more counts are seen than there were commits only by one.
    const seen = new Set<number>();
    const startedAt = performance.now();
    for (let proved = 0; proved < 21; seen.add(proved)) {
      [{ n: proved }] = await system.rows(`select count(*)::int4 as n from partitions where state = 'proved'`);
    }
    // What is loaded is committed, too, when the log gives nothing for a tenth of a second: there are more on a slow machine.
    const provedAt = performance.now();
    const units = await ingesting;
    expect(units.map(({ state }) => state)).toEqual(Array(21).fill('proved'));
    expect(seen.size).toBeLessThan(6 + (provedAt - startedAt) / 100);
    expect(await system.proved(HEADERS)).toBe('{[0,30)}');
    expect(await system.spans(HEADERS)).toEqual([`bitcoin_core [0,30) 21p 30r through ${throughOf(29)}`]);
  });

  test('that share a second make one row, whatever partitions they came in', async () => {
    const rows = await system.rows(
      `select extract(epoch from aligned_at_utc)::int8 as second, records_in_bucket as n, latest_height as latest,
         first_source_offset_or_equivalent as first, last_source_offset_or_equivalent as last
       from canonical_aligned_1s_aggregates where dataset_id = $1 order by 1`,
      [HEADERS.number],
    );
    expect(rows).toEqual(
      Array.from({ length: 10 }, (_, second) => ({
        second: String(START / 1000 + second),
        n: '3',
        latest: String(second * 3 + 2),
        first: String(second * 3),
        last: String(second * 3 + 2),
      })),
    );
  });

  test('met again are unchanged; with other content they are late, and stay as they are', async () => {
    const before = await system.digests(HEADERS);
    expect(states(await system.ingest([HEADERS], [blocks(0, 9), blocks(12)]))).toEqual([
      ['0-9', 'unchanged'],
      ['12', 'unchanged'],
    ]);
    expect(states(await system.ingest([HEADERS], [blocks(12, 12, 'other')]))).toEqual([
      ['12', 'PARTITION_LATE_ARRIVAL'],
    ]);
    expect(await system.digests(HEADERS)).toEqual(before);
  });

  test('of a range that holds proved heights are refused', async () => {
    const [unit] = await system.ingest([HEADERS], [blocks(5, 14)]);
    expect(unit).toMatchObject({ partition: '5-14', state: 'refused', code: 'USAGE' });
  });

  test('are found by their offset, with an id that does not depend on the range they came in', async () => {
    const pool = createPool({ url: system.databaseUrl, name: 'test', max: 1 });
    const found = await storedEvent({ pool, connection: system.connection, dataset: HEADERS }, '7');
    await pool.end();
    const { payload, row } = header(7, timeOf(7));
    expect([found.partition, found.payload_encoding, found.payload_raw, found.payload_sha256_raw]).toEqual([
      '0-9',
      'hex',
      Buffer.from(payload).toString('hex'),
      row.at(-1),
    ]);
    expect(found.event_id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  });

  test.each([
    ['a stored value', 'update bitcoin_block_headers set nonce = nonce + 1 where height = 14'],
    ['a row taken out', 'delete from bitcoin_block_headers where height = 14'],
    [
      'an aligned row',
      `update canonical_aligned_1s_aggregates set records_in_bucket = 2 where dataset_id = 6 and latest_height = 14`,
    ],
    [
      'an aligned row too many',
      `insert into canonical_aligned_1s_aggregates (dataset_id, series_id, aligned_at_utc, records_in_bucket)
       select 6, series_id + 100000, aligned_at_utc, 1 from canonical_aligned_1s_aggregates
       where dataset_id = 6 and latest_height = 14`,
    ],
  ])('changed by hand (%s) are withheld by verify and come back by a replay', async (_name, spoil) => {
    const before = await system.digests(HEADERS);
    await system.client.query(spoil);
    const row = (await system.catalog.partition(HEADERS, '14'))!;
    expect(await verifyPartition(row, { ...proofNeeds(system, HEADERS), deep: false })).toMatchObject({
      state: 'quarantined',
    });
    expect(await system.proved(HEADERS)).toBe('{[0,14),[15,30)}');
    expect(await system.rows('select withheld from coverage where dataset_id = 6')).toEqual([{ withheld: ['14'] }]);
    const [shared] = await system.rows(
      `select records_in_bucket as n, latest_height as latest from canonical_aligned_1s_aggregates
       where dataset_id = 6 and aligned_at_utc = to_timestamp($1)`,
      [timeOf(14) / 1000],
    );
    expect(shared).toEqual({ n: '2', latest: '13' });
    const held = (await system.catalog.partition(HEADERS, '14'))!;
    expect(await replayPartition(held, proofNeeds(system, HEADERS))).toMatchObject({ state: 'replaced' });
    expect(await system.rows('select withheld from coverage where dataset_id = 6')).toEqual([{ withheld: [] }]);
    expect(await system.digests(HEADERS)).toEqual(before);
  });

  test('make room for a later revision that covers them, and for no other', async () => {
    const { client } = system;
    const isStored = async () =>
      (await system.rows(`select from partitions where dataset_id = 6 and partition_key = '0-9'`)).length === 1;
    await DirtyBuckets.prepare(client);
    await client.query('begin');
    try {
      await client.query(`update partitions set revision = 2 where dataset_id = 6 and partition_key = '0-9'`);
      const dirty = await DirtyBuckets.open(client, HEADERS, projectionOf(HEADERS).seconds!);
      await deleteReplacedRows(client, HEADERS, { key: '5', revision: 2 }, dirty);
      expect(await isStored()).toBe(true);
      await deleteReplacedRows(client, HEADERS, { key: '5', revision: 3 }, dirty);
      expect(await isStored()).toBe(false);
    } finally {
      await client.query('rollback');
    }
  });

  test('come out of the log again the same, for an empty database', { tags: ['nightly'] }, async () => {
    await system.stopProjecting();
    const before = await system.digests(HEADERS);
    const url = new URL(system.databaseUrl);
    url.pathname += '_again';
    const name = url.pathname.slice(1);
    await system.client.query(`create database ${name}`);
    try {
      await using again = await KindSystem.create({ env: system.env, databaseUrl: url.href });
      again.project([HEADERS]);
      const [{ at }] = await system.rows('select stream_sequence as at from checkpoints where dataset_id = 6');
      await again.until(async () => {
        const rows = await again.rows('select stream_sequence as at from checkpoints where dataset_id = 6');
        return rows[0]?.at === at;
      });
      expect(await again.digests(HEADERS)).toEqual(before);
    } finally {
      await system.client.query(`drop database ${name} with (force)`);
    }
  });

  test('are proved once each, however often the projector loses its database', async () => {
    await using fresh = await KindSystem.create();
    fresh.project([HEADERS], undefined, { firstMs: 10, longestMs: 100 });
    const [first, second] = [0, 40].map((from) => Array.from({ length: 40 }, (_, index) => blocks(from + index)));
    const ended = new AbortController();
    let killed = 0;
    const killing = (async () => {
      for (; killed < 4 && !ended.signal.aborted; await delay(30 + Math.random() * 200)) {
        // One at a time: beside the newest there may be one that is still on its way out.
        const { length } = await fresh.rows(
          `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()
           and application_name = 'tidemark projector bitcoin_block_headers' order by backend_start desc limit 1`,
        );
        killed += length;
      }
    })();
    const documents = async function* () {
      yield* first;
      // However fast the first ones went: some are still to come when it happens.
      await killing;
      yield* second;
    };
    const units = await fresh.ingest([HEADERS], documents()).finally(() => ended.abort());
    expect([killed, units.filter(({ state }) => state !== 'proved')]).toEqual([4, []]);
    expect(await fresh.spans(HEADERS)).toEqual([`bitcoin_core [0,80) 80p 80r through ${throughOf(79)}`]);
    expect(await fresh.rows('select count(*)::int4 as n from bitcoin_block_headers')).toEqual([{ n: 80 }]);
    const attempts = await fresh.rows('select distinct state from attempts');
    expect(attempts).toEqual([{ state: 'proved' }]);
  });
});

describe('several datasets fed by one pass', () => {
  let system: KindSystem;
  beforeAll(async () => {
    system = await KindSystem.create();
    system.project([HEADERS, TRANSACTIONS]);
  });
  afterAll(() => system[Symbol.asyncDispose]());

  // Nothing that zstd could save, larger than a frame, and two small ones around it.
  const large = randomBytes(3 * 1024 * 1024);
  const range = (salt = '') => {
    const ms = timeOf(0);
    return documentOf(
      { dataset: HEADERS, key: '0-1', events: [header(0, ms, salt), header(1, ms, salt)], source: { through_ms: ms } },
      {
        dataset: TRANSACTIONS,
        key: '0-1',
        events: [
          transaction(0, 0, ms, Buffer.from('first')),
          transaction(0, 1, ms, large),
          transaction(0, 2, ms, Buffer.from('third')),
          ...Array.from({ length: 10 }, (_, index) => transaction(1, index, ms, Buffer.from(`${index}`))),
        ],
        source: { through_ms: ms },
      },
    );
  };

  test('are proved each in its own stream, an event larger than a frame among them', async () => {
    const units = await system.ingest([HEADERS, TRANSACTIONS], [range()], { frameRawBytes: 1 << 20 });
    expect(units.map(({ dataset, partition, state, rows }) => [dataset, partition, state, rows])).toEqual(
      expect.arrayContaining([
        ['bitcoin_block_headers', '0-1', 'proved', 2],
        ['bitcoin_block_transactions', '0-1', 'proved', 13],
      ]),
    );
    const frames = await system.rows(
      'select first_offset, last_offset, rows, row_base from frames where dataset_id = 7 order by stream_sequence',
    );
    expect(frames.map(({ rows, row_base }) => [rows, Number(row_base)])).toEqual([
      [1, 0],
      [0, 1],
      [0, 1],
      [0, 1],
      [1, 1],
      [11, 2],
    ]);
  });

  test('give the large event back whole', async () => {
    const pool = createPool({ url: system.databaseUrl, name: 'test', max: 1 });
    const { offset } = transaction(0, 1, timeOf(0), large);
    const found = await storedEvent({ pool, connection: system.connection, dataset: TRANSACTIONS }, offset);
    await pool.end();
    expect(Buffer.from(found.payload_raw, 'hex').equals(large)).toBe(true);
  });

  test('are the same by replay and verify, and whatever the frames', async () => {
    const needs = proofNeeds(system, TRANSACTIONS);
    const row = (await system.catalog.partition(TRANSACTIONS, '0-1'))!;
    expect(await replayPartition(row, needs)).toMatchObject({ state: 'identical' });
    expect(await verifyPartition(row, { ...needs, deep: true })).toMatchObject({ state: 'proved' });
    expect(states(await system.ingest([HEADERS, TRANSACTIONS], [range()], { frameRawBytes: 5000 }))).toEqual([
      ['0-1', 'unchanged'],
      ['0-1', 'unchanged'],
    ]);
  });

  test('of which one is proved and other does not take the other along', async () => {
    const units = await system.ingest([HEADERS, TRANSACTIONS], [range('other')]);
    expect(units.map(({ dataset, code, state }) => [dataset, code ?? state])).toEqual([
      ['bitcoin_block_headers', 'PARTITION_LATE_ARRIVAL'],
      ['bitcoin_block_transactions', 'unchanged'],
    ]);
  });
});

describe('snapshots', () => {
  test('without a transaction are proved, and leave no gap', async () => {
    await using system = await KindSystem.create();
    system.project([MEMPOOL]);
    const empty = (ms: number) => documentOf({ dataset: MEMPOOL, key: String(ms), events: [] });
    const [first, last] = [START + 10_500, START + 3_600_250];
    expect(states(await system.ingest([MEMPOOL], [empty(last), empty(first)]))).toEqual([
      [String(last), 'proved'],
      [String(first), 'proved'],
    ]);
    expect(await system.spans(MEMPOOL)).toEqual([
      `bitcoin_core [${first},${last + 1}) 2p 0r through ${START + 3_601_000}`,
    ]);
    const row = (await system.catalog.partition(MEMPOOL, String(first)))!;
    expect(await verifyPartition(row, { ...proofNeeds(system, MEMPOOL), deep: true })).toMatchObject({
      state: 'proved',
    });
    expect(await replayPartition(row, proofNeeds(system, MEMPOOL))).toMatchObject({ state: 'identical' });
  });
});

test('an empty snapshot of a sample took the sample out that it is part of', async () => {
  await using system = await KindSystem.create();
  system.project([MEMPOOL]);
  const empty = (ms: number) => documentOf({ dataset: MEMPOOL, key: String(ms), events: [] });
  const sample = [START, START + 60_000];
  await system.ingest([MEMPOOL], sample.map(empty), { synthetic: true });
  const partitions = () => system.rows(`select partition_key::int8 as key, synthetic from partitions order by 1`);
  expect(await partitions()).toEqual(sample.map((ms) => ({ key: `${ms}`, synthetic: true })));
  const real = START + 120_000;
  await system.ingest([MEMPOOL], [empty(real)]);
  expect(await partitions()).toEqual([{ key: `${real}`, synthetic: false }]);
});

describe('captures', () => {
  let system: KindSystem;
  beforeAll(async () => {
    system = await KindSystem.create();
    system.project([ETF]);
  });
  afterAll(() => system[Symbol.asyncDispose]());

  const DAY_MS = 86_400_000;
  const SOURCE = 'etf_ishares_ibit_daily';
  const at = (day: string) => Date.parse(`${day}T00:00:00Z`);
  const of = (day: string, next: string, values: Record<string, string>, source = SOURCE): MadeDocument =>
    documentOf({
      dataset: ETF,
      key: `${source}:${day}`,
      events: capture(source, day, values),
      source: { span_end: at(next) },
    });
  const friday = of('2026-01-02', '2026-01-05', { btc_units: '10.5', shares: '7' });
  const monday = of('2026-01-05', '2026-01-06', { btc_units: '11' });

  test('of business days make one run over the weekend; a holiday is an empty one', async () => {
    const holiday = of('2026-01-06', '2026-01-07', {});
    const units = await system.ingest([ETF], [monday, friday, holiday]);
    expect(units.map(({ state }) => state)).toEqual(['proved', 'proved', 'proved']);
    expect(await system.spans(ETF)).toEqual([
      `${SOURCE} [${at('2026-01-02')},${at('2026-01-07')}) 3p 3r through ${at('2026-01-07')}`,
    ]);
  });

  test('met again are unchanged; with other facts they are another capture, whose values win', async () => {
    expect(states(await system.ingest([ETF], [friday]))).toEqual([[`${SOURCE}:2026-01-02`, 'unchanged']]);
    const restated = of('2026-01-02', '2026-01-05', { btc_units: '10.6' });
    expect(states(await system.ingest([ETF], [restated]))).toEqual([[`${SOURCE}:2026-01-02:2`, 'proved']]);
    expect(states(await system.ingest([ETF], [restated, friday]))).toEqual([
      [`${SOURCE}:2026-01-02:2`, 'unchanged'],
      [`${SOURCE}:2026-01-02`, 'unchanged'],
    ]);
    const rows = await system.rows(
      `select a.metric_name as name, a.metric_value_float as value, a.records_in_bucket as n, s.key
       from canonical_aligned_1s_aggregates a join series s using (series_id)
       where a.dataset_id = 4 and a.aligned_at_utc = '2026-01-02' order by 1`,
    );
    expect(rows).toEqual([
      { name: 'btc_units', value: 10.6, n: '2', key: `${SOURCE}|btc_units|{}` },
      { name: 'shares', value: 7, n: '1', key: `${SOURCE}|shares|{}` },
    ]);
    for (const row of await system.catalog.partitions(ETF)) {
      const needs = proofNeeds(system, ETF);
      expect(await verifyPartition(row, { ...needs, deep: true })).toMatchObject({ state: 'proved' });
      expect(await replayPartition(row, needs)).toMatchObject({ state: 'identical' });
    }
  });

  test('that are missing on a business day end the run there; a check speaks for the last run alone', async () => {
    const checked = {
      ...of('2026-01-08', '2026-01-09', { btc_units: '12' }),
      checks: [{ sourceId: SOURCE, throughMs: at('2026-01-20') }],
    };
    expect(states(await system.ingest([ETF], [checked]))).toEqual([[`${SOURCE}:2026-01-08`, 'proved']]);
    const run = (day: string, next: string, count: string, through: string) =>
      `${SOURCE} [${at(day)},${at(next)}) ${count} through ${at(through)}`;
    expect(await system.spans(ETF)).toEqual([
      run('2026-01-02', '2026-01-07', '4p 4r', '2026-01-07'),
      run('2026-01-08', '2026-01-09', '1p 1r', '2026-01-20'),
    ]);
    await system.ingest([ETF], [of('2026-01-21', '2026-01-22', { btc_units: '13' })]);
    expect((await system.spans(ETF)).slice(1)).toEqual([
      run('2026-01-08', '2026-01-09', '1p 1r', '2026-01-09'),
      run('2026-01-21', '2026-01-22', '1p 1r', '2026-01-22'),
    ]);
    await system.ingest([ETF], [of('2026-01-07', '2026-01-08', { btc_units: '12' })]);
    expect((await system.spans(ETF))[0]).toBe(run('2026-01-02', '2026-01-09', '6p 6r', '2026-01-09'));
  });

  test('of a sample go when the first real one comes, their seconds with them', async () => {
    await using fresh = await KindSystem.create();
    fresh.project([ETF]);
    const sample = [friday, of('2026-01-05', '2026-01-06', { btc_units: '1', shares: '2' })];
    await fresh.ingest([ETF], sample, { synthetic: true });
    expect((await fresh.digests(ETF)).aligned).toHaveLength(4);
    expect(states(await fresh.ingest([ETF], [monday]))).toEqual([[`${SOURCE}:2026-01-05`, 'proved']]);
    expect((await fresh.digests(ETF)).aligned).toHaveLength(1);
    expect(await fresh.spans(ETF)).toEqual([
      `${SOURCE} [${at('2026-01-05')},${at('2026-01-06')}) 1p 1r through ${at('2026-01-05') + DAY_MS}`,
    ]);
    expect(await fresh.rows('select count(*)::int4 as n from etf_daily_metrics')).toEqual([{ n: 1 }]);
    expect(states(await fresh.ingest([ETF], [friday], { synthetic: true }))).toEqual([
      [`${SOURCE}:2026-01-02`, 'PARTITION_PROOF_FAILED'],
    ]);
  });

  test('of which one lies about itself is quarantined; those of the same transaction are not', async () => {
    await using fresh = await KindSystem.create();
    const lying = of('2026-01-05', '2026-03-05', { btc_units: '1' });
    const after = of('2026-01-06', '2026-01-07', { btc_units: '1' });
    const ingesting = fresh.ingest([ETF], [friday, lying, after]);
    await fresh.until(async () => (await fresh.rows(`select from attempts where state = 'published'`)).length === 3);
    fresh.project([ETF]);
    expect(states(await ingesting).toSorted()).toEqual([
      [`${SOURCE}:2026-01-02`, 'proved'],
      [`${SOURCE}:2026-01-05`, 'PARTITION_PROOF_FAILED'],
      [`${SOURCE}:2026-01-06`, 'proved'],
    ]);
    expect((await fresh.catalog.partition(ETF, `${SOURCE}:2026-01-05`))?.reason).toContain('span_end');
  });
});
