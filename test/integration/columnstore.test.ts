/**
 * The columnstore. On an edition without one nothing is compacted. On the server that
 * TIDEMARK_TEST_DATABASE_URL names (community edition) a compacted chunk answers as before, and everything that changes
 * rows is normal work on it. Exchange B: its file days begin at 16:00 UTC, so that two of them share each chunk.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { keepCompacted } from '../../pipelines/projector/compaction.ts';
import { type ExchangeBDay, writeDay } from '../../pipelines/sources/exchange_b/sample.ts';
import { connect } from '../../shared/db/connect.ts';
import { createLogger } from '../../shared/logger.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { exchangeBSpotTrades as dataset } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { type Json, ROOT } from '../support/command.ts';
import { compactNow, mixedChunks } from '../support/compaction.ts';
import { given, givenOtherDatabase, OTHER_DATABASE } from '../support/given.ts';
import { csvOf, DATASET, DAY_MS, System, writeDocument } from '../support/pipeline.ts';
import { OWN_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { statementsWith } from '../support/statements.ts';

const { table } = dataset.native;
const dayOf = (index: number, seed = index): ExchangeBDay => ({
  day: `2024-03-0${index}`,
  rows: 3000,
  seed,
  firstId: index * 1_000_000,
  gaps: 0.05,
});
const sumOf = (units: Json[], name: string): number => units.reduce((sum, unit) => sum + unit[name], 0);
const DAYS = [1, 2, 3].map((index) => dayOf(index));

given(OTHER_DATABASE === undefined, 'TIDEMARK_TEST_DATABASE_URL is set: unset it').test(
  'on an edition without a columnstore nothing is compacted',
  async () => {
    await using system = await System.create();
    const needs = {
      databaseUrl: system.env.databaseUrl,
      datasets: [dataset],
      afterDays: 0,
      quietMs: 0,
      log: createLogger('silent', 'x'),
    };
    const stopping = new AbortController();
    // It ends by itself: there is nothing to come back for.
    await keepCompacted({ ...needs, signal: stopping.signal }, 60_000);
    expect(await system.rows('select 1 from runs')).toEqual([]);
  },
);

givenOtherDatabase.test('a running system compacts by itself', async () => {
  await using system = await System.create();
  await writeDocument(
    system.vendor,
    '2024-03-01',
    csvOf({ day: '2024-03-01', rows: 500, seed: 3, firstId: 1, timeUnit: 'ms' }),
  );
  expect((await system.backfill('2024-03-01', '2024-03-01')).exit).toBe(0);
  const up = system.start(['up'], {
    SVC_INTERNAL_API_KEY: 'key',
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    SVC_HTTP_PORT: '0',
    SVC_VERIFY_INTERVAL_SECONDS: '0',
    ...limitsEnv({ columnsAfterDays: 0, columnsQuietMs: 0 }),
  });
  const [command, done] = ['scheduled compaction', 'done'];
  const ended = async () =>
    (await system.rows(`select command, state from runs where kind = 'compact' order by run_id desc limit 1`))[0];
  await expect.poll(ended).toEqual({ command, state: done });
  up.child.kill('SIGTERM');
  expect((await up.done).exit).toBe(0);
  const chunks = await system.rows('select 1 from timescaledb_information.chunks where is_compressed');
  expect(chunks.length).toBeGreaterThan(0);
});

givenOtherDatabase.describe('compacted chunks', () => {
  let system: System;
  let serving: Serving;
  let env: Record<string, string>;

  beforeAll(async () => {
    system = await System.create();
    // TimescaleDB's own limit is 100,000 rows; commands must not depend on it.
    await system.client.query(`do $$ begin execute format(
      'alter database %I set timescaledb.max_tuples_decompressed_per_dml_transaction = 10', current_database()); end $$`);
    env = { SVC_EXCHANGE_B_BASE_URL: pathToFileURL(`${system.vendor}/`).href };
    serving = await startServing({ databaseUrl: system.env.databaseUrl, limits: { granuleLookupRows: 1 } });
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  const run = async (...args: string[]): Promise<{ exit: number | null; json: Json }> => await system.run(args, env);
  const done = async (...args: string[]) => {
    const { exit, json } = await run(...args);
    expect(exit, JSON.stringify(json)).toBe(0);
    return json;
  };
  const compact = () => compactNow(system.env.databaseUrl);
  const states = ({ units }: Json): string[] => units.map(({ table, state }: Json) => `${table} ${state}`);
  const compacted = async (): Promise<string[]> =>
    (
      await system.rows(
        `select hypertable_name || ' ' || coalesce(to_timestamp(range_start_integer / 1000), range_start)::date as name
         from timescaledb_information.chunks where is_compressed order by 1`,
      )
    ).map(({ name }) => name);
  const verified = () => done('verify', 'all', '--deep');
  const replayed = async () => {
    const { units } = await done('replay', 'all', '--verify-only');
    expect(new Set(units.map(({ state }: Json) => state))).toEqual(new Set(['identical']));
  };

  /** What reads answer: by time, newest first, filtered, aligned rows and klines. */
  const reads = async (): Promise<string[]> => {
    const bodies = [
      ['exchange_b/spot/trades', { start_date: '2024-03-01', end_date: '2024-03-02' }],
      ['exchange_b/spot/trades', { n_latest_rows: 100 }],
      ['exchange_b/spot/trades', { mode: 'aligned_1s', n_latest_rows: 1000 }],
      ['exchange_b/spot/trades', { n_latest_rows: 50, filters: [{ field: 'size', op: 'gt', value: 0.1 }] }],
      ['exchange_b/spot/klines', { kline_size: '7m', n_latest_rows: 200 }],
    ] as const;
    const texts: string[] = [];
    for (const [path, body] of bodies) {
      const { status, text, json } = await serving.send({ path: `/v1/historical/${path}`, body: JSON.stringify(body) });
      expect(status, text.slice(0, 300)).toBe(200);
      texts.push(JSON.stringify(json.rows));
    }
    return texts;
  };

  /** Status, its route and metrics tell what a compaction did. */
  const shown = async ({ units }: Json) => {
    const tables = (await done('status')).columnstore;
    expect(tables.map(({ table: name }: Json) => name)).toEqual([ALIGNED_TABLE, table]);
    for (const { table: name, chunks, compacted_chunks, row_bytes, column_bytes } of tables) {
      const ours = units.filter((unit: Json) => unit.table === name);
      expect([compacted_chunks, chunks >= compacted_chunks]).toEqual([ours.length, true]);
      // It counts the empty row stores, too.
      expect(column_bytes).toBeGreaterThan(0.5 * sumOf(ours, 'bytes_after'));
      expect(column_bytes).toBeLessThanOrEqual(sumOf(ours, 'bytes_after'));
      expect(row_bytes).toBeGreaterThan(column_bytes);
    }
    await using fresh = await startServing({ databaseUrl: system.env.databaseUrl });
    expect((await fresh.send({ method: 'GET', path: '/v1/ops/status' })).json.columnstore).toEqual(tables);
    const { text } = await fresh.send({ method: 'GET', path: '/metrics' });
    const [{ column_bytes }] = tables;
    expect(text).toContain(`tidemark_columnstore_bytes{table="${ALIGNED_TABLE}",store="columns"} ${column_bytes}`);
  };

  beforeEach(async () => {
    for (const day of DAYS) await writeDay({ directory: system.vendor, ...day });
    await run('backfill', dataset.key, '--from', DAYS[0].day, '--to', DAYS[2].day);
    await verified();
    await compact();
  });

  test('answer as before, and hold the same rows in the order of reads', async () => {
    // What was compacted goes back to rows, as a revision of the same content would have it.
    await system.client.query(
      `select decompress_chunk(format('%I.%I', chunk_schema, chunk_name)::regclass)
       from timescaledb_information.chunks where is_compressed`,
    );
    const [rows, digests] = [await reads(), await system.digests()];
    expect(await statementsWith('granule_ranges', reads)).toBeGreaterThan(0);
    const answer = await compact();
    expect(new Set(states(answer))).toEqual(new Set([`${table} compacted`, `${ALIGNED_TABLE} compacted`]));
    const inTables = await system.rows<{ n: number }>(
      `select ((select count(*) from ${table}) + (select count(*) from ${ALIGNED_TABLE}))::int as n`,
    );
    expect(answer.units.reduce((sum: number, { rows: n }: Json) => sum + n, 0)).toBe(inTables[0].n);
    expect(await reads()).toEqual(rows);
    // Columns have ranges of their own.
    expect(await statementsWith('granule_ranges', reads)).toBe(0);
    await verified();
    await replayed();
    expect(await system.digests()).toEqual(digests);
    expect((await compact()).units).toEqual([]);
    await shown(answer);
    const settings = await system.rows(
      `select hypertable_name as name, attname as column, segmentby_column_index is not null as segments
       from timescaledb_information.compression_settings
       where hypertable_name in ('${table}', '${ALIGNED_TABLE}') order by 1, segmentby_column_index, orderby_column_index`,
    );
    expect(settings.map(({ column }) => column)).toEqual([
      'dataset_id',
      'series_id',
      'aligned_at_utc',
      'timestamp',
      'trade_id',
    ]);
    // What a batch states of its doubles.
    const ranged = await system.rows(
      `select distinct substr(attname, length('_ts_meta_v2_max_') + 1) as column
       from _timescaledb_catalog.compression_settings s
       join timescaledb_information.chunks c on s.relid = format('%I.%I', c.chunk_schema, c.chunk_name)::regclass
       join pg_attribute a on a.attrelid = s.compress_relid
       where c.hypertable_name = '${table}' and starts_with(attname, '_ts_meta_v2_max_') order by 1`,
    );
    const [{ known }] = await system.rows(
      `select string_to_array(extversion, '.')::int[] >= '{2,22}' as known from pg_extension where extname = 'timescaledb'`,
    );
    expect(ranged.map(({ column }) => column)).toEqual(known ? ['price', 'quote_quantity', 'size'] : []);
    const [kept] = await system.rows(
      `select state, subject from runs where kind = 'compact' order by run_id desc limit 1`,
    );
    expect(kept).toEqual({ state: 'done', subject: 'columnstore' });
  });

  const mixed = () => mixedChunks((sql) => system.rows(sql), table);

  test('a revision takes its own rows out, and the next run puts them back', async () => {
    const before = await compacted();
    const others = await system.rows(
      `select * from ${table} where trade_id < 2000000 or trade_id >= 3000000 order by trade_id`,
    );
    await writeDay({ directory: system.vendor, ...dayOf(2, 77) });
    await done('reingest', dataset.key, '--from', DAYS[1].day, '--to', DAYS[1].day, '--reason', 'a trial');
    // The chunks of the days beside it stay as they are.
    const [{ chunk }] = await system.rows(
      `select tableoid::regclass::text as chunk from ${table} where trade_id = 2000007`,
    );
    expect(await mixed()).toEqual([chunk]);
    await verified();
    const rows = await reads();
    await compact();
    expect([await mixed(), await compacted()]).toEqual([[], before]);
    expect(await reads()).toEqual(rows);
    expect(
      await system.rows(`select * from ${table} where trade_id < 2000000 or trade_id >= 3000000 order by trade_id`),
    ).toEqual(others);
    await verified();
    await replayed();
  });

  test('a snapshot sees the rows of its time, whatever is revised and compacted after it', async () => {
    const sql = `select md5(string_agg(t::text, ',' order by "timestamp", trade_id)) as digest from ${table} t`;
    const digest = async () => (await system.rows(sql))[0].digest;
    const held = await digest();
    const reading = async () => {
      const client = await connect({ url: system.env.databaseUrls.serve, name: 'a long read' });
      await client.query('begin isolation level repeatable read read only');
      await client.query('select from coverage');
      return {
        digest: async () => (await client.query(sql)).rows[0].digest,
        [Symbol.asyncDispose]: () => client[Symbol.asyncDispose](),
      };
    };
    // A read locks what it has looked at: each looks once.
    let compacting: ReturnType<typeof compact>;
    {
      await using later = await reading();
      {
        await using reader = await reading();
        await writeDay({ directory: system.vendor, ...dayOf(2, 79) });
        await done('reingest', dataset.key, '--from', DAYS[1].day, '--to', DAYS[1].day, '--reason', 'a trial');
        expect(await digest()).not.toBe(held);
        expect(await reader.digest()).toBe(held);
      }
      compacting = compact();
      // It waits; otherwise it would be over.
      await sleep(1500);
      expect(await later.digest()).toBe(held);
    }
    expect(states(await compacting)).toContain(`${table} compacted`);
    expect(await mixed()).toEqual([]);
    await verified();
  });

  test('an altered row is found, quarantined and repaired from the log', async () => {
    const digests = await system.digests();
    await system.client.query(`update ${table} set price = price + 1 where trade_id = 2000007`);
    const { exit, json } = await run('verify', dataset.key);
    expect([exit, json.units.map(({ state }: Json) => state)]).toEqual([1, ['proved', 'quarantined', 'proved']]);
    // A chunk with a partition that is not proved stays out.
    expect(states(await compact())).toContain(`${table} unproved`);
    const mended = await done('replay', dataset.key);
    expect(mended.units.map(({ state }: Json) => state)).toEqual(['identical', 'replaced', 'identical']);
    await verified();
    await compact();
    await verified();
    expect(await system.digests()).toEqual(digests);
  });

  test('a row that is stored twice goes into no columns, and verification refuses it in them', async () => {
    const chunkSql = `select tableoid::regclass::text as chunk from ${table} where trade_id = 2000007`;
    const [{ chunk }] = await system.rows(chunkSql);
    // Not into the chunk: TimescaleDB 2.19 would store a row there that no read sees.
    const again = `insert into ${table} select * from ${table} where trade_id = 2000007`;
    await expect(system.client.query(again)).rejects.toMatchObject({ code: '23505' });
    const [{ index }] = await system.rows(
      'select indexrelid::regclass::text as index from pg_index where indrelid = $1::regclass and indisunique',
      [chunk],
    );
    await system.client.query(`drop index ${index}`);
    await system.client.query(again);
    const { state, code, reason } = (await compact()).units[0];
    expect([state, code]).toEqual(['failed', 'PARTITION_PROOF_FAILED']);
    expect(reason).toContain('1 keys repeat');
    const { json } = await run('verify', dataset.key);
    expect(json.units.map(({ state }: Json) => state)).toEqual(['proved', 'quarantined', 'proved']);
    expect((await done('replay', dataset.key)).units[1].state).toBe('replaced');
    await system.client.query(`create unique index on ${chunk} ("timestamp", trade_id)`);
    await verified();
  });

  test('a quarantined partition that is released is fetched anew', async () => {
    const [day] = [DAYS[1].day];
    await system.client.query(`update ${table} set price = price + 1 where trade_id = 2000007`);
    await run('verify', dataset.key);
    await done('quarantine', 'release', dataset.key, day, '--reason', 'fetch it anew');
    await done('backfill', dataset.key, '--from', day, '--to', day);
    await verified();
    await compact();
    await verified();
  });

  test("another dataset's days go into a compacted chunk of aligned rows", async () => {
    const before = (await compacted()).filter((name) => name.startsWith(ALIGNED_TABLE));
    expect(before.length).toBeGreaterThan(0);
    const csv = csvOf({ day: '2024-03-02', rows: 500, seed: 3, firstId: 1, timeUnit: 'ms' });
    await writeDocument(system.vendor, '2024-03-02', csv);
    await done('backfill', DATASET, '--from', '2024-03-02', '--to', '2024-03-02');
    expect(await compacted()).toEqual(expect.arrayContaining(before));
    await verified();
    const answer = await compact();
    expect(states(answer).sort()).toEqual([`${ALIGNED_TABLE} compacted`, `${DATASET} compacted`].sort());
    await verified();
    await replayed();
    // And are taken out of it again.
    await writeDocument(
      system.vendor,
      '2024-03-02',
      csvOf({ day: '2024-03-02', rows: 400, seed: 4, firstId: 1, timeUnit: 'ms' }),
    );
    await done('reingest', DATASET, '--from', '2024-03-02', '--to', '2024-03-02', '--reason', 'a trial');
    await verified();
  });

  test('a sample ends with the first real day, and its compacted rows with it', async () => {
    const [days, ids] = [
      ['2023-03-01', '2023-03-02'],
      [5_000_001, 5_001_001],
    ];
    for (const [index, day] of days.entries()) {
      const csv = csvOf({ day, rows: 300, seed: index, firstId: ids[index], timeUnit: 'ms' });
      await writeDocument(system.vendor, day, csv);
    }
    await done('backfill', DATASET, '--from', days[0], '--to', days[0]);
    await compact();
    // As a sample leaves it: rows, marked synthetic.
    await system.client.query('update partitions set synthetic = true where dataset_id = 1');
    await system.client.query('update coverage set synthetic = true where dataset_id = 1');
    await done('backfill', DATASET, '--from', days[1], '--to', days[1]);
    const left = await system.rows(`select distinct ("timestamp" / 86400000 * 86400)::int as day from ${DATASET}`);
    expect(left).toEqual([{ day: Date.parse(days[1]) / 1000 }]);
    const seconds = await system.rows(
      `select distinct aligned_at_utc::date::text as day from ${ALIGNED_TABLE} where dataset_id = 1`,
    );
    expect(seconds).toEqual([{ day: days[1] }]);
    await verified();
  });

  test('a day goes into the compacted chunk that it shares with another', async () => {
    const days = ['2025-01-01', '2025-01-02'];
    const interval = (ms: number) => system.rows(`select set_chunk_time_interval('${DATASET}', ${ms})`);
    await interval(30 * DAY_MS);
    await system.rows(`insert into ${DATASET} values (${Date.parse(days[0])}, 0, 0, 0, 0, false, false)`);
    await system.rows(`delete from ${DATASET} where "timestamp" = ${Date.parse(days[0])}`);
    await interval(DAY_MS);
    for (const [index, day] of days.entries()) {
      const csv = csvOf({ day, rows: 300, seed: index, firstId: 8_000_001 + 300 * index, timeUnit: 'ms' });
      await writeDocument(system.vendor, day, csv);
      await done('backfill', DATASET, '--from', day, '--to', day);
      await verified();
      expect(states(await compact())).toContain(`${DATASET} compacted`);
      await verified();
    }
  });

  test('reads beside a compaction answer as before and after it, and young chunks stay rows', async () => {
    await system.client.query(
      `select decompress_chunk(format('%I.%I', chunk_schema, chunk_name)::regclass)
       from timescaledb_information.chunks where is_compressed`,
    );
    const rows = await reads();
    expect((await compactNow(system.env.databaseUrl, 3650)).units).toEqual([]);
    const compacting = compact();
    let isOver = false;
    void compacting.finally(() => {
      isOver = true;
    });
    do expect(await reads()).toEqual(rows);
    while (!isOver);
    expect((await compacting).units.length).toBeGreaterThan(0);
    expect(await reads()).toEqual(rows);
  });

  test('a compaction that was killed left whole chunks, and the next run goes on', async () => {
    const before = await compacted();
    await system.client.query(
      `select decompress_chunk(format('%I.%I', chunk_schema, chunk_name)::regclass)
       from timescaledb_information.chunks where is_compressed`,
    );
    const rows = await reads();
    const [{ chunk }] = await system.rows(
      `select tableoid::regclass::text as chunk from ${table} where trade_id = 2000007`,
    );
    await system.client.query(`begin; lock table ${chunk} in row exclusive mode`);
    const killed = spawn(process.execPath, ['pipelines/projector/main.ts', '--env'], {
      cwd: ROOT,
      env: {
        PATH: process.env.PATH,
        SVC_STATE_DIR: system.env.dir,
        SVC_DATABASE_URL: system.env.databaseUrls.ingest,
        SVC_NATS_PROJECTOR_URL: system.env.natsProjectorUrl,
        ...limitsEnv({ columnsQuietMs: 0 }),
      },
      stdio: 'ignore',
    });
    // It has compacted what lies before the chunk that is held, and waits for this one. Projectors that start wait for other locks.
    const waiting = `select from pg_locks where not granted and relation = '${chunk}'::regclass`;
    await expect.poll(async () => (await system.rows(waiting)).length).toBeGreaterThan(0);
    killed.kill('SIGKILL');
    await once(killed, 'exit');
    await system.client.query('rollback');
    const left = await compacted();
    expect(left.length).toBeGreaterThan(0);
    expect(left.length).toBeLessThan(before.length);
    expect(await reads()).toEqual(rows);
    await verified();
    const { units } = await compact();
    expect(units.length).toBe(before.length - left.length);
    expect(await compacted()).toEqual(before);
    expect(await reads()).toEqual(rows);
    await verified();
  });

  test('a chunk that later rows came into takes no more bytes than one of the same rows at once', async () => {
    const bytesOf = ({ units }: Json): number => sumOf(units, 'bytes_after');
    const csv = csvOf({ day: '2024-03-03', rows: 30_000, seed: 3, firstId: 1, timeUnit: 'ms' });
    await writeDocument(system.vendor, '2024-03-03', csv);
    await done('backfill', DATASET, '--from', '2024-03-03', '--to', '2024-03-03');
    const merged = await compact();
    expect(states(merged)).toContain(`${ALIGNED_TABLE} compacted`);
    await system.client.query(
      `select decompress_chunk(format('%I.%I', chunk_schema, chunk_name)::regclass) from timescaledb_information.chunks
       where is_compressed and hypertable_name in ('${DATASET}', '${ALIGNED_TABLE}')`,
    );
    expect(bytesOf(merged)).toBeLessThan(1.1 * bytesOf(await compact()));
  });

  test('a chunk that something else holds is left for the next run', async () => {
    await writeDay({ directory: system.vendor, ...dayOf(3, 78) });
    await done('reingest', dataset.key, '--from', DAYS[2].day, '--to', DAYS[2].day, '--reason', 'a trial');
    const [{ chunk }] = await system.rows(
      `select tableoid::regclass::text as chunk from ${table} where trade_id = 3000007`,
    );
    await system.client.query(`begin; lock table ${chunk} in row exclusive mode`);
    const held = await compact();
    await system.client.query('rollback');
    expect(states(held)).toContain(`${table} busy`);
    expect(states(await compact())).toContain(`${table} compacted`);
  });
});

givenOtherDatabase.test('the table of other instruments is compacted where all of them are proved', async () => {
  await using system = await System.create();
  const [ONE, TWO] = ['ETH-USDT', 'SOL-USDT'];
  const env = {
    SVC_EXCHANGE_B_BASE_URL: pathToFileURL(`${system.vendor}/`).href,
    SVC_EXCHANGE_B_ALSO: `${ONE},${TWO}`,
  };
  const run = (...args: string[]) => system.run(args, env);
  const [{ day }] = DAYS;
  for (const instrument of [ONE, TWO]) await writeDay({ directory: system.vendor, ...DAYS[0], instrument });
  const backfill = (...more: string[]) =>
    run('backfill', dataset.key, '--from', day, '--to', day, '--instrument', `${ONE},${TWO}`, ...more);
  expect((await backfill()).json.proved).toBe(2);
  const others = `${table}_others`;
  const compactOthers = async () => {
    const { units } = await compactNow(system.env.databaseUrl);
    return units.filter((unit) => unit.table === others).map(({ state, rows }) => [state, rows]);
  };
  const setState = (state: string) =>
    system.rows('update partitions set state = $1 where partition_key = $2', [state, `${TWO}:${day}`]);
  await setState('quarantined');
  expect(await compactOthers()).toEqual([['unproved', 0]]);
  await setState('proved');
  expect(await compactOthers()).toEqual([['compacted', 6000]]);
  expect(await compactOthers()).toEqual([]);

  const verify = async () => {
    const { exit, json } = await run('verify', dataset.key, '--deep', '--instrument', 'all');
    return [exit, json.units.map(({ partition, state }: Json) => [partition, state])];
  };
  const proved = [0, [ONE, TWO].map((symbol) => [`${symbol}:${day}`, 'proved'])];
  expect(await verify()).toEqual(proved);
  await using serving = await startServing({ databaseUrl: system.env.databaseUrl, settings: env });
  for (const window of [{ n_rows: 100 }, {}]) {
    const { json } = await serving.query({ sources: [dataset.key], instrument: ONE, ...window });
    expect([json.row_count, json.rows[0].instrument_name]).toEqual([window.n_rows ?? 3000, ONE]);
  }
  // A revision of one takes the chunk out of the columns, and leaves the other's rows as they are.
  await writeDay({ directory: system.vendor, ...DAYS[0], seed: 9, instrument: ONE });
  const again = ['reingest', dataset.key, '--from', day, '--to', day, '--instrument', ONE, '--reason', 'a trial'];
  expect((await run(...again)).exit).toBe(0);
  expect(await verify()).toEqual(proved);
  expect(await compactOthers()).toEqual([['compacted', 6000]]);
});
