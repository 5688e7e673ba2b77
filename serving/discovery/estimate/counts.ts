/**
 * Counts the rows of a window without filters, without reading them: partitions have counts, and for partitions that the window
 * cuts, the frames index and a short count at the cut supply the rest. With filters, estimates by the planner's statistics.
 */
import type { Range } from '../../../shared/ranges.ts';
import type { Field } from '../../../shared/registry/index.ts';
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import type { LiveContext, PlanContext } from '../../read/plan/context.ts';
import type { Slice } from '../../read/read-model.ts';
import { knownTest } from '../../read/snapshot/proved-runs.ts';
import type { Session } from '../../read/snapshot/session.ts';
import type { Relation } from '../../read/sql/relation.ts';
import { inDataset } from '../coverage-answer.ts';
import { probeSlices } from './bytes.ts';

export interface Count {
  readonly rows: number;
  readonly isExact: boolean;
  /** Number of proved partitions in the window. */
  readonly partitions: number;
}

/** Most rows to count where the window cuts a partition. More rows are assumed to spread evenly over the partition's time. */
const MAX_COUNTED = 300_000;

/** A partition that lies partly in the window. */
interface Cut {
  readonly key: string;
  readonly times: Range;
  readonly rows: number;
  readonly span: string | null;
}

/** Undefined where partitions do not tell, as for aligned rows that several partitions share. */
export async function countRows(context: LiveContext): Promise<Count | undefined> {
  const { request, searched } = context;
  const { scope } = request.dataset.native;
  if (request.mode !== 'native' && scope.kind !== 'window') return undefined;
  if (searched.length === 0) return { rows: 0, isExact: true, partitions: 0 };
  const window = { from: searched[0].from, to: searched[searched.length - 1].to };
  const { partitions, rows, cuts } = await readPartitions(context, window);
  let total = rows;
  let isExact = true;
  for (const cut of cuts) {
    const counted = await countCut(context, cut, window);
    total += counted.rows;
    isExact &&= counted.isExact;
  }
  return { rows: total, isExact, partitions };
}

async function readPartitions({ session, request }: LiveContext, window: Range) {
  const column = request.mode === 'native' ? 'rows' : 'aligned_rows';
  const known = knownTest(request);
  const rows = await inDataset(session, request.dataset, (id, params) => {
    const [from, to] = [params.add(int8(window.from)), params.add(int8(window.to))];
    return `with held as (select partition_key, from_ms, to_ms, ${column} as rows, span,
          from_ms >= ${from} and to_ms <= ${to} as whole
        from partitions p where dataset_id = ${id} and state = 'proved' and from_ms < ${to} and to_ms > ${from}
          ${known === undefined ? '' : `and ${known}`})
      select null, count(*)::text, coalesce(sum(rows) filter (where whole), 0)::text, null, null, null from held
      union all select partition_key, null, rows::text, from_ms::text, to_ms::text, span::text from held where not whole`;
  });
  const [[, partitions, whole], ...cuts] = rows;
  return {
    partitions: Number(partitions),
    rows: Number(whole),
    cuts: cuts.map(
      ([key, , count, from, to, span]): Cut => ({
        key: key!,
        times: { from: Number(from), to: Number(to) },
        rows: Number(count),
        span,
      }),
    ),
  };
}

type Counted = Pick<Count, 'rows' | 'isExact'>;

async function countCut(context: LiveContext, cut: Cut, window: Range): Promise<Counted> {
  const within = { from: Math.max(cut.times.from, window.from), to: Math.min(cut.times.to, window.to) };
  if (context.request.mode === 'native' && context.request.dataset.native.scope.kind === 'window') {
    return await countFrames(context, cut, within);
  }
  if (cut.rows > MAX_COUNTED) return spread(cut, within);
  return { rows: await countStored(context, within, scopeTest(context, cut)), isExact: true };
}

/** Frames inside the window have counts; rows of frames across its border are counted. */
async function countFrames(context: LiveContext, cut: Cut, within: Range): Promise<Counted> {
  const { session, request } = context;
  const { dataset } = request;
  const params = new Params();
  const [id, key] = [params.add(int2(dataset.number)), params.add(text(cut.key))];
  const [from, to] = [params.add(int8(within.from)), params.add(int8(within.to))];
  const frames = await session.rows(
    `select rows::text, (first_ms >= ${from} and last_ms < ${to})::text, first_offset, last_offset, first_ms::text,
       last_ms::text from frames
     where dataset_id = ${id} and partition_key = ${key} and first_ms < ${to} and last_ms >= ${from}`,
    params,
  );
  const [whole, across] = [
    frames.filter((frame) => frame[1] === 'true'),
    frames.filter((frame) => frame[1] !== 'true'),
  ];
  const sum = (list: typeof frames) => list.reduce((total, [rows]) => total + Number(rows), 0);
  // A partition without a frames index counts as one frame.
  const [isIndexed, toCount] = frames.length > 0 ? [true, sum(across)] : [false, cut.rows];
  if (toCount > MAX_COUNTED) return spread(cut, within);
  if (!isIndexed) return { rows: await countStored(context, within), isExact: true };
  const identity = `t."${dataset.native.identity[0]}"`;
  let rows = sum(whole);
  for (const [, , first, last, firstMs, lastMs] of across) {
    const times = { from: Math.max(within.from, Number(firstMs)), to: Math.min(within.to, Number(lastMs) + 1) };
    const test = (list: Params) =>
      `${identity} between ${list.add(text(first!))}::text::int8 and ${list.add(text(last!))}::text::int8`;
    rows += await countStored(context, times, test);
  }
  return { rows, isExact: true };
}

/** A condition for rows of the partition alone: other partitions may have rows at the same times. */
function scopeTest({ request }: LiveContext, { key, span }: Cut): ((params: Params) => string) | undefined {
  const { scope } = request.dataset.native;
  if (request.mode !== 'native' || scope.kind !== 'column') return undefined;
  const column = `t."${scope.column}"`;
  return scope.pg === 'text'
    ? (params) => `${column} = ${params.add(text(key))}`
    : (params) => `${params.add(text(span!))}::text::int8range @> ${column}`;
}

async function countStored(
  { session, relation, searched }: LiveContext,
  { from, to }: Range,
  test?: (params: Params) => string,
): Promise<number> {
  if (from >= to) return 0;
  const params = new Params();
  const where = test?.(params);
  const [[rows]] = await session.rows(
    `select count(*)::text ${relation.from({ from, to, part: searched[0] }, params, { where })}`,
    params,
  );
  return Number(rows);
}

function spread({ times, rows }: Cut, within: Range): Counted {
  const share = Math.max(0, within.to - within.from) / (times.to - times.from);
  return { rows: Math.round(rows * share), isExact: false };
}

/**
 * The planner's estimate of a request: its rows, and how many of them pass the filters. The planner is asked about a few chunks
 * spread over the window, and nothing is executed. For chunks without statistics (loaded a minute ago) the planner uses rules
 * of thumb, which the estimate reports.
 */
interface PlannerEstimate {
  /** Rows of the sampled chunks, before and after the filters. */
  readonly rows: number;
  readonly passing: number;
  /** The share of the window's time that the sampled chunks cover. */
  readonly sampled: number;
  /** Whether a filter selects values beyond the lowest or highest known one: then probably nothing passes. */
  readonly isBeyond: boolean;
  readonly hasStatistics: boolean;
}

const CHUNKS = 4;
/** Filters that are examined one by one; nobody writes more. */
const MAX_FILTERS = 8;
/** The planner assumes a ten-thousandth for values beyond its histogram; twice that share counts as none. */
const BEYOND = 2e-4;

export async function estimateByPlanner(
  session: Session,
  /** The request with and without its filters, both without fields; and without filters, with only the filtered fields. */
  {
    filtered,
    bare,
    withFields,
  }: { readonly filtered: PlanContext; readonly bare: PlanContext; readonly withFields: PlanContext },
): Promise<PlannerEstimate> {
  const slices = chunksOf(filtered);
  const relations = new Set<string>();
  const explain = async (relation: Relation, slice: Slice, test?: (params: Params) => string) => {
    const params = new Params();
    const where = test?.(params);
    const [[json]] = await session.rows(
      `explain (format json) select 1 ${relation.from(slice, params, { where })}`,
      params,
    );
    const [{ Plan: plan }] = JSON.parse(json!) as [{ Plan: PlanNode }];
    const scanned = relationsOf(plan);
    for (const name of scanned) relations.add(name);
    return { rows: plan['Plan Rows'], scanned: scanned.length };
  };
  const testLists = filtered.request.filters
    .filter(({ field }) => !narrows(filtered, field) && isStored(field))
    .slice(0, MAX_FILTERS)
    .map((filter) => filter.boundTests ?? []);
  const isBeyond = testLists.map((tests) => tests.map(() => slices.length > 0));
  let rows = 0;
  let passing = 0;
  for (const slice of slices) {
    const { rows: all } = await explain(bare.relation, slice);
    rows += all;
    passing += (await explain(filtered.relation, slice)).rows;
    for (const [index, tests] of testLists.entries()) {
      for (const [bound, test] of tests.entries()) {
        const { rows: beyond, scanned } = await explain(withFields.relation, slice, test);
        // Values beyond one chunk may lie within another. The planner expects at least one row of each relation.
        isBeyond[index][bound] &&= beyond <= Math.max(scanned, all * BEYOND);
      }
    }
  }
  const whole = filtered.searched.reduce((sum, { from, to }) => sum + to - from, 0);
  return {
    rows,
    passing: Math.min(passing, rows),
    sampled: whole === 0 ? 1 : slices.reduce((sum, { from, to }) => sum + to - from, 0) / whole,
    isBeyond: isBeyond.flat().includes(true),
    hasStatistics: await haveStatistics(session, [...relations]),
  };
}

/** Whether the filter's field (time or identity) selects what is searched: its values then lie there. */
function narrows({ request: { dataset, mode }, relation }: PlanContext, field: Field): boolean {
  return relation.isTime(field) || (mode === 'native' && field.column === dataset.native.identity[0]);
}

/** The statement that reads ends of validity computes them, so the planner knows nothing about their values. */
export const isStored = (field: Field): boolean => field.columns.length > 0 && field.validity === undefined;

interface PlanNode {
  readonly 'Plan Rows': number;
  readonly 'Relation Name'?: string;
  readonly Plans?: readonly PlanNode[];
}

const relationsOf = (plan: PlanNode): string[] => [
  ...(plan['Relation Name'] === undefined ? [] : [plan['Relation Name']]),
  ...(plan.Plans ?? []).flatMap(relationsOf),
];

async function haveStatistics(session: Session, names: readonly string[]): Promise<boolean> {
  if (names.length === 0) return false;
  const params = new Params();
  const list = params.add(array(names.map(text)));
  const [[known]] = await session.rows(
    `select count(distinct tablename)::text from pg_stats where tablename = any (${list})`,
    params,
  );
  return Number(known) > 0;
}

/** Chunks at even distances in the searched time, or all of it if that is no more. */
function chunksOf({ searched, relation: { chunkMs } }: PlanContext): Slice[] {
  const whole = searched.reduce((sum, { from, to }) => sum + to - from, 0);
  if (whole > CHUNKS * chunkMs) return probeSlices(searched, CHUNKS, chunkMs);
  return searched.slice(0, CHUNKS).map((part) => ({ from: part.from, to: part.to, part }));
}
