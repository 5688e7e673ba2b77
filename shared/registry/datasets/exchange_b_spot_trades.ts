import { computedBy, type DatasetDefinition, type Field, storedIn } from '../definition.ts';
import { eventIdSql } from '../event-id.ts';
import { tradeField as field, MAKER_BY_SIDE, TRADE_DATETIME, tradesOf } from '../trades.ts';

const NUMBER = 2;
/** The vendor's days are those of UTC+8: file day D begins at 16:00 UTC of the day before. */
const START_OFFSET_MS = -8 * 3_600_000;

/** `BTC-USDT` is base and quote by the vendor's own word. */
function pairOf(symbol: string) {
  const [, base, quote] = /^([^-]+)-([^-]+)$/.exec(symbol) ?? [];
  return base === undefined ? undefined : { base, quote };
}

const provedOf = (number: number) => `from partitions p where p.dataset_id = ${number} and p.state = 'proved'`;

/** @param of the default, or another instrument */
const fieldsOf = (of: Pick<DatasetDefinition, 'number' | 'instrument'>): readonly Field[] => [
  field('instrument_name', 'string', 'text', 'Instrument, `<BASE>-<QUOTE>`.'),
  field('trade_id', 'int64', 'int8', 'Trade id of the exchange, rising, with gaps.'),
  field('side', 'string', 'text', "The taker's side: `buy` or `sell`."),
  field('price', 'float64', 'float8', 'Price.', 'quote'),
  field('size', 'float64', 'float8', 'Base quantity.', 'base'),
  {
    ...field('quote_quantity', 'float64', 'float8', 'price x size, multiplied exactly and rounded once.', 'quote'),
    computed: true,
  },
  field('timestamp', 'int64', 'int8', 'Trade time.', 'ms'),
  TRADE_DATETIME,
  {
    name: 'event_id',
    dtype: 'uuid',
    nullable: false,
    doc: 'Event id, packed from dataset, file day and trade id.',
    pg: 'uuid',
    ...computedBy(eventIdSql(of, START_OFFSET_MS, 't.timestamp', 't.trade_id'), ['timestamp', 'trade_id']),
  },
  {
    name: 'source_offset_or_equivalent',
    dtype: 'string',
    nullable: false,
    doc: "The trade id, as the event's offset.",
    pg: 'text',
    ...computedBy('t.trade_id::text', ['trade_id']),
  },
  {
    name: 'source_event_time_utc',
    dtype: 'timestamp_utc',
    nullable: true,
    doc: "The source's event time.",
    pg: 'int8',
    ...storedIn('timestamp'),
  },
  {
    name: 'ingested_at_utc',
    dtype: 'timestamp_utc',
    nullable: false,
    doc: "When the row's partition was ingested; a replay keeps it.",
    // Both arrays are computed once a statement (they depend on no row); each row costs a binary search.
    ...computedBy(
      `(select array_agg(p.ingested_at order by p.from_ms) ${provedOf(of.number)})[width_bucket(t.timestamp,
      (select array_agg(p.from_ms order by p.from_ms) ${provedOf(of.number)}))]`,
      ['timestamp'],
    ),
    pg: 'timestamptz',
  },
];

export const exchangeBSpotTrades = {
  number: NUMBER,
  title: 'Exchange B spot trades',
  doc: "Every spot trade of exchange B's daily trade files, one row per trade; exact repeats count once.",
  locations: { exchange_b: ['SVC_EXCHANGE_B_BASE_URL', 'SVC_EXCHANGE_B_LINK_URL'] },
  pinned: ['SVC_EXCHANGE_B_INSTRUMENT'],
  partition: { kind: 'file_day', startOffsetMs: START_OFFSET_MS },
  offset: {
    doc: 'the trade id, such as 465953984',
    order: 'numeric',
    contiguous: false,
    unique: true,
    sql: 't.trade_id::text',
  },
  events: { encoding: 'lines', cell: { column: 1, prefix: '' } },
  ...tradesOf('exchange_b', {
    instruments: { symbol: 'SVC_EXCHANGE_B_INSTRUMENT', also: 'SVC_EXCHANGE_B_ALSO', pairOf },
    columns: [
      { name: 'price', pg: 'float8' },
      { name: 'size', pg: 'float8' },
      { name: 'quote_quantity', pg: 'float8' },
      { name: 'side', pg: 'text' },
      { name: 'instrument_name', pg: 'text' },
    ],
    own: { quantity: 'size', isBuyerMaker: MAKER_BY_SIDE },
    totals: [
      { column: 'price', scale: 8 },
      { column: 'size', scale: 8 },
      { column: 'quote_quantity', scale: 8 },
    ],
    fields: fieldsOf({ number: NUMBER }),
    fieldsOf,
  }),
} as const satisfies DatasetDefinition;
