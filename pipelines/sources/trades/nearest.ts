/**
 * The float64 nearest to a decimal of more digits than a float64 holds, without making a text of it, which costs six
 * times as much: the digits as exact parts, divided in twice the precision. Where that is too close to a tie to be
 * sure, it says so, and the language's own parser decides.
 * Method: Dekker's exact products and sums, the quotient with one step of correction.
 */

/** Halves a float64's digits for an exact product. */
const SPLITTER = 2 ** 27 + 1;
/** What the computed tail of a quotient may be wrong by, relative to the quotient: far more than it is (2^-104). */
const MARGIN = 2 ** -92;

/** 10^22 is the last power of ten that a float64 holds exactly. */
export const MAX_SCALE = 22;
export const POWERS_OF_TEN: readonly number[] = Array.from({ length: MAX_SCALE + 1 }, (_, n) => Number(`1e${n}`));

/** As many digits of a decimal are its high part; any number of them is exact. */
export const HIGH_DIGITS = 15;
/** And as many more its low part. */
export const LOW_DIGITS = 7;

/**
 * (high x 10^lowDigits + low) x factor / 10^scale, rounded once; NaN where the rounding is not certain. All integers
 * below 2^53, `lowDigits` up to LOW_DIGITS, `scale` up to MAX_SCALE.
 */
export function nearestQuotient(high: number, low: number, lowDigits: number, scale: number, factor = 1): number {
  const shifted = high * POWERS_OF_TEN[lowDigits];
  const sum = shifted + low;
  const added = sum - shifted;
  const sumError = productError(high, POWERS_OF_TEN[lowDigits], shifted) + (shifted - (sum - added)) + (low - added);
  const numerator = sum * factor;
  const numeratorError = productError(sum, factor, numerator) + sumError * factor;

  const divisor = POWERS_OF_TEN[scale];
  const quotient = numerator / divisor;
  const back = quotient * divisor;
  const tail = (numerator - back - productError(quotient, divisor, back) + numeratorError) / divisor;
  const margin = quotient * MARGIN;
  const nearest = quotient + (tail + margin);
  return nearest === quotient + (tail - margin) ? nearest : Number.NaN;
}

/** a x b - product, exactly. */
function productError(a: number, b: number, product: number): number {
  const splitA = SPLITTER * a;
  const highA = splitA - (splitA - a);
  const lowA = a - highA;
  const splitB = SPLITTER * b;
  const highB = splitB - (splitB - b);
  const lowB = b - highB;
  return highA * highB - product + highA * lowB + lowA * highB + lowA * lowB;
}
