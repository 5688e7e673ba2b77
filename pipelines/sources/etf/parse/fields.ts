/**
 * Parses numbers and dates as issuers write them, numbers to exact decimals. A format that is not American is refused,
 * never guessed.
 */

import Big from 'big.js';
import { TidemarkError } from '../../../../shared/errors.ts';
import { Printed, type Sign } from './printed.ts';

/** The error for a document that its parser does not understand; `what` names the field, label or line. */
export function unreadable(what: string, cause?: unknown): TidemarkError {
  return new TidemarkError('SOURCE_LAYOUT_UNKNOWN', what, { cause });
}

/** The unexpected value, shortened for a message. */
export function shown(value: unknown): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? 'nothing');
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}...` : text);
}

/** Grouped in threes or not at all. `1.234,56` and `1,23` are another locale's, or errors. */
const PLAIN = /^(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?$|^\.\d+$/;
/** The notation of JSON and some exports. */
const SCIENTIFIC = /^\d+(?:\.\d+)?[eE][+-]?\d{1,3}$/;
/** Hyphens, dashes and minus signs that mean "no value". */
const NO_VALUE = /^(?:[-\u2010-\u2015\u2212]+)?$/;
/** A sign on either side of the currency, and a per cent sign at the end. */
const SIGNED = /^([+\-\u2212]?)\s*\$?\s*([+\-\u2212]?)(.*?)\s*%?$/;
/** Most characters of a written number. */
const LONGEST = 64;
/** Most digits between a number's first digit and its point: no price, count or share has nearly as many. */
const MAX_EXPONENT = 40;
const LINE_BREAK = /[\n\r\u2028\u2029]/;

/**
 * A number in JSON notation as an exact decimal. Undefined if it has too many digits or too large an exponent:
 * `1e50000000` has ten bytes, and 50 MB in plain notation.
 */
export function boundedDecimal(text: string): Big | undefined {
  if (text.length > LONGEST) return undefined;
  const value = new Big(text);
  return Math.abs(value.e) <= MAX_EXPONENT ? value : undefined;
}

/** Trims the text. @throws TidemarkError if it is too long or not one line. */
function oneLine(text: string, field: string): string {
  const trimmed = text.trim();
  if (trimmed.length > LONGEST || LINE_BREAK.test(trimmed))
    throw unreadable(`${field} is not a number: ${shown(text)}`);
  return trimmed;
}

/** @returns null if the document states no value. @throws TidemarkError; its message names `field`. */
export function parseNumber(text: string, field: string): Printed | null {
  const trimmed = oneLine(text, field);
  if (NO_VALUE.test(trimmed)) return null;
  const [, open, inner] = /^(\$?)\((.*)\)$/.exec(trimmed) ?? [];
  const bracketed = inner !== undefined;
  const [, before, after, digits] = SIGNED.exec(bracketed ? open + inner : trimmed)!;
  const signs = before + after;
  const isNumber = signs.length <= (bracketed ? 0 : 1) && (PLAIN.test(digits) || SCIENTIFIC.test(digits));
  const value = isNumber
    ? boundedDecimal(digits.replaceAll(',', '').replace(/^\./, '0.').replace(/\.$/, ''))
    : undefined;
  if (value === undefined) throw unreadable(`${field} is not a number: ${shown(text)}`);
  const signed = bracketed || (signs !== '' && signs !== '+') ? value.neg() : value;
  return Printed.rounded(signed, lastPlace(digits), signOf(trimmed));
}

function signOf(text: string): Sign | undefined {
  if (text.includes('$')) return '$';
  return text.endsWith('%') ? '%' : undefined;
}

/** The exponent of ten of the last digit: -2 for `1,234.50`, 7 for `1.45e9`. */
function lastPlace(digits: string): number {
  const [mantissa, exponent = '0'] = digits.toLowerCase().split('e');
  return Number(exponent) - (mantissa.split('.')[1]?.length ?? 0);
}

const SUFFIXES: Readonly<Record<string, string>> = { K: '1e3', M: '1e6', B: '1e9', T: '1e12' };
const WORDS: Readonly<Record<string, string>> = { thousand: '1e3', million: '1e6', billion: '1e9', trillion: '1e12' };

/** `$14.50B`, `230.1M`, `USD 73,109.73`: a number with a letter for its scale. */
export function parseCompact(text: string, field: string): Printed | null {
  const [, digits, suffix = ''] = /^(.*?)([KMBT]?)$/i.exec(
    oneLine(text, field)
      .replace(/\bUSD\b/gi, '')
      .trim(),
  )!;
  return suffix === '' ? parseNumber(digits, field) : scaled(digits, SUFFIXES[suffix.toUpperCase()], field);
}

/** `$1,234.5 Million`: a number with a word for its scale. */
export function parseScaled(text: string, field: string): Printed | null {
  const [, digits, word = ''] = /^(.*?)\s*(thousand|million|billion|trillion)?$/i.exec(oneLine(text, field))!;
  return word === '' ? parseNumber(digits, field) : scaled(digits, WORDS[word.toLowerCase()], field);
}

/** A scale without a number is an error, not "no value". */
function scaled(digits: string, scale: string, field: string): Printed {
  const value = parseNumber(digits, field);
  if (value === null) throw unreadable(`${field} is a scale without a number`);
  return value.times(new Printed(new Big(scale)));
}

/**
 * The exact sum of a column.
 * @throws TidemarkError if a value is missing, because the sum would be too small and look right.
 */
export const sum = (values: readonly (Printed | null)[], column: string): Printed =>
  values.reduce<Printed>(
    (total, value, index) => {
      if (value === null)
        throw unreadable(`${column} of row ${index + 1} of ${values.length} is missing, so the column has no sum`);
      return total.plus(value);
    },
    new Printed(new Big(0)),
  );

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

/** Named groups y, m (number) or n (name), d. Only the American order is accepted with slashes. */
const FORMS: readonly RegExp[] = [
  /^(?<y>\d{4})-(?<m>\d{2})-(?<d>\d{2})$/,
  /^(?<y>\d{4})\/(?<m>\d{2})\/(?<d>\d{2})$/,
  /^(?<m>\d{1,2})\/(?<d>\d{1,2})\/(?<y>\d{4})$/,
  /^(?<m>\d{2})-(?<d>\d{2})-(?<y>\d{4})$/,
  /^(?<n>[A-Za-z]{3})-(?<d>\d{1,2})-(?<y>\d{4})$/,
  /^(?<n>[A-Za-z]{3,9}) (?<d>\d{1,2}), (?<y>\d{4})$/,
  /^(?<d>\d{1,2})-(?<n>[A-Za-z]{3})-(?<y>\d{4})$/,
];
const INSTANT =
  /^(?<y>\d{4})-(?<m>\d{2})-(?<d>\d{2})T(?:[01]\d|2[0-3]):[0-5]\d(?::\d{2}(?:\.\d+)?)?(?<zone>Z|[+-]\d{2}:?\d{2})?$/;

/**
 * Parses an as-of date to `YYYY-MM-DD`. An instant with a zone gives its UTC date; one without gives the date as
 * written.
 * @throws TidemarkError; its message names `field`.
 */
export function parseAsOf(text: string, field: string): string {
  const trimmed = text.trim();
  const match = [INSTANT, ...FORMS].map((form) => form.exec(trimmed)?.groups).find((groups) => groups !== undefined);
  const written = match && calendarDay(match);
  const day = written && match.zone ? utcDay(trimmed) : written;
  if (day === undefined) throw unreadable(`${field} is not a date in a known format: ${shown(text)}`);
  return day;
}

function utcDay(text: string): string | undefined {
  const ms = Date.parse(text.replace(/([+-]\d{2})(\d{2})$/, '$1:$2'));
  return Number.isNaN(ms) ? undefined : new Date(ms).toISOString().slice(0, 10);
}

/** Undefined if the calendar has no such day: 2026-02-30 does not mean 2026-03-02. */
function calendarDay({ y, m, n, d }: Match): string | undefined {
  const month = n === undefined ? Number(m) : monthOf(n.toLowerCase());
  const date = new Date(Date.UTC(Number(y), month - 1, Number(d)));
  const exists = date.getUTCFullYear() === Number(y) && date.getUTCMonth() === month - 1 && month > 0;
  return exists ? date.toISOString().slice(0, 10) : undefined;
}

const monthOf = (name: string) => Math.max(MONTHS.indexOf(name), LONG_MONTHS.indexOf(name)) + 1;

const TICKERS = new Set(['BTC', 'XBT', 'XBTUSD']);

export const isBitcoin = (name: string | null, ticker?: string): boolean =>
  /\bbitcoin\b/i.test(name ?? '') || TICKERS.has((ticker ?? '').trim().toUpperCase());

/**
 * The row of a holdings table that is the fund's Bitcoin.
 * @throws TidemarkError if there is none or more than one: their sum would be a guess.
 */
export function onlyBitcoin<Row>(rows: readonly Row[], fits: (row: Row) => boolean): Row {
  const found = rows.filter(fits);
  if (found.length !== 1) throw unreadable(`${found.length} of ${rows.length} holdings are Bitcoin, not 1`);
  return found[0];
}
