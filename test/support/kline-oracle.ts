/** What klines must be, in plain JavaScript over exact decimals: every number as the integer of 1e-40 it is. */
import type { AlignedRow } from './load-rows.ts';

/** Of one trade, in the words that all exchanges share. */
export interface AnyTrade {
  readonly trade_id: number;
  readonly timestamp: number;
  readonly price: number;
  readonly quantity: number;
  readonly is_buyer_maker: 0 | 1;
}

export type Kline = Record<string, number | string>;

export const SCALE = 40;

/** The decimal that a double is shown as, in units of 1e-40. */
export function exact(value: number): bigint {
  const [coefficient, exponent = '0'] = String(value).split('e');
  const [whole, fraction = ''] = coefficient.split('.');
  return BigInt(whole + fraction) * 10n ** BigInt(SCALE - fraction.length + Number(exponent));
}

/** Back to the nearest double; `decimals` of it, halves going up. */
function shown(units: bigint, scale: number, decimals?: number): number {
  let [value, digits] = [units, scale];
  if (decimals !== undefined && decimals < scale) {
    const unit = 10n ** BigInt(scale - decimals);
    value = (2n * units + unit) / (2n * unit);
    digits = decimals;
  }
  return Number(`${value}e-${digits}`);
}

export const sum = (values: readonly bigint[]) => values.reduce((total, value) => total + value, 0n);

/** The smallest value with at least this share of all at or below it. */
const quantile = (sorted: readonly number[], share: number) => sorted[Math.ceil(share * sorted.length) - 1];

/** `rows` by their buckets, ascending. */
function buckets<T>(rows: readonly T[], sizeMs: number, timeOf: (row: T) => number): [string, T[]][] {
  const groups = Map.groupBy(rows, (row) => Math.floor(timeOf(row) / sizeMs) * sizeMs);
  return [...groups].sort(([a], [b]) => a - b).map(([ms, group]) => [new Date(ms).toISOString(), group]);
}

/** `rank`: what comes before what, where ids alone do not say. */
export function nativeKlines(
  trades: readonly AnyTrade[],
  sizeMs: number,
  rank: (trade: AnyTrade) => number = (trade) => trade.trade_id,
): Kline[] {
  return buckets(trades, sizeMs, (trade) => trade.timestamp).map(([datetime, group]) => {
    const rows = group.toSorted((a, b) => rank(a) - rank(b));
    const [first, last] = [rows[0], rows[rows.length - 1]];
    const prices = rows.map((row) => row.price).sort((a, b) => a - b);
    const units = rows.map((row) => exact(row.price));
    const n = BigInt(rows.length);
    const makers = rows.filter((row) => row.is_buyer_maker === 1);
    const liquidity = (row: AnyTrade) => row.price * row.quantity;
    const products = (of: readonly AnyTrade[]) => sum(of.map((row) => exact(row.price) * exact(row.quantity)));
    const mean = (2n * sum(units) * 10n ** 5n + n * 10n ** BigInt(SCALE)) / (2n * n * 10n ** BigInt(SCALE));
    return {
      datetime,
      open: first.price,
      high: prices[prices.length - 1],
      low: prices[0],
      close: last.price,
      mean: Number(`${mean}e-5`),
      std: deviation(units),
      median: quantile(prices, 0.5),
      iqr: shown(exact(quantile(prices, 0.75)) - exact(quantile(prices, 0.25)), SCALE),
      volume: shown(sum(rows.map((row) => exact(row.quantity))), SCALE, 9),
      maker_ratio: makers.length / rows.length,
      no_of_trades: rows.length,
      open_liquidity: liquidity(first),
      high_liquidity: Math.max(...rows.map(liquidity)),
      low_liquidity: Math.min(...rows.map(liquidity)),
      close_liquidity: liquidity(last),
      liquidity_sum: shown(products(rows), 2 * SCALE, 1),
      maker_volume: shown(sum(makers.map((row) => exact(row.quantity))), SCALE),
      maker_liquidity: shown(products(makers), 2 * SCALE, 1),
    };
  });
}

/** Square root of the exact variance, to 6 decimals. */
export function deviation(values: readonly bigint[]): number {
  const n = BigInt(values.length);
  const variance = n * sum(values.map((value) => value * value)) - sum(values) ** 2n;
  return shown(root(variance) / n, SCALE, 6);
}

function root(value: bigint): bigint {
  if (value < 2n) return value;
  let x = 1n << BigInt((value.toString(2).length + 1) >> 1);
  for (;;) {
    const next = (x + value / x) >> 1n;
    if (next >= x) return x;
    x = next;
  }
}

export function alignedKlines(rows: readonly AlignedRow[], sizeMs: number): Kline[] {
  return buckets(rows, sizeMs, (row) => row.aligned_at_ms).map(([datetime, group]) => ({
    datetime,
    open: group[0].open_price,
    high: Math.max(...group.map((row) => row.high_price)),
    low: Math.min(...group.map((row) => row.low_price)),
    close: group[group.length - 1].close_price,
    volume: shown(sum(group.map((row) => exact(row.quantity_sum))), SCALE, 9),
    no_of_trades: group.reduce((count, row) => count + row.trade_count, 0),
    liquidity_sum: shown(sum(group.map((row) => exact(row.quote_volume_sum))), SCALE, 1),
  }));
}
