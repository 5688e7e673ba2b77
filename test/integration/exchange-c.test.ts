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
import { System } from '../support/pipeline.ts';
import { startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { compareNative, secondsOfFiles, secondsStored } from '../support/trade-oracle.ts';
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
