/**
 * Kept klines: whole klines of six sizes that the projector stores with every proved file day of trades. Klines of these
 * sizes are read as they are stored, and those of their multiples are added up from them. `migrations/0004_klines.sql` makes the tables.
 */
import { DAY_MS } from '../dates.ts';
import type { DatasetDefinition, PgType } from './definition.ts';

const MINUTE_MS = 60_000;

/** Ascending; each divides the next. */
export const KEPT_SIZES_MS: readonly number[] = [1, 5, 15, 60, 240, 1440].map((minutes) => minutes * MINUTE_MS);

export const KLINE_TABLES = { native: 'native_klines', aligned: 'aligned_klines', shared: 'shared_klines' } as const;

type Columns = readonly { readonly name: string; readonly pg: PgType | 'numeric' }[];

const columns = (pg: PgType | 'numeric', names: string): Columns => names.split(' ').map((name) => ({ name, pg }));

/**
 * The stored columns in the order of the tables. The doubles are what klines answer; the totals are the exact sums behind
 * them. `rows` and `no_of_trades` count what a kline aggregates.
 */
export const KEPT_COLUMNS: Readonly<Record<'native' | 'aligned', Columns>> = {
  native: [
    ...columns('int8', 'start_ms no_of_trades makers first_id last_id'),
    ...columns('float8', 'open high low close mean std median iqr volume'),
    ...columns('float8', 'open_liquidity high_liquidity low_liquidity close_liquidity'),
    ...columns('float8', 'liquidity_sum maker_volume maker_liquidity'),
    ...columns('int4', 'size_s'),
    ...columns('int2', 'dataset_id'),
    ...columns('numeric', 'price_total price_square_total quantity_total liquidity_total'),
    ...columns('numeric', 'maker_quantity_total maker_liquidity_total'),
  ],
  aligned: [
    ...columns('int8', 'start_ms rows no_of_trades'),
    ...columns('float8', 'open high low close volume liquidity_sum'),
    ...columns('int4', 'size_s'),
    ...columns('int2', 'dataset_id'),
    ...columns('numeric', 'quantity_total liquidity_total'),
  ],
};

/** Where the file days of a dataset begin, in ms after midnight UTC; undefined for datasets without kept klines. */
export function keptStartOf({ trades, partition }: DatasetDefinition): number | undefined {
  if (!trades || partition.kind !== 'file_day') return undefined;
  return ((partition.startOffsetMs % DAY_MS) + DAY_MS) % DAY_MS;
}

/** Whether klines of this kept size begin where a file day begins, so that each lies wholly in one partition. */
export function isWholeSize(dataset: DatasetDefinition, sizeMs: number): boolean {
  const start = keptStartOf(dataset);
  return start !== undefined && start % sizeMs === 0;
}
