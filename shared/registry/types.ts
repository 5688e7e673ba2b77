/**
 * The shape of a dataset declaration. Everything that differs between datasets is said here, as data: request
 * validation, response schema, SQL, the storage contract, coverage rules and documentation derive from it.
 *
 * Words: an *event* is one source record; a *partition* is the unit of fetching, proving and replaying; an *offset*
 * identifies an event within its partition; a *series* is one line of values in an aligned dataset.
 */

import type { SettingName } from '../config/settings.ts';

/** Closed vocabulary of response types. Timestamps leave as `YYYY-MM-DDTHH:MM:SS.mmmZ`, bool01 as 0 or 1, json as text. */
export type Dtype = 'int64' | 'float64' | 'string' | 'bool01' | 'timestamp_utc' | 'uuid' | 'json';

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

/** What a partition of the dataset is, and how its key is written. */
export type PartitionKind =
  /** A vendor's file day, key `YYYY-MM-DD`, covering [day + startOffsetMs, + 24 h). */
  | { readonly kind: 'file_day'; readonly startOffsetMs: number }
  /** One capture of an issuer's page, key `<source_id>:<as-of day>`. */
  | { readonly kind: 'capture' }
  /** One vintage of a series, key `<source_id>:<vintage date>`. */
  | { readonly kind: 'vintage' }
  /** One block, key = height; work and coverage are kept as ranges. */
  | { readonly kind: 'height' }
  /** One mempool snapshot, key = epoch ms. */
  | { readonly kind: 'snapshot' };

export interface OffsetRule {
  /** How offsets compare: trade ids and heights as numbers, hashes as text. */
  readonly order: 'numeric' | 'text';
  /** Whether a proved partition's offsets follow each other without a gap; one with a gap is not proved. */
  readonly contiguous: boolean;
  /** Whether no two partitions may hold the same offset; coverage then keeps disjoint offset ranges. */
  readonly unique: boolean;
  /** Where an event's line says its offset: the number of the cell, and the text before the number in it. */
  readonly cell: { readonly column: number; readonly prefix: string };
}

export interface NativeShape {
  readonly table: string;
  /** Column of event time and what it holds. */
  readonly time: { readonly column: string; readonly pg: 'int8' | 'timestamptz' };
  /** Column that identifies a row within one instant, together with the time. */
  readonly identity: readonly string[];
  /** Stored columns in table order. */
  readonly columns: readonly { readonly name: string; readonly pg: PgType; readonly nullable?: boolean }[];
  /** Columns whose exact integer totals (value x 10^scale) are proved, beside the row hash. */
  readonly totals: readonly { readonly column: string; readonly scale: number }[];
  readonly chunkMs: number;
  readonly fields: readonly Field[];
  /** Field names the rows are ordered by, ascending. */
  readonly order: readonly string[];
  readonly view: View;
}

export interface AlignedShape {
  readonly fields: readonly Field[];
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
  readonly view: View;
}

export interface DatasetDefinition {
  /** Stable small number: storage key and part of event ids. Never reused. */
  readonly number: number;
  readonly key: string;
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
  readonly native: NativeShape;
  readonly aligned: AlignedShape;
  /** HTTP status of a violated aligned storage contract. */
  readonly contractViolationStatus: 409 | 503;
  /** Path below `/v1/historical/`. */
  readonly historicalPath: string;
}
