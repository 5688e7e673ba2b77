/** Numbers as issuers write them, to exact decimals. What is not written the American way is refused, never guessed. */
import Big from 'big.js';
import { shown, unreadable } from './fault.ts';

/** Grouped by threes or not at all: `1.234,56` and `1,23` are another locale's, or a slip. */
const PLAIN = /^(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?$|^\.\d+$/;
/** As JSON and some exports write them. */
const SCIENTIFIC = /^\d+(?:\.\d+)?[eE][+-]?\d{1,3}$/;
/** Hyphens, dashes and the minus sign that stand for "no value". */
const NO_VALUE = /^(?:[-\u2010-\u2015\u2212]+)?$/;
/** A sign on either side of the currency, and a per cent sign at the end. */
const SIGNED = /^([+\-\u2212]?)\s*(\$?)\s*([+\-\u2212]?)(.*?)\s*%?$/;
/** Characters of a number as it is written. */
const LONGEST = 64;
/** Places between a number's first digit and its point: no price, count or share has nearly as many. */
const MAX_EXPONENT = 40;
const LINE_BREAK = /[\n\r\u2028\u2029]/;

/**
 * A number in the notation of JSON as an exact decimal. Undefined where it has too many digits or too large an exponent:
 * `1e50000000` is ten bytes, and 50 MB when it is written out.
 */
export function boundedDecimal(text: string): Big | undefined {
  if (text.length > LONGEST) return undefined;
  const value = new Big(text);
  return Math.abs(value.e) <= MAX_EXPONENT ? value : undefined;
}

/** The text without white space around it. @throws TidemarkError where it is too long, or not one line. */
function oneLine(text: string, field: string): string {
  const trimmed = text.trim();
  if (trimmed.length > LONGEST || LINE_BREAK.test(trimmed)) throw unreadable(`${field} is no number: ${shown(text)}`);
  return trimmed;
}

/** @returns null where the document says that there is no value. @throws TidemarkError naming `field`. */
export function parseNumber(text: string, field: string): Big | null {
  const trimmed = oneLine(text, field);
  if (NO_VALUE.test(trimmed)) return null;
  const [, open, inner] = /^(\$?)\((.*)\)$/.exec(trimmed) ?? [];
  const bracketed = inner !== undefined;
  const [, before, dollar, after, digits] = SIGNED.exec(bracketed ? open + inner : trimmed)!;
  const sign = dollar === '' ? before : before || after;
  const isNumber = !(bracketed && sign !== '') && (PLAIN.test(digits) || SCIENTIFIC.test(digits));
  const value = isNumber
    ? boundedDecimal(digits.replaceAll(',', '').replace(/^\./, '0.').replace(/\.$/, ''))
    : undefined;
  if (value === undefined) throw unreadable(`${field} is no number: ${shown(text)}`);
  return bracketed || (sign !== '' && sign !== '+') ? value.neg() : value;
}

const SUFFIXES: Readonly<Record<string, string>> = { K: '1e3', M: '1e6', B: '1e9', T: '1e12' };
const WORDS: Readonly<Record<string, string>> = { thousand: '1e3', million: '1e6', billion: '1e9', trillion: '1e12' };

/** `$14.50B`, `230.1M`, `USD 73,109.73`: a number with a letter for its scale. */
export function parseCompact(text: string, field: string): Big | null {
  const [, digits, suffix = ''] = /^(.*?)([KMBT]?)$/i.exec(
    oneLine(text, field)
      .replace(/\bUSD\b/gi, '')
      .trim(),
  )!;
  return suffix === '' ? parseNumber(digits, field) : scaled(digits, SUFFIXES[suffix.toUpperCase()], field);
}

/** `$1,234.5 Million`: a number with a word for its scale. */
export function parseScaled(text: string, field: string): Big | null {
  const [, digits, word = ''] = /^(.*?)\s*(thousand|million|billion|trillion)?$/i.exec(oneLine(text, field))!;
  return word === '' ? parseNumber(digits, field) : scaled(digits, WORDS[word.toLowerCase()], field);
}

/** A scale without a number is damage, not "no value". */
function scaled(digits: string, scale: string, field: string): Big {
  const value = parseNumber(digits, field);
  if (value === null) throw unreadable(`${field} is a scale without a number`);
  return value.times(scale);
}

/** Exact sum of a column. @throws TidemarkError where a value is missing: the sum would be too small and look right. */
export const sum = (values: readonly (Big | null)[], column: string): Big =>
  values.reduce<Big>((total, value, index) => {
    if (value === null) throw unreadable(`${column} of row ${index + 1} of ${values.length} is missing: no sum of it`);
    return total.plus(value);
  }, new Big(0));
