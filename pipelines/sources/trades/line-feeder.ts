/** Cuts a file that arrives in pieces into whole lines. */
import type { RowReader } from './row-reader.ts';

const LF = 10;

/** Real rows have at most 200 bytes. */
export const MAX_ROW_BYTES = 512;

export interface LineTaker {
  readonly reader: RowReader;
  /** Whole lines in [from, to), each with its LF. The buffer is the taker's until it returns. */
  lines(buffer: Buffer, from: number, to: number): void;
}

export class LineFeeder {
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
