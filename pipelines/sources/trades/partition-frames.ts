/**
 * Fills frames with the rows of one partition after the other. Keeps the facts that do not depend on the rows' values:
 * their number, first and last id, first and last time, and the digest of their bytes.
 */
import { createHash, type Hash } from 'node:crypto';
import type { WrittenAs } from '../../../shared/frame/codec.ts';
import type { PartitionFacts } from '../../../shared/frame/manifest.ts';
import type { DecodedItem, PartitionWindow } from '../feed-types.ts';
import { MAX_ROW_BYTES } from './row-reader.ts';

const LF = 10;
const CR = 13;

/** The facts of a partition that only its decoder can compute. */
export type ValueFacts = Pick<PartitionFacts, 'totals' | 'rows_hash' | 'gaps' | 'missing_offsets' | 'repeats_dropped'>;

export interface RowParser {
  /**
   * Parses the row at `start`, then calls `row`, or `drop` to leave it out. Calls `flushTo(start)` first if the row
   * begins another partition.
   * @returns the position of the row's CR or LF.
   */
  parse(buffer: Buffer, start: number): number;
  /**
   * A faster way to read rows that are written as usual. Reads those that follow each other in [start, to), end with an LF and
   * belong to the open partition, until they have `room` bytes, and calls `add`.
   * @returns the position behind them; `start` where `parse` has to read the first.
   */
  scan?(buffer: Buffer, start: number, to: number, room: number): number;
}

/** Rows that follow each other. */
export interface ScannedRows {
  readonly rows: number;
  readonly firstId: number;
  readonly lastId: number;
  readonly leastMs: number;
  readonly mostMs: number;
}

export class PartitionFrames {
  readonly #frameRawBytes: number;
  readonly #written: WrittenAs | undefined;
  #items: DecodedItem[] = [];

  // The open partition.
  #window: PartitionWindow | undefined;
  #digest: Hash = createHash('sha256');
  #rows = 0;
  #firstId = 0;
  #firstMs = 0;
  #lastMs = 0;
  #lastId = -1;

  // The frame being filled.
  #frame: Buffer;
  readonly #spare: Buffer[] = [];
  #used = 0;
  #frameRows = 0;
  #frameFirstId = 0;
  #frameFirstMs = 0;
  #frameLastMs = 0;

  // Accepted rows that are not copied yet. Runs of LF-ended rows are copied at once, not row by row.
  #source: Buffer | undefined;
  #run = 0;
  /** The run comes from `append` and ends at `#runTo`. */
  #appending = false;
  #runTo = 0;
  #dropped = false;

  constructor(frameRawBytes: number, written?: WrittenAs) {
    this.#frameRawBytes = frameRawBytes;
    this.#written = written;
    this.#frame = this.#newFrame();
  }

  get window(): PartitionWindow | undefined {
    return this.#window;
  }

  get rows(): number {
    return this.#rows;
  }

  /** Id of the last accepted row of any partition; -1 if there is none. */
  get lastId(): number {
    return this.#lastId;
  }

  get hasItems(): boolean {
    return this.#items.length > 0;
  }

  /** Removes and returns the completed items. */
  take(): DecodedItem[] {
    const items = this.#items;
    if (items.length > 0) this.#items = [];
    return items;
  }

  /** Parses whole lines in [from, to). Keeps each row that is not dropped, without its CR. */
  lines(buffer: Buffer, from: number, to: number, parser: RowParser): void {
    this.#source = buffer;
    this.#run = from;
    for (let position = from; position < to; ) {
      const start = position;
      const room = this.#frameRawBytes - this.#used - (start - this.#run);
      position = parser.scan?.(buffer, start, to, room) ?? start;
      if (position === start) position = this.#line(buffer, start, parser);
      if (this.#used + (position - this.#run) >= this.#frameRawBytes) {
        this.flushTo(position);
        this.#endFrame();
      }
    }
    this.flushTo(to);
    this.#source = undefined;
  }

  /** Parses one line. @returns the position of the next. */
  #line(buffer: Buffer, start: number, parser: RowParser): number {
    const end = parser.parse(buffer, start);
    const crlf = buffer[end] === CR;
    const next = end + (crlf ? 2 : 1);
    if (this.#dropped) {
      this.#dropped = false;
      this.flushTo(start);
      this.#run = next;
    } else if (crlf) {
      this.flushTo(end);
      this.#frame[this.#used++] = LF;
      this.#run = next;
    }
    return next;
  }

  /** Adds one row from any buffer: its bytes [from, to), without line end. Adjacent rows are copied at once. */
  append(id: number, ms: number, buffer: Buffer, from: number, to: number): void {
    if (this.#source !== buffer || this.#runTo !== from) {
      this.endAppended();
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
      this.endAppended();
      this.#endFrame();
    }
  }

  /** Copies the rest of a run that `append` began, whose buffer may change then; `lines` ends its runs itself. */
  endAppended(): void {
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

  /** Counts a row. */
  row(id: number, ms: number): void {
    this.#count(1, id, id, ms, ms);
  }

  /** Counts rows that follow each other. */
  add({ rows, firstId, lastId, leastMs, mostMs }: ScannedRows): void {
    this.#count(rows, firstId, lastId, leastMs, mostMs);
  }

  /** Times need not rise with the ids, so the facts hold the smallest and the largest. */
  #count(rows: number, firstId: number, lastId: number, leastMs: number, mostMs: number): void {
    if (this.#rows === 0) {
      this.#firstId = firstId;
      this.#firstMs = leastMs;
      this.#lastMs = mostMs;
    }
    if (this.#frameRows === 0) {
      this.#frameFirstId = firstId;
      this.#frameFirstMs = leastMs;
      this.#frameLastMs = mostMs;
    }
    if (leastMs < this.#firstMs) this.#firstMs = leastMs;
    if (mostMs > this.#lastMs) this.#lastMs = mostMs;
    if (leastMs < this.#frameFirstMs) this.#frameFirstMs = leastMs;
    if (mostMs > this.#frameLastMs) this.#frameLastMs = mostMs;
    this.#lastId = lastId;
    this.#rows += rows;
    this.#frameRows += rows;
  }

  /** Omits the row that is being parsed from the frame. */
  drop(): void {
    this.#dropped = true;
  }

  begin(window: PartitionWindow): void {
    this.#window = window;
  }

  end(facts: ValueFacts): void {
    this.endAppended();
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

  /**
   * Reuses frame buffers: allocating a megabyte for each frame takes a tenth of the total time in page faults and
   * collections.
   */
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
      written: this.#written,
      release: () => void this.#spare.push(frame),
    });
    this.#frame = this.#newFrame();
    this.#used = 0;
    this.#frameRows = 0;
  }
}
