import { type DatasetDefinition, type Field, storedIn } from '../definition.ts';
import { tradeField as field, MAKER_BY_SIDE, TRADE_DATETIME, tradesOf } from '../trades.ts';

/** Of the archive `spot`. Files of `trading` state these values. */
const computed = (of: Field): Field => ({ ...of, computed: true });

export const exchangeCSpotTrades = {
  number: 3,
  title: 'Exchange C spot trades',
  doc: "Every spot trade of exchange C's daily trade files, one row per trade; exact repeats count once. Files of the archive `trading` state the fields that are computed from those of `spot`.",
  locations: { exchange_c: ['SVC_EXCHANGE_C_BASE_URL'] },
  pinned: ['SVC_EXCHANGE_C_SYMBOL', 'SVC_EXCHANGE_C_ARCHIVE'],
  partition: { kind: 'file_day', startOffsetMs: 0 },
  // Ids have no gaps within a day and need not continue from one day to the next.
  offset: {
    doc: 'the trade_id without leading zeros, such as 42; ids begin anew every day, so name the day as well',
    order: 'numeric',
    contiguous: true,
    unique: false,
    sql: 't.trade_id::text',
  },
  events: { encoding: 'lines', cell: { column: 6, prefix: 'm-' }, layouts: { spot: { column: 0, prefix: '' } } },
  ...tradesOf('exchange_c', {
    instruments: { symbol: 'SVC_EXCHANGE_C_SYMBOL', also: 'SVC_EXCHANGE_C_ALSO' },
    columns: [
      { name: 'price', pg: 'float8' },
      { name: 'size', pg: 'float8' },
      { name: 'gross_value', pg: 'float8' },
      { name: 'home_notional', pg: 'float8' },
      { name: 'foreign_notional', pg: 'float8' },
      { name: 'side', pg: 'text' },
      { name: 'tick_direction', pg: 'text' },
      { name: 'symbol', pg: 'text' },
      { name: 'trd_match_id', pg: 'text' },
    ],
    own: { quantity: 'size', isBuyerMaker: MAKER_BY_SIDE },
    totals: [
      { column: 'price', scale: 8 },
      { column: 'size', scale: 8 },
      // Values are about 1e8 x the quote quantity: with scale 8 a single large trade would exceed int8.
      { column: 'gross_value', scale: 0 },
      { column: 'home_notional', scale: 8 },
      { column: 'foreign_notional', scale: 8 },
    ],
    fields: [
      field('symbol', 'string', 'text', 'Symbol, `<BASE><QUOTE>`.'),
      field('trade_id', 'int64', 'int8', 'Trade id of the exchange, from 1 every day.'),
      computed(field('trd_match_id', 'string', 'text', 'Match id of the exchange, `m-<trade_id>`.')),
      field('side', 'string', 'text', "The taker's side: `buy` or `sell`."),
      field('price', 'float64', 'float8', 'Price.', 'quote'),
      field('size', 'float64', 'float8', 'Base quantity; may be 0.', 'base'),
      {
        ...computed(
          field('quote_quantity', 'float64', 'float8', 'Quote quantity, equal to `foreign_notional`.', 'quote'),
        ),
        ...storedIn('foreign_notional'),
      },
      field('timestamp', 'int64', 'int8', 'Trade time, rounded half up to milliseconds.', 'ms'),
      TRADE_DATETIME,
      computed(
        field(
          'tick_direction',
          'string',
          'text',
          "`PlusTick` or `MinusTick` if the price differs from the previous trade's, then `ZeroPlusTick` or `ZeroMinusTick`; empty until the day's first change.",
        ),
      ),
      computed(field('gross_value', 'float64', 'float8', '`quote_quantity` x 1e8: exact product, rounded once.')),
      computed(field('home_notional', 'float64', 'float8', 'Base quantity, equal to `size`.', 'base')),
      computed(
        field('foreign_notional', 'float64', 'float8', 'price x size, multiplied exactly and rounded once.', 'quote'),
      ),
    ],
  }),
} as const satisfies DatasetDefinition;
