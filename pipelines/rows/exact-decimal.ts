/** Reads exact decimals from text bytes, for the projector. Decoders have code of their own, so that a fault shows. */

import { TidemarkError } from '../../shared/errors.ts';

const POWERS_OF_TEN = Array.from({ length: 23 }, (_, exponent) => Number(`1e${exponent}`));

export interface ExactDecimal {
  readonly mantissa: bigint;
  /** Value = mantissa / 10^scale. */
  readonly scale: number;
}

const BIG_POWERS_OF_TEN = Array.from({ length: 64 }, (_, exponent) => 10n ** BigInt(exponent));
export const bigPowerOfTen = (exponent: number): bigint => BIG_POWERS_OF_TEN[exponent] ?? 10n ** BigInt(exponent);
/** Any integer of this many digits is exact in float64. */
const PIECE_DIGITS = 15;

/** `1.5e-05` -> 15 / 10^6. A decoder has checked that the text is a number. */
export function exactDecimal(text: string): ExactDecimal {
  // Two pieces of fifteen digits hold a printed float; the BigInt is made once, not digit by digit.
  let high = 0;
  let low = 0;
  let digits = 0;
  let scale = -1;
  for (let at = 0; at < text.length; at++) {
    const digit = text.charCodeAt(at) - 48;
    if (digit === -2 && scale < 0) {
      scale = 0;
    } else if (digit >= 0 && digit <= 9 && digits < 2 * PIECE_DIGITS) {
      if (digits < PIECE_DIGITS) high = high * 10 + digit;
      else low = low * 10 + digit;
      // Leading zeros do not count.
      if (high > 0) digits++;
      if (scale >= 0) scale++;
    } else {
      return decimalOfText(text);
    }
  }
  const mantissa =
    digits <= PIECE_DIGITS ? BigInt(high) : BigInt(high) * bigPowerOfTen(digits - PIECE_DIGITS) + BigInt(low);
  return { mantissa, scale: Math.max(scale, 0) };
}

/** Limit of digits and of the exponent: more than a row of 512 bytes can hold for a finite float64. */
const MOST_DIGITS = 1024;

/** Also reads a sign and an exponent. @throws TidemarkError LOG_DAMAGED for a number that is too long. */
function decimalOfText(text: string): ExactDecimal {
  const [coefficient, exponent = '0'] = text.toLowerCase().split('e');
  const [whole, fraction = ''] = coefficient.split('.');
  const scale = fraction.length - Number(exponent);
  if (text.length > MOST_DIGITS || !(Math.abs(scale) <= MOST_DIGITS)) {
    const shown = JSON.stringify(text.slice(0, 40));
    throw new TidemarkError('LOG_DAMAGED', `A frame holds a number that is too long: ${shown}`);
  }
  const mantissa = BigInt(`${whole}${fraction}`.replace(/^\+/, '') || '0');
  return scale >= 0 ? { mantissa, scale } : { mantissa: mantissa * 10n ** BigInt(-scale), scale: 0 };
}

/** The float64 nearest to mantissa / 10^scale: the quotient of two exact integers, or the parsed text. */
export function nearestFloat(mantissa: bigint, scale: number): number {
  if (mantissa <= 9007199254740991n && scale <= 22) return Number(mantissa) / POWERS_OF_TEN[scale];
  const digits = mantissa.toString().padStart(scale + 1, '0');
  return Number(`${digits.slice(0, digits.length - scale)}.${digits.slice(digits.length - scale)}`);
}

const MAX_EXACT = 2 ** 53;
/** Exchanges print 1e-8. */
const USUAL_SCALE = 8;
/** Decimals after those of a unit, which are summed separately: floats are printed with up to 20 in all. */
const FINE_DIGITS = 12;
const FINE_LIMIT = 10 ** FINE_DIGITS;
const LONG_SCALE = USUAL_SCALE + FINE_DIGITS;
const UNIT = 10 ** USUAL_SCALE;
/** Relative margin of a fraction that was rounded once: far more than its error (2^-53). */
const FRACTION_MARGIN = 2 ** -50;

/**
 * Exact sums of decimals by bucket: integers in units of 10^-scale in a float64 array, finer digits in a second array,
 * and BigInts for buckets that outgrow both. A sum is rounded once, when it is read.
 */
export class ExactBuckets {
  readonly #units: Float64Array;
  #scale: number;
  /** The rest below one unit, in 10^-12 of it; allocated with the first long decimal. */
  #fine: Float64Array | undefined;
  readonly #large = new Map<number, ExactDecimal>();

  constructor(buckets: number, scale = USUAL_SCALE) {
    this.#units = new Float64Array(buckets);
    this.#scale = scale;
  }

  /** Whether units are those of DecimalReader. */
  get hasUsualScale(): boolean {
    return this.#scale === USUAL_SCALE;
  }

  /** Sets all sums to 0. */
  clear(scale = USUAL_SCALE): void {
    this.#units.fill(0);
    this.#fine = undefined;
    this.#large.clear();
    this.#scale = scale;
  }

  /** Adds mantissa / 10^scale; both are exact in float64. */
  add(bucket: number, mantissa: number, scale: number): void {
    const fast = this.#scale;
    if (scale > fast) {
      this.#addFine(bucket, mantissa, scale);
      return;
    }
    const sum = this.#units[bucket] + mantissa * POWERS_OF_TEN[fast - scale];
    if (sum < MAX_EXACT) this.#units[bucket] = sum;
    else this.addExact(bucket, { mantissa: BigInt(mantissa), scale });
  }

  #addFine(bucket: number, mantissa: number, scale: number): void {
    const longScale = this.#scale + FINE_DIGITS;
    if (scale > longScale) {
      this.addExact(bucket, { mantissa: BigInt(mantissa), scale });
      return;
    }
    const unit = POWERS_OF_TEN[scale - this.#scale];
    // The quotient of a mantissa below 2^53 is too far from the next integer to be rounded up to it.
    const units = Math.floor(mantissa / unit);
    this.addLong(bucket, units, (mantissa - units * unit) * POWERS_OF_TEN[longScale - scale]);
  }

  /** Adds units of 10^-scale, and what is finer in 10^-12 of one. */
  addLong(bucket: number, units: number, fine: number): void {
    this.#fine ??= new Float64Array(this.#units.length);
    let sum = this.#units[bucket] + units;
    let rest = this.#fine[bucket] + fine;
    if (rest >= FINE_LIMIT) {
      rest -= FINE_LIMIT;
      sum++;
    }
    if (sum < MAX_EXACT) {
      this.#units[bucket] = sum;
      this.#fine[bucket] = rest;
    } else {
      this.addExact(bucket, longDecimal(units, fine, this.#scale));
    }
  }

  addExact(bucket: number, value: ExactDecimal): void {
    const before = this.#large.get(bucket) ?? { mantissa: 0n, scale: 0 };
    this.#large.set(bucket, addDecimals(before, value));
  }

  /** The bucket's sum as the nearest float64. */
  value(bucket: number): number {
    const units = this.#units[bucket];
    const fine = this.#fine?.[bucket] ?? 0;
    const large = this.#large.get(bucket);
    if (large === undefined && fine === 0) return units / POWERS_OF_TEN[this.#scale];
    const small = fine === 0 ? { mantissa: BigInt(units), scale: this.#scale } : longDecimal(units, fine, this.#scale);
    const sum = large === undefined ? small : addDecimals(large, small);
    return nearestFloat(sum.mantissa, sum.scale);
  }
}

const longDecimal = (units: number, fine: number, scale: number): ExactDecimal => ({
  mantissa: BigInt(units) * BigInt(FINE_LIMIT) + BigInt(fine),
  scale: scale + FINE_DIGITS,
});

export function addDecimals(a: ExactDecimal, b: ExactDecimal): ExactDecimal {
  if (a.scale === b.scale) return { mantissa: a.mantissa + b.mantissa, scale: a.scale };
  const [fine, coarse] = a.scale > b.scale ? [a, b] : [b, a];
  return { mantissa: fine.mantissa + coarse.mantissa * bigPowerOfTen(fine.scale - coarse.scale), scale: fine.scale };
}

/** Reads the decimals of a row's bytes one after another; `end` is the position after the last one. */
export class DecimalReader {
  end = 0;
  value = 0;
  /** The exact mantissa and scale of the value; if `inexact` is set, the caller parses the text. */
  mantissa = 0;
  scale = 0;
  inexact = false;
  /** Whether an inexact value equals units / 10^8 + fine / 10^20, as printed floats do. */
  long = false;
  units = 0;
  fine = 0;

  read(bytes: Buffer, start: number, delimiter: number): void {
    let mantissa = 0;
    let scale = -1;
    let at = start;
    for (let byte = bytes[at]; byte !== delimiter; byte = bytes[++at]) {
      if (byte === 46) {
        scale = 0;
      } else {
        const digit = byte - 48;
        // In this form undefined, at the end of the bytes, ends the loop as well.
        if (!(digit >= 0 && digit <= 9)) {
          if (!this.#readExponent(bytes, at, delimiter, mantissa, Math.max(scale, 0))) {
            this.#readText(bytes, start, bytes.indexOf(delimiter, start));
          }
          return;
        }
        mantissa = mantissa * 10 + digit;
        if (scale >= 0) scale++;
      }
    }
    if (mantissa > 9007199254740991 || scale > 22) {
      this.#readText(bytes, start, at);
      return;
    }
    this.end = at;
    this.inexact = false;
    this.mantissa = mantissa;
    this.scale = Math.max(scale, 0);
    this.value = scale <= 0 ? mantissa : mantissa / POWERS_OF_TEN[scale];
  }

  /**
   * Reads `e-05` after up to fifteen digits, as very small quantities are printed. @returns whether the bytes hold
   * that.
   */
  #readExponent(bytes: Buffer, e: number, delimiter: number, mantissa: number, decimals: number): boolean {
    if ((bytes[e] | 0x20) !== 0x65 || bytes[e + 1] !== 45 || mantissa >= 1e15) return false;
    const [tens, ones] = [bytes[e + 2] - 48, bytes[e + 3] - 48];
    if (!(tens >= 0 && tens <= 9 && ones >= 0 && ones <= 9) || bytes[e + 4] !== delimiter) return false;
    const scale = decimals + tens * 10 + ones;
    if (scale > 22) return false;
    this.end = e + 4;
    this.inexact = false;
    this.mantissa = mantissa;
    this.scale = scale;
    this.value = mantissa / POWERS_OF_TEN[scale];
    return true;
  }

  /** Reads more digits than a float64 holds, or another form. `end` is -1 if no delimiter follows. */
  #readText(bytes: Buffer, start: number, end: number): void {
    this.end = end;
    this.inexact = true;
    this.long = false;
    // Rows with printed floats, such as exchange C's, take a fifth less time than through a text.
    if (this.#readPrinted(bytes, start, end)) return;
    const text = bytes.toString('latin1', start, end);
    this.value = Number(text);
    if (end < start || !Number.isFinite(this.value)) {
      throw new TidemarkError(
        'LOG_DAMAGED',
        `A frame holds something other than a number: ${JSON.stringify(text.slice(0, 40))}`,
      );
    }
  }

  /**
   * Reads digits with a point and up to 20 decimals: the nearest float64, and exact units where there are eight
   * decimals or more. @returns false if the nearest float64 is uncertain.
   */
  #readPrinted(bytes: Buffer, start: number, end: number): boolean {
    let whole = 0;
    let coarse = 0;
    let fine = 0;
    let decimals = -1;
    for (let at = start; at < end; at++) {
      const digit = bytes[at] - 48;
      if (digit === -2 && decimals < 0) {
        decimals = 0;
        continue;
      }
      if (!(digit >= 0 && digit <= 9)) return false;
      if (decimals < 0) whole = whole * 10 + digit;
      else if (decimals++ < USUAL_SCALE) coarse = coarse * 10 + digit;
      else fine = fine * 10 + digit;
    }
    if (decimals < 0 || decimals > LONG_SCALE) return false;
    const units = whole * UNIT + coarse;
    if (decimals >= USUAL_SCALE && units < MAX_EXACT) {
      this.long = true;
      this.units = units;
      this.fine = fine * POWERS_OF_TEN[LONG_SCALE - decimals];
    }
    return this.#addFraction(whole, coarse * POWERS_OF_TEN[Math.max(decimals - USUAL_SCALE, 0)] + fine, decimals);
  }

  /**
   * Finds the float64 nearest to whole + fraction / 10^decimals by adding the two, each rounded once. The remainder of
   * the sum is known up to the rounding of the fraction. @returns false where that rounding could change the result.
   */
  #addFraction(whole: number, fraction: number, decimals: number): boolean {
    if (whole >= MAX_EXACT || fraction >= MAX_EXACT) return false;
    const small = fraction / POWERS_OF_TEN[decimals];
    const sum = whole + small;
    // Exact, as the whole is 0 or larger than the fraction.
    const rest = small - (sum - whole);
    const margin = whole === 0 ? 0 : small * FRACTION_MARGIN;
    this.value = sum + (rest + margin);
    return this.value === sum + (rest - margin);
  }
}

/** The exact value that a reader read from `start`. */
const exactOf = (reader: DecimalReader, bytes: Buffer, start: number): ExactDecimal =>
  reader.inexact
    ? exactDecimal(bytes.toString('latin1', start, reader.end))
    : { mantissa: BigInt(reader.mantissa), scale: reader.scale };

/** The product of two decimals: exact, and as the nearest float64. */
export class DecimalProduct {
  value = 0;
  /** As in a DecimalReader; `exact` replaces both where it is set. */
  mantissa = 0;
  scale = 0;
  exact: ExactDecimal | undefined;

  multiply(bytes: Buffer, a: DecimalReader, aStart: number, b: DecimalReader, bStart: number): void {
    if (!a.inexact && !b.inexact) {
      this.mantissa = a.mantissa * b.mantissa;
      this.scale = a.scale + b.scale;
      if (this.mantissa < MAX_EXACT && this.scale <= 22) {
        this.exact = undefined;
        this.value = this.mantissa / POWERS_OF_TEN[this.scale];
        return;
      }
    }
    const [x, y] = [exactOf(a, bytes, aStart), exactOf(b, bytes, bStart)];
    this.exact = { mantissa: x.mantissa * y.mantissa, scale: x.scale + y.scale };
    this.value = nearestFloat(this.exact.mantissa, this.exact.scale);
  }
}
