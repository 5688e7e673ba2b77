/**
 * How each column of a kline is computed: aggregates over the rows of a bucket (alias `t`), and a value over what they
 * come to (alias `k`). Sums are exact:
 * - what is rounded is added as doubles, and the error that this can have made is bounded: the rounded sum is certain,
 *   except where a sum is that close to the middle of two decimals;
 * - what is not, or is to have more decimals than such a sum is good for, is added as integers of 1e-8 where every value
 *   has at most eight decimals.
 * Where this does not settle a bucket, its rows are added once more, as decimals of any length.
 */
import type { Field } from '../../../shared/registry/index.ts';
import { type Bucket, decimal, decimalSum, type Formula, roundedMean, roundedSum, type Terms } from './sums.ts';

export type Formulas = Readonly<Record<string, Formula>>;

/** From trades: the columns that all exchanges have. */
export function nativeFormulas(unified: readonly Field[], id: string, bucket: Bucket): Formulas {
  const sql = (name: string) => unified.find((field) => field.name === name)!.sql;
  const [price, quantity, isMaker] = ['price', 'quantity', 'is_buyer_maker'].map(sql);
  const filter = `filter (where ${isMaker})`;
  const trades = { trades: 'count(*)' };
  const opening = { open: `first(${price}, ${id})`, open_quantity: `first(${quantity}, ${id})` };
  const closing = { close: `last(${price}, ${id})`, close_quantity: `last(${quantity}, ${id})` };
  const quartiles = { quartiles: `percentile_disc(array[0.25, 0.5, 0.75]) within group (order by ${price})` };
  const quantities = { name: 'quantity', value: quantity };
  const liquidity = `${price} * ${quantity}`;
  const liquidities = { name: 'liquidity', value: liquidity, exact: `${decimal(price)} * ${decimal(quantity)}` };
  const makerSum = decimalSum({ ...quantities, name: 'maker', filter }, bucket);
  return {
    open: { aggregates: { open: opening.open }, value: 'k.open' },
    high: { aggregates: { high: `max(${price})` }, value: 'k.high' },
    low: { aggregates: { low: `min(${price})` }, value: 'k.low' },
    close: { aggregates: { close: closing.close }, value: 'k.close' },
    mean: roundedMean({ name: 'price', value: price }, 5, bucket),
    std: { aggregates: { std: `stddev_pop(${price})` }, value: `round(${decimal('k.std')}, 6)::float8` },
    median: { aggregates: quartiles, value: 'k.quartiles[2]' },
    iqr: {
      aggregates: quartiles,
      value: `(${decimal('k.quartiles[3]')} - ${decimal('k.quartiles[1]')})::float8`,
    },
    volume: volumeOf(quantities, bucket),
    maker_ratio: {
      aggregates: { ...trades, makers: `count(*) ${filter}` },
      value: 'k.makers::float8 / k.trades',
    },
    no_of_trades: { aggregates: trades, value: 'k.trades' },
    open_liquidity: { aggregates: opening, value: 'k.open * k.open_quantity' },
    high_liquidity: { aggregates: { high_liquidity: `max(${liquidity})` }, value: 'k.high_liquidity' },
    low_liquidity: { aggregates: { low_liquidity: `min(${liquidity})` }, value: 'k.low_liquidity' },
    close_liquidity: { aggregates: closing, value: 'k.close * k.close_quantity' },
    liquidity_sum: roundedSum(liquidities, 1, bucket),
    maker_volume: { ...makerSum, value: `(${makerSum.value})::float8` },
    maker_liquidity: roundedSum({ ...liquidities, name: 'maker_liquidity', filter }, 1, bucket),
  };
}

/** From one-second rows. */
export function alignedFormulas(bucket: Bucket): Formulas {
  const at = 't.aligned_at_utc';
  return {
    open: { aggregates: { open: `first(t.open_price, ${at})` }, value: 'k.open' },
    high: { aggregates: { high: 'max(t.high_price)' }, value: 'k.high' },
    low: { aggregates: { low: 'min(t.low_price)' }, value: 'k.low' },
    close: { aggregates: { close: `last(t.close_price, ${at})` }, value: 'k.close' },
    volume: volumeOf({ name: 'quantity', value: 't.quantity_sum' }, bucket),
    no_of_trades: { aggregates: { all_trades: 'sum(t.trade_count)' }, value: 'k.all_trades::int8' },
    liquidity_sum: roundedSum({ name: 'quote', value: 't.quote_volume_sum' }, 1, bucket),
  };
}

/** To nine decimals: too many for the error that a large bucket's sum of doubles can have. */
function volumeOf(terms: Terms, bucket: Bucket): Formula {
  if (!bucket.large) return roundedSum(terms, 9, bucket);
  const { aggregates, value } = decimalSum(terms, bucket);
  return { aggregates, value: `round(${value}, 9)::float8` };
}
