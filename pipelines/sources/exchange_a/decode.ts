/**
 * Decodes exchange A's trade files: `id, price, qty, quote_qty, time, is_buyer_maker, is_best_match`, normally without
 * a header. The decoder validates every row and folds it into the facts that its partition is proved against. The log
 * receives the row's own bytes. The scanner (trades/row-scanner.ts) takes most rows.
 * Accepts LF and CRLF line ends, a byte order mark and a header row. Refuses anything else that is not a row.
 */

import { DAY_MS, dayKey } from '../../../shared/dates.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { ExactTotal } from '../../../shared/proof/row-facts.ts';
import { RowHasher } from '../../../shared/proof/row-hash.ts';
import type { DecodedItem, DecodeOptions } from '../feed-types.ts';
import { PartitionFrames, type RowParser } from '../trades/partition-frames.ts';
import {
  addTo,
  LineSplitter,
  type LineTaker,
  MAX_ROW_BYTES,
  RowReader,
  skipByteOrderMark,
} from '../trades/row-reader.ts';
import { RowScanner } from '../trades/row-scanner.ts';

export { MAX_ROW_BYTES } from '../trades/row-reader.ts';

const LF = 10;
const COLUMNS = ['id', 'price', 'qty', 'quote_qty', 'time', 'is_buyer_maker', 'is_best_match'] as const;
/** The names that a header may give each column, reduced to letters. */
const HEADER_NAMES = [
  ['id', 'tradeid'],
  ['price'],
  ['qty', 'quantity'],
  ['quoteqty', 'quotequantity'],
  ['time', 'timestamp'],
  ['isbuyermaker'],
  ['isbestmatch'],
] as const;

export interface ExchangeADecodeOptions extends DecodeOptions {
  /** Every error names it. */
  readonly document: string;
  /**
   * The document's own window; rows outside it are refused. A window of more than a day has one partition per UTC day.
   */
  readonly fromMs: number;
  readonly toMs: number;
}

export class ExchangeADecoder implements LineTaker, RowParser {
  readonly reader: RowReader;
  readonly #options: ExchangeADecodeOptions;
  readonly #feeder = new LineSplitter(this);
  readonly #frames: PartitionFrames;
  readonly #scanner = new RowScanner();
  #started = false;

  // The partition being decoded.
  #fromMs = 0;
  #toMs = 0;
  #hasher = new RowHasher();
  #priceTotal = new ExactTotal();
  #quantityTotal = new ExactTotal();
  #quoteTotal = new ExactTotal();

  constructor(options: ExchangeADecodeOptions) {
    this.#options = options;
    this.reader = new RowReader({ document: options.document, columns: COLUMNS });
    this.#frames = new PartitionFrames(options.frameRawBytes);
  }

  /** Decodes the next bytes of the file. @returns the frames and partition ends that these bytes complete. */
  push(chunk: Buffer): DecodedItem[] {
    this.#feeder.push(chunk);
    return this.#frames.take();
  }

  /** Ends the file. @returns the last frames and partition ends. */
  finish(): DecodedItem[] {
    this.#feeder.finish();
    if (!this.#frames.window) {
      const { document } = this.#options;
      throw new TidemarkError('SOURCE_DOCUMENT_INVALID', `${document} holds no rows`, { details: { document } });
    }
    this.#endPartition();
    return this.#frames.take();
  }

  lines(buffer: Buffer, from: number, to: number): void {
    this.#scanner.begin();
    this.#frames.lines(buffer, this.#started ? from : this.#skipHeader(buffer, from), to, this);
  }

  #skipHeader(buffer: Buffer, from: number): number {
    this.#started = true;
    const start = skipByteOrderMark(buffer, from);
    const end = buffer.indexOf(LF, start);
    const names = buffer
      .toString('latin1', start, end)
      .split(',')
      .map((name) => name.toLowerCase().replaceAll(/[_\s]/g, ''));
    const known = (name: string, column: number) => HEADER_NAMES[column]?.some((each) => each === name) === true;
    if (!known(names[0], 0)) return start;
    this.reader.line++;
    // The splitter refuses a longer line that comes in pieces.
    if (end - from > MAX_ROW_BYTES + 1) throw this.reader.tooLong();
    if (names.length !== COLUMNS.length || !names.every(known)) {
      throw this.reader.fault(`the header must name the columns ${COLUMNS.join(', ')}`);
    }
    return end + 1;
  }

  scan(buffer: Buffer, start: number, to: number, room: number): number {
    const { lastId } = this.#frames;
    const nextId = lastId < 0 || this.#options.anyIds ? -1 : lastId + 1;
    const end = this.#scanner.scanA(buffer, start, to, room, nextId, this.#fromMs, this.#toMs);
    if (end > start) {
      this.reader.line += this.#scanner.rows;
      this.#frames.add(this.#scanner);
      this.#scanner.addTo(this.#hasher, [this.#priceTotal, this.#quantityTotal, this.#quoteTotal]);
    }
    return end;
  }

  parse(buffer: Buffer, start: number): number {
    const reader = this.reader;
    reader.line++;
    const id = reader.integer(buffer, start, 0, 15);
    reader.noLeadingZero(buffer, start, 0);
    const price = reader.decimal(buffer, reader.next(buffer, 0), 1);
    const priceUnits = reader.units;
    const quantity = reader.decimal(buffer, reader.next(buffer, 1), 2);
    const quantityUnits = reader.units;
    const quote = reader.decimal(buffer, reader.next(buffer, 2), 3);
    const quoteUnits = reader.units;
    const timeStart = reader.next(buffer, 3);
    const time = reader.integer(buffer, timeStart, 4, 20);
    const digits = reader.at - timeStart;
    let ms = time;
    if (digits === 16) ms = Math.floor(time / 1000);
    else if (digits !== 13) throw reader.badCell(buffer, timeStart, 4, 'must have 13 digits (ms) or 16 (µs)');
    const maker = flag(reader, buffer, reader.next(buffer, 4), 5);
    const best = flag(reader, buffer, reader.next(buffer, 5), 6);
    const end = reader.endOfRow(buffer, start, 6);

    if (ms < this.#fromMs || ms >= this.#toMs) {
      this.#frames.flushTo(start);
      this.#enterPartition(ms);
    }
    const { lastId } = this.#frames;
    if (lastId >= 0 && id !== lastId + 1 && !this.#options.anyIds) {
      throw reader.fault(`the id is ${id}, expected ${lastId + 1}`, { found: id });
    }
    this.#frames.row(id, ms);
    addTo(this.#priceTotal, priceUnits, price);
    addTo(this.#quantityTotal, quantityUnits, quantity);
    addTo(this.#quoteTotal, quoteUnits, quote);

    // The columns are in the order of the native table (shared/proof/row-hash.ts).
    const hasher = this.#hasher;
    hasher.begin(ms, maker | (best << 1), 2);
    hasher.int8(id);
    hasher.float8(price);
    hasher.float8(quantity);
    hasher.float8(quote);
    hasher.end();
    return end;
  }

  #enterPartition(ms: number): void {
    const { fromMs, toMs } = this.#options;
    if (ms < fromMs || ms >= toMs) throw this.reader.outside(ms, dayKey(fromMs));
    const dayStart = fromMs + Math.floor((ms - fromMs) / DAY_MS) * DAY_MS;
    if (this.#frames.window) {
      if (dayStart < this.#fromMs) {
        const why = `the row belongs to ${dayKey(ms)}, but a row of a later day precedes it`;
        throw this.reader.fault(why, { time_ms: ms });
      }
      this.#endPartition();
    }
    this.#fromMs = dayStart;
    this.#toMs = dayStart + DAY_MS;
    this.#frames.begin({ key: dayKey(dayStart), fromMs: this.#fromMs, toMs: this.#toMs });
  }

  #endPartition(): void {
    this.#frames.end({
      gaps: 0,
      totals: {
        price: this.#priceTotal.toString(),
        quantity: this.#quantityTotal.toString(),
        quote_quantity: this.#quoteTotal.toString(),
      },
      rows_hash: this.#hasher.total(),
    });
    this.#hasher = new RowHasher();
    this.#priceTotal = new ExactTotal();
    this.#quantityTotal = new ExactTotal();
    this.#quoteTotal = new ExactTotal();
  }
}

/** Reads `True` or `False` in any case, `1` or `0`. */
function flag(reader: RowReader, buffer: Buffer, p: number, column: number): 0 | 1 {
  const first = buffer[p] | 0x20;
  const length = first === 0x74 ? 4 : first === 0x66 ? 5 : 1;
  const word = length === 4 ? 'true' : length === 5 ? 'false' : undefined;
  if (word === undefined) {
    if (buffer[p] !== 48 && buffer[p] !== 49) throw reader.badCell(buffer, p, column, 'must be True or False');
  } else {
    for (let i = 1; i < length; i++) {
      if ((buffer[p + i] | 0x20) !== word.charCodeAt(i))
        throw reader.badCell(buffer, p, column, 'must be True or False');
    }
  }
  reader.at = p + length;
  return first === 0x74 || buffer[p] === 49 ? 1 : 0;
}
