/** The end of validity of rows that come complete and in order: each row's is told by the next one. */
import type { RowSink } from '../db/wire.ts';
import type { RowWriter } from '../rendering/representations.ts';
import { readTimestamptzMs } from '../rendering/timestamps.ts';
import type { Part } from './coverage.ts';

const SECOND_MS = 1000;

export class Lookahead implements RowSink {
  readonly #writer: RowWriter;
  readonly #parts: readonly Part[];
  readonly #endMs: number;
  #part = 0;
  #lastMs: number | undefined;

  constructor(writer: RowWriter, parts: readonly Part[], endMs: number) {
    this.#writer = writer;
    this.#parts = parts;
    this.#endMs = endMs;
  }

  /** The first cell is the row's second; the writer skips it. */
  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    const ms = readTimestamptzMs(view, at + 4);
    this.#resolve(ms);
    this.#writer.row(view, bytes, at, length);
    this.#lastMs = ms;
  }

  /** No row follows. */
  end(): void {
    this.#resolve(Number.POSITIVE_INFINITY);
    this.#lastMs = undefined;
  }

  #resolve(nextMs: number): void {
    const lastMs = this.#lastMs;
    if (lastMs === undefined) return;
    while (this.#parts[this.#part].to <= lastMs) this.#part++;
    const { provedTo, isLast } = this.#parts[this.#part];
    const second = lastMs + SECOND_MS;
    const last = provedTo === undefined ? second : isLast ? Math.max(provedTo, second) : provedTo;
    this.#writer.resolve(Math.min(nextMs, last, this.#endMs));
  }
}
