/** Exchange C's tree `trading` end to end: real servers, the real command, a folder that plays the vendor. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ExchangeCDay, generateLines, writeDay } from '../../pipelines/sources/exchange_c/sample.ts';
import { exchangeCSpotTrades as dataset } from '../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { eventId } from '../../shared/registry/event-id.ts';
import type { Json } from '../support/command.ts';
import { System } from '../support/pipeline.ts';
import { startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { compareNative, duckdb, secondsOfFiles, secondsStored, tradesOf } from '../support/trade-oracle.ts';
import { tracesOf } from '../support/trades.ts';

const ORACLE = 'exchange_c_trading';
/** Several frames, and more rows than a run is first given room for (row-run.ts). */
const LARGE: ExchangeCDay = {
  archive: 'trading',
  day: '2024-03-02',
  rows: 80_000,
  seed: 11,
  firstId: 700,
  repeats: 0.01,
  order: 'shuffled',
  rpi: true,
};
const NEXT: ExchangeCDay = {
  archive: 'trading',
  day: '2024-03-03',
  rows: 10_000,
  seed: 12,
  order: 'shuffled',
  repeats: 0.01,
};
const archivePath = (day: string) => `trading/BTCUSDT/BTCUSDT${day}.csv.gz`;
const envOf = (vendor: string) => ({
  SVC_EXCHANGE_C_BASE_URL: pathToFileURL(`${vendor}/`).href,
  SVC_EXCHANGE_C_ARCHIVE: 'trading',
});
const backfill = (system: System, from: string, to = from, env: Record<string, string> = envOf(system.vendor)) =>
  system.run(['backfill', dataset.key, '--from', from, '--to', to], env);
async function put(system: System, day: string, bytes: Buffer | string | undefined): Promise<void> {
  const path = join(system.vendor, archivePath(day));
  await mkdir(dirname(path), { recursive: true });
  if (bytes === undefined) await rm(path, { force: true });
  else await writeFile(path, typeof bytes === 'string' ? gzipSync(bytes, { level: 1 }) : bytes);
}

describe('two days', () => {
  let system: System;
  /** The files' distinct lines. */
  const csv: string[] = [];
  const repeats: number[] = [];
  beforeAll(async () => {
    system = await System.create();
    for (const day of [LARGE, NEXT]) {
      const lines = generateLines(day);
      await put(system, day.day, lines.join(''));
      const distinct = new Set(lines);
      repeats.push(lines.length - distinct.size);
      const path = join(system.env.dir, `${day.day}.csv`);
      await writeFile(path, [...distinct].join(''));
      csv.push(path);
    }
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('are proved', async () => {
    const { exit, json, stderr } = await backfill(system, LARGE.day, NEXT.day);
    expect([exit, stderr, json.units]).toEqual([
      0,
      '',
      [LARGE, NEXT].map(({ day, rows }) => ({ dataset: dataset.key, partition: day, state: 'proved', rows })),
    ]);
  });

  test('hold exactly the rows of the files, repeats once, as DuckDB reads them', async () => {
    expect(await compareNative(system, csv, system.env.dir, dataset.key, ORACLE)).toEqual([90_000, 90_000, 0, 0]);
    const zero = await system.rows(`select count(*) n from ${dataset.native.table} where size = 0`);
    expect(Number(zero[0].n)).toBeGreaterThan(100);
  });

  test('have aligned rows equal to what DuckDB computes, for all seconds', async () => {
    const expected = await secondsOfFiles(csv, ORACLE);
    expect(expected.length).toBeGreaterThan(30_000);
    const stored = await secondsStored(system, dataset.key);
    expect(stored.length).toBe(expected.length);
    const differing = stored.filter((row, index) => row.some((cell, column) => cell !== expected[index][column]));
    expect(differing).toEqual([]);
  });

  test('say in their manifests what was left out, and lie in the log in the order of their ids', async () => {
    const lines = readFileSync(csv[0], 'utf8').trimEnd().split('\n').slice(1);
    const [{ manifest }] = await system.rows(`select manifest from partitions where partition_key = '${LARGE.day}'`);
    const byId: string[] = [];
    for (const line of lines) byId[Number(/,m-(\d+),/.exec(line)?.[1])] = line;
    const sorted = byId.slice(700);
    expect(manifest).toMatchObject({
      rows: LARGE.rows,
      gaps: 0,
      first_offset: '700',
      last_offset: String(699 + LARGE.rows),
      repeats_dropped: repeats[0],
      events_sha256: createHash('sha256')
        .update(`${sorted.join('\n')}\n`)
        .digest('hex'),
    });
    expect(manifest.repeats_dropped).toBeGreaterThan(300);
  });

  test('are the same sorted: no other digest, nothing to do', async () => {
    const before = await system.digests();
    await writeDay({ directory: system.vendor, ...NEXT, order: 'ids' });
    const again = await backfill(system, LARGE.day, NEXT.day);
    expect(again.json).toMatchObject({ ok: true, unchanged: 2, proved: 0 });
    const reason = ['--reason', 'the same rows in order'];
    const anew = await system.run(['reingest', dataset.key, '--from', NEXT.day, '--to', NEXT.day, ...reason], {
      ...envOf(system.vendor),
      ...limitsEnv({ frameRawBytes: 60_000 }),
    });
    expect(anew.json).toMatchObject({ ok: true, proved: 1 });
    const after = await system.digests();
    expect(after).toEqual({ ...before, [NEXT.day]: { ...before[NEXT.day], revision: 2 } });
  });

  test('are replayed and verified to the byte, and give each event back', async () => {
    for (const [command, state] of [
      [['replay'], 'identical'],
      [['verify', '--deep'], 'proved'],
    ] as const) {
      const { exit, json } = await system.run([command[0], dataset.key, ...command.slice(1)]);
      expect([exit, json.units.map((unit: Json) => unit.state)]).toEqual([0, [state, state]]);
    }
    // Ids of one day mean nothing on another.
    const both = await system.run(['event', dataset.key, '800']);
    expect([both.exit, both.json.error.code]).toEqual([2, 'USAGE']);
    const { json } = await system.run(['event', dataset.key, '800', '--partition', NEXT.day]);
    expect(json).toMatchObject({
      payload_raw: readFileSync(csv[1], 'utf8')
        .split('\n')
        .find((line) => line.includes(',m-800,')),
      event_id: eventId(dataset, NEXT.day, '800'),
    });
    const status = (await system.run(['status', dataset.key])).json.datasets[0];
    expect([status.offset_breaks, status.partitions.proved]).toEqual([[], 2]);
  });

  test('are served by the historical routes, as klines and by lineage', async () => {
    await using serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl },
    });
    const send = async (path: string, body?: object) => {
      const answer = await serving.send({ path, ...(body ? { body: JSON.stringify(body) } : { method: 'GET' }) });
      expect(answer.status, answer.text.slice(0, 300)).toBe(200);
      return answer.json;
    };
    const { rows: trades } = await send('/v1/historical/exchange_c/spot/trades', { n_latest_rows: 20 });
    expect(Object.keys(trades[0])).toEqual([
      'trade_id',
      'timestamp',
      'price',
      'quantity',
      'is_buyer_maker',
      'datetime',
    ]);
    const day = { start_date: LARGE.day, end_date: LARGE.day, strict: true };
    const [[count, volume]] = await duckdb(`select count(*), sum(quote)::varchar from ${tradesOf([csv[0]], ORACLE)}`);
    for (const mode of ['native', 'aligned_1s']) {
      const { rows: klines } = await send('/v1/historical/exchange_c/spot/klines', { ...day, mode, kline_size: '1h' });
      expect(klines.length).toBe(24);
      const sum = (name: string) => klines.reduce((total: number, row: Json) => total + row[name], 0);
      expect(sum('no_of_trades')).toBe(Number(count));
      // Native klines multiply price and size; what the file states may differ in the last digits.
      expect(sum('liquidity_sum') / Number(volume)).toBeCloseTo(1, 5);
    }
    const lineage = await send(`/v1/lineage/${dataset.key}/800?partition=${NEXT.day}`);
    expect(readFileSync(csv[1], 'utf8').split('\n')).toContain(lineage.payload_raw.utf8);
    expect(lineage.payload_raw.utf8).toContain(',m-800,');
  });

  test('answer with every field, ordered by time and id', async () => {
    await using serving = await startServing({ databaseUrl: system.env.databaseUrl });
    for (const window of [
      { n_random: 300, random_seed: 1 },
      { time_range: ['2024-03-02T12:00:00Z', '2024-03-02T12:01:00Z'] },
      { n_rows: 40 },
    ]) {
      const { status, json } = await serving.query({ mode: 'native', sources: [dataset.key], ...window });
      expect([status, json.schema.map(({ name }: Json) => name)]).toEqual([
        200,
        ['symbol', 'trade_id', 'trd_match_id', 'side', 'price', 'size', 'quote_quantity', 'timestamp', 'datetime',
          'tick_direction', 'gross_value', 'home_notional', 'foreign_notional'],
      ]); // biome-ignore format: one list
      if ('n_rows' in window) expect(json.row_count).toBe(40);
      let before = [0, 0];
      for (const row of json.rows) {
        expect(row.trd_match_id).toBe(`m-${row.trade_id}`);
        expect(row.quote_quantity).toBe(row.foreign_notional);
        expect(row.timestamp > before[0] || (row.timestamp === before[0] && row.trade_id > before[1])).toBe(true);
        before = [row.timestamp, row.trade_id];
      }
    }
    const aligned = await serving.query({ mode: 'aligned_1s', sources: [dataset.key], n_rows: 5 });
    expect([aligned.status, aligned.json.row_count]).toEqual([200, 5]);
  });
});

test('a day whose first row comes again at its end is read again, and proved by the next attempt', {
  tags: ['nightly'],
}, async () => {
  await using system = await System.create();
  // Seven runs of 4 MiB, so that frames are published before the end.
  const lines = generateLines({
    archive: 'trading',
    day: '2024-05-04',
    rows: 260_000,
    seed: 1,
    order: 'ids',
    repeats: 0,
  });
  lines.push(lines[1]);
  await put(system, '2024-05-04', lines.join(''));
  const { exit, json, stderr } = await backfill(system, '2024-05-04');
  expect(exit, stderr).toBe(0);
  expect(json.units).toMatchObject([{ state: 'proved', rows: 260_000 }]);
  const attempts = await system.rows(
    `select attempt, state, reason from attempts where partition_key = '2024-05-04' order by attempt`,
  );
  expect(attempts).toMatchObject([
    { attempt: 1, state: 'abandoned', reason: expect.stringContaining('line 260002') },
    { attempt: 2, state: 'proved' },
  ]);
  const [{ manifest }] = await system.rows(`select manifest from partitions where partition_key = '2024-05-04'`);
  expect(manifest).toMatchObject({ rows: 260_000, repeats_dropped: 1, gaps: 0, frames: expect.any(Number) });
});

describe('a document that is not right', () => {
  let system: System;
  beforeAll(async () => {
    system = await System.create();
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('a day larger than may be sorted is refused with the limit', async () => {
    await put(
      system,
      '2024-05-06',
      generateLines({ archive: 'trading', day: '2024-05-06', rows: 12_000, seed: 1 }).join(''),
    );
    const env = { ...envOf(system.vendor), ...limitsEnv({ sortBytes: 1 << 20 }) };
    const { exit, json } = await backfill(system, '2024-05-06', '2024-05-06', env);
    expect([exit, json.units[0].code]).toEqual([1, 'SOURCE_DOCUMENT_INVALID']);
    expect(json.units[0].reason).toContain('more rows than are sorted (1048576 bytes)');
  });

  test('a day with ids missing is published, not proved: quarantined with their names, not served; others go on', async () => {
    const gap: ExchangeCDay = {
      archive: 'trading',
      day: '2024-05-07',
      rows: 300,
      seed: 1,
      without: [17, 40, 41, 42],
      order: 'shuffled',
    };
    await writeDay({ directory: system.vendor, ...gap });
    await writeDay({ directory: system.vendor, archive: 'trading', day: '2024-05-08', rows: 200, seed: 1 });
    const { exit, json } = await backfill(system, gap.day, '2024-05-08');
    expect(exit).toBe(1);
    expect(json.units).toMatchObject([
      {
        partition: gap.day,
        state: 'quarantined',
        code: 'PARTITION_PROOF_FAILED',
        reason: expect.stringContaining('17, 40..42'),
      },
      { partition: '2024-05-08', state: 'proved' },
    ]);
    const [row] = await system.rows(
      `select state, reason, manifest from partitions where partition_key = '${gap.day}'`,
    );
    expect(row).toMatchObject({
      state: 'quarantined',
      manifest: { rows: 296, gaps: 4, missing_offsets: ['17', '40..42'] },
    });
    expect(await tracesOf(system.client, dataset, gap.day)).toMatchObject({ native: 0, aligned: 0, covered: 0 });
    await using serving = await startServing({ databaseUrl: system.env.databaseUrl });
    const answer = await serving.query({
      mode: 'native',
      sources: [dataset.key],
      time_range: ['2024-05-07T00:00:00Z', '2024-05-09T00:00:00Z'],
    });
    expect([answer.status, answer.json.row_count, answer.json.warnings[0].code]).toEqual([
      200,
      200,
      'WINDOW_EXCEEDS_PROVED_COVERAGE',
    ]);
    // The vendor mends its file: a new revision, on purpose.
    await writeDay({ directory: system.vendor, ...gap, without: [] });
    expect((await backfill(system, gap.day)).json.units[0]).toMatchObject({
      state: 'quarantined',
      code: 'PARTITION_PROOF_FAILED',
    });
    const again = await system.run(
      ['reingest', dataset.key, '--from', gap.day, '--to', gap.day, '--reason', 'mended'],
      envOf(system.vendor),
    );
    expect(again.json.units).toMatchObject([{ partition: gap.day, state: 'proved', rows: 300 }]);
  });
});
