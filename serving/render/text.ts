/**
 * Writers of numbers, texts and times as bytes. Digits come from tables: writing four digits as one 32-bit store is what keeps
 * a row of eight cells at 0.25 us. Every writer may store up to 8 bytes past the position it returns; the buffer's slack
 * covers that.
 */
import { POSTGRES_EPOCH_MS } from '../db/pg-messages.ts';
import { CELL, type Cell } from './cells.ts';

/** The four ASCII digits of 0..9999, most significant first in memory. */
const QUADS = new Uint32Array(10_000);
/** How many of the four digits remain without trailing zeros. */
const SIGNIFICANT = new Uint8Array(10_000);
/** The two ASCII digits of 0..99, as a little-endian 16-bit store. */
const PAIRS = new Uint16Array(100);

for (let n = 0; n < 10_000; n++) {
  const text = String(n).padStart(4, '0');
  QUADS[n] = text.charCodeAt(0) | (text.charCodeAt(1) << 8) | (text.charCodeAt(2) << 16) | (text.charCodeAt(3) << 24);
  SIGNIFICANT[n] = text.replace(/0+$/, '').length;
}
for (let n = 0; n < 100; n++) {
  const text = String(n).padStart(2, '0');
  PAIRS[n] = text.charCodeAt(0) | (text.charCodeAt(1) << 8);
}

/** Writes 0..9999 without leading zeros. */
function writeHead(view: DataView, at: number, n: number): number {
  const digits = n < 100 ? (n < 10 ? 1 : 2) : n < 1000 ? 3 : 4;
  view.setUint32(at, QUADS[n] >>> (8 * (4 - digits)), true);
  return at + digits;
}

/** Writes an integer 0..2^31-1. */
function writeSmall(view: DataView, at: number, n: number): number {
  if (n < 10_000) return writeHead(view, at, n);
  const high = (n / 10_000) | 0;
  const low = n - high * 10_000;
  if (high < 10_000) {
    const next = writeHead(view, at, high);
    view.setUint32(next, QUADS[low], true);
    return next + 4;
  }
  const top = (high / 10_000) | 0;
  const next = writeHead(view, at, top);
  view.setUint32(next, QUADS[high - top * 10_000], true);
  view.setUint32(next + 4, QUADS[low], true);
  return next + 8;
}

/** Writes exactly eight digits of 0..99,999,999. */
function writeEight(view: DataView, at: number, n: number): void {
  const high = (n / 10_000) | 0;
  view.setUint32(at, QUADS[high], true);
  view.setUint32(at + 4, QUADS[n - high * 10_000], true);
}

/** Writes an integer of at most 2^53, of either sign. @returns the position after it. */
function writeInteger(view: DataView, at: number, value: number): number {
  let n = value;
  let next = at;
  if (n < 0) {
    view.setUint8(next++, 0x2d);
    n = -n;
  }
  if (n <= 0x7fffffff) return writeSmall(view, next, n);
  const high = Math.floor(n / 1e8);
  const low = n - high * 1e8;
  if (high > 0x7fffffff) {
    const top = Math.floor(high / 1e8);
    next = writeSmall(view, next, top);
    writeEight(view, next, high - top * 1e8);
    next += 8;
  } else {
    next = writeSmall(view, next, high);
  }
  writeEight(view, next, low);
  return next + 8;
}

/** Writes short ASCII text byte by byte. */
function writeAscii(view: DataView, at: number, text: string): number {
  for (let i = 0; i < text.length; i++) view.setUint8(at + i, text.charCodeAt(i));
  return at + text.length;
}

/** Writes any int8, given as its two halves. */
export function writeInt64(view: DataView, at: number, high: number, low: number): number {
  const value = high * 4294967296 + low;
  if (value >= -9007199254740991 && value <= 9007199254740991) return writeInteger(view, at, value);
  return writeAscii(view, at, ((BigInt(high) << 32n) + BigInt(low)).toString());
}

/**
 * Writes a float64 exactly as JSON.stringify does. Nearly every market value is k / 10^8 with at most 15 digits. Such a decimal
 * is the shortest text of its double, because two decimals of at most 15 digits never share one.
 */
export function writeFloat(view: DataView, at: number, value: number): number {
  let v = value;
  let next = at;
  if (v < 0) {
    view.setUint8(next++, 0x2d);
    v = -v;
  }
  const whole = v | 0;
  if (v === whole) return writeSmall(view, v === 0 ? at : next, whole);
  // Below 1e-6 the text has an exponent; from 10^7 on there may be more than 15 digits.
  if (v >= 1e-6 && v < 1e7) {
    const units = Math.floor(v * 1e8 + 0.5);
    if (units / 1e8 === v) {
      next = writeSmall(view, next, whole);
      view.setUint8(next++, 0x2e);
      const fraction = units - whole * 1e8;
      const high = (fraction / 10_000) | 0;
      const low = (fraction - high * 10_000) | 0;
      view.setUint32(next, QUADS[high], true);
      if (low === 0) return next + SIGNIFICANT[high];
      view.setUint32(next + 4, QUADS[low], true);
      return next + 4 + SIGNIFICANT[low];
    }
  } else if (v >= 1e7 && v < 1e11) {
    // Sums of amounts have fewer decimals and are longer: k / 10^4 again has at most 15 digits.
    const units = Math.floor(v * 1e4 + 0.5);
    if (units / 1e4 === v) {
      const integer = Math.floor(units / 1e4);
      const fraction = units - integer * 1e4;
      next = writeInteger(view, next, integer);
      if (fraction === 0) return next;
      view.setUint8(next, 0x2e);
      view.setUint32(next + 1, QUADS[fraction], true);
      return next + 1 + SIGNIFICANT[fraction];
    }
  }
  // String() takes half as long again where every value is another one. NaN and the infinities are null.
  return writeAscii(view, at, JSON.stringify(value));
}

/** Writes a non-null cell of a number type. @returns the position after it. */
export function writeNumber(cell: Cell, to: DataView, at: number, view: DataView, from: number): number {
  switch (cell) {
    case CELL.int8:
      return writeInt64(to, at, view.getInt32(from), view.getUint32(from + 4));
    case CELL.float8:
      return writeFloat(to, at, view.getFloat64(from));
    case CELL.bool:
      to.setUint8(at, 0x30 + view.getUint8(from));
      return at + 1;
    case CELL.int4:
      return writeInteger(to, at, view.getInt32(from));
    case CELL.int2:
      return writeInteger(to, at, view.getInt16(from));
  }
  throw new TypeError(`a cell of kind ${cell} is not a number`);
}

/** Escapes of JSON texts as JSON.stringify writes them. 0: no escape; otherwise the letter after the backslash, `u` for \u00XX. */
const ESCAPES = new Uint8Array(256);
for (let byte = 0; byte < 0x20; byte++) ESCAPES[byte] = 0x75;
for (const [byte, letter] of [
  ['\b', 'b'],
  ['\t', 't'],
  ['\n', 'n'],
  ['\f', 'f'],
  ['\r', 'r'],
  ['"', '"'],
  ['\\', '\\'],
]) {
  ESCAPES[byte.charCodeAt(0)] = letter.charCodeAt(0);
}
const HEX = Buffer.from('0123456789abcdef');

/** The most bytes that a text of `length` bytes takes as a JSON string, with its quotes. */
export const maxStringBytes = (length: number): number => length * 6 + 2;

/** Writes UTF-8 text as a JSON string. @returns the position after the closing quote. */
export function writeString(to: Uint8Array, at: number, from: Uint8Array, start: number, end: number): number {
  let next = at;
  to[next++] = 0x22;
  for (let i = start; i < end; i++) {
    const byte = from[i];
    const letter = ESCAPES[byte];
    if (letter === 0) {
      to[next++] = byte;
      continue;
    }
    to[next++] = 0x5c;
    to[next++] = letter;
    if (letter === 0x75) {
      to[next++] = 0x30;
      to[next++] = 0x30;
      to[next++] = HEX[byte >> 4];
      to[next++] = HEX[byte & 15];
    }
  }
  to[next++] = 0x22;
  return next;
}

const QUOTE = 0x22;
/** 1: a field with this byte needs quotes (RFC 4180). */
const NEEDS_QUOTES = new Uint8Array(256);
for (const byte of Buffer.from(',"\r\n')) NEEDS_QUOTES[byte] = 1;

const APOSTROPHE = 0x27;
/** 1: spreadsheets take a cell that begins with this byte for a formula. */
const BEGINS_FORMULA = new Uint8Array(256);
for (const byte of Buffer.from('=+-@\t\r')) BEGINS_FORMULA[byte] = 1;

/** The most bytes that a text of `length` bytes takes as a CSV field. */
export const maxCsvBytes = (length: number): number => length * 2 + 3;

/**
 * Writes a CSV field. Empty text is `""`, because an empty field means null.
 * @param escapeFormulas puts an apostrophe before a text that a spreadsheet would take for a formula
 * @returns the position after it.
 */
export function writeCsvText(
  to: Uint8Array,
  at: number,
  from: Uint8Array,
  start: number,
  end: number,
  escapeFormulas = false,
): number {
  let next = at;
  let plain = start < end;
  const isEscaped = escapeFormulas && plain && BEGINS_FORMULA[from[start]] === 1;
  if (isEscaped) to[next++] = APOSTROPHE;
  for (let i = start; plain && i < end; i++) {
    const byte = from[i];
    to[next++] = byte;
    plain = NEEDS_QUOTES[byte] === 0;
  }
  if (plain) return next;
  next = at;
  to[next++] = QUOTE;
  if (isEscaped) to[next++] = APOSTROPHE;
  for (let i = start; i < end; i++) {
    const byte = from[i];
    if (byte === QUOTE) to[next++] = QUOTE;
    to[next++] = byte;
  }
  to[next++] = QUOTE;
  return next;
}

export const UUID_BYTES = 36;

/** Writes the 16 bytes at `start` as `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`. */
export function writeUuid(to: Uint8Array, at: number, from: Uint8Array, start: number): number {
  let next = at;
  for (let i = 0; i < 16; i++) {
    if (i === 4 || i === 6 || i === 8 || i === 10) to[next++] = 0x2d;
    to[next++] = HEX[from[start + i] >> 4];
    to[next++] = HEX[from[start + i] & 15];
  }
  return next;
}

const DAY_SECONDS = 86_400;
/** 0000-01-01 and 10000-01-01: between them a year has four digits. */
const FIRST_SECOND = -62_167_219_200;
const LAST_SECOND = 253_402_300_800;

export const TIMESTAMP_BYTES = 24;

/** Writes `YYYY-MM-DDTHH:MM:SS.mmmZ`, 24 bytes. It caches the text of the last second, since rows come in order of time. */
export class TimestampWriter {
  readonly #bytes = new DataView(new ArrayBuffer(TIMESTAMP_BYTES));
  #second = Number.NaN;
  #day = Number.NaN;
  // The bytes above as stores of 8, 8 and 4. ASCII text is never the bit pattern of a NaN, so doubles hold it unchanged.
  #first = 0;
  #middle = 0;
  #last = 0;

  /** @returns the position after the 24 bytes. */
  write(view: DataView, at: number, ms: number): number {
    const second = Math.floor(ms / 1000);
    if (second !== this.#second) {
      if (!(second >= FIRST_SECOND && second < LAST_SECOND)) return writeAscii(view, at, new Date(ms).toISOString());
      this.#move(second);
    }
    view.setFloat64(at, this.#first, true);
    view.setFloat64(at + 8, this.#middle, true);
    view.setUint32(at + 16, this.#last, true);
    // The store starts one byte early; the next line writes the point over its leading zero.
    view.setUint32(at + 19, QUADS[ms - second * 1000], true);
    view.setUint8(at + 19, 0x2e);
    view.setUint8(at + 23, 0x5a);
    return at + TIMESTAMP_BYTES;
  }

  #move(second: number): void {
    const bytes = this.#bytes;
    const day = Math.floor(second / DAY_SECONDS);
    if (day !== this.#day) {
      const text = new Date(day * DAY_SECONDS * 1000).toISOString();
      for (let i = 0; i < TIMESTAMP_BYTES; i++) bytes.setUint8(i, text.charCodeAt(i));
      this.#day = day;
    }
    const inDay = second - day * DAY_SECONDS;
    const hour = (inDay / 3600) | 0;
    const minute = ((inDay - hour * 3600) / 60) | 0;
    bytes.setUint16(11, PAIRS[hour], true);
    bytes.setUint16(14, PAIRS[minute], true);
    bytes.setUint16(17, PAIRS[inDay - hour * 3600 - minute * 60], true);
    this.#second = second;
    this.#first = bytes.getFloat64(0, true);
    this.#middle = bytes.getFloat64(8, true);
    this.#last = bytes.getUint32(16, true);
  }
}

/** The milliseconds of a timestamptz. It counts microseconds from 2000; from 2285 on a double cannot hold their number. */
export function readTimestamptzMs(view: DataView, at: number): number {
  const high = view.getInt32(at);
  const low = view.getUint32(at + 4);
  // 2^32 is 4,294,967 thousands and 296.
  return high * 4_294_967 + Math.floor((high * 296 + low) / 1000) + POSTGRES_EPOCH_MS;
}
