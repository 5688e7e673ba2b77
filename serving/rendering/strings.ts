/** Text cells: UTF-8 bytes in, UTF-8 bytes out. In JSON escaped as JSON.stringify escapes, in CSV quoted by RFC 4180. */

/** 0: as it is; otherwise the letter after the backslash, `u` meaning \u00XX. */
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

/** The most bytes a text of `length` bytes can take, with its quotes. */
export const maxStringBytes = (length: number): number => length * 6 + 2;

/** @returns the position after the closing quote. */
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
/** 1: a field with this byte has to be quoted. */
const NEEDS_QUOTES = new Uint8Array(256);
for (const byte of Buffer.from(',"\r\n')) NEEDS_QUOTES[byte] = 1;

/** The most bytes a text of `length` bytes can take as a CSV field. */
export const maxCsvBytes = (length: number): number => length * 2 + 2;

/** A CSV field; empty text is `""`, because nothing at all means null. @returns the position after it. */
export function writeCsvText(to: Uint8Array, at: number, from: Uint8Array, start: number, end: number): number {
  let next = at;
  let plain = start < end;
  for (let i = start; plain && i < end; i++) {
    const byte = from[i];
    to[next++] = byte;
    plain = NEEDS_QUOTES[byte] === 0;
  }
  if (plain) return next;
  next = at;
  to[next++] = QUOTE;
  for (let i = start; i < end; i++) {
    const byte = from[i];
    if (byte === QUOTE) to[next++] = QUOTE;
    to[next++] = byte;
  }
  to[next++] = QUOTE;
  return next;
}

export const UUID_BYTES = 36;

/** The 16 bytes at `start` as `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`. */
export function writeUuid(to: Uint8Array, at: number, from: Uint8Array, start: number): number {
  let next = at;
  for (let i = 0; i < 16; i++) {
    if (i === 4 || i === 6 || i === 8 || i === 10) to[next++] = 0x2d;
    to[next++] = HEX[from[start + i] >> 4];
    to[next++] = HEX[from[start + i] & 15];
  }
  return next;
}
