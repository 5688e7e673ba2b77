/**
 * What the generators of trade files share: seeded random numbers, trades of a window, and floats as vendors print
 * them.
 */
import { assert } from '../../../shared/errors.ts';

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

export interface SyntheticTrade {
  /** Position in the day, from 0. */
  readonly index: number;
  /** Milliseconds after the start of the window, with a fraction; never decreasing. */
  readonly offsetMs: number;
  /** Tenths of the quote unit. */
  readonly priceTenths: number;
  readonly buy: boolean;
}

/** Yields `rows` trades of a window in time order, in bursts of equal times, with prices on a random walk. */
export function* syntheticTrades(options: {
  readonly rows: number;
  readonly windowMs: number;
  readonly random: () => number;
  readonly startPriceTenths: number;
}): Generator<SyntheticTrade> {
  const { rows, windowMs, random } = options;
  assert(Number.isSafeInteger(rows) && rows >= 0, 'rows must be a whole number');
  let position = 0;
  let priceTenths = options.startPriceTenths;
  let buy = true;
  for (let index = 0; index < rows; index++) {
    if (index === 0 || random() > 0.5) {
      // The next trade is an order statistic of as many uniform points as there are trades left.
      position += (1 - position) * (1 - (1 - random()) ** (2 / (rows - index + 1)));
      if (random() < 0.35) buy = !buy;
      if (random() < 0.4) priceTenths = Math.max(1000, priceTenths + Math.floor(random() * 41) - 20);
    }
    yield { index, offsetMs: Math.min(windowMs - 1, position * windowMs), priceTenths, buy };
  }
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
