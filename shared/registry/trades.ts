/** What the spot-trade datasets have in common, and the columns of klines. */
import { DAY_MS } from '../dates.ts';
import { alignedField, VALIDITY_FIELDS } from './aligned-storage.ts';
import {
  ALIGNED_VIEW,
  type AlignedShape,
  computedBy,
  type DatasetDefinition,
  datetimeField,
  type Field,
  type FieldValue,
  type Mode,
  type NativeShape,
  nativeView,
  storedField,
  storedIn,
  type TradesShape,
} from './definition.ts';

const ALIGNED_TRADES: AlignedShape = {
  fields: [
    alignedField('aligned_at_utc', 'timestamp_utc', 'The UTC second.'),
    alignedField('open_price', 'float64', 'Price of the trade with the lowest id.', { unit: 'quote' }),
    alignedField('high_price', 'float64', 'Highest price.', { unit: 'quote' }),
    alignedField('low_price', 'float64', 'Lowest price.', { unit: 'quote' }),
    alignedField('close_price', 'float64', 'Price of the trade with the highest id.', { unit: 'quote' }),
    alignedField('quantity_sum', 'float64', 'Base quantity traded: exact sum, rounded once.', { unit: 'base' }),
    alignedField('quote_volume_sum', 'float64', "Quote quantity traded, the source's own if it has one.", {
      unit: 'quote',
    }),
    alignedField('trade_count', 'int64', 'Number of trades.'),
    ...VALIDITY_FIELDS,
  ],
  order: ['aligned_at_utc'],
  windowing: 'bucket',
  seriesKey: [],
  countField: 'trade_count',
  outsideDigests: [],
  view: ALIGNED_VIEW,
};

/** What differs between exchanges. */
interface Trades extends Pick<NativeShape, 'totals' | 'fields'>, Pick<TradesShape, 'fieldsOf' | 'instruments'> {
  /** The stored columns after time and trade id: fixed widths first, then texts, which need no alignment. */
  readonly columns: NativeShape['columns'];
  readonly own: SourceColumns;
}

/** The parts that all datasets of daily trade files share. */
export function tradesOf<E extends string>(
  exchange: E,
  { columns, totals, fields, fieldsOf, instruments, own }: Trades,
) {
  const key: `${E}_spot_trades` = `${exchange}_spot_trades`;
  return {
    key,
    kind: 'spot_trades',
    sources: [exchange],
    contractViolationStatus: 503,
    historicalPath: `${exchange}/spot/trades`,
    trades: { unified: unifiedFields(own), klinesPath: `${exchange}/spot/klines`, instruments, fieldsOf },
    native: {
      table: key,
      time: { column: 'timestamp', pg: 'int8' },
      identity: ['trade_id'],
      scope: { kind: 'window' },
      columns: [{ name: 'timestamp', pg: 'int8' }, { name: 'trade_id', pg: 'int8' }, ...columns],
      totals,
      chunkMs: DAY_MS,
      fields,
      order: ['datetime', 'trade_id'],
      view: nativeView(key),
    },
    aligned: ALIGNED_TRADES,
  } as const satisfies Partial<DatasetDefinition>;
}

/** A native field that is a stored column by the same name. */
export const tradeField = (
  name: string,
  dtype: 'int64' | 'float64' | 'bool01' | 'string',
  pg: 'int8' | 'float8' | 'bool' | 'text',
  doc: string,
  unit?: string,
): Field => storedField(name, dtype, pg, doc, { unit });

export const TRADE_DATETIME = datetimeField('timestamp');

/** Where a dataset stores the fields that all exchanges have. */
interface SourceColumns {
  /** The column of the base quantity. */
  readonly quantity: string;
  readonly isBuyerMaker: FieldValue;
}

/** `side` is the side of the taker, and ingest accepts `buy` and `sell` only. When the taker sells, the buyer is the maker. */
export const MAKER_BY_SIDE: FieldValue = computedBy("(t.side = 'sell')", ['side']);

const unifiedFields = ({ quantity, isBuyerMaker }: SourceColumns): readonly Field[] => [
  tradeField('trade_id', 'int64', 'int8', 'Trade id of the exchange.'),
  tradeField('timestamp', 'int64', 'int8', 'Trade time.', 'ms'),
  tradeField('price', 'float64', 'float8', 'Price.', 'quote'),
  { ...tradeField('quantity', 'float64', 'float8', 'Base quantity.', 'base'), ...storedIn(quantity) },
  {
    ...tradeField('is_buyer_maker', 'bool01', 'bool', '1 when the buyer was the maker (the taker sold).'),
    ...isBuyerMaker,
  },
  TRADE_DATETIME,
];

export const KLINE_DATETIME = 'datetime';

const field = (name: string, doc: string, unit?: string): Field => ({
  name,
  dtype: 'float64',
  nullable: false,
  unit,
  doc,
  pg: 'float8',
  ...storedIn(name),
});

const count = (name: string, doc: string): Field => ({ ...field(name, doc), dtype: 'int64', pg: 'int8' });

const datetime = (pg: 'int8' | 'timestamptz'): Field => ({
  ...field(KLINE_DATETIME, 'Start of the bucket.'),
  dtype: 'timestamp_utc',
  pg,
});

/**
 * The columns of klines, candles with more than OHLC; their names and order are those of the contract. They are made from
 * trades (native) or aligned rows (aligned): each is a column of the relation that serving/read makes.
 */
export const KLINE_FIELDS: Readonly<Record<Mode, readonly Field[]>> = {
  native: [
    datetime('int8'),
    field('open', 'Price of the trade with the lowest id.', 'quote'),
    field('high', 'Highest price.', 'quote'),
    field('low', 'Lowest price.', 'quote'),
    field('close', 'Price of the trade with the highest id.', 'quote'),
    field('mean', 'Mean price, to 5 decimals.', 'quote'),
    field('std', 'Population standard deviation of the price, to 6 decimals.', 'quote'),
    field('median', 'Median price, always a traded one.', 'quote'),
    field('iqr', 'Price at quantile 0.75 less that at 0.25.', 'quote'),
    field('volume', 'Sum of quantities, exact, to 9 decimals.', 'base'),
    field('maker_ratio', 'Share of trades in which the buyer was the maker.'),
    count('no_of_trades', 'Number of trades.'),
    field('open_liquidity', 'Price x quantity of the trade with the lowest id.', 'quote'),
    field('high_liquidity', 'Highest price x quantity.', 'quote'),
    field('low_liquidity', 'Lowest price x quantity.', 'quote'),
    field('close_liquidity', 'Price x quantity of the trade with the highest id.', 'quote'),
    field('liquidity_sum', 'Sum of price x quantity, exact, to 1 decimal.', 'quote'),
    field('maker_volume', 'Exact sum of quantities if the buyer was the maker.', 'base'),
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
