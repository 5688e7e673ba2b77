/** Splits a file that arrives in chunks into whole lines, and checks header rows. */
import { TidemarkError } from '../../../shared/errors.ts';
import { MAX_ROW_BYTES, type RowReader } from './row-reader.ts';

const LF = 10;

export interface LineTaker {
  readonly reader: RowReader;
  /** Receives whole lines in [from, to), each with its LF. The buffer is valid until the call returns. */
  lines(buffer: Buffer, from: number, to: number): void;
}

export class LineSplitter {
  readonly #taker: LineTaker;
  /** An incomplete row at the end of the last chunk. */
  #carry = Buffer.alloc(0);

  constructor(taker: LineTaker) {
    this.#taker = taker;
  }

  push(chunk: Buffer): void {
    let start = 0;
    if (this.#carry.length > 0) {
      const end = chunk.indexOf(LF);
      const head = Buffer.concat([this.#carry, end < 0 ? chunk : chunk.subarray(0, end + 1)]);
      this.#carry = head;
      if (end < 0) {
        this.#limitCarry();
        return;
      }
      this.#carry = Buffer.alloc(0);
      this.#taker.lines(head, 0, head.length);
      start = end + 1;
    }
    const complete = chunk.lastIndexOf(LF) + 1;
    if (complete > start) this.#taker.lines(chunk, start, complete);
    // Copied, because the decompressor may reuse the chunk.
    if (Math.max(complete, start) < chunk.length) this.#carry = Buffer.from(chunk.subarray(Math.max(complete, start)));
    this.#limitCarry();
  }

  /** Ends the file, whether or not its last line has a line end. */
  finish(): void {
    if (this.#carry.length === 0) return;
    const last = Buffer.concat([this.#carry, Buffer.of(LF)]);
    this.#carry = Buffer.alloc(0);
    this.#taker.lines(last, 0, last.length);
  }

  #limitCarry(): void {
    // One byte more, because a row of the largest size may end in CR LF.
    if (this.#carry.length <= MAX_ROW_BYTES + 1) return;
    this.#taker.reader.line++;
    throw this.#taker.reader.tooLong();
  }
}

/** The start of the text, after a byte order mark if there is one. */
export const skipByteOrderMark = (buffer: Buffer, at: number): number =>
  buffer[at] === 0xef && buffer[at + 1] === 0xbb && buffer[at + 2] === 0xbf ? at + 3 : at;

const CR = 13;
/** Most bytes of an unknown header that a message shows. */
const SHOWN_BYTES = 120;

/**
 * Reads the header row and gives its columns to the reader; rows must have as many.
 * @returns the start of the second line.
 * @throws TidemarkError SOURCE_ROW_INVALID; its message names the expected columns.
 */
export function readHeader(
  reader: RowReader,
  buffer: Buffer,
  from: number,
  known: readonly (readonly string[])[],
): number {
  reader.line = 1;
  const start = skipByteOrderMark(buffer, from);
  const end = buffer.indexOf(LF, start);
  const text = buffer.toString('latin1', start, buffer[end - 1] === CR ? end - 1 : end);
  const columns = known.find((names) => names.join(',') === text);
  if (columns === undefined) {
    const expected = known.map((names) => names.join(',')).join(' or ');
    const found = JSON.stringify(text.slice(0, SHOWN_BYTES));
    throw reader.fault('SOURCE_ROW_INVALID', `the header must be ${expected}, found ${found}`, { found: text });
  }
  reader.columns = columns;
  return end + 1;
}

/** The publisher validates rows before it frames them, so an unreadable row means a corrupt frame. */
export function malformed(raw: Buffer, start: number): TidemarkError {
  const row = raw.toString('latin1', start, Math.min(raw.length, start + 80)).split('\n')[0];
  return new TidemarkError('LOG_FRAME_CORRUPT', `A frame holds a row that is not a trade: ${JSON.stringify(row)}`);
}

/**
 * Checks a frame's row count against its bytes, so that a false header cannot make the reader allocate without limit.
 */
export function checkRowCount(raw: Buffer, rows: number, minRowBytes: number): void {
  if (Number.isInteger(rows) && rows >= 1 && rows * minRowBytes <= raw.length) return;
  throw new TidemarkError('LOG_FRAME_CORRUPT', `A frame of ${raw.length} bytes cannot hold ${rows} trades`);
}
