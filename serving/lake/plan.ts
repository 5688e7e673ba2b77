/** What a lake should hold of a dataset: a file for each day or year with a proved partition, and the state of the catalog it is of. */
import { DAY_MS } from '../../shared/dates.ts';
import type { Range } from '../../shared/ranges.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { type DatasetDefinition, shapeOf } from '../../shared/registry/index.ts';
import { nativeRows } from '../../shared/registry/instruments.ts';
import { int2, int8, Params } from '../db/pg-messages.ts';
import type { Session } from '../read/snapshot/session.ts';
import { LAKE_VERSION, MODES, SPANS, sha256Of } from './format.ts';

/** A file that the lake should hold. */
export interface PlannedFile {
  readonly dataset: DatasetDefinition;
  readonly mode: Mode;
  readonly date: string;
  readonly window: Range;
  readonly partitions: number;
  readonly revision: number;
  /** Digest over everything in the catalog that its rows depend on. */
  readonly state: string;
}

/** Small queries of a snapshot. */
type Queries = Pick<Session, 'rows'>;

export interface DatasetFacts {
  /** Whether anything is proved. */
  readonly proved: boolean;
  readonly synthetic: boolean;
}

export async function factsOf(session: Queries, dataset: DatasetDefinition): Promise<DatasetFacts> {
  const params = new Params();
  const id = params.add(int2(dataset.number));
  const [row] = await session.rows(
    `select (proved <> '{}')::text, synthetic::text from coverage where dataset_id = ${id}`,
    params,
  );
  return { proved: row?.[0] === 'true', synthetic: row?.[1] === 'true' };
}

/** The proved partitions of a day or year. */
interface Stored {
  readonly date: string;
  readonly window: Range;
  readonly partitions: number;
  readonly revision: number;
  readonly digest: string;
}

/**
 * The files of a dataset, by date. One statement groups the partitions: a chain has 900,000.
 * @param within only its dates; the first of them lacks the state that is carried from the one before
 */
export async function planDataset(
  session: Queries,
  dataset: DatasetDefinition,
  within?: Range,
): Promise<PlannedFile[]> {
  const stored = await storedDates(session, dataset, within);
  const runs = dataset.partition.kind === 'file_day' ? [] : await runsOf(session, dataset);
  return MODES.flatMap((mode) => {
    const { fields, view } = shapeOf(dataset, mode);
    const columns = fields.map(({ name, dtype, nullable }) => `${name} ${dtype} ${nullable}`);
    const shape = JSON.stringify([LAKE_VERSION, view, columns]);
    let carried = '';
    return stored.map((one): PlannedFile => {
      const { date, window, partitions, revision, digest } = one;
      const validity = mode === 'native' ? [] : [carried, ...validIn(runs, window)];
      // A state is carried from the last row before the window; a row's validity ends with the proved time.
      if (dataset.aligned.windowing === 'state') {
        carried = SPANS[dataset.partition.kind].carriesFar ? sha256Of(`${carried} ${digest}`) : digest;
      }
      const state = sha256Of(JSON.stringify([shape, digest, validity]));
      return { dataset, mode, date, window, partitions, revision, state };
    });
  });
}

async function storedDates(session: Queries, dataset: DatasetDefinition, within?: Range): Promise<Stored[]> {
  const span = SPANS[dataset.partition.kind];
  const params = new Params();
  const id = params.add(int2(dataset.number));
  const touched = within
    ? ` and from_ms < ${params.add(int8(within.to))} and to_ms > ${params.add(int8(within.from))}`
    : '';
  // Blocks of a partition may be years apart, as those of a sample are: only dates of rows have files.
  const { native, partition } = dataset;
  const bounds = within
    ? ` and t."${native.time.column}" >= ${within.from} and t."${native.time.column}" < ${within.to}`
    : '';
  const ofRows =
    partition.kind === 'height'
      ? ` having exists (select from ${nativeRows(dataset)} t where t."${native.time.column}" >= d * ${DAY_MS}
           and t."${native.time.column}" < (d + 1) * ${DAY_MS}${bounds})`
      : '';
  // A replay or a release restores altered rows of the same attempt: only the time of the proof tells.
  const rows = await session.rows(
    `select d::text, count(*)::text, max(revision)::text, encode(sha256(convert_to(string_agg(
       concat_ws('|', partition_key, attempt, revision, rows, aligned_rows, aligned_hash, from_ms, to_ms,
         extract(epoch from proved_at)), E'\\n' order by from_ms, partition_key collate "C"), 'UTF8')), 'hex')
     from partitions cross join lateral
       generate_series(${span.numberSql('from_ms')}, ${span.numberSql('(to_ms - 1)')}) d
     where dataset_id = ${id} and state = 'proved'${touched} group by d${ofRows} order by d`,
    params,
  );
  const all = rows.map(([number, partitions, revision, digest]): Stored => {
    const date = span.dateOf(Number(number));
    const window = span.windowOf(date);
    return { date, window, partitions: Number(partitions), revision: Number(revision), digest: digest! };
  });
  // A partition that reaches into the range brings its other dates along, without the other partitions of those.
  return within ? all.filter(({ window }) => window.from < within.to && window.to > within.from) : all;
}

/**
 * Whether rows of a file were taken back or replaced since a change of the proof log: a lake of that change still has them. A
 * partition that is proved once more had wrong rows, which a replay has replaced. A leaf
 * without an index may be newer. A partition that has left the catalog has no times any longer, and a state may be carried into
 * any later date: both concern all dates of their dataset. A state of blocks is carried into a date from the last block before it.
 */
export async function isTakenBack(
  session: Queries,
  { dataset, mode, date }: Pick<PlannedFile, 'dataset' | 'mode' | 'date'>,
  change: number,
): Promise<boolean> {
  const { windowOf, carriesFar } = SPANS[dataset.partition.kind];
  const { from, to } = windowOf(date);
  const params = new Params();
  const [id, since] = [params.add(int2(dataset.number)), params.add(int8(change))];
  const [start, end] = [params.add(int8(from)), params.add(int8(to))];
  const isNew = (leaf: string) => `(${leaf}.leaf_index >= ${since} or ${leaf}.leaf_index is null)`;
  // No block that ended before the last one that is as it was is the state at the start of the date.
  const lastBefore = `select q.from_ms from partitions q
    where q.dataset_id = ${id} and q.state = 'proved' and q.from_ms < ${start} and not exists (select from proof_leaves n
      where n.dataset_id = q.dataset_id and n.partition_key = q.partition_key and ${isNew('n')})
    order by q.from_ms desc limit 1`;
  const isCarried = mode === 'aligned_1s' && dataset.aligned.windowing === 'state';
  const carried = isCarried ? ` or p.to_ms <= ${start} and p.to_ms > coalesce((${lastBefore}), p.from_ms)` : '';
  const rows = await session.rows(
    `select 1 from proof_leaves l left join partitions p using (dataset_id, partition_key)
     where l.dataset_id = ${id} and ${isNew('l')}
       and (l.kind in ('revised', 'retracted', 'quarantined') or l.kind = 'proved' and exists (
         select from proof_leaves e where e.dataset_id = l.dataset_id and e.partition_key = l.partition_key
           and e.entry_id < l.entry_id and e.kind in ('proved', 'revised')))
       and (${carriesFar} or p.from_ms is null or p.from_ms < ${end} and p.to_ms > ${start}${carried}) limit 1`,
    params,
  );
  return rows.length > 0;
}

/** A range of dates to compare, and a wider one to plan: a file's rows depend on what is carried from the file before it. */
export interface Reach {
  readonly compared: Range;
  readonly planned: Range;
}

/**
 * The dates that changes at some times concern: their own, and of the dates that the lake holds those before, whose rows may be
 * valid for longer now, and the one after, into which a state is carried.
 * @param held start of each date that the lake holds, ascending
 */
export function reachOf(dataset: DatasetDefinition, touched: readonly Range[], held: readonly number[]): Reach[] {
  const span = SPANS[dataset.partition.kind];
  const wholeDates = ({ from, to }: Range): Range => ({
    from: span.windowOf(span.dateAt(from)).from,
    to: span.windowOf(span.dateAt(to - 1)).to,
  });
  const merged: Range[] = [];
  for (const range of touched.map(wholeDates).sort((a, b) => a.from - b.from)) {
    const last = merged.at(-1);
    if (last && range.from <= last.to) merged[merged.length - 1] = { from: last.from, to: Math.max(last.to, range.to) };
    else merged.push(range);
  }
  return merged.map(({ from, to }) => {
    const earlier = held.filter((at) => at < from).slice(-(span.prolonged + 1));
    const [planned = from] = earlier;
    const [compared = planned] = earlier.slice(-span.prolonged);
    const next = held.find((at) => at >= to);
    const end = next === undefined ? to : span.windowOf(span.dateAt(next)).to;
    return { compared: { from: compared, to: end }, planned: { from: planned, to: end } };
  });
}

interface Run {
  readonly source: string;
  readonly from: number;
  /** Rows stay valid until here. Those of blocks may be later: a chain is complete up to the median time of its last blocks. */
  readonly through: number;
  /** Rows lie before this time. */
  readonly rowsTo: number;
}

/** The stretches in which rows stay valid. */
async function runsOf(session: Queries, { number, partition: { kind } }: DatasetDefinition): Promise<Run[]> {
  const params = new Params();
  const through = kind === 'capture' ? 'greatest(through_ms, upper(span))' : 'through_ms';
  const rows = await session.rows(
    `select source_id, from_ms::text, ${through}::text, to_ms::text from coverage_spans
     where dataset_id = ${params.add(int2(number))} order by source_id collate "C", span`,
    params,
  );
  return rows.map(([source, from, through, to]) => ({
    source: source!,
    from: Number(from),
    through: Number(through),
    rowsTo: Number(to),
  }));
}

function validIn(runs: readonly Run[], { from, to }: Range): string[] {
  const within = (ms: number) => Math.min(Math.max(ms, from), to);
  return runs
    .filter((run) => run.from < to && Math.max(run.through, run.rowsTo) > from)
    .map((run) => `${run.source} ${within(run.from)} ${within(run.through)} ${within(run.rowsTo)}`);
}
