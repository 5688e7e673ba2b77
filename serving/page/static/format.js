/** Numbers, times and sizes as people read them. */

const WHOLE = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 1 });

/** @param {number} value */
export const whole = (value) => WHOLE.format(value);

/** @param {number} value 1,234 as it is, more in short */
export const short = (value) => (Math.abs(value) < 10_000 ? WHOLE.format(value) : SHORT.format(value));

/** A satoshi: the least that an axis tells apart. What computing leaves below half of it is nothing. */
export const LEAST = 1e-8;
const PLAIN = new Intl.NumberFormat('en-US', { maximumSignificantDigits: 7 });
const LARGE = new Intl.NumberFormat('en-US', { notation: 'compact', maximumSignificantDigits: 4 });

/** At an axis. @param {number} value */
export function numberText(value) {
  const size = Math.abs(value);
  return (size < 1e6 ? PLAIN : LARGE).format(size < LEAST / 2 ? 0 : value);
}

const UNITS = /** @type {const} */ ([
  [86_400, 'd'],
  [3600, 'h'],
  [60, 'min'],
  [1, 's'],
]);

/**
 * The two largest units: `2 d 3 h`.
 * @param {number} seconds
 */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 1) return seconds <= 0 ? '0 s' : '< 1 s';
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const count = Math.floor(seconds / size);
  const next = UNITS[at + 1];
  const rest = next ? Math.floor((seconds - count * size) / next[0]) : 0;
  return rest > 0 && count < 10 ? `${count} ${unit} ${rest} ${next[1]}` : `${whole(count)} ${unit}`;
}

/** @param {number} bytes */
export function size(bytes) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let at = 0;
  let value = bytes;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at++;
  }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

/** @param {string} utc `2024-01-31 12:00` */
export const minute = (utc) => utc.slice(0, 16).replace('T', ' ');

/** @param {string} utc `2024-01-31 12:00:00.000` */
export const instant = (utc) => utc.slice(0, 23).replace('T', ' ');

/** @param {number} ms */
export const dayOf = (ms) => new Date(ms).toISOString().slice(0, 10);

/**
 * People compare digests by their ends, so the middle is left out.
 * @param {string} text
 */
export const shortened = (text) => (text.length > 24 ? `${text.slice(0, 10)}…${text.slice(-6)}` : text);

/**
 * @param {number} count
 * @param {string} one
 * @param {string} [many]
 */
export const counted = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

/** @param {string} utc */
const isMidnight = (utc) => utc.slice(11, 19) === '00:00:00';

/**
 * From one time to another that is no longer part of it. Whole days are named as days, one of them once.
 * @param {string} from
 * @param {string} to
 */
export const stretch = (from, to) =>
  isMidnight(from) && isMidnight(to)
    ? [...new Set([from.slice(0, 10), dayOf(Date.parse(to) - 1)])]
    : [minute(from), minute(to)];
