/** Exchange B end to end: real servers, the real command, a vendor on loopback. */

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ExchangeBDay, generateLines, writeDay } from '../../pipelines/sources/exchange_b/sample.ts';
import { exchangeBSpotTrades as dataset } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { eventId } from '../../shared/registry/event-id.ts';
import type { Json } from '../support/command.ts';
import { DAY_MS, System } from '../support/pipeline.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { compareNative, duckdb, secondsOfFiles, secondsStored, tradesOf } from '../support/trade-oracle.ts';

/** Several frames. */
const LARGE: ExchangeBDay = {
  day: '2024-03-02',
  rows: 60_000,
  seed: 11,
  firstId: 1_000_000,
  gaps: 0.05,
  repeats: 0.01,
  source: true,
};
const NEXT: ExchangeBDay = { day: '2024-03-03', rows: 20_000, seed: 12, firstId: 9_000_000 };
const envOf = (vendor: string) => ({ SVC_EXCHANGE_B_BASE_URL: pathToFileURL(`${vendor}/`).href });
const backfill = (system: System, from: string, to = from, env: Record<string, string> = envOf(system.vendor)) =>
  system.run(['backfill', dataset.key, '--from', from, '--to', to], env);

describe('two file days', () => {
  let system: System;
  let serving: Serving;
  /** The files' distinct lines. */
  const csv: string[] = [];
  const repeats: number[] = [];
  beforeAll(async () => {
    system = await System.create();
    for (const day of [LARGE, NEXT]) {
      await writeDay({ directory: system.vendor, ...day });
      const lines = [...generateLines(day)];
      const distinct = new Set(lines);
      repeats.push(lines.length - distinct.size);
      const path = join(system.env.dir, `${day.day}.csv`);
      await writeFile(path, [...distinct].join(''));
      csv.push(path);
    }
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await system[Symbol.asyncDispose]();
  });

  test('the first proved: the UTC day it lies in is served in part, with the warning', async () => {
    const { exit, json } = await backfill(system, LARGE.day);
    expect([exit, json.units]).toEqual([
      0,
      [{ dataset: dataset.key, partition: LARGE.day, state: 'proved', rows: LARGE.rows }],
    ]);
    serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl },
    });
    const day = { time_range: [`${LARGE.day}T00:00:00Z`, `${NEXT.day}T00:00:00Z`] };
    const body = { mode: 'aligned_1s', sources: [dataset.key], fields: ['aligned_at_utc', 'trade_count'], ...day };
    const answer = await serving.query(body);
    expect(answer.status).toBe(200);
    expect(answer.json.warnings).toMatchObject([
      {
        code: 'WINDOW_EXCEEDS_PROVED_COVERAGE',
        details: { gaps: [{ start: `${LARGE.day}T16:00:00.000Z`, end: `${NEXT.day}T00:00:00.000Z` }] },
      },
      ...(answer.json.warnings.length > 1 ? [{ code: 'ALIGNED_FRESHNESS_STALE' }] : []),
    ]);
    const [[rows]] = await duckdb(
      `select count(*) from ${tradesOf([csv[0]], dataset.key)} where ms >= ${Date.parse(`${LARGE.day}T00:00:00Z`)}`,
    );
    expect(answer.json.rows.reduce((sum: number, row: Json) => sum + row.trade_count, 0)).toBe(Number(rows));
    expect((await serving.query({ ...body, strict: true })).status).toBe(409);
  });

  test('many newest rows, which row counts of partitions and frames lead to, are those of the whole history', {
    tags: ['nightly'],
  }, async () => {
    const { exit } = await backfill(system, LARGE.day, NEXT.day);
    expect(exit).toBe(0);
    const rows = await system.rows<Json>(
      `select trade_id::float8 as id from ${dataset.native.table} order by "timestamp", trade_id`,
    );
    const ids = rows.map(({ id }) => id);
    for (const n_rows of [10_001, 19_999, 20_000, 20_001, 33_333, 61_234, 79_999, 80_000, 90_000]) {
      const answer = await serving.query({ mode: 'native', sources: [dataset.key], fields: ['trade_id'], n_rows });
      const found = answer.json.rows.map(({ trade_id }: Json) => trade_id);
      expect([n_rows, found.length]).toEqual([n_rows, Math.min(n_rows, 80_000)]);
      expect(found).toEqual(ids.slice(-n_rows));
    }
  });

  test('both proved: the UTC day is whole, and says so', async () => {
    const { exit } = await backfill(system, LARGE.day, NEXT.day);
    expect(exit).toBe(0);
    const from = Date.parse(`${LARGE.day}T00:00:00Z`);
    const answer = await serving.query({
      mode: 'native',
      sources: [dataset.key],
      strict: true,
      fields: ['trade_id', 'timestamp'],
      time_range: [`${LARGE.day}T00:00:00Z`, `${NEXT.day}T00:00:00Z`],
    });
    expect([answer.status, answer.json.warnings]).toEqual([200, []]);
    const [[rows]] = await duckdb(
      `select count(*) from ${tradesOf(csv, dataset.key)} where ms >= ${from} and ms < ${from + DAY_MS}`,
    );
    expect(answer.json.row_count).toBe(Number(rows));
    const status = (await system.run(['status', dataset.key])).json.datasets[0];
    expect(status.proved_ranges).toEqual([
      {
        source: 'exchange_b',
        from: LARGE.day,
        to: NEXT.day,
        from_utc: '2024-03-01T16:00:00.000Z',
        to_utc_exclusive: '2024-03-03T16:00:00.000Z',
      },
    ]);
    expect([status.partitions.missing, status.gaps, status.offset_breaks]).toEqual([0, [], []]);
  });

  test('hold exactly the rows of the files, repeats once, as DuckDB reads them', async () => {
    expect(await compareNative(system, csv, system.env.dir, dataset.key)).toEqual([80_000, 80_000, 0, 0]);
    // The quote quantity: the exact product, rounded once.
    const products = await duckdb(
      `select id, quote::varchar from ${tradesOf(csv, dataset.key)} order by id desc limit 25000`,
    );
    const { rows } = await system.client.query(
      `select trade_id, quote_quantity from ${dataset.native.table} order by trade_id desc limit 25000`,
    );
    expect(rows.map((row) => [row.trade_id, row.quote_quantity])).toEqual(
      products.map(([id, product]) => [id, Number(product)]),
    );
  });

  test('have aligned rows equal to what DuckDB computes, for all seconds', async () => {
    const expected = await secondsOfFiles(csv, dataset.key);
    expect(expected.length).toBeGreaterThan(30_000);
    const stored = await secondsStored(system, dataset.key);
    expect(stored.length).toBe(expected.length);
    const differing = stored.filter((row, index) => row.some((cell, column) => cell !== expected[index][column]));
    expect(differing).toEqual([]);
  });

  test('count what was left out, in their manifests', async () => {
    const lines = readFileSync(csv[0], 'utf8').trimEnd().split('\n').slice(1);
    const { rows } = await system.client.query(`select manifest from partitions where partition_key = '${LARGE.day}'`);
    const { manifest } = rows[0];
    const ids = lines.map((line) => Number(line.split(',')[1]));
    expect(manifest).toMatchObject({
      rows: LARGE.rows,
      repeats_dropped: repeats[0],
      gaps: ids[ids.length - 1] - ids[0] + 1 - LARGE.rows,
      from_ms: Date.parse('2024-03-01T16:00:00Z'),
      events_sha256: createHash('sha256')
        .update(`${lines.join('\n')}\n`)
        .digest('hex'),
    });
    expect(manifest.repeats_dropped).toBeGreaterThan(300);
  });

  test('answer with every field, lineage among them', async () => {
    const partitions = await system.client.query(
      `select partition_key, from_ms, to_ms, manifest->>'ingested_at_ms' as at from partitions order by from_ms`,
    );
    for (const window of [
      { n_random: 200, random_seed: 5 },
      { time_range: ['2024-03-02T15:59:00Z', '2024-03-02T16:05:00Z'] },
      { n_rows: 50 },
    ]) {
      const answer = await serving.query({ mode: 'native', sources: [dataset.key], ...window });
      expect([answer.status, answer.json?.schema?.length]).toEqual([200, 12]);
      expect(answer.json.row_count).toBeGreaterThan(40);
      for (const row of answer.json.rows) {
        const { partition_key, at } = partitions.rows.find(
          ({ from_ms, to_ms }) => row.timestamp >= Number(from_ms) && row.timestamp < Number(to_ms),
        );
        expect(row).toMatchObject({
          instrument_name: 'BTC-USDT',
          event_id: eventId(dataset, partition_key, String(row.trade_id)),
          source_offset_or_equivalent: String(row.trade_id),
          source_event_time_utc: new Date(row.timestamp).toISOString(),
          datetime: new Date(row.timestamp).toISOString(),
          ingested_at_utc: new Date(Number(at)).toISOString(),
        });
        expect(['buy', 'sell']).toContain(row.side);
      }
    }
    const first = (await serving.query({ mode: 'native', sources: [dataset.key], n_rows: 1 })).json.rows[0];
    const found = await serving.query({
      mode: 'native',
      sources: [dataset.key],
      time_range: ['2024-03-03T15:00:00Z', '2024-03-03T16:00:00Z'],
      filters: [{ field: 'event_id', op: 'eq', value: first.event_id }],
    });
    expect(found.json.rows).toEqual([first]);
  });
});

describe('settings', () => {
  const DAY = '2024-05-05';
  let system: System;
  beforeAll(async () => {
    system = await System.create();
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('that name neither location, both, or months are refused with exit 2', async () => {
    const none = await backfill(system, DAY, DAY, {});
    expect([none.exit, none.json.error.code]).toEqual([2, 'CONFIGURATION_INVALID']);
    expect(none.json.error.message).toMatch(/SVC_EXCHANGE_B_BASE_URL or SVC_EXCHANGE_B_LINK_URL/);
    const both = { ...envOf(system.vendor), SVC_EXCHANGE_B_LINK_URL: 'http://127.0.0.1:9/link' };
    expect((await backfill(system, DAY, DAY, both)).exit).toBe(2);
    const monthly = ['backfill', dataset.key, '--from', DAY, '--to', DAY, '--granularity', 'monthly'];
    expect((await system.run(monthly, envOf(system.vendor))).exit).toBe(2);
  });
});
