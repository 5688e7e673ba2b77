/**
 * Native rows of drawn ranks where partitions are heights or snapshots. They follow each other by number, rows are
 * answered by time, and block times go back and forth: so the rows' keys are found first, by partition and frame.
 */
import type { DatasetDefinition, PgType } from '../../shared/registry/index.ts';
import { array, int2, int8, Params, text } from '../db/params.ts';
import type { LiveContext } from './context.ts';
import { batched } from './sample.ts';
import { keysOf, type RowKey } from './sample-keys.ts';

/** Rows drawn from one frame, or from a partition that has no frames index. */
interface Hit {
  readonly fromMs: number;
  readonly toMs: number;
  /** First and last of the rows' keys; undefined where the whole partition is numbered. */
  readonly keys: readonly [first: readonly string[], last: readonly string[]] | undefined;
  /** Of the partition: heights, or the snapshot. */
  readonly span: readonly [from: string, to: string];
  /** Numbers of rows within the frame. */
  readonly rows: number[];
}

interface KeyColumn {
  readonly sql: string;
  readonly pg: PgType;
}

/** Number of proved rows. */
export async function countRows({ session, request }: LiveContext): Promise<number> {
  const params = new Params();
  const [[count]] = await session.rows(
    `select coalesce(sum(rows), 0) from coverage_spans where dataset_id = ${params.add(int2(request.dataset.number))}`,
    params,
  );
  return Number(count);
}

/** The keys of the rows of these ranks, which count through the partitions in the order of their numbers. */
export async function findByRank(context: LiveContext, ranks: readonly number[]): Promise<RowKey[]> {
  const columns = keyColumns(context.request.dataset);
  const hits = await findFrames(context, ranks, columns.length);
  return await findKeys(context, hits, columns);
}

/** The number of the partition, then what tells its rows apart: in the order of offsets, and of an offset's parts. */
function keyColumns({ native }: DatasetDefinition): KeyColumn[] {
  const first = native.scope.kind === 'column' ? [native.scope.column] : [];
  return [...new Set([...first, ...native.identity])].map((name) => ({
    sql: `t."${name}"`,
    pg: native.columns.find((column) => column.name === name)!.pg,
  }));
}

/** The frames of the ranks, which count through the partitions in the order of their numbers. */
async function findFrames(
  { session, request }: LiveContext,
  ranks: readonly number[],
  keyLength: number,
): Promise<Hit[]> {
  const params = new Params();
  const id = params.add(int2(request.dataset.number));
  const found = await session.rows(
    `with p as materialized (
       select partition_key, from_ms, to_ms, span, row_number() over w as place, (sum(rows) over w - rows)::int8 as base
       from partitions where dataset_id = ${id} and state = 'proved' and rows > 0 window w as (order by span)),
     bases as (select array_agg(base order by place) as list from p),
     drawn as (
       select r.rank, width_bucket(r.rank, bases.list) as place
       from unnest(${params.add(array(ranks.map((rank) => int8(rank))))}) r (rank), bases)
     select p.from_ms, p.to_ms, lower(p.span), upper(p.span), f.stream_sequence, f.first_ms, f.last_ms,
       f.first_offset, f.last_offset, drawn.rank - p.base - coalesce(f.row_base, 0)
     from drawn join p on p.place = drawn.place
     left join lateral (select * from frames f where f.dataset_id = ${id} and f.partition_key = p.partition_key
       and f.row_base <= drawn.rank - p.base and drawn.rank - p.base < f.row_base + f.rows limit 1) f on true`,
    params,
  );
  const hits = new Map<string, Hit>();
  for (const [fromMs, toMs, lower, upper, sequence, firstMs, lastMs, first, last, row] of found) {
    const place = `${lower} ${sequence}`;
    let hit = hits.get(place);
    if (!hit) {
      hit = {
        fromMs: Number(firstMs ?? fromMs),
        toMs: firstMs === null ? Number(toMs) : Number(lastMs) + 1,
        keys: first === null ? undefined : [first.split(':').slice(0, keyLength), last!.split(':').slice(0, keyLength)],
        span: [lower!, upper!],
        rows: [],
      };
      hits.set(place, hit);
    }
    hit.rows.push(Number(row));
  }
  return [...hits.values()];
}

/** The rows of the frames by number, in the order of offsets. */
async function findKeys(
  { session, relation, request }: LiveContext,
  hits: readonly Hit[],
  columns: readonly KeyColumn[],
): Promise<RowKey[]> {
  const { table } = request.dataset.native;
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
        row_number() over (order by ${order}) - 1 as place from "${table}" t where ${tests.join(' and ')}) n
        where place = any (${params.add(array(rows.map((row) => int8(row))))})`;
    });
    found.push(...keysOf(await session.rows(selects.join(' union all '), params)));
  }
  return found;
}
