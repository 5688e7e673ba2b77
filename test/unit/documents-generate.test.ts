/** The synthetic documents: exact, repeatable, in the vendor's layout, a month the same rows as its days. */
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DuckDBInstance } from '@duckdb/node-api';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openZipMember } from '../../pipelines/sources/documents/zip-reader.ts';
import {
  consecutiveDays,
  type DaySummary,
  type ExchangeADay,
  generateDay,
  writeDay,
  writeMonth,
} from '../../pipelines/sources/exchange_a/sample.ts';
import { fetchExchangeAFile } from '../../pipelines/sources/exchange_a/source.ts';

const SYMBOL = 'BTCUSDT';
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'generate-'));
});
afterAll(() => rm(folder, { recursive: true }));

function generated(options: ExchangeADay): { chunks: Buffer[]; text: string; summary: DaySummary } {
  const chunks: Buffer[] = [];
  const rows = generateDay(options);
  for (;;) {
    const next = rows.next();
    if (next.done) return { chunks, text: Buffer.concat(chunks).toString('latin1'), summary: next.value };
    chunks.push(next.value);
  }
}

async function contentOf(period: string): Promise<string> {
  const baseUrl = pathToFileURL(folder);
  await using document = await fetchExchangeAFile({
    baseUrl,
    symbol: SYMBOL,
    period,
    spoolDir: folder,
    timeoutMs: 1000,
    maxAttempts: 1,
    maxBytes: 1e9,
  });
  const member = await openZipMember({
    path: document.path,
    expectedName: document.document.memberName,
    maxUnpackedBytes: 1e9,
  });
  const pieces: Buffer[] = [];
  for await (const piece of member.stream()) pieces.push(piece);
  return Buffer.concat(pieces).toString('latin1');
}

/** Hundred-millionths of a decimal with exactly eight decimals. */
function units(text: string): bigint {
  if (!/^(0|[1-9]\d*)\.\d{8}$/.test(text)) throw new Error(`${text} has no eight decimals`);
  return BigInt(text.replace('.', ''));
}

const SCALE = 100_000_000n;

test('property: every row of any day is exact, in order, inside the day and adds up to the summary', () => {
  fc.assert(
    fc.property(
      fc.record({
        day: fc
          .date({ min: new Date('2017-08-17'), max: new Date('2035-12-31'), noInvalidDate: true })
          .map((at) => at.toISOString().slice(0, 10)),
        rows: fc.integer({ min: 0, max: 1000 }),
        seed: fc.integer({ min: -(2 ** 45), max: 2 ** 45 }),
        firstId: fc.integer({ min: 0, max: 2 ** 50 }),
        startPrice: fc.oneof(fc.integer({ min: 1, max: 900_000 }), fc.constant(1.01), fc.constant(42_283.58)),
        timeUnit: fc.constantFrom('ms' as const, 'us' as const),
        header: fc.boolean(),
      }),
      (options) => {
        const { text, summary, chunks } = generated(options);
        const lines = text.split('\n');
        expect(lines.pop()).toBe('');
        if (options.header) expect(lines.shift()).toBe('id,price,qty,quote_qty,time,is_buyer_maker,is_best_match');
        expect(lines).toHaveLength(options.rows);
        for (const chunk of chunks) expect(chunk.at(-1)).toBe(0x0a);
        const perDay = options.timeUnit === 'ms' ? 86_400_000 : 86_400_000_000;
        const start = Date.parse(options.day) * (perDay / 86_400_000);
        let before = start;
        const sums = { quantity: 0n, quote: 0n, makers: 0 };
        for (const [index, line] of lines.entries()) {
          const [id, price, quantity, quote, time, maker, best, ...more] = line.split(',');
          // Plain comparisons: nine assertions for each of 20,000 rows take seconds.
          const isShaped = id === String(options.firstId + index) && best === 'True' && more.length === 0;
          const isPositive = units(price) > 0n && units(quantity) > 0n;
          const isExact = units(quote) * SCALE === units(price) * units(quantity);
          const isInOrder = time.length === (options.timeUnit === 'ms' ? 13 : 16) && Number(time) >= before;
          before = Number(time);
          const isSided = maker === 'True' || maker === 'False';
          if (!(isShaped && isPositive && isExact && isInOrder && isSided)) throw new Error(`row ${index}: ${line}`);
          sums.quantity += units(quantity);
          sums.quote += units(quote);
          sums.makers += maker === 'True' ? 1 : 0;
        }
        expect(before).toBeLessThan(start + perDay);
        expect([units(summary.quantity), units(summary.quoteQuantity), summary.buyerMakerRows]).toEqual([
          sums.quantity,
          sums.quote,
          sums.makers,
        ]);
        expect(summary).toMatchObject({
          rows: options.rows,
          firstId: options.firstId,
          lastId: options.firstId + options.rows - 1,
        });
      },
    ),
    { numRuns: 40 },
  );
});

describe('a day', () => {
  const day: ExchangeADay = {
    day: '2024-01-01',
    // Several chunks, and enough for the shares below.
    rows: 50_000,
    seed: 7,
    firstId: 3_344_774_379,
    startPrice: 42_283.58,
    timeUnit: 'ms',
  };

  test('is the same for the same options and another for another seed or day', () => {
    const { text } = generated(day);
    expect(generated(day).text === text).toBe(true);
    expect(generated({ ...day, seed: 8 }).text === text).toBe(false);
    const prices = (csv: string) =>
      csv
        .split('\n', 200)
        .map((line) => line.split(',')[1])
        .join();
    expect(prices(generated({ ...day, day: '2024-01-02' }).text)).not.toBe(prices(text));
  });

  test('looks like a market: spread over the day, in bursts, with both sides and a moving price', () => {
    const rows = generated(day)
      .text.trimEnd()
      .split('\n')
      .map((line) => line.split(','));
    const times = rows.map((row) => Number(row[4]));
    const start = Date.parse('2024-01-01');
    const hours = new Set(times.map((time) => Math.floor((time - start) / 3_600_000)));
    expect(hours.size).toBe(24);
    expect(times[0] - start).toBeLessThan(60_000);
    expect(start + 86_400_000 - times.at(-1)!).toBeLessThan(60_000);
    const sameTime = times.filter((time, index) => index > 0 && time === times[index - 1]).length;
    expect(sameTime / rows.length).toBeGreaterThan(0.3);
    const makers = rows.filter((row) => row[5] === 'True').length;
    expect(makers / rows.length).toBeGreaterThan(0.4);
    expect(makers / rows.length).toBeLessThan(0.6);
    const prices = rows.map((row) => Number(row[1]));
    expect(new Set(prices).size).toBeGreaterThan(1000);
    const [low, high] = [Math.min(...prices), Math.max(...prices)];
    expect(low).toBeGreaterThan(42_283.58 * 0.8);
    expect(high).toBeLessThan(42_283.58 * 1.2);
  });

  test('is what an independent reader of the csv adds up', async () => {
    const written = await writeDay({ directory: folder, symbol: SYMBOL, ...day });
    const csv = join(folder, 'day.csv');
    await writeFile(csv, await contentOf('2024-01-01'));
    const duckdb = await (await DuckDBInstance.create()).connect();
    const reader = await duckdb.runAndReadAll(`
      select count(*)::int, min(id)::varchar, max(id)::varchar, sum(qty)::varchar, sum(quote)::varchar,
             count(*) filter (where maker)::int, count(*) filter (where quote <> price::decimal(19, 8) * qty::decimal(19, 8))::int
      from read_csv('${csv}', header = false, columns = {id: 'bigint', price: 'decimal(18,8)', qty: 'decimal(18,8)',
                    quote: 'decimal(30,8)', time: 'bigint', maker: 'boolean', best: 'boolean'})`);
    duckdb.closeSync();
    const [summary] = written.days;
    expect(reader.getRows()[0]).toEqual([
      day.rows,
      String(summary.firstId),
      String(summary.lastId),
      summary.quantity,
      summary.quoteQuantity,
      summary.buyerMakerRows,
      0,
    ]);
  });

  test('written twice is the same archive, with its checksum, and nothing else is left', async () => {
    const options = { directory: join(folder, 'twice'), symbol: 'ETHUSDT', ...day, rows: 5000 };
    const first = await writeDay(options);
    expect(await writeDay(options)).toEqual(first);
    const names = await readdir(join(folder, 'twice/spot/daily/trades/ETHUSDT'));
    expect(names.sort()).toEqual(['ETHUSDT-trades-2024-01-01.zip', 'ETHUSDT-trades-2024-01-01.zip.CHECKSUM']);
  });

  test.each([
    { rows: -1 },
    { rows: 1.5 },
    { seed: Number.NaN },
    { firstId: -1 },
    { startPrice: 0 },
    { startPrice: Number.POSITIVE_INFINITY },
    { day: '2024-02-30' },
  ])('refuses options that make no sense: %j', (wrong) => {
    expect(() => generateDay({ ...day, ...wrong }).next()).toThrow(expect.objectContaining({ code: 'USAGE' }));
  });
});

test('consecutive days run on: ids without a break, prices without a jump; a month is exactly its days', async () => {
  const days = consecutiveDays({
    from: '2024-02-27',
    to: '2024-03-02',
    rowsPerDay: 4000,
    seed: 3,
    firstId: 100,
    timeUnit: 'us',
  });
  expect(days.map((each) => each.day)).toEqual(['2024-02-27', '2024-02-28', '2024-02-29', '2024-03-01', '2024-03-02']);
  const february = days.filter((each) => each.day.startsWith('2024-02'));
  const texts: string[] = [];
  for (const each of february) {
    await writeDay({ directory: folder, symbol: SYMBOL, ...each });
    texts.push(await contentOf(each.day));
  }
  const month = await writeMonth({ directory: folder, symbol: SYMBOL, days: february });
  expect(await contentOf('2024-02')).toBe(texts.join(''));
  expect(month.days.map((each) => [each.firstId, each.lastId])).toEqual([
    [100, 4099],
    [4100, 8099],
    [8100, 12_099],
  ]);
  await writeMonth({ directory: folder, symbol: SYMBOL, days: february.map((each) => ({ ...each, header: true })) });
  expect((await contentOf('2024-02')).match(/id,price/g)).toHaveLength(1);
  await expect(writeMonth({ directory: folder, symbol: SYMBOL, days })).rejects.toMatchObject({
    code: 'INTERNAL_INVARIANT',
  });
  const price = (line = '') => Number(line.split(',')[1]);
  for (const [index, text] of texts.slice(1).entries()) {
    const before = texts[index].trimEnd().split('\n').at(-1);
    expect(Math.abs(price(text.split('\n', 1)[0]) / price(before) - 1)).toBeLessThan(0.003);
  }
});
