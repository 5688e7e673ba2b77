/**
 * Cells of rows that are written as usual. Each function reads one at `p` and returns the position behind it; what it read is in
 * `value` and its neighbours. A cell that is not as usual clears `isUsual`, which nothing but the next row sets.
 */
export const LF: u32 = 10;
const CR: u32 = 13;
export const COMMA: u32 = 44;
export const DOT: u32 = 46;
const PLUS: u32 = 43;
const MINUS: u32 = 45;
const LETTER_E: u32 = 0x65;

/** Units of 1 in prices and quantities, as in row-reader.ts. */
export const SCALE: f64 = 1e8;
/** Sums of so many units of MAX_ROWS rows fit in an i64; larger values are left to the decoder. */
const EXACT_UNITS: f64 = 2251799813685248;
const MAX_EXACT: u64 = 1 << 53;
export const MAX_SCALE: i32 = 22;
const SCALE_DIGITS: i32 = 8;
/** A u64 holds every whole number of this many digits. */
const MAX_DIGITS: usize = 19;
/** As in row-reader.ts. */
const SPLITTER: f64 = 134217729;
const MARGIN: f64 = 2.0194839173657902e-28;
const POWERS: StaticArray<f64> = [
  1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
  1e21, 1e22,
]; // biome-ignore format: one list

export let isUsual: bool = true;
/** The last decimal: its value is digits / 10^scale. Where its units are not a whole number, they are rounded as PostgreSQL rounds. */
export let value: f64 = 0;
export let units: u64 = 0;
export let digits: u64 = 0;
export let scale: i32 = 0;
/** The last whole number, side (0: buy) or flag. */
export let whole: u64 = 0;

export function newRow(): void {
  isUsual = true;
}

export function odd(): void {
  isUsual = false;
}

export function byte(p: usize): u32 {
  return load<u8>(p);
}

export function isEnd(p: usize): bool {
  const c = byte(p);
  return c === COMMA || c === LF || c === CR;
}

export function comma(p: usize): usize {
  if (byte(p) !== COMMA) odd();
  return p + 1;
}

/** A whole number of up to `most` digits, at most 19. */
export function number(from: usize, most: usize): usize {
  let p = from;
  let sum: u64 = 0;
  for (let digit = byte(p) - 48; digit <= 9; digit = byte(++p) - 48) sum = sum * 10 + digit;
  if (p === from || p - from > most) odd();
  whole = sum;
  return p;
}

/** An id without leading zeros, below 10^15. */
export function offset(p: usize): usize {
  if (byte(p) === 48 && byte(p + 1) - 48 <= 9) odd();
  return number(p, 15);
}

/** A decimal of up to 19 digits, not counting zeros in front. @param unit the units of 1 */
export function decimal(from: usize, zeroIsLegal: bool, unit: f64): usize {
  let p = from;
  let sum: u64 = 0;
  for (let digit = byte(p) - 48; digit <= 9; digit = byte(++p) - 48) sum = sum * 10 + digit;
  let count = p - from;
  let decimals: i32 = 0;
  if (byte(p) === DOT) {
    const point = p;
    for (let digit = byte(++p) - 48; digit <= 9; digit = byte(++p) - 48) sum = sum * 10 + digit;
    decimals = <i32>(p - point - 1);
    count += decimals;
  }
  if (decimals <= SCALE_DIGITS && isEnd(p) && count <= MAX_DIGITS && sum > 0 && unit === SCALE) {
    const exact = <f64>sum * unchecked(POWERS[SCALE_DIGITS - decimals]);
    if (exact < EXACT_UNITS) {
      digits = sum;
      scale = decimals;
      units = <u64>exact;
      value = exact / SCALE;
      return p;
    }
  }
  if (count > MAX_DIGITS) count -= zerosAt(from);
  return unusualDecimal(p, sum, count, decimals, zeroIsLegal, unit);
}

/** How many zeros a decimal begins with. */
function zerosAt(from: usize): usize {
  let zeros: usize = 0;
  for (let p = from; byte(p) === 48 || byte(p) === DOT; p++) if (byte(p) === 48) zeros++;
  return zeros;
}

/** The end of a decimal that has more digits, an exponent or other units, or is 0. */
function unusualDecimal(from: usize, sum: u64, count: usize, decimals: i32, zeroIsLegal: bool, unit: f64): usize {
  let p = from;
  let places = decimals;
  if ((byte(p) | 0x20) === LETTER_E) {
    const isNegative = byte(++p) === MINUS;
    if (isNegative || byte(p) === PLUS) p++;
    p = number(p, 3);
    places += isNegative ? <i32>whole : -(<i32>whole);
  }
  if (count === 0 || count > MAX_DIGITS || !isEnd(p) || places < 0 || places > MAX_SCALE) {
    odd();
    return p;
  }
  if (sum === 0 && !zeroIsLegal) odd();
  digits = sum;
  scale = places;
  value = quotient(sum, 1, places);
  units = rounded(value * unit);
  return p;
}

/** A value as PostgreSQL rounds it. */
export function rounded(value: f64): u64 {
  const result = nearest(value);
  // Also where the value is NaN: its rounding was uncertain.
  if (!(result < EXACT_UNITS)) {
    odd();
    return 0;
  }
  return <u64>result;
}

/**
 * The float64 nearest to digits x factor / 10^scale, rounded once: it divides in twice the precision (Dekker's exact products and
 * one correction step). NaN if the result is too close to a tie; the row is then left to RowReader.
 */
export function quotient(digits: u64, factor: f64, scale: i32): f64 {
  const divisor = unchecked(POWERS[scale]);
  const high = <f64>digits;
  const numerator = high * factor;
  if (digits < MAX_EXACT && numerator < <f64>MAX_EXACT) return numerator / divisor;
  const low = <f64>(<i64>(digits - <u64>high));
  const error = productError(high, factor, numerator) + low * factor;
  const result = numerator / divisor;
  const back = result * divisor;
  const tail = (numerator - back - productError(result, divisor, back) + error) / divisor;
  const margin = result * MARGIN;
  const nearest = result + (tail + margin);
  return nearest === result + (tail - margin) ? nearest : NaN;
}

/** The exact value of a x b - product. */
function productError(a: f64, b: f64, product: f64): f64 {
  const splitA = SPLITTER * a;
  const highA = splitA - (splitA - a);
  const lowA = a - highA;
  const splitB = SPLITTER * b;
  const highB = splitB - (splitB - b);
  const lowB = b - highB;
  return highA * highB - product + highA * lowB + lowA * highB + lowA * lowB;
}

/** `buy` or `sell`, in any case. */
export function side(p: usize): usize {
  const word = load<u32>(p) | 0x20202020;
  if ((word & 0xffffff) === 0x797562) {
    whole = 0;
    return p + 3;
  }
  if (word !== 0x6c6c6573) odd();
  whole = 1;
  return p + 4;
}

/** `True` or `False` in any case, `1` or `0`. */
export function flag(p: usize): usize {
  const first = byte(p);
  if (first === 48 || first === 49) {
    whole = first - 48;
    return p + 1;
  }
  const word = load<u32>(p) | 0x20202020;
  if (word === 0x65757274) {
    whole = 1;
    return p + 4;
  }
  if (word !== 0x736c6166 || (byte(p + 4) | 0x20) !== 0x65) odd();
  whole = 0;
  return p + 5;
}

/** The bytes that every row has here. */
export function known(p: usize, text: usize, length: u32): usize {
  if (memory.compare(p, text, length) !== 0) odd();
  return p + length;
}

/** A word of up to 32 letters. */
export function letters(from: usize): usize {
  let p = from;
  while ((byte(p) | 0x20) - 0x61 <= 25) p++;
  if (p === from || p - from > 32) odd();
  return p;
}

/** Decimal seconds as ms, rounded half up; within the window. A time that rounds to its end becomes its last millisecond. */
export function seconds(from: usize, fromMs: u64, toMs: u64): usize {
  let p = number(from, 11);
  const before = whole * 1000;
  let ms = before;
  if (byte(p) === DOT) {
    const point = p++;
    // The fourth decimal decides the rounding.
    let tenths: u32 = 0;
    let decimals: i32 = 0;
    for (let digit = byte(p) - 48; digit <= 9; digit = byte(++p) - 48) {
      if (decimals === 4) continue;
      tenths = tenths * 10 + digit;
      decimals++;
    }
    if (p === point + 1 || p - point > 20) odd();
    for (; decimals < 4; decimals++) tenths *= 10;
    ms += (tenths + 5) / 10;
  }
  if (ms === toMs && before < toMs) ms--;
  if (ms < fromMs || ms >= toMs) odd();
  whole = ms;
  return p;
}

/** Empty, `true`, `false`, `0` or `1`, in lower case. */
export function flagOrNone(p: usize): usize {
  if (isEnd(p)) return p;
  if (byte(p) === 48 || byte(p) === 49) return p + 1;
  if (load<u32>(p) === 0x65757274) return p + 4;
  if (load<u32>(p) !== 0x736c6166 || byte(p + 4) !== 0x65) odd();
  return p + 5;
}
