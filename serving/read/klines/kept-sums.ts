/**
 * How each column of a kline follows from kept klines (alias `t`): the stored column of the same size, or for longer klines
 * aggregates of shorter ones and a value over the aggregates (alias `k`). The totals are exact, so the values are those that
 * the rows give.
 */
import type { Mode } from '../../../shared/registry/definition.ts';
import { deviationOf, type Formulas, iqrOf, meanOf } from './sums.ts';

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
