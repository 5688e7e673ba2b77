/** Bodies of encoding `lines`: each event's payload_raw, then one LF; one of the line's cells is the offset. */
import type { EventShape } from '../registry/types.ts';

type Cell = Extract<EventShape, { encoding: 'lines' }>['cell'];

const LF = 10;
const COMMA = 44;
const ZERO = 48;

/**
 * The payload whose cell says `offset`, a number without leading zeros, and the number of its line, from 0; a scan of
 * one frame, a millisecond.
 */
export function findLine(
  raw: Buffer,
  offset: string,
  cell: Cell,
): { readonly position: number; readonly payload: Buffer } | undefined {
  const needle = Buffer.from(offset, 'latin1');
  let position = 0;
  for (let start = 0; start < raw.length; position++) {
    const end = raw.indexOf(LF, start);
    if (end < 0) return undefined;
    if (holds(raw, start, end, needle, cell)) return { position, payload: raw.subarray(start, end) };
    start = end + 1;
  }
  return undefined;
}

function holds(raw: Buffer, start: number, end: number, needle: Buffer, { column, prefix }: Cell): boolean {
  let at = start;
  for (let commas = 0; commas < column; at++) {
    if (at >= end) return false;
    if (raw[at] === COMMA) commas++;
  }
  at += prefix.length;
  // Digits are compared as a number: what the line writes before them does not count.
  while (raw[at] === ZERO && raw[at + 1] >= ZERO && raw[at + 1] <= ZERO + 9) at++;
  const after = at + needle.length;
  if (after > end || (after < end && raw[after] !== COMMA)) return false;
  return raw.compare(needle, 0, needle.length, at, after) === 0;
}
