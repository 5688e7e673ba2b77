/**
 * Decodes exchange B's trade files: `instrument_name,trade_id,side,price,size,created_time`. Files of later years end
 * with a column `source`, which stays in the raw bytes and is not read. Ids never fall and may leave gaps. The decoder
 * drops and counts a row that repeats the one before byte for byte; it refuses a row with the same id and other bytes.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import { ExactTotal } from '../../../shared/proof/row-facts.ts';
import { type KnownText, knownText, RowHasher } from '../../../shared/proof/row-hash.ts';
import type { DecodedItem, DecodeOptions, PartitionWindow } from '../feed-types.ts';
import { Factor } from '../trades/factor.ts';
import { PartitionFrames, type RowParser } from '../trades/partition-frames.ts';
import {
  addTo,
  HASHED_TAKER_SIDES,
  LineSplitter,
  type LineTaker,
  MAX_VALUE,
  MAX_VALUE_TEXT,
  RowReader,
  readHeader,
  TAKER_SIDES,
} from '../trades/row-reader.ts';
import { RowScanner } from '../trades/row-scanner.ts';

const COMMA = 44;
const LF = 10;
const CR = 13;
const COLUMNS = ['instrument_name', 'trade_id', 'side', 'price', 'size', 'created_time'] as const;
const WITH_SOURCE = [...COLUMNS, 'source'] as const;
/** Float64 printers write at most 17, and the vendor's files hold such numbers; the rest is margin. */
const MAX_SIGNIFICANT_DIGITS = 20;

export interface ExchangeBDecodeOptions extends DecodeOptions {
  /** Every error names it. */
  readonly document: string;
  readonly instrument: string;
  readonly window: PartitionWindow;
}

export class ExchangeBDecoder implements LineTaker, RowParser {
  readonly reader: RowReader;
  readonly #options: ExchangeBDecodeOptions;
  readonly #instrument: Buffer;
  readonly #hashedInstrument: KnownText;
  readonly #feeder = new LineSplitter(this);
  readonly #frames: PartitionFrames;
  readonly #scanner: RowScanner;
  readonly #hasher = new RowHasher();
  readonly #price = new Factor();
  readonly #priceTotal = new ExactTotal();
  readonly #sizeTotal = new ExactTotal();
  readonly #quoteTotal = new ExactTotal();
  #started = false;
  // The last accepted row, which the next one may repeat.
  #last: Buffer = Buffer.alloc(0);
  #lastStart = 0;
  #lastLength = 0;
  #firstId = -1;
  #repeats = 0;

  constructor(options: ExchangeBDecodeOptions) {
    this.#options = options;
    this.#instrument = Buffer.from(options.instrument);
    this.#hashedInstrument = knownText(options.instrument);
    this.reader = new RowReader({
      document: options.document,
      columns: COLUMNS,
      maxSignificantDigits: MAX_SIGNIFICANT_DIGITS,
    });
    this.#scanner = new RowScanner(options.instrument);
    this.#frames = new PartitionFrames(options.frameRawBytes);
    this.#frames.begin(options.window);
  }

  push(chunk: Buffer): DecodedItem[] {
    this.#feeder.push(chunk);
    return this.#frames.take();
  }

  finish(): DecodedItem[] {
    this.#feeder.finish();
    if (this.#frames.rows === 0) {
      const { document } = this.#options;
      throw new TidemarkError('SOURCE_DOCUMENT_INVALID', `${document} holds no rows`, { details: { document } });
    }
    this.#frames.end({
      gaps: this.#frames.lastId - this.#firstId + 1 - this.#frames.rows,
      repeats_dropped: this.#repeats,
      totals: {
        price: this.#priceTotal.toString(),
        size: this.#sizeTotal.toString(),
        quote_quantity: this.#quoteTotal.toString(),
      },
      rows_hash: this.#hasher.total(),
    });
    return this.#frames.take();
  }

  lines(buffer: Buffer, from: number, to: number): void {
    let start = from;
    if (!this.#started) {
      this.#started = true;
      start = readHeader(this.reader, buffer, from, [COLUMNS, WITH_SOURCE]);
    }
    this.#scanner.begin();
    this.#frames.lines(buffer, start, to, this);
    // Keep the last row, because the next block may begin with its repetition; within a block the row is still in the
    // buffer.
    if (this.#lastLength > 0 && this.#last === buffer) {
      this.#last = Buffer.from(buffer.subarray(this.#lastStart, this.#lastStart + this.#lastLength));
      this.#lastStart = 0;
    }
  }

  scan(buffer: Buffer, start: number, to: number, room: number): number {
    const { window } = this.#options;
    const hasSource = this.reader.columns.length > COLUMNS.length;
    const scanner = this.#scanner;
    const afterId = this.#options.anyIds ? -1 : this.#frames.lastId;
    const end = scanner.scanB(buffer, start, to, room, afterId, window.fromMs, window.toMs, hasSource);
    if (end > start) {
      this.reader.line += scanner.rows;
      if (this.#firstId < 0) this.#firstId = scanner.firstId;
      this.#frames.add(scanner);
      scanner.addTo(this.#hasher, [this.#priceTotal, this.#sizeTotal, this.#quoteTotal]);
      this.#last = buffer;
      this.#lastStart = buffer.lastIndexOf(LF, end - 2) + 1;
      this.#lastLength = end - 1 - this.#lastStart;
    }
    return end;
  }

  parse(buffer: Buffer, start: number): number {
    const reader = this.reader;
    reader.line++;
    reader.exactly(buffer, start, 0, this.#instrument);
    const idStart = reader.next(buffer, 0);
    const id = reader.integer(buffer, idStart, 1, 15);
    reader.noLeadingZero(buffer, idStart, 1);
    const side = reader.word(buffer, reader.next(buffer, 1), 2, TAKER_SIDES);
    const price = reader.decimal(buffer, reader.next(buffer, 2), 3);
    const priceUnits = reader.units;
    this.#price.take(reader);
    const size = reader.decimal(buffer, reader.next(buffer, 3), 4);
    const sizeUnits = reader.units;
    const quote = this.#price.times(reader, buffer);
    if (quote >= MAX_VALUE) {
      throw reader.fault(`price x size must be below ${MAX_VALUE_TEXT}, found ${quote}`);
    }
    const timeStart = reader.next(buffer, 4);
    const ms = reader.integer(buffer, timeStart, 5, 20);
    if (reader.at - timeStart !== 13) throw reader.badCell(buffer, timeStart, 5, 'must have 13 digits (ms)');
    if (reader.columns.length > COLUMNS.length) {
      let at = reader.next(buffer, 5);
      while (buffer[at] !== COMMA && buffer[at] !== LF && buffer[at] !== CR) at++;
      reader.at = at;
    }
    const end = reader.endOfRow(buffer, start, reader.columns.length - 1);

    if (id <= this.#frames.lastId && !this.#options.anyIds) {
      this.#dropRepeat(buffer, start, end, id);
      return end;
    }
    const { window } = this.#options;
    if (ms < window.fromMs || ms >= window.toMs) throw reader.outside(ms, window.key);
    this.#last = buffer;
    this.#lastStart = start;
    this.#lastLength = end - start;
    if (this.#firstId < 0) this.#firstId = id;
    this.#frames.row(id, ms);
    addTo(this.#priceTotal, priceUnits, price);
    addTo(this.#sizeTotal, sizeUnits, size);
    this.#quoteTotal.addFloat(quote, 1e8);

    // The columns are in the order of the native table (shared/proof/row-hash.ts).
    const hasher = this.#hasher;
    hasher.begin(ms, 0, 0);
    hasher.int8(id);
    hasher.float8(price);
    hasher.float8(size);
    hasher.float8(quote);
    hasher.known(HASHED_TAKER_SIDES[side]);
    hasher.known(this.#hashedInstrument);
    hasher.end();
    return end;
  }

  /** Drops a row that repeats the row before byte for byte; refuses one that has the same id and other bytes. */
  #dropRepeat(buffer: Buffer, start: number, end: number, id: number): void {
    if (id < this.#frames.lastId) {
      const why = `the id is ${id}, below the id ${this.#frames.lastId} before it`;
      throw this.reader.fault(why, { found: id });
    }
    const last = this.#lastStart + this.#lastLength;
    if (this.#last.compare(buffer, start, end, this.#lastStart, last) !== 0) {
      const why = `the id ${id} repeats that of the row before, but the content differs`;
      throw this.reader.fault(why, { found: id });
    }
    this.#repeats++;
    this.#frames.drop();
  }
}
