/** Values under a cursor, taken for what they should be: answers.ts, without a tree of the answer. */
import { sats as satsOfText, unfit } from './answers.ts';
import type { JsonCursor } from './json-cursor.ts';

const [QUOTE, POINT, MINUS, ZERO] = [0x22, 0x2e, 0x2d, 0x30];
const MAX_DIGITS = 16;
/** Places of an amount as nodes write it. */
const PLACES = 8;

/** Lower-case hexadecimal digits. */
const IS_HEX = new Uint8Array(256);
for (const letter of '0123456789abcdef') IS_HEX[letter.charCodeAt(0)] = 1;

/** What stands there, for a message. */
export const shown = (cursor: JsonCursor): string => cursor.bytes.toString('utf8', cursor.start, cursor.end);

export function enterObject(cursor: JsonCursor, where: string): void {
  if (!cursor.isObject) throw unfitValue(cursor, where, 'an object');
  cursor.object();
}

export function enterList(cursor: JsonCursor, where: string): void {
  if (!cursor.isList) throw unfitValue(cursor, where, 'a list');
  cursor.list();
}

/** [cursor.start, cursor.end) is lower-case hex of whole bytes, `bytes` of them if given. */
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

/** [cursor.start, cursor.end) is a text that can be copied as it is. */
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

/** A whole number within [least, most], of at most 2^53. */
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

/** An amount in bitcoins, as satoshis; from its digits, [cursor.start, cursor.end). */
export function satsAt(cursor: JsonCursor, where: string): number {
  scalarAt(cursor, where, 'an amount');
  if (!isPlainAmount(cursor)) return satsOfText(shown(cursor), where);
  const { bytes, start, end } = cursor;
  let value = 0;
  for (let at = start; at < end; at++) if (bytes[at] !== POINT) value = value * 10 + (bytes[at] - ZERO);
  // Sixteen digits are exact; what is too large is said by the other reading.
  return value > 2_100_000_000_000_000 ? satsOfText(shown(cursor), where) : value;
}

/** Whether [cursor.start, cursor.end) are digits, with a point before the last eight: the way it is stored, too. */
export function isPlainAmount({ bytes, start, end }: JsonCursor): boolean {
  const point = end - PLACES - 1;
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

/** The next value is of another kind than it should be. */
function unfitValue(cursor: JsonCursor, where: string, wanted: string) {
  const from = cursor.peek() === undefined ? 0 : cursor.at;
  cursor.skip();
  return unfit(where, wanted, cursor.bytes.toString('utf8', from, Math.min(cursor.at, from + 80)));
}
