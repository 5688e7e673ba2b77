/** The list of days without trade, against the rules that most of them follow. */
import { expect, test } from 'vitest';
import { dayKey, daysBetween, isMarketDay, LISTED_YEARS, marketDaysSince, nextMarketDay } from '../../shared/dates.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { provedRanges } from '../../shared/status/proved-ranges.ts';

const at = (year: number, month: number, day: number) => Date.UTC(year, month - 1, day);
const weekdayOf = (ms: number) => new Date(ms).getUTCDay();

/** The n-th such weekday of a month (0 = Sunday), or its last for n = -1. */
function nth(year: number, month: number, weekday: number, n: number): number {
  const days = Array.from({ length: 31 }, (_, index) => at(year, month, index + 1));
  return days
    .filter((ms) => new Date(ms).getUTCMonth() === month - 1 && weekdayOf(ms) === weekday)
    .at(n > 0 ? n - 1 : n)!;
}

/** Sunday to Monday, Saturday to Friday; but not a New Year's Saturday, whose Friday is of the old year. */
function observed(ms: number, isNewYear = false): number[] {
  if (weekdayOf(ms) === 0) return [ms + 86_400_000];
  if (weekdayOf(ms) === 6) return isNewYear ? [] : [ms - 86_400_000];
  return [ms];
}

/** Two days before Easter, by the anonymous Gregorian computus. */
function goodFriday(year: number): number {
  const [a, b, c] = [year % 19, Math.floor(year / 100), year % 100];
  const d = (19 * a + b - Math.floor(b / 4) - Math.floor((b - Math.floor((b + 8) / 25) + 1) / 3) + 15) % 30;
  const e = (32 + 2 * (b % 4) + 2 * Math.floor(c / 4) - d - (c % 4)) % 7;
  const f = d + e - 7 * Math.floor((a + 11 * d + 22 * e) / 451) + 114;
  return at(year, Math.floor(f / 31), (f % 31) + 1) - 2 * 86_400_000;
}

const byRule = (year: number): string[] =>
  [
    ...observed(at(year, 1, 1), true),
    nth(year, 1, 1, 3),
    nth(year, 2, 1, 3),
    goodFriday(year),
    nth(year, 5, 1, -1),
    ...observed(at(year, 6, 19)),
    ...observed(at(year, 7, 4)),
    nth(year, 9, 1, 1),
    nth(year, 11, 4, 4),
    ...observed(at(year, 12, 25)),
  ].map(dayKey);

test.each([2024, 2025, 2026, 2027, 2028])(
  '%i: weekends, the holidays by rule and the days of mourning, and no others',
  (year) => {
    const mourning = year === 2025 ? ['2025-01-09'] : [];
    const closed = new Set([...byRule(year), ...mourning]);
    for (const day of daysBetween(`${year}-01-01`, `${year}-12-31`)) {
      const isWeekend = [0, 6].includes(weekdayOf(Date.parse(day)));
      expect({ day, isMarketDay: isMarketDay(day) }).toEqual({ day, isMarketDay: !isWeekend && !closed.has(day) });
    }
  },
);

test('the years tested are those listed', () => {
  expect(LISTED_YEARS).toEqual({ first: 2024, last: 2028 });
});

test('the next market day, and how many have passed', () => {
  expect(nextMarketDay('2026-03-05')).toBe('2026-03-06');
  expect(nextMarketDay('2026-03-06')).toBe('2026-03-09');
  expect(nextMarketDay('2026-04-02')).toBe('2026-04-06');
  expect(nextMarketDay('2025-12-31')).toBe('2026-01-02');
  expect(marketDaysSince('2026-03-05', '2026-03-05')).toBe(0);
  expect(marketDaysSince('2026-03-06', '2026-03-08')).toBe(0);
  expect(marketDaysSince('2026-03-06', '2026-03-09')).toBe(1);
  expect(marketDaysSince('2026-04-02', '2026-04-07')).toBe(2);
  expect(marketDaysSince('2026-03-09', '2026-03-06')).toBe(0);
  expect(() => isMarketDay('2026-02-30')).toThrow(/is not a calendar day/);
});

const ms = (day: string) => Date.parse(`${day}T00:00:00Z`);
const run = (from: string, to: string) => ({
  source: 'etf_ishares_ibit_daily',
  span: { from: ms(from), to: ms(to) },
  fromMs: ms(from),
  throughMs: ms(to),
});

test('proved through a Friday was said to be proved through the Sunday after it', () => {
  // Wednesday to Friday, then from the Wednesday after: Monday and Tuesday are missing.
  const { proved, gaps } = provedRanges(datasetOf('etf_daily_metrics'), [
    run('2024-03-06', '2024-03-11'),
    run('2024-03-13', '2024-03-18'),
  ]);
  expect(proved.map(({ from, to }) => [from, to])).toEqual([
    ['2024-03-06', '2024-03-08'],
    ['2024-03-13', '2024-03-15'],
  ]);
  expect(gaps.map(({ from, to }) => [from, to])).toEqual([['2024-03-11', '2024-03-12']]);
});

test('one quarantined day of a longer gap hid that the others are missing', () => {
  // Thursday to Monday are not proved.
  const runs = [run('2026-03-04', '2026-03-05'), run('2026-03-10', '2026-03-11')];
  const missing = (...known: string[]) =>
    provedRanges(
      datasetOf('etf_daily_metrics'),
      runs,
      known.map((day) => run(day, dayKey(ms(day) + 86_400_000))),
    ).missing;
  expect(missing()).toBe(1);
  expect(missing('2026-03-05')).toBe(1);
  expect(missing('2026-03-05', '2026-03-09')).toBe(1);
  expect(missing('2026-03-05', '2026-03-06', '2026-03-09')).toBe(0);
});
