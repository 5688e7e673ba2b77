/** UTC days, as text `YYYY-MM-DD` and as epoch milliseconds. */
export const DAY_MS = 86_400_000;

export const dayKey = (ms: number): string => new Date(ms).toISOString().slice(0, 10);

/** Epoch ms of a strict `YYYY-MM-DD` from 0001-01-01 on, or undefined: 2024-02-30 is no day, and PostgreSQL has no year 0. */
export function parseDay(text: string): number | undefined {
  if (!/^\d{4}-\d{2}-\d{2}$/.test(text) || text.startsWith('0000')) return undefined;
  const ms = Date.parse(`${text}T00:00:00Z`);
  return Number.isNaN(ms) || dayKey(ms) !== text ? undefined : ms;
}

/** Days from..to, both included. */
export function daysBetween(from: string, to: string): string[] {
  const days: string[] = [];
  for (let ms = Date.parse(`${from}T00:00:00Z`), end = Date.parse(`${to}T00:00:00Z`); ms <= end; ms += DAY_MS) {
    days.push(dayKey(ms));
  }
  return days;
}
