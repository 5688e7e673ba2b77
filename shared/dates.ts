/**
 * UTC days, as text `YYYY-MM-DD` and as epoch milliseconds; instants as callers write them; and the days on which US
 * exchanges trade. Those come from a list of closures, which the exchanges publish three years in advance: rules would miss
 * the days of mourning. Half days count as trading days.
 */

export const SECOND_MS = 1000;
export const DAY_MS = 86_400_000;

export const dayKey = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

const LONG_MONTH = String.raw`(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])`;
const SHORT_MONTH = String.raw`(?:0[469]|11)-(?:0[1-9]|[12]\d|30)`;
const FEBRUARY = String.raw`02-(?:0[1-9]|1\d|2[0-8])`;
/** 0001 to 9999: PostgreSQL has no year 0. Without lookahead, which RE2 and Rust do not have. */
const YEAR = String.raw`(?:\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)`;
const LEAP_YEAR = String.raw`(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)`;

/** A calendar day in the years 0001 to 9999, as a regular expression that JSON schemas can use too. */
export const DAY_PATTERN = `(?:${YEAR}-(?:${LONG_MONTH}|${SHORT_MONTH}|${FEBRUARY})|${LEAP_YEAR}-02-29)`;

export const DAY = new RegExp(`^${DAY_PATTERN}$`);
export const DAY_RULE = 'must be a day, YYYY-MM-DD';

/** Epoch ms of a `YYYY-MM-DD` from 0001-01-01 on; undefined for days such as 2024-02-30. PostgreSQL has no year 0. */
export function parseDay(text: string): number | undefined {
  return DAY.test(text) ? Date.parse(`${text}T00:00:00Z`) : undefined;
}

/** What a message says beside its rule where a text is right in all but its day, such as 30 February; else nothing. */
export function unlessInCalendar(text: unknown): string {
  const day = typeof text === 'string' ? /^\d{4}-\d{2}-\d{2}(?=T|$)/.exec(text)?.[0] : undefined;
  return day !== undefined && parseDay(day) === undefined ? `; the calendar has no ${day}` : '';
}

/** The days from `from` to `to`, both included. */
export function daysBetween(from: string, to: string): string[] {
  const days: string[] = [];
  for (let ms = Date.parse(`${from}T00:00:00Z`), end = Date.parse(`${to}T00:00:00Z`); ms <= end; ms += DAY_MS) {
    days.push(dayKey(ms));
  }
  return days;
}

/** Weekdays on which US exchanges are closed. */
const CLOSED: ReadonlySet<string> = new Set([
  ...['2024-01-01', '2024-01-15', '2024-02-19', '2024-03-29', '2024-05-27', '2024-06-19', '2024-07-04', '2024-09-02'],
  ...['2024-11-28', '2024-12-25'],
  // 9 January: a national day of mourning.
  ...['2025-01-01', '2025-01-09', '2025-01-20', '2025-02-17', '2025-04-18', '2025-05-26', '2025-06-19', '2025-07-04'],
  ...['2025-09-01', '2025-11-27', '2025-12-25'],
  ...['2026-01-01', '2026-01-19', '2026-02-16', '2026-04-03', '2026-05-25', '2026-06-19', '2026-07-03', '2026-09-07'],
  ...['2026-11-26', '2026-12-25'],
  ...['2027-01-01', '2027-01-18', '2027-02-15', '2027-03-26', '2027-05-31', '2027-06-18', '2027-07-05', '2027-09-06'],
  ...['2027-11-25', '2027-12-24'],
  ...['2028-01-17', '2028-02-21', '2028-04-14', '2028-05-29', '2028-06-19', '2028-07-04', '2028-09-04', '2028-11-23'],
  ...['2028-12-25'],
]);

/**
 * The years that `CLOSED` covers. Outside them every weekday counts as a market day: an operator sees a day that is
 * expected in vain, but not a day that is missed.
 */
export const LISTED_YEARS = { first: 2024, last: 2028 } as const;

export function isMarketDay(day: string): boolean {
  const weekday = new Date(msOf(day)).getUTCDay();
  return weekday !== 0 && weekday !== 6 && !CLOSED.has(day);
}

/** The first market day after `day`; `day` itself may be any day. */
export function nextMarketDay(day: string): string {
  for (let ms = msOf(day) + DAY_MS; ; ms += DAY_MS) if (isMarketDay(dayKey(ms))) return dayKey(ms);
}

/** Market days after `from` up to and including `to`: the age on `to` of a fact of `from`. 0 where `to` is not later. */
export function marketDaysSince(from: string, to: string): number {
  let days = 0;
  for (let day = nextMarketDay(from); day <= to; day = nextMarketDay(day)) days++;
  return days;
}

function msOf(day: string): number {
  const ms = parseDay(day);
  if (ms === undefined) throw new RangeError(`${day} is not a calendar day`);
  return ms;
}

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
export const FIRST_MS = Date.parse('0001-01-01T00:00:00Z');
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
