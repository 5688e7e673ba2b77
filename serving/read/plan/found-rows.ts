/** The newest rows that pass filters, kept from the search that found them: to read them again would search again. */
import { setImmediate } from 'node:timers/promises';
import type { RowSink } from '../../db/pg-connection.ts';
import { OID } from '../../db/pg-messages.ts';
import type { FirstRow } from '../read-model.ts';

/** Rows take some 100 bytes. Wider ones are read again, so that a read takes no more memory. */
const MAX_BYTES = 1024 * 1024;
/** Rows that are given without others having a turn. */
const ROWS_A_TURN = 256;

/** Takes rows newest first, each with its key and time before its cells, and gives them oldest first without these. */
export class FoundRows implements RowSink {
  rows = 0;
  readonly #leading: number;
  #bytes = Buffer.allocUnsafe(16 * 1024);
  /** Where each kept row ends in the bytes. */
  readonly #ends: number[] = [];
  #oldest = Buffer.alloc(0);

  /** @param leading number of cells before those of the answer, as text */
  constructor(leading: number) {
    this.#leading = leading;
  }

  /** The types of the cells before those of the answer. */
  get oids(): readonly number[] {
    return Array.from({ length: this.#leading }, () => OID.text);
  }

  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    let cells = at;
    for (let cell = 0; cell < this.#leading; cell++) cells += 4 + view.getInt32(cells);
    this.#oldest = Buffer.from(bytes.subarray(at, cells));
    this.rows++;
    this.#keep(bytes.subarray(cells, at + length));
  }

  #keep(row: Buffer): void {
    const from = this.#ends.at(-1) ?? 0;
    const end = from + row.length;
    if (end > MAX_BYTES) return;
    if (end > this.#bytes.length) {
      const larger = Buffer.allocUnsafe(Math.max(end, 2 * this.#bytes.length));
      this.#bytes.copy(larger, 0, 0, from);
      this.#bytes = larger;
    }
    row.copy(this.#bytes, from);
    this.#ends.push(end);
  }

  /** Whether all rows are kept. */
  get areAll(): boolean {
    return this.#ends.length === this.rows;
  }

  /** The oldest row. */
  get oldest(): FirstRow {
    const cells: string[] = [];
    for (let at = 0; at < this.#oldest.length; ) {
      const end = at + 4 + this.#oldest.readInt32BE(at);
      cells.push(this.#oldest.toString('utf8', at + 4, end));
      at = end;
    }
    return { key: cells.slice(0, -1), ms: Number(cells.at(-1)) };
  }

  /** Gives the rows, oldest first. */
  async giveTo(sink: RowSink): Promise<void> {
    const bytes = this.#bytes;
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (let row = this.rows - 1; row >= 0; row--) {
      const from = this.#ends[row - 1] ?? 0;
      sink.row(view, bytes, from, this.#ends[row] - from);
      if (row % ROWS_A_TURN === 0) await setImmediate();
    }
  }
}
