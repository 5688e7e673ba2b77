/** Instants as callers write them: ISO-8601 with `Z` or an offset. */

/** Rows have milliseconds; what a caller writes may be finer. */
export interface Instant {
  /** Epoch ms, rounded down. */
  readonly ms: number;
  /** Nothing was lost by rounding down. */
  readonly exact: boolean;
}

const PATTERN =
  /^(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,18}))?)?(?:Z|([+-])(\d{2})(?::?(\d{2}))?)$/;

/** Years 0001 to 9999, in UTC: what the contract's own timestamps can say. PostgreSQL has no year 0. */
const FIRST_MS = Date.parse('0001-01-01T00:00:00Z');
/** The last moment of them; no row is as late. */
export const LAST_MS = Date.parse('9999-12-31T23:59:59.999Z');

export const INSTANT_RULE = 'must be an ISO-8601 time with Z or an offset, such as 2024-01-01T00:00:00Z';

/** @returns undefined when the text is no such instant: 30 February, 24:00 and a missing offset are none. */
export function parseInstant(text: string): Instant | undefined {
  const match = PATTERN.exec(text);
  if (!match) return undefined;
  const [, year, month, day, hour, minute, second = '00', fraction = '', sign, offsetHour = '00', offsetMinute = '00'] =
    match;
  const numbers = [year, month, day, hour, minute, second, offsetHour, offsetMinute].map(Number);
  const [y, mo, d, h, mi, s, oh, om] = numbers;
  if (mo < 1 || mo > 12 || d < 1 || h > 23 || mi > 59 || s > 59 || oh > 23 || om > 59) return undefined;
  // setUTCFullYear, because Date.UTC takes the years 0..99 for 1900..1999.
  const date = new Date(0);
  date.setUTCFullYear(y, mo - 1, d);
  if (date.getUTCMonth() !== mo - 1 || date.getUTCDate() !== d) return undefined;
  const offsetMs = (oh * 60 + om) * 60_000 * (sign === '-' ? -1 : 1);
  const ms = date.getTime() + ((h * 60 + mi) * 60 + s) * 1000 + Number(fraction.slice(0, 3).padEnd(3, '0')) - offsetMs;
  if (ms < FIRST_MS || ms > LAST_MS) return undefined;
  return { ms, exact: !/[1-9]/.test(fraction.slice(3)) };
}

/** The first whole millisecond at or after the instant: rows t >= instant are those with t >= it. */
export const ceilMs = (instant: Instant): number => (instant.exact ? instant.ms : instant.ms + 1);

export const isoOf = (ms: number): string => new Date(ms).toISOString();
