/**
 * How each column of a kline is computed: aggregates over the rows of a bucket (alias `t`), and a value over the aggregates
 * (alias `k`). Sums are exact sums of the decimals that doubles stand for, at the cost of sums of doubles:
 * - a rounded column is summed as doubles, and the error is bounded: the rounded sum is certain, except where a sum is too
 *   close to the middle between two decimals;
 * - an unrounded column, or one with more decimals than a sum of doubles can guarantee, is summed as integers of 1e-8 if
 *   every value has at most eight decimals.
 * Where this does not settle a bucket, a second pass sums its rows as decimals of any length.
 *
 * Kept klines (alias `t`) have the same columns: the stored column of the same size, or for longer klines aggregates of shorter
 * ones. Their totals are exact, so the values are those that the rows give.
 */
import type { Mode } from '../../../shared/registry/definition.ts';
import type { Field } from '../../../shared/registry/index.ts';

interface Formula {
  /** SQL of the aggregates by name; formulas share aggregates of the same name. */
  readonly aggregates: Readonly<Record<string, string>>;
  readonly value: string;
}

export interface Bucket {
  /** An aggregate over the rows of the bucket `k` in a second pass, as a scalar. */
  again(aggregate: string): string;
  /** Whether a bucket may hold so many rows that the error of a plain sum of doubles would often be too large. */
  readonly large: boolean;
}

/** The terms of a sum. */
interface Terms {
  /** Prefix of the aggregates' names. */
  readonly name: string;
  /** A non-negative double that differs from `exact` by at most three roundings. */
  readonly value: string;
  /** The same value as a decimal; by default the decimal that `value` prints as. */
  readonly exact?: string;
  /** `filter (where ...)` that selects the rows. */
  readonly filter?: string;
}

/** The decimal that a double prints as: the shortest one that is nearest to it. */
export const decimal = (value: string): string => `(${value})::text::numeric`;

export const exactSum = ({ value, exact = decimal(value), filter = '' }: Terms) => `sum(${exact}) ${filter}`;

/** 2^53 / 1e8, rounded down: below it a value of eight decimals is an exact integer of 1e-8, and has a double of its own. */
const SHORT_BELOW = '9e7';

/** The exact sum as a numeric: of integers of 1e-8 where every value has at most eight decimals and is small enough. */
export function decimalSum(terms: Terms, { again }: Bucket): Formula {
  const { name, value, filter = '' } = terms;
  return {
    aggregates: {
      [`${name}_units`]: `sum((least(${value}, ${SHORT_BELOW}) * 1e8)::int8) ${filter}`,
      [`${name}_is_short`]: `bool_and(${value} < ${SHORT_BELOW} and round(${value} * 1e8) / 1e8 = ${value}) ${filter}`,
    },
    // Where the filter leaves no row, both aggregates are null and the sum is 0.
    value: `coalesce(case when coalesce(k.${name}_is_short, true) then k.${name}_units * 0.00000001
      else ${again(exactSum(terms))} end, 0)`,
  };
}

/** At least 2^-53, half the distance between doubles from 1 up. */
const HALF_ULP = '1.2e-16::float8';

/**
 * A sum rounded to some decimals, halves up. A sum s of n terms, added as doubles, is wrong by at most (n + 2) half ulps of s.
 * When each term is split, the whole parts add up without error (below 2^53), and the fractions, whose sum is below n, are
 * wrong by at most n half ulps of n. The rest of the bound allows for the arithmetic of the comparison itself.
 */
function roundedSum(terms: Terms, decimals: number, { again, large }: Bucket): Formula {
  const { name, value, filter = '' } = terms;
  const sums = large
    ? {
        [`${name}_whole`]: `sum(floor(${value})) ${filter}`,
        [`${name}_part`]: `sum(${value} - floor(${value})) ${filter}`,
      }
    : { [`${name}_sum`]: `sum(${value}) ${filter}` };
  const columns = Object.keys(sums).map((column) => `k.${column}`);
  const s = `coalesce(${columns.join(' + ')}, 0)`;
  const n = 'k.terms::float8';
  const error = large ? `(8 * ${s} + ${n} * ${n}) * ${HALF_ULP}` : `(${n} + 8) * ${s} * ${HALF_ULP}`;
  return {
    aggregates: { terms: 'count(*)', ...sums },
    value: rounded(s, error, decimals, `round(${again(exactSum(terms))}, ${decimals})::float8`),
  };
}

/** Below this price, the square of a price in ticks fits an int8. */
const TICKS_BELOW = '3e5';

/** The sums of prices and of their squares, exact: in ticks of 1e-4 where every price of the bucket is a multiple of it. */
function tickSums(price: string): Readonly<Record<'sum' | 'squares' | 'areTicks', Readonly<Record<string, string>>>> {
  const ticks = `(least(${price}, ${TICKS_BELOW}) * 1e4)::int8`;
  return {
    sum: { ticks: `sum(${ticks})` },
    squares: { square_ticks: `sum(${ticks} * ${ticks})` },
    areTicks: { are_ticks: `bool_and(${price} < ${TICKS_BELOW} and round(${price} * 1e4) / 1e4 = ${price})` },
  };
}

const MEAN_DECIMALS = 5;

/** The mean of `n` prices, halves up. It uses the exact quotient, because a quotient cut to some digits could look like a half. */
export const meanOf = (n: string, sum: string): string =>
  `div(2e${MEAN_DECIMALS} * ${sum} + ${n}, 2 * ${n})::float8 / 1e${MEAN_DECIMALS}`;

/** The mean of all prices. */
function exactMean(price: string, { again }: Bucket): Formula {
  const { sum, areTicks } = tickSums(price);
  return {
    aggregates: { terms: 'count(*)', ...sum, ...areTicks },
    value: meanOf(
      'k.terms',
      `(case when k.are_ticks then k.ticks * 0.0001 else ${again(`sum(${decimal(price)})`)} end)`,
    ),
  };
}

const STD_DECIMALS = 6;

/**
 * The population deviation of `n` prices, halves up, from their exact sum and the exact sum of their squares. n times the
 * deviation is the root of v = n * squares - sum^2. Rounded to decimals d, the deviation is the largest multiple k / 10^d with
 * (2k - 1) * n <= 2 * 10^d * sqrt(v). The left side is an integer, so the right side may be cut to one. `sqrt` has as many
 * decimals as its argument: 30 of them tell the root of any smaller integer from the integer that is a root.
 */
export function deviationOf(n: string, sum: string, squares: string): string {
  const scaled = `4e${2 * STD_DECIMALS} * (${n} * ${squares} - ${sum} * ${sum})`;
  const root = `trunc(sqrt(round(trunc(${scaled}), 30)))`;
  return `(div(${root} + ${n}, 2 * ${n}) * 1e-${STD_DECIMALS})::float8`;
}

/** The deviation of all prices. */
function exactDeviation(price: string, { again }: Bucket): Formula {
  const { sum, squares, areTicks } = tickSums(price);
  const exact = decimal(price);
  const slowly = deviationOf('count(*)', `sum(${exact})`, `sum(${exact} * ${exact})`);
  return {
    aggregates: { terms: 'count(*)', ...sum, ...squares, ...areTicks },
    value: `case when k.are_ticks then ${deviationOf('k.terms', '(k.ticks * 0.0001)', '(k.square_ticks * 0.00000001)')}
      else ${again(slowly)} end`,
  };
}

/** Rounds a double that is wrong by at most `error`, if the error cannot change the result. */
function rounded(value: string, error: string, decimals: number, otherwise: string): string {
  const units = (of: string) => `floor((${of}) * 1e${decimals} + 0.5)`;
  return `case when ${units(`${value} + ${error}`)} = ${units(`${value} - ${error}`)}
    then ${units(value)} / 1e${decimals} else ${otherwise} end`;
}

export type Formulas = Readonly<Record<string, Formula>>;

/** An aggregate: the prices at quantiles 0.25, 0.5 and 0.75. */
export const quartilesOf = (price: string): string =>
  `percentile_disc(array[0.25, 0.5, 0.75]) within group (order by ${price})`;

export const iqrOf = (quartiles: string): string =>
  `(${decimal(`${quartiles}[3]`)} - ${decimal(`${quartiles}[1]`)})::float8`;

/** Formulas over trades: the columns that all exchanges share. */
export function nativeFormulas(unified: readonly Field[], id: string, bucket: Bucket): Formulas {
  const sql = (name: string) => unified.find((field) => field.name === name)!.sql;
  const [price, quantity, isMaker] = ['price', 'quantity', 'is_buyer_maker'].map(sql);
  const filter = `filter (where ${isMaker})`;
  const trades = { trades: 'count(*)' };
  const opening = { open: `first(${price}, ${id})`, open_quantity: `first(${quantity}, ${id})` };
  const closing = { close: `last(${price}, ${id})`, close_quantity: `last(${quantity}, ${id})` };
  const quartiles = { quartiles: quartilesOf(price) };
  const quantities = { name: 'quantity', value: quantity };
  const liquidity = `${price} * ${quantity}`;
  const liquidities = { name: 'liquidity', value: liquidity, exact: `${decimal(price)} * ${decimal(quantity)}` };
  const makerSum = decimalSum({ ...quantities, name: 'maker', filter }, bucket);
  return {
    open: { aggregates: { open: opening.open }, value: 'k.open' },
    high: { aggregates: { high: `max(${price})` }, value: 'k.high' },
    low: { aggregates: { low: `min(${price})` }, value: 'k.low' },
    close: { aggregates: { close: closing.close }, value: 'k.close' },
    mean: exactMean(price, bucket),
    std: exactDeviation(price, bucket),
    median: { aggregates: quartiles, value: 'k.quartiles[2]' },
    iqr: { aggregates: quartiles, value: iqrOf('k.quartiles') },
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

/** What aligned rows say of their own klines and of those of trades. */
const OF_SECONDS: Formulas = {
  open: { aggregates: { open: 'first(t.open_price, t.aligned_at_utc)' }, value: 'k.open' },
  high: { aggregates: { high: 'max(t.high_price)' }, value: 'k.high' },
  low: { aggregates: { low: 'min(t.low_price)' }, value: 'k.low' },
  close: { aggregates: { close: 'last(t.close_price, t.aligned_at_utc)' }, value: 'k.close' },
  no_of_trades: { aggregates: { all_trades: 'sum(t.trade_count)' }, value: 'k.all_trades::int8' },
};

/** Formulas of native klines over the aligned rows of exact seconds, whose sums are whole units of 1e-8. */
export const SECONDS_NATIVE: Formulas = {
  ...OF_SECONDS,
  volume: {
    aggregates: { quantity_units: 'sum((t.quantity_sum * 1e8)::int8)' },
    value: '(k.quantity_units * 0.00000001)::float8',
  },
};

/** Formulas over aligned rows. */
export function alignedFormulas(bucket: Bucket): Formulas {
  return {
    ...OF_SECONDS,
    volume: volumeOf({ name: 'quantity', value: 't.quantity_sum' }, bucket),
    liquidity_sum: roundedSum({ name: 'quote', value: 't.quote_volume_sum' }, 1, bucket),
  };
}

/** Nine decimals are too many for the error that a large bucket's sum of doubles can have. */
function volumeOf(terms: Terms, bucket: Bucket): Formula {
  if (!bucket.large) return roundedSum(terms, 9, bucket);
  const { aggregates, value } = decimalSum(terms, bucket);
  return { aggregates, value: `round(${value}, 9)::float8` };
}

/** The column with the number of rows that a kept kline aggregates. */
export const KEPT_ROWS: Readonly<Record<Mode, string>> = { native: 'no_of_trades', aligned_1s: 'rows' };

/** SQL of the column of a kept kline. */
export const storedColumn = (name: string): string =>
  name === 'maker_ratio' ? 't.makers::float8 / t.no_of_trades' : `t.${name}`;

const total = (name: string) => ({ [name]: `sum(t.${name})` });
const extreme = (how: 'min' | 'max', name: string) => ({
  aggregates: { [name]: `${how}(t.${name})` },
  value: `k.${name}`,
});
const roundedTotal = (name: string, decimals: number) => ({
  aggregates: total(name),
  value: `round(k.${name}, ${decimals})::float8`,
});

/** Formulas over kept native klines. `idOf` gives the expression that orders trades from a column with ids. */
export function addedNative(idOf: (column: string) => string): Formulas {
  const first = (name: string) => ({
    aggregates: { [name]: `first(t.${name}, ${idOf('first_id')})` },
    value: `k.${name}`,
  });
  const last = (name: string) => ({
    aggregates: { [name]: `last(t.${name}, ${idOf('last_id')})` },
    value: `k.${name}`,
  });
  const trades = total('no_of_trades');
  const prices = { ...trades, ...total('price_total') };
  return {
    open: first('open'),
    high: extreme('max', 'high'),
    low: extreme('min', 'low'),
    close: last('close'),
    mean: { aggregates: prices, value: meanOf('k.no_of_trades', 'k.price_total') },
    std: {
      aggregates: { ...prices, ...total('price_square_total') },
      value: deviationOf('k.no_of_trades', 'k.price_total', 'k.price_square_total'),
    },
    // Quartiles cannot be added up: the relation joins those of the rows as `q`.
    median: { aggregates: {}, value: 'q.quartiles[2]' },
    iqr: { aggregates: {}, value: iqrOf('q.quartiles') },
    volume: roundedTotal('quantity_total', 9),
    maker_ratio: {
      aggregates: { ...trades, ...total('makers') },
      value: 'k.makers::float8 / k.no_of_trades::float8',
    },
    no_of_trades: { aggregates: trades, value: 'k.no_of_trades::int8' },
    open_liquidity: first('open_liquidity'),
    high_liquidity: extreme('max', 'high_liquidity'),
    low_liquidity: extreme('min', 'low_liquidity'),
    close_liquidity: last('close_liquidity'),
    liquidity_sum: roundedTotal('liquidity_total', 1),
    maker_volume: { aggregates: total('maker_quantity_total'), value: 'k.maker_quantity_total::float8' },
    maker_liquidity: roundedTotal('maker_liquidity_total', 1),
  };
}

/** Formulas over kept aligned klines, whose order is that of their starts. */
export const ADDED_ALIGNED: Formulas = {
  open: { aggregates: { open: 'first(t.open, t.start_ms)' }, value: 'k.open' },
  high: extreme('max', 'high'),
  low: extreme('min', 'low'),
  close: { aggregates: { close: 'last(t.close, t.start_ms)' }, value: 'k.close' },
  volume: roundedTotal('quantity_total', 9),
  no_of_trades: { aggregates: total('no_of_trades'), value: 'k.no_of_trades::int8' },
  liquidity_sum: roundedTotal('liquidity_total', 1),
};
