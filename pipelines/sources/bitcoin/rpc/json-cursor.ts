/**
 * JSON read in one pass over its bytes, without making a tree of it: a block is 5 MB of JSON of which most is skipped or
 * copied. Numbers are handed over as the bytes they are written as. What is skipped is not looked at closely.
 */
import { assert } from '../../../../shared/errors.ts';

const [QUOTE, BACKSLASH, COMMA, COLON] = [0x22, 0x5c, 0x2c, 0x3a];
const [OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST] = [0x7b, 0x7d, 0x5b, 0x5d];
const SPACE = 0x20;

/** What ends a bare number or word. */
const ENDS_WORD = new Uint8Array(256);
for (const letter of ' \t\r\n,:{}[]"') ENDS_WORD[letter.charCodeAt(0)] = 1;

const LONGEST_KEY = 31;

/** Names of members, each known by its place in the list. */
export class JsonKeys {
  readonly #names: readonly Buffer[];
  /** Place of the first name of a length and first letter, and of the next one alike, plus one. */
  readonly #first = new Uint8Array((LONGEST_KEY + 1) * 256);
  readonly #next: number[] = [];

  constructor(names: readonly string[]) {
    this.#names = names.map((name) => Buffer.from(name));
    for (const [place, name] of this.#names.entries()) {
      assert(name.length > 0 && name.length <= LONGEST_KEY, `${name} is a name to look for`);
      const slot = name.length * 256 + name[0];
      this.#next[place] = this.#first[slot];
      this.#first[slot] = place + 1;
    }
  }

  /** The place of the name that the bytes are, or -1. */
  placeOf(bytes: Uint8Array, start: number, end: number): number {
    const length = end - start;
    if (length > LONGEST_KEY || length === 0) return -1;
    for (let place = this.#first[length * 256 + bytes[start]]; place > 0; place = this.#next[place - 1]) {
      const name = this.#names[place - 1];
      let at = 1;
      while (at < length && name[at] === bytes[start + at]) at++;
      if (at === length) return place - 1;
    }
    return -1;
  }
}

export class JsonCursor {
  readonly bytes: Buffer;
  at = 0;
  /** The string or word read last, without its quotes. */
  start = 0;
  end = 0;
  /** Whether it holds escapes. */
  escaped = false;
  /** Right after the opening of an object or a list. */
  #opened = false;

  constructor(bytes: Buffer) {
    this.bytes = bytes;
  }

  /** The next byte that is no white space; it stays. @throws SyntaxError at the end of the bytes */
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

  /** Steps to the next member, whose value follows; its name is [start, end). @returns false at the object's end */
  member(): boolean {
    if (!this.#step(CLOSE_OBJECT)) return false;
    this.string();
    if (this.peek() !== COLON) throw this.fault('a name has no value');
    this.at++;
    return true;
  }

  /** Steps to the next item, which follows. @returns false at the list's end */
  item(): boolean {
    return this.#step(CLOSE_LIST);
  }

  string(): void {
    if (this.peek() !== QUOTE) throw this.fault('a text is missing');
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
    throw this.fault('a text does not end');
  }

  /** A string that is long as a rule, and has no escapes. */
  longString(): void {
    if (this.peek() !== QUOTE) throw this.fault('a text is missing');
    const start = this.at + 1;
    const end = this.bytes.indexOf(QUOTE, start);
    if (end < 0) {
      this.at = this.bytes.length;
      throw this.fault('a text does not end');
    }
    this.start = start;
    this.end = end;
    this.at = end + 1;
    this.escaped = false;
  }

  /** A number, true, false or null. */
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

  /** A string, or a word: numbers are written either way. */
  scalar(): void {
    if (this.isString) this.string();
    else this.word();
  }

  /** Past the next value, whatever it is. */
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

  /** Nothing but white space may follow. */
  finish(): void {
    const { bytes } = this;
    while (this.at < bytes.length && bytes[this.at] <= SPACE) this.at++;
    if (this.at < bytes.length) throw this.fault('more follows');
  }

  #open(bracket: number): void {
    if (this.peek() !== bracket) throw this.fault('another kind of value is there');
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
