/** Instants as callers write them: ISO-8601 with `Z` or an offset. */
import { DAY_PATTERN } from '../../shared/dates.ts';

/** An instant of the request. Rows hold milliseconds; a caller may write finer times. */
export interface Instant {
  /** Epoch ms, rounded down. */
  readonly ms: number;
  /** Whether rounding down lost nothing. */
  readonly exact: boolean;
}

const HOUR = String.raw`([01]\d|2[0-3])`;
const SIXTIETHS = String.raw`([0-5]\d)`;
const SECOND = String.raw`(?::${SIXTIETHS}(?:[.,](\d{1,18}))?)?`;
const ZONE = `(?:Z|([+-])${HOUR}(?::?${SIXTIETHS})?)`;

/** The texts that a caller may write; the schemas use the same expression. */
export const INSTANT = new RegExp(`^(${DAY_PATTERN})T${HOUR}:${SIXTIETHS}${SECOND}${ZONE}$`);

/** Years 0001 to 9999 in UTC, the range that the contract's timestamps can express. PostgreSQL has no year 0. */
const FIRST_MS = Date.parse('0001-01-01T00:00:00Z');
/** The last moment of that range; no row is as late. */
export const LAST_MS = Date.parse('9999-12-31T23:59:59.999Z');

export const INSTANT_RULE = 'must be an ISO-8601 time with Z or an offset, such as 2024-01-01T00:00:00Z';

/** @returns undefined for any other text: 30 February, 24:00 and a missing offset are rejected. */
export function parseInstant(text: string): Instant | undefined {
  const match = INSTANT.exec(text);
  if (!match) return undefined;
  const [, day, hour, minute, second = '00', fraction = '', sign, offsetHour = '00', offsetMinute = '00'] = match;
  const offsetMs = (Number(offsetHour) * 60 + Number(offsetMinute)) * 60_000 * (sign === '-' ? -1 : 1);
  const wholeMs = Date.parse(`${day}T${hour}:${minute}:${second}Z`) - offsetMs;
  const ms = wholeMs + Number(fraction.slice(0, 3).padEnd(3, '0'));
  if (ms < FIRST_MS || ms > LAST_MS) return undefined;
  return { ms, exact: !/[1-9]/.test(fraction.slice(3)) };
}

/** The first whole millisecond at or after the instant: a row is at or after the instant if it is at or after this. */
export const ceilMs = (instant: Instant): number => (instant.exact ? instant.ms : instant.ms + 1);

export const isoOf = (ms: number): string => new Date(ms).toISOString();
