/**
 * A strict JSON parser for requests. `JSON.parse` does not report where a fault is, silently takes the last of two equal
 * keys, and rounds integers above 2^53.
 */

export type Json = null | boolean | number | bigint | string | readonly Json[] | JsonObject;
/** An object without a prototype, so that `__proto__` is a key like any other. */
export interface JsonObject {
  readonly [key: string]: Json;
}

export class JsonFault extends Error {
  override readonly name = 'JsonFault';
  /** UTF-16 offset in the text. */
  readonly offset: number;

  constructor(offset: number, what: string) {
    super(`${what} at offset ${offset}`);
    this.offset = offset;
  }
}

/** The text exceeds a limit of the parser; it may be valid JSON. */
export class JsonLimit extends JsonFault {
  constructor(offset: number, what: string) {
    super(offset, `${what},`);
  }
}

/** Nesting limit. No request needs as much, and the parser recurses. */
const MAX_DEPTH = 32;
/** Limit of keys over all objects of a text. No request has as many; 95,000 keys block the event loop for half a second. */
const MAX_KEYS = 1000;
/**
 * Longest integer that is parsed exactly. A longer one exceeds every float64 and becomes an infinity, which no field
 * accepts. Parsing a million digits exactly blocks the event loop for 0.7 s.
 */
const MAX_INTEGER_LENGTH = 310;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON forbids control characters within strings
const PLAIN_TEXT = /[^"\\\u0000-\u001f]*/y;
const ESCAPED: Readonly<Record<string, string>> = {
  '"': '"',
  '\\': '\\',
  '/': '/',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
};

/**
 * Parses a text. Integers above 2^53 become bigint, all other numbers number; `1.0` is 1.
 * @throws JsonFault
 */
export function parseJson(text: string): Json {
  const parser = new Parser(text);
  const value = parser.value(0);
  parser.end();
  return value;
}

const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown };

/** Writes what `parseJson` read: integers above 2^53 have all their digits. */
export const writeJson = (value: unknown): string =>
  JSON.stringify(value, (_, member) => (typeof member === 'bigint' ? rawJSON(String(member)) : member));

class Parser {
  readonly #text: string;
  #at = 0;
  #keys = 0;

  constructor(text: string) {
    this.#text = text;
  }

  value(depth: number): Json {
    if (depth > MAX_DEPTH) throw new JsonLimit(this.#at, `nesting deeper than ${MAX_DEPTH} levels`);
    this.#space();
    switch (this.#text[this.#at]) {
      case '{':
        return this.#object(depth);
      case '[':
        return this.#array(depth);
      case '"':
        return this.#string();
      case 't':
        return this.#word('true', true);
      case 'f':
        return this.#word('false', false);
      case 'n':
        return this.#word('null', null);
      default:
        return this.#number();
    }
  }

  end(): void {
    this.#space();
    if (this.#at < this.#text.length) throw this.#unexpected();
  }

  #object(depth: number): JsonObject {
    const object: Record<string, Json> = Object.create(null);
    this.#at++;
    this.#space();
    if (this.#text[this.#at] === '}') {
      this.#at++;
      return object;
    }
    for (;;) {
      this.#space();
      const start = this.#at;
      if (this.#text[start] !== '"') throw this.#unexpected();
      if (++this.#keys > MAX_KEYS) throw new JsonLimit(start, `more than ${MAX_KEYS} keys`);
      const key = this.#string();
      if (key in object) throw new JsonFault(start, `the key ${JSON.stringify(key)} appears a second time`);
      this.#space();
      this.#expect(':');
      object[key] = this.value(depth + 1);
      this.#space();
      if (this.#text[this.#at] === ',') this.#at++;
      else {
        this.#expect('}');
        return object;
      }
    }
  }

  #array(depth: number): Json[] {
    const array: Json[] = [];
    this.#at++;
    this.#space();
    if (this.#text[this.#at] === ']') {
      this.#at++;
      return array;
    }
    for (;;) {
      array.push(this.value(depth + 1));
      this.#space();
      if (this.#text[this.#at] === ',') this.#at++;
      else {
        this.#expect(']');
        return array;
      }
    }
  }

  #string(): string {
    const parts: string[] = [];
    this.#at++;
    for (;;) {
      PLAIN_TEXT.lastIndex = this.#at;
      const plain = PLAIN_TEXT.exec(this.#text)![0];
      this.#at += plain.length;
      const next = this.#text[this.#at];
      if (next === '"') {
        this.#at++;
        return parts.length === 0 ? plain : parts.join('') + plain;
      }
      if (next !== '\\') throw this.#unexpected();
      parts.push(plain, this.#escape());
    }
  }

  #escape(): string {
    const letter = this.#text[this.#at + 1];
    if (letter === 'u') {
      const digits = this.#text.slice(this.#at + 2, this.#at + 6);
      if (!/^[0-9a-fA-F]{4}$/.test(digits)) throw new JsonFault(this.#at, 'an incomplete \\u escape');
      this.#at += 6;
      return String.fromCharCode(Number.parseInt(digits, 16));
    }
    const character = letter === undefined ? undefined : ESCAPED[letter];
    if (character === undefined) throw new JsonFault(this.#at, 'an unknown escape');
    this.#at += 2;
    return character;
  }

  #number(): number | bigint {
    NUMBER.lastIndex = this.#at;
    const match = NUMBER.exec(this.#text);
    if (!match) throw this.#unexpected();
    this.#at += match[0].length;
    const [digits] = match;
    const value = Number(digits);
    const isExact = Number.isSafeInteger(value) || digits.length > MAX_INTEGER_LENGTH || !/^-?\d+$/.test(digits);
    return isExact ? value : BigInt(digits);
  }

  #word<T extends Json>(word: string, value: T): T {
    if (!this.#text.startsWith(word, this.#at)) throw this.#unexpected();
    this.#at += word.length;
    return value;
  }

  #expect(character: string): void {
    if (this.#text[this.#at] !== character) throw this.#unexpected();
    this.#at++;
  }

  #space(): void {
    for (; ; this.#at++) {
      const code = this.#text.charCodeAt(this.#at);
      if (code !== 0x20 && code !== 0x0a && code !== 0x0d && code !== 0x09) return;
    }
  }

  #unexpected(): JsonFault {
    if (this.#at >= this.#text.length) return new JsonFault(this.#at, 'the text ends');
    const character = String.fromCodePoint(this.#text.codePointAt(this.#at)!);
    return new JsonFault(this.#at, `unexpected ${JSON.stringify(character)}`);
  }
}
