/**
 * The market that every synthetic document tells of: one price at each moment, and how busy each hour of the day is. The
 * price is a function of time alone, so that days, exchanges and funds agree without knowing of each other, and any day
 * can be made without those before it.
 */
import { DAY_MS } from '../../shared/dates.ts';

const HOUR_MS = 3_600_000;
const HOURS = 24;

/** How busy each hour of the day is, UTC: Asia's morning, Europe's, and most of all the hours of New York. */
const ACTIVITY = [
  0.95, 1.0, 0.9, 0.75, 0.65, 0.6, 0.65, 0.8, 0.95, 0.95, 0.9, 0.9, 1.05, 1.4, 1.75, 1.7, 1.5, 1.25, 1.1, 1.1, 1.05,
  0.95, 0.8, 0.75,
] as const;
const DAYS_ACTIVITY = ACTIVITY.reduce((sum, hour) => sum + hour, 0);
/** The share of the day's activity before each hour. */
const BEFORE_HOUR = ACTIVITY.map(
  (_, hour) => ACTIVITY.slice(0, hour).reduce((sum, one) => sum + one, 0) / DAYS_ACTIVITY,
);

/** What other coins cost of a bitcoin, on a market in which all of them move together. */
const COINS: Readonly<Record<string, number>> = { ETH: 0.055, SOL: 0.0022 };

/** The price of an instrument at that time, where it is not bitcoin's; by the beginning of its symbol, as far as it is known. */
export function coinPriceAt(symbol: string, ms: number): number | undefined {
  const coin = Object.keys(COINS).find((name) => symbol.startsWith(name));
  return coin === undefined ? undefined : COINS[coin] * new MarketPrice().at(ms);
}

/** How busy the market is at that time; 1 on average. */
export const activityAt = (ms: number): number => (ACTIVITY[Math.floor(ms / HOUR_MS) % HOURS] * HOURS) / DAYS_ACTIVITY;

/** Days of activity that have passed since 1970. The price moves by it: a busy hour moves it more. */
function activeDays(ms: number): number {
  const day = Math.floor(ms / DAY_MS);
  const hours = (ms - day * DAY_MS) / HOUR_MS;
  const hour = Math.floor(hours);
  return day + BEFORE_HOUR[hour] + ((hours - hour) * ACTIVITY[hour]) / DAYS_ACTIVITY;
}

/** The price around which the path wanders, in the quote unit. */
const LEVEL = 64_000;
/** Standard deviation of a day's change of the price's logarithm. */
const DAILY_CHANGE = 0.017;
/** The path passes through points this many days apart, which do not depend on each other: it never leaves its level. */
const SPAN_DAYS = 64;
const SPAN_MS = SPAN_DAYS * DAY_MS;
const POINT_CHANGE = 0.12;
/** 64 days halved this often are 84 s, within which the price is a straight line. */
const DEPTH = 16;

/** 32 well mixed bits of two whole numbers. */
function mixed(a: number, b: number): number {
  let z = (Math.imul(a, 0x9e3779b1) ^ Math.imul(b, 0x85ebca6b)) >>> 0;
  z = Math.imul(z ^ (z >>> 16), 0x7feb352d);
  z = Math.imul(z ^ (z >>> 15), 0x846ca68b);
  return (z ^ (z >>> 16)) >>> 0;
}

/** Uniform in [0, 1), the same for the same two whole numbers on every machine. */
export const chance = (a: number, b: number): number => mixed(a, b) / 2 ** 32;

/** Nearly normal with variance 1, the sum of four uniform numbers: it needs no function that machines compute differently. */
function normal(a: number, b: number): number {
  const [one, two] = [mixed(a, b), mixed(a ^ 0x5bd1e995, b)];
  const sum = (one & 0xffff) + (one >>> 16) + (two & 0xffff) + (two >>> 16);
  return (sum / 65_535 - 2) * Math.sqrt(3);
}

/**
 * The path of the price: a random walk, made by halving a span of days again and again, and moving each middle by chance. It
 * keeps the halves that lead to the last moment, so that moments near each other cost little.
 */
export class MarketPrice {
  /** By depth, the ends of the part that holds the last moment: time, active days, and the logarithm of price / level. */
  readonly #fromMs = new Float64Array(DEPTH + 1);
  readonly #toMs = new Float64Array(DEPTH + 1);
  readonly #fromActive = new Float64Array(DEPTH + 1);
  readonly #toActive = new Float64Array(DEPTH + 1);
  readonly #from = new Float64Array(DEPTH + 1);
  readonly #to = new Float64Array(DEPTH + 1);
  /** The number of the part among all of its depth. */
  readonly #part = new Float64Array(DEPTH + 1);
  #span = 0;

  /** In the quote unit. */
  at(ms: number): number {
    let depth = DEPTH;
    while (depth > 0 && !(this.#fromMs[depth] <= ms && ms < this.#toMs[depth])) depth--;
    if (depth === 0) this.#begin(Math.floor(ms / SPAN_MS));
    for (; depth < DEPTH; depth++) this.#halve(depth, ms);
    const share = (ms - this.#fromMs[DEPTH]) / (this.#toMs[DEPTH] - this.#fromMs[DEPTH]);
    return LEVEL * Math.exp(this.#from[DEPTH] + (this.#to[DEPTH] - this.#from[DEPTH]) * share);
  }

  #begin(span: number): void {
    this.#span = span;
    this.#part[0] = 1;
    this.#fromMs[0] = span * SPAN_MS;
    this.#toMs[0] = (span + 1) * SPAN_MS;
    this.#fromActive[0] = span * SPAN_DAYS;
    this.#toActive[0] = (span + 1) * SPAN_DAYS;
    this.#from[0] = POINT_CHANGE * normal(span, 0);
    this.#to[0] = POINT_CHANGE * normal(span + 1, 0);
  }

  #halve(depth: number, ms: number): void {
    const middleMs = (this.#fromMs[depth] + this.#toMs[depth]) / 2;
    const active = activeDays(middleMs);
    const [before, after] = [active - this.#fromActive[depth], this.#toActive[depth] - active];
    const deviation = DAILY_CHANGE * Math.sqrt((before * after) / (before + after));
    const line = (this.#from[depth] * after + this.#to[depth] * before) / (before + after);
    const middle = line + deviation * normal(this.#span, this.#part[depth]);
    const isLater = ms >= middleMs;
    const next = depth + 1;
    this.#part[next] = 2 * this.#part[depth] + (isLater ? 1 : 0);
    this.#fromMs[next] = isLater ? middleMs : this.#fromMs[depth];
    this.#toMs[next] = isLater ? this.#toMs[depth] : middleMs;
    this.#fromActive[next] = isLater ? active : this.#fromActive[depth];
    this.#toActive[next] = isLater ? this.#toActive[depth] : active;
    this.#from[next] = isLater ? middle : this.#from[depth];
    this.#to[next] = isLater ? this.#to[depth] : middle;
  }
}
