/** The samples of all sources cover the same week, and the chain's blocks come as blocks do. */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { isIncomplete } from '../../pipelines/cli/commands/up.ts';
import { MarketPrice } from '../../pipelines/sample/market.ts';
import { SAMPLE_DAYS, sampleWeek } from '../../pipelines/sample/week.ts';
import { planUnits, SAMPLE_UNITS } from '../../pipelines/sources/bitcoin/proved-chain.ts';
import { blockTimes, SAMPLE_BLOCKS } from '../../pipelines/sources/bitcoin/sample/generate.ts';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { makeSample as makeFunds, SAMPLE_PARTITIONS } from '../../pipelines/sources/etf/sample.ts';
import type { SampleNeeds } from '../../pipelines/sources/feed-types.ts';
import { feedOf } from '../../pipelines/sources/index.ts';
import { loadSettings } from '../../shared/config/load.ts';
import { DAY_MS, daysBetween, isMarketDay } from '../../shared/dates.ts';

/** Weeks that begin on a Sunday, on a Saturday, and that hold a holiday. */
const TODAYS = ['2026-11-29', '2026-11-14', '2026-11-28', '2024-01-01'];
const signal = new AbortController().signal;

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'weeks-'));
});
afterAll(() => rm(directory, { recursive: true }));

test('trades are those of the week, day by day', async () => {
  const settings = loadSettings({ env: {}, flags: {}, cwd: '/' });
  const todayMs = Date.parse(TODAYS[0]);
  const { sample } = feedOf('exchange_a_spot_trades');
  const { selection } = await sample!.make({ directory, settings, todayMs, signal } as SampleNeeds);
  const { from, to } = sampleWeek(todayMs);
  // The default last: where it is there, the others are.
  expect(selection.options).toEqual({ from, to, instrument: 'ETHUSDT,SOLUSDT,BTCUSDT' });
  expect(daysBetween(from, to)).toHaveLength(SAMPLE_DAYS);
  expect(await sample!.partitions()).toBe(SAMPLE_DAYS);
  expect(to).toBe('2026-11-28');
});

test.each(TODAYS)(
  'funds have every market day of the week before %s, and the one that holds when it begins',
  async (today) => {
    const folder = join(directory, today);
    const { fromMs, from, to } = sampleWeek(Date.parse(today));
    await makeFunds({ directory: folder, todayMs: Date.parse(today), signal } as SampleNeeds);
    let documents = 0;
    for (const { sourceId } of ISSUERS) {
      const days = (await readdir(join(folder, sourceId))).map((name) => name.slice(0, 10)).sort();
      expect(days.filter((day) => day >= from)).toEqual(daysBetween(from, to).filter(isMarketDay));
      expect(Date.parse(days[0])).toBeLessThan(fromMs);
      documents += days.length;
    }
    expect(documents).toBe(SAMPLE_PARTITIONS);
  },
);

test.each(TODAYS)(
  'blocks come ten minutes apart on average, never an hour, and to the end of the week before %s',
  (today) => {
    const { fromMs, toMs } = sampleWeek(Date.parse(today));
    const times = blockTimes(fromMs);
    expect(times).toHaveLength(SAMPLE_BLOCKS + 1);
    const waits = times.slice(1).map((time, index) => time - times[index]);
    expect(Math.min(...waits)).toBeGreaterThan(0);
    expect(Math.max(...waits)).toBeLessThan(2700);
    const within = times.filter((time) => time * 1000 > fromMs && time * 1000 < toMs);
    expect(within).toHaveLength(144 * SAMPLE_DAYS);
    expect(new Set(within.map((time) => Math.floor(time / 3600))).size).toBeGreaterThan(24 * SAMPLE_DAYS - 5);
    // Blocks are proved up to the median time of the last eleven.
    expect(times.slice(-11)[5] * 1000).toBeGreaterThanOrEqual(toMs);
    // A node refuses blocks that lie more than two hours ahead.
    expect(times.at(-1)! * 1000).toBeLessThan(toMs + 3_600_000);
    expect(times[1] * 1000).toBeGreaterThan(fromMs - 1.5 * DAY_MS);
    expect(blockTimes(fromMs)).toEqual(times);
  },
);

test('the chain is ingested from its first block on, so that its genesis of 2011 holds no value until today', () => {
  const units = planUnits(1, SAMPLE_BLOCKS, SAMPLE_BLOCKS, [], SAMPLE_UNITS);
  expect(units[0]).toEqual({ from: 1, to: 100 });
  expect(units.at(-1)!.to).toBe(SAMPLE_BLOCKS + 1);
  expect(feedOf('bitcoin').sample!.partitions()).toBe(units.length);
});

test('funds hold bitcoin at the price of the market', async () => {
  const folder = join(directory, 'priced');
  await makeFunds({ directory: folder, todayMs: Date.parse('2026-11-29'), signal } as SampleNeeds);
  const text = await readFile(join(folder, 'etf_hashdex_defi_daily', '2026-11-25.json'), 'utf8');
  const price = /"\$(\d\d,\d{3}\.\d\d)"/.exec(text)![1].replace(',', '');
  expect(Number(price)).toBeCloseTo(new MarketPrice().at(Date.parse('2026-11-25T21:00:00Z')), 2);
});

test('a sample is loaded into an empty system and one whose start was interrupted, not into that of an earlier day', () => {
  const first = sampleWeek(Date.parse('2026-11-29')).from;
  const trades = { partitions: SAMPLE_DAYS, first };
  const counts = (synthetic: number, firstSynthetic: string | null, real = 0) => [{ synthetic, real, firstSynthetic }];
  expect(feedOf('exchange_a_spot_trades').sample!.firstPartition!(Date.parse('2026-11-29'))).toBe(first);
  expect(isIncomplete(counts(0, null), trades)).toBe(true);
  expect(isIncomplete(counts(3, first), trades)).toBe(true);
  expect(isIncomplete(counts(SAMPLE_DAYS, first), trades)).toBe(false);
  // Its trades have the same numbers: they were quarantined, and never served.
  expect(isIncomplete(counts(3, '2026-11-26'), trades)).toBe(false);
  expect(isIncomplete(counts(0, null, 1), trades)).toBe(false);
  const blocks = { partitions: 12, first: undefined };
  expect(isIncomplete([...counts(12, '1-99'), ...counts(11, '1-99')], blocks)).toBe(true);
});
