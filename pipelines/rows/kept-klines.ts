/**
 * The kept klines of a file day as rows of binary COPY, with their digest: what klines answer, rounded from exact totals, and
 * the totals. serving/read/klines/sums.ts computes the same values from rows; the tests of kept klines compare them.
 */

import { createHash } from 'node:crypto';
import { SECOND_MS } from '../../shared/dates.ts';
import { assert } from '../../shared/errors.ts';
import { COPY_HEADER, COPY_TRAILER } from '../../shared/proof-log/rows.ts';
import { multirangeText, type Range, joined as union } from '../../shared/ranges.ts';
import { baseNumber } from '../../shared/registry/instruments.ts';
import { KEPT_COLUMNS, KEPT_SIZES_MS } from '../../shared/registry/kept-klines.ts';
import { type KeptKlines, type PartitionWindow, writeInt8 } from './binary-copy.ts';
import { addDecimals, bigPowerOfTen, type ExactDecimal, exactDecimal, nearestFloat } from './exact-decimal.ts';
import { KlineBuilder, MOST_FINE, type PriceRuns, type TradeBucket } from './kline-builder.ts';

/** One second's aggregates, as they are stored. */
export interface Second {
  readonly open: number;
  readonly high: number;
  readonly low: number;
  readonly close: number;
  readonly quantity: number;
  readonly quote: number;
  readonly trades: number;
}

/** The lowest and the highest id of a second's trades. */
export interface SecondIds {
  readonly firstId: number;
  readonly lastId: number;
}

interface SecondsBucket extends Second {
  readonly startMs: number;
  readonly sizeMs: number;
  readonly seconds: number;
  readonly quantityTotal: ExactDecimal;
  readonly quoteTotal: ExactDecimal;
}

/** The digest of kept klines: over both tables' rows as COPY writes them, and over what is known of the seconds. */
export const digestOf = (native: Uint8Array, aligned: Uint8Array, inexactSeconds: string): string =>
  [native, aligned]
    .reduce((hash, rows) => hash.update(COPY_HEADER).update(rows).update(COPY_TRAILER), createHash('sha256'))
    .update(inexactSeconds)
    .digest('hex');

/** With more stretches of inexact seconds than this, a partition has no exact ones. */
const MOST_INEXACT = MOST_FINE;

export class DayKlines {
  readonly #window: PartitionWindow;
  readonly #trades: KlineBuilder;
  /** Klines of one minute from aligned rows, ascending. */
  readonly #minutes: SecondsBucket[] = [];
  readonly #inexact: Range[] = [];
  /** The highest id so far, and the last second with trades. */
  #lastId = Number.NEGATIVE_INFINITY;
  #lastMs: number;

  constructor(window: PartitionWindow) {
    this.#window = window;
    this.#trades = new KlineBuilder(window);
    this.#lastMs = window.fromMs;
  }

  /** Adds a trade of the partition's window. `isMaker` is 1 when the buyer was the maker. */
  add(ms: number, id: number, price: number, quantity: number, isMaker: number): void {
    this.#trades.add(ms, id, price, quantity, isMaker);
  }

  /** Adds the aligned row of a second, in order of time. */
  addSecond(ms: number, row: Second, { firstId, lastId }: SecondIds): void {
    // No bucket in which the seconds are out of the order of ids begins after the one before.
    const isInOrder = firstId > this.#lastId;
    const isExact = isInOrder && row.quantity < SHORT_BELOW;
    if (!isExact) this.#inexact.push({ from: isInOrder ? ms : this.#lastMs, to: ms + SECOND_MS });
    this.#lastId = Math.max(this.#lastId, lastId);
    this.#lastMs = ms;
    const sizeMs = KEPT_SIZES_MS[0];
    const startMs = Math.floor(ms / sizeMs) * sizeMs;
    const last = this.#minutes.at(-1);
    const quantityTotal = unitsOf(row.quantity);
    const second = { ...row, startMs, sizeMs, seconds: 1, quantityTotal, quoteTotal: unitsOf(row.quote) };
    if (last?.startMs === startMs) this.#minutes[this.#minutes.length - 1] = joined([last, second], startMs, sizeMs);
    else this.#minutes.push(second);
  }

  /** No row can be added afterwards. */
  build(datasetId: number): KeptKlines {
    const trades = this.#trades.buckets();
    const seconds = this.#secondsBuckets();
    const rowsOf = (number: number) => {
      const native = new KlineRows('native', trades.length * 512);
      for (const bucket of trades) native.add(nativeValues(bucket, number));
      const aligned = new KlineRows('aligned', seconds.length * 256);
      for (const bucket of seconds) aligned.add(alignedValues(bucket, number));
      return { native: native.rows(), aligned: aligned.rows() };
    };
    const rows = rowsOf(datasetId);
    // Another database may have given the instrument another number, and its digest is the same.
    const base = baseNumber(datasetId);
    const digested = base === datasetId ? rows : rowsOf(base);
    const minutes = trades.filter(({ sizeMs }) => sizeMs === KEPT_SIZES_MS[0]);
    const inexactSeconds = multirangeText(this.#inexactSeconds());
    const zero: ExactDecimal = { mantissa: 0n, scale: 0 };
    return {
      ...rows,
      trades: minutes.reduce((sum, bucket) => sum + bucket.trades, 0),
      seconds: this.#minutes.reduce((sum, bucket) => sum + bucket.seconds, 0),
      price: minutes.map(({ totals }) => totals.price).reduce(addDecimals, zero),
      quantity: minutes.map(({ totals }) => totals.quantity).reduce(addDecimals, zero),
      inexactSeconds,
      sha256: digestOf(digested.native, digested.aligned, inexactSeconds),
    };
  }

  /**
   * Trades of a stretch of other seconds have klines that their seconds add up to: ids rise from each second to the next, and the
   * sum of a second, of at most eight decimals and not too large for a double, prints as it is.
   */
  #inexactSeconds(): Range[] {
    const { fromMs, toMs } = this.#window;
    const fine = [...this.#trades.fineSeconds].map((second) => ({
      from: second * SECOND_MS,
      to: (second + 1) * SECOND_MS,
    }));
    const found = union([...fine, ...this.#inexact]);
    return fine.length > MOST_INEXACT || found.length > MOST_INEXACT ? [{ from: fromMs, to: toMs }] : found;
  }

  #secondsBuckets(): SecondsBucket[] {
    const { fromMs, toMs } = this.#window;
    let finer = this.#minutes;
    const all = [...finer];
    for (const sizeMs of KEPT_SIZES_MS.slice(1)) {
      const groups = Map.groupBy(finer, ({ startMs }) => Math.floor(startMs / sizeMs) * sizeMs);
      finer = [...groups].map(([startMs, parts]) => joined(parts, startMs, sizeMs));
      all.push(...finer.filter(({ startMs }) => startMs >= fromMs && startMs + sizeMs <= toMs));
    }
    return all;
  }
}

/** One bucket from those that follow each other in it. */
function joined(parts: readonly SecondsBucket[], startMs: number, sizeMs: number): SecondsBucket {
  const [first] = parts;
  let { high, low, trades, seconds, quantityTotal, quoteTotal } = first;
  for (const part of parts.slice(1)) {
    high = Math.max(high, part.high);
    low = Math.min(low, part.low);
    trades += part.trades;
    seconds += part.seconds;
    quantityTotal = addDecimals(quantityTotal, part.quantityTotal);
    quoteTotal = addDecimals(quoteTotal, part.quoteTotal);
  }
  const { close } = parts[parts.length - 1];
  return { ...first, startMs, sizeMs, high, low, close, trades, seconds, quantityTotal, quoteTotal };
}

/** Below it the decimal of eight places that equals a double is the one that the double prints as. */
const SHORT_BELOW = 9e6;

/** The decimal that a double prints as. */
function unitsOf(value: number): ExactDecimal {
  const units = Math.round(value * 1e8);
  return value < SHORT_BELOW && units / 1e8 === value
    ? { mantissa: BigInt(units), scale: 8 }
    : exactDecimal(String(value));
}

/** The places of the quartiles among that many rows in ascending order, counted from 1. */
export const quartileRanks = (rows: number): readonly number[] =>
  [0.25, 0.5, 0.75].map((part) => Math.ceil(rows * part));

/** Trades, and the prices that they lie between, bounds included. */
export interface PriceSpan {
  readonly trades: number;
  readonly low: number;
  readonly high: number;
}

/**
 * Where each quartile of all trades lies, bounds included. It is not below the price at which spans that begin there or lower
 * could hold enough trades, and not above the price at which spans that end there or lower do. Without trades there are none.
 */
export function quartileRanges(spans: readonly PriceSpan[]): { readonly low: number; readonly high: number }[] {
  const reach = (of: 'low' | 'high', rank: number): number => {
    let seen = 0;
    for (const span of spans.toSorted((x, y) => x[of] - y[of])) {
      seen += span.trades;
      if (seen >= rank) return span[of];
    }
    throw new RangeError(`no trade is number ${rank} of ${seen}`);
  };
  if (spans.length === 0) return [];
  const ranks = quartileRanks(spans.reduce((sum, { trades }) => sum + trades, 0));
  return ranks.map((rank) => ({ low: reach('low', rank), high: reach('high', rank) }));
}

/** The smallest prices with at least a quarter, a half and three quarters of all `rows` at or below them. */
export function quartilesOf({ prices, counts }: PriceRuns, rows: number): [number, number, number] {
  const ranks = quartileRanks(rows);
  const found: number[] = [];
  let seen = 0;
  for (let run = 0; found.length < ranks.length; run++) {
    assert(run < counts.length, `the prices of ${rows} trades are counted, not of ${seen}`);
    seen += counts[run];
    while (found.length < ranks.length && seen >= ranks[found.length]) found.push(prices[run]);
  }
  return found as [number, number, number];
}

/** A value of a kept kline, by the type of its column. */
export type KeptValue = number | ExactDecimal;

/** The values of a native kline in the order of its columns. */
export function nativeValues(bucket: TradeBucket, datasetId: number): readonly KeptValue[] {
  const { totals, trades } = bucket;
  const [first, median, third] = quartilesOf(bucket.runs, trades);
  const { price, priceSquare, quantity, liquidity, makerQuantity, makerLiquidity } = totals;
  return [
    ...[bucket.startMs, trades, bucket.makers, bucket.firstId, bucket.lastId],
    ...[bucket.open, bucket.high, bucket.low, bucket.close],
    meanOf(price, trades),
    deviationOf(price, priceSquare, trades),
    median,
    difference(third, first),
    rounded(quantity, 9),
    ...[bucket.openLiquidity, bucket.highLiquidity, bucket.lowLiquidity, bucket.closeLiquidity],
    rounded(liquidity, 1),
    nearestFloat(makerQuantity.mantissa, makerQuantity.scale),
    rounded(makerLiquidity, 1),
    ...[bucket.sizeMs / 1000, datasetId],
    ...[price, priceSquare, quantity, liquidity, makerQuantity, makerLiquidity],
  ];
}

const alignedValues = (bucket: SecondsBucket, datasetId: number): readonly KeptValue[] => [
  ...[bucket.startMs, bucket.seconds, bucket.trades],
  ...[bucket.open, bucket.high, bucket.low, bucket.close],
  rounded(bucket.quantityTotal, 9),
  rounded(bucket.quoteTotal, 1),
  ...[bucket.sizeMs / 1000, datasetId],
  ...[bucket.quantityTotal, bucket.quoteTotal],
];

/** Halves up. */
function rounded({ mantissa, scale }: ExactDecimal, decimals: number): number {
  if (scale <= decimals) return nearestFloat(mantissa, scale);
  const unit = bigPowerOfTen(scale - decimals);
  return nearestFloat((2n * mantissa + unit) / (2n * unit), decimals);
}

const MEAN_DECIMALS = 5;
const DEVIATION_DECIMALS = 6;

/** The mean to 5 decimals, halves up. */
function meanOf({ mantissa, scale }: ExactDecimal, count: number): number {
  const divisor = BigInt(count) * bigPowerOfTen(scale);
  return nearestFloat((2n * mantissa * bigPowerOfTen(MEAN_DECIMALS) + divisor) / (2n * divisor), MEAN_DECIMALS);
}

/** The population's standard deviation to 6 decimals, halves up. */
function deviationOf(sum: ExactDecimal, squares: ExactDecimal, count: number): number {
  const n = BigInt(count);
  // Of n x squares - sum², in units of 10^-2s with the finer scale s of both.
  const scale = Math.max(sum.scale, Math.ceil(squares.scale / 2));
  const total = sum.mantissa * bigPowerOfTen(scale - sum.scale);
  const variance = n * squares.mantissa * bigPowerOfTen(2 * scale - squares.scale) - total * total;
  // k = floor(10^6 root(variance) / (n 10^s) + 1/2), from the root of an integer: both sides are integers then.
  const root = rootOf(4n * bigPowerOfTen(2 * DEVIATION_DECIMALS) * variance);
  const divisor = n * bigPowerOfTen(scale);
  return nearestFloat((root + divisor) / (2n * divisor), DEVIATION_DECIMALS);
}

/** The square root, rounded down. */
function rootOf(value: bigint): bigint {
  if (value < 2n) return value;
  // A double's root has 53 bits; each of Newton's steps doubles them. The first guess must not be too small.
  const bits = value.toString(16).length * 4;
  const shift = BigInt(Math.max(0, bits - 100) & ~1);
  let x = (BigInt(Math.ceil(Math.sqrt(Number(value >> shift)))) + 1n) << (shift / 2n);
  for (;;) {
    const next = (x + value / x) >> 1n;
    if (next >= x) return x;
    x = next;
  }
}

/** The exact difference of the decimals that two doubles print as. */
function difference(a: number, b: number): number {
  if (a === b) return 0;
  const [x, y] = [unitsOf(a), unitsOf(b)];
  const { mantissa, scale } = addDecimals(x, { mantissa: -y.mantissa, scale: y.scale });
  return nearestFloat(mantissa, scale);
}

/** Writes rows of binary COPY with numeric columns. */
class KlineRows {
  readonly #types: readonly string[];
  #bytes: Buffer;
  #view: DataView;
  #at = 0;

  constructor(mode: keyof typeof KEPT_COLUMNS, capacity: number) {
    this.#types = KEPT_COLUMNS[mode].map(({ pg }) => pg);
    this.#bytes = Buffer.allocUnsafeSlow(capacity);
    this.#view = new DataView(this.#bytes.buffer);
  }

  add(values: readonly KeptValue[]): void {
    this.#reserve(2);
    this.#int16(values.length);
    for (let column = 0; column < values.length; column++) this.#value(this.#types[column], values[column]);
  }

  #value(type: string, value: KeptValue): void {
    if (typeof value === 'object') {
      this.#numeric(value);
      return;
    }
    this.#reserve(12);
    const bytes = type === 'int2' ? 2 : type === 'int4' ? 4 : 8;
    this.#view.setInt32(this.#at, bytes);
    const at = this.#at + 4;
    if (type === 'float8') this.#view.setFloat64(at, value);
    else if (type === 'int8') writeInt8(this.#view, at, value);
    else if (type === 'int4') this.#view.setInt32(at, value);
    else this.#view.setInt16(at, value);
    this.#at = at + bytes;
  }

  /**
   * A decimal that is not negative: counts of digits, the weight of the first, sign and decimals as int16, and then digits of
   * base 10,000 without zeros at either end, as PostgreSQL itself sends them (src/backend/utils/adt/numeric.c).
   */
  #numeric({ mantissa, scale }: ExactDecimal): void {
    const digits = mantissa.toString().padStart(scale + 1, '0');
    const point = digits.length - scale;
    const whole = digits.slice(0, point).padStart(Math.ceil(point / 4) * 4, '0');
    const text = whole + digits.slice(point).padEnd(Math.ceil(scale / 4) * 4, '0');
    let first = 0;
    let end = text.length;
    while (first < end && text.startsWith('0000', first)) first += 4;
    while (end > first && text.startsWith('0000', end - 4)) end -= 4;
    const count = (end - first) / 4;
    const bytes = 8 + 2 * count;
    this.#reserve(4 + bytes);
    const header = [count, count === 0 ? 0 : (whole.length - first) / 4 - 1, 0, scale];
    this.#view.setInt32(this.#at, bytes);
    this.#at += 4;
    for (const value of header) this.#int16(value);
    for (let at = first; at < end; at += 4) this.#int16(Number(text.slice(at, at + 4)));
  }

  #int16(value: number): void {
    this.#view.setInt16(this.#at, value);
    this.#at += 2;
  }

  #reserve(bytes: number): void {
    const needed = this.#at + bytes;
    if (needed <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafeSlow(2 * needed);
    this.#bytes.copy(larger, 0, 0, this.#at);
    this.#bytes = larger;
    this.#view = new DataView(larger.buffer);
  }

  rows(): Buffer {
    return this.#bytes.subarray(0, this.#at);
  }
}
