/**
 * Finds rows by key, and native rows of drawn ranks where partitions are heights or snapshots. Those partitions follow each
 * other by number, but answers are ordered by time and block times go back and forth. So the sampler first finds the rows'
 * keys by partition and frame, then checks the filters, then reads the rows in their order.
 */
import { SECOND_MS } from '../../../shared/dates.ts';
import type { DatasetDefinition, PgType } from '../../../shared/registry/index.ts';
import { nativeRows } from '../../../shared/registry/instruments.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import type { LiveContext } from '../plan/context.ts';
import type { Part, Slice } from '../read-model.ts';
import { Relation } from '../sql/relation.ts';
import { batched, type MakeLookup, statementsOf } from './draw.ts';

/** A row's identity: its time, and the values that it is ordered by, as text. */
export interface RowKey {
  readonly ms: number;
  readonly values: readonly string[];
}

/** The rows with these keys, in the dataset's order. */
export async function rowsByKey(context: LiveContext, keys: readonly RowKey[]): Promise<Iterable<Statement>> {
  return statementsOf(context, await lookupsOf(context, keys));
}

/** The keys whose rows exist and pass the filters. */
export async function passing(context: LiveContext, keys: readonly RowKey[]): Promise<RowKey[]> {
  const { request, session } = context;
  // Without fields the database computes only what the filters need.
  const relation = new Relation({ ...request, fields: [] }, context);
  const found: RowKey[] = [];
  for (const batch of batched(await lookupsOf({ ...context, relation }, keys))) {
    const params = new Params();
    found.push(...keysOf(await session.rows(relation.selectKeys(batch.map((make) => make(params))), params)));
  }
  return found;
}

/** The keys in rows of `relation.selectKeys`. */
export const keysOf = (rows: readonly (readonly (string | null)[])[]): RowKey[] =>
  rows.map(([ms, ...values]) => ({ ms: Number(ms), values: values as string[] }));

const byTime = (keys: readonly RowKey[]) => [...Map.groupBy(keys, ({ ms }) => ms)].sort(([a], [b]) => a - b);

/** Look-ups of the keys by their times. They include the next row where a field or filter needs the end of validity. */
async function lookupsOf(context: LiveContext, keys: readonly RowKey[]): Promise<MakeLookup[][]> {
  const { relation } = context;
  const times = byTime(keys);
  const needsNext = relation.validity === 'computed' && relation.isSingleSeries;
  const following = needsNext ? await followersOf(context, times) : undefined;
  return times.map(([ms, ofTime]) => [lookupOf(context, relation, ms, ofTime, following?.get(ms))]);
}

function lookupOf(
  { parts }: LiveContext,
  relation: Relation,
  ms: number,
  keys: readonly RowKey[],
  next?: number,
): MakeLookup {
  const following = next === undefined ? { from: ms, to: ms } : { from: next, to: next + 1 };
  const slice: Slice = { from: ms, to: ms + 1, part: partAt(parts, ms), following };
  return (params) => relation.lookup(slice, params, { where: relation.isOneOf(keys, params) });
}

const partAt = (parts: readonly Part[], ms: number): Part =>
  parts.find((part) => part.to > ms) ?? parts[parts.length - 1];

/** The aligned row that follows each time, as far as it may end the validity of the row there. */
async function followersOf(
  { session, relation, parts }: LiveContext,
  times: readonly (readonly [number, readonly RowKey[]])[],
): Promise<ReadonlyMap<number, number>> {
  const found = new Map<number, number>();
  let open = times.map(([ms]) => ({ ms, end: partAt(parts, ms).until }));
  // The search starts near: the index of a chunk or two answers for nearly all.
  for (let reach = relation.chunkMs; open.length > 0; reach *= 4) {
    for (const batch of batched(open.map((one) => [one]))) {
      const selects = batch.map(({ ms, end }) => {
        const slice = { from: ms + SECOND_MS, to: Math.min(ms + reach, end), part: parts[0] };
        return `select ${ms}, (${relation.selectFirst(slice)})`;
      });
      for (const [ms, next] of await session.rows(selects.join(' union all '))) {
        if (next !== null) found.set(Number(ms), Number(next));
      }
    }
    const reached = reach;
    open = open.filter(({ ms, end }) => !found.has(ms) && ms + reached < end);
  }
  return found;
}

/** The rows drawn from one frame, or from a partition without a frames index. */
interface KeyedHit {
  readonly fromMs: number;
  readonly toMs: number;
  /** First and last key of the frame's rows; undefined where the ranks count through the whole partition. */
  readonly keys: readonly [first: readonly string[], last: readonly string[]] | undefined;
  /** The partition's heights, or its snapshot. */
  readonly span: readonly [from: string, to: string];
  /** Ranks of the drawn rows within the frame. */
  readonly rows: number[];
}

interface KeyColumn {
  readonly sql: string;
  readonly pg: PgType;
}

/** The number of proved rows. */
export async function countRows({ session, request }: LiveContext): Promise<number> {
  const params = new Params();
  const [[count]] = await session.rows(
    `select coalesce(sum(rows), 0) from coverage_spans where dataset_id = ${params.add(int2(request.dataset.number))}`,
    params,
  );
  return Number(count);
}

/** The keys of the rows with these ranks. Ranks count through the partitions in the order of their numbers. */
export async function findByRank(context: LiveContext, ranks: readonly number[]): Promise<RowKey[]> {
  const columns = keyColumns(context.request.dataset);
  const hits = await findFrames(context, ranks, columns.length);
  return await findKeys(context, hits, columns);
}

/** The partition's number, followed by the columns that distinguish its rows: in the order of offsets and their parts. */
function keyColumns({ native }: DatasetDefinition): KeyColumn[] {
  const first = native.scope.kind === 'column' ? [native.scope.column] : [];
  return [...new Set([...first, ...native.identity])].map((name) => ({
    sql: `t."${name}"`,
    pg: native.columns.find((column) => column.name === name)!.pg,
  }));
}

/** The frames of the ranks. Ranks count through the partitions in the order of their numbers. */
async function findFrames(
  { session, request }: LiveContext,
  ranks: readonly number[],
  keyLength: number,
): Promise<KeyedHit[]> {
  const params = new Params();
  const id = params.add(int2(request.dataset.number));
  const found = await session.rows(
    `with p as materialized (
       select partition_key, from_ms, to_ms, span, row_number() over w as position, (sum(rows) over w - rows)::int8 as base
       from partitions where dataset_id = ${id} and state = 'proved' and rows > 0 window w as (order by span)),
     bases as (select array_agg(base order by position) as list from p),
     drawn as (
       select r.rank, width_bucket(r.rank, bases.list) as position
       from unnest(${params.add(array(ranks.map((rank) => int8(rank))))}) r (rank), bases)
     select p.from_ms, p.to_ms, lower(p.span), upper(p.span), f.stream_sequence, f.first_ms, f.last_ms,
       f.first_offset, f.last_offset, drawn.rank - p.base - coalesce(f.row_base, 0)
     from drawn join p on p.position = drawn.position
     left join lateral (select * from frames f where f.dataset_id = ${id} and f.partition_key = p.partition_key
       and f.row_base <= drawn.rank - p.base and drawn.rank - p.base < f.row_base + f.rows limit 1) f on true`,
    params,
  );
  const hits = new Map<string, KeyedHit>();
  for (const [fromMs, toMs, lower, upper, sequence, firstMs, lastMs, first, last, row] of found) {
    const frameKey = `${lower} ${sequence}`;
    let hit = hits.get(frameKey);
    if (!hit) {
      hit = {
        fromMs: Number(firstMs ?? fromMs),
        toMs: firstMs === null ? Number(toMs) : Number(lastMs) + 1,
        keys: first === null ? undefined : [first.split(':').slice(0, keyLength), last!.split(':').slice(0, keyLength)],
        span: [lower!, upper!],
        rows: [],
      };
      hits.set(frameKey, hit);
    }
    hit.rows.push(Number(row));
  }
  return [...hits.values()];
}

/** Finds the keys of the frames' rows by rank, in the order of offsets. */
async function findKeys(
  { session, relation, request }: LiveContext,
  hits: readonly KeyedHit[],
  columns: readonly KeyColumn[],
): Promise<RowKey[]> {
  const table = nativeRows(request.dataset);
  const order = columns.map(({ sql }) => sql).join(', ');
  const key = [relation.timeMs, ...relation.key];
  const names = key.map((_, index) => `c${index}`);
  const found: RowKey[] = [];
  for (const batch of batched(hits.map((hit) => [hit]))) {
    const params = new Params();
    const bound = (values: readonly string[]) =>
      `(${values.map((value, index) => `${params.add(text(value))}::text::${columns[index].pg}`).join(', ')})`;
    const selects = batch.map(({ fromMs, toMs, keys, span, rows }) => {
      const [scope] = columns;
      const tests = [
        relation.within(fromMs, toMs),
        `${scope.sql} >= ${span[0]} and ${scope.sql} < ${span[1]}`,
        ...(keys ? [`(${order}) >= ${bound(keys[0])} and (${order}) <= ${bound(keys[1])}`] : []),
      ];
      return `select ${names.join(', ')} from (select ${key.map((sql, index) => `${sql} as ${names[index]}`).join(', ')},
        row_number() over (order by ${order}) - 1 as position from ${table} t where ${tests.join(' and ')}) n
        where position = any (${params.add(array(rows.map((row) => int8(row))))})`;
    });
    found.push(...keysOf(await session.rows(selects.join(' union all '), params)));
  }
  return found;
}
