/** ISO-8601 as the contract has it, read with nothing of the service's own. */

export interface Time {
  /** Rounded down. */
  readonly ms: number;
  readonly ns: bigint;
}

const FORM = /^(\d{4}-\d\d-\d\dT\d\d:\d\d)(:\d\d)?([.,]\d{1,18})?(Z|[+-]\d\d(?::?\d\d)?)$/;

export function parseTime(text: string): Time | undefined {
  const match = FORM.exec(text);
  if (!match || (match[3] && !match[2])) return undefined;
  const [, minutes, seconds = ':00', fraction = '', zone] = match;
  // The platform takes 30 February for 1 March and 24:00 for the next day; what it gives back tells.
  const local = new Date(`${minutes}${seconds}Z`);
  if (Number.isNaN(local.getTime()) || !local.toISOString().startsWith(`${minutes}${seconds}`)) return undefined;
  const offset = zone === 'Z' ? 0 : minutesOf(zone);
  if (offset === undefined) return undefined;
  const digits = BigInt(fraction.slice(1).padEnd(18, '0') || '0');
  const wholeMs = local.getTime() - offset * 60_000;
  const ms = wholeMs + Number(digits / 10n ** 15n);
  if (ms < Date.parse('0001-01-01T00:00:00Z') || ms > Date.parse('9999-12-31T23:59:59.999Z')) return undefined;
  return { ms, ns: BigInt(wholeMs) * 10n ** 15n + digits };
}

/** Finer than rows have. */
export const isFiner = ({ ms, ns }: Time): boolean => BigInt(ms) * 10n ** 15n !== ns;

function minutesOf(zone: string): number | undefined {
  const [hours, minutes] = [Number(zone.slice(1, 3)), Number(zone.slice(3).replace(':', '') || '0')];
  if (hours > 23 || minutes > 59) return undefined;
  return (zone[0] === '-' ? -1 : 1) * (hours * 60 + minutes);
}

export function parseDay(text: string): number | undefined {
  if (!/^\d{4}-\d\d-\d\d$/.test(text) || text.startsWith('0000')) return undefined;
  const ms = Date.parse(`${text}T00:00:00Z`);
  return !Number.isNaN(ms) && new Date(ms).toISOString().startsWith(text) ? ms : undefined;
}
