/** What the three spot-trade datasets have in common. */
import { DAY_MS } from '../time/days.ts';
import { alignedField, VALIDITY_FIELDS } from './aligned-storage.ts';
import { ALIGNED_VIEW, datetimeField, nativeView, storedField } from './fields.ts';
import type { AlignedShape, DatasetDefinition, Field, NativeShape } from './types.ts';

const ALIGNED_TRADES: AlignedShape = {
  fields: [
    alignedField('aligned_at_utc', 'timestamp_utc', 'The UTC second.'),
    alignedField('open_price', 'float64', 'Price of the trade with the lowest id in the second.', { unit: 'quote' }),
    alignedField('high_price', 'float64', 'Highest price.', { unit: 'quote' }),
    alignedField('low_price', 'float64', 'Lowest price.', { unit: 'quote' }),
    alignedField('close_price', 'float64', 'Price of the trade with the highest id.', { unit: 'quote' }),
    alignedField('quantity_sum', 'float64', 'Base quantity traded; exact decimal sum, rounded once.', { unit: 'base' }),
    alignedField('quote_volume_sum', 'float64', "Quote quantity traded, the source's own where it has one.", {
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

/** What differs between the exchanges. */
interface Trades extends Pick<NativeShape, 'totals' | 'fields'> {
  /** Stored columns after time and trade id: fixed widths before texts, which need no alignment. */
  readonly columns: NativeShape['columns'];
  readonly own: Own;
}

/** A dataset of one exchange's daily trade files; its number, words, locations, day and ids are the exchange's own. */
export function tradesOf<E extends string>(exchange: E, { columns, totals, fields, own }: Trades) {
  const key: `${E}_spot_trades` = `${exchange}_spot_trades`;
  return {
    key,
    kind: 'spot_trades',
    sources: [exchange],
    contractViolationStatus: 503,
    historicalPath: `${exchange}/spot/trades`,
    trades: { unified: unifiedFields(own), klinesPath: `${exchange}/spot/klines` },
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

/** Where a dataset has what all exchanges have. */
interface Own {
  /** Column of the base quantity. */
  readonly quantity: string;
  readonly isBuyerMaker: Pick<Field, 'sql' | 'columns'>;
}

/** `side` is what the taker did, and ingest takes `buy` and `sell` only: of a sale the buyer is the maker. */
export const MAKER_BY_SIDE: Own['isBuyerMaker'] = { sql: "(t.side = 'sell')", columns: ['side'] };

const unifiedFields = ({ quantity, isBuyerMaker }: Own): readonly Field[] => [
  tradeField('trade_id', 'int64', 'int8', 'Trade id of the exchange.'),
  tradeField('timestamp', 'int64', 'int8', 'Trade time.', 'ms'),
  tradeField('price', 'float64', 'float8', 'Price.', 'quote'),
  {
    ...tradeField('quantity', 'float64', 'float8', 'Base quantity.', 'base'),
    sql: `t.${quantity}`,
    columns: [quantity],
  },
  {
    ...tradeField('is_buyer_maker', 'bool01', 'bool', '1 when the buyer was the maker (the taker sold).'),
    ...isBuyerMaker,
  },
  TRADE_DATETIME,
];
