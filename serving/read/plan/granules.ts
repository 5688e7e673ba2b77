/**
 * Leaves out granules that no row can pass, as a read comes to them: of a slice of millions of rows, a filter that few pass leaves some
 * hundred granules. Where it leaves many, the slice is read as it is, and so are columns: TimescaleDB itself leaves out their batches of
 * a thousand rows that no row can pass, and opens one again for each granule of it.
 */
import { GRANULE_ROWS, rangedColumns } from '../../../shared/proof/value-ranges.ts';
import { clip, lengthOf, parseMultirange, type Range } from '../../../shared/ranges.ts';
import { int2, int8, Params, text } from '../../db/pg-messages.ts';
import type { Slice } from '../read-model.ts';
import type { LiveContext } from './context.ts';
import { HAS_ALL_FRAMES, mayPassSql, type Tested, testsOf } from './ruled-out.ts';
import { groupsOf, intersected } from './slices.ts';

/** Above this share of the rows, to search range by range takes as long as to read all. */
const MAX_SHARE = 1 / 3;
/** One of so many frames tells beforehand whether the others are worth reading. */
const SAMPLED_FRAMES = 16;

/** The slices without what no row can pass. @param newestFirst the order in which they come, and their ranges */
export async function* withGranules(
  context: LiveContext,
  slices: AsyncIterable<Slice>,
  newestFirst = false,
): AsyncGenerator<Slice> {
  const { request, relation, placed } = context;
  const { dataset, mode, filters } = request;
  const isCut = mode === 'native' && dataset.partition.kind === 'file_day' && !placed && relation.validity === 'none';
  const tested = isCut ? testsOf(rangedColumns(dataset), filters) : [];
  let columns: readonly Range[] | undefined;
  for await (const slice of slices) {
    const isLong = tested.length > 0 && hasMany(context, slice);
    if (isLong) columns ??= await columnsOf(context);
    const isInRows = isLong && clip(columns!, slice.from, slice.to).length === 0;
    const left = isInRows ? await leftOf(context, tested, slice) : undefined;
    if (left) yield* slicesOfRanges(slice, left, relation.chunkMs, newestFirst);
    else yield slice;
  }
}

/** Few rows are read as fast as the ranges of their granules. */
const hasMany = (
  { rowsPerMs = 0, granuleLookupRows = Number.POSITIVE_INFINITY }: LiveContext,
  { from, to, ranges = [{ from, to }] }: Slice,
): boolean => rowsPerMs * lengthOf(ranges) >= granuleLookupRows;

/** The times of the chunks in columns. */
async function columnsOf({ session, request: { dataset } }: LiveContext): Promise<Range[]> {
  const params = new Params();
  const [[times]] = await session.found({
    prepared: true,
    text: `select range_agg(int8range(range_start_integer, range_end_integer)) from timescaledb_information.chunks
     where is_compressed and hypertable_name = ${params.add(text(dataset.native.table))} and hypertable_schema = current_schema`,
    params: params.list,
  });
  return parseMultirange(times ?? '{}');
}

/** The times of the slice's granules that may hold rows that pass, ascending; undefined where it is read as it is. */
async function leftOf(
  { session, request: { dataset } }: LiveContext,
  tested: readonly Tested[],
  slice: Slice,
): Promise<Range[] | undefined> {
  const params = new Params();
  const [id, from, to] = [params.add(int2(dataset.number)), params.add(int8(slice.from)), params.add(int8(slice.to))];
  const columns = rangedColumns(dataset);
  const ends = (column: string, end: 0 | 1) => {
    const first = `${2 * columns.indexOf(column) + end} * cardinality(f.granule_first_ms)`;
    return `f.granule_ranges[${first} + 1:${first} + cardinality(f.granule_first_ms)]`;
  };
  const lists = tested.flatMap(({ column }) => [ends(column, 0), ends(column, 1)]);
  const names = tested.flatMap((_, at) => [`l${at}`, `g${at}`]);
  const tests = tested.map(
    ({ test }, at) => `coalesce(${test(`nullif(g.l${at}, 'NaN')`, `nullif(g.g${at}, 'NaN')`, params)}, true)`,
  );
  const granules = `unnest(f.granule_first_ms, f.granule_last_ms, ${lists.join(', ')})
    with ordinality g (first_ms, last_ms, ${names.join(', ')}, at)`;
  const [[isFew, times]] = await session.rows(
    `with f as materialized (
       select f.*, row_number() over () % ${SAMPLED_FRAMES} as sample from partitions p join frames f using (dataset_id, partition_key)
       where p.dataset_id = ${id} and p.state = 'proved' and p.from_ms < ${to} and p.to_ms > ${from}
         and f.first_ms < ${to} and f.last_ms >= ${from} and f.rows > 0 and ${mayPassSql(tested, 'f', params)}),
     lost as materialized (
       select from_ms, to_ms, rows from partitions p
       where dataset_id = ${id} and state = 'proved' and from_ms < ${to} and to_ms > ${from} and not ${HAS_ALL_FRAMES}),
     s as (
       select coalesce(sum(${GRANULE_ROWS}) filter (where ${tests.join(' and ')}) <= ${2 * MAX_SHARE} * count(*) * ${GRANULE_ROWS}, true) as few
       from f, ${granules} where f.sample = 0),
     g as materialized (
       select int8range(f.first_ms + g.first_ms, f.first_ms + g.last_ms, '[]') as times, least(${GRANULE_ROWS}, f.rows - ${GRANULE_ROWS} * (at - 1)) as rows
       from f, ${granules} where (select few from s) and ${tests.join(' and ')}
       union all select int8range(first_ms, last_ms, '[]'), rows from f where granule_first_ms is null
       union all select int8range(from_ms, to_ms), rows from lost),
     n as (
       select (select few from s) and coalesce((select sum(rows) from g), 0) <= ${MAX_SHARE} *
         ((select coalesce(sum(rows), 0) from f) + (select coalesce(sum(rows), 0) from lost)) as few)
     select n.few, case when n.few then (select range_agg(times) from g) end from n`,
    params,
  );
  if (isFew !== 't') return undefined;
  const { ranges = [{ from: slice.from, to: slice.to }] } = slice;
  const inOrder = ranges.toSorted((a, b) => a.from - b.from);
  return intersected(inOrder, parseMultirange(times ?? '{}'));
}

/** Slices of a slice's ranges, which ascend. Exported for its test. */
export function* slicesOfRanges(
  slice: Slice,
  all: readonly Range[],
  chunkMs: number,
  newestFirst: boolean,
): Generator<Slice> {
  const groups = groupsOf(all, chunkMs);
  for (const group of newestFirst ? groups.toReversed() : groups) {
    const [from, to] = [group[0].from, group.at(-1)!.to];
    yield { ...slice, from, to, ranges: newestFirst ? group.toReversed() : group };
  }
}
