/** The types of requests of the historical routes, and of the rows that they return. */

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
  /** Of trades: the answer’s warnings name times above a minute without one. */
  readonly silences?: 'warn';
  /** Makes the service return an error instead of an answer with warnings. */
  readonly strict?: boolean;
}

/** Of trades and their candles. */
export interface OfInstrument {
  /** The exchange’s symbol (`GET /v1/instruments`). Without it: the default. */
  readonly instrument?: string;
}

export interface TradesOnly extends OfInstrument {
  /** Native only, default true: whether `datetime` is among the default columns. */
  readonly include_datetime_col?: boolean;
}

export interface VintagesOnly {
  /** Rows as they were known at this time, without later publications; ISO-8601 with `Z` or an offset. */
  readonly as_of?: string;
}

export interface KlinesOnly extends OfInstrument {
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
