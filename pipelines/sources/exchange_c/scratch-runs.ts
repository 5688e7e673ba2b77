/** Sorted runs in a scratch file: their rows, and then the id, time, line and length of each. */
import { closeSync, readSync, writeSync } from 'node:fs';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import { MAX_ROW_BYTES } from '../trades/row-reader.ts';
import type { RowCursor, RowRun } from './row-run.ts';

const LF = 10;
/** What is written and read at once: bytes of rows, and ids, times, lines and lengths. */
const PIECE_BYTES = 64 * 1024;
const PIECE_ROWS = 2048;
/** Bytes of a row's id, time, line and length. */
const PLACE_BYTES = 22;

/** Where the rows of a run are in the file, and where their places. */
interface WrittenRun {
  readonly at: number;
  readonly placesAt: number;
  readonly rows: number;
}

export class ScratchRuns implements Disposable {
  readonly #open: () => number;
  #file: number | undefined;
  #bytes = 0;
  readonly #runs: WrittenRun[] = [];

  /** @param open opens an empty file that nobody else sees */
  constructor(open: () => number) {
    this.#open = open;
  }

  get isOpen(): boolean {
    return this.#file !== undefined;
  }

  /**
   * Sorts the run and writes its rows, each with an LF. The file is opened for the first.
   * @throws TidemarkError DISK_UNUSABLE
   */
  write(run: RowRun): void {
    this.#file ??= this.#open();
    const order = run.order();
    const at = this.#bytes;
    if (run.isVerbatim) this.#append(run.bytes.subarray(0, run.used));
    else for (const piece of pieces(run, order)) this.#append(piece);
    this.#runs.push({ at, placesAt: this.#bytes, rows: run.rows });
    const places = new Places();
    for (let index = 0; index < order.length; index += PIECE_ROWS) {
      const some = order.subarray(index, index + PIECE_ROWS);
      places.take(run, some);
      for (const bytes of places.bytes(some.length)) this.#append(bytes);
    }
  }

  cursors(): RowCursor[] {
    return this.#runs.map((run) => new FileCursor(this.#file!, run));
  }

  [Symbol.dispose](): void {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
  }

  #append(bytes: Uint8Array): void {
    try {
      for (let done = 0; done < bytes.length; ) done += writeSync(this.#file!, bytes, done);
    } catch (cause) {
      throw new TidemarkError('DISK_UNUSABLE', 'The spool folder does not take the rows of a day that are sorted', {
        cause,
      });
    }
    this.#bytes += bytes.length;
  }
}

/** The rows in that order, in pieces of some rows. Each piece is valid until the next. */
function* pieces(run: RowRun, order: Uint32Array): Generator<Buffer> {
  const piece = Buffer.allocUnsafeSlow(PIECE_BYTES);
  let used = 0;
  for (let index = 0; index < order.length; index++) {
    const from = run.from(order[index]);
    const to = run.to(order[index]);
    if (used + to - from >= piece.length) {
      yield piece.subarray(0, used);
      used = 0;
    }
    used += run.bytes.copy(piece, used, from, to);
    piece[used++] = LF;
  }
  yield piece.subarray(0, used);
}

/** Ids, times, lines and lengths of some rows. */
class Places {
  readonly ids = new Float64Array(PIECE_ROWS);
  readonly times = new Float64Array(PIECE_ROWS);
  readonly lines = new Uint32Array(PIECE_ROWS);
  readonly lengths = new Uint16Array(PIECE_ROWS);

  take(run: RowRun, order: Uint32Array): void {
    for (let index = 0; index < order.length; index++) {
      const row = order[index];
      this.ids[index] = run.id(row);
      this.times[index] = run.ms(row);
      this.lines[index] = run.line(row);
      this.lengths[index] = run.to(row) - run.from(row);
    }
  }

  /** Those of the first rows, as they are written and read one after the other. */
  bytes(rows: number): Uint8Array[] {
    return [this.ids, this.times, this.lines, this.lengths].map(
      ({ buffer, BYTES_PER_ELEMENT }) => new Uint8Array(buffer, 0, rows * BYTES_PER_ELEMENT),
    );
  }
}

class FileCursor implements RowCursor {
  buffer: Buffer = Buffer.alloc(0);
  id = 0;
  ms = 0;
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
    this.ms = this.#places.times[place];
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
