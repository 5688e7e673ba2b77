/**
 * Sums over trades whose quantities have more than eight decimals, as floats are printed, by minute of a file day. As in
 * kline-builder.ts they are small integers in doubles: ticks above the first price, units of 1e-8, and what is finer.
 */
import { bigPowerOfTen, type ExactDecimal } from './exact-decimal.ts';

const UNIT_DECIMALS = 8;
/** Decimals of a unit that are summed, in two halves: a half times the ticks of most trades is far below 2^53. */
const FINE_DECIMALS = 12;
const HALF_DECIMALS = 6;
const POWERS_OF_TEN = Array.from({ length: HALF_DECIMALS + 1 }, (_, exponent) => 10 ** exponent);
const MOST_DECIMALS = UNIT_DECIMALS + FINE_DECIMALS;
/** A sum beyond this is taken before more is added; below 2^53 each addition is exact. */
const TAKEN_AT = 2 ** 52;
/** With these, sums of squares and of halves stay below it. */
const MOST_TICKS = 2 ** 20;
const MOST_TRADES = 2 ** 12;

/** The members of a minute. The scales are the most decimals of a trade's price, quantity and liquidity. */
const COUNT = 0;
const BASE = 1;
const TICKS = 2;
const SQUARES = 3;
const PRICE_SCALE = 4;
/** Sums of all trades, and of those whose buyer was the maker. */
const ALL = 5;
const MAKERS = 13;
const MEMBERS = 21;
/** Within each of the two. */
const UNITS = 0;
const HIGH = 1;
const LOW = 2;
const TICK_UNITS = 3;
const TICK_HIGH = 4;
const TICK_LOW = 5;
const QUANTITY_SCALE = 6;
const LIQUIDITY_SCALE = 7;

export class LongTrades {
  readonly #state: Float64Array;
  /** The last quantity that was read. */
  #units = 0;
  #high = 0;
  #low = 0;
  #decimals = 0;

  constructor(minutes: number) {
    this.#state = new Float64Array(minutes * MEMBERS);
  }

  /** @returns whether the quantity is printed with 9 to 20 decimals and no exponent */
  read(quantity: number): boolean {
    const text = String(quantity);
    const point = text.indexOf('.');
    const decimals = text.length - point - 1;
    if (point < 0 || decimals <= UNIT_DECIMALS || decimals > MOST_DECIMALS) return false;
    let [units, high, low] = [0, 0, 0];
    for (let at = 0; at < text.length; at++) {
      const digit = text.charCodeAt(at) - 48;
      if (at === point) continue;
      if (!(digit >= 0 && digit <= 9)) return false;
      if (at <= point + UNIT_DECIMALS) units = units * 10 + digit;
      else if (at <= point + UNIT_DECIMALS + HALF_DECIMALS) high = high * 10 + digit;
      else low = low * 10 + digit;
    }
    const ofHigh = Math.min(decimals - UNIT_DECIMALS, HALF_DECIMALS);
    this.#units = units;
    this.#high = high * POWERS_OF_TEN[HALF_DECIMALS - ofHigh];
    this.#low = low * POWERS_OF_TEN[MOST_DECIMALS - HALF_DECIMALS - decimals + ofHigh];
    this.#decimals = decimals;
    return true;
  }

  /**
   * Adds a trade of the quantity that was read, at a price of `ticks` / 10^tickDecimals. @returns whether it could be added to what
   * was not taken yet
   */
  add(minute: number, ticks: number, tickDecimals: number, isMaker: number): boolean {
    const state = this.#state;
    const at = minute * MEMBERS;
    if (state[at + COUNT] === 0) state[at + BASE] = ticks;
    const above = ticks - state[at + BASE];
    if (
      Math.abs(above) >= MOST_TICKS ||
      state[at + COUNT] >= MOST_TRADES ||
      state[at + ALL + UNITS] + this.#units >= TAKEN_AT ||
      Math.abs(state[at + ALL + TICK_UNITS]) + Math.abs(above * this.#units) >= TAKEN_AT ||
      Math.abs(state[at + MAKERS + TICK_UNITS]) + Math.abs(above * this.#units) >= TAKEN_AT
    ) {
      return false;
    }
    let priceScale = tickDecimals;
    for (let left = ticks; priceScale > 0 && left % 10 === 0; left /= 10) priceScale--;
    state[at + COUNT]++;
    state[at + TICKS] += above;
    state[at + SQUARES] += above * above;
    if (priceScale > state[at + PRICE_SCALE]) state[at + PRICE_SCALE] = priceScale;
    this.#addTo(at + ALL, above, priceScale);
    if (isMaker === 1) this.#addTo(at + MAKERS, above, priceScale);
    return true;
  }

  #addTo(sums: number, above: number, priceScale: number): void {
    const state = this.#state;
    state[sums + UNITS] += this.#units;
    state[sums + HIGH] += this.#high;
    state[sums + LOW] += this.#low;
    state[sums + TICK_UNITS] += above * this.#units;
    state[sums + TICK_HIGH] += above * this.#high;
    state[sums + TICK_LOW] += above * this.#low;
    state[sums + QUANTITY_SCALE] = Math.max(state[sums + QUANTITY_SCALE], this.#decimals);
    state[sums + LIQUIDITY_SCALE] = Math.max(state[sums + LIQUIDITY_SCALE], priceScale + this.#decimals);
  }

  /**
   * The exact totals of a minute, with the scales that sums of its trades' decimals have; undefined without trades. None is left.
   * With base b, the sum of squares is n b² + 2 b Σd + Σd².
   */
  take(minute: number, tickDecimals: number) {
    const at = minute * MEMBERS;
    const state = this.#state.subarray(at, at + MEMBERS);
    if (state[COUNT] === 0) return undefined;
    const [count, base, ticks, squares] = Array.from(state.subarray(0, PRICE_SCALE), BigInt);
    const priceScale = state[PRICE_SCALE];
    const sumsOf = (sums: Float64Array) => {
      const [units, high, low, tickUnits, tickHigh, tickLow] = Array.from(sums.subarray(0, QUANTITY_SCALE), BigInt);
      const quantity = together(units, high, low);
      const liquidity = base * quantity + together(tickUnits, tickHigh, tickLow);
      return {
        quantity: rescaled(quantity, MOST_DECIMALS, sums[QUANTITY_SCALE]),
        liquidity: rescaled(liquidity, tickDecimals + MOST_DECIMALS, sums[LIQUIDITY_SCALE]),
      };
    };
    const all = sumsOf(state.subarray(ALL, MAKERS));
    const makers = sumsOf(state.subarray(MAKERS, MEMBERS));
    state.fill(0);
    return {
      price: rescaled(count * base + ticks, tickDecimals, priceScale),
      priceSquare: rescaled(count * base * base + 2n * base * ticks + squares, 2 * tickDecimals, 2 * priceScale),
      quantity: all.quantity,
      liquidity: all.liquidity,
      makerQuantity: makers.quantity,
      makerLiquidity: makers.liquidity,
    };
  }
}

const together = (units: bigint, high: bigint, low: bigint): bigint =>
  units * bigPowerOfTen(FINE_DECIMALS) + high * bigPowerOfTen(HALF_DECIMALS) + low;

/** With fewer decimals; the others are zeros. */
const rescaled = (mantissa: bigint, from: number, scale: number): ExactDecimal => ({
  mantissa: mantissa / bigPowerOfTen(from - scale),
  scale,
});
