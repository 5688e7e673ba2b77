/** Exchange C's tree `spot` end to end: what its rows do not state is computed, and its ids begin anew every day. */
import { readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ExchangeCDay, generateLines, writeDay } from '../../pipelines/sources/exchange_c/sample.ts';
import { exchangeCSpotTrades as dataset } from '../../shared/registry/datasets/exchange_c_spot_trades.ts';
import type { Json } from '../support/command.ts';
import { givenData } from '../support/given.ts';
import { System } from '../support/pipeline.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { compareNative, secondsOfFiles, secondsStored } from '../support/trade-oracle.ts';

const DAYS: readonly ExchangeCDay[] = [
  { day: '2025-06-01', rows: 12_000, seed: 5, rpi: true },
  { day: '2025-06-02', rows: 9_000, seed: 6, order: 'shuffled', repeats: 0.01 },
  { day: '2025-06-03', rows: 300, seed: 7, order: 'newest_first' },
];
const [FIRST, , LAST] = DAYS.map(({ day }) => day);
const envOf = (vendor: string) => ({ SVC_EXCHANGE_C_BASE_URL: pathToFileURL(`${vendor}/`).href });

async function put(vendor: string, day: string, text: string): Promise<void> {
  const path = join(vendor, `spot/BTCUSDT/BTCUSDT_${day}.csv.gz`);
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, gzipSync(text, { level: 1 }));
}

describe('three days', () => {
  let system: System;
  let serving: Serving;
  /** The files' distinct lines. */
  const csv: string[] = [];
  beforeAll(async () => {
    system = await System.create();
    for (const day of DAYS) {
      const lines = generateLines(day);
      await put(system.vendor, day.day, lines.join(''));
      csv.push(join(system.env.dir, `${day.day}.csv`));
      await writeFile(csv.at(-1)!, [...new Set(lines)].join(''));
      // The other tree lies beside it, with other trades.
      await writeDay({ ...day, directory: system.vendor, archive: 'trading', seed: 99 });
    }
    serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl },
    });
  });
  afterAll(async () => {
    await serving[Symbol.asyncDispose]();
    await system[Symbol.asyncDispose]();
  });
  const send = async (path: string, body?: object) => {
    const answer = await serving.send({ path, ...(body ? { body: JSON.stringify(body) } : { method: 'GET' }) });
    expect(answer.status, answer.text.slice(0, 300)).toBe(200);
    return answer.json;
  };

  test('are proved, and hold exactly what DuckDB makes of the files', async () => {
    const { exit, stderr, json } = await system.run(
      ['backfill', dataset.key, '--from', FIRST, '--to', LAST],
      envOf(system.vendor),
    );
    expect([exit, stderr, json.units.map(({ state, rows }: Json) => [state, rows])]).toEqual([
      0,
      '',
      DAYS.map(({ rows }) => ['proved', rows]),
    ]);
    expect(await compareNative(system, csv, system.env.dir, dataset.key)).toEqual([21_300, 21_300, 0, 0]);
    const ticks = await system.rows(`select distinct tick_direction from ${dataset.native.table}`);
    expect(ticks).toHaveLength(5);
    expect(await secondsStored(system, dataset.key)).toEqual(await secondsOfFiles(csv, dataset.key));
  });

  test('give an event back by its day, and name the days where none is given', async () => {
    const without = await system.run(['event', dataset.key, '300']);
    expect([without.exit, without.json.error.code]).toEqual([2, 'USAGE']);
    expect(without.json.error.message).toContain(DAYS.map(({ day }) => day).join(', '));
    expect(without.json.error.remedy).toContain('--date');
    const lines = csv.map((path) => readFileSync(path, 'utf8').split('\n'));
    const ids = [];
    for (const [index, { day }] of DAYS.entries()) {
      const { json } = await system.run(['event', dataset.key, '300', '--date', day]);
      const lineage = await send(`/v1/lineage/${dataset.key}/300?date=${day}`);
      expect(json.payload_raw).toBe(lines[index].find((line) => line.startsWith('300,')));
      expect([json.partition, lineage.payload_raw.utf8, lineage.event_id]).toEqual([
        day,
        json.payload_raw,
        json.event_id,
      ]);
      ids.push(json.event_id);
    }
    expect(new Set(ids).size).toBe(3);
    const wrong = await system.run(['event', dataset.key, '300', '--date', '2025-02-30']);
    expect([wrong.exit, wrong.json.error.code]).toEqual([2, 'USAGE']);
    expect(wrong.json.error.message).toContain('the calendar has no 2025-02-30');
  });
});

test('a day without its first ids or some between is quarantined with their names', async () => {
  await using system = await System.create();
  await put(system.vendor, FIRST, generateLines({ ...DAYS[2], day: FIRST, without: [1, 2, 40] }).join(''));
  const { exit, json } = await system.run(
    ['backfill', dataset.key, '--from', FIRST, '--to', FIRST],
    envOf(system.vendor),
  );
  expect([exit, json.units[0].code]).toEqual([1, 'PARTITION_PROOF_FAILED']);
  expect(json.units[0].reason).toContain('1..2, 40');
});

/** What the vendor published: the file, its trades (tick, price, size, quote, side), and its seconds (price, size, quote, trades). */
const REAL = [
  {
    day: '2023-10-01',
    file: 'spot_BTCUSDT_2023-10-01.first1.csv',
    trades: [[1696118403019, '', 26965.24, 0.000055, 1.4830882, 148308820, 'buy']],
    seconds: [['2023-10-01T00:00:03.000Z', 26965.24, 0.000055, 1.4830882, 1]],
  },
  {
    day: '2025-05-19',
    file: 'spot_BTCUSDT_2025-05-19.first3.csv',
    trades: [
      [1747612800074, '', 106453.8, 0.003718, 395.7952284, 39579522840, 'sell'],
      [1747612800150, 'PlusTick', 106456.9, 0.0005, 53.22845, 5322845000, 'buy'],
      [1747612800150, 'ZeroPlusTick', 106456.9, 0.0005, 53.22845, 5322845000, 'buy'],
    ],
    seconds: [['2025-05-19T00:00:00.000Z', 106456.9, 0.004718, 502.2521284, 3]],
  },
  {
    day: '2026-09-01',
    file: 'spot_BTCUSDT_2026-09-01.first3.csv',
    trades: [
      [1788220800624, '', 78580.8, 0.00016, 12.572928, 1257292800, 'buy'],
      [1788220801011, 'MinusTick', 78580.7, 0.000984, 77.3234088, 7732340880, 'sell'],
      [1788220801011, 'ZeroMinusTick', 78580.7, 0.001273, 100.0332311, 10003323110, 'sell'],
    ],
    seconds: [
      ['2026-09-01T00:00:00.000Z', 78580.8, 0.00016, 12.572928, 1],
      ['2026-09-01T00:00:01.000Z', 78580.7, 0.002257, 177.3566399, 2],
    ],
  },
] as const;
const EXCERPTS = 'exchange_c/excerpts';

givenData(EXCERPTS).test('real rows of three days are served cell by cell, in both modes', async () => {
  await using system = await System.create();
  await using serving = await startServing({ databaseUrl: system.env.databaseUrl });
  for (const { day, file, trades, seconds } of REAL) {
    await put(system.vendor, day, readFileSync(join('../shared/data', EXCERPTS, file), 'utf8'));
    const { exit } = await system.run(['backfill', dataset.key, '--from', day, '--to', day], envOf(system.vendor));
    expect(exit).toBe(0);
    const time_range = [`${day}T00:00:00Z`, `${day}T00:01:00Z`];
    const native = await serving.query({ mode: 'native', sources: [dataset.key], time_range });
    expect(native.json.rows).toEqual(
      trades.map(([timestamp, tick, price, size, quote, gross, side], index) => ({
        symbol: 'BTCUSDT',
        trade_id: index + 1,
        trd_match_id: `m-${index + 1}`,
        side,
        price,
        size,
        quote_quantity: quote,
        timestamp,
        datetime: new Date(timestamp).toISOString(),
        tick_direction: tick,
        gross_value: gross,
        home_notional: size,
        foreign_notional: quote,
      })),
    );
    const aligned = await serving.query({ mode: 'aligned_1s', sources: [dataset.key], time_range });
    const names = ['aligned_at_utc', 'close_price', 'quantity_sum', 'quote_volume_sum', 'trade_count'];
    expect(aligned.json.rows.map((row: Json) => names.map((name) => row[name]))).toEqual(seconds);
  }
});
