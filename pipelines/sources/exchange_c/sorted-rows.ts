/**
 * The rows of a day in the order of their ids, in bounded memory. Rows are gathered into runs of some megabytes. A day of
 * one run stays in memory; the runs of a larger day are sorted one by one, written to a scratch file and merged when the
 * day is complete.
 */
import { closeSync, readSync, writeSync } from 'node:fs';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import { MAX_ROW_BYTES } from '../trades/row-reader.ts';

const LF = 10;
/** A run. */
const RUN_BYTES = 8 * 1024 * 1024;
/** What is written and read at once: bytes of rows, and ids, lines and lengths. */
const PIECE_BYTES = 64 * 1024;
const PIECE_ROWS = 2048;
const FIRST_ROWS = 1 << 10;
/**
 * The ids of a run lie close together. Up to this many possible ids per row, a counting sort orders them; beyond, a
 * comparison sort.
 */
const MAX_SPREAD = 16;

/** A row: its bytes [from, to), without line end; the byte at `to` is its CR or LF. */
export interface SortedRow {
  readonly id: number;
  /** Its line in the document. */
  readonly line: number;
  readonly buffer: Buffer;
  readonly from: number;
  readonly to: number;
}

export interface SortedRowsOptions {
  /** Opens an empty file that nobody else sees. */
  readonly openScratch: () => number;
  readonly runBytes?: number;
}

export class SortedRows implements Disposable {
  readonly #openScratch: () => number;
  readonly #runBytes: number;
  readonly #run = new RowRun();
  #bytes = Buffer.alloc(0);
  #used = 0;
  /** Bytes of rows that were written. */
  #written = 0;
  #file: number | undefined;
  #fileBytes = 0;
  readonly #runs: WrittenRun[] = [];
  #rows = 0;

  constructor({ openScratch, runBytes = RUN_BYTES }: SortedRowsOptions) {
    this.#openScratch = openScratch;
    this.#runBytes = runBytes;
  }

  get rows(): number {
    return this.#rows;
  }

  /** Bytes of all lines so far. */
  get bytes(): number {
    return this.#written + this.#used;
  }

  /** Copies whole lines. `add` then takes their rows. @returns the buffer that holds them, and where they begin and end. */
  open(lines: Buffer): { readonly buffer: Buffer; readonly from: number; readonly to: number } {
    if (this.#run.rows > 0 && this.#used + lines.length > this.#runBytes) this.#write();
    const from = this.#used;
    const to = from + lines.length;
    if (to > this.#bytes.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(to, Math.min(2 * this.#bytes.length, this.#runBytes)));
      this.#bytes.copy(larger, 0, 0, from);
      this.#bytes = larger;
    }
    lines.copy(this.#bytes, from);
    this.#used = to;
    return { buffer: this.#bytes, from, to };
  }

  /** Adds the next row of the document, at [from, to) of the open lines. */
  add(id: number, from: number, to: number): void {
    this.#run.add(id, from, to - from);
    this.#rows++;
  }

  /** Ends the rows. Each call of the result gives the next row; rows of equal id in the order of the document. */
  sorted(): RowMerge {
    const first = this.#rows - this.#run.rows;
    if (this.#file === undefined) return new RowMerge([new MemoryCursor(this.#bytes, this.#run, first)]);
    this.#write();
    this.#bytes = Buffer.alloc(0);
    const file = this.#file;
    return new RowMerge(this.#runs.map((run) => new FileCursor(file, run)));
  }

  [Symbol.dispose](): void {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
  }

  /** Sorts the run and writes its rows, each with an LF, to the scratch file. */
  #write(): void {
    const run = this.#run;
    if (run.rows === 0) return;
    this.#file ??= this.#openScratch();
    const order = run.order();
    const at = this.#fileBytes;
    if (run.isAscending && run.rowBytes === this.#used) this.#append(this.#bytes.subarray(0, this.#used));
    else for (const piece of run.pieces(this.#bytes, order)) this.#append(piece);
    this.#runs.push({ at, placesAt: this.#fileBytes, rows: run.rows });
    const places = new Places();
    for (let index = 0; index < order.length; index += PIECE_ROWS) {
      const some = order.subarray(index, index + PIECE_ROWS);
      run.copyPlaces(some, this.#rows - run.rows, places);
      for (const bytes of places.bytes(some.length)) this.#append(bytes);
    }
    this.#written += this.#used;
    this.#used = 0;
    run.clear();
  }

  #append(bytes: Uint8Array): void {
    try {
      for (let done = 0; done < bytes.length; ) done += writeSync(this.#file!, bytes, done);
    } catch (cause) {
      throw new TidemarkError('SPOOL_UNUSABLE', 'The spool folder does not take the rows of a day that are sorted', {
        cause,
      });
    }
    this.#fileBytes += bytes.length;
  }
}

/** Where the sorted rows of a run are in the file, and where their ids, lines and lengths. */
interface WrittenRun {
  readonly at: number;
  readonly placesAt: number;
  readonly rows: number;
}

/** Bytes of a row's id, line and length. */
const PLACE_BYTES = 14;

/** Ids, lines and lengths of some rows. */
class Places {
  readonly ids = new Float64Array(PIECE_ROWS);
  readonly lines = new Uint32Array(PIECE_ROWS);
  readonly lengths = new Uint16Array(PIECE_ROWS);

  /** Those of the first rows, as they are written and read one after the other. */
  bytes(rows: number): Uint8Array[] {
    return [this.ids, this.lines, this.lengths].map(
      ({ buffer, BYTES_PER_ELEMENT }) => new Uint8Array(buffer, 0, rows * BYTES_PER_ELEMENT),
    );
  }
}

/** The line of a row by its index in the file; the header is line 1. */
const lineOf = (row: number): number => row + 2;

/** The ids and places of the rows of a run, in the order of the document. */
class RowRun {
  #rows = 0;
  #ascending = true;
  #least = Number.POSITIVE_INFINITY;
  #most = 0;
  #rowBytes = 0;
  #ids = new Float64Array(FIRST_ROWS);
  #from = new Uint32Array(FIRST_ROWS);
  #lengths = new Uint16Array(FIRST_ROWS);

  get rows(): number {
    return this.#rows;
  }

  get isAscending(): boolean {
    return this.#ascending;
  }

  /** Bytes of the rows with an LF each. */
  get rowBytes(): number {
    return this.#rowBytes;
  }

  add(id: number, from: number, length: number): void {
    const row = this.#rows;
    if (row === this.#ids.length) this.#grow();
    if (row > 0 && id < this.#ids[row - 1]) this.#ascending = false;
    if (id < this.#least) this.#least = id;
    if (id > this.#most) this.#most = id;
    this.#ids[row] = id;
    this.#from[row] = from;
    this.#lengths[row] = length;
    this.#rowBytes += length + 1;
    this.#rows++;
  }

  clear(): void {
    this.#rows = 0;
    this.#ascending = true;
    this.#least = Number.POSITIVE_INFINITY;
    this.#most = 0;
    this.#rowBytes = 0;
  }

  id = (row: number): number => this.#ids[row];
  from = (row: number): number => this.#from[row];
  to = (row: number): number => this.#from[row] + this.#lengths[row];

  /** @param first the index of the run's first row in the document */
  copyPlaces(order: Uint32Array, first: number, { ids, lines, lengths }: Places): void {
    for (let index = 0; index < order.length; index++) {
      const row = order[index];
      ids[index] = this.#ids[row];
      lines[index] = lineOf(first + row);
      lengths[index] = this.#lengths[row];
    }
  }

  /** The rows in that order, in pieces of some rows. Each piece is valid until the next. */
  *pieces(bytes: Buffer, order: Uint32Array): Generator<Buffer> {
    const piece = Buffer.allocUnsafeSlow(PIECE_BYTES);
    let used = 0;
    for (let index = 0; index < order.length; index++) {
      const from = this.#from[order[index]];
      const to = from + this.#lengths[order[index]];
      if (used + to - from >= piece.length) {
        yield piece.subarray(0, used);
        used = 0;
      }
      used += bytes.copy(piece, used, from, to);
      piece[used++] = LF;
    }
    yield piece.subarray(0, used);
  }

  /** The rows in the order of their ids; rows of equal id in the order of the document. */
  order(): Uint32Array {
    const order = new Uint32Array(this.#rows);
    for (let row = 0; row < order.length; row++) order[row] = row;
    if (this.#ascending) return order;
    const ids = this.#ids;
    const span = this.#most - this.#least + 1;
    if (span > MAX_SPREAD * Math.max(this.#rows, FIRST_ROWS)) return order.sort((a, b) => ids[a] - ids[b] || a - b);
    const least = this.#least;
    const starts = new Uint32Array(span + 1);
    for (let row = 0; row < order.length; row++) starts[ids[row] - least + 1]++;
    for (let index = 1; index <= span; index++) starts[index] += starts[index - 1];
    for (let row = 0; row < order.length; row++) order[starts[ids[row] - least]++] = row;
    return order;
  }

  #grow(): void {
    const capacity = this.#ids.length * 2;
    const grown = <T extends { set(from: T): void }>(to: T, from: T): T => {
      to.set(from);
      return to;
    };
    this.#ids = grown(new Float64Array(capacity), this.#ids);
    this.#from = grown(new Uint32Array(capacity), this.#from);
    this.#lengths = grown(new Uint16Array(capacity), this.#lengths);
  }
}

/** Stands at one row of a run. */
interface RowCursor extends SortedRow {
  /** Moves to the next row. Never overwrites `kept`. @returns false after the last. */
  next(kept: Buffer | undefined): boolean;
}

class MemoryCursor implements RowCursor {
  readonly buffer: Buffer;
  id = 0;
  line = 0;
  from = 0;
  to = 0;
  readonly #run: RowRun;
  readonly #first: number;
  readonly #order: Uint32Array;
  #index = 0;

  /** @param first the index of the run's first row in the document */
  constructor(buffer: Buffer, run: RowRun, first: number) {
    this.buffer = buffer;
    this.#run = run;
    this.#first = first;
    this.#order = run.order();
  }

  next(): boolean {
    const index = this.#index++;
    if (index === this.#order.length) return false;
    const row = this.#order[index];
    this.id = this.#run.id(row);
    this.line = lineOf(this.#first + row);
    this.from = this.#run.from(row);
    this.to = this.#run.to(row);
    return true;
  }
}

class FileCursor implements RowCursor {
  buffer: Buffer = Buffer.alloc(0);
  id = 0;
  line = 0;
  from = 0;
  to = 0;
  readonly #file: number;
  readonly #run: WrittenRun;
  readonly #places = new Places();
  #index = 0;
  /** Where the next row is in the file, and where the bytes end that are in `buffer`. */
  #at: number;
  #end: number;
  #bufferAt: number;
  #spare: Buffer | undefined;

  constructor(file: number, run: WrittenRun) {
    this.#file = file;
    this.#run = run;
    this.#at = run.at;
    this.#end = run.at;
    this.#bufferAt = run.at;
  }

  next(kept: Buffer | undefined): boolean {
    const index = this.#index++;
    if (index === this.#run.rows) return false;
    const place = index % PIECE_ROWS;
    if (place === 0) this.#readPlaces(index);
    const length = this.#places.lengths[place];
    if (this.#at + length + 1 > this.#end) this.#readRows(kept);
    this.id = this.#places.ids[place];
    this.line = this.#places.lines[place];
    this.from = this.#at - this.#bufferAt;
    this.to = this.from + length;
    this.#at += length + 1;
    return true;
  }

  #readPlaces(index: number): void {
    let at = this.#run.placesAt + index * PLACE_BYTES;
    for (const bytes of this.#places.bytes(Math.min(PIECE_ROWS, this.#run.rows - index))) {
      assert(this.#read(bytes, at) === bytes.length, 'the scratch file holds the places of its rows');
      at += bytes.length;
    }
  }

  /** Reads from the next row on, into the buffer that holds no row that is still needed. */
  #readRows(kept: Buffer | undefined): void {
    const free = this.#spare !== undefined && this.#spare !== kept ? this.#spare : undefined;
    if (this.buffer.length > 0) this.#spare = this.buffer;
    this.buffer = free ?? Buffer.allocUnsafeSlow(PIECE_BYTES + MAX_ROW_BYTES);
    this.#bufferAt = this.#at;
    this.#end = this.#at + this.#read(this.buffer, this.#at);
    assert(this.#end > this.#at, 'the scratch file holds every row that was written');
  }

  /** @returns how much there is to read, up to the size of `into`. */
  #read(into: Uint8Array, at: number): number {
    let read = 0;
    for (let more = 1; more > 0 && read < into.length; read += more) {
      more = readSync(this.#file, into, read, into.length - read, at + read);
    }
    return read;
  }
}

/** Merges sorted runs: a heap of their cursors, the least row first. */
export class RowMerge {
  readonly #heap: RowCursor[];
  #isStarted = false;
  /** The buffer of a row that is still needed. */
  kept: Buffer | undefined;

  constructor(cursors: readonly RowCursor[]) {
    this.#heap = cursors.filter((cursor) => cursor.next(undefined));
    for (let at = (this.#heap.length >> 1) - 1; at >= 0; at--) this.#sink(at);
  }

  /** The next row, valid until the next call. A row before it stays valid while its buffer is `kept`. */
  next(): SortedRow | undefined {
    const heap = this.#heap;
    if (this.#isStarted && heap.length > 0) {
      if (!heap[0].next(this.kept)) {
        const last = heap.pop()!;
        if (heap.length > 0) heap[0] = last;
      }
      if (heap.length > 1) this.#sink(0);
    }
    this.#isStarted = true;
    return heap[0];
  }

  #sink(from: number): void {
    const heap = this.#heap;
    const cursor = heap[from];
    let at = from;
    for (let child = 2 * at + 1; child < heap.length; child = 2 * at + 1) {
      if (child + 1 < heap.length && precedes(heap[child + 1], heap[child])) child++;
      if (!precedes(heap[child], cursor)) break;
      heap[at] = heap[child];
      at = child;
    }
    heap[at] = cursor;
  }
}

const precedes = (a: SortedRow, b: SortedRow): boolean => a.id < b.id || (a.id === b.id && a.line < b.line);
