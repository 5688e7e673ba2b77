/**
 * The shape of a dataset declaration. Everything that differs between datasets is said here, as data: request
 * validation, response schema, SQL, the storage contract, coverage rules and documentation derive from it.
 *
 * Words: an *event* is one source record; a *partition* is the unit of fetching, proving and replaying; an *offset*
 * identifies an event within its partition; a *series* is one line of values in an aligned dataset.
 */
import type { SettingName } from '../config/settings.ts';

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

/** Closed vocabulary of response types. Timestamps leave as `YYYY-MM-DDTHH:MM:SS.mmmZ`, bool01 as 0 or 1, json as text. */
export const DTYPES = ['int64', 'float64', 'string', 'bool01', 'timestamp_utc', 'uuid', 'json'] as const;
export type Dtype = (typeof DTYPES)[number];

/** PostgreSQL types that fields are stored as; each has one binary decoder. */
export type PgType = 'int2' | 'int4' | 'int8' | 'float8' | 'text' | 'bool' | 'timestamptz' | 'uuid' | 'bytea';

export interface Field {
  readonly name: string;
  readonly dtype: Dtype;
  readonly nullable: boolean;
  /** Unit of the value (`ms`, `USDT`, `BTC` ...); absent where the value has none. */
  readonly unit?: string;
  readonly doc: string;
  /**
   * SQL over the table alias `t` that yields the value, and the type it yields. A `timestamp_utc` field may be an
   * `int8` of epoch milliseconds or a `timestamptz`. Filters are pushed down to the same expression.
   */
  readonly sql: string;
  readonly pg: PgType;
  /** Columns of the storage that `sql` reads; the storage contract checks them. */
  readonly columns: readonly string[];
}

export interface View {
  readonly id: string;
  readonly version: number;
}

/**
 * What is said of a window of metrics beside its rows, as warnings: which codes, of which sources, by which measure.
 */
export type QualityRule =
  /** Every source publishes each market day. */
  | {
      readonly kind: 'daily';
      readonly codes: { readonly missing: string; readonly stale: string; readonly incomplete: string };
      /** Metrics that each source has on each of its days, with a value. */
      readonly required: readonly string[];
      /** Market days after the latest day of the window that are still fresh. */
      readonly maxAgeDays: SettingName;
    }
  /** Sources say when they last published, which the fetch took down. */
  | {
      readonly kind: 'published';
      readonly codes: { readonly missing: string; readonly stale: string };
      /** Days after its last publication in which a source is fresh, by `source_id`: as often as it publishes. */
      readonly sources: Readonly<Record<string, number>>;
      /** Where set it stands for all of them. */
      readonly maxAgeDays: SettingName;
    };

/** What a partition of the dataset is, and how its key is written. */
export type PartitionKind =
  /** A vendor's file day, key `YYYY-MM-DD`, covering [day + startOffsetMs, + 24 h). */
  | { readonly kind: 'file_day'; readonly startOffsetMs: number }
  /** One capture of an issuer's page, key `<source_id>:<as-of day>`; spans count in epoch ms of as-of days. */
  | { readonly kind: 'capture' }
  /**
   * One vintage of a series, key `<source_id>:<vintage date>`; spans count in epoch ms of vintage dates. It is known from
   * `knownAfterMs` after the start of its date on, UTC: a read as of an earlier time is without it.
   */
  | { readonly kind: 'vintage'; readonly knownAfterMs: number }
  /** Blocks: key = height, or `<from>-<to>`, both included, where several are one unit of work; spans count heights. */
  | { readonly kind: 'height' }
  /** One mempool snapshot, key = epoch ms, which spans count too. */
  | { readonly kind: 'snapshot' };

/** How a frame of the log holds events. */
export type EventShape =
  /** Lines of text without LF. A cell says the offset: its number in the line, and the text before the number in it. */
  | { readonly encoding: 'lines'; readonly cell: { readonly column: number; readonly prefix: string } }
  /** Any bytes, each event with its offset beside (shared/frame/records.ts). */
  | { readonly encoding: 'records' };

/**
 * How the rows of one partition are told from all others in storage. Delete, recount, replay, verification, one-second
 * rows and the proof check of every read go by it (shared/proof/recount.ts).
 */
export type PartitionScope =
  /** By their time: those in the partition's window. */
  | { readonly kind: 'window' }
  /** By a stored column: heights and snapshots by their number, captures and vintages by the partition's key as text. */
  | { readonly kind: 'column'; readonly column: string; readonly pg: 'int8' | 'text' };

export interface OffsetRule {
  /** What an offset is and an example, for people who got it wrong: `the trade id, such as 109344068`. */
  readonly doc: string;
  /**
   * How offsets compare: trade ids and heights as numbers, everything else as text (code points); `place` is
   * `<number>:<number>:<text>` and compares by its two numbers.
   */
  readonly order: 'numeric' | 'text' | 'place';
  /** Whether a proved partition's offsets follow each other without a gap; one with a gap is not proved. */
  readonly contiguous: boolean;
  /**
   * Whether no two partitions may hold the same offset; partitions then keep disjoint ranges of its first number (trade
   * id, height, snapshot).
   */
  readonly unique: boolean;
  /** SQL over the table alias `t`: a stored row's offset, as text. */
  readonly sql: string;
}

export interface NativeShape {
  readonly table: string;
  /** Column of event time and what it holds. */
  readonly time: { readonly column: string; readonly pg: 'int8' | 'timestamptz' };
  /** Columns that identify a row within one instant, together with the time; in the order of offsets. */
  readonly identity: readonly string[];
  readonly scope: PartitionScope;
  /** Stored columns in table order. */
  readonly columns: readonly { readonly name: string; readonly pg: PgType; readonly nullable?: boolean }[];
  /** Columns whose exact integer totals (value x 10^scale) are proved, beside the row hash. */
  readonly totals: readonly { readonly column: string; readonly scale: number }[];
  readonly chunkMs: number;
  readonly fields: readonly Field[];
  /** What rows are ordered by, ascending: fields, or stored columns that are none. */
  readonly order: readonly string[];
  readonly view: View;
}

export interface AlignedShape {
  readonly fields: readonly Field[];
  /** Fields that rows are ordered by, ascending: the second, then the series. */
  readonly order: readonly string[];
  /**
   * `bucket`: a window holds the rows whose second lies in it (trades, block and mempool streams).
   * `state`: a window holds the rows whose validity intersects it, carried-in state first (metrics).
   */
  readonly windowing: 'bucket' | 'state';
  /** Field names that identify a series; empty where the dataset is one series. */
  readonly seriesKey: readonly string[];
  /** Field holding the sum of which equals the number of native events, if there is one. */
  readonly countField?: string;
  /** Columns whose values depend on when a partition was fetched: the aligned digest leaves them out. */
  readonly outsideDigests: readonly string[];
  /** Of metrics: how their rows follow from native ones. */
  readonly seconds?: SecondsRule;
  readonly view: View;
}

/** Facts of a partition that all its rows share; columns of the catalog. */
export const PARTITION_FACTS = ['ingested_at', 'last_updated_at', 'document_sha256'] as const;

/** One-second rows as the database makes them from native rows. */
export interface SecondsRule {
  /** Columns of the aligned storage that `select` gives, beside the second and the series. */
  readonly columns: readonly AlignedColumn[];
  /**
   * SQL of the one-second rows of `rows`, a relation: the native table's columns and `second` (epoch s), `source_offset`,
   * and the facts of the row's partition; of proved partitions only.
   */
  select(rows: string): string;
}

/** The contract's families of datasets. */
export type DatasetKind =
  | 'spot_trades'
  | 'etf_daily_metrics'
  | 'macro_series_metrics'
  | 'bitcoin_stream'
  | 'bitcoin_derived';

export interface DatasetDefinition {
  /** Stable small number: storage key and part of event ids. Never reused. */
  readonly number: number;
  readonly key: string;
  readonly kind: DatasetKind;
  readonly title: string;
  readonly doc: string;
  /** Source keys of the rights matrix that feed this dataset. */
  readonly sources: readonly string[];
  /**
   * Settings that say where a source's documents are, by source key; ETF has ten sources. One of a source's settings is
   * set at a time. A synthetic sample is loaded only while none of them is.
   */
  readonly locations: Readonly<Record<string, readonly SettingName[]>>;
  readonly partition: PartitionKind;
  readonly offset: OffsetRule;
  readonly events: EventShape;
  readonly native: NativeShape;
  readonly aligned: AlignedShape;
  /** HTTP status of a violated aligned storage contract. */
  readonly contractViolationStatus: 409 | 503;
  /** Setting that promotes the dataset to serving or holds it back (`shadow`); without one it is always promoted. */
  readonly servingState?: SettingName;
  /** Path below `/v1/historical/`. */
  readonly historicalPath: string;
  readonly quality?: QualityRule;
  /** Of spot trades only. */
  readonly trades?: TradesShape;
}

/** What the trade and kline routes make of a dataset of spot trades. */
export interface TradesShape {
  /** The columns that all exchanges have in common, the default of the trade route; klines are computed from them. */
  readonly unified: readonly Field[];
  /** Path of the klines below `/v1/historical/`. */
  readonly klinesPath: string;
}

/** Keys of series in the dictionary: the values of the series key's fields, joined. */

const SEPARATOR = '|';

export const seriesKeyOf = (values: readonly string[]): string => values.join(SEPARATOR);

/** The values back; only the last of them may hold the separator. */
export function seriesValues(key: string, fields: number): string[] {
  const parts = key.split(SEPARATOR);
  return [...parts.slice(0, fields - 1), parts.slice(fields - 1).join(SEPARATOR)];
}

export type Mode = 'native' | 'aligned_1s';

/* Fields as most datasets have them, and what follows from a dataset's key alone. */

/** A native field that is a stored column by the same name. */
export function storedField(
  name: string,
  dtype: Dtype,
  pg: PgType,
  doc: string,
  more: { readonly unit?: string; readonly nullable?: boolean } = {},
): Field {
  const { unit, nullable = false } = more;
  return { name, dtype, nullable, unit, doc, sql: `t.${name}`, pg, columns: [name] };
}

/** The event time, stored as epoch ms, as a timestamp. */
export function timeField(name: string, column: string, doc: string): Field {
  return { name, dtype: 'timestamp_utc', nullable: false, doc, sql: `t.${column}`, pg: 'int8', columns: [column] };
}

/** The event time once more, as a timestamp. */
export const datetimeField = (column: string): Field =>
  timeField('datetime', column, `The same instant as \`${column}\`.`);

export const nativeView = (key: string): View => ({ id: `${key}_native`, version: 1 });

/** Of every dataset's aligned rows. */
export const ALIGNED_VIEW: View = { id: 'aligned_1s_raw', version: 1 };
