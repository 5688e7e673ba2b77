/** Sorted prices with their counts: exact quantiles of a bucket, and of the buckets that hold it. */

/** Ascending distinct prices and how often each occurs. */
export interface PriceRuns {
  readonly prices: Float64Array;
  readonly counts: Uint32Array;
}

/** Prices of an open bucket, in order of arrival. */
export class PriceList {
  #prices = new Float64Array(256);
  #length = 0;

  add(price: number): void {
    if (this.#length === this.#prices.length) {
      const larger = new Float64Array(2 * this.#length);
      larger.set(this.#prices);
      this.#prices = larger;
    }
    this.#prices[this.#length++] = price;
  }

  /**
   * The prices as runs. The list is empty afterwards. If every price is a whole number of ticks of 1 / `ticksPerUnit`, and they
   * lie close together, they are counted instead of sorted: 0.01 s a day of 3.5 M trades instead of 0.15.
   */
  take(ticksPerUnit: number | undefined): PriceRuns {
    const prices = this.#prices.subarray(0, this.#length);
    this.#length = 0;
    return (ticksPerUnit === undefined ? undefined : countedRuns(prices, ticksPerUnit)) ?? sortedRuns(prices.sort());
  }
}

/** Counts by tick above the lowest; zero between two calls. */
const COUNTS = new Uint32Array(1 << 16);

/** Undefined where the prices lie too far apart. */
function countedRuns(all: Float64Array, ticksPerUnit: number): PriceRuns | undefined {
  let [low, high] = [Number.POSITIVE_INFINITY, 0];
  for (const price of all) {
    if (price < low) low = price;
    if (price > high) high = price;
  }
  const base = Math.round(low * ticksPerUnit);
  const range = Math.round(high * ticksPerUnit) - base + 1;
  if (!(range <= COUNTS.length)) return undefined;
  let distinct = 0;
  for (const price of all) if (COUNTS[Math.round(price * ticksPerUnit) - base]++ === 0) distinct++;
  const prices = new Float64Array(distinct);
  const counts = new Uint32Array(distinct);
  let run = 0;
  for (let tick = 0; tick < range; tick++) {
    if (COUNTS[tick] === 0) continue;
    prices[run] = (base + tick) / ticksPerUnit;
    counts[run++] = COUNTS[tick];
    COUNTS[tick] = 0;
  }
  return { prices, counts };
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
