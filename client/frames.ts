/** The types of a frame: its request, its columns and its rows. */
import type { DatasetKey } from './datasets.ts';
import type { Filter } from './requests.ts';

export type Aggregate = 'first' | 'last' | 'min' | 'max' | 'sum' | 'count' | 'vwap';

/** A column of a frame. */
export interface FrameColumn<Name extends string = string> {
  /** Its name in the rows. */
  readonly name: Name;
  readonly dataset: DatasetKey;
  /** Of trades: the exchange’s symbol. Without it: the default. */
  readonly instrument?: string;
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
  /** Of trades: the answer’s warnings name times above a minute without one. */
  readonly silences?: 'warn';
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
