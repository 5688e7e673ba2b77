/** `YYYY-MM-DDTHH:MM:SS.mmmZ`, 24 bytes. Rows come in order of time, so the text of their second is kept. */
import { PAIRS, QUADS, writeAscii } from './digits.ts';

const DAY_SECONDS = 86_400;
/** 0000-01-01 and 10000-01-01: between them the year has four digits. */
const FIRST_SECOND = -62_167_219_200;
const LAST_SECOND = 253_402_300_800;

export const TIMESTAMP_BYTES = 24;
/** Microseconds from 1970-01-01 to 2000-01-01, where timestamptz starts. */
export const POSTGRES_EPOCH_MS = 946_684_800_000;

export class TimestampWriter {
  readonly #bytes = new DataView(new ArrayBuffer(TIMESTAMP_BYTES));
  #second = Number.NaN;
  #day = Number.NaN;
  // The bytes above as stores of 8, 8 and 4. ASCII is never the bit pattern of a NaN, so doubles carry it unchanged.
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
    // One store too early by a byte: the point is written again over the leading zero.
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

/** Milliseconds of a timestamptz, which counts microseconds from 2000: more of them than a double holds past 2285. */
export function readTimestamptzMs(view: DataView, at: number): number {
  const high = view.getInt32(at);
  const low = view.getUint32(at + 4);
  // 2^32 is 4,294,967 thousands and 296.
  return high * 4_294_967 + Math.floor((high * 296 + low) / 1000) + POSTGRES_EPOCH_MS;
}
