/**
 * Decodes exchange A's trade files: `id, price, qty, quote_qty, time, is_buyer_maker, is_best_match`, no header as a
 * rule. Every row is validated and folded into the facts its partition will be proved against; the row's own bytes are
 * what goes to the log. Bytes, not strings: 3.5 M rows a second are at stake, and this is the publisher's hot loop.
 *
 * Reads LF and CRLF ends, a byte order mark, and a header row; refuses everything else that is not a row.
 */
import { createHash, type Hash } from 'node:crypto';
import type { ErrorCode } from '../../../shared/error-codes.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import type { PartitionFacts } from '../../../shared/frame/manifest.ts';
import { RowHasher } from '../../../shared/proof/row-hash.ts';
import { ExactTotal } from '../../../shared/proof/totals.ts';
import { DAY_MS } from '../../../shared/registry/trades.ts';
import { dayKey } from '../../../shared/time/days.ts';
import type { DecodedItem, PartitionWindow } from '../types.ts';

const LF = 10;
const CR = 13;
const COMMA = 44;
const DOT = 46;
const ZERO = 48;
const COLUMNS = ['id', 'price', 'qty', 'quote_qty', 'time', 'is_buyer_maker', 'is_best_match'] as const;
/** Names a header may give each column, letters only. */
const HEADER_NAMES = [
  ['id', 'tradeid'],
  ['price'],
  ['qty', 'quantity'],
  ['quoteqty', 'quotequantity'],
  ['time', 'timestamp'],
  ['isbuyermaker'],
  ['isbestmatch'],
] as const;
/** Real rows have at most 110 bytes. */
export const MAX_ROW_BYTES = 512;
const SCALE = 1e8;
const SCALE_DIGITS = 8;
const POWERS = [1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8];
/** Up to here value x 1e8 survives the way to float64 and back exactly; beyond, the total follows the float64. */
const EXACT_UNITS = 2 ** 51;
/** The database totals units as int8; a value of more is no price or quantity. */
const MAX_UNITS = 2 ** 63;

/** Marks a value whose units are not exact in float64. */
const INEXACT = -1;

export interface DecodeOptions {
  /** Named in every error. */
  readonly document: string;
  /** The document's own window; rows outside are refused. More than a day: one partition a UTC day. */
  readonly fromMs: number;
  readonly toMs: number;
  readonly frameRawBytes: number;
}

export class TradeFileDecoder {
  readonly #options: DecodeOptions;
  #items: DecodedItem[] = [];
  /** An incomplete row at the end of the last chunk. */
  #carry = Buffer.alloc(0);
  #line = 0;
  #started = false;

  // the partition being decoded
  #window: PartitionWindow | undefined;
  #hasher = new RowHasher();
  #digest: Hash = createHash('sha256');
  #priceTotal = new ExactTotal();
  #quantityTotal = new ExactTotal();
  #quoteTotal = new ExactTotal();
  #rows = 0;
  #firstId = 0;
  #firstMs = 0;
  #lastMs = 0;

  // the frame being filled
  #frame: Buffer;
  #used = 0;
  #frameRows = 0;
  #frameFirstId = 0;
  #frameFirstMs = 0;
  #frameLastMs = 0;

  // the row just parsed, and where parsing stands
  #lastId = -1;
  #at = 0;
  #units = 0;

  constructor(options: DecodeOptions) {
    this.#options = options;
    this.#frame = this.#newFrame();
  }

  /** Feeds the next bytes of the file. @returns what has been completed by them. */
  push(chunk: Buffer): DecodedItem[] {
    let start = 0;
    if (this.#carry.length > 0) {
      const end = chunk.indexOf(LF);
      const head = Buffer.concat([this.#carry, end < 0 ? chunk : chunk.subarray(0, end + 1)]);
      this.#carry = head;
      if (end < 0) return this.#limitCarry();
      this.#carry = Buffer.alloc(0);
      this.#lines(head, 0, head.length);
      start = end + 1;
    }
    const complete = chunk.lastIndexOf(LF) + 1;
    if (complete > start) this.#lines(chunk, start, complete);
    // Copied: the chunk belongs to the decompressor, which may reuse it.
    if (Math.max(complete, start) < chunk.length) this.#carry = Buffer.from(chunk.subarray(Math.max(complete, start)));
    return this.#limitCarry();
  }

  /** The file has ended. @returns the last frames and partition ends. */
  finish(): DecodedItem[] {
    if (this.#carry.length > 0) {
      const last = Buffer.concat([this.#carry, Buffer.of(LF)]);
      this.#carry = Buffer.alloc(0);
      this.#lines(last, 0, last.length);
    }
    if (!this.#window) {
      throw new TidemarkError('SOURCE_EMPTY', `${this.#options.document} holds no rows`, {
        details: { document: this.#options.document },
      });
    }
    this.#endPartition();
    return this.#take();
  }

  #limitCarry(): DecodedItem[] {
    // One more: a row of the largest size may end in CR LF.
    if (this.#carry.length > MAX_ROW_BYTES + 1) {
      this.#line++;
      throw this.#tooLong();
    }
    return this.#take();
  }

  #take(): DecodedItem[] {
    const items = this.#items;
    if (items.length > 0) this.#items = [];
    return items;
  }

  /** Whole lines in [from, to). Runs of LF-ended rows are copied at once, not row by row. */
  #lines(buffer: Buffer, from: number, to: number): void {
    let position = this.#started ? from : this.#skipHeader(buffer, from);
    let run = position;
    while (position < to) {
      const rowStart = position;
      const framesBefore = this.#frame;
      const end = this.#row(buffer, position, rowStart === run ? undefined : { buffer, run });
      if (this.#frame !== framesBefore) run = rowStart;
      if (buffer[end] === CR) {
        this.#append(buffer, run, end);
        this.#appendLf();
        position = end + 2;
        run = position;
      } else {
        position = end + 1;
      }
      if (this.#used + (position - run) >= this.#options.frameRawBytes) {
        this.#append(buffer, run, position);
        run = position;
        this.#endFrame();
      }
    }
    this.#append(buffer, run, to);
  }

  #skipHeader(buffer: Buffer, from: number): number {
    this.#started = true;
    let start = from;
    if (buffer[start] === 0xef && buffer[start + 1] === 0xbb && buffer[start + 2] === 0xbf) start += 3;
    const end = buffer.indexOf(LF, start);
    const names = buffer
      .toString('latin1', start, end)
      .split(',')
      .map((name) => name.toLowerCase().replaceAll(/[_\s]/g, ''));
    const known = (name: string, column: number) => HEADER_NAMES[column]?.some((each) => each === name) === true;
    if (!known(names[0], 0)) return start;
    this.#line++;
    if (names.length !== COLUMNS.length || !names.every(known)) {
      throw this.#fault('SOURCE_ROW_INVALID', `the header names other columns than ${COLUMNS.join(', ')}`);
    }
    return end + 1;
  }

  /**
   * Parses and accepts the row at `start`. `pending` is the run of rows before it that is not yet copied; it is copied
   * first when this row begins another partition. @returns the position of the row's CR or LF.
   */
  #row(buffer: Buffer, start: number, pending: { buffer: Buffer; run: number } | undefined): number {
    this.#line++;
    const id = this.#integer(buffer, start, 0, 15);
    // An event is found again by its id as it is written.
    if (buffer[start] === ZERO && this.#at - start > 1) {
      throw this.#badCell(buffer, start, 0, 'must have no leading zeros');
    }
    const price = this.#decimal(buffer, this.#next(buffer, 0), 1);
    const priceUnits = this.#units;
    const quantity = this.#decimal(buffer, this.#next(buffer, 1), 2);
    const quantityUnits = this.#units;
    const quote = this.#decimal(buffer, this.#next(buffer, 2), 3);
    const quoteUnits = this.#units;
    const timeStart = this.#next(buffer, 3);
    const time = this.#integer(buffer, timeStart, 4, 20);
    const digits = this.#at - timeStart;
    let ms = time;
    if (digits === 16) ms = Math.floor(time / 1000);
    else if (digits !== 13) throw this.#badCell(buffer, timeStart, 4, 'must have 13 digits (ms) or 16 (µs)');
    const maker = this.#flag(buffer, this.#next(buffer, 4), 5);
    const best = this.#flag(buffer, this.#next(buffer, 5), 6);
    const end = this.#at;
    if (buffer[end] !== LF && !(buffer[end] === CR && buffer[end + 1] === LF)) {
      if (buffer[end] === COMMA) throw this.#columnCount(buffer, start);
      throw this.#badCell(buffer, end, 6, 'must be followed by the end of the row');
    }
    // Also what the frame's buffer has room for beyond its size.
    if (end - start > MAX_ROW_BYTES) throw this.#tooLong();

    if (this.#window === undefined || ms < this.#window.fromMs || ms >= this.#window.toMs) {
      if (pending) this.#append(buffer, pending.run, start);
      this.#enterPartition(ms);
    }
    if (this.#lastId >= 0 && id !== this.#lastId + 1) {
      throw this.#fault('SOURCE_SEQUENCE_BROKEN', `the id is ${id}, expected ${this.#lastId + 1}`, { found: id });
    }
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
    // Time need not rise with the id; the facts carry the extremes.
    if (ms < this.#firstMs) this.#firstMs = ms;
    if (ms > this.#lastMs) this.#lastMs = ms;
    if (ms < this.#frameFirstMs) this.#frameFirstMs = ms;
    if (ms > this.#frameLastMs) this.#frameLastMs = ms;
    this.#lastId = id;
    this.#rows++;
    this.#frameRows++;
    addTo(this.#priceTotal, priceUnits, price);
    addTo(this.#quantityTotal, quantityUnits, quantity);
    addTo(this.#quoteTotal, quoteUnits, quote);

    // The order of columns is that of the native table (shared/proof/row-hash.ts).
    const hasher = this.#hasher;
    hasher.begin(ms, maker | (best << 1), 2);
    hasher.int8(id);
    hasher.float8(price);
    hasher.float8(quantity);
    hasher.float8(quote);
    hasher.end();
    return end;
  }

  /** Digits at `p`; leaves `#at` behind them. */
  #integer(buffer: Buffer, p: number, column: number, maxDigits: number): number {
    let value = 0;
    let at = p;
    for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48) value = value * 10 + digit;
    if (at === p || at - p > maxDigits) throw this.#badCell(buffer, p, column, 'must be a whole number');
    this.#at = at;
    return value;
  }

  /**
   * A positive decimal at `p` as float64; leaves its exact size in `#units`. Fixed point: the digits as an integer of
   * 1e-8; a quotient of two exact float64 integers is the correctly rounded value.
   */
  #decimal(buffer: Buffer, p: number, column: 1 | 2 | 3): number {
    let units = 0;
    let at = p;
    for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48) units = units * 10 + digit;
    let decimals = 0;
    const point = at;
    if (buffer[at] === DOT) {
      at++;
      for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48) units = units * 10 + digit;
      decimals = at - point - 1;
    }
    if (decimals <= SCALE_DIGITS && buffer[at] === COMMA && point > p && units > 0) {
      units *= POWERS[SCALE_DIGITS - decimals];
      if (units < EXACT_UNITS) {
        this.#at = at;
        this.#units = units;
        return units / SCALE;
      }
    }
    return this.#unusualDecimal(buffer, p, column);
  }

  #unusualDecimal(buffer: Buffer, p: number, column: number): number {
    let end = p;
    while (buffer[end] !== COMMA && buffer[end] !== LF && end - p < MAX_ROW_BYTES) end++;
    const text = buffer.toString('latin1', p, end);
    const value = /^\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$/.test(text) ? Number(text) : Number.NaN;
    if (!(value > 0 && value < Number.POSITIVE_INFINITY)) {
      throw this.#badCell(buffer, p, column, 'must be a decimal number above 0');
    }
    if (value * SCALE >= MAX_UNITS) throw this.#badCell(buffer, p, column, 'must be below 92233720368.54775808');
    this.#at = end;
    this.#units = INEXACT;
    return value;
  }

  #flag(buffer: Buffer, p: number, column: number): 0 | 1 {
    const first = buffer[p] | 0x20;
    const length = first === 0x74 ? 4 : first === 0x66 ? 5 : 1;
    const word = length === 4 ? 'true' : length === 5 ? 'false' : undefined;
    if (word === undefined) {
      if (buffer[p] !== 48 && buffer[p] !== 49) throw this.#badCell(buffer, p, column, 'must be True or False');
    } else {
      for (let i = 1; i < length; i++) {
        if ((buffer[p + i] | 0x20) !== word.charCodeAt(i))
          throw this.#badCell(buffer, p, column, 'must be True or False');
      }
    }
    this.#at = p + length;
    return first === 0x74 || buffer[p] === 49 ? 1 : 0;
  }

  /** Expects the comma after `column`. @returns the start of the next cell. */
  #next(buffer: Buffer, column: number): number {
    const at = this.#at;
    if (buffer[at] !== COMMA) {
      if (buffer[at] === LF || buffer[at] === CR) throw this.#columnCount(buffer, at);
      throw this.#badCell(buffer, at, column, 'is not a value of this column');
    }
    return at + 1;
  }

  #enterPartition(ms: number): void {
    const { fromMs, toMs } = this.#options;
    if (ms < fromMs || ms >= toMs) {
      const at = new Date(ms);
      const shown = Number.isNaN(at.getTime()) ? `${ms} ms` : at.toISOString();
      throw this.#fault('SOURCE_OUTSIDE_PARTITION', `the time ${shown} is outside the document's ${dayKey(fromMs)}`, {
        time_ms: ms,
      });
    }
    const dayStart = fromMs + Math.floor((ms - fromMs) / DAY_MS) * DAY_MS;
    if (this.#window) {
      if (dayStart < this.#window.fromMs) {
        throw this.#fault('SOURCE_OUTSIDE_PARTITION', `the row belongs to ${dayKey(ms)}, which has ended before`, {
          time_ms: ms,
        });
      }
      this.#endPartition();
    }
    this.#window = { key: dayKey(dayStart), fromMs: dayStart, toMs: dayStart + DAY_MS };
  }

  #endPartition(): void {
    this.#endFrame();
    const facts: PartitionFacts = {
      rows: this.#rows,
      first_offset: String(this.#firstId),
      last_offset: String(this.#lastId),
      first_ms: this.#firstMs,
      last_ms: this.#lastMs,
      gaps: 0,
      totals: {
        price: this.#priceTotal.toString(),
        quantity: this.#quantityTotal.toString(),
        quote_quantity: this.#quoteTotal.toString(),
      },
      rows_hash: this.#hasher.total(),
      events_sha256: this.#digest.digest('hex'),
    };
    this.#items.push({ kind: 'end', partition: this.#window!, facts });
    this.#hasher = new RowHasher();
    this.#digest = createHash('sha256');
    this.#priceTotal = new ExactTotal();
    this.#quantityTotal = new ExactTotal();
    this.#quoteTotal = new ExactTotal();
    this.#rows = 0;
  }

  #newFrame(): Buffer {
    return Buffer.allocUnsafeSlow(this.#options.frameRawBytes + MAX_ROW_BYTES + 2);
  }

  #append(buffer: Buffer, from: number, to: number): void {
    if (to <= from) return;
    this.#used += buffer.copy(this.#frame, this.#used, from, to);
  }

  #appendLf(): void {
    this.#frame[this.#used++] = LF;
  }

  #endFrame(): void {
    if (this.#frameRows === 0) return;
    const raw = this.#frame.subarray(0, this.#used);
    this.#digest.update(raw);
    this.#items.push({
      kind: 'events',
      partition: this.#window!,
      raw,
      rows: this.#frameRows,
      first_offset: String(this.#frameFirstId),
      last_offset: String(this.#frameFirstId + this.#frameRows - 1),
      first_ms: this.#frameFirstMs,
      last_ms: this.#frameLastMs,
    });
    this.#frame = this.#newFrame();
    this.#used = 0;
    this.#frameRows = 0;
  }

  #tooLong(): TidemarkError {
    return this.#fault('SOURCE_ROW_INVALID', `the row is longer than ${MAX_ROW_BYTES} bytes`);
  }

  #columnCount(buffer: Buffer, inRow: number): TidemarkError {
    const start = buffer.lastIndexOf(LF, Math.max(0, inRow - 1)) + 1;
    const end = buffer.indexOf(LF, inRow);
    const row = buffer.toString('latin1', start, end < 0 ? buffer.length : end);
    const found = row.split(',').length;
    return this.#fault('SOURCE_ROW_INVALID', `the row has ${found} columns, expected ${COLUMNS.length}`, { found });
  }

  #badCell(buffer: Buffer, start: number, column: number, rule: string): TidemarkError {
    let end = start;
    while (end < buffer.length && end - start < 40 && ![COMMA, LF, CR].includes(buffer[end])) end++;
    const value = buffer.toString('latin1', start, end);
    return this.#fault('SOURCE_ROW_INVALID', `${COLUMNS[column]} ${rule}, found ${JSON.stringify(value)}`, {
      column: COLUMNS[column],
      found: value,
    });
  }

  #fault(code: ErrorCode, why: string, details: Record<string, string | number> = {}): TidemarkError {
    const { document } = this.#options;
    return new TidemarkError(code, `${document}, line ${this.#line}: ${why}`, {
      details: { document, line: this.#line, ...details },
    });
  }
}

function addTo(total: ExactTotal, units: number, value: number): void {
  if (units === INEXACT) total.addFloat(value, SCALE);
  else total.add(units);
}
