/** The answer of GET /v1/conditions: what each day of a dataset is worth. */
import type { DatasetKey } from './datasets.ts';

export interface ConditionsRequest {
  readonly dataset: DatasetKey;
  /** Days, `YYYY-MM-DD`, both included. */
  readonly from: string;
  readonly to: string;
  /** An instrument of a trade dataset; without it the default. */
  readonly instrument?: string | undefined;
  /** `list`: with every silence of each day. */
  readonly silences?: 'list' | undefined;
}

export interface Silence {
  readonly from_utc: string;
  readonly to_utc: string;
  readonly ms: number;
  /** `proved`: the exchange numbers its trades, and those on both sides follow each other. */
  readonly state: 'proved' | 'unknown';
}

/** What has no meaning for the dataset is absent; null without proved rows, or for callers who may not read them. */
export interface DayCondition {
  readonly day: string;
  readonly start_utc: string;
  readonly end_utc: string;
  readonly condition: 'available' | 'degraded' | 'pending' | 'missing';
  readonly reasons: readonly (
    | 'ids_missing'
    | 'late_arrival'
    | 'silence_unknown'
    | 'quarantined'
    | 'retracted'
    | 'not_listed'
    | 'not_proved'
  )[];
  /** The greatest decimals that explain every row: multiples of the exchange’s ticks. */
  readonly observed_increment?: { readonly price: string | null; readonly quantity: string | null } | null;
  /** Above a minute, by the day in which they begin. */
  readonly silences?: {
    readonly count: number;
    readonly longest_ms: number;
    readonly unknown: number;
    readonly list?: readonly Silence[];
  } | null;
  readonly ids_missing?: number | null;
  readonly repeats?: number | null;
  readonly first?: string | null;
  readonly last?: string | null;
  readonly document?: {
    readonly name: string;
    readonly sha256: string;
    readonly bytes: number;
    readonly captured_utc: string;
    readonly [fact: string]: unknown;
  } | null;
  readonly revisions?: readonly { readonly revision: number; readonly proved_at_utc: string }[];
}
