/**
 * Rows as an Arrow IPC stream: a schema, record batches of bounded size, an empty batch that says what came before it, the
 * end-of-stream marker.
 */
import { ColumnTypeFault } from '../db/pg-messages.ts';
import { ArrowColumn } from './arrow-column.ts';
import { END_OF_STREAM, type Metadata, padded, recordBatchMessage, schemaMessage } from './arrow-messages.ts';
import { CELL, type Cell, CellPlaces, type OutputBuffer, type RowShape, type RowWriter, sizeAt } from './cells.ts';
import { readTimestamptzMs, UUID_BYTES, writeUuid } from './text.ts';

const NO_HOLE = -1;

interface BatchLimits {
  /** Rows of the first batch; each batch has twice as many as the one before, up to `rows`. */
  readonly firstRows: number;
  readonly rows: number;
  /** A batch ends early once its texts reach this size; one more row may exceed it. */
  readonly textBytes: number;
}

/**
 * Gathers rows column by column, in batches: it fills typed arrays from the bytes of PostgreSQL's binary rows, without an
 * object per row. Batch boundaries depend only on the rows, so the same rows make the same batches.
 */
export abstract class BatchedRows implements RowWriter {
  protected readonly columns: readonly ArrowColumn[];
  readonly #limits: BatchLimits;
  readonly #cells: readonly Cell[];
  readonly #places: CellPlaces;
  readonly #validTo: ArrowColumn | undefined;
  #rows = 0;
  /** The batch's rows, its capacity, and the bytes of its texts. */
  #filled = 0;
  #capacity: number;
  #textBytes = 0;
  #hole = NO_HOLE;

  constructor(shape: RowShape, limits: BatchLimits) {
    const { columns } = shape;
    this.#limits = limits;
    this.#capacity = limits.firstRows;
    this.#cells = columns.map((column) => column.cell);
    this.columns = columns.map((column) => new ArrowColumn(column, limits.firstRows));
    this.#places = new CellPlaces(shape);
    this.#validTo = this.columns[this.#cells.indexOf(CELL.validTo)];
  }

  get rows(): number {
    return this.#rows;
  }

  /** Adds a row: `at` is the start of its cells, after the column count; `length` is their size. */
  row(view: DataView, source: Buffer, at: number, length: number): void {
    if (this.#filled === this.#capacity || this.#textBytes >= this.#limits.textBytes) this.#nextBatch();
    const row = this.#filled;
    const cells = this.#cells;
    const places = this.#places.of(view, at, length);
    for (let index = 0; index < cells.length; index++) {
      const cell = cells[index];
      const column = this.columns[index];
      if (cell === CELL.validTo) {
        this.#hole = row;
        continue;
      }
      const place = places[index];
      if (place < 0) {
        this.#null(column, row);
        continue;
      }
      const from = at + place;
      switch (cell) {
        case CELL.int8:
        case CELL.epochMs:
          column.words[row * 2] = view.getInt32(from + 4);
          column.words[row * 2 + 1] = view.getInt32(from);
          break;
        case CELL.float8:
          column.doubles[row] = view.getFloat64(from);
          break;
        case CELL.bool:
          column.bytes[row] = view.getUint8(from);
          break;
        case CELL.timestamptz:
          column.setInteger(row, readTimestamptzMs(view, from));
          break;
        case CELL.int4:
          column.setInteger(row, view.getInt32(from));
          break;
        case CELL.int2:
          column.setInteger(row, view.getInt16(from));
          break;
        case CELL.text: {
          const size = sizeAt(view, from);
          column.addText(row, source, from, from + size);
          this.#textBytes += size;
          break;
        }
        case CELL.uuid:
          column.reserveText(UUID_BYTES);
          column.endText(row, writeUuid(column.text, column.textBytes, source, from));
          this.#textBytes += UUID_BYTES;
          break;
      }
    }
    this.#filled = row + 1;
    this.#rows++;
  }

  /** Sets the end of validity of the last row. */
  resolve(ms: number): void {
    if (this.#hole === NO_HOLE) return;
    this.#validTo?.setInteger(this.#hole, ms);
    this.#hole = NO_HOLE;
  }

  abstract flush(): void;

  end(): void {
    this.#endBatch();
  }

  /** Takes the batch out of the columns and leaves them empty. */
  protected abstract emit(rows: number): void;

  #null(column: ArrowColumn, row: number): void {
    // A reader that relies on the schema would read the value under the null.
    if (!column.field.nullable) throw new ColumnTypeFault(`${column.field.name} is null, but declared not null`);
    column.setNull(row);
  }

  #nextBatch(): void {
    this.#endBatch();
    const { rows } = this.#limits;
    if (this.#capacity === rows) return;
    this.#capacity = Math.min(this.#capacity * 2, rows);
    for (const column of this.columns) column.grow(this.#capacity);
  }

  #endBatch(): void {
    const rows = this.#filled;
    if (rows === 0) return;
    this.emit(rows);
    this.#filled = 0;
    this.#textBytes = 0;
  }
}

/**
 * A batch takes memory here and in the reader: 1 MiB with eight numbers per row. The first batch is small and each has twice
 * as many rows as the one before, so that a slow read shows progress early. Batch boundaries depend only on the rows: the same
 * rows yield the same bytes.
 */
export const BATCH_ROWS = 16_384;
export const FIRST_BATCH_ROWS = 256;
/** A batch ends early once its texts reach this size; one more row may exceed it. */
export const BATCH_TEXT_BYTES = 1024 * 1024;
const PADDING = new Uint8Array(8);

export class ArrowRows extends BatchedRows {
  readonly #out: OutputBuffer;

  constructor(out: OutputBuffer, shape: RowShape, metadata: Metadata) {
    super(shape, { firstRows: FIRST_BATCH_ROWS, rows: BATCH_ROWS, textBytes: BATCH_TEXT_BYTES });
    this.#out = out;
    out.copy(
      schemaMessage(
        this.columns.map((column) => column.field),
        metadata,
      ),
    );
  }

  /** Sends complete batches. A row whose validity is open belongs to none. */
  flush(): void {
    this.#out.flush();
  }

  /** Readers take a stream that was cut between two batches for whole. The last batch tells one from the other. */
  override end(): void {
    super.end();
    const facts: Metadata = [
      ['row_count', String(this.rows)],
      ['sha256', this.#out.sha256()],
    ];
    this.#batch(0, facts);
    this.#out.copy(END_OF_STREAM);
  }

  protected emit(rows: number): void {
    this.#batch(rows);
  }

  #batch(rows: number, metadata?: Metadata): void {
    const out = this.#out;
    const taken = this.columns.map((column) => column.take(rows));
    out.copy(recordBatchMessage(rows, taken, metadata));
    for (const buffer of taken.flatMap((column) => column.buffers)) {
      out.copy(buffer);
      out.copy(PADDING.subarray(0, padded(buffer.length) - buffer.length));
    }
    for (const column of this.columns) column.clear();
  }
}
