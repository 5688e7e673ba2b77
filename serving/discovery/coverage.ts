/** Everything coverage says of a dataset, out of one snapshot. */
import { PARTITION_STATES } from '../../shared/db/partition-states.ts';
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import { isoOf } from '../contract/time.ts';
import type { Session } from '../read/session.ts';
import type { CoverageAnswer } from './coverage-answer.ts';
import { epochMs, type PageRequest, readPage } from './partition-page.ts';
import { inDataset, type Proved, readProved } from './proved.ts';

/** Refused documents that are named; all of them are counted. */
const MAX_LATE_ARRIVALS = 100;

export async function readCoverage(
  session: Session,
  dataset: DatasetDefinition & { readonly key: DatasetKey },
  request: PageRequest,
): Promise<CoverageAnswer> {
  const proved = await readProved(session, dataset);
  const totals = await readTotals(session, dataset, proved);
  const { partitions, next } = await readPage(session, dataset, request);
  const late = await readLateArrivals(session, dataset);
  return {
    dataset: dataset.key,
    partition_kind: dataset.partition.kind,
    ...proved,
    totals,
    partitions: [...partitions],
    next_cursor: next,
    ...late,
  };
}

/** Proved ones are counted with the stretches they make; there are few others, and they have an index. */
async function readTotals(
  session: Session,
  dataset: DatasetDefinition,
  { proved }: Proved,
): Promise<CoverageAnswer['totals']> {
  const others = await inDataset(
    session,
    dataset,
    (id) =>
      `select state, count(*)::text from partitions where dataset_id = ${id} and state <> 'proved' group by state`,
  );
  const countOf = new Map(others.map(([state, count]) => [state, Number(count)]));
  const sum = (of: 'partitions' | 'rows') => proved.reduce((total, stretch) => total + stretch[of], 0);
  const tally = (state: (typeof PARTITION_STATES)[number]) =>
    state === 'proved'
      ? { partitions: sum('partitions'), rows: sum('rows') }
      : { partitions: countOf.get(state) ?? 0, rows: 0 };
  return Object.fromEntries(PARTITION_STATES.map((state) => [state, tally(state)])) as CoverageAnswer['totals'];
}

async function readLateArrivals(
  session: Session,
  dataset: DatasetDefinition,
): Promise<Pick<CoverageAnswer, 'late_arrivals' | 'late_arrivals_total'>> {
  const rows = await inDataset(
    session,
    dataset,
    (id) => `select ${epochMs('at')}, partition_key, reason, (details->'document')::text, count(*) over ()::text
      from ledger where dataset_id = ${id} and kind = 'late_arrival_refused'
      order by entry_id desc limit ${MAX_LATE_ARRIVALS}`,
  );
  return {
    late_arrivals: rows.map(([at, partition, reason, document]) => ({
      at_utc: isoOf(Number(at)),
      partition: partition!,
      reason: reason!,
      document: document === null ? null : JSON.parse(document),
    })),
    late_arrivals_total: Number(rows[0]?.[4] ?? 0),
  };
}
