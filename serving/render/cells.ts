/** How a field's binary value is read, by what it means and how it is stored. */
import { assert } from '../../shared/errors.ts';
import type { Dtype, Field, PgType } from '../../shared/registry/index.ts';

export const CELL = {
  int8: 0,
  int4: 1,
  int2: 2,
  float8: 3,
  bool: 4,
  /** int8 of epoch milliseconds, shown as a timestamp */
  epochMs: 5,
  timestamptz: 6,
  text: 7,
  uuid: 8,
  /** No cell of the row: the end of its validity, known when the next row is. */
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

/** A column of a result: the field, and whether its value comes in the row or from the next one. */
export interface Column {
  readonly field: Field;
  readonly cell: Cell;
}

/** What a writer of rows has to know of them. */
export interface RowShape {
  readonly columns: readonly Column[];
  /** Rows start with a cell that is not shown: the time that ends the validity of the row before. */
  readonly hiddenFirst: boolean;
}

/** The growing end of a body: one buffer being filled, handed on when it is nearly full. */

/** A full buffer holds at least 64 KiB: smaller writes cost more in system calls than in rendering. */
export const BUFFER_BYTES = 256 * 1024;
/** Writers may store this much past the end of what they wrote. */
const SLACK_BYTES = 64;

export interface Destination {
  /** Takes the bytes; the buffer comes back through `recycle`, or not at all. */
  write(bytes: Buffer): void;
  /** A buffer to go on with, of at least BUFFER_BYTES. */
  buffer(): Buffer;
}

export class OutputBuffer {
  bytes: Buffer;
  view: DataView;
  at = 0;
  /** Bytes handed on so far. */
  flushed = 0;
  readonly #destination: Destination;

  constructor(destination: Destination) {
    this.#destination = destination;
    this.bytes = destination.buffer();
    this.view = viewOf(this.bytes);
  }

  /** Makes sure that `bytes` more can be written, with slack. What is in the buffer may be handed on. */
  reserve(bytes: number): void {
    if (this.at + bytes + SLACK_BYTES <= this.bytes.length) return;
    this.flush();
    if (bytes + SLACK_BYTES > this.bytes.length) {
      // A single row wider than the buffer: a buffer for it alone.
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

  text(text: string): void {
    this.reserve(text.length * 3);
    this.at += this.bytes.write(text, this.at);
  }

  /** Bytes made elsewhere, over as many buffers as they take. */
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
  /** The end of validity of the last row. */
  resolve(ms: number): void;
  /** Hands on what is complete, so that a slow read shows that it lives. Nothing, while a row's validity is open. */
  flush(): void;
  /** After the last row: the rest of the body is then in the writer's Out. */
  end(): void;
}
