/**
 * Reads the rows of a trade file that are written as usual, in WebAssembly (scanner/rows.ts), in less than half the time that
 * RowReader takes. A scan ends before the first row that is not as usual, or is at fault: the decoder reads that one.
 */
import { readFileSync } from 'node:fs';
import type { ExactTotal } from '../../../shared/proof/row-facts.ts';
import type { RowHasher } from '../../../shared/proof/row-hash.ts';
import type { ScannedRows } from './partition-frames.ts';

/** What Node has and its types lack. */
declare const WebAssembly: {
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object) => { readonly exports: unknown };
};

/** What scanner/rows.ts exports. Places are those of its memory; ids and times are exact, and -1 where there is none. */
interface Exports {
  readonly memory: { readonly buffer: ArrayBuffer; grow(pages: number): number };
  readonly MAX_ROWS: { readonly value: number };
  readonly result: { readonly value: number };
  readonly symbol: { readonly value: number };
  scanA(from: number, to: number, room: number, nextId: number, fromMs: number, toMs: number): number;
  scanB(from: number, to: number, room: number, afterId: number, fromMs: number, toMs: number, more: boolean): number;
  scanC(from: number, to: number, fromMs: number, toMs: number, rpi: boolean, ...lists: readonly number[]): number;
}

const LF = 10;
const PAGE_BYTES = 1 << 16;
/** Rows are copied into the memory so many bytes at a time. */
const INPUT_BYTES = 1 << 17;
/** Zero bytes behind the rows. Every cell ends at one, and the last column of B at `to`, so that a scan reads on for less than this. */
const GUARD_BYTES = 1024;
/** What the memory has room for. */
const MAX_SYMBOL_BYTES = 64;
/** A scan of fewer rows takes longer than the decoder does. */
const FEW_ROWS = 8;
/** Most rows that are left to the decoder after scans of few. */
const MAX_LEFT = 1024;

/** The memory of all scanners: a memory of its own for each would take 10 GB of addresses. */
class ScannerMemory {
  readonly exports: Exports;
  readonly bytes: Uint8Array;
  /** Where rows are copied to. */
  readonly input: number;
  /** Rows, first and last id, least and most time. */
  readonly counts: Float64Array;
  /** Of the high and low halves of the hashes, then of the units of each total. */
  readonly sums: BigInt64Array;
  readonly lists: readonly number[];
  readonly ids: Float64Array;
  readonly times: Float64Array;
  readonly places: Uint32Array;
  readonly lengths: Uint16Array;
  /** Whose symbol and rows are in it. */
  owner: RowScanner | undefined;

  constructor() {
    const module = new WebAssembly.Module(readFileSync(new URL('row-scanner.wasm', import.meta.url)));
    const exports = new WebAssembly.Instance(module).exports as Exports;
    const rows = exports.MAX_ROWS.value;
    const ids = exports.memory.grow(Math.ceil((22 * rows + INPUT_BYTES + GUARD_BYTES) / PAGE_BYTES)) * PAGE_BYTES;
    const { buffer } = exports.memory;
    const lists = [ids, ids + 8 * rows, ids + 16 * rows, ids + 20 * rows];
    this.exports = exports;
    this.lists = lists;
    this.input = ids + 22 * rows;
    this.bytes = new Uint8Array(buffer);
    this.counts = new Float64Array(buffer, exports.result.value, 5);
    this.sums = new BigInt64Array(buffer, exports.result.value + 40, 7);
    this.ids = new Float64Array(buffer, lists[0], rows);
    this.times = new Float64Array(buffer, lists[1], rows);
    this.places = new Uint32Array(buffer, lists[2], rows);
    this.lengths = new Uint16Array(buffer, lists[3], rows);
  }

  own(owner: RowScanner, symbol: Buffer): void {
    this.owner = owner;
    const place = this.exports.symbol.value;
    new DataView(this.bytes.buffer).setUint32(place, symbol.length, true);
    this.bytes.set(symbol, place + 4);
  }
}

let memory: ScannerMemory | undefined;

export class RowScanner implements ScannedRows {
  readonly #memory: ScannerMemory;
  readonly #symbol: Buffer;
  /** The bytes of the decoder's buffer that are in the memory. */
  #from = 0;
  #to = 0;
  /** Rows that are left to the decoder before the next scan. */
  #left = 0;
  /** Rows that are left after the next scan of few. */
  #leaves = 1;

  /** @param symbol what every row of exchange B or C has */
  constructor(symbol = '') {
    this.#symbol = Buffer.from(symbol);
    // A longer symbol leaves all rows to the decoder.
    if (this.#symbol.length > MAX_SYMBOL_BYTES) this.#left = Number.POSITIVE_INFINITY;
    memory ??= new ScannerMemory();
    this.#memory = memory;
  }

  // What the last scan found. Valid until another one.
  get rows(): number {
    return this.#memory.counts[0];
  }

  get firstId(): number {
    return this.#memory.counts[1];
  }

  get lastId(): number {
    return this.#memory.counts[2];
  }

  get leastMs(): number {
    return this.#memory.counts[3];
  }

  get mostMs(): number {
    return this.#memory.counts[4];
  }

  /** Of exchange C: of each row its id, its time, its place behind the scan's first byte, and its length. */
  get lists(): Pick<ScannerMemory, 'ids' | 'times' | 'places' | 'lengths'> {
    return this.#memory;
  }

  /** Adds the hashes of the rows, and their units to each total, in the order of the columns. */
  addTo(hasher: RowHasher, totals: readonly ExactTotal[]): void {
    const { sums } = this.#memory;
    hasher.addSums(sums[0], sums[1]);
    for (let index = 0; index < totals.length; index++) totals[index].addUnits(sums[2 + index]);
  }

  /** Another buffer is scanned from now on, or the same with other bytes. */
  begin(): void {
    this.#to = 0;
  }

  /**
   * Scans rows of exchange A in [from, to), whole lines, until they have `room` bytes.
   * @param nextId the id of the first; -1 for any
   * @returns the position behind the last row; `from` where there is none
   */
  scanA(
    buffer: Buffer,
    from: number,
    to: number,
    ...facts: [room: number, nextId: number, ...window: [number, number]]
  ) {
    return this.#scan(buffer, from, to, (at, end) => this.#memory.exports.scanA(at, end, ...facts));
  }

  /** As `scanA`. @param afterId the id that the first is above; -1 for any @param more whether rows have a last column */
  scanB(
    buffer: Buffer,
    from: number,
    to: number,
    ...facts: [room: number, afterId: number, fromMs: number, toMs: number, more: boolean]
  ): number {
    return this.#scan(buffer, from, to, (at, end) => this.#memory.exports.scanB(at, end, ...facts));
  }

  /** As `scanA`, rows of exchange C in any order. @param rpi whether rows have that column */
  scanC(buffer: Buffer, from: number, to: number, ...facts: [fromMs: number, toMs: number, rpi: boolean]): number {
    const { exports, lists } = this.#memory;
    return this.#scan(buffer, from, to, (at, end) => exports.scanC(at, end, ...facts, ...lists));
  }

  #scan(buffer: Buffer, from: number, to: number, scan: (at: number, end: number) => number): number {
    if (this.#left > 0) {
      this.#left--;
      return from;
    }
    const { input, owner } = this.#memory;
    if (owner !== this) {
      this.#memory.own(this, this.#symbol);
      this.#to = 0;
    }
    if (from >= this.#to) this.#copy(buffer, from, to);
    const at = input + from - this.#from;
    const end = scan(at, input + this.#to - this.#from);
    if (this.rows >= FEW_ROWS || end === input + this.#to - this.#from) {
      this.#leaves = 1;
    } else {
      this.#left = this.#leaves;
      this.#leaves = Math.min(2 * this.#leaves, MAX_LEFT);
    }
    return from + end - at;
  }

  /** Copies the whole lines of [from, to) that there is room for. */
  #copy(buffer: Buffer, from: number, to: number): void {
    const { bytes, input } = this.#memory;
    const end = to - from <= INPUT_BYTES ? to : buffer.lastIndexOf(LF, from + INPUT_BYTES - 1) + 1;
    this.#from = from;
    this.#to = Math.max(end, from);
    const behind = input + this.#to - from;
    bytes.set(buffer.subarray(from, this.#to), input);
    bytes.fill(0, behind, behind + GUARD_BYTES);
  }
}
