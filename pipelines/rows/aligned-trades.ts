/** Folds trades into one-second rows: arrays indexed by second of the partition, flushed once at the manifest. */

import { POSTGRES_EPOCH_US, rowTemplate, writeInt8 } from './binary-copy.ts';
import { type DecimalProduct, type DecimalReader, ExactBuckets, exactDecimal } from './exact-decimal.ts';
import type { PartitionWindow } from './types.ts';

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

export class AlignedTrades {
  readonly #fromMs: number;
  readonly #count: Int32Array;
  readonly #firstId: Float64Array;
  readonly #lastId: Float64Array;
  readonly #open: Float64Array;
  readonly #high: Float64Array;
  readonly #low: Float64Array;
  readonly #close: Float64Array;
  readonly #quantity: ExactBuckets;
  readonly #quote: ExactBuckets;

  /** `quoteScale`: decimals that quote quantities have as a rule. */
  constructor(window: PartitionWindow, quoteScale?: number) {
    const seconds = (window.toMs - window.fromMs) / 1000;
    this.#fromMs = window.fromMs;
    this.#count = new Int32Array(seconds);
    this.#firstId = new Float64Array(seconds);
    this.#lastId = new Float64Array(seconds);
    this.#open = new Float64Array(seconds);
    this.#high = new Float64Array(seconds);
    this.#low = new Float64Array(seconds);
    this.#close = new Float64Array(seconds);
    this.#quantity = new ExactBuckets(seconds);
    this.#quote = new ExactBuckets(seconds, quoteScale);
  }

  /** The second a time falls into; outside the partition's window it is no index of the arrays. */
  bucket(ms: number): number {
    const second = Math.floor((ms - this.#fromMs) / 1000);
    return second >= 0 && second < this.#count.length ? second : -1;
  }

  /** Open and close go by the number of the id, not by the order of arrival. */
  price(second: number, id: number, price: number): void {
    if (this.#count[second]++ === 0) {
      this.#firstId[second] = id;
      this.#lastId[second] = id;
      this.#open[second] = price;
      this.#high[second] = price;
      this.#low[second] = price;
      this.#close[second] = price;
      return;
    }
    if (id > this.#lastId[second]) {
      this.#lastId[second] = id;
      this.#close[second] = price;
    } else if (id < this.#firstId[second]) {
      this.#firstId[second] = id;
      this.#open[second] = price;
    }
    if (price > this.#high[second]) this.#high[second] = price;
    if (price < this.#low[second]) this.#low[second] = price;
  }

  quantity(second: number, reader: DecimalReader, bytes: Buffer, start: number): void {
    addTo(this.#quantity, second, reader, bytes, start);
  }

  quote(second: number, reader: DecimalReader, bytes: Buffer, start: number): void {
    addTo(this.#quote, second, reader, bytes, start);
  }

  quoteProduct(second: number, product: DecimalProduct): void {
    if (product.exact) this.#quote.addExact(second, product.exact);
    else this.#quote.add(second, product.mantissa, product.scale);
  }

  /** Binary COPY rows of the seconds that hold trades, in order of time. */
  copy(key: { datasetId: number; seriesId: number }): { copy: Buffer; rows: number } {
    let rows = 0;
    for (const count of this.#count) if (count > 0) rows++;
    const copy = TEMPLATE.stamp(rows);
    const view = new DataView(copy.buffer, copy.byteOffset, copy.byteLength);
    const [at, count, open, high, low, close, quantity, quote, series, dataset] = TEMPLATE.offsets;
    let row = 0;
    for (let second = 0; second < this.#count.length; second++) {
      if (this.#count[second] === 0) continue;
      writeInt8(view, row + at, (this.#fromMs + second * 1000) * 1000 - POSTGRES_EPOCH_US);
      writeInt8(view, row + count, this.#count[second]);
      view.setFloat64(row + open, this.#open[second]);
      view.setFloat64(row + high, this.#high[second]);
      view.setFloat64(row + low, this.#low[second]);
      view.setFloat64(row + close, this.#close[second]);
      view.setFloat64(row + quantity, this.#quantity.value(second));
      view.setFloat64(row + quote, this.#quote.value(second));
      view.setInt32(row + series, key.seriesId);
      view.setInt16(row + dataset, key.datasetId);
      row += TEMPLATE.rowBytes;
    }
    return { copy, rows };
  }
}

function addTo(sums: ExactBuckets, second: number, reader: DecimalReader, bytes: Buffer, start: number): void {
  if (!reader.inexact) sums.add(second, reader.mantissa, reader.scale);
  else if (reader.long) sums.addLong(second, reader.units, reader.fine);
  else sums.addExact(second, exactDecimal(bytes.toString('latin1', start, reader.end)));
}
