/**
 * Ids have no index of their own, since rows are stored by time. Where no two partitions share an id, the partitions' ranges of ids
 * or heights tell which partitions to search. Of file days, the frames' ranges of ids and the times of their granules lead to the few
 * hundred rows that an id is among.
 */
import { GRANULE_ROWS, gappedIds } from '../../../shared/proof/value-ranges.ts';
import { joined, type Range } from '../../../shared/ranges.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import { within } from '../snapshot/proved-runs.ts';
import { type Place, Relation } from '../sql/relation.ts';
import { boundsOfFilters, type LiveContext, type Placed } from './context.ts';
import { HAS_ALL_FRAMES } from './ruled-out.ts';
import { groupsOf, intersected } from './slices.ts';

export async function narrowByIdentity(context: LiveContext): Promise<LiveContext> {
  const { request, searched } = context;
  const { dataset } = request;
  if (request.mode !== 'native' || !dataset.offset.unique) return context;
  const { scope, identity } = dataset.native;
  const column = scope.kind === 'column' ? scope.column : identity[0];
  const ids = boundsOfFilters(request, (field) => field.column === column);
  if (!Number.isFinite(ids.from) && !Number.isFinite(ids.to)) return context;
  if (ids.from >= ids.to) return { ...context, searched: [] };
  const lists = request.filters.flatMap(({ field, among }) =>
    among && field.column === column ? [new Set(among)] : [],
  );
  // How a sample is drawn must depend on the proved rows alone, and the log may have lost frames of some.
  const hasFrames = scope.kind === 'window' && request.window.kind !== 'random';
  if (hasFrames && lists.length > 0) return await narrowByIds(context, idsIn(ids, lists));
  const times = hasFrames ? await timesOfIds(context, ids) : await timesOfPartitions(context, ids);
  return { ...context, searched: times ? within(searched, times) : [] };
}

/** The ids of all lists that lie in the range, ascending. */
function idsIn({ from, to }: Range, lists: readonly ReadonlySet<number>[]): number[] {
  const common = lists.reduce<ReadonlySet<number>>((all, one) => all.intersection(one), lists[0]);
  return [...common].filter((id) => from <= id && id < to).sort((a, b) => a - b);
}

const bound = (id: number) => (Number.isFinite(id) ? String(id) : 'null');
const boundsIn = ([[from, to]]: readonly (readonly (string | null)[])[]): Range | undefined =>
  from === null ? undefined : { from: Number(from), to: Number(to) };

/** The times of the partitions that hold ids or heights of the range. */
async function timesOfPartitions({ request, session }: LiveContext, { from, to }: Range): Promise<Range | undefined> {
  const params = new Params();
  const held = request.dataset.native.scope.kind === 'column' ? 'span' : 'offsets';
  return boundsIn(
    await session.rows(
      `select min(from_ms), max(to_ms) from partitions where dataset_id = ${params.add(int2(request.dataset.number))}
       and state = 'proved' and ${held} && int8range(${bound(from)}, ${bound(to)})`,
      params,
    ),
  );
}

/** SQL: which granule of the frame `f` an id of it lies in, from 1. */
const granuleOf = (dataset: DatasetDefinition, id: string): string =>
  gappedIds(dataset)
    ? `width_bucket(${id}, f.granule_offsets)`
    : `((${id} - f.first_offset::int8) / ${GRANULE_ROWS})::int4 + 1`;

/**
 * The times of rows with ids of the range. Partitions within the range count as a whole, and so do frames within it; of the others the
 * granules count.
 */
async function timesOfIds({ request, session }: LiveContext, { from, to }: Range): Promise<Range | undefined> {
  const { dataset } = request;
  const [least, greatest] = [Number.isFinite(from) ? from : undefined, Number.isFinite(to) ? to - 1 : undefined];
  const params = new Params();
  const range = `int8range(${bound(from)}, ${bound(to)})`;
  const [first, last] = ['f.first_offset::int8', 'f.last_offset::int8'];
  const isWithin = `${least === undefined ? 'true' : `${first} >= ${least}`} and ${greatest === undefined ? 'true' : `${last} <= ${greatest}`}`;
  const isApart = `${least === undefined ? 'false' : `${last} < ${least}`} or ${greatest === undefined ? 'false' : `${first} > ${greatest}`}`;
  const start =
    least === undefined
      ? '1'
      : `case when ${first} >= ${least} then 1 else ${granuleOf(dataset, `${least}::int8`)} end`;
  const count = 'cardinality(f.granule_first_ms)';
  const end =
    greatest === undefined
      ? count
      : `case when ${last} <= ${greatest} then ${count} else ${granuleOf(dataset, `${greatest}::int8`)} end`;
  return boundsIn(
    await session.rows(
      `select min(coalesce(g.from_ms, p.from_ms)), max(coalesce(g.to_ms, p.to_ms))
       from partitions p left join lateral (
         select min(f.first_ms + coalesce(g.first_ms, 0)) as from_ms, max(coalesce(f.first_ms + g.last_ms, f.last_ms)) + 1 as to_ms
         from frames f left join lateral (
           select min(first) as first_ms, max(last) as last_ms
           from unnest(f.granule_first_ms[${start}:${end}], f.granule_last_ms[${start}:${end}]) as r (first, last)
         ) g on not (${isWithin})
         where f.dataset_id = p.dataset_id and f.partition_key = p.partition_key and not (${isApart})
       ) g on not p.offsets <@ ${range} and ${HAS_ALL_FRAMES}
       where p.dataset_id = ${params.add(int2(dataset.number))} and p.state = 'proved' and p.offsets && ${range}`,
      params,
    ),
  );
}

/** The granule that an id lies in, or the frame, where it has none. */
interface FoundPlace extends Place {
  readonly partition: string;
  readonly granule: string;
  readonly frame: string;
  readonly rows: number;
}

/** SQL of the frame that holds an id `i.id` of the partition `p`, unless none does. */
const frameOf = (dataset: DatasetDefinition): string =>
  `select * from frames f where f.dataset_id = p.dataset_id and f.partition_key = p.partition_key and ${
    gappedIds(dataset)
      ? 'f.granule_offsets is not null and f.first_offset::int8 <= i.id order by f.first_offset::int8'
      : 'f.row_base <= i.id - lower(p.offsets) order by f.row_base'
  } desc limit 1`;

async function narrowByIds(context: LiveContext, ids: readonly number[]): Promise<LiveContext> {
  const { request, session, relation, searched } = context;
  const { dataset } = request;
  if (ids.length === 0) return { ...context, searched: [] };
  const params = new Params();
  const found = await session.found({
    prepared: true,
    text: `select i.id, p.partition_key, f.row_base, g.at, case when g.at is null then f.rows else least(${GRANULE_ROWS}, f.rows - (g.at - 1) * ${GRANULE_ROWS}) end,
       f.first_ms + coalesce(f.granule_first_ms[g.at], 0), coalesce(f.first_ms + f.granule_last_ms[g.at], f.last_ms)
     from unnest(${params.add(array(ids.map((id) => int8(id))))}) i (id)
     join partitions p on p.dataset_id = ${params.add(int2(dataset.number))} and p.state = 'proved' and p.offsets @> i.id
     left join lateral (${frameOf(dataset)}) f on i.id <= f.last_offset::int8
     left join lateral (select ${granuleOf(dataset, 'i.id')} as at where f.granule_first_ms is not null) g on true`,
    params: params.list,
  });
  const places: FoundPlace[] = [];
  const without = new Set<string>();
  for (const [id, partition, base, at, rows, firstMs, lastMs] of found) {
    if (base === null) {
      without.add(partition!);
      continue;
    }
    const frame = `${partition} ${base}`;
    const [from, to] = [Number(firstMs), Number(lastMs) + 1];
    places.push({
      id: Number(id),
      partition: partition!,
      frame,
      granule: `${frame} ${at}`,
      rows: Number(rows),
      from,
      to,
    });
  }
  const unlisted = await unlistedOf(context, [...without]);
  const times = joined([...places, ...unlisted]).map(({ from, to }) => ({ from, to }));
  if (unlisted.length > 0) return { ...context, searched: intersected(searched, times) };
  const placed = placedOf(places);
  // The rows of one range are read as any others.
  if (times.length < 2) return { ...context, searched: intersected(searched, times), placed };
  return {
    ...context,
    relation: new Relation(request, { ...context, places }),
    searched: intersected(searched, searchedFor(places, relation.chunkMs)),
    placed,
  };
}

/** The times of those of the partitions whose frames are not all listed, because the log lost some. */
async function unlistedOf({ request, session }: LiveContext, keys: readonly string[]): Promise<Range[]> {
  if (keys.length === 0) return [];
  const params = new Params();
  const rows = await session.rows(
    `select p.from_ms, p.to_ms from partitions p where p.dataset_id = ${params.add(int2(request.dataset.number))}
       and p.partition_key = any (${params.add(array(keys.map(text)))}) and not ${HAS_ALL_FRAMES}`,
    params,
  );
  return rows.map(([from, to]) => ({ from: Number(from), to: Number(to) }));
}

/** How much of each partition is searched for the ids. */
function placedOf(places: readonly FoundPlace[]): ReadonlyMap<string, Placed> {
  return new Map(
    [...Map.groupBy(places, ({ partition }) => partition)].map(([key, of]) => {
      const granules = new Map(of.map(({ granule, rows }) => [granule, rows]));
      const rows = [...granules.values()].reduce((sum, count) => sum + count, 0);
      return [key, { frames: new Set(of.map(({ frame }) => frame)).size, rows }] as const;
    }),
  );
}

/** Ranges of time, ascending, that hold all places: one a chunk, or one for several with few ids. */
function searchedFor(places: readonly Place[], chunkMs: number): Range[] {
  const chunks = new Map<number, Range & { readonly ids: number }>();
  for (const { from, to } of places) {
    for (let at = Math.floor(from / chunkMs); at * chunkMs < to; at++) {
      const [start, end] = [Math.max(from, at * chunkMs), Math.min(to, (at + 1) * chunkMs)];
      const known = chunks.get(at) ?? { from: start, to: end, ids: 0 };
      chunks.set(at, { from: Math.min(known.from, start), to: Math.max(known.to, end), ids: known.ids + 1 });
    }
  }
  const ascending = [...chunks.values()].sort((a, b) => a.from - b.from);
  return groupsOf(ascending, chunkMs, ({ ids }) => ids).map((group) => ({ from: group[0].from, to: group.at(-1)!.to }));
}
