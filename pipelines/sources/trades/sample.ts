/** What the generators of trade files share: seeded random numbers, and floats as vendors print them. */

/** Uniform in [0, 1), the same on every machine (mulberry32). */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
  };
}

/** A float as the vendors' programs print it: shortest form, `.0` after whole numbers, exponents of two digits. */
export function printedFloat(value: number): string {
  if (value !== 0 && (value < 1e-4 || value >= 1e16)) {
    const [digits, exponent] = value.toExponential().split('e');
    const power = exponent.slice(1).padStart(2, '0');
    return `${digits}e${exponent[0]}${power}`;
  }
  return Number.isInteger(value) ? `${value}.0` : String(value);
}

/** Joins lines into chunks of about 1 MiB. */
export function* inPieces(lines: Iterable<string>): Generator<Buffer> {
  let pending: string[] = [];
  let length = 0;
  for (const line of lines) {
    pending.push(line);
    length += line.length;
    if (length < 1024 * 1024) continue;
    yield Buffer.from(pending.join(''), 'latin1');
    pending = [];
    length = 0;
  }
  if (pending.length > 0) yield Buffer.from(pending.join(''), 'latin1');
}

/** The seed of another instrument than the default: their trades have nothing in common. */
export const seedOf = (seed: number, symbol: string): number =>
  [...symbol].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 1_000_003, seed);
