/**
 * A number as a document prints it: its exact value, and the range of values that round to it. What is computed from
 * printed numbers has the range that follows from theirs, so that two statements are compared with the precision that
 * their document has, and no other.
 */
import Big from 'big.js';

/** Digits of a quotient. The default of 20 would round what a list of many rows adds up to. */
const Quotient = Big();
Quotient.DP = 40;

/** Decimal digits that a double keeps. */
const EXACT_DIGITS = 15;

/** What a number is printed with: it says in which unit the number is. */
export type Sign = '$' | '%';

export class Printed {
  readonly value: Big;
  readonly low: Big;
  readonly high: Big;
  /** Not of what is computed. */
  readonly sign?: Sign;

  constructor(value: Big, low: Big = value, high: Big = value, sign?: Sign) {
    this.sign = sign;
    this.value = value;
    this.low = low;
    this.high = high;
  }

  /** @param place the exponent of ten of the last printed digit; the number is rounded to it. */
  static rounded(value: Big, place: number, sign?: Sign): Printed {
    const half = new Big(`5e${place - 1}`);
    return new Printed(value, value.minus(half), value.plus(half), sign);
  }

  /**
   * A number of JSON. Writers leave out the zeros after a fraction's last digit but none before the point, so the last
   * printed digit of a whole number is that of the units. One that was computed in doubles has fifteen digits that hold.
   */
  static ofJson(value: Big): Printed {
    const lastPlace = value.e - Math.min(value.c.length, EXACT_DIGITS) + 1;
    return Printed.rounded(value, Math.min(0, lastPlace));
  }

  plus(other: Printed): Printed {
    return new Printed(this.value.plus(other.value), this.low.plus(other.low), this.high.plus(other.high));
  }

  times(other: Printed): Printed {
    const ends = [this.low, this.high].flatMap((end) => [end.times(other.low), end.times(other.high)]);
    const [low, high] = [ends.reduce((a, b) => (a.lt(b) ? a : b)), ends.reduce((a, b) => (a.gt(b) ? a : b))];
    return new Printed(this.value.times(other.value), low, high);
  }

  over(divisor: Big | number): Printed {
    const [value, low, high] = [this.value, this.low, this.high].map((end) => new Big(new Quotient(end).div(divisor)));
    return new Printed(value, low, high);
  }

  overlaps(other: Printed): boolean {
    return this.low.lte(other.high) && other.low.lte(this.high);
  }

  /** Whether they are printings of one number, perhaps to different places. Neighbours in the last place are not. */
  coincides(other: Printed): boolean {
    return this.low.lt(other.high) && other.low.lt(this.high);
  }

  toFixed(): string {
    return this.value.toFixed();
  }

  /** For messages: the value and how far it may be off. */
  toString(): string {
    const half = this.high.minus(this.low).div(2);
    const shown = (value: Big) => (value.c.length > 15 ? value.prec(15) : value).toFixed();
    return half.eq(0) ? shown(this.value) : `${shown(this.value)} (+-${half.prec(2).toFixed()})`;
  }
}
