/** Sorted prices with their counts: exact quantiles of a bucket, and of the buckets that hold it. */

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

/** The smallest prices with at least a quarter, a half and three quarters of all `rows` at or below them. */
export function quartilesOf({ prices, counts }: PriceRuns, rows: number): [number, number, number] {
  const ranks = [Math.ceil(rows * 0.25), Math.ceil(rows * 0.5), Math.ceil(rows * 0.75)];
  const found: number[] = [];
  let seen = 0;
  for (let run = 0; found.length < ranks.length; run++) {
    seen += counts[run];
    while (found.length < ranks.length && seen >= ranks[found.length]) found.push(prices[run]);
  }
  return found as [number, number, number];
}
