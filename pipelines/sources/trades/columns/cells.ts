/**
 * Cells of events for the projector. Each function reads one at `p` and returns the position behind it; what it read is in `value`
 * and its neighbours. A cell that is not as usual clears `isUsual`, which nothing but the next row sets. Nothing is imported from
 * the decoder's scanner, and times, sides and flags come from other operations than there, so that a fault of one shows in the
 * proof. Decimals of up to 15 digits are computed as DecimalReader of exact-decimal.ts computes them, operation by operation.
 */
export const LF: u32 = 10;
export const COMMA: u32 = 44;
const DOT: u32 = 46;
const MINUS: u32 = 45;
const LETTER_E: u32 = 0x65;

export const MAX_EXACT: f64 = 9007199254740992;
const MAX_MANTISSA: u64 = 9007199254740991;
/** An exponent follows at most 15 digits. */
const MAX_BEFORE_E: u64 = 1000000000000000;
/** A u64 holds every whole number of this many digits. */
const MAX_DIGITS: i32 = 19;
const MAX_SCALE: i32 = 22;
/** Units of sums are 10^-8; what is finer is counted in 10^-20. */
const SCALE: i32 = 8;
const UNIT: f64 = 1e8;
const LONG_SCALE: i32 = 20;
/** The quote quantities of exchange B are summed in units of 10^-10; what is finer is counted in 10^-22. */
export const QUOTE_SCALE: i32 = 10;
const FINE_UNIT: f64 = 1e12;
/** Six fine digits. */
const HALF: u64 = 1000000;
/** Places of a price in a long product, and the most that its hundredths may be: a product with half of the fine digits is exact. */
export const TICK_SCALE: i32 = 2;
const MAX_TICKS: f64 = 1099511627776;
/** Relative margin of a sum whose parts were rounded, far more than a few roundings of 2^-53: 2^-50. */
const MARGIN: f64 = 8.881784197001252e-16;
const POWERS: StaticArray<f64> = [
  1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
  1e21, 1e22,
]; // biome-ignore format: one list

export let isUsual: bool = true;
/** The float64 nearest to the last decimal. */
export let value: f64 = 0;
/** The last decimal: units / 10^8 + fine / 10^20. Without meaning where `hasUnits` is false. */
export let units: f64 = 0;
export let fine: f64 = 0;
export let hasUnits: bool = false;
/** The last decimal: mantissa / 10^scale. Without meaning where `isExact` is false. */
export let mantissa: f64 = 0;
export let scale: i32 = 0;
export let isExact: bool = false;
/** The last whole number, side (1: sell) or flag. */
export let whole: u64 = 0;

export function newRow(): void {
  isUsual = true;
}

export function odd(): void {
  isUsual = false;
}

export function power(exponent: i32): f64 {
  return unchecked(POWERS[exponent]);
}

export function byte(p: usize): u32 {
  return load<u8>(p);
}

export function isEnd(p: usize): bool {
  const c = byte(p);
  return c === COMMA || c === LF;
}

export function comma(p: usize): usize {
  if (byte(p) !== COMMA) odd();
  return p + 1;
}

/** The bytes up to the next comma. A zero byte ends the rows. */
export function text(from: usize): usize {
  let p = from;
  for (let c = byte(p); c !== COMMA; c = byte(++p)) {
    if (c === LF || c === 0) {
      odd();
      break;
    }
  }
  return p;
}

/** The bytes up to the end of the row. */
export function rest(from: usize): usize {
  let p = from;
  for (let c = byte(p); c !== LF; c = byte(++p)) {
    if (c === 0) {
      odd();
      break;
    }
  }
  return p;
}

/** A whole number of up to 15 digits. */
export function number(from: usize): usize {
  let p = from;
  let sum: u64 = 0;
  for (let digit = byte(p) - 48; digit <= 9; digit = byte(++p) - 48) sum = sum * 10 + digit;
  if (p === from || p - from > 15) odd();
  whole = sum;
  return p;
}

/** A decimal without a sign. */
export function decimal(from: usize): usize {
  let p = from;
  let sum: u64 = 0;
  for (let digit = byte(p) - 48; digit <= 9; digit = byte(++p) - 48) sum = sum * 10 + digit;
  let count = <i32>(p - from);
  let places: i32 = 0;
  if (byte(p) === DOT) {
    const point = p;
    for (let digit = byte(++p) - 48; digit <= 9; digit = byte(++p) - 48) sum = sum * 10 + digit;
    places = <i32>(p - point - 1);
    count += places;
  }
  if ((byte(p) | 0x20) === LETTER_E && sum < MAX_BEFORE_E && count <= MAX_DIGITS) {
    // `e-05`, as very small quantities are printed.
    const tens = byte(p + 2) - 48;
    const ones = byte(p + 3) - 48;
    if (byte(p + 1) !== MINUS || tens > 9 || ones > 9) odd();
    places += <i32>(tens * 10 + ones);
    p += 4;
    if (places > MAX_SCALE) odd();
  }
  if (count === 0 || !isEnd(p) || !isUsual) {
    odd();
    return p;
  }
  if (count > MAX_DIGITS || sum > MAX_MANTISSA || places > MAX_SCALE) {
    printed(from, p);
    return p;
  }
  const number = <f64>sum;
  isExact = true;
  mantissa = number;
  scale = places;
  value = places === 0 ? number : number / power(places);
  if (places <= SCALE) {
    units = number * power(SCALE - places);
    fine = 0;
    hasUnits = units < MAX_EXACT;
  } else if (places <= LONG_SCALE) {
    const unit = power(places - SCALE);
    units = floor(number / unit);
    fine = (number - units * unit) * power(LONG_SCALE - places);
    hasUnits = true;
  } else {
    hasUnits = false;
  }
  return p;
}

/** Reads more digits than a float64 holds, up to 19 without zeros in front and up to 20 decimals, as floats are printed. */
function printed(from: usize, end: usize): void {
  isExact = false;
  let all: u64 = 0;
  let count: i32 = 0;
  let before: f64 = 0;
  let coarse: f64 = 0;
  let finer: f64 = 0;
  let decimals: i32 = -1;
  for (let p = from; p < end; p++) {
    const c = byte(p);
    if (c === DOT) {
      decimals = 0;
      continue;
    }
    const digit = <f64>(c - 48);
    all = all * 10 + (c - 48);
    // By digit: a number of 20 digits may be 0 in 64 bits.
    if (count > 0 || c !== 48) count++;
    if (decimals < 0) before = before * 10 + digit;
    else if (decimals++ < SCALE) coarse = coarse * 10 + digit;
    else finer = finer * 10 + digit;
  }
  if (decimals < 0 || decimals > LONG_SCALE || count > MAX_DIGITS) {
    odd();
    return;
  }
  units = before * UNIT + coarse;
  fine = finer * power(LONG_SCALE - decimals);
  hasUnits = decimals >= SCALE && units < MAX_EXACT;
  const rounded = <f64>all;
  value = nearest(rounded, <f64>(<i64>(all - <u64>rounded)), power(decimals));
}

/** The float64 nearest to (sum + more) / unit, where the unit is a power of ten. */
function nearest(sum: f64, more: f64, unit: f64): f64 {
  const quotient = sum / unit;
  const left = remainder(sum, quotient, unit);
  const change = (left + more) / unit;
  const margin = ((abs(left) + abs(more)) / unit) * MARGIN;
  const result = quotient + (change + margin);
  if (result !== quotient + (change - margin)) odd();
  return result;
}

/** Exactly sum - quotient x unit, for the rounded quotient: products of a power of ten up to 10^20, which has 47 bits, in halves. */
function remainder(sum: f64, quotient: f64, unit: f64): f64 {
  const a = upper(quotient);
  const b = upper(unit);
  const restA = quotient - a;
  const restB = unit - b;
  return sum - a * b - a * restB - restA * b - restA * restB;
}

/** A float64 with the upper 26 bits of its 53. */
function upper(number: f64): f64 {
  return reinterpret<f64>(reinterpret<u64>(number) & 0xfffffffff8000000);
}

/** The product of two numbers as a decimal of `places` places, in units of 10^-10. */
export function shortProduct(a: f64, b: f64, places: i32): void {
  const product = a * b;
  units = product * power(QUOTE_SCALE - places);
  fine = 0;
  value = product / power(places);
  if (product >= MAX_EXACT || units >= MAX_EXACT) odd();
}

/**
 * The product of `ticks` hundredths and of units / 10^8 + fine / 10^20: whole units of 10^-10, and what is finer in 10^-22. Each
 * half of the fine digits has six.
 */
export function longProduct(ticks: f64, ofUnits: f64, ofFine: f64): void {
  if (ticks >= MAX_TICKS) {
    odd();
    return;
  }
  const factor = <u64>ticks;
  const digits = <u64>ofFine;
  const low = factor * (digits % HALF);
  const high = factor * (digits / HALF) + low / HALF;
  const product = ticks * ofUnits;
  units = product + <f64>(high / HALF);
  fine = <f64>((high % HALF) * HALF + (low % HALF));
  value = nearest(units, fine / FINE_UNIT, power(QUOTE_SCALE));
  if (product >= MAX_EXACT || units >= MAX_EXACT) odd();
}

/** Whether a letter stands at `p`, in any case. */
function letter(p: usize, lower: u32): bool {
  const c = byte(p);
  return c === lower || c === lower - 32;
}

/** `buy` or `sell`, in any case. */
export function side(p: usize): usize {
  const isSell = letter(p, 0x73);
  whole = isSell ? 1 : 0;
  if (isSell) {
    if (!letter(p + 1, 0x65) || !letter(p + 2, 0x6c) || !letter(p + 3, 0x6c)) odd();
    return p + 4;
  }
  if (!letter(p, 0x62) || !letter(p + 1, 0x75) || !letter(p + 2, 0x79)) odd();
  return p + 3;
}

/** `True` or `False` in any case, `1` or `0`. */
export function flag(p: usize): usize {
  const c = byte(p);
  if (c <= 49) {
    if (c < 48) odd();
    whole = c & 1;
    return p + 1;
  }
  const isTrue = letter(p, 0x74);
  whole = isTrue ? 1 : 0;
  if (isTrue) {
    if (!letter(p + 1, 0x72) || !letter(p + 2, 0x75) || !letter(p + 3, 0x65)) odd();
    return p + 4;
  }
  if (!letter(p, 0x66) || !letter(p + 1, 0x61) || !letter(p + 2, 0x6c) || !letter(p + 3, 0x73) || !letter(p + 4, 0x65))
    odd();
  return p + 5;
}

/** Decimal seconds as ms: four decimals, rounded half up. A time that is rounded past the end of its day is left to the projector. */
export function milliseconds(from: usize): usize {
  let p = number(from);
  let tenths = whole;
  let decimals: i32 = 0;
  if (byte(p) === DOT) {
    for (let digit = byte(++p) - 48; digit <= 9; digit = byte(++p) - 48) {
      if (decimals === 4) continue;
      tenths = tenths * 10 + digit;
      decimals++;
    }
  }
  for (; decimals < 4; decimals++) tenths *= 10;
  whole = (tenths + 5) / 10;
  return p;
}
