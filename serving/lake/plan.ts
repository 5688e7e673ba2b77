/** What a lake should hold of a dataset: a file for each day or year with a proved partition, and the state of the catalog it is of. */
import { DAY_MS } from '../../shared/dates.ts';
import { LAKE_VERSION } from '../../shared/mirror/lake-manifest.ts';
import type { Range } from '../../shared/ranges.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { type DatasetDefinition, shapeOf } from '../../shared/registry/index.ts';
import { nativeRows } from '../../shared/registry/instruments.ts';
import { int2, int8, Params } from '../db/pg-messages.ts';
import type { Session } from '../read/snapshot/session.ts';
import { MODES, SPANS, sha256Of } from './format.ts';

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
 * @param within only its dates; the last of them lacks the rows after it, which end the validity of its own
 */
export async function planDataset(
  session: Queries,
  dataset: DatasetDefinition,
  within?: Range,
): Promise<PlannedFile[]> {
  const stored = await storedDates(session, dataset, within);
  const runs = await runsOf(session, dataset);
  return MODES.flatMap((mode) => {
    const { fields, view } = shapeOf(dataset, mode);
    const columns = fields.map(({ name, dtype, nullable }) => `${name} ${dtype} ${nullable}`);
    const shape = JSON.stringify([LAKE_VERSION, view, columns]);
    // From the last date back: a row is valid until the next one of its series.
    let later = '';
    return stored
      .toReversed()
      .map((one, index, all): PlannedFile => {
        const { date, window, partitions, revision, digest } = one;
        const isOpen = index === 0 || SPANS[dataset.partition.kind].reachesFar;
        const end = isOpen ? Number.POSITIVE_INFINITY : all[index - 1].window.to;
        const validity = mode === 'native' ? [] : [later, ...validIn(runs, { from: window.from, to: end })];
        later = SPANS[dataset.partition.kind].reachesFar ? sha256Of(`${later} ${digest}`) : digest;
        const state = sha256Of(JSON.stringify([shape, digest, validity]));
        return { dataset, mode, date, window, partitions, revision, state };
      })
      .toReversed();
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
 * Whether rows of a file were withdrawn since a change of the proof log: a lake of that change still has them. What a revision
 * replaces is not. A leaf without an index may be newer. A partition that has left the catalog has no times any longer and concerns
 * all dates of its dataset.
 */
export async function isWithdrawn(
  session: Queries,
  dataset: DatasetDefinition,
  date: string,
  change: number,
): Promise<boolean> {
  const { from, to } = SPANS[dataset.partition.kind].windowOf(date);
  const params = new Params();
  const [id, since] = [params.add(int2(dataset.number)), params.add(int8(change))];
  const [start, end] = [params.add(int8(from)), params.add(int8(to))];
  const rows = await session.rows(
    `select 1 from proof_leaves l left join partitions p using (dataset_id, partition_key)
     where l.dataset_id = ${id} and (l.leaf_index >= ${since} or l.leaf_index is null)
       and l.kind in ('retracted', 'quarantined') and (p.from_ms is null or p.from_ms < ${end} and p.to_ms > ${start}) limit 1`,
    params,
  );
  return rows.length > 0;
}

/** A range of dates to compare, and a wider one to plan: the validity of a file's rows depends on the file after it. */
export interface Reach {
  readonly compared: Range;
  readonly planned: Range;
}

/**
 * The dates that changes at some times concern: their own, and of the dates that the lake holds those before, whose rows may be
 * valid for longer or shorter now. The date after them is planned as well: its rows end the validity of theirs.
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
    const [first = from] = held.filter((at) => at < from).slice(-span.prolonged);
    const next = held.find((at) => at >= to);
    const end = next === undefined ? to : span.windowOf(span.dateAt(next)).to;
    return { compared: { from: first, to }, planned: { from: first, to: end } };
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

/** What the runs say of the validity of rows from a date on, up to the end of the next date with rows: no row is valid longer. */
function validIn(runs: readonly Run[], { from, to }: Range): string[] {
  const within = (ms: number) => Math.min(Math.max(ms, from), to);
  return runs
    .filter((run) => run.from < to && Math.max(run.through, run.rowsTo) > from)
    .map((run) => `${run.source} ${within(run.from)} ${within(run.through)} ${within(run.rowsTo)}`);
}
