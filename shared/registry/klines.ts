/**
 * Columns of klines: candles with more than OHLC, computed by the database from trades (native) or one-second rows
 * (aligned). A column is one of the same name of the relation the read core makes; how it is computed is said there.
 */
import type { Mode } from './index.ts';
import type { Field } from './types.ts';

export const KLINE_DATETIME = 'datetime';

const field = (name: string, doc: string, unit?: string): Field => ({
  name,
  dtype: 'float64',
  nullable: false,
  unit,
  doc,
  sql: `t.${name}`,
  pg: 'float8',
  columns: [name],
});

const count = (name: string, doc: string): Field => ({ ...field(name, doc), dtype: 'int64', pg: 'int8' });

const datetime = (pg: 'int8' | 'timestamptz'): Field => ({
  ...field(KLINE_DATETIME, 'Start of the bucket; buckets start at whole multiples of their size since 1970 UTC.'),
  dtype: 'timestamp_utc',
  pg,
});

/** In documented order. Order and names are those of the contract. */
export const KLINE_FIELDS: Readonly<Record<Mode, readonly Field[]>> = {
  native: [
    datetime('int8'),
    field('open', 'Price of the trade with the lowest id.', 'quote'),
    field('high', 'Highest price.', 'quote'),
    field('low', 'Lowest price.', 'quote'),
    field('close', 'Price of the trade with the highest id.', 'quote'),
    field('mean', 'Mean price, every trade counting once; from the exact sum, to 5 decimals.', 'quote'),
    field('std', 'Population standard deviation of the price, to 6 decimals.', 'quote'),
    field('median', 'The price at quantile 0.5: one that was traded at, not one between two.', 'quote'),
    field('iqr', 'The price at quantile 0.75 less the one at 0.25.', 'quote'),
    field('volume', 'Sum of the quantities, exact, to 9 decimals.', 'base'),
    field('maker_ratio', 'Share of the trades in which the buyer was the maker, 0 to 1.'),
    count('no_of_trades', 'Number of trades.'),
    field('open_liquidity', 'Price x quantity of the trade with the lowest id.', 'quote'),
    field('high_liquidity', 'Highest price x quantity.', 'quote'),
    field('low_liquidity', 'Lowest price x quantity.', 'quote'),
    field('close_liquidity', 'Price x quantity of the trade with the highest id.', 'quote'),
    field('liquidity_sum', 'Sum of price x quantity, exact, to 1 decimal.', 'quote'),
    field('maker_volume', 'Sum of the quantities of trades in which the buyer was the maker, exact.', 'base'),
    field('maker_liquidity', 'Sum of price x quantity of these trades, exact, to 1 decimal.', 'quote'),
  ],
  aligned_1s: [
    datetime('timestamptz'),
    field('open', 'First `open_price`.', 'quote'),
    field('high', 'Highest `high_price`.', 'quote'),
    field('low', 'Lowest `low_price`.', 'quote'),
    field('close', 'Last `close_price`.', 'quote'),
    field('volume', 'Sum of `quantity_sum`, exact, to 9 decimals.', 'base'),
    count('no_of_trades', 'Sum of `trade_count`.'),
    field('liquidity_sum', "Sum of `quote_volume_sum`, the source's own quantities, exact, to 1 decimal.", 'quote'),
  ],
};
