/** Text cells as JSON strings: UTF-8 bytes in, UTF-8 bytes out, escaped as JSON.stringify escapes. */

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

/** The 16 bytes at `start` as `"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"`. */
export function writeUuid(to: Uint8Array, at: number, from: Uint8Array, start: number): number {
  let next = at;
  to[next++] = 0x22;
  for (let i = 0; i < 16; i++) {
    if (i === 4 || i === 6 || i === 8 || i === 10) to[next++] = 0x2d;
    to[next++] = HEX[from[start + i] >> 4];
    to[next++] = HEX[from[start + i] & 15];
  }
  to[next++] = 0x22;
  return next;
}
