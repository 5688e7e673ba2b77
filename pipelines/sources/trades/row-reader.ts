/**
 * Splits a trade file that arrives in chunks into whole lines, and reads and validates the cells of rows that the scanner
 * (row-scanner.ts) leaves. Its errors name document, line, column and value. It works on bytes instead of strings: where the vendor
 * writes all rows in an unusual way, it reads every row of a day.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import type { ExactTotal } from '../../../shared/proof/row-facts.ts';
import { knownText } from '../../../shared/proof/row-hash.ts';

/** Real rows have at most 200 bytes. */
export const MAX_ROW_BYTES = 512;

/** 10^22 is the last power of ten that a float64 holds exactly. */
export const MAX_SCALE = 22;
export const POWERS_OF_TEN: readonly number[] = Array.from({ length: MAX_SCALE + 1 }, (_, n) => Number(`1e${n}`));

const LF = 10;
const CR = 13;
const COMMA = 44;
const DOT = 46;
const PLUS = 43;
const MINUS = 45;
const ZERO = 48;
const NINE = 57;
const LETTER_E = 0x65;
const SCALE = 1e8;
const SCALE_DIGITS = 8;
/** Up to this value x 1e8 the float64 round trip is exact; beyond, the total follows the decimals. */
const EXACT_UNITS = 2 ** 51;
/** The first integer that float64 cannot distinguish from its neighbour. */
const MAX_EXACT = 2 ** 53;
/** Doubles of smaller values give back the source's decimals; a larger one cannot be a price or quantity. */
export const MAX_VALUE = 2 ** 53;
export const MAX_VALUE_TEXT = '2^53';
/** The same of what is in 1e-8 of a quote quantity. */
const MAX_MAGNITUDE = 2 ** 80;

/** Marks a value whose units float64 cannot hold exactly. */
const INEXACT = -1;

export interface RowReaderOptions {
  /** Every error names it. */
  readonly document: string;
  readonly columns: readonly string[];
  /** Most digits from the first that is not 0; programs print a float64 with at most 17. Default: no limit. */
  readonly maxSignificantDigits?: number;
}

export class RowReader {
  readonly document: string;
  columns: readonly string[];
  readonly #maxDigits: number;
  /** The line being read; the first is 1. */
  line = 0;
  /** Where the last cell ended. */
  at = 0;
  /** Where the last decimal began. */
  start = 0;
  /** The last decimal as a whole number of 1e-8, or INEXACT. */
  units = 0;
  /** The last decimal is digits / 10^scale; -1 where float64 does not hold its digits, or not that power of ten. */
  digits = 0;
  scale = 0;

  constructor(options: RowReaderOptions) {
    this.document = options.document;
    this.columns = options.columns;
    this.#maxDigits = options.maxSignificantDigits ?? Number.POSITIVE_INFINITY;
  }

  /** Reads a whole number at `p`. */
  integer(buffer: Buffer, p: number, column: number, maxDigits: number): number {
    let value = 0;
    let at = p;
    for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48) value = value * 10 + digit;
    if (at === p || at - p > maxDigits) throw this.badCell(buffer, p, column, 'must be a whole number');
    this.at = at;
    return value;
  }

  /**
   * Reads a positive decimal at `p` as float64. It reads a fixed-point decimal as an integer of 1e-8 units; a quotient
   * of two exact float64 integers is rounded correctly.
   */
  decimal(buffer: Buffer, p: number, column: number, zero: 'refused' | 'legal' = 'refused'): number {
    let units = 0;
    let at = p;
    this.start = p;
    for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48) units = units * 10 + digit;
    let decimals = 0;
    const point = at;
    if (buffer[at] === DOT) {
      at++;
      for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48) units = units * 10 + digit;
      decimals = at - point - 1;
    }
    if (decimals <= SCALE_DIGITS && isEnd(buffer[at]) && point > p && units > 0) {
      this.digits = units;
      this.scale = decimals;
      units *= POWERS_OF_TEN[SCALE_DIGITS - decimals];
      if (units < EXACT_UNITS) {
        this.at = at;
        this.units = units;
        return units / SCALE;
      }
    }
    return this.#unusualDecimal(buffer, p, column, zero);
  }

  /** Reads a positive decimal below 2^80 at `p`; it may be too large for exact units. */
  magnitude(buffer: Buffer, p: number, column: number): number {
    let mantissa = 0;
    let at = p;
    for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48)
      mantissa = mantissa * 10 + digit;
    const point = at;
    if (buffer[at] === DOT) {
      at++;
      for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48)
        mantissa = mantissa * 10 + digit;
    }
    const decimals = Math.max(0, at - point - 1);
    if (decimals <= MAX_SCALE && isEnd(buffer[at]) && point > p && mantissa > 0 && mantissa < MAX_EXACT) {
      this.at = at;
      return mantissa / POWERS_OF_TEN[decimals];
    }
    return this.#unusualDecimal(buffer, p, column, 'refused', 1);
  }

  #unusualDecimal(buffer: Buffer, p: number, column: number, zero: 'refused' | 'legal', unit = SCALE): number {
    // A loop instead of a regular expression: in some files every second number has 17 digits.
    let at = buffer[p] === PLUS ? p + 1 : p;
    const from = at;
    let digits = 0;
    let significant = 0;
    let point = -1;
    for (let byte = buffer[at]; (byte >= ZERO && byte <= NINE) || (byte === DOT && point < 0); byte = buffer[++at]) {
      if (byte === DOT) {
        point = at;
      } else if (significant > 0 || byte > ZERO) {
        significant++;
        digits = digits * 10 + byte - ZERO;
      }
    }
    let valid = at - from > (point < 0 ? 0 : 1);
    let scale = point < 0 ? 0 : at - point - 1;
    if ((buffer[at] | 0x20) === LETTER_E && valid) {
      at++;
      const sign = buffer[at] === MINUS ? -1 : 1;
      if (buffer[at] === PLUS || buffer[at] === MINUS) at++;
      const first = at;
      let exponent = 0;
      for (; buffer[at] >= ZERO && buffer[at] <= NINE; at++) exponent = exponent * 10 + buffer[at] - ZERO;
      valid = at > first && at - first <= 3;
      scale -= sign * exponent;
    }
    valid &&= isEnd(buffer[at]);
    const isExact = digits < MAX_EXACT && scale >= 0 && scale <= MAX_SCALE;
    let value = Number.NaN;
    if (valid) value = isExact ? digits / POWERS_OF_TEN[scale] : Number(buffer.toString('latin1', p, at));
    const isZero = valid && significant === 0;
    if (!(value > 0 && value < Number.POSITIVE_INFINITY) && !(isZero && zero === 'legal')) {
      throw this.badCell(buffer, p, column, `must be a decimal number ${zero === 'legal' ? 'of at least' : 'above'} 0`);
    }
    if (value >= (unit === SCALE ? MAX_VALUE : MAX_MAGNITUDE)) {
      throw this.badCell(buffer, p, column, `must be below ${unit === SCALE ? MAX_VALUE_TEXT : '2^80'}`);
    }
    if (significant > this.#maxDigits) {
      throw this.badCell(buffer, p, column, `must have at most ${this.#maxDigits} significant digits`);
    }
    this.at = at;
    this.units = isZero ? 0 : INEXACT;
    this.digits = isExact ? digits : -1;
    this.scale = scale;
    return value;
  }

  /** Reads one of the words, in any case. @returns its index. */
  word(buffer: Buffer, p: number, column: number, words: readonly string[]): number {
    for (let index = 0; index < words.length; index++) {
      const word = words[index];
      let length = 0;
      while (length < word.length && (buffer[p + length] | 0x20) === word.charCodeAt(length)) length++;
      if (length === word.length && isEnd(buffer[p + length])) {
        this.at = p + length;
        return index;
      }
    }
    throw this.badCell(buffer, p, column, `must be ${words.join(' or ')}`);
  }

  /** Expects exactly these bytes. */
  exactly(buffer: Buffer, p: number, column: number, expected: Buffer): void {
    let length = 0;
    while (length < expected.length && buffer[p + length] === expected[length]) length++;
    if (length < expected.length || !isEnd(buffer[p + length])) {
      throw this.badCell(buffer, p, column, `must be ${expected.toString('latin1')}`);
    }
    this.at = p + length;
  }

  /** Expects the comma after `column`. @returns the start of the next cell. */
  next(buffer: Buffer, column: number): number {
    const at = this.at;
    if (buffer[at] !== COMMA) {
      if (buffer[at] === LF || buffer[at] === CR) throw this.columnCount(buffer, at);
      throw this.badCell(buffer, at, column, 'is not a value of this column');
    }
    return at + 1;
  }

  /** Expects the end of the row that began at `start`, after its last column. @returns where its CR or LF is. */
  endOfRow(buffer: Buffer, start: number, column: number): number {
    const end = this.at;
    if (buffer[end] !== LF && !(buffer[end] === CR && buffer[end + 1] === LF)) {
      if (buffer[end] === COMMA) throw this.columnCount(buffer, start);
      throw this.badCell(buffer, end, column, 'must be followed by the end of the row');
    }
    // This limit is also the space that a frame's buffer reserves beyond its size.
    if (end - start > MAX_ROW_BYTES) throw this.tooLong();
    return end;
  }

  /** Leading zeros are refused: a lookup finds an event by its offset as written. */
  noLeadingZero(buffer: Buffer, start: number, column: number): void {
    if (buffer[start] === ZERO && this.at - start > 1) {
      throw this.badCell(buffer, start, column, 'must have no leading zeros');
    }
  }

  tooLong(): TidemarkError {
    return this.fault(`the row is longer than ${MAX_ROW_BYTES} bytes`);
  }

  columnCount(buffer: Buffer, inRow: number): TidemarkError {
    const start = buffer.lastIndexOf(LF, Math.max(0, inRow - 1)) + 1;
    const end = buffer.indexOf(LF, inRow);
    const row = buffer.toString('latin1', start, end < 0 ? buffer.length : end);
    const found = row.split(',').length;
    return this.fault(`the row has ${found} columns, expected ${this.columns.length}`, {
      found,
    });
  }

  badCell(buffer: Buffer, start: number, column: number, rule: string): TidemarkError {
    let end = start;
    while (end < buffer.length && end - start < 40 && ![COMMA, LF, CR].includes(buffer[end])) end++;
    const value = buffer.toString('latin1', start, end);
    return this.fault(`${this.columns[column]} ${rule}, found ${JSON.stringify(value)}`, {
      column: this.columns[column],
      found: value,
    });
  }

  /** The error for a row whose time is outside the document's window. */
  outside(ms: number, day: string): TidemarkError {
    const at = new Date(ms);
    const shown = Number.isNaN(at.getTime()) ? `${ms} ms` : at.toISOString();
    return this.fault(`the time ${shown} is outside the document's ${day}`, {
      time_ms: ms,
    });
  }

  fault(why: string, details: Record<string, string | number> = {}): TidemarkError {
    const { document, line } = this;
    return new TidemarkError('SOURCE_DOCUMENT_INVALID', `${document}, line ${line}: ${why}`, {
      details: { document, line, ...details },
    });
  }
}

/** True for undefined too, the end of the bytes: no cell extends past it. */
const isEnd = (byte: number | undefined): boolean => byte === COMMA || byte === LF || byte === CR || byte === undefined;

/** Adds a decimal's exact units, or the rounded value that the database computes from its float64. */
export function addTo(total: ExactTotal, units: number, value: number): void {
  if (units === INEXACT) total.addFloat(value, SCALE);
  else total.add(units);
}

/** The taker's side: any case in the files, lower case in storage. */
export const TAKER_SIDES = ['buy', 'sell'] as const;

/** Both sides prepared for the row hash, by index. */
export const HASHED_TAKER_SIDES = TAKER_SIDES.map(knownText);

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

/** Most bytes of an unknown header that a message shows. */
const SHOWN_BYTES = 120;

/**
 * Reads the header row and gives its columns to the reader; rows must have as many.
 * @returns the start of the second line.
 * @throws TidemarkError SOURCE_DOCUMENT_INVALID; its message names the expected columns.
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
    throw reader.fault(`the header must be ${expected}, found ${found}`, { found: text });
  }
  reader.columns = columns;
  return end + 1;
}

/** The publisher validates rows before it frames them, so an unreadable row means a corrupt frame. */
export function malformed(raw: Buffer, start: number): TidemarkError {
  const row = raw.toString('latin1', start, Math.min(raw.length, start + 80)).split('\n')[0];
  return new TidemarkError('LOG_DAMAGED', `A frame holds a row that is not a trade: ${JSON.stringify(row)}`);
}

/**
 * Checks a frame's row count against its bytes, so that a false header cannot make the reader allocate without limit.
 */
export function checkRowCount(raw: Buffer, rows: number, minRowBytes: number): void {
  if (Number.isInteger(rows) && rows >= 1 && rows * minRowBytes <= raw.length) return;
  throw new TidemarkError('LOG_DAMAGED', `A frame of ${raw.length} bytes cannot hold ${rows} trades`);
}
