/** One column of an Arrow batch: typed arrays in Arrow's layout, reused for the next batch. */
import { assert } from '../../shared/errors.ts';
import type { Field } from '../../shared/registry/index.ts';
import type { ArrowField, ArrowType, BatchColumn } from './arrow-messages.ts';
import { CELL, type Column } from './cells.ts';

/** Arrow types by dtype. bool01 is the contract's integer 0 or 1; uuid and json are texts as in JSON. */
const TYPES: Readonly<Record<Field['dtype'], ArrowType>> = {
  int64: 'int64',
  float64: 'float64',
  bool01: 'int8',
  timestamp_utc: 'timestamp_ms_utc',
  string: 'utf8',
  uuid: 'utf8',
  json: 'utf8',
};

const WIDTHS: Readonly<Record<ArrowType, number>> = { int64: 8, float64: 8, int8: 1, timestamp_ms_utc: 8, utf8: 4 };

const FIRST_TEXT_BYTES = 4096;
/** Above this size, the column releases the text buffer that one wide row enlarged. */
const MAX_REUSED_TEXT_BYTES = 4 * 1024 * 1024;
/** For shorter texts, a loop over bytes is faster than a call that copies them. */
const SHORT_BYTES = 24;

/** The memory of a column's batch. */
export interface ColumnMemory {
  readonly bytes: Uint8Array;
  readonly text: Uint8Array;
}

/** The bytes for the widest values, and one more entry for the end of the last text. */
const bytesFor = (capacity: number): number => capacity * 8 + 8;

export class ArrowColumn {
  readonly field: ArrowField;
  readonly #width: number;
  readonly #isText: boolean;
  /** The number of rows that fit. */
  #capacity: number;
  /** The values, or the ends of texts: one memory, viewed in the widths that are written. */
  words: Int32Array;
  doubles: Float64Array;
  bytes: Uint8Array;
  text: Uint8Array;
  textBytes = 0;
  nulls = 0;
  /** One bit per row, allocated at the first null. */
  #validity: Uint8Array | undefined;

  constructor({ field, cell }: Column, capacity: number) {
    const type = TYPES[field.dtype];
    assert(type !== 'int8' || cell === CELL.bool, `${field.name}: only a bool can be written as one byte`);
    const metadata: [string, string][] = [['dtype', field.dtype]];
    if (field.unit !== undefined) metadata.push(['unit', field.unit]);
    this.field = { name: field.name, type, nullable: field.nullable, metadata };
    this.#width = WIDTHS[type];
    this.#isText = type === 'utf8';
    this.#capacity = capacity;
    this.bytes = new Uint8Array(bytesFor(capacity));
    this.words = new Int32Array(this.bytes.buffer);
    this.doubles = new Float64Array(this.bytes.buffer);
    this.text = new Uint8Array(this.#isText ? FIRST_TEXT_BYTES : 0);
  }

  /** Makes room for so many rows in an empty batch. */
  grow(capacity: number): void {
    this.#capacity = capacity;
    this.#use(new Uint8Array(bytesFor(capacity)));
    this.#validity = undefined;
  }

  /** Stores milliseconds, or any integer that a double holds. */
  setInteger(row: number, value: number): void {
    // The array stores the value modulo 2^32.
    this.words[row * 2] = value;
    this.words[row * 2 + 1] = Math.floor(value / 4294967296);
  }

  /** Copies the row's text. */
  addText(row: number, source: Uint8Array, start: number, end: number): void {
    const size = end - start;
    this.reserveText(size);
    const { text, textBytes: at } = this;
    if (size > SHORT_BYTES) text.set(source.subarray(start, end), at);
    else for (let i = 0; i < size; i++) text[at + i] = source[start + i];
    this.endText(row, at + size);
  }

  reserveText(size: number): void {
    const needed = this.textBytes + size;
    if (needed <= this.text.length) return;
    const text = new Uint8Array(Math.max(needed, this.text.length * 2));
    text.set(this.text.subarray(0, this.textBytes));
    this.text = text;
  }

  endText(row: number, at: number): void {
    this.words[row + 1] = at;
    this.textBytes = at;
  }

  setNull(row: number): void {
    // The value under a null is zero, so that equal rows have equal bytes.
    if (this.#isText) this.endText(row, this.textBytes);
    else if (this.#width === 1) this.bytes[row] = 0;
    else this.doubles[row] = 0;
    this.#validity ??= new Uint8Array((this.#capacity + 7) >> 3).fill(0xff);
    this.#validity[row >> 3] &= ~(1 << (row & 7));
    this.nulls++;
  }

  /** The buffers of the batch's rows in the format's order, and their description for the message. */
  take(rows: number): BatchColumn & { readonly buffers: readonly Uint8Array[] } {
    const values = this.bytes.subarray(0, this.#isText ? (rows + 1) * 4 : rows * this.#width);
    const buffers = [this.#bits(rows), values];
    if (this.#isText) buffers.push(this.text.subarray(0, this.textBytes));
    return { nulls: this.nulls, lengths: buffers.map((buffer) => buffer.length), buffers };
  }

  /** Starts an empty batch in the same memory. */
  clear(): void {
    if (this.nulls > 0) this.#validity!.fill(0xff);
    this.nulls = 0;
    this.textBytes = 0;
    if (this.text.length > MAX_REUSED_TEXT_BYTES) this.text = new Uint8Array(FIRST_TEXT_BYTES);
  }

  /** Starts an empty batch in other memory, because the receiver of the last batch owns its memory. Reuses `earlier` if given. */
  renew(earlier?: ColumnMemory): void {
    this.nulls = 0;
    this.textBytes = 0;
    this.#validity = undefined;
    if (earlier && earlier.bytes.length === bytesFor(this.#capacity)) this.#use(earlier.bytes);
    else this.grow(this.#capacity);
    if (this.#isText) this.text = earlier && earlier.text.length > 0 ? earlier.text : new Uint8Array(FIRST_TEXT_BYTES);
  }

  #use(bytes: Uint8Array): void {
    this.bytes = bytes;
    this.words = new Int32Array(bytes.buffer);
    this.doubles = new Float64Array(bytes.buffer);
  }

  /** The validity bits; none without a null. The bits after the last row are zero. */
  #bits(rows: number): Uint8Array {
    if (this.nulls === 0) return new Uint8Array(0);
    const bits = this.#validity!.subarray(0, (rows + 7) >> 3);
    if (rows & 7) bits[bits.length - 1] &= (1 << (rows & 7)) - 1;
    return bits;
  }
}
