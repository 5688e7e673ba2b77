/** The sample's market: one price for all exchanges, and days that meet. */
import { describe, expect, test } from 'vitest';
import { MarketPrice } from '../../pipelines/sample/market.ts';
import { MarketTrades } from '../../pipelines/sample/trades.ts';
import { generateDay } from '../../pipelines/sources/exchange_a/sample.ts';
import { generateLines as linesOfB } from '../../pipelines/sources/exchange_b/sample.ts';
import { generateLines as linesOfC } from '../../pipelines/sources/exchange_c/sample.ts';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { DAY_MS, daysBetween } from '../../shared/dates.ts';

const HOUR_MS = 3_600_000;
const DAYS = daysBetween('2026-11-20', '2026-11-22');
const ROWS = 12_000;

interface Trade {
  readonly ms: number;
  readonly price: number;
}

const cells = (lines: Iterable<string>) => [...lines].map((line) => line.trimEnd().split(','));

/** The days' trades as the files of each exchange have them, in the order of their times. */
const EXCHANGES: Readonly<Record<string, readonly Trade[]>> = {
  a: DAYS.flatMap((day) => {
    const text = Buffer.concat([...generateDay({ day, rows: ROWS, seed: 1, timeUnit: 'ms' })]).toString('latin1');
    return cells(text.trimEnd().split('\n')).map((row) => ({ ms: Number(row[4]), price: Number(row[1]) }));
  }),
  b: DAYS.flatMap((day) =>
    cells(linesOfB({ day, rows: ROWS, seed: 2 }))
      .slice(1)
      .map((row) => ({ ms: Number(row[5]), price: Number(row[3]) })),
  ),
  c: DAYS.flatMap((day) =>
    cells(linesOfC({ day, rows: ROWS, seed: 3 }))
      .slice(1)
      .map((row) => ({ ms: Number(row[1]), price: Number(row[2]) })),
  ),
};

interface Candle {
  readonly open: number;
  readonly low: number;
  readonly high: number;
  readonly close: number;
  readonly trades: number;
}

function candles(trades: readonly Trade[], sizeMs: number): Map<number, Candle> {
  const buckets = Map.groupBy(trades, ({ ms }) => Math.floor(ms / sizeMs));
  const of = (own: readonly Trade[]): Candle => {
    const prices = own.map(({ price }) => price);
    const [low, high] = [Math.min(...prices), Math.max(...prices)];
    return { open: prices[0], low, high, close: prices[prices.length - 1], trades: own.length };
  };
  return new Map([...buckets].map(([bucket, own]) => [bucket, of(own)]));
}

const basisPoints = (a: number, b: number) => Math.abs(Math.log(a / b)) * 10_000;

test('the exchanges close each hour within a few basis points of each other', () => {
  const [a, b, c] = Object.values(EXCHANGES).map((trades) => candles(trades, HOUR_MS));
  let compared = 0;
  const distances: number[] = [];
  for (const [hour, { close }] of a) {
    for (const other of [b.get(hour), c.get(hour)]) {
      if (!other) continue;
      distances.push(basisPoints(close, other.close));
      compared++;
    }
  }
  expect(compared).toBeGreaterThan(100);
  expect(Math.max(...distances)).toBeLessThan(15);
  expect(distances.sort((x, y) => x - y)[compared >> 1]).toBeLessThan(3);
});

describe.each(Object.entries(EXCHANGES))('exchange %s', (_, trades) => {
  test('begins each day where the one before ended, and trades to both ends of a day', () => {
    const sorted = trades.toSorted((one, other) => one.ms - other.ms);
    const steps = sorted.slice(1).map(({ ms, price }, index) => ({
      waitMs: ms - sorted[index].ms,
      move: basisPoints(price, sorted[index].price),
    }));
    expect(Math.max(...steps.map(({ waitMs }) => waitMs))).toBeLessThan(10 * 60_000);
    expect(Math.max(...steps.map(({ move }) => move))).toBeLessThan(25);
  });
});

describe('the price', () => {
  const DAY = Date.parse('2026-03-01');

  test('is the same whatever was asked before, also at other days', () => {
    const moments = Array.from({ length: 200 }, (_, index) => DAY + index * 7_919_133);
    const ascending = new MarketPrice();
    const prices = moments.map((ms) => ascending.at(ms));
    const random = seededRandom(1);
    const shuffled = moments.map((ms, index) => ({ ms, index, order: random() })).sort((x, y) => x.order - y.order);
    const other = new MarketPrice();
    for (const { ms, index } of shuffled) expect(other.at(ms)).toBe(prices[index]);
    expect(new Set(prices).size).toBe(prices.length);
  });

  test('has no jump, moves by about two per cent a day, and stays near its level for years', () => {
    const market = new MarketPrice();
    const changes: number[] = [];
    for (let day = 0; day < 2000; day++) {
      const ms = Date.parse('2020-01-01') + day * DAY_MS;
      const price = market.at(ms);
      expect(price).toBeGreaterThan(30_000);
      expect(price).toBeLessThan(130_000);
      expect(basisPoints(market.at(ms - 1), price)).toBeLessThan(0.1);
      changes.push(Math.log(market.at(ms + DAY_MS) / price));
    }
    const deviation = Math.sqrt(changes.reduce((sum, change) => sum + change ** 2, 0) / changes.length);
    expect(deviation).toBeGreaterThan(0.014);
    expect(deviation).toBeLessThan(0.026);
  });
});

test('a start price scales the whole path', () => {
  const order = { rows: 500, fromMs: Date.parse('2026-03-01'), toMs: Date.parse('2026-03-02'), ticks: 100 };
  const trades = new MarketTrades({ ...order, random: seededRandom(4), startPrice: 20_000 });
  const own = new MarketTrades({ ...order, random: seededRandom(4) });
  const factor = 20_000 / new MarketPrice().at(order.fromMs);
  for (let row = 0; row < order.rows; row++) {
    trades.next();
    own.next();
    expect(basisPoints(trades.price, own.price * factor)).toBeLessThan(0.1);
    expect([trades.offsetMs, trades.size, trades.buy]).toEqual([own.offsetMs, own.size, own.buy]);
  }
});
