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
  /** The text of the multirange of the catalog; null where it is not known. */
  readonly inexactSeconds: string | null;
  /** The ids of its rows, where no two partitions share one. */
  readonly ids: Range | undefined;
}

/** Those that overlap the range. A file day has 24 hours, so none of them begins earlier than that. */
const statementOf = (dataset: DatasetDefinition, { from, to }: Range): Statement => ({
  prepared: true,
  text: `select partition_key, from_ms::text, to_ms::text, rows::text, aligned_rows::text, (klines_sha256 is not null)::text,
      inexact_seconds::text, lower(offsets)::text, upper(offsets)::text
    from partitions where dataset_id = $1 and state = 'proved' and from_ms > $2 and to_ms > $3 and from_ms < $4 order by from_ms`,
  params: [int2(dataset.number), int8(from - DAY_MS), int8(from), int8(to)],
});

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

/** Runs a statement in the read's snapshot. */
type Query = (statement: Statement) => Promise<readonly (readonly (string | null)[])[]>;

export class FileDays {
  readonly #dataset: DatasetDefinition;
  #known: { readonly range: Range; readonly days: readonly FileDay[] } | undefined;

  constructor(dataset: DatasetDefinition) {
    this.#dataset = dataset;
  }

  /** The proved file days that overlap the range, ascending. */
  async overlapping(range: Range, query: Query): Promise<readonly FileDay[]> {
    const known = this.#known;
    if (!known || range.from < known.range.from || range.to > known.range.to) {
      const days = (await query(statementOf(this.#dataset, range))).map(dayOf);
      this.#known = { range, days };
      return days;
    }
    return known.days.filter(({ from, to }) => from < range.to && to > range.from);
  }
}
