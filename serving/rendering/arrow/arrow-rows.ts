/**
 * Rows as an Arrow IPC stream: a schema, record batches of bounded size, the end-of-stream marker.
 */
import type { RowShape } from '../cells.ts';
import type { Out } from '../out.ts';
import { BatchedRows } from './batched-rows.ts';
import { END_OF_STREAM, type Metadata, padded, recordBatchMessage, schemaMessage } from './messages.ts';

/**
 * A batch is memory here and at the reader: 1 MiB of eight numbers a row. The first is small and each has twice the rows
 * of the one before, so that a slow read shows soon that it lives. Where batches end depends on the rows alone: the same
 * rows are the same bytes.
 */
export const BATCH_ROWS = 16_384;
export const FIRST_BATCH_ROWS = 256;
/** A batch ends early once its texts take this much; one row more may go past it. */
export const BATCH_TEXT_BYTES = 1024 * 1024;
const PADDING = new Uint8Array(8);

export class ArrowRows extends BatchedRows {
  readonly #out: Out;

  constructor(out: Out, shape: RowShape, metadata: Metadata) {
    super(shape, { firstRows: FIRST_BATCH_ROWS, rows: BATCH_ROWS, textBytes: BATCH_TEXT_BYTES });
    this.#out = out;
    out.copy(
      schemaMessage(
        this.columns.map((column) => column.field),
        metadata,
      ),
    );
  }

  /** Whole batches: a row whose end is open is in none. */
  flush(): void {
    this.#out.flush();
  }

  override end(): void {
    super.end();
    this.#out.copy(END_OF_STREAM);
  }

  protected emit(rows: number): void {
    const out = this.#out;
    const taken = this.columns.map((column) => column.take(rows));
    out.copy(recordBatchMessage(rows, taken));
    for (const buffer of taken.flatMap((column) => column.buffers)) {
      out.copy(buffer);
      out.copy(PADDING.subarray(0, padded(buffer.length) - buffer.length));
    }
    for (const column of this.columns) column.clear();
  }
}
