/**
 * Fills frames with the rows of one partition after the other, and keeps the facts that do not depend on their values:
 * how many, from which id to which, from when to when, the digest of their bytes.
 */
import { createHash, type Hash } from 'node:crypto';
import type { PartitionFacts } from '../../../shared/frame/manifest.ts';
import type { DecodedItem, PartitionWindow } from '../types.ts';
import { MAX_ROW_BYTES } from './row-reader.ts';

const LF = 10;
const CR = 13;

/** What a decoder knows of a partition beyond the frames. */
export type ValueFacts = Pick<PartitionFacts, 'totals' | 'rows_hash' | 'gaps' | 'missing_offsets' | 'repeats_dropped'>;

export interface RowParser {
  /**
   * Parses and accepts the row at `start`: calls `row` for it, or `drop`; before, `flushTo(start)` if it begins another
   * partition. @returns the position of the row's CR or LF.
   */
  parse(buffer: Buffer, start: number): number;
}

export class PartitionFrames {
  readonly #frameRawBytes: number;
  #items: DecodedItem[] = [];

  // the partition
  #window: PartitionWindow | undefined;
  #digest: Hash = createHash('sha256');
  #rows = 0;
  #firstId = 0;
  #firstMs = 0;
  #lastMs = 0;
  #lastId = -1;

  // the frame being filled
  #frame: Buffer;
  readonly #spare: Buffer[] = [];
  #used = 0;
  #frameRows = 0;
  #frameFirstId = 0;
  #frameFirstMs = 0;
  #frameLastMs = 0;

  // rows accepted and not copied yet: runs of LF-ended rows are copied at once, not row by row
  #source: Buffer | undefined;
  #run = 0;
  /** The run is of rows from anywhere and ends here. */
  #appending = false;
  #runTo = 0;
  #dropped = false;

  constructor(frameRawBytes: number) {
    this.#frameRawBytes = frameRawBytes;
    this.#frame = this.#newFrame();
  }

  get window(): PartitionWindow | undefined {
    return this.#window;
  }

  get rows(): number {
    return this.#rows;
  }

  /** Id of the last row accepted, over all partitions; -1: none. */
  get lastId(): number {
    return this.#lastId;
  }

  get hasItems(): boolean {
    return this.#items.length > 0;
  }

  /** What has been completed. */
  take(): DecodedItem[] {
    const items = this.#items;
    if (items.length > 0) this.#items = [];
    return items;
  }

  /** Whole lines in [from, to), each parsed and, unless dropped, kept without its CR. */
  lines(buffer: Buffer, from: number, to: number, parser: RowParser): void {
    this.#source = buffer;
    this.#run = from;
    for (let position = from; position < to; ) {
      const start = position;
      const end = parser.parse(buffer, start);
      const crlf = buffer[end] === CR;
      position = end + (crlf ? 2 : 1);
      if (this.#dropped) {
        this.#dropped = false;
        this.flushTo(start);
        this.#run = position;
      } else if (crlf) {
        this.flushTo(end);
        this.#frame[this.#used++] = LF;
        this.#run = position;
      }
      if (this.#used + (position - this.#run) >= this.#frameRawBytes) {
        this.flushTo(position);
        this.#endFrame();
      }
    }
    this.flushTo(to);
    this.#source = undefined;
  }

  /** One row from anywhere: its bytes [from, to), without line end. Rows that follow each other are copied at once. */
  append(id: number, ms: number, buffer: Buffer, from: number, to: number): void {
    if (this.#source !== buffer || this.#runTo !== from) {
      this.#endAppended();
      this.#source = buffer;
      this.#run = from;
      this.#appending = true;
    }
    this.row(id, ms);
    this.#runTo = to + 1;
    if (buffer[to] !== LF) {
      this.flushTo(to);
      this.#frame[this.#used++] = LF;
      this.#appending = false;
      this.#source = undefined;
    }
    if (this.#used + (this.#appending ? this.#runTo - this.#run : 0) >= this.#frameRawBytes) {
      this.#endAppended();
      this.#endFrame();
    }
  }

  /** Copies what `append` has not copied yet; rows of `lines` end their run by themselves. */
  #endAppended(): void {
    if (!this.#appending) return;
    this.flushTo(this.#runTo);
    this.#appending = false;
    this.#source = undefined;
  }

  /** Copies the run up to `position`. */
  flushTo(position: number): void {
    if (position > this.#run) this.#used += this.#source!.copy(this.#frame, this.#used, this.#run, position);
    this.#run = position;
  }

  /** Accounts for a row. Time need not rise with the id; the facts carry the extremes. */
  row(id: number, ms: number): void {
    if (this.#rows === 0) {
      this.#firstId = id;
      this.#firstMs = ms;
      this.#lastMs = ms;
    }
    if (this.#frameRows === 0) {
      this.#frameFirstId = id;
      this.#frameFirstMs = ms;
      this.#frameLastMs = ms;
    }
    if (ms < this.#firstMs) this.#firstMs = ms;
    if (ms > this.#lastMs) this.#lastMs = ms;
    if (ms < this.#frameFirstMs) this.#frameFirstMs = ms;
    if (ms > this.#frameLastMs) this.#frameLastMs = ms;
    this.#lastId = id;
    this.#rows++;
    this.#frameRows++;
  }

  /** The row being parsed is left out. */
  drop(): void {
    this.#dropped = true;
  }

  begin(window: PartitionWindow): void {
    this.#window = window;
  }

  end(facts: ValueFacts): void {
    this.#endAppended();
    this.#endFrame();
    this.#items.push({
      kind: 'end',
      partition: this.#window!,
      facts: {
        rows: this.#rows,
        first_offset: String(this.#firstId),
        last_offset: String(this.#lastId),
        first_ms: this.#firstMs,
        last_ms: this.#lastMs,
        ...facts,
        events_sha256: this.#digest.digest('hex'),
      },
    });
    this.#digest = createHash('sha256');
    this.#rows = 0;
  }

  /** Frames go round: a fresh megabyte for each costs page faults and collections, a tenth of the whole. */
  #newFrame(): Buffer {
    return this.#spare.pop() ?? Buffer.allocUnsafeSlow(this.#frameRawBytes + MAX_ROW_BYTES + 2);
  }

  #endFrame(): void {
    if (this.#frameRows === 0) return;
    const frame = this.#frame;
    const raw = frame.subarray(0, this.#used);
    this.#digest.update(raw);
    this.#items.push({
      kind: 'events',
      partition: this.#window!,
      raw,
      rows: this.#frameRows,
      first_offset: String(this.#frameFirstId),
      last_offset: String(this.#lastId),
      first_ms: this.#frameFirstMs,
      last_ms: this.#frameLastMs,
      release: () => void this.#spare.push(frame),
    });
    this.#frame = this.#newFrame();
    this.#used = 0;
    this.#frameRows = 0;
  }
}
