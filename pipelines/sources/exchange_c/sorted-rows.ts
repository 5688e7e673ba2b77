/**
 * The rows of a day in the order of their ids, in bounded memory. Rows are gathered into runs of some megabytes. If the second
 * run continues the first, but for rows that are late, the day counts as ordered: the rows of a run come out once the next
 * is complete, and a row that comes later than that ends the reading. Otherwise the runs are sorted one by one, written to a
 * scratch file and merged when the day is complete. A day of up to two runs stays in memory.
 */
import { ReadAgain } from '../feed-types.ts';
import { lineOf, MemoryCursor, type RowCursor, RowRun, type SortedRow } from './row-run.ts';
import { ScratchRuns } from './scratch-runs.ts';

/** Most bytes of a run, unless one piece of the file has more. */
const RUN_BYTES = 4 * 1024 * 1024;

export interface SortedRowsOptions {
  /** Opens an empty file that nobody else sees. */
  readonly openScratch: () => number;
  readonly runBytes?: number;
  /** The rows come out at the end alone. */
  readonly isUnordered?: boolean;
  /** Called before ReadAgain is thrown. */
  readonly onLateRow?: () => void;
}

export class SortedRows implements Disposable {
  readonly #runBytes: number;
  readonly #onLateRow: (() => void) | undefined;
  /** `ordered`: rows come out before the end. `unordered`: runs are written. Two complete runs decide. */
  #order: 'undecided' | 'ordered' | 'unordered';
  /** The run that is filled. */
  #run = new RowRun();
  /** The complete run before it. While undecided, nothing else holds it; later the merge or the file does. */
  #before: RowRun | undefined;
  /** Runs to fill again. */
  readonly #spare: RowRun[] = [];
  readonly #merge = new RowMerge((run) => this.#spare.push(run));
  readonly #scratch: ScratchRuns;
  /** Rows up to this id are certain and may have come out. */
  #certain = Number.NEGATIVE_INFINITY;
  /** Bytes of the complete runs. */
  #endedBytes = 0;
  #rows = 0;

  constructor({ openScratch, runBytes = RUN_BYTES, isUnordered = false, onLateRow }: SortedRowsOptions) {
    this.#scratch = new ScratchRuns(openScratch);
    this.#runBytes = runBytes;
    this.#onLateRow = onLateRow;
    this.#order = isUnordered ? 'unordered' : 'undecided';
  }

  get rows(): number {
    return this.#rows;
  }

  /** Bytes of all lines so far. */
  get bytes(): number {
    return this.#endedBytes + this.#run.used;
  }

  /** Copies whole lines. `add` then takes their rows. @returns the buffer that holds them, and where they begin and end. */
  open(lines: Buffer): { readonly buffer: Buffer; readonly from: number; readonly to: number } {
    if (this.#run.rows > 0 && this.#run.used + lines.length > this.#runBytes) this.#endRun();
    return this.#run.open(lines, this.#runBytes);
  }

  /**
   * Adds the next row of the document, at [from, to) of the open lines.
   * @throws ReadAgain when a row of a higher id may have come out already.
   */
  add(id: number, ms: number, from: number, to: number): void {
    if (id <= this.#certain) {
      this.#onLateRow?.();
      throw new ReadAgain(`the row of line ${lineOf(this.#rows)} comes long after rows of higher ids`);
    }
    this.#run.add(id, ms, from, to - from);
    this.#rows++;
  }

  /** The next row whose place is certain, valid until the next call; undefined where there is none before more lines come. */
  next(): SortedRow | undefined {
    return this.#merge.next(this.#certain);
  }

  /** Keeps the buffer of a row, instead of the one before, while rows of the file come out. */
  keep(buffer: Buffer): void {
    this.#merge.kept = buffer;
  }

  /** Ends the rows: the others come out, those of equal id in the order of the document. */
  end(): void {
    if (this.#scratch.isOpen) {
      this.#scratch.write(this.#run);
      for (const cursor of this.#scratch.cursors()) this.#merge.add(cursor);
    } else {
      if (this.#order === 'undecided' && this.#before) this.#merge.add(new MemoryCursor(this.#before));
      this.#merge.add(new MemoryCursor(this.#run));
    }
    this.#certain = Number.POSITIVE_INFINITY;
  }

  [Symbol.dispose](): void {
    this.#scratch[Symbol.dispose]();
  }

  #endRun(): void {
    const run = this.#run;
    const before = this.#before;
    this.#endedBytes += run.used;
    if (this.#order === 'undecided' && before) {
      this.#order = run.continues(before) ? 'ordered' : 'unordered';
      this.#take(before);
    }
    this.#take(run);
    // The run before may end below the one before that.
    if (this.#order === 'ordered') this.#certain = Math.max(this.#certain, before!.most);
    this.#before = run;
    this.#run = this.#spare.pop() ?? new RowRun();
    this.#run.clear(this.#rows);
  }

  #take(run: RowRun): void {
    if (this.#order === 'ordered') this.#merge.add(new MemoryCursor(run));
    if (this.#order !== 'unordered') return;
    this.#scratch.write(run);
    this.#spare.push(run);
  }
}

/** Merges sorted runs: a heap of their cursors, the least row first. */
class RowMerge {
  readonly #heap: RowCursor[] = [];
  readonly #free: (run: RowRun) => void;
  /** The least row has come out, so its cursor moves on at the next call. */
  #isOut = false;
  /** The buffer of a row that is still needed. */
  kept: Buffer | undefined;

  /** @param free takes each run in memory whose last row has come out */
  constructor(free: (run: RowRun) => void) {
    this.#free = free;
  }

  /** Adds a run. Its rows are not less than those that have come out. */
  add(cursor: RowCursor): void {
    this.#moveOn();
    if (!cursor.next(this.kept)) return;
    const heap = this.#heap;
    let at = heap.push(cursor) - 1;
    for (let parent = (at - 1) >> 1; at > 0 && precedes(cursor, heap[parent]); parent = (at - 1) >> 1) {
      heap[at] = heap[parent];
      at = parent;
    }
    heap[at] = cursor;
  }

  /**
   * The next row if its id is not above `most`, valid until the next call. A row before it stays valid while its buffer is
   * `kept`.
   */
  next(most: number): SortedRow | undefined {
    this.#moveOn();
    const [least] = this.#heap;
    if (least === undefined || least.id > most) return undefined;
    this.#isOut = true;
    return least;
  }

  #moveOn(): void {
    if (!this.#isOut) return;
    this.#isOut = false;
    const heap = this.#heap;
    const [least] = heap;
    if (!least.next(this.kept)) {
      if (least.run) this.#free(least.run);
      const last = heap.pop()!;
      if (heap.length > 0) heap[0] = last;
    }
    if (heap.length > 1) this.#sink(0);
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
