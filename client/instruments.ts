/** The answer of GET /v1/instruments: the instruments of the trade datasets. */
import type { DatasetKey } from './datasets.ts';

/** The datasets whose requests may name an instrument. */
export type TradesKey = Extract<DatasetKey, `${string}_trades`>;

export interface Instrument {
  readonly dataset: TradesKey;
  /** The exchange’s symbol. */
  readonly instrument: string;
  /** What is bought and sold; null where nobody states it. */
  readonly base: string | null;
  /** What it is paid in; null where nobody states it. */
  readonly quote: string | null;
  /** Whether requests mean it that name none. */
  readonly default: boolean;
  /** Whether it is still read. */
  readonly configured: boolean;
  /** Proved trades. */
  readonly rows: number;
  /** When the exchange lists it, in days; outside of them no day is expected. */
  readonly intervals: readonly {
    readonly from: string | null;
    /** Null: nobody says that it ended. */
    readonly to: string | null;
    readonly first_proved: string | null;
    readonly last_proved: string | null;
  }[];
}
