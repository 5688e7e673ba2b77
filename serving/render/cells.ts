/** How a field's binary value is read, by its meaning and its storage; and the output buffer that rows are written to. */
import type { Hash } from 'node:crypto';
import { assert } from '../../shared/errors.ts';
import type { Dtype, Field, PgType } from '../../shared/registry/index.ts';

export const CELL = {
  int8: 0,
  int4: 1,
  int2: 2,
  float8: 3,
  bool: 4,
  /** int8 of epoch milliseconds, written as a timestamp. */
  epochMs: 5,
  timestamptz: 6,
  text: 7,
  uuid: 8,
  /** Not a cell of the row: the end of its validity, which the next row determines. */
  validTo: 9,
} as const;

export type Cell = (typeof CELL)[keyof typeof CELL];

const CELLS: Readonly<Record<Dtype, Partial<Record<PgType, Cell>>>> = {
  int64: { int8: CELL.int8, int4: CELL.int4, int2: CELL.int2 },
  float64: { float8: CELL.float8 },
  bool01: { bool: CELL.bool },
  timestamp_utc: { int8: CELL.epochMs, timestamptz: CELL.timestamptz },
  string: { text: CELL.text },
  json: { text: CELL.text },
  uuid: { uuid: CELL.uuid },
};

export function cellOf(field: Pick<Field, 'name' | 'dtype' | 'pg'>): Cell {
  const cell = CELLS[field.dtype][field.pg];
  assert(cell !== undefined, `${field.name}: a ${field.dtype} cannot be stored as ${field.pg}`);
  return cell;
}

/** A column of a result: the field, and whether its value comes in the row or from the next row. */
export interface Column {
  readonly field: Field;
  readonly cell: Cell;
  /**
   * The cell that the column shows again, counted from 0 with a hidden one: the database sends a value once that several
   * columns show. Undefined: the column has the row's next cell.
   */
  readonly again?: number;
}

/** What a row writer has to know about the rows. */
export interface RowShape {
  readonly columns: readonly Column[];
  /** Rows start with a hidden cell: the time that ends the validity of the row before. */
  readonly hiddenFirst: boolean;
}

/** Sizes of cells by their kind; texts have any. */
const WIDTHS: Readonly<Partial<Record<Cell, number>>> = {
  [CELL.int8]: 8,
  [CELL.int4]: 4,
  [CELL.int2]: 2,
  [CELL.float8]: 8,
  [CELL.bool]: 1,
  [CELL.epochMs]: 8,
  [CELL.timestamptz]: 8,
  [CELL.uuid]: 16,
};
/** Of timestamptz and int8. */
const HIDDEN_WIDTH = 8;
/** The size before each cell. */
const SIZE_BYTES = 4;

/** Finds the values of a row's columns. */
export class CellPlaces {
  /** The most columns that show one cell. */
  readonly mostShown: number;
  /** Where the value of each column begins, counted from the start of the cells; -1 for null. */
  readonly #places: Int32Array;
  /** The same for rows without null whose cells have fixed sizes, and the size of these rows. */
  readonly #fixed: Int32Array;
  readonly #fixedLength: number;
  /** The cell of each column; -1 for one that has none. */
  readonly #cellOf: Int32Array;
  /** The places of the cells of the row in hand. */
  readonly #cells: Int32Array;

  constructor({ columns, hiddenFirst }: RowShape) {
    const widths: (number | undefined)[] = hiddenFirst ? [HIDDEN_WIDTH] : [];
    this.#cellOf = Int32Array.from(columns, ({ cell, again }) =>
      cell === CELL.validTo ? -1 : (again ?? widths.push(WIDTHS[cell]) - 1),
    );
    const shown = widths.map((_, index) => this.#cellOf.filter((cell) => cell === index).length);
    this.mostShown = Math.max(1, ...shown);
    this.#places = new Int32Array(columns.length);
    this.#cells = new Int32Array(widths.length);
    let at = 0;
    const starts = widths.map((width = Number.NaN) => {
      at += SIZE_BYTES + width;
      return at - width;
    });
    this.#fixedLength = at;
    this.#fixed = this.#cellOf.map((cell) => (cell < 0 ? 0 : starts[cell]));
  }

  /** @returns where the value of each column begins, counted from `at`; -1 for null. The array is that of the next row, too. */
  of(view: DataView, at: number, length: number): Int32Array {
    // A null would make the row shorter.
    if (length === this.#fixedLength) return this.#fixed;
    const cells = this.#cells;
    let next = SIZE_BYTES;
    for (let index = 0; index < cells.length; index++) {
      const size = view.getInt32(at + next - SIZE_BYTES);
      cells[index] = size < 0 ? -1 : next;
      next += SIZE_BYTES + Math.max(size, 0);
    }
    const places = this.#places;
    for (let index = 0; index < places.length; index++) {
      const cell = this.#cellOf[index];
      places[index] = cell < 0 ? 0 : cells[cell];
    }
    return places;
  }
}

/** The size of the value that begins at a place. */
export const sizeAt = (view: DataView, at: number): number => view.getInt32(at - SIZE_BYTES);

/** A full buffer holds at least 64 KiB: smaller writes cost more in system calls than in rendering. */
export const BUFFER_BYTES = 256 * 1024;
/** Writers may store up to this many bytes past the end of what they wrote. */
const SLACK_BYTES = 64;

export interface Destination {
  /** Takes the bytes. Their buffer returns to the pool when they are sent. */
  write(bytes: Buffer): void;
  /** The next buffer, of at least BUFFER_BYTES. */
  buffer(): Buffer;
  /** A copy of the sha256 in progress over the bytes taken so far. Bodies that end with their own digest need it. */
  digest?(): Hash;
}

/** The growing end of a body: fills one buffer and hands it on when it is nearly full. */
export class OutputBuffer {
  bytes: Buffer;
  view: DataView;
  at = 0;
  /** Number of bytes handed on so far. */
  flushed = 0;
  readonly #destination: Destination;

  constructor(destination: Destination) {
    this.#destination = destination;
    this.bytes = destination.buffer();
    this.view = viewOf(this.bytes);
  }

  /** Makes room for `bytes` more, with slack. It may hand on the buffer's content. */
  reserve(bytes: number): void {
    if (this.at + bytes + SLACK_BYTES <= this.bytes.length) return;
    this.flush();
    if (bytes + SLACK_BYTES > this.bytes.length) {
      // A single row wider than the buffer gets a buffer of its own.
      this.bytes = Buffer.allocUnsafeSlow(bytes + SLACK_BYTES);
      this.view = viewOf(this.bytes);
    }
  }

  flush(): void {
    if (this.at === 0) return;
    this.flushed += this.at;
    this.#destination.write(this.bytes.subarray(0, this.at));
    this.bytes = this.#destination.buffer();
    this.view = viewOf(this.bytes);
    this.at = 0;
  }

  /** The sha256 of everything so far, in hex. */
  sha256(): string {
    const digest = this.#destination.digest?.();
    assert(digest !== undefined, 'the destination of this body keeps no digest');
    return digest.update(this.bytes.subarray(0, this.at)).digest('hex');
  }

  text(text: string): void {
    this.reserve(text.length * 3);
    this.at += this.bytes.write(text, this.at);
  }

  /** Copies bytes, over as many buffers as they need. */
  copy(source: Uint8Array): void {
    let from = 0;
    while (from < source.length) {
      if (this.at + SLACK_BYTES >= this.bytes.length) this.flush();
      const part = source.subarray(from, from + this.bytes.length - SLACK_BYTES - this.at);
      this.bytes.set(part, this.at);
      this.at += part.length;
      from += part.length;
    }
  }
}

const viewOf = (bytes: Buffer) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** Writes rows into a body. */
export interface RowWriter {
  readonly rows: number;
  row(view: DataView, bytes: Buffer, at: number, length: number): void;
  /** Sets the end of validity of the last row. */
  resolve(ms: number): void;
  /** Hands on what is complete, so that a slow read shows progress. Does nothing while a row's validity is open. */
  flush(): void;
  /** Call it after the last row. The rest of the body is then in the writer's OutputBuffer. */
  end(): void;
}
