/** How much of each dataset is proved, at one moment. */
import { parseMultirange } from '../../shared/db/ranges.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import { isoOf } from '../contract/time.ts';
import type { Session } from '../read/session.ts';

export interface Availability {
  /** Of the oldest row and exclusive of the newest; null while nothing is proved. */
  readonly proved_from_utc: string | null;
  readonly proved_through_utc: string | null;
  /** Until when every source is complete: the oldest of their ends. */
  readonly as_of_utc: string | null;
  readonly partitions: number;
  readonly rows: number;
  /** The sample: rows that no vendor published. */
  readonly synthetic: boolean;
}

const NOTHING: Availability = {
  proved_from_utc: null,
  proved_through_utc: null,
  as_of_utc: null,
  partitions: 0,
  rows: 0,
  synthetic: false,
};

const DAYS = [...DATASETS.values()].filter(({ native }) => native.scope.kind === 'window');

/**
 * By number of the dataset. Where a dataset has spans they are counted already, and a source's end is that of its last
 * run; file days are few enough to be counted.
 */
const STATEMENT = `select c.dataset_id::text, c.proved::text, c.synthetic::text, coalesce(s.partitions, p.partitions, 0)::text,
    coalesce(s.rows, p.rows, 0)::text, s.from_ms::text, s.to_ms::text, s.through_ms::text
  from coverage c
  left join (select dataset_id, count(*) as partitions, sum(rows) as rows from partitions
    where dataset_id in (${DAYS.map(({ number }) => number).join(', ')}) and state = 'proved' group by dataset_id) p
    using (dataset_id)
  left join (select dataset_id, sum(partitions) as partitions, sum(rows) as rows, min(from_ms) as from_ms,
    max(to_ms) as to_ms, min(through_ms) as through_ms from (
      select dataset_id, sum(partitions) as partitions, sum(rows) as rows, min(from_ms) as from_ms, max(to_ms) as to_ms,
        max(through_ms) as through_ms from coverage_spans group by dataset_id, source_id) sources group by dataset_id) s
    using (dataset_id)`;

export async function readAvailability(session: Session): Promise<(dataset: DatasetDefinition) => Availability> {
  const rows = await session.rows(STATEMENT);
  const byNumber = new Map(rows.map((row) => [Number(row[0]), row]));
  return (dataset) => {
    const row = byNumber.get(dataset.number);
    if (!row) return NOTHING;
    const [, proved, synthetic, partitions, count, spansFrom, spansTo, spansThrough] = row;
    const ranges = dataset.native.scope.kind === 'window' ? parseMultirange(proved!) : [];
    const last = ranges.at(-1)?.to;
    const iso = (ms: number | undefined, spans: string | null) =>
      ms !== undefined ? isoOf(ms) : spans !== null ? isoOf(Number(spans)) : null;
    return {
      proved_from_utc: iso(ranges[0]?.from, spansFrom),
      proved_through_utc: iso(last, spansTo),
      as_of_utc: iso(last, spansThrough),
      partitions: Number(partitions),
      rows: Number(count),
      synthetic: synthetic === 'true' && Number(partitions) > 0,
    };
  };
}
