/** UTC days, as text `YYYY-MM-DD` and as epoch milliseconds. */
export const DAY_MS = 86_400_000;

export const dayKey = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

const LONG_MONTH = String.raw`(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])`;
const SHORT_MONTH = String.raw`(?:0[469]|11)-(?:0[1-9]|[12]\d|30)`;
const FEBRUARY = String.raw`02-(?:0[1-9]|1\d|2[0-8])`;
const LEAP_YEAR = String.raw`(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)`;

/** A day of the calendar in the years 0001 to 9999: a regular expression, so that schemas can say the same. */
export const DAY_PATTERN = String.raw`(?!0000)(?:\d{4}-(?:${LONG_MONTH}|${SHORT_MONTH}|${FEBRUARY})|${LEAP_YEAR}-02-29)`;

export const DAY = new RegExp(`^${DAY_PATTERN}$`);

/** Epoch ms of a strict `YYYY-MM-DD` from 0001-01-01 on, or undefined: 2024-02-30 is no day, and PostgreSQL has no year 0. */
export function parseDay(text: string): number | undefined {
  return DAY.test(text) ? Date.parse(`${text}T00:00:00Z`) : undefined;
}

/** Days from..to, both included. */
export function daysBetween(from: string, to: string): string[] {
  const days: string[] = [];
  for (let ms = Date.parse(`${from}T00:00:00Z`), end = Date.parse(`${to}T00:00:00Z`); ms <= end; ms += DAY_MS) {
    days.push(dayKey(ms));
  }
  return days;
}
