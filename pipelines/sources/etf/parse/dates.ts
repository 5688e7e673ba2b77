/** As-of dates in each form that issuers use, to `YYYY-MM-DD`. */
import { shown, unreadable } from './fault.ts';

const MONTHS = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'];
const LONG_MONTHS = [
  'january',
  'february',
  'march',
  'april',
  'may',
  'june',
  'july',
  'august',
  'september',
  'october',
  'november',
  'december',
];

type Match = Readonly<Record<string, string>>;

/** Named groups y, m (number) or n (name), d. The American order of slashes is the only one accepted. */
const FORMS: readonly RegExp[] = [
  /^(?<y>\d{4})-(?<m>\d{2})-(?<d>\d{2})$/,
  /^(?<y>\d{4})\/(?<m>\d{2})\/(?<d>\d{2})$/,
  /^(?<m>\d{1,2})\/(?<d>\d{1,2})\/(?<y>\d{4})$/,
  /^(?<m>\d{2})-(?<d>\d{2})-(?<y>\d{4})$/,
  /^(?<n>[A-Za-z]{3})-(?<d>\d{1,2})-(?<y>\d{4})$/,
  /^(?<n>[A-Za-z]{3,9}) (?<d>\d{1,2}), (?<y>\d{4})$/,
  /^(?<d>\d{1,2})-(?<n>[A-Za-z]{3})-(?<y>\d{4})$/,
];
const INSTANT = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?<zone>Z|[+-]\d{2}:?\d{2})?$/;

/** An instant with a zone is its UTC date; without one, the date it names. @throws TidemarkError naming `field`. */
export function parseAsOf(text: string, field: string): string {
  const trimmed = text.trim();
  const instant = INSTANT.exec(trimmed);
  const day = instant
    ? instant.groups?.zone
      ? utcDay(trimmed)
      : calendarDay({ y: trimmed.slice(0, 4), m: trimmed.slice(5, 7), d: trimmed.slice(8, 10) })
    : FORMS.map((form) => form.exec(trimmed)?.groups).flatMap((match) => (match ? [calendarDay(match)] : []))[0];
  if (day === undefined) throw unreadable(`${field} is no date in a known form: ${shown(text)}`);
  return day;
}

function utcDay(text: string): string | undefined {
  const ms = Date.parse(text.replace(/([+-]\d{2})(\d{2})$/, '$1:$2'));
  return Number.isNaN(ms) ? undefined : new Date(ms).toISOString().slice(0, 10);
}

/** Undefined where the calendar has no such day: 2026-02-30 is no way to write 2026-03-02. */
function calendarDay({ y, m, n, d }: Match): string | undefined {
  const month = n === undefined ? Number(m) : monthOf(n.toLowerCase());
  const date = new Date(Date.UTC(Number(y), month - 1, Number(d)));
  const exists = date.getUTCFullYear() === Number(y) && date.getUTCMonth() === month - 1 && month > 0;
  return exists ? date.toISOString().slice(0, 10) : undefined;
}

const monthOf = (name: string) => Math.max(MONTHS.indexOf(name), LONG_MONTHS.indexOf(name)) + 1;
