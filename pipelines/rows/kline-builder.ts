/**
 * Makes the kept klines of one file day while its rows go by: native ones from trades, minute by minute, and larger ones from
 * those. Sums are exact sums of the decimals that the stored doubles print as. Prices are counted in ticks from the first price
 * of a minute, so that most sums are small integers in doubles; a sum that would outgrow them is carried into BigInts.
 */
import { KEPT_SIZES_MS } from '../../shared/registry/kept-klines.ts';
import type { PartitionWindow } from './binary-copy.ts';
import { addDecimals, bigPowerOfTen, type ExactDecimal, exactDecimal } from './exact-decimal.ts';
import { mergeRuns, PriceList, type PriceRuns } from './price-runs.ts';

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
/** A minute's prices are sorted when a trade is this much later: trades are almost in order of time. */
const OPEN_MINUTES = 2;

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

const floats = (minutes: number) => new Float64Array(minutes);

export class KlineBuilder {
  readonly #fromMs: number;
  readonly #toMs: number;
  readonly #trades: Int32Array;
  readonly #makers: Int32Array;
  readonly #firstId: Float64Array;
  readonly #lastId: Float64Array;
  readonly #open: Float64Array;
  readonly #high: Float64Array;
  readonly #low: Float64Array;
  readonly #close: Float64Array;
  readonly #openLiquidity: Float64Array;
  readonly #highLiquidity: Float64Array;
  readonly #lowLiquidity: Float64Array;
  readonly #closeLiquidity: Float64Array;
  /** Sums since the last carry: trades, the first price in ticks, and sums over the ticks above it and units of quantity. */
  readonly #count: Int32Array;
  readonly #base: Float64Array;
  readonly #ticks: Float64Array;
  readonly #squares: Float64Array;
  readonly #units: Float64Array;
  readonly #tickUnits: Float64Array;
  readonly #makerUnits: Float64Array;
  readonly #makerTickUnits: Float64Array;
  /** What was carried, by minute. */
  readonly #carried: (TradeTotals | undefined)[];
  readonly #runs: (PriceRuns | undefined)[];
  readonly #lists = new Map<number, PriceList>();
  readonly #unused: PriceList[] = [];
  #list = new PriceList();
  #minute = -1;
  #tickScale = 10 ** USUAL_DECIMALS;
  #tickDecimals = USUAL_DECIMALS;

  constructor({ fromMs, toMs }: PartitionWindow) {
    this.#fromMs = fromMs;
    this.#toMs = toMs;
    const minutes = Math.ceil((toMs - fromMs) / MINUTE_MS);
    this.#trades = new Int32Array(minutes);
    this.#makers = new Int32Array(minutes);
    this.#count = new Int32Array(minutes);
    this.#firstId = floats(minutes);
    this.#lastId = floats(minutes);
    this.#open = floats(minutes);
    this.#high = floats(minutes);
    this.#low = floats(minutes);
    this.#close = floats(minutes);
    this.#openLiquidity = floats(minutes);
    this.#highLiquidity = floats(minutes);
    this.#lowLiquidity = floats(minutes);
    this.#closeLiquidity = floats(minutes);
    this.#base = floats(minutes);
    this.#ticks = floats(minutes);
    this.#squares = floats(minutes);
    this.#units = floats(minutes);
    this.#tickUnits = floats(minutes);
    this.#makerUnits = floats(minutes);
    this.#makerTickUnits = floats(minutes);
    this.#carried = new Array(minutes);
    this.#runs = new Array(minutes);
  }

  /** Adds a trade of the partition's window, in whatever order trades arrive. `isMaker` is 1 when the buyer was the maker. */
  add(ms: number, id: number, price: number, quantity: number, isMaker: number): void {
    const at = Math.floor((ms - this.#fromMs) / MINUTE_MS);
    if (at !== this.#minute) this.#turnTo(at);
    this.#list.add(price);
    const liquidity = price * quantity;
    if (this.#trades[at]++ === 0) {
      this.#high[at] = price;
      this.#low[at] = price;
      this.#highLiquidity[at] = liquidity;
      this.#lowLiquidity[at] = liquidity;
      this.#first(at, id, price, liquidity);
      this.#last(at, id, price, liquidity);
    } else {
      if (price > this.#high[at]) this.#high[at] = price;
      else if (price < this.#low[at]) this.#low[at] = price;
      if (liquidity > this.#highLiquidity[at]) this.#highLiquidity[at] = liquidity;
      else if (liquidity < this.#lowLiquidity[at]) this.#lowLiquidity[at] = liquidity;
      if (id > this.#lastId[at]) this.#last(at, id, price, liquidity);
      else if (id < this.#firstId[at]) this.#first(at, id, price, liquidity);
    }
    this.#makers[at] += isMaker;
    const ticks = Math.round(price * this.#tickScale);
    const units = Math.round(quantity * UNIT);
    if (
      price < MAX_PRICE &&
      quantity < MAX_QUANTITY &&
      ticks / this.#tickScale === price &&
      units / UNIT === quantity
    ) {
      this.#addUnits(at, ticks, units, isMaker);
    } else {
      this.#addUnusual(at, price, quantity, isMaker);
    }
  }

  #first(at: number, id: number, price: number, liquidity: number): void {
    this.#firstId[at] = id;
    this.#open[at] = price;
    this.#openLiquidity[at] = liquidity;
  }

  #last(at: number, id: number, price: number, liquidity: number): void {
    this.#lastId[at] = id;
    this.#close[at] = price;
    this.#closeLiquidity[at] = liquidity;
  }

  #addUnits(at: number, ticks: number, units: number, isMaker: number): void {
    if (this.#count[at] === 0) this.#base[at] = ticks;
    let above = ticks - this.#base[at];
    if (
      this.#squares[at] + above * above >= CARRY_AT ||
      Math.abs(this.#tickUnits[at]) + Math.abs(above * units) >= CARRY_AT ||
      this.#units[at] + units >= CARRY_AT
    ) {
      this.#carry(at);
      this.#base[at] = ticks;
      above = 0;
    }
    this.#count[at]++;
    this.#ticks[at] += above;
    this.#squares[at] += above * above;
    this.#units[at] += units;
    this.#tickUnits[at] += above * units;
    if (isMaker === 1) {
      this.#makerUnits[at] += units;
      this.#makerTickUnits[at] += above * units;
    }
  }

  /** Adds a trade whose price has more decimals than a tick, or whose price or quantity is no integer of 1e-8. */
  #addUnusual(at: number, price: number, quantity: number, isMaker: number): void {
    const units = Math.round(quantity * UNIT);
    if (price < MAX_PRICE && quantity < MAX_QUANTITY && units / UNIT === quantity) {
      for (let decimals = this.#tickDecimals + 1; decimals <= MOST_DECIMALS; decimals++) {
        const scale = 10 ** decimals;
        const ticks = Math.round(price * scale);
        if (ticks / scale !== price) continue;
        for (let minute = 0; minute < this.#count.length; minute++) this.#carry(minute);
        this.#tickDecimals = decimals;
        this.#tickScale = scale;
        this.#addUnits(at, ticks, units, isMaker);
        return;
      }
    }
    const [exactPrice, exactQuantity] = [exactDecimal(String(price)), exactDecimal(String(quantity))];
    const liquidity = product(exactPrice, exactQuantity);
    this.#addCarried(at, {
      price: exactPrice,
      priceSquare: product(exactPrice, exactPrice),
      quantity: exactQuantity,
      liquidity,
      makerQuantity: isMaker === 1 ? exactQuantity : ZERO,
      makerLiquidity: isMaker === 1 ? liquidity : ZERO,
    });
  }

  /** Moves the sums of a minute into exact totals: with base b, the sum of squares is n b² + 2 b Σd + Σd². */
  #carry(at: number): void {
    const count = this.#count[at];
    if (count === 0) return;
    const base = BigInt(this.#base[at]);
    const ticks = BigInt(this.#ticks[at]);
    const units = BigInt(this.#units[at]);
    const makerUnits = BigInt(this.#makerUnits[at]);
    // Totals have the same scale whatever a tick is: the digest of klines depends on their rows alone.
    const fill = bigPowerOfTen(MOST_DECIMALS - this.#tickDecimals);
    const scale = MOST_DECIMALS;
    this.#addCarried(at, {
      price: { mantissa: (BigInt(count) * base + ticks) * fill, scale },
      priceSquare: {
        mantissa: (BigInt(count) * base * base + 2n * base * ticks + BigInt(this.#squares[at])) * fill * fill,
        scale: 2 * scale,
      },
      quantity: { mantissa: units, scale },
      liquidity: { mantissa: (base * units + BigInt(this.#tickUnits[at])) * fill, scale: 2 * scale },
      makerQuantity: { mantissa: makerUnits, scale },
      makerLiquidity: { mantissa: (base * makerUnits + BigInt(this.#makerTickUnits[at])) * fill, scale: 2 * scale },
    });
    this.#count[at] = 0;
    for (const sums of [this.#ticks, this.#squares, this.#units, this.#tickUnits]) sums[at] = 0;
    this.#makerUnits[at] = 0;
    this.#makerTickUnits[at] = 0;
  }

  #addCarried(at: number, totals: TradeTotals): void {
    this.#carried[at] = addTotals(this.#carried[at] ?? NO_TOTALS, totals);
  }

  /** Makes the list of a minute current, and sorts those of minutes that are long past. */
  #turnTo(minute: number): void {
    this.#minute = minute;
    for (const [other, list] of this.#lists) if (other < minute - OPEN_MINUTES) this.#sort(other, list);
    let list = this.#lists.get(minute);
    if (!list) {
      list = this.#unused.pop() ?? new PriceList();
      this.#lists.set(minute, list);
    }
    this.#list = list;
  }

  #sort(minute: number, list: PriceList): void {
    const runs = list.take();
    const before = this.#runs[minute];
    this.#runs[minute] = before ? mergeRuns([before, runs]) : runs;
    this.#lists.delete(minute);
    this.#unused.push(list);
  }

  /** The whole klines of the window, by size and time. No trade can be added afterwards. */
  buckets(): TradeBucket[] {
    for (const [minute, list] of this.#lists) this.#sort(minute, list);
    this.#minute = -1;
    let finer: TradeBucket[] = [];
    for (let at = 0; at < this.#trades.length; at++) if (this.#trades[at] > 0) finer.push(this.#minuteBucket(at));
    const all = [...finer];
    for (const sizeMs of KEPT_SIZES_MS.slice(1)) {
      const groups = Map.groupBy(finer, ({ startMs }) => Math.floor(startMs / sizeMs) * sizeMs);
      finer = [...groups].map(([startMs, parts]) => together(parts, startMs, sizeMs));
      all.push(...finer.filter(({ startMs }) => startMs >= this.#fromMs && startMs + sizeMs <= this.#toMs));
    }
    return all;
  }

  #minuteBucket(at: number): TradeBucket {
    this.#carry(at);
    return {
      startMs: this.#fromMs + at * MINUTE_MS,
      sizeMs: MINUTE_MS,
      trades: this.#trades[at],
      makers: this.#makers[at],
      firstId: this.#firstId[at],
      lastId: this.#lastId[at],
      open: this.#open[at],
      high: this.#high[at],
      low: this.#low[at],
      close: this.#close[at],
      openLiquidity: this.#openLiquidity[at],
      highLiquidity: this.#highLiquidity[at],
      lowLiquidity: this.#lowLiquidity[at],
      closeLiquidity: this.#closeLiquidity[at],
      totals: this.#carried[at]!,
      runs: this.#runs[at]!,
    };
  }
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
