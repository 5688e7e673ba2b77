/** The proved file days of a dataset, as the plans of a read need them: one query of the catalog serves all of them. */
import { DAY_MS } from '../../../shared/dates.ts';
import type { Range } from '../../../shared/ranges.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { int2, int8, type Statement } from '../../db/pg-messages.ts';

export interface FileDay extends Range {
  readonly key: string;
  readonly rows: number;
  /** Absent if the dataset has no aligned rows. */
  readonly alignedRows: number | undefined;
  /** Whether klines are kept of it. */
  readonly isKept: boolean;
  /**
   * The multirange of times whose aligned rows do not add up to native klines: ids go back, or a sum is not the decimal that its double
   * prints as. Null where it is not known.
   */
  readonly inexactSeconds: string | null;
  /** The ids of its rows, where no two partitions share one. */
  readonly ids: Range | undefined;
}

/** The file days that a read needs, as its request tells: those that overlap a range, or those of that much time up to the newest. */
export type AskedDays = Range | { readonly newestMs: number };

const PROVED = `from partitions where dataset_id = $1 and state = 'proved'`;

/** A file day has 24 hours, so none that overlaps a range begins earlier than that before it. */
export function fileDaysStatement(dataset: DatasetDefinition, asked: AskedDays): Statement {
  const [test, ...params] =
    'newestMs' in asked
      ? [`from_ms > (select max(from_ms) ${PROVED}) - $2`, int8(asked.newestMs)]
      : ['from_ms > $2 and to_ms > $3 and from_ms < $4', int8(asked.from - DAY_MS), int8(asked.from), int8(asked.to)];
  return {
    prepared: true,
    text: `select partition_key, from_ms::text, to_ms::text, rows::text, aligned_rows::text, (klines_sha256 is not null)::text,
        inexact_seconds::text, lower(offsets)::text, upper(offsets)::text ${PROVED} and ${test} order by from_ms`,
    params: [int2(dataset.number), ...params],
  };
}

function dayOf([key, from, to, rows, alignedRows, isKept, inexactSeconds, firstId, endId]: readonly (
  | string
  | null
)[]): FileDay {
  return {
    key: key!,
    from: Number(from),
    to: Number(to),
    rows: Number(rows),
    alignedRows: alignedRows === null ? undefined : Number(alignedRows),
    isKept: isKept === 'true',
    inexactSeconds,
    ids: firstId === null ? undefined : { from: Number(firstId), to: Number(endId) },
  };
}

type CatalogRows = readonly (readonly (string | null)[])[];
/** Runs a statement in the read's snapshot. */
type Query = (statement: Statement) => Promise<CatalogRows>;

export class FileDays {
  readonly #dataset: DatasetDefinition;
  #known: { readonly range: Range; readonly days: readonly FileDay[] } | undefined;

  /** @param found what the statement of `asked` found in the same snapshot */
  constructor(dataset: DatasetDefinition, asked?: AskedDays, found: CatalogRows = []) {
    this.#dataset = dataset;
    if (!asked) return;
    const days = found.map(dayOf);
    // All that overlap what comes a day after the earliest time at which one of them may begin.
    const from = (days.at(-1)?.from ?? 0) + DAY_MS;
    const range = 'newestMs' in asked ? { from: from - asked.newestMs, to: Number.POSITIVE_INFINITY } : asked;
    this.#known = { range, days };
  }

  /** The proved file days that overlap the range, ascending. */
  async overlapping(range: Range, query: Query): Promise<readonly FileDay[]> {
    const known = this.#known;
    if (!known || range.from < known.range.from || range.to > known.range.to) {
      const days = (await query(fileDaysStatement(this.#dataset, range))).map(dayOf);
      this.#known = { range, days };
      return days;
    }
    return known.days.filter(({ from, to }) => from < range.to && to > range.from);
  }
}
