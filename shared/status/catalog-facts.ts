/**
 * The facts of the catalog about all datasets at one moment, for the reports of their status. No statement reads rows of
 * data or the history of attempts: partial indexes find the open attempts, and the coverage spans hold counts.
 */
import type { ClientBase } from 'pg';
import { PROJECTOR_LOCK, PUBLISHER_LOCK } from '../db/connect.ts';
import type { PartitionState } from '../db/schema.ts';
import { DATASETS, type DatasetDefinition } from '../registry/index.ts';
import { type DayRange, runsOfDays, type UnprovedSpan } from './proved-ranges.ts';

/** An attempt that has not ended. */
interface OpenAttempt {
  readonly partition: string;
  readonly attempt: number;
  /** `published`: the manifest is in the log, so the facts of the content are known. */
  readonly state: 'publishing' | 'published';
  readonly publisher: string;
  readonly startedAt: Date;
  readonly updatedAt: Date;
  readonly rows: number | undefined;
  readonly firstMs: number | undefined;
  readonly lastMs: number | undefined;
}

interface SourceFailures {
  readonly source: string;
  readonly code: string;
  readonly failures: number;
  readonly lastAt: Date;
  readonly lastReason: string;
}

export interface DatasetFacts {
  readonly version: number;
  readonly synthetic: boolean;
  readonly runs: readonly DayRange[];
  readonly partitions: Readonly<Record<PartitionState, number>>;
  /** Native rows of all proved partitions. */
  readonly rows: number;
  /** Of known partitions that are not proved. */
  readonly unprovedSpans: readonly UnprovedSpan[];
  readonly lateArrivals: number;
  readonly checkpoint: { readonly sequence: number; readonly at: Date } | undefined;
  readonly open: readonly OpenAttempt[];
  /** Names of the connections that hold the dataset's locks. */
  readonly publisher: string | undefined;
  readonly projector: string | undefined;
  readonly failures: readonly SourceFailures[];
}

/** Numbers of the datasets of file days. The catalog counts their partitions one by one; coverage spans count the others. */
const DAYS = [...DATASETS.values()].filter(({ native }) => native.scope.kind === 'window').map(({ number }) => number);

const STATEMENTS = {
  coverage: `select dataset_id, version, synthetic, proved::text from coverage`,
  runs: `select dataset_id, source_id, lower(span) as lower, upper(span) as upper, from_ms, through_ms, partitions, rows
    from coverage_spans order by dataset_id, source_id, span`,
  days: `select dataset_id, count(*) as partitions, coalesce(sum(rows), 0) as rows from partitions
    where dataset_id in (${DAYS.join(', ')}) and state = 'proved' group by dataset_id`,
  unproved: `select dataset_id, state, count(*) as partitions from partitions where state <> 'proved' group by 1, 2`,
  // A file day has no span, and its source is that of the dataset.
  unprovedSpans: `select dataset_id, source_id, coalesce(lower(span), from_ms) as lower, coalesce(upper(span), to_ms) as upper
    from partitions where state <> 'proved'`,
  late: `select dataset_id, count(*) as documents from ledger where kind = 'late_arrival_refused' group by 1`,
  checkpoints: `select dataset_id, stream_sequence, updated_at from checkpoints`,
  open: `select dataset_id, partition_key, attempt, state, publisher, started_at, updated_at, manifest->'rows' as rows,
      manifest->'first_ms' as first_ms, manifest->'last_ms' as last_ms
    from attempts where state in ('publishing', 'published') order by dataset_id, updated_at desc`,
  // pg_locks shows both keys of a two-key lock as unsigned; ours are small. Locks of other databases are not ours.
  locks: `select l.objid::int4 as dataset_id, l.classid::int4 as lock, a.application_name as name
    from pg_locks l join pg_stat_activity a using (pid)
    where l.locktype = 'advisory' and l.objsubid = 2 and l.granted and l.classid in (${PUBLISHER_LOCK}, ${PROJECTOR_LOCK})
      and l.database = (select oid from pg_database where datname = current_database())`,
  failures: `select dataset_id, source_id, code, failures, last_at, last_reason from source_failures order by 1, 2, 3`,
} as const;

// biome-ignore lint/suspicious/noExplicitAny: the columns depend on the statement
type Row = Record<string, any>;
type RowsByStatement = { readonly [K in keyof typeof STATEMENTS]: Map<number, Row[]> };

/** Reads the facts in one snapshot, by the number of the dataset. */
export async function readCatalogFacts(client: ClientBase): Promise<ReadonlyMap<number, DatasetFacts>> {
  const found: Record<string, Map<number, Row[]>> = {};
  await client.query('begin isolation level repeatable read read only');
  try {
    for (const [name, text] of Object.entries(STATEMENTS)) {
      found[name] = Map.groupBy((await client.query<Row>(text)).rows, (row) => row.dataset_id as number);
    }
  } finally {
    await client.query('rollback');
  }
  return new Map([...DATASETS.values()].map((dataset) => [dataset.number, factsOf(dataset, found as RowsByStatement)]));
}

function factsOf(dataset: DatasetDefinition, found: RowsByStatement): DatasetFacts {
  const of = (name: keyof RowsByStatement) => found[name].get(dataset.number) ?? [];
  const [coverage] = of('coverage');
  const [day] = of('days');
  const [checkpoint] = of('checkpoints');
  const runs = of('runs');
  const total = (column: string) => runs.reduce((sum, row) => sum + Number(row[column]), 0);
  const unproved = (state: PartitionState) =>
    Number(of('unproved').find((row) => row.state === state)?.partitions ?? 0);
  const holder = (lock: number): string | undefined => of('locks').find((row) => row.lock === lock)?.name;
  return {
    version: Number(coverage?.version ?? 0),
    synthetic: coverage?.synthetic ?? false,
    runs: DAYS.includes(dataset.number) ? runsOfDays(dataset, coverage?.proved ?? '{}') : runs.map(runOf),
    partitions: {
      publishing: unproved('publishing'),
      published: unproved('published'),
      proved: Number(day?.partitions ?? 0) + total('partitions'),
      quarantined: unproved('quarantined'),
    },
    rows: Number(day?.rows ?? 0) + total('rows'),
    unprovedSpans: of('unprovedSpans').map(({ source_id: source, lower, upper }) => ({
      source: source ?? dataset.sources[0],
      span: { from: Number(lower), to: Number(upper) },
    })),
    lateArrivals: Number(of('late')[0]?.documents ?? 0),
    checkpoint: checkpoint && { sequence: Number(checkpoint.stream_sequence), at: checkpoint.updated_at },
    open: of('open').map(openAttempt),
    publisher: holder(PUBLISHER_LOCK),
    projector: holder(PROJECTOR_LOCK),
    failures: of('failures').map((row) => ({
      source: row.source_id,
      code: row.code,
      failures: Number(row.failures),
      lastAt: row.last_at,
      lastReason: row.last_reason,
    })),
  };
}

const runOf = (row: Row): DayRange => ({
  source: row.source_id,
  span: { from: Number(row.lower), to: Number(row.upper) },
  fromMs: Number(row.from_ms),
  throughMs: Number(row.through_ms),
});

const openAttempt = (row: Row): OpenAttempt => ({
  partition: row.partition_key,
  attempt: row.attempt,
  state: row.state,
  publisher: row.publisher,
  startedAt: row.started_at,
  updatedAt: row.updated_at,
  rows: row.rows ?? undefined,
  firstMs: row.first_ms ?? undefined,
  lastMs: row.last_ms ?? undefined,
});
