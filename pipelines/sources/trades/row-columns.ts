/**
 * What the projectors of trades share. Events that are written as usual are read in WebAssembly (columns/rows.ts): their columns, for
 * aligned rows and klines, and their storage rows. The projector of an exchange reads the others one by one. The decoder copies
 * its rows in and out by code of its own (row-scanner.ts), although it is alike: a fault that both had would be proved.
 */
import { readFileSync } from 'node:fs';
import type { TimeWindow } from '../../../shared/registry/keys.ts';
import { AlignedTrades } from '../../rows/aligned-trades.ts';
import { CopyRows, type FoldingProjector, type KeptKlines, type PartitionWindow } from '../../rows/binary-copy.ts';
import { DayKlines, type TradeColumns } from '../../rows/kept-klines.ts';
import { checkRowCount, malformed } from './row-reader.ts';

/** What Node has and its types lack. */
declare const WebAssembly: {
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object) => { readonly exports: unknown };
};

type Read = (from: number, to: number, most: number, fromMs: number, toMs: number) => number;
type Address = { readonly value: number };

/** What columns/rows.ts exports. Addresses are in its memory. */
interface Exports extends Readonly<Record<'readA' | 'readB' | 'readC', Read>> {
  readonly memory: { readonly buffer: ArrayBuffer };
  readonly INPUT_BYTES: Address;
  readonly MAX_ROWS: Address;
  readonly rows: Address;
  readonly written: Address;
  readonly input: Address;
  readonly output: Address;
  readonly seconds: Address;
  readonly makers: Address;
  readonly times: Address;
  readonly ids: Address;
  readonly prices: Address;
  readonly quantities: Address;
  readonly quantityUnits: Address;
  readonly quantityFines: Address;
  readonly quoteUnits: Address;
  readonly quoteFines: Address;
}

const LF = 10;
/** Zeros behind the events that are copied; longer than anything that is read at once. */
const GUARD_BYTES = 64;
/** Reading fewer events than this at once takes longer than reading them one by one. */
const FEW_ROWS = 8;
/** Most events that are left to the projector after calls that read few. */
const MAX_LEFT = 1024;

/** The memory of all readers, because one of its own for each would take 10 GB of addresses. */
class Memory {
  readonly exports: Exports;
  readonly bytes: Uint8Array;
  readonly columns: Omit<TradeColumns, 'rows'>;
  /** Whose events are in it. */
  owner: RowColumns | undefined;

  constructor() {
    const module = new WebAssembly.Module(readFileSync(new URL('row-columns.wasm', import.meta.url)));
    const exports = new WebAssembly.Instance(module).exports as Exports;
    const { buffer } = exports.memory;
    const count = exports.MAX_ROWS.value;
    const doubles = (address: Address) => new Float64Array(buffer, address.value, count);
    this.exports = exports;
    this.bytes = new Uint8Array(buffer);
    this.columns = {
      seconds: new Int32Array(buffer, exports.seconds.value, count),
      makers: new Uint8Array(buffer, exports.makers.value, count),
      times: doubles(exports.times),
      ids: doubles(exports.ids),
      prices: doubles(exports.prices),
      quantities: doubles(exports.quantities),
      quantityUnits: doubles(exports.quantityUnits),
      quantityFines: doubles(exports.quantityFines),
      quoteUnits: doubles(exports.quoteUnits),
      quoteFines: doubles(exports.quoteFines),
    };
  }
}

let memory: Memory | undefined;

/** What differs between the exchanges. */
export interface RowLayout {
  /** How usual events are read in WebAssembly; absent: the projector reads all one by one. */
  readonly read?: 'readA' | 'readB' | 'readC';
  /** Of the table. */
  readonly columns: number;
  /** The shortest event, with its line end. */
  readonly minEventBytes: number;
  /** A storage row without the bytes of its texts. */
  readonly rowBytes: number;
  readonly hasTexts: boolean;
  /** The usual number of decimals of quote quantities. */
  readonly quoteScale?: number;
}

/** Turns events into storage rows, aligned rows and klines. */
export abstract class TradeRows implements FoldingProjector {
  protected readonly seconds: AlignedTrades;
  protected readonly trades: DayKlines;
  protected readonly copy: CopyRows;
  readonly #columns: RowColumns | undefined;
  readonly #layout: RowLayout;

  constructor(window: PartitionWindow, layout: RowLayout) {
    this.seconds = new AlignedTrades(window, layout.quoteScale);
    this.trades = new DayKlines(window);
    this.copy = new CopyRows(layout.columns);
    if (layout.read) this.#columns = new RowColumns(layout.read, window);
    this.#layout = layout;
  }

  rows(raw: Buffer, rows: number): { copy: Buffer; rows: number } {
    const { minEventBytes, rowBytes, hasTexts } = this.#layout;
    checkRowCount(raw, rows, minEventBytes);
    const columns = this.#columns;
    this.copy.start(rows * rowBytes + (hasTexts ? raw.length : 0));
    columns?.begin();
    let at = 0;
    for (let row = 0; row < rows; ) {
      const next = columns?.read(raw, at, rows - row) ?? at;
      if (columns === undefined || columns.rows === 0) {
        at = this.row(raw, at);
        row++;
        continue;
      }
      this.seconds.addAll(columns);
      this.trades.addAll(columns);
      this.copy.append(columns.copy);
      row += columns.rows;
      at = next;
    }
    if (at !== raw.length) throw malformed(raw, at);
    return { copy: this.copy.rows(), rows };
  }

  /**
   * Reads the event at `start`, in whatever way it is written. @returns the position of the next.
   * @throws TidemarkError LOG_DAMAGED
   */
  protected abstract row(raw: Buffer, start: number): number;

  aligned(key: { datasetId: number; seriesId: number }): { copy: Buffer; rows: number } {
    // An event that comes later is refused by `row`.
    this.#columns?.end();
    return this.seconds.flush(key, this.trades);
  }

  klines(datasetId: number): KeptKlines {
    return this.trades.build(datasetId);
  }
}

export class RowColumns implements TradeColumns {
  readonly #memory: Memory;
  readonly #read: Read;
  readonly #window: TimeWindow;
  /** The bytes of the frame that are in the memory. */
  #from = 0;
  #to = 0;
  /** Events that are left to the projector before the next call. */
  #left = 0;
  /** Events that are left after the next call that reads few. */
  #leaves = 1;
  rows = 0;

  constructor(layout: NonNullable<RowLayout['read']>, window: TimeWindow) {
    memory ??= new Memory();
    this.#memory = memory;
    this.#read = memory.exports[layout];
    this.#window = window;
  }

  // Valid until another call of `read`, of any reader.
  get seconds() {
    return this.#memory.columns.seconds;
  }

  get makers() {
    return this.#memory.columns.makers;
  }

  get times() {
    return this.#memory.columns.times;
  }

  get ids() {
    return this.#memory.columns.ids;
  }

  get prices() {
    return this.#memory.columns.prices;
  }

  get quantities() {
    return this.#memory.columns.quantities;
  }

  get quantityUnits() {
    return this.#memory.columns.quantityUnits;
  }

  get quantityFines() {
    return this.#memory.columns.quantityFines;
  }

  get quoteUnits() {
    return this.#memory.columns.quoteUnits;
  }

  get quoteFines() {
    return this.#memory.columns.quoteFines;
  }

  /** The storage rows of the events, as binary COPY. */
  get copy(): Uint8Array {
    const { bytes, exports } = this.#memory;
    return bytes.subarray(exports.output.value, exports.output.value + exports.written.value);
  }

  /** Another frame is read from now on. */
  begin(): void {
    this.#to = 0;
  }

  /** Leaves all events from now on to the projector. */
  end(): void {
    this.#left = Number.POSITIVE_INFINITY;
  }

  /**
   * Reads up to `most` events of a frame from `from` on. `rows` says how many were read.
   * @returns the position behind them; `from` where there is none
   */
  read(raw: Buffer, from: number, most: number): number {
    this.rows = 0;
    if (this.#left > 0) {
      this.#left--;
      return from;
    }
    const { exports, owner } = this.#memory;
    if (owner !== this) this.#to = 0;
    if (from >= this.#to) this.#copy(raw, from);
    const shift = exports.input.value - this.#from;
    const to = this.#to + shift;
    const { fromMs, toMs } = this.#window;
    const end = this.#read(from + shift, to, Math.min(most, exports.MAX_ROWS.value), fromMs, toMs);
    this.rows = exports.rows.value;
    if (this.rows >= FEW_ROWS || end === to) {
      this.#leaves = 1;
    } else {
      this.#left = this.#leaves;
      this.#leaves = Math.min(2 * this.#leaves, MAX_LEFT);
    }
    return end - shift;
  }

  /** Copies the whole events from `from` on that there is room for. */
  #copy(raw: Buffer, from: number): void {
    const { bytes, exports } = this.#memory;
    const room = exports.INPUT_BYTES.value;
    const to = raw.length - from <= room ? raw.length : raw.lastIndexOf(LF, from + room - 1) + 1;
    this.#memory.owner = this;
    this.#from = from;
    this.#to = Math.max(to, from);
    const address = exports.input.value;
    bytes.set(raw.subarray(from, this.#to), address);
    bytes.fill(0, address + this.#to - from, address + this.#to - from + GUARD_BYTES);
  }
}
