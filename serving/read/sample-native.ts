/** Native rows of drawn ranks, through the frames index: it says which few thousand rows to look among. */
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { array, int2, int8, Params, text } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import type { LiveContext } from './context.ts';
import { Prng } from './prng.ts';
import type { Relation } from './relation.ts';
import { countOf, type Draw, draw, type MakeLookup, type Partition, statementsOf } from './sample.ts';

/** A frame that drawn rows lie in: where it is in time, and which of its rows are drawn. */
interface Hit {
  readonly partition: Partition;
  readonly firstMs: number;
  readonly lastMs: number;
  /** First and last offset; undefined where a partition has no frames index and counts as one frame. */
  readonly offsets: { readonly first: bigint; readonly last: bigint } | undefined;
  /** Numbers of rows within the frame. */
  readonly rows: number[];
}

export async function sampleNative(
  context: LiveContext,
  partitions: readonly Partition[],
  wanted: number,
  seed: number,
): Promise<Iterable<Statement>> {
  const ranks = new Prng(seed).distinct(wanted, countOf(partitions));
  return statementsOf(context, await nativeLookups(context, draw(partitions, ranks)));
}

/** The drawn rows of each partition. Where the n-th of a frame is looked for, filters would make another of it. */
export async function nativeLookups(context: LiveContext, draws: readonly Draw[]): Promise<MakeLookup[][]> {
  const { relation, request } = context;
  const hits = await findFrames(context, draws);
  return hits.map((ofPartition) => ofPartition.map((hit) => lookupOf(relation, request.dataset, hit)));
}

/** The frames of the drawn ranks, by partition and place. */
async function findFrames({ session, request }: LiveContext, draws: readonly Draw[]): Promise<Hit[][]> {
  const params = new Params();
  const keys = array(draws.flatMap(({ partition, ranks }) => ranks.map(() => text(partition.key))));
  const ranks = array(draws.flatMap((one) => one.ranks.map((rank) => int8(rank))));
  const id = params.add(int2(request.dataset.number));
  const found = await session.rows(
    `select f.first_ms, f.last_ms, f.first_offset, f.last_offset, f.row_base
     from unnest(${params.add(keys)}, ${params.add(ranks)}) with ordinality as r (key, rank, place)
     left join lateral (select * from frames f where f.dataset_id = ${id} and f.partition_key = r.key
       and f.row_base <= r.rank and r.rank < f.row_base + f.rows limit 1) f on true order by r.place`,
    params,
  );
  let place = 0;
  return draws.map(({ partition, ranks }) => {
    const hits = new Map<number, Hit>();
    for (const rank of ranks) {
      const [firstMs, lastMs, first, last, baseText] = found[place++];
      const base = Number(baseText ?? 0);
      let hit = hits.get(base);
      if (!hit) {
        hit = {
          partition,
          firstMs: firstMs === null ? partition.from : Number(firstMs),
          lastMs: lastMs === null ? partition.to - 1 : Number(lastMs),
          offsets: first === null ? undefined : { first: BigInt(first), last: BigInt(last!) },
          rows: [],
        };
        hits.set(base, hit);
      }
      hit.rows.push(rank - base);
    }
    return [...hits.values()];
  });
}

function lookupOf(relation: Relation, dataset: DatasetDefinition, hit: Hit): MakeLookup {
  const id = `t."${dataset.native.identity[0]}"`;
  const slice = { from: hit.firstMs, to: hit.lastMs + 1, part: hit.partition.part };
  const { offsets, rows } = hit;
  if (offsets && dataset.offset.contiguous) {
    // Ids follow each other within a document: the n-th row of a frame has the n-th id.
    const ids = array(rows.map((row) => int8(offsets.first + BigInt(row))));
    return (params) => relation.lookup(slice, params, { where: `${id} = any (${params.add(ids)})` });
  }
  return (params) =>
    relation.lookup(slice, params, {
      where: offsets && `${id} between ${params.add(int8(offsets.first))} and ${params.add(int8(offsets.last))}`,
      places: { numbers: rows, numberedBy: id },
    });
}
