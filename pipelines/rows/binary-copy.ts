/**
 * Rows in PostgreSQL's binary COPY format: an int16 column count, then for each column an int32 length and the value,
 * big-endian. Rows of one width are copied from a template, so that only values are written.
 * Format: PostgreSQL documentation, COPY, "Binary Format".
 */
import { createHash } from 'node:crypto';
import { assert } from '../../shared/errors.ts';
import type { WrittenAs } from '../../shared/frame/codec.ts';
import type { TradeFacts } from '../../shared/proof/facts.ts';
import { GRANULE_ROWS, type Granules, type ValueRanges } from '../../shared/proof/value-ranges.ts';
import { COPY_HEADER, COPY_TRAILER } from '../../shared/proof-log/rows.ts';
import type { SecondsRule, StoredColumn } from '../../shared/registry/definition.ts';
import type { PgType } from '../../shared/registry/index.ts';
import type { TimeWindow } from '../../shared/registry/keys.ts';
import type { ExactDecimal } from './exact-decimal.ts';

/** Bytes of the types of fixed width. */
const WIDTHS: Partial<Record<PgType, number>> = { int2: 2, int4: 4, int8: 8, float8: 8, bool: 1, timestamptz: 8 };

/** Microseconds from 1970-01-01 to 2000-01-01, where timestamptz starts. */
export const POSTGRES_EPOCH_US = 946_684_800_000_000;

export interface RowTemplate {
  readonly rowBytes: number;
  /** Offset of each column's value within the row. */
  readonly offsets: readonly number[];
  /** A buffer of `rows` copies of the template. */
  stamp(rows: number): Buffer;
}

export function rowTemplate(types: readonly PgType[]): RowTemplate {
  const offsets: number[] = [];
  let rowBytes = 2;
  for (const type of types) {
    const width = WIDTHS[type];
    assert(width, `${type} has no fixed width`);
    offsets.push(rowBytes + 4);
    rowBytes += 4 + width;
  }
  const row = Buffer.alloc(rowBytes);
  row.writeInt16BE(types.length, 0);
  types.forEach((type, column) => {
    row.writeInt32BE(WIDTHS[type]!, offsets[column] - 4);
  });
  return {
    rowBytes,
    offsets,
    stamp(rows) {
      const buffer = Buffer.allocUnsafeSlow(rowBytes * rows);
      row.copy(buffer, 0);
      // Each copy doubles the filled part: 14,000 rows take 14 copies.
      for (let done = rowBytes; done < buffer.length; done *= 2)
        buffer.copy(buffer, done, 0, Math.min(done, buffer.length - done));
      return buffer;
    },
  };
}

/** Smaller buffers are not reused: they may still wait in a socket's queue, and a new one costs little. */
export const REUSE_FROM_BYTES = 256 * 1024;

/** What binary COPY rows hold: the ranges of doubles, and the times, of all rows and by granule. */
export interface CopyFacts {
  /** A column with NaN, infinities or nulls alone is left out. */
  readonly ranges: ValueRanges;
  /** The smallest and the largest value of the time column; infinite without rows. */
  readonly firstMs: number;
  readonly lastMs: number;
  readonly granules: Granules;
}

/** The granules of some rows, while they are read. */
class GranulesOfRows {
  readonly count: number;
  readonly offsets: Float64Array | undefined;
  readonly ranges: Float64Array;
  /** Epoch ms; infinite before the first row. */
  readonly firstMs: Float64Array;
  readonly lastMs: Float64Array;

  constructor(rows: number, columns: number, hasOffsets: boolean) {
    this.count = Math.ceil(rows / GRANULE_ROWS);
    this.offsets = hasOffsets ? new Float64Array(this.count) : undefined;
    this.ranges = new Float64Array(2 * columns * this.count);
    this.firstMs = new Float64Array(this.count).fill(Number.POSITIVE_INFINITY);
    this.lastMs = new Float64Array(this.count).fill(Number.NEGATIVE_INFINITY);
  }

  /** Sets the range of a column in a granule, which is unknown with NaN, infinities or nulls alone. */
  setRange(column: number, granule: number, least: number, greatest: number, isOdd: boolean): void {
    const isKnown = !isOdd && least <= greatest;
    const at = 2 * column * this.count + granule;
    this.ranges[at] = isKnown ? least : Number.NaN;
    this.ranges[at + this.count] = isKnown ? greatest : Number.NaN;
  }

  setTime(granule: number, ms: number): void {
    if (ms < this.firstMs[granule]) this.firstMs[granule] = ms;
    if (ms > this.lastMs[granule]) this.lastMs[granule] = ms;
  }

  facts(ranges: ValueRanges): CopyFacts {
    const firstMs = this.firstMs.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
    const lastMs = this.lastMs.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    const sinceFirst = (ms: number) => ms - firstMs;
    const granules = {
      offsets: this.offsets,
      firstMs: this.firstMs.map(sinceFirst),
      lastMs: this.lastMs.map(sinceFirst),
      ranges: this.ranges,
    };
    return { ranges, firstMs, lastMs, granules };
  }
}

/** Where the values of columns lie that have the same place in each row. */
type Layout = Pick<RowTemplate, 'rowBytes' | 'offsets'>;

/** Reads the smallest and largest values of columns of doubles, and of the time, from binary COPY rows. */
export class CopyRanges {
  /** By column: the place of its range, or -1. */
  readonly #places: Int32Array;
  readonly #names: readonly string[];
  readonly #time: number;
  /** The column of ids; -1 where they follow from the first id. */
  readonly #id: number;
  /** Rows without nulls, where all columns have a fixed width. */
  readonly #fixed: Layout | undefined;
  /** The first columns of any row, where those that are read are among them, have a fixed width and are never null. */
  readonly #leading: Layout | undefined;
  /** Where each row of the leading layout begins; used again by the next frame. */
  #starts = new Int32Array(0);

  /**
   * @param time the name of a column of type int8
   * @param id the same, of ids with gaps
   */
  constructor(
    columns: readonly Pick<StoredColumn, 'name' | 'pg' | 'nullable'>[],
    ranged: readonly string[],
    time: string,
    id?: string,
  ) {
    this.#places = Int32Array.from(columns, ({ name }) => ranged.indexOf(name));
    this.#names = ranged;
    this.#time = columns.findIndex(({ name }) => name === time);
    this.#id = columns.findIndex(({ name }) => name === id);
    const types = columns.map(({ pg }) => pg);
    this.#fixed = types.every((type) => WIDTHS[type]) ? rowTemplate(types) : undefined;
    const isFree = ({ pg, nullable }: (typeof columns)[number]) => nullable === true || !WIDTHS[pg];
    const leading = columns.slice(0, Math.max(0, columns.findIndex(isFree)));
    const isRead = (_: unknown, column: number) =>
      column === this.#time || column === this.#id || this.#places[column] >= 0;
    const isAllLeading = columns.findLastIndex(isRead) < leading.length;
    this.#leading = isAllLeading ? rowTemplate(leading.map(({ pg }) => pg)) : undefined;
  }

  /** @param copy rows without a header. @returns undefined where no column has ranges. */
  of(copy: Buffer, rows: number): CopyFacts | undefined {
    if (this.#names.length === 0) return undefined;
    const view = new DataView(copy.buffer, copy.byteOffset, copy.length);
    // A null takes fewer bytes than a value, so rows of this size together hold none.
    if (this.#fixed && copy.length === rows * this.#fixed.rowBytes) {
      return this.#ofPlaced(view, this.#fixed, this.#startsOf(view, rows, this.#fixed.rowBytes, 0));
    }
    if (!this.#leading) return this.#ofAny(view, rows);
    const { rowBytes, offsets } = this.#leading;
    const rest = this.#places.length - offsets.length;
    return this.#ofPlaced(view, this.#leading, this.#startsOf(view, rows, rowBytes, rest));
  }

  /** Where rows begin that are `leading` bytes and as many cells as `rest` says. */
  #startsOf(view: DataView, rows: number, leading: number, rest: number): Int32Array {
    if (this.#starts.length < rows) this.#starts = new Int32Array(rows + (rows >> 3));
    const starts = this.#starts.subarray(0, rows);
    let at = 0;
    for (let row = 0; row < rows; row++) {
      starts[row] = at;
      at += leading;
      for (let cell = 0; cell < rest; cell++) {
        const length = view.getInt32(at);
        at += length > 0 ? 4 + length : 4;
      }
    }
    assert(at === view.byteLength, `${rows} rows end at byte ${at} of ${view.byteLength}`);
    return starts;
  }

  /** Column by column: a day of 3.5 M trades takes 0.03 to 0.04 s, and 0.1 s cell by cell. */
  #ofPlaced(view: DataView, { offsets }: Layout, starts: Int32Array): CopyFacts {
    const granules = new GranulesOfRows(starts.length, this.#names.length, this.#id >= 0);
    const known: [string, [number, number]][] = [];
    for (let column = 0; column < offsets.length; column++) {
      const place = this.#places[column];
      if (place < 0) continue;
      const offset = offsets[column];
      let [leastOfAll, greatestOfAll, oddOfAll] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0];
      for (let granule = 0; granule < granules.count; granule++) {
        let [least, greatest, odd] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0];
        const end = Math.min(starts.length, (granule + 1) * GRANULE_ROWS);
        for (let row = granule * GRANULE_ROWS; row < end; row++) {
          const value = view.getFloat64(starts[row] + offset);
          if (value < least) least = value;
          if (value > greatest) greatest = value;
          // NaN for NaN and infinities, which it stays.
          odd += value - value;
        }
        granules.setRange(place, granule, least, greatest, odd !== 0);
        if (least < leastOfAll) leastOfAll = least;
        if (greatest > greatestOfAll) greatestOfAll = greatest;
        oddOfAll += odd;
      }
      if (oddOfAll === 0 && leastOfAll <= greatestOfAll) known.push([this.#names[place], [leastOfAll, greatestOfAll]]);
    }
    const time = offsets[this.#time];
    for (let granule = 0; granule < granules.count; granule++) {
      const end = Math.min(starts.length, (granule + 1) * GRANULE_ROWS);
      for (let row = granule * GRANULE_ROWS; row < end; row++) {
        granules.setTime(granule, int8At(view, starts[row] + time));
      }
    }
    if (granules.offsets) {
      const id = offsets[this.#id];
      for (let granule = 0; granule < granules.count; granule++) {
        granules.offsets[granule] = int8At(view, starts[granule * GRANULE_ROWS] + id);
      }
    }
    return granules.facts(Object.fromEntries(known));
  }

  #ofAny(view: DataView, rows: number): CopyFacts {
    const names = this.#names;
    const places = this.#places;
    const [time, id] = [this.#time, this.#id];
    const granules = new GranulesOfRows(rows, names.length, id >= 0);
    const leastOfAll = new Float64Array(names.length).fill(Number.POSITIVE_INFINITY);
    const greatestOfAll = new Float64Array(names.length).fill(Number.NEGATIVE_INFINITY);
    const isOddOfAll = new Uint8Array(names.length);
    const least = new Float64Array(names.length);
    const greatest = new Float64Array(names.length);
    const isOdd = new Uint8Array(names.length);
    let row = 0;
    for (let at = 0; at < view.byteLength; row++) {
      const granule = Math.floor(row / GRANULE_ROWS);
      const isFirst = row % GRANULE_ROWS === 0;
      if (isFirst) {
        least.fill(Number.POSITIVE_INFINITY);
        greatest.fill(Number.NEGATIVE_INFINITY);
        isOdd.fill(0);
      }
      at += 2;
      for (let column = 0; column < places.length; column++) {
        const length = view.getInt32(at);
        const place = places[column];
        if (place >= 0 && length > 0) {
          const value = view.getFloat64(at + 4);
          if (value < least[place]) least[place] = value;
          if (value > greatest[place]) greatest[place] = value;
          if (value - value !== 0) isOdd[place] = 1;
        } else if (column === time) {
          granules.setTime(granule, int8At(view, at + 4));
        } else if (column === id && isFirst && granules.offsets) {
          granules.offsets[granule] = int8At(view, at + 4);
        }
        at += length > 0 ? 4 + length : 4;
      }
      if ((row + 1) % GRANULE_ROWS !== 0 && at < view.byteLength) continue;
      for (let place = 0; place < names.length; place++) {
        granules.setRange(place, granule, least[place], greatest[place], isOdd[place] !== 0);
        if (least[place] < leastOfAll[place]) leastOfAll[place] = least[place];
        if (greatest[place] > greatestOfAll[place]) greatestOfAll[place] = greatest[place];
        isOddOfAll[place] |= isOdd[place];
      }
    }
    assert(row === rows, `${rows} rows were expected, ${row} were found`);
    const known = names.flatMap((name, place) =>
      isOddOfAll[place] === 0 && leastOfAll[place] <= greatestOfAll[place]
        ? [[name, [leastOfAll[place], greatestOfAll[place]]] as const]
        : [],
    );
    return granules.facts(Object.fromEntries(known));
  }
}

/** An int8 of up to 2^53. Two halves: as a bigint it takes ten times as long. */
const int8At = (view: DataView, at: number): number => view.getInt32(at) * 2 ** 32 + view.getUint32(at + 4);

/** The digest of a partition's rows for the proof log, from binary COPY rows without the columns that it leaves out. */
export class LoggedRows {
  readonly #hash = createHash('sha256').update(COPY_HEADER);
  /** By column: whether it is left out. Empty where none is, and the rows are hashed as they are. */
  readonly #omitted: readonly boolean[];
  readonly #columns: number;

  constructor(columns: readonly StoredColumn[]) {
    const omitted = columns.map(({ shown }) => shown === 'none');
    this.#columns = omitted.filter((isOmitted) => !isOmitted).length;
    this.#omitted = this.#columns === columns.length ? [] : omitted;
  }

  /** @param copy rows without a header */
  update(copy: Buffer): void {
    this.#hash.update(this.#omitted.length === 0 ? copy : this.#without(copy));
  }

  /** Copies what lies between two omitted columns at once: a row of a transaction has 13 others. */
  #without(copy: Buffer): Buffer {
    const kept = Buffer.allocUnsafe(copy.length);
    const omitted = this.#omitted;
    const view = new DataView(copy.buffer, copy.byteOffset, copy.length);
    let to = 0;
    for (let at = 0; at < copy.length; ) {
      to = kept.writeInt16BE(this.#columns, to);
      at += 2;
      let from = at;
      for (let column = 0; column < omitted.length; column++) {
        const length = view.getInt32(at);
        const end = length > 0 ? at + 4 + length : at + 4;
        if (omitted[column]) {
          if (at > from) to += copy.copy(kept, to, from, at);
          from = end;
        }
        at = end;
      }
      if (at > from) to += copy.copy(kept, to, from, at);
    }
    return kept.subarray(0, to);
  }

  digest(): string {
    return this.#hash.update(COPY_TRAILER).digest('hex');
  }
}

/**
 * Writes rows value by value. Uses three buffers in turn, which saves page faults and garbage collection: the rows are valid until
 * the third `start` after theirs; CopyIn holds at most two.
 */
export class CopyRows {
  readonly #columns: number;
  readonly #kept: Buffer[] = [];
  #next = 0;
  #bytes: Buffer = Buffer.alloc(0);
  #view = new DataView(this.#bytes.buffer);
  #at = 0;

  constructor(columns: number) {
    this.#columns = columns;
  }

  /** Begins new rows, which take at most `capacity` bytes. */
  start(capacity: number): void {
    this.#bytes = this.#buffer(capacity);
    this.#view = new DataView(this.#bytes.buffer, this.#bytes.byteOffset, this.#bytes.length);
    this.#at = 0;
  }

  #buffer(capacity: number): Buffer {
    // The capacity is for the longest possible texts. At least half of it is written, unless a vendor's rows have long columns
    // that are not stored.
    if (capacity < 2 * REUSE_FROM_BYTES) return Buffer.allocUnsafeSlow(capacity);
    const slot = this.#next++ % 3;
    const kept = this.#kept[slot];
    if (kept === undefined || kept.length < capacity) {
      this.#kept[slot] = Buffer.allocUnsafeSlow(capacity + (capacity >> 3));
    }
    return this.#kept[slot];
  }

  begin(): void {
    this.#view.setInt16(this.#at, this.#columns);
    this.#at += 2;
  }

  int8(value: number): void {
    this.#view.setInt32(this.#at, 8);
    writeInt8(this.#view, this.#at + 4, value);
    this.#at += 12;
  }

  float8(value: number): void {
    this.#view.setInt32(this.#at, 8);
    this.#view.setFloat64(this.#at + 4, value);
    this.#at += 12;
  }

  bool(value: 0 | 1): void {
    this.#view.setInt32(this.#at, 1);
    this.#bytes[this.#at + 4] = value;
    this.#at += 5;
  }

  /** Writes the bytes [start, end). */
  text(bytes: Uint8Array, start: number, end: number): void {
    const target = this.#bytes;
    this.#view.setInt32(this.#at, end - start);
    let at = this.#at + 4;
    for (let from = start; from < end; from++) target[at++] = bytes[from];
    this.#at = at;
  }

  /** The rows that were written. */
  rows(): Buffer {
    return this.#bytes.subarray(0, this.#at);
  }
}

/** Writes an integer of up to 2^53 as int8. */
export function writeInt8(view: DataView, at: number, value: number): void {
  view.setInt32(at, Math.floor(value / 4294967296));
  view.setUint32(at + 4, value >>> 0);
}

export interface PartitionWindow extends TimeWindow {
  readonly key: string;
}

/** Turns the event bytes of one partition into storage rows. One instance for each attempt. */
export interface RowProjector {
  /**
   * Binary COPY rows (no header or trailer) of a frame's events, in the native table's column order. `rows` is their
   * expected number, and `written` the frame's header; `copy` is valid until the third call after.
   * @throws TidemarkError LOG_DAMAGED when the number differs.
   */
  rows(raw: Buffer, rows: number, written?: WrittenAs): { readonly copy: Buffer; readonly rows: number };
}

/** The rows of the tables of kept klines, without header and trailer, in the order of size and time. */
export interface KeptKlines {
  readonly native: Buffer;
  readonly aligned: Buffer;
  /** Rows of trades and aligned rows that the klines of one minute aggregate. */
  readonly trades: number;
  readonly seconds: number;
  /** Exact totals of prices and quantities over the same trades. */
  readonly price: ExactDecimal;
  readonly quantity: ExactDecimal;
  /** The times whose seconds do not add up to longer klines of trades, as the text of an int8multirange. */
  readonly inexactSeconds: string;
  /** See `digestOf`. */
  readonly sha256: string;
}

/** For datasets whose partitions share no second: it aggregates aligned rows as well. */
export interface FoldingProjector extends RowProjector {
  /** Called once, at the end: binary COPY rows of the aligned table, with the columns `alignedColumns`. */
  aligned(key: { datasetId: number; seriesId: number }): { readonly copy: Buffer; readonly rows: number };
  /** Called once, after `aligned`: the klines that are kept of the same rows. */
  klines(datasetId: number): KeptKlines;
  /** Called once, at the end. */
  facts(): TradeFacts;
}

/** For datasets whose partitions share seconds: the database makes aligned rows from native rows. */
export type SharedSeconds = SecondsRule;

/** For datasets whose partitions share no second. */
export interface FoldingProjection {
  readonly createRows: (partition: PartitionWindow) => FoldingProjector;
  /** Columns of the aggregated rows. */
  readonly alignedColumns: readonly string[];
  readonly seconds?: undefined;
}

/** What the projector and verification need for a dataset beside its declaration. */
export type Projection =
  | FoldingProjection
  | { readonly createRows: (partition: PartitionWindow) => RowProjector; readonly seconds: SharedSeconds };
