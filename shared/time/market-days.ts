/**
 * Days on which US exchanges trade, by a list of their closures: rules would miss the days of mourning, and the list is
 * what the exchanges publish, three years ahead. Half days are days.
 */
import { DAY_MS, dayKey, parseDay } from './days.ts';

/** Weekdays without trade. */
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

/** The list covers these years. Outside them every weekday counts: a day expected in vain shows, a day missed does not. */
export const LISTED_YEARS = { first: 2024, last: 2028 } as const;

export function isMarketDay(day: string): boolean {
  const weekday = new Date(msOf(day)).getUTCDay();
  return weekday !== 0 && weekday !== 6 && !CLOSED.has(day);
}

/** The first market day after `day`, which need not be one. */
export function nextMarketDay(day: string): string {
  for (let ms = msOf(day) + DAY_MS; ; ms += DAY_MS) if (isMarketDay(dayKey(ms))) return dayKey(ms);
}

/** Market days after `from`, up to `to` and with it: how old a fact of `from` is on `to`. 0 where `to` is not later. */
export function marketDaysSince(from: string, to: string): number {
  let days = 0;
  for (let day = nextMarketDay(from); day <= to; day = nextMarketDay(day)) days++;
  return days;
}

function msOf(day: string): number {
  const ms = parseDay(day);
  if (ms === undefined) throw new RangeError(`${day} is no day`);
  return ms;
}
