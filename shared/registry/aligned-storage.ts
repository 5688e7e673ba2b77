/**
 * `canonical_aligned_1s_aggregates`: the one fixed storage behind every aligned read of all twelve datasets.
 * Declared once here; the migration creates it, a test holds the two equal, and each aligned read checks the columns
 * its dataset needs in its own snapshot. One wide table: a dataset's unused columns cost one bit each.
 */
import { DAY_MS } from '../time/days.ts';
import type { Field, PgType } from './types.ts';

export const ALIGNED_TABLE = 'canonical_aligned_1s_aggregates';

/** Length of its chunks (migration 0002): a year of one dataset is 12 chunks. */
export const ALIGNED_CHUNK_MS = 30 * DAY_MS;

/** Before this time, 2016-10-26, rows are few, and chunks as long as from 1970 to it (migration 0024). */
export const ALIGNED_DENSE_FROM_MS = 17_100 * DAY_MS;

/** Key columns, common to all datasets. */
export const ALIGNED_KEY = { dataset_id: 'int2', series_id: 'int4', aligned_at_utc: 'timestamptz' } as const;

export const ALIGNED_COLUMNS = {
  // key first by width, so that rows carry no padding
  aligned_at_utc: 'timestamptz',
  // trades
  trade_count: 'int8',
  open_price: 'float8',
  high_price: 'float8',
  low_price: 'float8',
  close_price: 'float8',
  quantity_sum: 'float8',
  quote_volume_sum: 'float8',
  series_id: 'int4',
  dataset_id: 'int2',
  // metrics (ETF, macro, derived)
  metric_value_bool: 'bool',
  metric_value_int: 'int8',
  metric_value_float: 'float8',
  metric_value_string: 'text',
  metric_id: 'text',
  source_id: 'text',
  metric_name: 'text',
  metric_unit: 'text',
  dimensions_json: 'text',
  provenance_json: 'text',
  // every dataset but trades
  records_in_bucket: 'int8',
  latest_ingested_at_utc: 'timestamptz',
  // Bitcoin streams
  first_source_offset_or_equivalent: 'text',
  last_source_offset_or_equivalent: 'text',
  bucket_sha256: 'text',
  latest_source_chain: 'text',
  latest_height: 'int8',
  latest_block_hash: 'text',
  latest_prev_hash: 'text',
  latest_merkle_root: 'text',
  latest_version: 'int8',
  latest_nonce: 'int8',
  latest_difficulty: 'float8',
  latest_timestamp_ms: 'int8',
  tx_count: 'int8',
  coinbase_tx_count: 'int8',
  total_input_value_btc: 'float8',
  total_output_value_btc: 'float8',
  first_block_height: 'int8',
  last_block_height: 'int8',
  latest_block_timestamp_ms: 'int8',
  latest_txid: 'text',
  fee_rate_sat_vb_min: 'float8',
  fee_rate_sat_vb_max: 'float8',
  fee_rate_sat_vb_avg: 'float8',
  total_vsize: 'int8',
  first_seen_timestamp_min: 'int8',
  first_seen_timestamp_max: 'int8',
  rbf_true_count: 'int8',
  latest_snapshot_at_unix_ms: 'int8',
} as const satisfies Record<string, PgType>;

export type AlignedColumn = keyof typeof ALIGNED_COLUMNS;

/** A field of an aligned dataset that is a column of the storage by the same name. */
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
    sql: `t.${name}`,
    pg: ALIGNED_COLUMNS[name],
    columns: [name],
  };
}

/**
 * Validity bounds. They are not stored: a row is valid until the next row of its series, a coverage gap or the end of
 * what is proved, so the reader computes them (see the read core).
 */
const VALID_TO: Field = {
  name: 'valid_to_utc_exclusive',
  dtype: 'timestamp_utc',
  nullable: false,
  doc: 'End of that interval, exclusive.',
  sql: 't.valid_to',
  pg: 'timestamptz',
  columns: [],
};

const VALID_FROM = {
  name: 'valid_from_utc',
  dtype: 'timestamp_utc',
  nullable: false,
  pg: 'timestamptz',
} as const;

/** Of rows that a window holds when their second lies in it. */
export const VALIDITY_FIELDS: readonly Field[] = [
  {
    ...VALID_FROM,
    doc: 'Start of the interval the row is valid for, inclusive.',
    sql: 't.aligned_at_utc',
    columns: ['aligned_at_utc'],
  },
  VALID_TO,
];

/** Of rows that a window holds when they are valid in it: the one that was valid before begins with the window. */
export const STATE_VALIDITY_FIELDS: readonly Field[] = [
  {
    ...VALID_FROM,
    doc: 'Start of the interval the row is valid for, inclusive; not before the start of the window.',
    sql: 't.valid_from',
    columns: [],
  },
  VALID_TO,
];
