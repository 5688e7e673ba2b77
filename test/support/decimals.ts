/** Decimals as texts and exact integers, for tests to compute with. */
export const TEN = 10n;
/** What exactDecimal counts in: finer than anything a file holds. */
const PLACES = 30;

/** The value of a decimal over 10^30. */
export function exactDecimal(text: string): bigint {
  const [, whole = '', fraction = '', exponent = '0'] = /^\+?(\d*)\.?(\d*)(?:e([+-]?\d+))?$/i.exec(text)!;
  const places = fraction.length - Number(exponent);
  return BigInt(`${whole}${fraction}` || '0') * TEN ** BigInt(PLACES - places);
}

/** Digits with a point `places` from the right. */
export function fixed(digits: string, places: number): string {
  const padded = digits.padStart(places + 1, '0');
  return places === 0 ? padded : `${padded.slice(0, -places)}.${padded.slice(-places)}`;
}

/** To an integer, halves to even: what adding and taking away 2^52 leaves of a float64. */
export const rint = (value: number): number => (value < 2 ** 52 ? value + 2 ** 52 - 2 ** 52 : value);

/** Units of a stored double in a total: rounded as a float64, and from its own decimals where that may be off by one. */
export function unitsOf(value: number, scale: number): bigint {
  const product = value * 10 ** scale;
  if (scale === 0 || product < 2 ** 51) return BigInt(rint(product));
  const half = 5n * TEN ** BigInt(PLACES - scale - 1);
  return (exactDecimal(String(value)) + half) / TEN ** BigInt(PLACES - scale);
}
