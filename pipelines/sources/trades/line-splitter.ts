/** Cuts a file that arrives in pieces into whole lines. */
import { TidemarkError } from '../../../shared/errors.ts';
import { MAX_ROW_BYTES, type RowReader } from './row-reader.ts';

const LF = 10;

export interface LineTaker {
  readonly reader: RowReader;
  /** Whole lines in [from, to), each with its LF. The buffer is the taker's until it returns. */
  lines(buffer: Buffer, from: number, to: number): void;
}

export class LineSplitter {
  readonly #taker: LineTaker;
  /** An incomplete row at the end of the last piece. */
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
    // Copied: the chunk belongs to the decompressor, which may reuse it.
    if (Math.max(complete, start) < chunk.length) this.#carry = Buffer.from(chunk.subarray(Math.max(complete, start)));
    this.#limitCarry();
  }

  /** The file has ended, with or without a line end. */
  finish(): void {
    if (this.#carry.length === 0) return;
    const last = Buffer.concat([this.#carry, Buffer.of(LF)]);
    this.#carry = Buffer.alloc(0);
    this.#taker.lines(last, 0, last.length);
  }

  #limitCarry(): void {
    // One more: a row of the largest size may end in CR LF.
    if (this.#carry.length <= MAX_ROW_BYTES + 1) return;
    this.#taker.reader.line++;
    throw this.#taker.reader.tooLong();
  }
}

/** Start of the text, after a byte order mark if there is one. */
export const skipByteOrderMark = (buffer: Buffer, at: number): number =>
  buffer[at] === 0xef && buffer[at + 1] === 0xbb && buffer[at + 2] === 0xbf ? at + 3 : at;

/* Headers that must be there, and be one of the known ones. */

const CR = 13;
/** More of a header that is not ours is not shown. */
const SHOWN_BYTES = 120;

/**
 * Reads the first line. The columns it names are from then on the reader's; rows must have as many.
 * @returns the start of the second line. @throws TidemarkError SOURCE_ROW_INVALID naming what was expected.
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

/** Rows were validated before they were framed; whoever framed these did not. */
export function malformed(raw: Buffer, start: number): TidemarkError {
  const row = raw.toString('latin1', start, Math.min(raw.length, start + 80)).split('\n')[0];
  return new TidemarkError('LOG_FRAME_CORRUPT', `A frame holds what is no trade: ${JSON.stringify(row)}`);
}

/** What is allocated goes by the bytes that are there, whatever a header claims. */
export function checkRowCount(raw: Buffer, rows: number, minRowBytes: number): void {
  if (Number.isInteger(rows) && rows >= 1 && rows * minRowBytes <= raw.length) return;
  throw new TidemarkError('LOG_FRAME_CORRUPT', `A frame of ${raw.length} bytes does not hold ${rows} trades`);
}
