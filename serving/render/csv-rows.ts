/**
 * Rows as CSV (RFC 4180 with a header and LF). Null is an empty field and empty text is `""`. The writer renders them from the
 * bytes of PostgreSQL's binary rows, without an object per row.
 */
import type { CsvFormulas } from '../contract/shapes.ts';
import { CELL, type Cell, CellPlaces, type OutputBuffer, type RowShape, type RowWriter, sizeAt } from './cells.ts';
import {
  maxCsvBytes,
  readTimestamptzMs,
  TIMESTAMP_BYTES,
  TimestampWriter,
  writeCsvText,
  writeNumber,
  writeUuid,
} from './text.ts';

const COMMA = 0x2c;
const LF = 0x0a;
/** Size of the widest fixed-size cell, a uuid, with its comma. */
const FIXED_CELL_BYTES = 40;
const NO_HOLE = -1;

export class CsvRows implements RowWriter {
  readonly #out: OutputBuffer;
  readonly #cells: readonly Cell[];
  readonly #fixedBytes: number;
  readonly #variable: boolean;
  readonly #places: CellPlaces;
  readonly #escapesFormulas: boolean;
  readonly #times = new TimestampWriter();
  #rows = 0;
  #hole = NO_HOLE;

  constructor(out: OutputBuffer, shape: RowShape, formulas?: CsvFormulas) {
    const { columns } = shape;
    this.#out = out;
    this.#escapesFormulas = formulas === 'escape';
    this.#cells = columns.map((column) => column.cell);
    this.#variable = this.#cells.includes(CELL.text);
    this.#fixedBytes = columns.length * FIXED_CELL_BYTES;
    this.#places = new CellPlaces(shape);
    // Field names are letters, digits and underscores, so they need no quotes.
    out.text(`${columns.map(({ field }) => field.name).join(',')}\n`);
  }

  get rows(): number {
    return this.#rows;
  }

  /** Writes a row: `at` is the start of its cells, after the column count; `length` is their size. */
  row(view: DataView, source: Buffer, at: number, length: number): void {
    const out = this.#out;
    const places = this.#places.of(view, at, length);
    out.reserve(this.#variable ? this.#fixedBytes + this.#places.mostShown * maxCsvBytes(length) : this.#fixedBytes);
    const to = out.view;
    const cells = this.#cells;
    let next = out.at;
    for (let index = 0; index < cells.length; index++) {
      const cell = cells[index];
      if (cell === CELL.validTo) {
        this.#hole = next;
        next += TIMESTAMP_BYTES;
        to.setUint8(next++, COMMA);
        continue;
      }
      const place = places[index];
      if (place >= 0) {
        const from = at + place;
        switch (cell) {
          case CELL.epochMs:
            next = this.#times.write(to, next, view.getInt32(from) * 4294967296 + view.getUint32(from + 4));
            break;
          case CELL.timestamptz:
            next = this.#times.write(to, next, readTimestamptzMs(view, from));
            break;
          case CELL.text:
            next = writeCsvText(out.bytes, next, source, from, from + sizeAt(view, from), this.#escapesFormulas);
            break;
          case CELL.uuid:
            next = writeUuid(out.bytes, next, source, from);
            break;
          default:
            // A float that is not finite is null in JSON too.
            if (cell !== CELL.float8 || Number.isFinite(view.getFloat64(from))) {
              next = writeNumber(cell, to, next, view, from);
            }
        }
      }
      to.setUint8(next++, COMMA);
    }
    // Overwrites the comma after the last field.
    to.setUint8(next - 1, LF);
    this.#rows++;
    out.at = next;
  }

  /** Sets the end of validity of the last row written. The buffer must not be handed on between the two. */
  resolve(ms: number): void {
    if (this.#hole === NO_HOLE) return;
    this.#times.write(this.#out.view, this.#hole, ms);
    this.#hole = NO_HOLE;
  }

  flush(): void {
    if (this.#hole === NO_HOLE) this.#out.flush();
  }

  end(): void {}
}
