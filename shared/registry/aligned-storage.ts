/**
 * The storage of all aligned rows: the table `canonical_aligned_1s_aggregates`. A migration creates it, a test keeps it
 * equal to this declaration, and each aligned read checks in its own snapshot the columns that its dataset needs. It is one
 * wide table, because a column that a dataset does not use costs one bit a row.
 */

import { DAY_MS } from '../dates.ts';
import type { Field } from './definition.ts';
import { ALIGNED_COLUMNS, type AlignedColumn, computedBy, storedIn } from './definition.ts';

export const ALIGNED_TABLE = 'canonical_aligned_1s_aggregates';

/** Length of a chunk: a year of one dataset has 12 chunks. */
export const ALIGNED_CHUNK_MS = 30 * DAY_MS;

/** Before this time, 2016-10-26, rows are few: one chunk covers the time since 1970. */
export const ALIGNED_DENSE_FROM_MS = 17_100 * DAY_MS;

/** The key columns of all datasets. */
export const ALIGNED_KEY = { dataset_id: 'int2', series_id: 'int4', aligned_at_utc: 'timestamptz' } as const;

/** A field of an aligned dataset that is the column of the same name. */
export function alignedField(
  name: AlignedColumn,
  dtype: Field['dtype'],
  doc: string,
  more: { unit?: string; nullable?: boolean } = {},
): Field {
  return {
    name,
    dtype,
    doc,
    unit: more.unit,
    nullable: more.nullable ?? false,
    pg: ALIGNED_COLUMNS[name],
    ...storedIn(name),
  };
}

/**
 * The end of validity is not stored: a row is valid until the next row of its series, a coverage gap or the end of what is
 * proved, so the read computes it (serving/read).
 */
const VALID_TO: Field = {
  name: 'valid_to_utc_exclusive',
  dtype: 'timestamp_utc',
  nullable: false,
  doc: 'End of validity, exclusive.',
  pg: 'timestamptz',
  ...computedBy('t.valid_to', []),
  validity: 'to',
};

const VALID_FROM = {
  name: 'valid_from_utc',
  dtype: 'timestamp_utc',
  nullable: false,
  pg: 'timestamptz',
  validity: 'from',
} as const;

/** The validity of rows that a window holds when their second lies in it. */
export const VALIDITY_FIELDS: readonly Field[] = [
  {
    ...VALID_FROM,
    doc: 'Start of validity, inclusive.',
    ...storedIn('aligned_at_utc'),
  },
  VALID_TO,
];

/** The validity of rows that a window holds when they are valid in it; a row valid before starts with the window. */
export const STATE_VALIDITY_FIELDS: readonly Field[] = [
  {
    ...VALID_FROM,
    doc: 'Start of validity, inclusive; not before the window.',
    ...computedBy('t.valid_from', []),
  },
  VALID_TO,
];
