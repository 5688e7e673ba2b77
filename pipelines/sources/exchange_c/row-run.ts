/** A run: some megabytes of rows that follow each other in the document, the places, ids and times of the rows, and the
 * order of their ids. */

const FIRST_ROWS = 1 << 10;
/**
 * The ids of a run lie close together. Up to this many possible ids per row, a counting sort orders them; beyond, a
 * comparison sort.
 */
const MAX_SPREAD = 16;

/** A row: its bytes [from, to), without line end; the byte at `to` is its CR or LF. */
export interface SortedRow {
  readonly id: number;
  readonly ms: number;
  /** Its line in the document. */
  readonly line: number;
  readonly buffer: Buffer;
  readonly from: number;
  readonly to: number;
}

/** Stands at one row of a run. */
export interface RowCursor extends SortedRow {
  /** What holds its rows, where that is memory. */
  readonly run?: RowRun;
  /** Moves to the next row. Never overwrites `kept`. @returns false after the last. */
  next(kept: Buffer | undefined): boolean;
}

/** The line of a row by its index in the file; the header is line 1. */
export const lineOf = (row: number): number => row + 2;

export class RowRun {
  #bytes = Buffer.alloc(0);
  #used = 0;
  /** The index of its first row in the document. */
  #first = 0;
  #rows = 0;
  #ascending = true;
  #least = Number.POSITIVE_INFINITY;
  #most = 0;
  #rowBytes = 0;
  #ids = new Float64Array(FIRST_ROWS);
  #times = new Float64Array(FIRST_ROWS);
  #from = new Uint32Array(FIRST_ROWS);
  #lengths = new Uint16Array(FIRST_ROWS);

  get bytes(): Buffer {
    return this.#bytes;
  }

  /** Bytes of the lines. */
  get used(): number {
    return this.#used;
  }

  get rows(): number {
    return this.#rows;
  }

  /** The greatest id. */
  get most(): number {
    return this.#most;
  }

  /** The lines are the rows in the order of their ids, with an LF each. */
  get isVerbatim(): boolean {
    return this.#ascending && this.#rowBytes === this.#used;
  }

  /** Whether its rows follow those of the run before, but for some that are late. */
  continues(before: RowRun): boolean {
    return 2 * this.#least >= before.#least + before.#most;
  }

  /** Copies whole lines behind those that it has. */
  open(lines: Buffer, runBytes: number): { readonly buffer: Buffer; readonly from: number; readonly to: number } {
    const from = this.#used;
    const to = from + lines.length;
    if (to > this.#bytes.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(to, Math.min(2 * this.#bytes.length, runBytes)));
      this.#bytes.copy(larger, 0, 0, from);
      this.#bytes = larger;
    }
    lines.copy(this.#bytes, from);
    this.#used = to;
    return { buffer: this.#bytes, from, to };
  }

  add(id: number, ms: number, from: number, length: number): void {
    const row = this.#rows;
    if (row === this.#ids.length) this.#grow();
    if (row > 0 && id < this.#ids[row - 1]) this.#ascending = false;
    if (id < this.#least) this.#least = id;
    if (id > this.#most) this.#most = id;
    this.#ids[row] = id;
    this.#times[row] = ms;
    this.#from[row] = from;
    this.#lengths[row] = length;
    this.#rowBytes += length + 1;
    this.#rows++;
  }

  /** Forgets its rows. @param first the index in the document of the row that comes next */
  clear(first: number): void {
    this.#used = 0;
    this.#first = first;
    this.#rows = 0;
    this.#ascending = true;
    this.#least = Number.POSITIVE_INFINITY;
    this.#most = 0;
    this.#rowBytes = 0;
  }

  id = (row: number): number => this.#ids[row];
  ms = (row: number): number => this.#times[row];
  line = (row: number): number => lineOf(this.#first + row);
  from = (row: number): number => this.#from[row];
  to = (row: number): number => this.#from[row] + this.#lengths[row];

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
    this.#times = grown(new Float64Array(capacity), this.#times);
    this.#from = grown(new Uint32Array(capacity), this.#from);
    this.#lengths = grown(new Uint16Array(capacity), this.#lengths);
  }
}

/** The rows of a run in memory. */
export class MemoryCursor implements RowCursor {
  readonly run: RowRun;
  readonly buffer: Buffer;
  id = 0;
  ms = 0;
  line = 0;
  from = 0;
  to = 0;
  readonly #order: Uint32Array;
  #index = 0;

  constructor(run: RowRun) {
    this.run = run;
    this.buffer = run.bytes;
    this.#order = run.order();
  }

  next(): boolean {
    const index = this.#index++;
    if (index === this.#order.length) return false;
    const row = this.#order[index];
    this.id = this.run.id(row);
    this.ms = this.run.ms(row);
    this.line = this.run.line(row);
    this.from = this.run.from(row);
    this.to = this.run.to(row);
    return true;
  }
}
