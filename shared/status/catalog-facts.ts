/**
 * The facts of the catalog about all datasets at one moment, for the reports of their status. No statement reads rows of
 * data or the history of attempts: partial indexes find the open attempts, and the coverage spans hold counts.
 */
import type { ClientBase } from 'pg';
import { PROJECTOR_LOCK, PUBLISHER_LOCK } from '../db/connect.ts';
import type { PartitionState } from '../db/schema.ts';
import { DATASETS, type DatasetDefinition } from '../registry/index.ts';
import { baseOf, SLOTS } from '../registry/instruments.ts';
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
  /** Of them those that their source still publishes, with other rows than are proved. */
  readonly lateArrivalsOpen: number;
  readonly checkpoint: { readonly sequence: number; readonly at: Date } | undefined;
  readonly open: readonly OpenAttempt[];
  /** Names of the connections that hold the dataset's locks. */
  readonly publisher: string | undefined;
  readonly projector: string | undefined;
  readonly failures: readonly SourceFailures[];
}

/** An unproved partition. */
interface Unproved {
  readonly partition: string;
  readonly state: PartitionState;
  readonly attempt: number;
  readonly revision: number;
  readonly reason: string | null;
  readonly updatedAt: Date;
}

/** How many partitions something holds for, and the first of them. */
interface Counted {
  readonly n: number;
  readonly first: string;
  readonly last: string;
}

/** What an operator sees beyond what monitors do. */
export interface DatasetDetails {
  /** The first known partitions that are not proved. */
  readonly unproved: readonly Unproved[];
  /** The newest refusals. */
  readonly lateArrivals: readonly { readonly partition: string; readonly at: Date; readonly reason: string }[];
  /** Adjacent proved days whose ids are not consecutive: the vendor's files lack rows. */
  readonly offsetBreaks: readonly {
    readonly before: string;
    readonly partition: string;
    readonly last_offset: string;
    readonly first_offset: string;
  }[];
  /** Messages of the log that belong to a published attempt: its frames, manifest and retraction. */
  readonly referencedMessages: number;
  readonly quarantined: Counted | undefined;
  /** Attempts without activity for so long that they were abandoned. */
  readonly stuck: readonly (Counted & { readonly state: PartitionState })[];
  /** Partitions whose refused content no revision has taken since. */
  readonly refused: number;
  /** Recounts that reads asked for, and no projector made. */
  readonly recounts: Counted | undefined;
  /** Proved partitions without a leaf in the proof log. */
  readonly leafless: Counted | undefined;
  /** Proved partitions that only the database holds since `recover`. Those of the sample have no source to be had from. */
  readonly notInLog: Counted | undefined;
}

/** An attempt without activity for this long has been abandoned. */
export const STUCK_HOURS = 1;
/** A running projector process begins a recount within seconds. */
const RECOUNT_MINUTES = 5;
/** Most partitions, refusals and breaks of ids that are listed. */
const MAX_UNPROVED = 100;
const MAX_LATE = 20;
const MAX_BREAKS = 100;

/** Numbers of the datasets of file days whose ids follow each other over days. */
const CONSECUTIVE = [...DATASETS.values()]
  .filter(({ partition, offset }) => partition.kind === 'file_day' && offset.contiguous && offset.unique)
  .map(({ number }) => number);

/** With their other instruments. */
const CONSECUTIVE_TEST = `(dataset_id in (${CONSECUTIVE.join(', ')}) or dataset_id > ${SLOTS} and dataset_id >> 8 in (${CONSECUTIVE.join(', ')}))`;

/** Numbers of the datasets of file days. The catalog counts their partitions one by one; coverage spans count the others. */
const DAYS = [...DATASETS.values()].filter(({ native }) => native.scope.kind === 'window').map(({ number }) => number);

/** SQL of the number whose log the messages of a dataset or instrument are in. */
const LOG_OF = `case when dataset_id > ${SLOTS} then dataset_id >> 8 else dataset_id end as dataset_id`;

/** SQL: the source still publishes it, its rows are not those of the partition, and no revision has replaced these. */
const OPEN_ARRIVAL = `left_at is null and coalesce(rows_added + rows_removed + rows_altered, 1) > 0 and exists (select from partitions p where p.dataset_id = late_arrivals.dataset_id
  and p.partition_key = late_arrivals.partition_key and p.state = 'proved' and p.attempt = late_arrivals.attempt)`;

const DAYS_COUNTED = `count(*) as partitions, coalesce(sum(rows), 0) as rows, bool_or(synthetic) as synthetic from partitions
    where (dataset_id in (${DAYS.join(', ')}) or dataset_id > ${SLOTS}) and state = 'proved'`;

const STATEMENTS = {
  coverage: `select dataset_id, version, synthetic, proved::text from coverage`,
  runs: `select dataset_id, source_id, lower(span) as lower, upper(span) as upper, from_ms, through_ms, partitions, rows
    from coverage_spans order by dataset_id, source_id, span`,
  days: `select dataset_id, ${DAYS_COUNTED} group by 1`,
  unproved: `select dataset_id, state, count(*) as partitions from partitions where state <> 'proved' group by 1, 2`,
  // A file day has no span, and its source is that of the dataset.
  unprovedSpans: `select dataset_id, source_id, coalesce(lower(span), from_ms) as lower, coalesce(upper(span), to_ms) as upper
    from partitions where state <> 'proved'`,
  late: `select dataset_id, count(*) as documents from ledger where kind = 'late_arrival_refused' group by 1`,
  lateOpen: `select dataset_id, count(*) as documents from late_arrivals where ${OPEN_ARRIVAL} group by 1`,
  checkpoints: `select dataset_id, stream_sequence, updated_at from checkpoints`,
  // The log of an exchange is one for all of its instruments.
  open: `select ${LOG_OF}, partition_key, attempt, state, publisher, started_at, updated_at, manifest->'rows' as rows,
      manifest->'first_ms' as first_ms, manifest->'last_ms' as last_ms
    from attempts where state in ('publishing', 'published') order by 1, updated_at desc`,
  // pg_locks shows both keys of a two-key lock as unsigned; ours are small. Locks of other databases are not ours.
  locks: `select l.objid::int4 as dataset_id, l.classid::int4 as lock, a.application_name as name
    from pg_locks l join pg_stat_activity a using (pid)
    where l.locktype = 'advisory' and l.objsubid = 2 and l.granted and l.classid in (${PUBLISHER_LOCK}, ${PROJECTOR_LOCK})
      and l.database = (select oid from pg_database where datname = current_database())`,
  failures: `select dataset_id, source_id, code, failures, last_at, last_reason from source_failures order by 1, 2, 3`,
} as const;

/** For monitors: what any instrument has is the exchange's. An operator sees each instrument apart. */
const OF_ALL = {
  days: `select ${LOG_OF}, ${DAYS_COUNTED} group by 1`,
  unproved: `select ${LOG_OF}, state, count(*) as partitions from partitions where state <> 'proved' group by 1, 2`,
  late: `select ${LOG_OF}, count(*) as documents from ledger where kind = 'late_arrival_refused' group by 1`,
  lateOpen: `select ${LOG_OF}, count(*) as documents from late_arrivals where ${OPEN_ARRIVAL} group by 1`,
};

const COUNTED = 'count(*)::int4 as n, min(partition_key) as first, max(partition_key) as last';

const DETAILS = {
  unproved: `select * from (select dataset_id, partition_key as partition, state, attempt, revision, reason, updated_at as "updatedAt",
      row_number() over (partition by dataset_id order by from_ms) as place from partitions where state <> 'proved') p
    where place <= ${MAX_UNPROVED} order by dataset_id, place`,
  late: `select * from (select dataset_id, partition_key as partition, at, reason,
      row_number() over (partition by dataset_id order by entry_id desc) as place from ledger where kind = 'late_arrival_refused') l
    where place <= ${MAX_LATE} order by dataset_id, place`,
  breaks: `select dataset_id, before, partition, last_offset, first_offset from (select *, row_number() over (partition by dataset_id order by from_ms) as place from (
      select dataset_id, partition_key as partition, from_ms, manifest->>'first_offset' as first_offset,
        lag(partition_key) over w as before, lag(to_ms) over w as before_to, lag(manifest->>'last_offset') over w as last_offset
      from partitions where ${CONSECUTIVE_TEST} and state = 'proved'
      window w as (partition by dataset_id order by from_ms)) neighbours
    where before_to = from_ms and first_offset::int8 <> last_offset::int8 + 1) b
    where place <= ${MAX_BREAKS} order by dataset_id, place`,
  referenced: `select ${LOG_OF}, sum(messages) as messages from (
      select dataset_id, sum(frames + 1) as messages from attempts where manifest_sequence is not null group by 1
      union all select dataset_id, count(*) from ledger where kind = 'quarantined' and details ->> 'by' = 'source' group by 1) m
    group by 1`,
  waiting: `select dataset_id, state, ${COUNTED} from partitions
    where state = 'quarantined' or (state in ('publishing', 'published') and updated_at < now() - interval '${STUCK_HOURS} h')
    group by 1, 2 order by 1, 2`,
  refused: `select dataset_id, count(distinct partition_key)::int4 as n from ledger l where kind = 'late_arrival_refused'
      and not exists (select from ledger r where r.dataset_id = l.dataset_id and r.partition_key = l.partition_key
        and r.kind = 'revision_proved' and r.entry_id > l.entry_id) group by 1`,
  recounts: `select dataset_id, ${COUNTED} from recount_requests
    where asked_at < now() - interval '${RECOUNT_MINUTES} min' group by 1`,
  leafless: `select dataset_id, ${COUNTED} from partitions p
    where state = 'proved' and not exists (select from proof_leaves l where l.dataset_id = p.dataset_id
      and l.partition_key = p.partition_key and l.attempt = p.attempt and l.kind in ('proved', 'revised')) group by 1`,
  notInLog: `select dataset_id, ${COUNTED} from partitions p join attempts a using (dataset_id, partition_key, attempt)
    where p.state = 'proved' and not p.synthetic and a.manifest_sequence is null group by 1`,
} as const;

// biome-ignore lint/suspicious/noExplicitAny: the columns depend on the statement
type Row = Record<string, any>;
type RowsBy<T> = { readonly [K in keyof T]: Map<number, Row[]> };
type RowsByStatement = RowsBy<typeof STATEMENTS>;

export interface CatalogFacts {
  /** By the number of the dataset. */
  readonly facts: ReadonlyMap<number, DatasetFacts>;
  readonly details: ReadonlyMap<number, DatasetDetails> | undefined;
}

/** Reads the facts, and the details if they are asked for, in one snapshot. */
export async function readCatalogFacts(
  client: ClientBase,
  detailed: boolean,
  datasets: readonly DatasetDefinition[] = [...DATASETS.values()],
): Promise<CatalogFacts> {
  await client.query('begin isolation level repeatable read read only');
  try {
    const found = await rowsOf(client, detailed ? STATEMENTS : { ...STATEMENTS, ...OF_ALL });
    const more = detailed ? await rowsOf(client, DETAILS) : undefined;
    return {
      facts: new Map(datasets.map((dataset) => [dataset.number, factsOf(dataset, found)])),
      details: more && new Map(datasets.map(({ number }) => [number, detailsOf(number, more)])),
    };
  } finally {
    await client.query('rollback');
  }
}

async function rowsOf<T extends Readonly<Record<string, string>>>(
  client: ClientBase,
  statements: T,
): Promise<RowsBy<T>> {
  const found: Record<string, Map<number, Row[]>> = {};
  for (const [name, text] of Object.entries(statements)) {
    found[name] = Map.groupBy((await client.query<Row>(text)).rows, (row) => row.dataset_id as number);
  }
  return found as RowsBy<T>;
}

/** An entry of a list of one dataset. */
const listed = ({ dataset_id, place, ...entry }: Row): Row => entry;

function detailsOf(number: number, found: RowsBy<typeof DETAILS>): DatasetDetails {
  const of = (name: keyof typeof DETAILS) => found[name].get(number) ?? [];
  const counted = ([row]: readonly Row[]): Counted | undefined => row && { n: row.n, first: row.first, last: row.last };
  const isQuarantined = ({ state }: Row) => state === 'quarantined';
  return {
    unproved: of('unproved').map((row) => listed(row) as Unproved),
    lateArrivals: of('late').map((row) => listed(row) as DatasetDetails['lateArrivals'][number]),
    offsetBreaks: of('breaks').map((row) => listed(row) as DatasetDetails['offsetBreaks'][number]),
    referencedMessages: Number(of('referenced')[0]?.messages ?? 0),
    quarantined: counted(of('waiting').filter(isQuarantined)),
    stuck: of('waiting')
      .filter((row) => !isQuarantined(row))
      .map((row) => ({ ...counted([row])!, state: row.state })),
    refused: of('refused')[0]?.n ?? 0,
    recounts: counted(of('recounts')),
    leafless: counted(of('leafless')),
    notInLog: counted(of('notInLog')),
  };
}

function factsOf(dataset: DatasetDefinition, found: RowsByStatement): DatasetFacts {
  const of = (name: keyof RowsByStatement) => found[name].get(dataset.number) ?? [];
  const [coverage] = of('coverage');
  const [day] = of('days');
  const [checkpoint] = of('checkpoints');
  const runs = of('runs');
  const isOfDays = DAYS.includes(baseOf(dataset).number);
  const total = (column: string) => runs.reduce((sum, row) => sum + Number(row[column]), 0);
  const unproved = (state: PartitionState) =>
    Number(of('unproved').find((row) => row.state === state)?.partitions ?? 0);
  const holder = (lock: number): string | undefined => of('locks').find((row) => row.lock === lock)?.name;
  return {
    version: Number(coverage?.version ?? 0),
    // A sample that went leaves its mark on the coverage until a real row is proved.
    synthetic: isOfDays ? (day?.synthetic ?? false) : runs.length > 0 && coverage.synthetic,
    runs: isOfDays ? runsOfDays(dataset, coverage?.proved ?? '{}') : runs.map(runOf),
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
    lateArrivalsOpen: Number(of('lateOpen')[0]?.documents ?? 0),
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
