/**
 * Aggregates trades into aligned rows, in arrays indexed by the second of the partition; the manifest flushes them.
 */

import type { PartitionWindow } from './binary-copy.ts';
import { POSTGRES_EPOCH_US, rowTemplate, writeInt8 } from './binary-copy.ts';
import { type DecimalProduct, type DecimalReader, ExactBuckets, exactDecimal } from './exact-decimal.ts';
import type { DayKlines } from './kept-klines.ts';

export const ALIGNED_TRADE_COLUMNS = [
  'aligned_at_utc',
  'trade_count',
  'open_price',
  'high_price',
  'low_price',
  'close_price',
  'quantity_sum',
  'quote_volume_sum',
  'series_id',
  'dataset_id',
] as const;

const TEMPLATE = rowTemplate([
  'timestamptz',
  'int8',
  'float8',
  'float8',
  'float8',
  'float8',
  'float8',
  'float8',
  'int4',
  'int2',
]);

/** Aggregates by second of a partition. Where `count` is 0, prices and ids have no meaning. */
class Seconds {
  readonly count: Int32Array;
  readonly firstId: Float64Array;
  readonly lastId: Float64Array;
  readonly open: Float64Array;
  readonly high: Float64Array;
  readonly low: Float64Array;
  readonly close: Float64Array;
  readonly quantity: ExactBuckets;
  readonly quote: ExactBuckets;

  constructor(seconds: number) {
    this.count = new Int32Array(seconds);
    this.firstId = new Float64Array(seconds);
    this.lastId = new Float64Array(seconds);
    this.open = new Float64Array(seconds);
    this.high = new Float64Array(seconds);
    this.low = new Float64Array(seconds);
    this.close = new Float64Array(seconds);
    this.quantity = new ExactBuckets(seconds);
    this.quote = new ExactBuckets(seconds);
  }

  /** Empties the arrays for another partition. */
  clear(quoteScale: number | undefined): this {
    this.count.fill(0);
    this.quantity.clear();
    this.quote.clear(quoteScale);
    return this;
  }
}

/**
 * The arrays of the last flushed partition, which the next one reuses: 6 MB for a day. With new arrays for each, V8
 * collected garbage for longer than the load of a small day takes.
 */
let spare: Seconds | undefined;
const FLUSHED = new Seconds(0);

function takeSeconds(seconds: number, quoteScale: number | undefined): Seconds {
  const kept = spare?.count.length === seconds ? spare : undefined;
  if (kept) spare = undefined;
  return (kept ?? new Seconds(seconds)).clear(quoteScale);
}

export class AlignedTrades {
  readonly #fromMs: number;
  #seconds: Seconds;

  /** `quoteScale`: the usual number of decimals of quote quantities. */
  constructor(window: PartitionWindow, quoteScale?: number) {
    this.#fromMs = window.fromMs;
    this.#seconds = takeSeconds((window.toMs - window.fromMs) / 1000, quoteScale);
  }

  /** The index of the second that a time falls into; -1 outside the partition's window. */
  bucket(ms: number): number {
    const second = Math.floor((ms - this.#fromMs) / 1000);
    return second >= 0 && second < this.#seconds.count.length ? second : -1;
  }

  /** The lowest id gives the open price and the highest the close price, in whatever order they arrive. */
  price(second: number, id: number, price: number): void {
    const { count, firstId, lastId, open, high, low, close } = this.#seconds;
    if (count[second]++ === 0) {
      firstId[second] = id;
      lastId[second] = id;
      open[second] = price;
      high[second] = price;
      low[second] = price;
      close[second] = price;
      return;
    }
    if (id > lastId[second]) {
      lastId[second] = id;
      close[second] = price;
    } else if (id < firstId[second]) {
      firstId[second] = id;
      open[second] = price;
    }
    if (price > high[second]) high[second] = price;
    if (price < low[second]) low[second] = price;
  }

  quantity(second: number, reader: DecimalReader, bytes: Buffer, start: number): void {
    addTo(this.#seconds.quantity, second, reader, bytes, start);
  }

  quote(second: number, reader: DecimalReader, bytes: Buffer, start: number): void {
    addTo(this.#seconds.quote, second, reader, bytes, start);
  }

  quoteProduct(second: number, product: DecimalProduct): void {
    const { quote } = this.#seconds;
    if (product.exact) quote.addExact(second, product.exact);
    else quote.add(second, product.mantissa, product.scale);
  }

  /**
   * Binary COPY rows of the seconds that hold trades, in order of time, which the klines are also made from. No trade can be
   * added afterwards.
   */
  flush(key: { datasetId: number; seriesId: number }, klines: DayKlines): { copy: Buffer; rows: number } {
    const seconds = this.#seconds;
    this.#seconds = FLUSHED;
    let rows = 0;
    for (const count of seconds.count) if (count > 0) rows++;
    const copy = TEMPLATE.stamp(rows);
    const view = new DataView(copy.buffer, copy.byteOffset, copy.byteLength);
    const [at, count, open, high, low, close, quantity, quote, series, dataset] = TEMPLATE.offsets;
    let row = 0;
    for (let second = 0; second < seconds.count.length; second++) {
      if (seconds.count[second] === 0) continue;
      const ms = this.#fromMs + second * 1000;
      const folded = {
        open: seconds.open[second],
        high: seconds.high[second],
        low: seconds.low[second],
        close: seconds.close[second],
        quantity: seconds.quantity.value(second),
        quote: seconds.quote.value(second),
        trades: seconds.count[second],
      };
      klines.addSecond(ms, folded, { firstId: seconds.firstId[second], lastId: seconds.lastId[second] });
      writeInt8(view, row + at, ms * 1000 - POSTGRES_EPOCH_US);
      writeInt8(view, row + count, folded.trades);
      view.setFloat64(row + open, folded.open);
      view.setFloat64(row + high, folded.high);
      view.setFloat64(row + low, folded.low);
      view.setFloat64(row + close, folded.close);
      view.setFloat64(row + quantity, folded.quantity);
      view.setFloat64(row + quote, folded.quote);
      view.setInt32(row + series, key.seriesId);
      view.setInt16(row + dataset, key.datasetId);
      row += TEMPLATE.rowBytes;
    }
    spare = seconds;
    return { copy, rows };
  }
}

function addTo(sums: ExactBuckets, second: number, reader: DecimalReader, bytes: Buffer, start: number): void {
  if (!reader.inexact) sums.add(second, reader.mantissa, reader.scale);
  else if (reader.long && sums.hasUsualScale) sums.addLong(second, reader.units, reader.fine);
  else sums.addExact(second, exactDecimal(bytes.toString('latin1', start, reader.end)));
}
