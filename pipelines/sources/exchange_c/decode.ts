/**
 * Decodes exchange C's trade files of a day; each of its two trees has rows of its own (spot.ts, trading.ts). Rows come in any
 * order. The decoder frames them in the order of their ids, so the same trades give the same log whatever the order of the
 * file. It therefore sorts a day, under a named limit (sorted-rows.ts).
 * While the file arrives, the decoder parses each row, and frames those whose place is certain: all but the last megabytes of a
 * file that is nearly in order, and none of another before its end. If a row comes so late that rows behind it are framed
 * already, the document is read again and sorted as a whole. The decoder drops a row that repeats another byte for byte, and
 * refuses one with the same id and other bytes.
 */
import { assert, TidemarkError } from '../../../shared/errors.ts';
import type { WrittenAs } from '../../../shared/frame/codec.ts';
import type { PartitionFacts } from '../../../shared/frame/manifest.ts';
import type { DecodedItem, PartitionWindow } from '../feed-types.ts';
import { PartitionFrames } from '../trades/partition-frames.ts';
import { LineSplitter, type LineTaker, type RowReader, readHeader } from '../trades/row-reader.ts';
import type { SortedRow } from './row-run.ts';
import { SortedRows, type SortedRowsOptions } from './sorted-rows.ts';

const CR = 13;
/** At most this many missing ids, or runs of them, are named. */
const MAX_NAMED_GAPS = 20;

/** What the rows of a tree are read with. */
export interface DayRowsOptions {
  /** Every error names it. */
  readonly document: string;
  readonly symbol: string;
  readonly window: PartitionWindow;
}

/** The rows of one day's file in a tree's layout: where they belong, and what they add up to. */
export interface DayRows {
  /** Reads the header and every row as it arrives; its line is that of the file. */
  readonly reader: RowReader;
  readonly headers: readonly (readonly string[])[];
  /** How its rows lie in the log, where that is not the dataset's first layout. */
  readonly written?: WrittenAs;
  /** The id of each day's first trade, where it is always the same. */
  readonly firstId: number | undefined;
  /** Of the row that `place` read. */
  readonly id: number;
  readonly ms: number;
  /** Other bytes are read from now on. */
  begin?(): void;
  /** Reads rows that are written as usual and adds them to `held`. @returns the position behind them. */
  scan?(buffer: Buffer, start: number, to: number, held: SortedRows): number;
  /** Reads the id and the time of the row at `start`, at least. @returns the position of its CR or LF. */
  place(buffer: Buffer, start: number): number;
  /** Takes the rows in the order of their ids, each once. */
  take(row: SortedRow): void;
  /** Takes a row that repeats one before it, byte for byte. */
  repeated(row: SortedRow): void;
  /** Of all rows that were taken. */
  facts(): Pick<PartitionFacts, 'totals' | 'rows_hash'>;
}

export interface ExchangeCDecodeOptions {
  /** Every error names it. */
  readonly document: string;
  readonly window: PartitionWindow;
  readonly frameRawBytes: number;
  /** Most bytes of rows that may be sorted. */
  readonly maxHeldBytes: number;
  /** Where rows are kept that do not fit in memory. */
  readonly sorting: SortedRowsOptions;
}

export class ExchangeCDecoder implements LineTaker, Disposable {
  readonly reader: RowReader;
  readonly #rows: DayRows;
  readonly #options: ExchangeCDecodeOptions;
  readonly #feeder = new LineSplitter(this);
  readonly #held: SortedRows;
  readonly #frames: PartitionFrames;
  readonly #missing = new MissingIds();
  /** The row that was framed last. */
  readonly #last = { id: -1, line: 0, buffer: Buffer.alloc(0) as Buffer, from: 0, to: 0 };
  #repeats = 0;
  #started = false;

  constructor(rows: DayRows, options: ExchangeCDecodeOptions) {
    this.#rows = rows;
    this.reader = rows.reader;
    this.#options = options;
    this.#held = new SortedRows(options.sorting);
    this.#frames = new PartitionFrames(options.frameRawBytes, rows.written);
    this.#frames.begin(options.window);
    if (rows.firstId !== undefined) this.#last.id = rows.firstId - 1;
  }

  /** @throws ReadAgain when the file is less in order than it was so far. */
  push(chunk: Buffer): Iterable<DecodedItem> {
    this.#feeder.push(chunk);
    return this.#certainRows();
  }

  lines(buffer: Buffer, from: number, to: number): void {
    let start = from;
    if (!this.#started) {
      this.#started = true;
      start = readHeader(this.reader, buffer, from, this.#rows.headers);
    }
    if (start === to) return;
    const { maxHeldBytes, document } = this.#options;
    // Copied, because the decompressor reuses the chunk.
    const held = this.#held.open(buffer.subarray(start, to));
    if (this.#held.bytes > maxHeldBytes) {
      throw new TidemarkError(
        'SOURCE_DOCUMENT_INVALID',
        `${document} has more rows than are sorted (${maxHeldBytes} bytes)`,
        {
          details: { document, maxBytes: maxHeldBytes },
        },
      );
    }
    const rows = this.#rows;
    rows.begin?.();
    for (let at = held.from; at < held.to; ) {
      const scanned = rows.scan?.(held.buffer, at, held.to, this.#held) ?? at;
      if (scanned > at) {
        at = scanned;
        continue;
      }
      this.reader.line++;
      const end = rows.place(held.buffer, at);
      this.#held.add(rows.id, rows.ms, at, end);
      at = end + (held.buffer[end] === CR ? 2 : 1);
    }
  }

  /** Ends the file. Yields the frames that are left, then the end of the partition. */
  *finish(): Generator<DecodedItem> {
    this.#feeder.finish();
    const { document } = this.#options;
    if (this.#held.rows === 0) {
      throw new TidemarkError('SOURCE_DOCUMENT_INVALID', `${document} holds no rows`, { details: { document } });
    }
    this.#held.end();
    yield* this.#certainRows();
    const { gaps, named } = this.#missing;
    this.#frames.end({
      gaps,
      ...(gaps > 0 ? { missing_offsets: named } : {}),
      repeats_dropped: this.#repeats,
      ...this.#rows.facts(),
    });
    yield* this.#frames.take();
  }

  /** Frames the rows whose place is certain, in the order of their ids. */
  *#certainRows(): Generator<DecodedItem> {
    const held = this.#held;
    const frames = this.#frames;
    const last = this.#last;
    for (let row = held.next(); row !== undefined; row = held.next()) {
      if (last.line > 0 && last.id === row.id) {
        this.#checkSame(row, last);
        this.#rows.repeated(row);
        this.#repeats++;
        continue;
      }
      this.#rows.take(row);
      if (last.id >= 0) this.#missing.between(last.id, row.id);
      frames.append(row.id, row.ms, row.buffer, row.from, row.to);
      last.id = row.id;
      last.line = row.line;
      last.buffer = row.buffer;
      last.from = row.from;
      last.to = row.to;
      held.keep(row.buffer);
      if (frames.hasItems) yield* frames.take();
    }
    // The rows that are held may move now.
    frames.endAppended();
  }

  [Symbol.dispose](): void {
    this.#held[Symbol.dispose]();
  }

  #checkSame(row: SortedRow, twin: Omit<SortedRow, 'id' | 'ms'>): void {
    if (twin.buffer.compare(row.buffer, row.from, row.to, twin.from, twin.to) === 0) return;
    this.reader.line = row.line;
    const why = `the id ${row.id} repeats that of line ${twin.line}, but the content differs`;
    throw this.reader.fault(why, { found: row.id });
  }
}

/** The ids missing between rows in the order of their ids. */
class MissingIds {
  gaps = 0;
  readonly named: string[] = [];

  between(before: number, after: number): void {
    const step = after - before;
    if (step === 1) return;
    assert(step > 1, `the rows come in the order of their ids, not ${after} after ${before}`);
    this.gaps += step - 1;
    const first = before + 1;
    if (this.named.length < MAX_NAMED_GAPS) this.named.push(step === 2 ? `${first}` : `${first}..${first + step - 2}`);
    else if (this.named.length === MAX_NAMED_GAPS) this.named.push('...');
  }
}
