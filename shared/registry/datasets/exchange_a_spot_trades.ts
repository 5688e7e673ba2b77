import { type DatasetDefinition, storedIn } from '../definition.ts';
import { tradeField as field, TRADE_DATETIME, tradesOf } from '../trades.ts';

export const exchangeASpotTrades = {
  number: 1,
  title: 'Exchange A spot trades',
  doc: "Every spot trade of exchange A's daily trade files, one row per trade.",
  locations: { exchange_a: ['SVC_EXCHANGE_A_BASE_URL'] },
  pinned: ['SVC_EXCHANGE_A_SYMBOL'],
  partition: { kind: 'file_day', startOffsetMs: 0 },
  offset: {
    doc: 'the trade id, such as 109344068',
    order: 'numeric',
    contiguous: true,
    unique: true,
    sql: 't.trade_id::text',
  },
  events: { encoding: 'lines', cell: { column: 0, prefix: '' } },
  ...tradesOf('exchange_a', {
    instruments: { symbol: 'SVC_EXCHANGE_A_SYMBOL', also: 'SVC_EXCHANGE_A_ALSO' },
    // 66 bytes of payload without padding
    columns: [
      { name: 'price', pg: 'float8' },
      { name: 'quantity', pg: 'float8' },
      { name: 'quote_quantity', pg: 'float8' },
      { name: 'is_buyer_maker', pg: 'bool' },
      { name: 'is_best_match', pg: 'bool' },
    ],
    own: { quantity: 'quantity', isBuyerMaker: storedIn('is_buyer_maker') },
    totals: [
      { column: 'price', scale: 8 },
      { column: 'quantity', scale: 8 },
      { column: 'quote_quantity', scale: 8 },
    ],
    fields: [
      field('trade_id', 'int64', 'int8', 'Trade id of the exchange, contiguous.'),
      field('timestamp', 'int64', 'int8', 'Trade time, cut to milliseconds.', 'ms'),
      field('price', 'float64', 'float8', 'Price.', 'quote'),
      field('quantity', 'float64', 'float8', 'Base quantity.', 'base'),
      field('quote_quantity', 'float64', 'float8', "Quote quantity as in the source's file.", 'quote'),
      field('is_buyer_maker', 'bool01', 'bool', '1 when the buyer was the maker (the taker sold).'),
      field('is_best_match', 'bool01', 'bool', '1 when the trade was the best price match, as the source states it.'),
      TRADE_DATETIME,
    ],
  }),
} as const satisfies DatasetDefinition;
