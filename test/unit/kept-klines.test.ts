/** The klines that the projector keeps, against the oracle of klines: every size, every field, and the exact totals. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { DayKlines, quartileRanges, quartilesOf } from '../../pipelines/rows/kept-klines.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { parseMultirange, type Range } from '../../shared/ranges.ts';
import { KEPT_COLUMNS, KEPT_SIZES_MS } from '../../shared/registry/kept-klines.ts';
import { type AnyTrade, alignedKlines, nativeKlines } from '../support/kline-oracle.ts';
import type { AlignedRow } from '../support/load-rows.ts';
import { runs } from '../support/seed.ts';

const DAY = Date.UTC(2024, 2, 1);
type Row = Record<string, number | string>;

/** Rows of binary COPY, read by the description of the format; numerics as decimals without zeros at the end. */
function rowsOf(copy: Buffer, mode: 'native' | 'aligned'): Row[] {
  const rows: Row[] = [];
  for (let at = 0; at < copy.length; ) {
    expect(copy.readInt16BE(at)).toBe(KEPT_COLUMNS[mode].length);
    at += 2;
    const row: Row = {};
    for (const { name, pg } of KEPT_COLUMNS[mode]) {
      const bytes = copy.readInt32BE(at);
      const from = at + 4;
      at = from + bytes;
      if (pg === 'float8') row[name] = copy.readDoubleBE(from);
      else if (pg === 'int8') row[name] = Number(copy.readBigInt64BE(from));
      else if (pg === 'int4') row[name] = copy.readInt32BE(from);
      else if (pg === 'int2') row[name] = copy.readInt16BE(from);
      else row[name] = numericAt(copy, from);
    }
    rows.push(row);
  }
  return rows;
}

function numericAt(copy: Buffer, at: number): string {
  const [digits, weight] = [copy.readInt16BE(at), copy.readInt16BE(at + 2)];
  expect(copy.readInt16BE(at + 4)).toBe(0);
  const scale = copy.readInt16BE(at + 6);
  let value = 0n;
  for (let digit = 0; digit < digits; digit++) value = value * 10_000n + BigInt(copy.readInt16BE(at + 8 + 2 * digit));
  const places = 4 * (digits - 1 - weight);
  const scaled = places <= scale ? value * 10n ** BigInt(scale - places) : value / 10n ** BigInt(places - scale);
  return plain(scaled, scale);
}

/** The decimals of the totals of the first row. */
function scalesOf(copy: Buffer): number[] {
  const scales: number[] = [];
  let at = 2;
  for (const { pg } of KEPT_COLUMNS.native) {
    if (pg === 'numeric') scales.push(copy.readInt16BE(at + 4 + 6));
    at += 4 + copy.readInt32BE(at);
  }
  return scales;
}

/** A decimal without zeros at the end. */
function plain(mantissa: bigint, scale: number): string {
  const digits = String(mantissa).padStart(scale + 1, '0');
  const text = `${digits.slice(0, digits.length - scale)}.${digits.slice(digits.length - scale)}`;
  return text.replace(/0+$/, '').replace(/\.$/, '');
}

const PLACES = 60;
const exact = (value: number): bigint => {
  const [coefficient, exponent = '0'] = String(value).split('e');
  const [whole, fraction = ''] = coefficient.split('.');
  return BigInt(whole + fraction) * 10n ** BigInt(PLACES - fraction.length + Number(exponent));
};
const total = (terms: readonly bigint[], factors = 1): string =>
  plain(
    terms.reduce((sum, term) => sum + term, 0n),
    factors * PLACES,
  );

/** The oracle's klines of the kept sizes that lie inside the window, in the order of the tables. */
function expectedNative(trades: readonly AnyTrade[], fromMs: number): Row[] {
  return KEPT_SIZES_MS.flatMap((sizeMs) => {
    const groups = Map.groupBy(trades, ({ timestamp }) => Math.floor(timestamp / sizeMs) * sizeMs);
    return nativeKlines(trades, sizeMs).flatMap(({ datetime, maker_ratio: _, ...kline }) => {
      const startMs = Date.parse(String(datetime));
      if (startMs < fromMs || startMs + sizeMs > fromMs + DAY_MS) return [];
      const rows = groups.get(startMs)!;
      const makers = rows.filter((row) => row.is_buyer_maker === 1);
      const liquidity = (of: readonly AnyTrade[]) =>
        total(
          of.map(({ price, quantity }) => exact(price) * exact(quantity)),
          2,
        );
      return {
        ...kline,
        start_ms: startMs,
        size_s: sizeMs / 1000,
        dataset_id: 7,
        makers: makers.length,
        first_id: Math.min(...rows.map((row) => row.trade_id)),
        last_id: Math.max(...rows.map((row) => row.trade_id)),
        price_total: total(rows.map(({ price }) => exact(price))),
        price_square_total: total(
          rows.map(({ price }) => exact(price) ** 2n),
          2,
        ),
        quantity_total: total(rows.map(({ quantity }) => exact(quantity))),
        liquidity_total: liquidity(rows),
        maker_quantity_total: total(makers.map(({ quantity }) => exact(quantity))),
        maker_liquidity_total: liquidity(makers),
      };
    });
  });
}

const decimalOf = (most: number, places: number) =>
  fc
    .tuple(fc.integer({ min: 1, max: most }), fc.integer({ min: 0, max: places }))
    .map(([n, p]) => Number(`${n}e-${p}`));
const price = fc.oneof(
  { weight: 6, arbitrary: fc.integer({ min: 5_990_000, max: 6_010_000 }).map((cents) => cents / 100) },
  { weight: 1, arbitrary: decimalOf(1e9, 8) },
  { weight: 1, arbitrary: fc.double({ min: 1e-9, max: 1e12, noNaN: true }) },
);
const quantity = fc.oneof(
  { weight: 6, arbitrary: decimalOf(1e10, 8) },
  { weight: 1, arbitrary: fc.double({ min: 1e-12, max: 1e9, noNaN: true }) },
  { weight: 1, arbitrary: fc.constant(9_007_199_254.740_99) },
);
const trade = fc.record({
  price,
  quantity,
  is_buyer_maker: fc.constantFrom(0 as const, 1 as const),
  // Many in few minutes, some anywhere.
  at: fc.oneof(fc.integer({ min: 0, max: 600_000 }), fc.integer({ min: 0, max: DAY_MS - 1 })),
});

describe('kept klines', () => {
  test.each([
    ['a day of UTC', DAY],
    ['a day that begins at 16:00', DAY - DAY_MS / 3],
  ])('of %s are those of the oracle, in whatever order trades arrive', (_, fromMs) => {
    fc.assert(
      fc.property(fc.array(trade, { minLength: 1, maxLength: 60 }), fc.boolean(), (list, isSorted) => {
        const ordered = isSorted ? list.toSorted((a, b) => a.at - b.at) : list;
        const trades = ordered.map(({ at, ...rest }, index) => ({
          ...rest,
          trade_id: ((index * 7919) % 10_007) + 1,
          timestamp: fromMs + at,
        }));
        const klines = new DayKlines({ key: 'day', fromMs, toMs: fromMs + DAY_MS });
        for (const one of trades) {
          klines.add(one.timestamp, one.trade_id, one.price, one.quantity, one.is_buyer_maker);
        }
        const built = klines.build(7);
        expect(built.trades).toBe(trades.length);
        expect(rowsOf(built.native, 'native')).toEqual(expectedNative(trades, fromMs));
      }),
      { numRuns: runs(150) },
    );
  });

  // Digests of stored klines hold the number of decimals of each total.
  test('of quantities with more than eight decimals: totals are exact, with the most decimals of a trade', () => {
    const decimals = (text: string) => /\.(\d+)$/.exec(text)?.[1].length ?? 0;
    const long = fc
      .tuple(fc.nat(3e8), fc.integer({ min: 1, max: 999 }))
      .map(([units, fine]) => units / 1e8 + fine * 1e-13);
    const of = (quantities: fc.Arbitrary<number>) =>
      fc.record({
        price: fc
          .integer({ min: 59_990, max: 60_010 })
          .chain((units) => fc.constantFrom(units, units / 10, units / 100)),
        quantity: quantities.filter((value) => value > 1e-6 && value < 9e6),
        maker: fc.constantFrom(0 as const, 1 as const),
        ms: fc.nat(59_999),
      });
    const lists = [long, fc.oneof({ weight: 5, arbitrary: long }, decimalOf(1e10, 8))].map((quantities) =>
      fc.array(of(quantities), { minLength: 1, maxLength: 40, size: 'max' }),
    );
    fc.assert(
      fc.property(fc.oneof(...lists), (list) => {
        const trades = list.map(({ price, quantity, maker, ms }, index) => ({
          ...{ price, quantity, is_buyer_maker: maker, trade_id: index + 1, timestamp: DAY + ms },
        }));
        const klines = new DayKlines({ key: 'day', fromMs: DAY, toMs: DAY + DAY_MS });
        for (const one of trades) klines.add(one.timestamp, one.trade_id, one.price, one.quantity, one.is_buyer_maker);
        const { native } = klines.build(7);
        expect(rowsOf(native, 'native')).toEqual(expectedNative(trades, DAY));
        const isUsual = trades.some(({ quantity }) => decimals(String(quantity)) <= 8);
        const most = (of: typeof trades, scale: (price: number, quantity: number) => number, usual: number) =>
          Math.max(
            isUsual ? usual : 0,
            ...of.map(({ price, quantity }) => scale(decimals(String(price)), decimals(String(quantity)))),
          );
        const makers = trades.filter((one) => one.is_buyer_maker === 1);
        expect(scalesOf(native)).toEqual([
          most(trades, (price) => price, 8),
          most(trades, (price) => 2 * price, 16),
          most(trades, (_, quantity) => quantity, 8),
          most(trades, (price, quantity) => price + quantity, 16),
          most(makers, (_, quantity) => quantity, 8),
          most(makers, (price, quantity) => price + quantity, 16),
        ]);
      }),
      { numRuns: runs(150) },
    );
  });

  const cents = (least: number, count: number) => (index: number) => least + ((index * 7919) % count) / 100;
  test.each([
    ['four decimals', cents(60_000, 90_000), (index: number) => 1 + ((index * 104_729) % 1e9) / 1e4],
    ['16 decimals', cents(30_000, 4_000_000), (index: number) => (((index * 104_729) % 3e8) / 1e8 + 1e-3) * 1.1],
    [
      '15 decimals, prices far apart',
      cents(30_000, 4_000_000),
      (index: number) => Number(`0.0000011000000${10 + (index % 90)}`),
    ],
    ['13 decimals, many', (index: number) => (index < 9 ? 30_000 : 40_485.75), () => 0.0000019999997],
    ['nine decimals, very large', () => 42_000.5, (index: number) => 8_000_000 + ((index * 104_729) % 1e9) / 1e9],
  ])('of a busy minute: sums beyond 2^53, a tick that becomes finer, quantities of %s', (_, priceOf, quantityOf) => {
    const trades = Array.from({ length: 9999 }, (_, index) => ({
      trade_id: index + 1,
      timestamp: DAY + index,
      price: index === 9500 ? 61_234.567_8 : priceOf(index),
      quantity: quantityOf(index),
      is_buyer_maker: (index % 3 === 0 ? 1 : 0) as 0 | 1,
    }));
    const klines = new DayKlines({ key: 'day', fromMs: DAY, toMs: DAY + DAY_MS });
    for (const one of trades) klines.add(one.timestamp, one.trade_id, one.price, one.quantity, one.is_buyer_maker);
    expect(rowsOf(klines.build(7).native, 'native')).toEqual(expectedNative(trades, DAY));
  });

  test('of aligned rows are those of the oracle', () => {
    const second = fc.record({ open_price: price, high_price: price, low_price: price, close_price: price });
    const row = fc.record({ second, quantity_sum: quantity, quote_volume_sum: quantity, trade_count: fc.nat(1000) });
    const at = fc.uniqueArray(fc.integer({ min: 0, max: 86_399 }), { minLength: 1, maxLength: 60 });
    fc.assert(
      fc.property(at, fc.infiniteStream(row), (seconds, stream) => {
        const rows: AlignedRow[] = seconds
          .toSorted((a, b) => a - b)
          .map((offset) => {
            const { second: prices, ...rest } = stream.next().value as ReturnType<typeof row.generate>['value'];
            return { ...prices, ...rest, aligned_at_ms: DAY + offset * 1000 } as AlignedRow;
          });
        const klines = new DayKlines({ key: 'day', fromMs: DAY, toMs: DAY + DAY_MS });
        for (const one of rows) {
          const { open_price: open, high_price: high, low_price: low, close_price: close } = one;
          const { quantity_sum, quote_volume_sum: quote, trade_count: trades } = one;
          const ids = { firstId: one.aligned_at_ms, lastId: one.aligned_at_ms };
          klines.addSecond(one.aligned_at_ms, { open, high, low, close, quantity: quantity_sum, quote, trades }, ids);
        }
        const expected = KEPT_SIZES_MS.flatMap((sizeMs) => {
          const groups = Map.groupBy(rows, ({ aligned_at_ms: ms }) => Math.floor(ms / sizeMs) * sizeMs);
          return alignedKlines(rows, sizeMs).map(({ datetime, ...kline }) => {
            const startMs = Date.parse(String(datetime));
            const group = groups.get(startMs)!;
            return {
              ...kline,
              start_ms: startMs,
              rows: group.length,
              size_s: sizeMs / 1000,
              dataset_id: 7,
              quantity_total: total(group.map((one) => exact(one.quantity_sum))),
              liquidity_total: total(group.map((one) => exact(one.quote_volume_sum))),
            };
          });
        });
        expect(rowsOf(klines.build(7).aligned, 'aligned')).toEqual(expected);
      }),
      { numRuns: runs(60) },
    );
  });
});

describe('seconds', () => {
  interface Given {
    readonly id: number;
    readonly ms: number;
    readonly price: number;
    readonly quantity: number;
  }
  const secondOf = ({ ms }: Given) => Math.floor(ms / 1000) * 1000;
  const byId = (trades: readonly Given[]) => trades.toSorted((a, b) => a.id - b.id);
  const totalOf = (trades: readonly Given[]) => trades.reduce((sum, one) => sum + exact(one.quantity), 0n);

  /** The aligned rows of the trades, ascending. */
  function secondsOf(trades: readonly Given[]) {
    const groups = [...Map.groupBy(trades, secondOf)].sort(([a], [b]) => a - b);
    return groups.map(([ms, group]) => {
      const ordered = byId(group);
      const row = {
        ...{ open: ordered[0].price, close: ordered[ordered.length - 1].price },
        ...{ high: Math.max(...group.map(({ price }) => price)), low: Math.min(...group.map(({ price }) => price)) },
        ...{ quantity: Number(plain(totalOf(group), PLACES)), quote: 1, trades: group.length },
      };
      return { ms, row, ids: { firstId: ordered[0].id, lastId: ordered[ordered.length - 1].id } };
    });
  }

  function inexactOf(trades: readonly Given[]): Range[] {
    const klines = new DayKlines({ key: 'day', fromMs: DAY, toMs: DAY + DAY_MS });
    for (const { ms, id, price, quantity } of trades) klines.add(ms, id, price, quantity, 0);
    for (const { ms, row, ids } of secondsOf(trades)) klines.addSecond(ms, row, ids);
    return parseMultirange(klines.build(7).inexactSeconds);
  }

  const given = fc
    .array(
      fc.record({
        at: fc.integer({ min: 0, max: 40_000 }),
        price: fc.integer({ min: 1, max: 99 }),
        quantity: fc.oneof(
          { weight: 90, arbitrary: decimalOf(1e6, 8) },
          { weight: 1, arbitrary: fc.double({ min: 1e-12, max: 1e9, noNaN: true }) },
        ),
        swap: fc.oneof(
          { weight: 60, arbitrary: fc.constant(0) },
          { weight: 1, arbitrary: fc.integer({ min: -9, max: 9 }) },
        ),
      }),
      { minLength: 1, maxLength: 60, size: 'max' },
    )
    .map((list) =>
      list
        .toSorted((a, b) => a.at - b.at)
        .map(({ at, swap, ...rest }, index) => ({ ...rest, ms: DAY + at, id: (index + swap) * 100 + index + 2000 })),
    );

  test('that are not listed as inexact add up to the klines of their trades', () => {
    let compared = 0;
    fc.assert(
      fc.property(given, fc.integer({ min: 1, max: 30 }), (trades, size) => {
        const inexact = inexactOf(trades);
        const sizeMs = size * 1000;
        const bucketOf = (ms: number) => Math.floor(ms / sizeMs) * sizeMs;
        for (const [start, group] of Map.groupBy(trades, ({ ms }) => bucketOf(ms))) {
          if (inexact.some(({ from, to }) => from < start + sizeMs && to > start)) continue;
          compared++;
          const rows = secondsOf(group).map(({ row }) => row);
          const ordered = byId(group);
          expect(rows[0].open).toBe(ordered[0].price);
          expect(rows[rows.length - 1].close).toBe(ordered[ordered.length - 1].price);
          const units = rows.reduce((sum, { quantity }) => sum + BigInt(Math.round(quantity * 1e8)), 0n);
          expect(plain(units, 8)).toBe(plain(totalOf(group), PLACES));
        }
      }),
      { numRuns: runs(300) },
    );
    expect(compared).toBeGreaterThan(100);
  });

  const day = (count: number, more: (index: number) => Partial<Given> = () => ({})) =>
    Array.from({ length: count }, (_, index) => ({
      ...{ id: index + 1, ms: DAY + index * 400, price: 1, quantity: 0.1 },
      ...more(index),
    }));

  test.each([
    ['in order, of eight decimals', day(999), []],
    ['an id of an earlier second', day(30, (index) => (index === 10 ? { id: 8.5 } : {})), [[3000, 5000]]],
    ['two ids of one second that change places', day(30, (index) => (index === 11 ? { id: 10.5 } : {})), []],
    ['a finer quantity', day(30, (index) => (index === 10 ? { quantity: 0.123456789 } : {})), [[4000, 5000]]],
    ['a second too large', day(30, (index) => (index === 10 ? { quantity: 8_999_999.9 } : {})), [[4000, 5000]]],
    ['finer quantities throughout', day(999, () => ({ quantity: 0.123456789 })), [[0, DAY_MS]]],
  ])('%s', (_, trades, expected) => {
    expect(inexactOf(trades)).toEqual(expected.map(([from, to]) => ({ from: DAY + from, to: DAY + to })));
  });
});

// Of a kline that two file days share, only the minutes that reach into a range are counted from their rows.
test('each quartile lies in its range, and the trades of minutes beyond can be taken for their highest price', () => {
  const price = fc.oneof(fc.integer({ min: 1, max: 30 }), fc.double({ min: 0.01, max: 30, noNaN: true }));
  const minute = fc.tuple(price, fc.array(fc.double({ min: 0, max: 3, noNaN: true }), { minLength: 1, maxLength: 12 }));
  fc.assert(
    fc.property(fc.array(minute, { minLength: 1, maxLength: 30 }), (list) => {
      const minutes = list.map(([from, steps]) => steps.map((step) => from + step));
      const spans = minutes.map((prices) => ({
        trades: prices.length,
        low: Math.min(...prices),
        high: Math.max(...prices),
      }));
      const quartiles = (prices: readonly number[]) =>
        quartilesOf(
          { prices: Float64Array.from(prices).sort(), counts: new Uint32Array(prices.length).fill(1) },
          prices.length,
        );
      const ranges = quartileRanges(spans);
      const expected = quartiles(minutes.flat());
      for (const [index, { low, high }] of ranges.entries()) {
        expect(expected[index] >= low && expected[index] <= high).toBe(true);
      }
      const decides = (span: { low: number; high: number }) =>
        ranges.some(({ low, high }) => span.low <= high && span.high >= low);
      const counted = minutes.flatMap((prices, index) =>
        decides(spans[index]) ? prices : prices.map(() => spans[index].high),
      );
      expect(quartiles(counted)).toEqual(expected);
    }),
    { numRuns: runs(500) },
  );
});
