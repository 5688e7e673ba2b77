/** The types of requests of the historical routes and of frames, and of the rows that they return. */
import type { DatasetKey } from './datasets.ts';

export type Mode = 'native' | 'aligned_1s';

export type Operator = 'eq' | 'ne' | 'gt' | 'gte' | 'lt' | 'lte' | 'in' | 'not_in';

type Scalar = string | number | boolean | null;

export interface Filter<Name extends string> {
  readonly field: Name;
  readonly op: Operator;
  /** A list for `in` and `not_in`. `null` with `eq` or `ne` compares with missing values. */
  readonly value: Scalar | readonly Scalar[];
}

/** At most one window: dates (one or both), the latest rows, or a random sample. Without one: all proved rows. */
export interface Window {
  /** First UTC day, `YYYY-MM-DD`. */
  readonly start_date?: string;
  /** Last UTC day, included. */
  readonly end_date?: string;
  readonly n_latest_rows?: number;
  readonly n_random_rows?: number;
  /** For `n_random_rows`: the same seed over the same proved rows gives the same sample. */
  readonly random_seed?: number;
}

/** The columns of a route's rows in each mode; `defaults` are the names of those it returns without `fields`. */
export interface Shape {
  readonly native: object;
  readonly aligned_1s: object;
  readonly defaults: string;
}

type RowOf<S extends Shape, M extends Mode> = S[M];
type NameOf<S extends Shape, M extends Mode> = keyof RowOf<S, M> & string;

export interface Common<S extends Shape, M extends Mode, F extends NameOf<S, M>> extends Window {
  /** Default `native`: rows as the source has them. `aligned_1s`: one row for each UTC second. */
  readonly mode?: M;
  /** Exactly these columns, in this order. */
  readonly fields?: readonly F[];
  /** Rows must pass all filters. */
  readonly filters?: readonly Filter<NameOf<S, M>>[];
  /** Makes the service return an error instead of an answer with warnings. */
  readonly strict?: boolean;
}

export interface TradesOnly {
  /** Native only, default true: whether `datetime` is among the default columns. */
  readonly include_datetime_col?: boolean;
}

export interface VintagesOnly {
  /** Rows as they were known at this time, without later publications; ISO-8601 with `Z` or an offset. */
  readonly as_of?: string;
}

export interface KlinesOnly {
  /** Seconds (1 to 2,678,400), or text such as `5m`, `1h`, `1d`, `1w`; default 60. */
  readonly kline_size?: number | string;
}

/** Options of a call, besides the request itself. */
export interface Options {
  /** Ends the request at any stage; its reason is thrown. */
  readonly signal?: AbortSignal;
}

/** The row type of a request: the fields that it names, or the default fields of the route. */
export type Row<S extends Shape, M extends Mode, F extends string> = [F] extends [never]
  ? M extends 'native'
    ? Pick<S['native'], S['defaults'] & keyof S['native']>
    : S['aligned_1s']
  : Pick<RowOf<S, M>, F & keyof RowOf<S, M>>;

export type Aggregate = 'first' | 'last' | 'min' | 'max' | 'sum' | 'count' | 'vwap';

/** A column of a frame. */
export interface FrameColumn<Name extends string = string> {
  /** Its name in the rows. */
  readonly name: Name;
  readonly dataset: DatasetKey;
  /** A number, flag or time of the dataset; `GET /v1/datasets` lists them with the aggregates that they take. */
  readonly field: string;
  /** A row must pass all of them. For ETF and macro they name one series. */
  readonly filter?: Filter<string> | readonly Filter<string>[];
  /** How the trades of a bucket become one value; default `last`. Only for trades. */
  readonly aggregate?: Aggregate;
  /** A value that is older at the end of a bucket is null: seconds, or a text such as `7d`. */
  readonly max_age?: number | string;
}

/** A frame has exactly one of `time_range` and `n_rows`. */
export interface FrameRequest<Name extends string = string> {
  /** At most 64. */
  readonly columns: readonly FrameColumn<Name>[];
  /** Length of a bucket: seconds, or text such as `1m`, `4h`, `1d`; at most 31 days. */
  readonly grid: number | string;
  /** `[start, end)`, ISO-8601 with `Z` or an offset. */
  readonly time_range?: readonly [start: string, end: string];
  /** The last n buckets. */
  readonly n_rows?: number;
  /** A time: values as they were known then. `row`: each row as it was known at the end of its bucket. */
  readonly as_of?: string;
  /** What a bucket without trades has: null (default), or the value before it. */
  readonly fill?: 'null' | 'previous' | null;
  /** Makes the service return an error instead of an answer with warnings. */
  readonly strict?: boolean;
}

/** A row of a frame. */
export type FrameRow<Name extends string> = {
  /** Start of the bucket. */
  readonly datetime: string;
  /** End of the bucket, with `as_of: 'row'`. */
  readonly known_at_utc?: string;
} & { readonly [Column in Name]: number | string | null };
