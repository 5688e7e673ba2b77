/**
 * The types of a dataset definition, and fields that most datasets share. A definition holds, as data, everything that
 * differs between datasets: request validation, response schema, SQL, the storage contract, coverage rules and
 * documentation derive from it.
 *
 * Terms: an *event* is one source record; a *partition* is the unit of fetching, proving and replaying; an *offset*
 * identifies an event within its partition; a *series* is one sequence of values in an aligned dataset.
 */
import type { Instrument } from '../instrument-names.ts';
import type { ColumnRule } from '../proof-log/cells.ts';

export const ALIGNED_COLUMNS = {
  // the columns of the key come first and are ordered by width, so that rows need no padding
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

/** All response types. A timestamp is sent as `YYYY-MM-DDTHH:MM:SS.mmmZ`, a bool01 as 0 or 1, json as text. */
export const DTYPES = ['int64', 'float64', 'string', 'bool01', 'timestamp_utc', 'uuid', 'json'] as const;
export type Dtype = (typeof DTYPES)[number];

/** The PostgreSQL types of stored fields; each has one binary decoder. */
export type PgType = 'int2' | 'int4' | 'int8' | 'float8' | 'text' | 'bool' | 'timestamptz' | 'uuid' | 'bytea';

export interface Field {
  readonly name: string;
  readonly dtype: Dtype;
  readonly nullable: boolean;
  /** Unit of the value (`ms`, `USDT`, `BTC` ...); absent where the value has none. */
  readonly unit?: string;
  /** Of a native field of trades: the vendor's file does not state the value; it is computed from what the file states. */
  readonly computed?: true;
  readonly doc: string;
  /**
   * SQL over the table alias `t` that yields the value; `pg` is the type of the value. A `timestamp_utc` field may be an
   * `int8` of epoch milliseconds or a `timestamptz`. Filters use the same expression.
   */
  readonly sql: string;
  readonly pg: PgType;
  /** The stored columns that `sql` reads; the storage contract checks them. */
  readonly columns: readonly string[];
  /** The stored column whose value the field is, unchanged; absent where `sql` computes the value. */
  readonly column?: string;
  /** Which end of the row's validity the field is. Without a `column`, the read computes this end. */
  readonly validity?: 'from' | 'to';
}

/** Where a field's value comes from. Spread it last into a field: it sets every member that says so. */
export type FieldValue = Pick<Field, 'sql' | 'columns' | 'column'>;

/** The value of a stored column. */
export const storedIn = (column: string): FieldValue => ({ sql: `t.${column}`, columns: [column], column });

/** A value that SQL computes from stored columns. */
export const computedBy = (sql: string, columns: readonly string[]): FieldValue => ({
  sql,
  columns,
  column: undefined,
});

export interface View {
  readonly id: string;
  readonly version: number;
}

/** The rule by which answers with metrics carry warnings: the codes, the sources and the measure. */
export type QualityRule =
  /** Every source publishes each market day. */
  | {
      readonly kind: 'daily';
      readonly codes: { readonly missing: string; readonly stale: string; readonly incomplete: string };
      /** Metrics for which each source must have a value on each of its days. */
      readonly required: readonly string[];
      /** Setting: market days for which the latest day of the window counts as fresh. */
      readonly maxAgeDays: string;
    }
  /** Each source reports when it last published, and the fetch records it. */
  | {
      readonly kind: 'published';
      readonly codes: { readonly missing: string; readonly stale: string; readonly units: string };
      /** By `source_id`: days for which a source counts as fresh after its last publication, by how often it publishes. */
      readonly sources: Readonly<Record<string, number>>;
      /** The setting that replaces the days of every source if it is set. */
      readonly maxAgeDays: string;
    };

/** How often the next state of a series comes. */
export type Cadence =
  | { readonly every: 'market_day' }
  | { readonly everyMs: number }
  /** As the setting says; 0: never by itself. */
  | { readonly everySecondsOf: string };

/** What a partition of the dataset is, and the form of its key. */
export type PartitionKind =
  /** A vendor's file day, key `YYYY-MM-DD`, covering [day + startOffsetMs, + 24 h). */
  | { readonly kind: 'file_day'; readonly startOffsetMs: number }
  /** One capture of an issuer's page, key `<source_id>:<as-of day>`; spans count in epoch ms of as-of days. */
  | { readonly kind: 'capture' }
  /**
   * One vintage of a series, key `<source_id>:<vintage date>`; spans count in epoch ms of vintage dates. It is known
   * `knownAfterMs` after the start of its date, UTC: a read as of an earlier time does not include it.
   */
  | { readonly kind: 'vintage'; readonly knownAfterMs: number }
  /** Blocks: key = height, or `<from>-<to>`, both included, for several blocks; spans count heights. */
  | { readonly kind: 'height' }
  /** One mempool snapshot, key = epoch ms; spans count epoch ms. */
  | { readonly kind: 'snapshot' };

/** Where a line has its offset: `column` is the cell's number, `prefix` precedes the offset. */
export interface OffsetCell {
  readonly column: number;
  readonly prefix: string;
}

/** How a frame of the log holds events. */
export type EventShape =
  /** Lines of text without LF. One cell holds the offset; `layouts`: where it is in frames whose header names another layout. */
  | {
      readonly encoding: 'lines';
      readonly cell: OffsetCell;
      readonly layouts?: Readonly<Record<string, OffsetCell>>;
    }
  /** Any bytes; each event is stored with its offset (shared/frame/records.ts). */
  | { readonly encoding: 'records' };

/**
 * What distinguishes the stored rows of a partition from all others. Deletion, recount, replay, verification, one-second
 * rows and the proof check of every read use it (shared/proof/recount.ts).
 */
type PartitionScope =
  /** Time: the rows in the partition's window. */
  | { readonly kind: 'window' }
  /** A stored column: the number of heights and snapshots, the partition's key as text for captures and vintages. */
  | { readonly kind: 'column'; readonly column: string; readonly pg: 'int8' | 'text' };

export interface OffsetRule {
  /** What an offset is, with an example, for error messages: `the trade id, such as 109344068`. */
  readonly doc: string;
  /**
   * How offsets compare: trade ids and heights as numbers, everything else as text (code points); `composite` is
   * `<number>:<number>:<text>` and compares by its two numbers.
   */
  readonly order: 'numeric' | 'text' | 'composite';
  /** Whether the offsets of a partition must have no gaps; a partition with a gap is not proved. */
  readonly contiguous: boolean;
  /**
   * Whether no two partitions may hold the same offset; partitions then have disjoint ranges of its first number (trade
   * id, height, snapshot).
   */
  readonly unique: boolean;
  /** SQL over the table alias `t` that yields a stored row's offset as text. */
  readonly sql: string;
}

export interface StoredColumn {
  readonly name: string;
  readonly pg: PgType;
  readonly nullable?: boolean;
  /**
   * How the value follows from a row's fields, where no field has it unchanged, for whoever checks rows against the proof log
   * (shared/proof-log/cells.ts). `none`: it does not; the log's digest of rows leaves the column out.
   */
  readonly shown?: Exclude<ColumnRule, 'field'> | 'none';
}

export interface NativeShape {
  readonly table: string;
  /** Of a table that several instruments share: the column that tells them apart, and the value of this one. */
  readonly owner?: { readonly column: string; readonly value: number };
  /** The column of the event time, and its type. */
  readonly time: { readonly column: string; readonly pg: 'int8' | 'timestamptz' };
  /** The columns that identify a row together with its time, in the order of offsets. */
  readonly identity: readonly string[];
  readonly scope: PartitionScope;
  /** The stored columns in table order. */
  readonly columns: readonly StoredColumn[];
  /** The columns whose exact integer totals (value x 10^scale) are proved in addition to the row hash. */
  readonly totals: readonly { readonly column: string; readonly scale: number }[];
  /** How wide a chunk is, in ms; where partitions are windows of time, a chunk is a window. Reads take slices of it. */
  readonly chunkMs: number;
  readonly fields: readonly Field[];
  /** The order of rows, ascending: fields, or stored columns that are not fields. */
  readonly order: readonly string[];
  readonly view: View;
}

export interface AlignedShape {
  readonly fields: readonly Field[];
  /** The order of rows, ascending: the field of the second, then those of the series. */
  readonly order: readonly string[];
  /**
   * `bucket`: a window holds the rows whose second lies in it (trades, block and mempool streams).
   * `state`: a window holds the rows whose validity intersects it, carried-in state first (metrics).
   */
  readonly windowing: 'bucket' | 'state';
  /** The names of the fields that identify a series; empty where the dataset is one series. */
  readonly seriesKey: readonly string[];
  /** The field whose sum equals the number of native events, if there is one. */
  readonly countField?: string;
  /** The columns whose values depend on when a partition was fetched; the aligned digest does not cover them. */
  readonly outsideDigests: readonly string[];
  /** For one value a block: the native field whose value `metric_value_float` is. */
  readonly valueField?: string;
  /** For metrics: how the database makes aligned rows from native ones. */
  readonly seconds?: SecondsRule;
  readonly view: View;
}

/** The facts of a partition that all its rows share; they are columns of the catalog. */
export const PARTITION_FACTS = ['ingested_at', 'last_updated_at', 'document_sha256'] as const;

/** How the database makes aligned rows from native rows. */
export interface SecondsRule {
  /** SQL over `t`: for metrics, the order by which the first native row of a second and series gives the values. */
  readonly latestBy?: readonly string[];
  /** SQL condition over that row `t`: the row has a value. A second whose row has none is left out. */
  readonly isPresent?: string;
  /** The columns of the aligned storage that `select` yields, besides the second and the series. */
  readonly columns: readonly AlignedColumn[];
  /**
   * SQL of the aligned rows of the relation `rows`. It holds rows of proved partitions only: the columns of the native
   * table, `second` (epoch s), `source_offset` and the facts of the row's partition.
   */
  select(rows: string): string;
}

/** The kinds of datasets in the contract. */
export type DatasetKind =
  | 'spot_trades'
  | 'etf_daily_metrics'
  | 'macro_series_metrics'
  | 'bitcoin_stream'
  | 'bitcoin_derived';

export interface DatasetDefinition {
  /** A stable small number, never reused: it is the key in storage and part of event ids. */
  readonly number: number;
  readonly key: string;
  /** Of another instrument than the exchange's default, whose definition is `base`. Both have one key. */
  readonly instrument?: Instrument;
  readonly base?: DatasetDefinition;
  readonly kind: DatasetKind;
  readonly title: string;
  readonly doc: string;
  /** The sources that feed this dataset, by their keys in the rights matrix. */
  readonly sources: readonly string[];
  /**
   * The settings with the location of a source's documents, by source key; ETF has ten sources. At most one setting of a
   * source may be set. The synthetic sample is loaded only while none of them is set.
   */
  readonly locations: Readonly<Record<string, readonly string[]>>;
  /**
   * The settings that select what is read of the sources, wherever it lies. The first proof of what a source published pins
   * their values (shared/db/pinned-settings.ts).
   */
  readonly pinned?: readonly string[];
  readonly partition: PartitionKind;
  readonly offset: OffsetRule;
  readonly events: EventShape;
  readonly native: NativeShape;
  readonly aligned: AlignedShape;
  /** HTTP status of an answer when the aligned storage contract is violated. */
  readonly contractViolationStatus: 409 | 503;
  /** The setting that promotes the dataset or keeps it unserved (`shadow`); without one it is always promoted. */
  readonly servingState?: string;
  /** Path below `/v1/historical/`. */
  readonly historicalPath: string;
  readonly quality?: QualityRule;
  /** How often the next state comes, by `source_id` where sources differ. Trades are no states and have none. */
  readonly cadence?: Cadence | { readonly bySource: Readonly<Record<string, Cadence>> };
  /** Set for spot trades only. */
  readonly trades?: TradesShape;
}

/** What the trade and kline routes need of a dataset of spot trades. */
export interface TradesShape {
  /** The fields that all exchanges share: the default of the trade route, and the input of klines. */
  readonly unified: readonly Field[];
  /** Path of the klines below `/v1/historical/`. */
  readonly klinesPath: string;
  /** The settings that name the default instrument, and the others. */
  readonly instruments: {
    readonly symbol: string;
    readonly also: string;
    /** Where the exchange's symbols state base and quote apart. Nothing is cut from symbols that do not. */
    readonly pairOf?: (symbol: string) => { readonly base: string; readonly quote: string } | undefined;
  };
  /** The native fields of another instrument, where their SQL names the dataset. */
  readonly fieldsOf?: (of: Pick<DatasetDefinition, 'number' | 'instrument'>) => readonly Field[];
}

const SEPARATOR = '|';

/** The key of a series in the table `series`: the values of the fields of the series key, joined. */
export const seriesKeyOf = (values: readonly string[]): string => values.join(SEPARATOR);

/** SQL: the source in the key of a series. Every series key begins with `source_id`. */
export const SERIES_SOURCE = `split_part(key, '${SEPARATOR}', 1)`;

/** The values of a series key; only the last of them may contain the separator. */
export function seriesValues(key: string, fields: number): string[] {
  const parts = key.split(SEPARATOR);
  return [...parts.slice(0, fields - 1), parts.slice(fields - 1).join(SEPARATOR)];
}

export type Mode = 'native' | 'aligned_1s';

/** A native field that is a stored column by the same name. */
export function storedField(
  name: string,
  dtype: Dtype,
  pg: PgType,
  doc: string,
  more: { readonly unit?: string; readonly nullable?: boolean } = {},
): Field {
  const { unit, nullable = false } = more;
  return { name, dtype, nullable, unit, doc, pg, ...storedIn(name) };
}

/** The event time as a timestamp, where it is stored as epoch ms. */
export function timeField(name: string, column: string, doc: string): Field {
  return { name, dtype: 'timestamp_utc', nullable: false, doc, pg: 'int8', ...storedIn(column) };
}

/** The field `datetime`: the event time as a timestamp. */
export const datetimeField = (column: string): Field =>
  timeField('datetime', column, `The same instant as \`${column}\`.`);

export const nativeView = (key: string): View => ({ id: `${key}_native`, version: 1 });

/** The view of every dataset's aligned rows. */
export const ALIGNED_VIEW: View = { id: 'aligned_1s_raw', version: 1 };
