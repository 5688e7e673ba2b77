/** What the three spot-trade datasets have in common: their aligned rows. */
import { alignedField, VALIDITY_FIELDS } from './aligned-storage.ts';
import type { AlignedShape, Field } from './types.ts';

export const ALIGNED_VIEW = { id: 'aligned_1s_raw', version: 1 } as const;

export const DAY_MS = 86_400_000;

export const ALIGNED_TRADES: AlignedShape = {
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
  view: ALIGNED_VIEW,
};

/** A native field that is a stored column by the same name. */
export function tradeField(
  name: string,
  dtype: 'int64' | 'float64' | 'bool01' | 'string',
  pg: 'int8' | 'float8' | 'bool' | 'text',
  doc: string,
  unit?: string,
): Field {
  return { name, dtype, nullable: false, unit, doc, sql: `t.${name}`, pg, columns: [name] };
}

/** The event time once more, as a timestamp. */
export const TRADE_DATETIME: Field = {
  name: 'datetime',
  dtype: 'timestamp_utc',
  nullable: false,
  doc: 'The same instant as `timestamp`.',
  sql: 't.timestamp',
  pg: 'int8',
  columns: ['timestamp'],
};
