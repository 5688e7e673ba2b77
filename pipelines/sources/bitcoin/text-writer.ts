/**
 * Writes the texts of many rows one after the other as bytes. No string is created for text that is only copied and
 * hashed.
 */

const HEX = Buffer.from('0123456789abcdef');
/** The two hex digits of each byte. */
const HIGH = new Uint8Array(256).map((_, value) => HEX[value >> 4]);
const LOW = new Uint8Array(256).map((_, value) => HEX[value & 15]);
const ZERO = 0x30;
const MOST_DIGITS = 17;
/** Up to this value the division is an integer instruction. */
const MAX_INT = 2 ** 31 - 1;
const [BILLION, BILLION_DIGITS] = [1e9, 9];

export class TextWriter {
  #bytes: Buffer;
  #at = 0;
  #start = 0;

  constructor(capacity: number) {
    this.#bytes = Buffer.allocUnsafeSlow(capacity);
  }

  /** Starts again with space for `bytes`. All text taken before is overwritten and becomes invalid. */
  clear(bytes: number): void {
    // An eighth more, because the next one may need slightly more.
    if (bytes > this.#bytes.length) this.#bytes = Buffer.allocUnsafeSlow(bytes + (bytes >> 3));
    this.#at = 0;
    this.#start = 0;
  }

  /** The text since the last call. It stays valid until `clear`. */
  take(): Buffer {
    const text = this.#bytes.subarray(this.#start, this.#at);
    this.#start = this.#at;
    return text;
  }

  /** Number of bytes since the last `take`. */
  get length(): number {
    return this.#at - this.#start;
  }

  /** Writes ASCII. */
  text(text: Uint8Array): void {
    this.#reserve(text.length);
    const target = this.#bytes;
    let at = this.#at;
    for (let from = 0; from < text.length; from++) target[at++] = text[from];
    this.#at = at;
  }

  copy(source: Uint8Array, start: number, end: number): void {
    this.#reserve(end - start);
    const target = this.#bytes;
    let at = this.#at;
    for (let from = start; from < end; from++) target[at++] = source[from];
    this.#at = at;
  }

  string(text: string): void {
    this.#reserve(text.length * 3);
    this.#at += this.#bytes.write(text, this.#at, 'utf8');
  }

  /** Writes one byte, for punctuation. */
  letter(code: number): void {
    this.#reserve(1);
    this.#bytes[this.#at++] = code;
  }

  hex(source: Uint8Array, start: number, end: number): void {
    this.#reserve(2 * (end - start));
    const target = this.#bytes;
    let at = this.#at;
    for (let from = start; from < end; from++) {
      const byte = source[from];
      target[at] = HIGH[byte];
      target[at + 1] = LOW[byte];
      at += 2;
    }
    this.#at = at;
  }

  /** Decodes the hex digits. @returns whether all of them are digits of whole bytes */
  bytesOfHex(digits: string): boolean {
    const bytes = digits.length / 2;
    this.#reserve(Math.ceil(bytes));
    const written = this.#bytes.write(digits, this.#at, 'hex');
    this.#at += written;
    return written === bytes;
  }

  /** Writes hex with the last byte first, as hashes are displayed. */
  hexReversed(source: Uint8Array, start: number, end: number): void {
    this.#reserve(2 * (end - start));
    const target = this.#bytes;
    let at = this.#at;
    for (let from = end - 1; from >= start; from--) {
      const byte = source[from];
      target[at] = HIGH[byte];
      target[at + 1] = LOW[byte];
      at += 2;
    }
    this.#at = at;
  }

  /** Writes a whole number from 0 to 2^53, zero-padded to `least` digits. */
  integer(value: number, least = 1): void {
    this.#reserve(MOST_DIGITS);
    if (value > MAX_INT) {
      const high = Math.floor(value / BILLION);
      this.integer(high, least - BILLION_DIGITS);
      this.integer(value - high * BILLION, BILLION_DIGITS);
      return;
    }
    const target = this.#bytes;
    let digits = 1;
    for (let bound = 10; digits < BILLION_DIGITS + 1 && value >= bound; bound *= 10) digits++;
    if (digits < least) digits = least;
    let rest = value | 0;
    for (let at = this.#at + digits - 1; at >= this.#at; at--) {
      const left = (rest / 10) | 0;
      target[at] = ZERO + (rest - left * 10);
      rest = left;
    }
    this.#at += digits;
  }

  /** Grows the buffer: moves the text that is not taken yet, and leaves the taken text where it is. */
  #reserve(bytes: number): void {
    if (this.#at + bytes <= this.#bytes.length) return;
    const pending = this.#at - this.#start;
    const larger = Buffer.allocUnsafeSlow(Math.max(this.#bytes.length, 2 * (pending + bytes)));
    this.#bytes.copy(larger, 0, this.#start, this.#at);
    this.#bytes = larger;
    this.#start = 0;
    this.#at = pending;
  }
}

/** Constant text for TextWriter. */
export const ascii = (text: string): Uint8Array => Buffer.from(text, 'latin1');
