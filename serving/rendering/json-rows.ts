/** Rows as a JSON list of objects, without its closing bracket, written from the bytes of PostgreSQL's binary rows. No object is made for a row. */
import { CELL, type Cell, type Column } from './cells.ts';
import { writeFloat, writeInt64, writeInteger } from './digits.ts';
import type { Out } from './out.ts';
import type { RowWriter } from './representations.ts';
import { maxStringBytes, writeString, writeUuid } from './strings.ts';
import { POSTGRES_EPOCH_MS, TIMESTAMP_BYTES, TimestampWriter } from './timestamps.ts';

const COMMA = 0x2c;
const QUOTE = 0x22;
const CLOSE = 0x7d;
const OPEN = 0x5b;
const NULL_LE = 0x6c6c756e; // "null"
/** Widest fixed-size cell: an integer of 20 digits, a float of 25 characters, a quoted timestamp or uuid. */
const FIXED_CELL_BYTES = 40;
const NO_HOLE = -1;

/** The bytes before a cell, `,"name":`, as 8-byte stores. ASCII is never the bit pattern of a NaN. */
interface Prefix {
  readonly words: Float64Array;
  readonly length: number;
}

export class JsonRows implements RowWriter {
  readonly #out: Out;
  readonly #cells: readonly Cell[];
  readonly #prefixes: readonly Prefix[];
  readonly #fixedBytes: number;
  readonly #variable: boolean;
  /** The row starts with a cell that is not shown: the time that ends the validity of the row before. */
  readonly #hidden: boolean;
  readonly #times = new TimestampWriter();
  #rows = 0;
  #hole = NO_HOLE;

  constructor(out: Out, columns: readonly Column[], hiddenFirst: boolean) {
    this.#out = out;
    this.#cells = columns.map((column) => column.cell);
    this.#prefixes = columns.map(({ field }, index) =>
      prefixOf(`${index === 0 ? ',{' : ','}${JSON.stringify(field.name)}:`),
    );
    this.#variable = this.#cells.includes(CELL.text);
    this.#fixedBytes = this.#prefixes.reduce((sum, prefix) => sum + prefix.length + FIXED_CELL_BYTES, 8);
    this.#hidden = hiddenFirst;
  }

  get rows(): number {
    return this.#rows;
  }

  get isOpen(): boolean {
    return this.#hole !== NO_HOLE;
  }

  /** One row: `at` is where its cells start, after the column count; `bytes` what they take. */
  row(view: DataView, source: Buffer, at: number, bytes: number): void {
    const out = this.#out;
    out.reserve(this.#variable ? this.#fixedBytes + maxStringBytes(bytes) : this.#fixedBytes);
    const to = out.view;
    const start = out.at;
    const cells = this.#cells;
    let next = start;
    let from = at;
    if (this.#hidden) from += 4 + view.getInt32(from);
    for (let index = 0; index < cells.length; index++) {
      const { words, length } = this.#prefixes[index];
      for (let word = 0; word < words.length; word++) to.setFloat64(next + word * 8, words[word], true);
      next += length;
      const cell = cells[index];
      if (cell === CELL.validTo) {
        this.#hole = next;
        next += TIMESTAMP_BYTES + 2;
        continue;
      }
      const size = view.getInt32(from);
      from += 4;
      if (size < 0) {
        to.setUint32(next, NULL_LE, true);
        next += 4;
        continue;
      }
      switch (cell) {
        case CELL.int8:
          next = writeInt64(to, next, view.getInt32(from), view.getUint32(from + 4));
          break;
        case CELL.float8:
          next = writeFloat(to, next, view.getFloat64(from));
          break;
        case CELL.bool:
          to.setUint8(next++, 0x30 + view.getUint8(from));
          break;
        case CELL.epochMs:
          next = this.#time(to, next, view.getInt32(from) * 4294967296 + view.getUint32(from + 4));
          break;
        case CELL.timestamptz:
          next = this.#time(to, next, readTimestamptzMs(view, from));
          break;
        case CELL.int4:
          next = writeInteger(to, next, view.getInt32(from));
          break;
        case CELL.int2:
          next = writeInteger(to, next, view.getInt16(from));
          break;
        case CELL.text:
          next = writeString(out.bytes, next, source, from, from + size);
          break;
        case CELL.uuid:
          next = writeUuid(out.bytes, next, source, from);
          break;
      }
      from += size;
    }
    to.setUint8(next++, CLOSE);
    // The comma before the first row is the bracket that opens the list: one branch less in every row.
    if (this.#rows++ === 0) to.setUint8(start, OPEN);
    out.at = next;
  }

  /** The end of validity of the last row written. Nothing may be handed on between the two. */
  resolve(ms: number): void {
    if (this.#hole === NO_HOLE) return;
    this.#time(this.#out.view, this.#hole, ms);
    this.#hole = NO_HOLE;
  }

  #time(to: DataView, at: number, ms: number): number {
    to.setUint8(at, QUOTE);
    const next = this.#times.write(to, at + 1, ms);
    to.setUint8(next, QUOTE);
    return next + 1;
  }
}

/** Milliseconds of a timestamptz, which counts microseconds from 2000. */
export function readTimestamptzMs(view: DataView, at: number): number {
  const micros = view.getInt32(at) * 4294967296 + view.getUint32(at + 4);
  return Math.floor(micros / 1000) + POSTGRES_EPOCH_MS;
}

function prefixOf(text: string): Prefix {
  const length = Buffer.byteLength(text);
  const padded = Buffer.alloc(Math.ceil(length / 8) * 8, COMMA);
  padded.write(text);
  const view = new DataView(padded.buffer, padded.byteOffset, padded.length);
  const words = new Float64Array(padded.length / 8);
  for (let i = 0; i < words.length; i++) words[i] = view.getFloat64(i * 8, true);
  return { words, length };
}
