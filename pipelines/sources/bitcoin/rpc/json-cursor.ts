/**
 * Reads JSON in one pass over its bytes, without a tree: of a block of 6.6 MB most is skipped or copied. Reading and checking
 * it takes 21 ms of processor time and 31 MiB; `JSON.parse` with the source text of numbers takes 67 ms and 232 MiB for the
 * tree alone (docs/dependencies.md). Callers get numbers as the bytes that the node wrote. Skipped values are not validated.
 */
import { assert } from '../../../../shared/errors.ts';
import { sats as satsOfText, unfit } from './answers.ts';

const QUOTE = 0x22;
const [BACKSLASH, COMMA, COLON] = [0x5c, 0x2c, 0x3a];
const [OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST] = [0x7b, 0x7d, 0x5b, 0x5d];
const SPACE = 0x20;

/** Bytes that end a bare number or word. */
const ENDS_WORD = new Uint8Array(256);
for (const letter of ' \t\r\n,:{}[]"') ENDS_WORD[letter.charCodeAt(0)] = 1;

const LONGEST_KEY = 31;

/** The members of an object that are read. Recognises their names in the bytes without making strings of them. */
export class JsonMembers<Name extends string> {
  readonly #names: readonly Name[];
  readonly #bytes: readonly Buffer[];
  /** By length and first letter: the index of the first such name, plus one; `#next` holds the one after it. */
  readonly #first = new Uint8Array((LONGEST_KEY + 1) * 256);
  readonly #next: number[] = [];

  constructor(...names: readonly Name[]) {
    this.#names = names;
    this.#bytes = names.map((name) => Buffer.from(name));
    for (const [index, name] of this.#bytes.entries()) {
      assert(name.length > 0 && name.length <= LONGEST_KEY, `${name} fits the table of names`);
      const slot = name.length * 256 + name[0];
      this.#next[index] = this.#first[slot];
      this.#first[slot] = index + 1;
    }
  }

  /** The member whose name the cursor has read; undefined for one that is not among these. */
  nameAt({ bytes, start, end }: JsonCursor): Name | undefined {
    const length = end - start;
    if (length > LONGEST_KEY || length === 0) return undefined;
    for (let number = this.#first[length * 256 + bytes[start]]; number > 0; number = this.#next[number - 1]) {
      const name = this.#bytes[number - 1];
      let at = 1;
      while (at < length && name[at] === bytes[start + at]) at++;
      if (at === length) return this.#names[number - 1];
    }
    return undefined;
  }
}

export class JsonCursor {
  readonly bytes: Buffer;
  at = 0;
  /** The range of the last string or word, without quotes. */
  start = 0;
  end = 0;
  /** Whether the last string has escapes. */
  escaped = false;
  /** True directly after the opening bracket of an object or list. */
  #opened = false;

  constructor(bytes: Buffer) {
    this.bytes = bytes;
  }

  /** The next byte that is not white space, without consuming it. @throws SyntaxError at the end of the bytes */
  peek(): number {
    const { bytes } = this;
    let { at } = this;
    while (at < bytes.length && bytes[at] <= SPACE) at++;
    this.at = at;
    if (at >= bytes.length) throw this.fault('it ends too early');
    return bytes[at];
  }

  fault(what: string): SyntaxError {
    return new SyntaxError(`${what} at byte ${this.at} of ${this.bytes.length}`);
  }

  object(): void {
    this.#open(OPEN_OBJECT);
  }

  list(): void {
    this.#open(OPEN_LIST);
  }

  get isObject(): boolean {
    return this.peek() === OPEN_OBJECT;
  }

  get isList(): boolean {
    return this.peek() === OPEN_LIST;
  }

  get isString(): boolean {
    return this.peek() === QUOTE;
  }

  /** Steps to the next member: its name is [start, end), its value follows. @returns false at the object's end */
  member(): boolean {
    if (!this.#step(CLOSE_OBJECT)) return false;
    this.string();
    if (this.peek() !== COLON) throw this.fault('a name has no value');
    this.at++;
    return true;
  }

  /** Steps to the next item, whose value follows. @returns false at the list's end */
  item(): boolean {
    return this.#step(CLOSE_LIST);
  }

  string(): void {
    if (this.peek() !== QUOTE) throw this.fault('a string is missing');
    const { bytes } = this;
    const { length } = bytes;
    let at = this.at + 1;
    this.start = at;
    this.escaped = false;
    for (; at < length; at++) {
      const byte = bytes[at];
      if (byte === QUOTE) {
        this.end = at;
        this.at = at + 1;
        return;
      }
      if (byte === BACKSLASH) {
        this.escaped = true;
        at++;
      }
    }
    this.at = length;
    throw this.fault('a string does not end');
  }

  /** Reads a string that is usually long and without escapes. */
  longString(): void {
    if (this.peek() !== QUOTE) throw this.fault('a string is missing');
    const start = this.at + 1;
    const end = this.bytes.indexOf(QUOTE, start);
    if (end < 0) {
      this.at = this.bytes.length;
      throw this.fault('a string does not end');
    }
    this.start = start;
    this.end = end;
    this.at = end + 1;
    this.escaped = false;
  }

  /** Reads a number, true, false or null. */
  word(): void {
    this.peek();
    const { bytes } = this;
    let { at } = this;
    while (at < bytes.length && ENDS_WORD[bytes[at]] === 0) at++;
    if (at === this.at) throw this.fault('a value is missing');
    if (at === bytes.length) throw this.fault('it ends too early');
    this.start = this.at;
    this.end = at;
    this.at = at;
    this.escaped = false;
  }

  /** Reads a string or a word: nodes write numbers as either. */
  scalar(): void {
    if (this.isString) this.string();
    else this.word();
  }

  /** Skips the next value, of any kind. */
  skip(): void {
    const byte = this.peek();
    if (byte !== OPEN_OBJECT && byte !== OPEN_LIST) {
      this.scalar();
      return;
    }
    const { bytes } = this;
    const { length } = bytes;
    let depth = 0;
    for (let { at } = this; at < length; at++) {
      const next = bytes[at];
      if (next === QUOTE) {
        for (at++; at < length && bytes[at] !== QUOTE; at++) if (bytes[at] === BACKSLASH) at++;
      } else if (next === OPEN_OBJECT || next === OPEN_LIST) depth++;
      else if ((next === CLOSE_OBJECT || next === CLOSE_LIST) && --depth === 0) {
        this.at = at + 1;
        this.#opened = false;
        return;
      }
    }
    this.at = length;
    throw this.fault('it ends too early');
  }

  /** Checks that only white space follows. */
  finish(): void {
    const { bytes } = this;
    while (this.at < bytes.length && bytes[this.at] <= SPACE) this.at++;
    if (this.at < bytes.length) throw this.fault('more bytes follow');
  }

  #open(bracket: number): void {
    if (this.peek() !== bracket) throw this.fault('the value is of another kind');
    this.at++;
    this.#opened = true;
  }

  #step(closing: number): boolean {
    const opened = this.#opened;
    this.#opened = false;
    const byte = this.peek();
    if (byte === closing) {
      this.at++;
      return false;
    }
    if (opened) return true;
    if (byte !== COMMA) throw this.fault('a comma is missing');
    this.at++;
    if (this.peek() === closing) throw this.fault('nothing follows a comma');
    return true;
  }
}

const [POINT, MINUS, ZERO] = [0x2e, 0x2d, 0x30];
const MAX_DIGITS = 16;
/** Decimals of an amount as nodes write it. */
const DECIMALS = 8;

/** Lower-case hexadecimal digits. */
const IS_HEX = new Uint8Array(256);
for (const letter of '0123456789abcdef') IS_HEX[letter.charCodeAt(0)] = 1;

/** The current text, for a message. */
export const shown = (cursor: JsonCursor): string => cursor.bytes.toString('utf8', cursor.start, cursor.end);

export function enterObject(cursor: JsonCursor, where: string): void {
  if (!cursor.isObject) throw unfitValue(cursor, where, 'an object');
  cursor.object();
}

export function enterList(cursor: JsonCursor, where: string): void {
  if (!cursor.isList) throw unfitValue(cursor, where, 'a list');
  cursor.list();
}

/** Checks that [cursor.start, cursor.end) is lower-case hex of whole bytes, `bytes` of them if given. */
export function hexAt(cursor: JsonCursor, where: string, bytes?: number): void {
  if (!cursor.isString) throw unfitValue(cursor, where, 'hex');
  const source = cursor.bytes;
  const start = cursor.at + 1;
  let end = start;
  while (end < source.length && IS_HEX[source[end]] === 1) end++;
  const length = end - start;
  if (source[end] === QUOTE && length % 2 === 0 && (bytes === undefined || length === 2 * bytes)) {
    cursor.start = start;
    cursor.end = end;
    cursor.at = end + 1;
    return;
  }
  cursor.string();
  throw unfit(where, bytes === undefined ? 'hex' : `${bytes} bytes of hex`, shown(cursor));
}

export function hexTextAt(cursor: JsonCursor, where: string, bytes: number): string {
  hexAt(cursor, where, bytes);
  return cursor.bytes.toString('latin1', cursor.start, cursor.end);
}

/** Checks that [cursor.start, cursor.end) is a text that can be copied unchanged. */
export function plainTextAt(cursor: JsonCursor, where: string): void {
  if (!cursor.isString) throw unfitValue(cursor, where, 'a text');
  cursor.string();
  if (cursor.escaped) throw unfit(where, 'a text without escapes', shown(cursor));
}

export function flagAt(cursor: JsonCursor, where: string): boolean {
  scalarAt(cursor, where, 'true or false');
  const written = shown(cursor);
  if (written !== 'true' && written !== 'false') throw unfit(where, 'true or false', written);
  return written === 'true';
}

/** A whole number within [least, most], at most 2^53. */
export function integerAt(
  cursor: JsonCursor,
  where: string,
  least = 0,
  most: number = Number.MAX_SAFE_INTEGER,
): number {
  scalarAt(cursor, where, 'a whole number');
  const { bytes, start, end } = cursor;
  const negative = bytes[start] === MINUS;
  const from = negative ? start + 1 : start;
  let value = 0;
  let fits = from < end && end - from <= MAX_DIGITS;
  for (let at = from; fits && at < end; at++) {
    const digit = bytes[at] - ZERO;
    fits = digit >= 0 && digit <= 9;
    value = value * 10 + digit;
  }
  if (!fits) throw unfit(where, 'a whole number', shown(cursor));
  if (negative) value = 0 - value;
  if (value < least || value > most) throw unfit(where, `a whole number from ${least} to ${most}`, shown(cursor));
  return value;
}

/** An amount in bitcoins, as satoshis, computed from the digits [cursor.start, cursor.end). */
export function satsAt(cursor: JsonCursor, where: string): number {
  scalarAt(cursor, where, 'an amount');
  if (!isPlainAmount(cursor)) return satsOfText(shown(cursor), where);
  const { bytes, start, end } = cursor;
  let value = 0;
  for (let at = start; at < end; at++) if (bytes[at] !== POINT) value = value * 10 + (bytes[at] - ZERO);
  // Sixteen digits are exact. The slower reading reports an amount that is too large.
  return value > 2_100_000_000_000_000 ? satsOfText(shown(cursor), where) : value;
}

/** Whether [cursor.start, cursor.end) are digits with a point before the last eight, which is also the stored form. */
export function isPlainAmount({ bytes, start, end }: JsonCursor): boolean {
  const point = end - DECIMALS - 1;
  if (point <= start || point - start > 8 || bytes[point] !== POINT) return false;
  if (bytes[start] === ZERO && point - start > 1) return false;
  for (let at = start; at < end; at++) {
    const digit = bytes[at] - ZERO;
    if (at !== point && !(digit >= 0 && digit <= 9)) return false;
  }
  return true;
}

function scalarAt(cursor: JsonCursor, where: string, wanted: string): void {
  if (cursor.isObject || cursor.isList) throw unfitValue(cursor, where, wanted);
  cursor.scalar();
}

/** The error for a value of the wrong kind. */
function unfitValue(cursor: JsonCursor, where: string, wanted: string) {
  const from = cursor.peek() === undefined ? 0 : cursor.at;
  cursor.skip();
  return unfit(where, wanted, cursor.bytes.toString('utf8', from, Math.min(cursor.at, from + 80)));
}
