/**
 * Makes the kept klines of one file day while its rows go by: native ones from trades, minute by minute, and larger ones from
 * those. Sums are exact sums of the decimals that the stored doubles print as. Prices are counted in ticks from the first price
 * of a minute, so that most sums are small integers in doubles; a sum that would outgrow them is carried into BigInts.
 */
import { KEPT_SIZES_MS } from '../../shared/registry/kept-klines.ts';
import type { PartitionWindow } from './binary-copy.ts';
import { addDecimals, bigPowerOfTen, type ExactDecimal, exactDecimal } from './exact-decimal.ts';
import { LongTrades } from './long-trades.ts';

const MINUTE_MS = KEPT_SIZES_MS[0];
/** Decimals of the usual prices and of all quantities that are summed as integers. */
const USUAL_DECIMALS = 2;
const MOST_DECIMALS = 8;
const UNIT = 1e8;
/** From these on, units of 1e-8 would have more than 15 digits, and a double would not print as they do. */
const MAX_PRICE = 9e6;
const MAX_QUANTITY = 9e6;
/** A partial sum beyond this is carried; below 2^53 each addition is exact. */
const CARRY_AT = 2 ** 52;
/** A minute's prices are counted when a trade is this much later: trades are almost in order of time. */
const OPEN_MINUTES = 2;
/** Minutes that are open at a time, whatever the order of trades: each takes 256 KiB. */
const MOST_OPEN = 8;

/** Seconds with quantities finer than 1e-8 that are listed one by one; with more, no second is exact. */
export const MOST_FINE = 100;

/** Exact sums over the trades of a bucket. */
export interface TradeTotals {
  readonly price: ExactDecimal;
  readonly priceSquare: ExactDecimal;
  readonly quantity: ExactDecimal;
  readonly liquidity: ExactDecimal;
  readonly makerQuantity: ExactDecimal;
  readonly makerLiquidity: ExactDecimal;
}

/** What a kline of trades is made from. */
export interface TradeBucket {
  readonly startMs: number;
  readonly sizeMs: number;
  readonly trades: number;
  readonly makers: number;
  readonly firstId: number;
  readonly lastId: number;
  readonly open: number;
  readonly high: number;
  readonly low: number;
  readonly close: number;
  readonly openLiquidity: number;
  readonly highLiquidity: number;
  readonly lowLiquidity: number;
  readonly closeLiquidity: number;
  readonly totals: TradeTotals;
  readonly runs: PriceRuns;
}

const ZERO: ExactDecimal = { mantissa: 0n, scale: 0 };
const NO_TOTALS: TradeTotals = {
  price: ZERO,
  priceSquare: ZERO,
  quantity: ZERO,
  liquidity: ZERO,
  makerQuantity: ZERO,
  makerLiquidity: ZERO,
};

const addTotals = (a: TradeTotals, b: TradeTotals): TradeTotals => ({
  price: addDecimals(a.price, b.price),
  priceSquare: addDecimals(a.priceSquare, b.priceSquare),
  quantity: addDecimals(a.quantity, b.quantity),
  liquidity: addDecimals(a.liquidity, b.liquidity),
  makerQuantity: addDecimals(a.makerQuantity, b.makerQuantity),
  makerLiquidity: addDecimals(a.makerLiquidity, b.makerLiquidity),
});

const product = (a: ExactDecimal, b: ExactDecimal): ExactDecimal => ({
  mantissa: a.mantissa * b.mantissa,
  scale: a.scale + b.scale,
});

/** The members of a minute, in one array for all minutes: one look-up for each trade. */
const FIRST_ID = 0;
const LAST_ID = 1;
const OPEN = 2;
const HIGH = 3;
const LOW = 4;
const CLOSE = 5;
const OPEN_LIQUIDITY = 6;
const HIGH_LIQUIDITY = 7;
const LOW_LIQUIDITY = 8;
const CLOSE_LIQUIDITY = 9;
const TRADES = 10;
const MAKERS = 11;
/** Sums since the last carry: trades, the first price in ticks, and sums over the ticks above it and units of quantity. */
const COUNT = 12;
const BASE = 13;
const TICKS = 14;
const SQUARES = 15;
const UNITS = 16;
const TICK_UNITS = 17;
const MAKER_UNITS = 18;
const MAKER_TICK_UNITS = 19;
const MEMBERS = 20;

export class KlineBuilder {
  readonly #fromMs: number;
  readonly #toMs: number;
  readonly #minutes: number;
  readonly #state: Float64Array;
  /** What was carried, by minute. */
  readonly #carried: (TradeTotals | undefined)[];
  readonly #runs: (PriceRuns | undefined)[];
  /** The prices of open minutes. */
  readonly #open = new Map<number, PriceCounts>();
  readonly #unused: PriceCounts[] = [];
  /** Those of the minute of the last trade. */
  #prices = new PriceCounts();
  #minute = -1;
  /** Trades whose quantities are finer than 1e-8. */
  #long: LongTrades | undefined;
  /** Seconds with such trades, up to one more than `MOST_FINE` of them. */
  readonly fineSeconds = new Set<number>();
  #tickScale = 10 ** USUAL_DECIMALS;
  #tickDecimals = USUAL_DECIMALS;

  constructor({ fromMs, toMs }: PartitionWindow) {
    this.#fromMs = fromMs;
    this.#toMs = toMs;
    this.#minutes = Math.ceil((toMs - fromMs) / MINUTE_MS);
    this.#state = new Float64Array(this.#minutes * MEMBERS);
    this.#carried = new Array(this.#minutes);
    this.#runs = new Array(this.#minutes);
  }

  /** Adds a trade of the partition's window; they may come in any order. `isMaker` is 1 when the buyer was the maker. */
  add(ms: number, id: number, price: number, quantity: number, isMaker: number): void {
    const state = this.#state;
    const minute = Math.floor((ms - this.#fromMs) / MINUTE_MS);
    if (minute !== this.#minute) this.#turnTo(minute);
    const at = minute * MEMBERS;
    const liquidity = price * quantity;
    if (state[at + TRADES]++ === 0) {
      state[at + HIGH] = price;
      state[at + LOW] = price;
      state[at + HIGH_LIQUIDITY] = liquidity;
      state[at + LOW_LIQUIDITY] = liquidity;
      setFirst(state, at, id, price, liquidity);
      setLast(state, at, id, price, liquidity);
    } else {
      if (price > state[at + HIGH]) state[at + HIGH] = price;
      else if (price < state[at + LOW]) state[at + LOW] = price;
      if (liquidity > state[at + HIGH_LIQUIDITY]) state[at + HIGH_LIQUIDITY] = liquidity;
      else if (liquidity < state[at + LOW_LIQUIDITY]) state[at + LOW_LIQUIDITY] = liquidity;
      if (id > state[at + LAST_ID]) setLast(state, at, id, price, liquidity);
      else if (id < state[at + FIRST_ID]) setFirst(state, at, id, price, liquidity);
    }
    state[at + MAKERS] += isMaker;
    const ticks = Math.round(price * this.#tickScale);
    const units = Math.round(quantity * UNIT);
    const inTicks = price < MAX_PRICE && ticks / this.#tickScale === price;
    if (!inTicks || !this.#prices.addTicks(ticks)) this.#prices.addPrice(price);
    const isFine = quantity >= MAX_QUANTITY || units / UNIT !== quantity;
    if (isFine && this.fineSeconds.size <= MOST_FINE) this.fineSeconds.add(Math.floor(ms / 1000));
    if (inTicks && !isFine) {
      this.#addUnits(minute, ticks, units, isMaker);
    } else if (!inTicks || quantity >= MAX_QUANTITY || !this.#addLong(minute, ticks, quantity, isMaker)) {
      this.#addUnusual(minute, price, quantity, isMaker);
    }
  }

  /** Adds a trade whose quantity is finer than 1e-8. @returns whether it could be. */
  #addLong(minute: number, ticks: number, quantity: number, isMaker: number): boolean {
    this.#long ??= new LongTrades(this.#minutes);
    if (!this.#long.read(quantity)) return false;
    if (this.#long.add(minute, ticks, this.#tickDecimals, isMaker)) return true;
    this.#carryLong(minute);
    return this.#long.add(minute, ticks, this.#tickDecimals, isMaker);
  }

  #addUnits(minute: number, ticks: number, units: number, isMaker: number): void {
    const state = this.#state;
    const at = minute * MEMBERS;
    if (state[at + COUNT] === 0) state[at + BASE] = ticks;
    let above = ticks - state[at + BASE];
    if (
      state[at + SQUARES] + above * above >= CARRY_AT ||
      Math.abs(state[at + TICK_UNITS]) + Math.abs(above * units) >= CARRY_AT ||
      Math.abs(state[at + MAKER_TICK_UNITS]) + Math.abs(above * units) >= CARRY_AT ||
      state[at + UNITS] + units >= CARRY_AT
    ) {
      this.#carry(minute);
      state[at + BASE] = ticks;
      above = 0;
    }
    state[at + COUNT]++;
    state[at + TICKS] += above;
    state[at + SQUARES] += above * above;
    state[at + UNITS] += units;
    state[at + TICK_UNITS] += above * units;
    if (isMaker === 1) {
      state[at + MAKER_UNITS] += units;
      state[at + MAKER_TICK_UNITS] += above * units;
    }
  }

  /** Adds a trade that the fast paths cannot: its price has more decimals than the tick, or price or quantity is very long or large. */
  #addUnusual(minute: number, price: number, quantity: number, isMaker: number): void {
    const units = Math.round(quantity * UNIT);
    if (price < MAX_PRICE && quantity < MAX_QUANTITY && units / UNIT === quantity) {
      for (let decimals = this.#tickDecimals + 1; decimals <= MOST_DECIMALS; decimals++) {
        const scale = 10 ** decimals;
        const ticks = Math.round(price * scale);
        if (ticks / scale !== price) continue;
        for (let other = 0; other < this.#minutes; other++) this.#carry(other);
        for (const [other, prices] of this.#open) this.#count(other, prices);
        this.#turnTo(minute);
        this.#tickDecimals = decimals;
        this.#tickScale = scale;
        this.#addUnits(minute, ticks, units, isMaker);
        return;
      }
    }
    const [exactPrice, exactQuantity] = [exactDecimal(String(price)), exactDecimal(String(quantity))];
    const liquidity = product(exactPrice, exactQuantity);
    this.#addCarried(minute, {
      price: exactPrice,
      priceSquare: product(exactPrice, exactPrice),
      quantity: exactQuantity,
      liquidity,
      makerQuantity: isMaker === 1 ? exactQuantity : ZERO,
      makerLiquidity: isMaker === 1 ? liquidity : ZERO,
    });
  }

  #carryLong(minute: number): void {
    const totals = this.#long?.take(minute, this.#tickDecimals);
    if (totals) this.#addCarried(minute, totals);
  }

  /** Moves the sums of a minute into exact totals: with base b, the sum of squares is n b² + 2 b Σd + Σd². */
  #carry(minute: number): void {
    this.#carryLong(minute);
    const at = minute * MEMBERS;
    const sums = this.#state.subarray(at + COUNT, at + MEMBERS);
    if (sums[0] === 0) return;
    const [count, base, ticks, squares, units, tickUnits, makerUnits, makerTickUnits] = Array.from(sums, BigInt);
    // Totals have the same scale whatever a tick is: the digest of klines depends on their rows alone.
    const fill = bigPowerOfTen(MOST_DECIMALS - this.#tickDecimals);
    const scale = MOST_DECIMALS;
    this.#addCarried(minute, {
      price: { mantissa: (count * base + ticks) * fill, scale },
      priceSquare: { mantissa: (count * base * base + 2n * base * ticks + squares) * fill * fill, scale: 2 * scale },
      quantity: { mantissa: units, scale },
      liquidity: { mantissa: (base * units + tickUnits) * fill, scale: 2 * scale },
      makerQuantity: { mantissa: makerUnits, scale },
      makerLiquidity: { mantissa: (base * makerUnits + makerTickUnits) * fill, scale: 2 * scale },
    });
    sums.fill(0);
  }

  #addCarried(minute: number, totals: TradeTotals): void {
    this.#carried[minute] = addTotals(this.#carried[minute] ?? NO_TOTALS, totals);
  }

  /** Makes the prices of a minute current, and counts those of minutes that are long past. */
  #turnTo(minute: number): void {
    this.#minute = minute;
    const isFull = this.#open.size >= MOST_OPEN;
    for (const [other, prices] of this.#open) {
      if (isFull || other < minute - OPEN_MINUTES) this.#count(other, prices);
    }
    let prices = this.#open.get(minute);
    if (!prices) {
      prices = this.#unused.pop() ?? new PriceCounts();
      this.#open.set(minute, prices);
    }
    this.#prices = prices;
  }

  #count(minute: number, prices: PriceCounts): void {
    const runs = prices.take(this.#tickScale);
    const before = this.#runs[minute];
    this.#runs[minute] = before ? mergeRuns([before, runs]) : runs;
    this.#open.delete(minute);
    this.#unused.push(prices);
  }

  /** The whole klines of the window, by size and time. No trade can be added afterwards. */
  buckets(): TradeBucket[] {
    for (const [minute, prices] of this.#open) this.#count(minute, prices);
    this.#minute = -1;
    let finer: TradeBucket[] = [];
    for (let minute = 0; minute < this.#minutes; minute++) {
      if (this.#state[minute * MEMBERS + TRADES] > 0) finer.push(this.#minuteBucket(minute));
    }
    const all = [...finer];
    for (const sizeMs of KEPT_SIZES_MS.slice(1)) {
      const groups = Map.groupBy(finer, ({ startMs }) => Math.floor(startMs / sizeMs) * sizeMs);
      finer = [...groups].map(([startMs, parts]) => together(parts, startMs, sizeMs));
      all.push(...finer.filter(({ startMs }) => startMs >= this.#fromMs && startMs + sizeMs <= this.#toMs));
    }
    return all;
  }

  #minuteBucket(minute: number): TradeBucket {
    this.#carry(minute);
    const of = (member: number) => this.#state[minute * MEMBERS + member];
    return {
      startMs: this.#fromMs + minute * MINUTE_MS,
      sizeMs: MINUTE_MS,
      trades: of(TRADES),
      makers: of(MAKERS),
      firstId: of(FIRST_ID),
      lastId: of(LAST_ID),
      open: of(OPEN),
      high: of(HIGH),
      low: of(LOW),
      close: of(CLOSE),
      openLiquidity: of(OPEN_LIQUIDITY),
      highLiquidity: of(HIGH_LIQUIDITY),
      lowLiquidity: of(LOW_LIQUIDITY),
      closeLiquidity: of(CLOSE_LIQUIDITY),
      totals: this.#carried[minute]!,
      runs: this.#runs[minute]!,
    };
  }
}

function setFirst(state: Float64Array, at: number, id: number, price: number, liquidity: number): void {
  state[at + FIRST_ID] = id;
  state[at + OPEN] = price;
  state[at + OPEN_LIQUIDITY] = liquidity;
}

function setLast(state: Float64Array, at: number, id: number, price: number, liquidity: number): void {
  state[at + LAST_ID] = id;
  state[at + CLOSE] = price;
  state[at + CLOSE_LIQUIDITY] = liquidity;
}

/** One bucket from those that it holds. */
export function together(parts: readonly TradeBucket[], startMs: number, sizeMs: number): TradeBucket {
  const first = parts.reduce((a, b) => (b.firstId < a.firstId ? b : a));
  const last = parts.reduce((a, b) => (b.lastId > a.lastId ? b : a));
  const sum = (of: (part: TradeBucket) => number) => parts.reduce((total, part) => total + of(part), 0);
  return {
    startMs,
    sizeMs,
    trades: sum(({ trades }) => trades),
    makers: sum(({ makers }) => makers),
    firstId: first.firstId,
    lastId: last.lastId,
    open: first.open,
    high: Math.max(...parts.map(({ high }) => high)),
    low: Math.min(...parts.map(({ low }) => low)),
    close: last.close,
    openLiquidity: first.openLiquidity,
    highLiquidity: Math.max(...parts.map(({ highLiquidity }) => highLiquidity)),
    lowLiquidity: Math.min(...parts.map(({ lowLiquidity }) => lowLiquidity)),
    closeLiquidity: last.closeLiquidity,
    totals: parts.map(({ totals }) => totals).reduce(addTotals),
    runs: mergeRuns(parts.map(({ runs }) => runs)),
  };
}

/** Ascending distinct prices and how often each occurs. */
export interface PriceRuns {
  readonly prices: Float64Array;
  readonly counts: Uint32Array;
}

/** Ticks that are counted on either side of the first. */
const REACH = 1 << 15;

/**
 * The prices of an open bucket. Whole numbers of ticks near the first are counted, at the cost of an addition each; all other
 * prices are kept and sorted at the end.
 */
export class PriceCounts {
  /** Counts by tick; zero outside [low, high]. */
  readonly #counts = new Uint32Array(2 * REACH);
  /** The tick that the first count stands for. */
  #base = 0;
  #low = Number.POSITIVE_INFINITY;
  #high = Number.NEGATIVE_INFINITY;
  #others: number[] = [];

  /** @returns whether the ticks were counted; otherwise the caller adds the price. */
  addTicks(ticks: number): boolean {
    if (this.#low > this.#high) {
      this.#base = ticks - REACH;
      this.#low = ticks;
      this.#high = ticks;
    }
    const at = ticks - this.#base;
    if (at < 0 || at >= this.#counts.length) return false;
    this.#counts[at]++;
    if (ticks < this.#low) this.#low = ticks;
    else if (ticks > this.#high) this.#high = ticks;
    return true;
  }

  addPrice(price: number): void {
    this.#others.push(price);
  }

  /** The prices as runs, of which `ticksPerUnit` ticks are one unit. Nothing is left afterwards. */
  take(ticksPerUnit: number): PriceRuns {
    const others = sortedRuns(Float64Array.from(this.#others).sort());
    this.#others = [];
    if (this.#low > this.#high) return others;
    const counts = this.#counts.subarray(this.#low - this.#base, this.#high - this.#base + 1);
    let distinct = 0;
    for (const count of counts) if (count > 0) distinct++;
    const runs = { prices: new Float64Array(distinct), counts: new Uint32Array(distinct) };
    let run = 0;
    for (let tick = 0; tick < counts.length; tick++) {
      if (counts[tick] === 0) continue;
      runs.prices[run] = (this.#low + tick) / ticksPerUnit;
      runs.counts[run++] = counts[tick];
    }
    counts.fill(0);
    this.#low = Number.POSITIVE_INFINITY;
    this.#high = Number.NEGATIVE_INFINITY;
    return others.prices.length === 0 ? runs : mergeTwo(runs, others);
  }
}

function sortedRuns(sorted: Float64Array): PriceRuns {
  let distinct = 0;
  for (let at = 0; at < sorted.length; at++) if (at === 0 || sorted[at] !== sorted[at - 1]) distinct++;
  const prices = new Float64Array(distinct);
  const counts = new Uint32Array(distinct);
  let run = -1;
  for (let at = 0; at < sorted.length; at++) {
    if (at === 0 || sorted[at] !== sorted[at - 1]) prices[++run] = sorted[at];
    counts[run]++;
  }
  return { prices, counts };
}

/** The runs of several buckets together. */
export function mergeRuns(all: readonly PriceRuns[]): PriceRuns {
  if (all.length === 1) return all[0];
  if (all.length === 2) return mergeTwo(all[0], all[1]);
  const middle = all.length >> 1;
  return mergeTwo(mergeRuns(all.slice(0, middle)), mergeRuns(all.slice(middle)));
}

function mergeTwo(a: PriceRuns, b: PriceRuns): PriceRuns {
  const most = a.prices.length + b.prices.length;
  const prices = new Float64Array(most);
  const counts = new Uint32Array(most);
  let [i, j, length] = [0, 0, 0];
  while (i < a.prices.length && j < b.prices.length) {
    const [x, y] = [a.prices[i], b.prices[j]];
    prices[length] = Math.min(x, y);
    let count = 0;
    if (x <= y) count += a.counts[i++];
    if (y <= x) count += b.counts[j++];
    counts[length++] = count;
  }
  for (; i < a.prices.length; i++) {
    prices[length] = a.prices[i];
    counts[length++] = a.counts[i];
  }
  for (; j < b.prices.length; j++) {
    prices[length] = b.prices[j];
    counts[length++] = b.counts[j];
  }
  return { prices: prices.subarray(0, length), counts: counts.subarray(0, length) };
}
