/**
 * Native rows of drawn ranks: the frames index tells which few thousand rows to search. Also the sampler by scans, for
 * populations that cannot be drawn from.
 */
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import type { LiveContext } from '../plan/context.ts';
import type { Rows } from '../read-model.ts';
import type { Session } from '../snapshot/session.ts';
import type { Relation } from '../sql/relation.ts';
import { type Draw, draw, type MakeLookup, Prng, rowsOf, type SampledPartition, statementsOf } from './draw.ts';

/** A frame with drawn rows: its time, and the ranks of the drawn rows. */
interface FrameHit {
  readonly partition: SampledPartition;
  readonly firstMs: number;
  readonly lastMs: number;
  /** First and last offset; undefined for a partition without a frames index, which counts as one frame. */
  readonly offsets: { readonly first: bigint; readonly last: bigint } | undefined;
  /** Ranks of the drawn rows within the frame. */
  readonly rows: number[];
}

export async function sampleNative(
  context: LiveContext,
  partitions: readonly SampledPartition[],
  wanted: number,
  seed: number,
): Promise<Iterable<Statement>> {
  const ranks = new Prng(seed).distinct(wanted, rowsOf(partitions));
  return statementsOf(context, await nativeLookups(context, draw(partitions, ranks)));
}

/** Look-ups of the drawn rows by partition. They run without filters, which would change the n-th row of a frame. */
export async function nativeLookups(context: LiveContext, draws: readonly Draw[]): Promise<MakeLookup[][]> {
  const { relation, request } = context;
  const hits = await findFrames(context, draws);
  return hits.map((ofPartition) => ofPartition.map((hit) => lookupOf(relation, request.dataset, hit)));
}

/** The frames of the drawn ranks, by partition and frame. */
async function findFrames({ session, request }: LiveContext, draws: readonly Draw[]): Promise<FrameHit[][]> {
  const params = new Params();
  const keys = array(draws.flatMap(({ partition, ranks }) => ranks.map(() => text(partition.key))));
  const ranks = array(draws.flatMap((one) => one.ranks.map((rank) => int8(rank))));
  const id = params.add(int2(request.dataset.number));
  const found = await session.rows(
    `select f.first_ms, f.last_ms, f.first_offset, f.last_offset, f.row_base
     from unnest(${params.add(keys)}, ${params.add(ranks)}) with ordinality as r (key, rank, position)
     left join lateral (select * from frames f where f.dataset_id = ${id} and f.partition_key = r.key
       and f.row_base <= r.rank and r.rank < f.row_base + f.rows limit 1) f on true order by r.position`,
    params,
  );
  let next = 0;
  return draws.map(({ partition, ranks }) => {
    const hits = new Map<number, FrameHit>();
    for (const rank of ranks) {
      const [firstMs, lastMs, first, last, baseText] = found[next++];
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

function lookupOf(relation: Relation, dataset: DatasetDefinition, hit: FrameHit): MakeLookup {
  const id = `t."${dataset.native.identity[0]}"`;
  const slice = { from: hit.firstMs, to: hit.lastMs + 1, part: hit.partition.part };
  const { offsets, rows } = hit;
  if (offsets && dataset.offset.contiguous) {
    // Ids are consecutive within a document: the n-th row of a frame has the n-th id.
    const ids = array(rows.map((row) => int8(offsets.first + BigInt(row))));
    return (params) => relation.lookup(slice, params, { where: `${id} = any (${params.add(ids)})` });
  }
  return (params) =>
    relation.lookup(slice, params, {
      where: offsets && `${id} between ${params.add(int8(offsets.first))} and ${params.add(int8(offsets.last))}`,
      positions: { numbers: rows, numberedBy: id },
    });
}

/** A population to sample: its rows, and their slices in order, as often as the sampler asks for them. */
interface Sampled<S> {
  readonly session: Session;
  readonly rows: Rows<S>;
  readonly slices: () => Iterable<S> | AsyncIterable<S>;
  readonly seed: number;
}

/**
 * A uniform sample by scans: the rows with the n smallest hashes of (seed, identity). Memory stays flat for any n: the sampler
 * counts rows by the first 16 bits of their hash, which tells in which of 65,536 classes the n-th smallest hash lies, and
 * examines only that class. It reads only slices with rows again. `all`: there are no more rows than wanted, and these slices
 * hold them.
 */
export async function sampleByHash<S>(
  of: Sampled<S>,
  wanted: number,
): Promise<{ readonly sample: Iterable<Statement> } | { readonly all: readonly S[] }> {
  const counts = new Map<number, number>();
  /** The slices that hold rows, each with its lowest class. */
  const held: { readonly slice: S; readonly least: number }[] = [];
  for await (const slice of of.slices()) {
    const rows = await queryHashes(of, slice, (hash) => `select (${hash}) >> 48 as class, count(*)`, 'group by 1');
    for (const [key, count] of rows) counts.set(Number(key), (counts.get(Number(key)) ?? 0) + Number(count));
    if (rows.length > 0)
      held.push({
        slice,
        least: rows.reduce((least, [key]) => Math.min(least, Number(key)), Number.POSITIVE_INFINITY),
      });
  }
  let before = 0;
  let found: number | undefined;
  for (const [key, count] of [...counts].sort(([a], [b]) => a - b)) {
    if (before + count >= wanted) {
      found = key;
      break;
    }
    before += count;
  }
  if (found === undefined) return { all: held.map(({ slice }) => slice) };
  const inClass: bigint[] = [];
  const ofClass = (hash: string) => `(${hash}) >> 48 = ${found}`;
  const sampled = held.filter(({ least }) => least <= found);
  for (const { slice } of sampled) {
    const hashes = await queryHashes(of, slice, (hash) => `select ${hash}`, '', ofClass);
    for (const [hash] of hashes) inClass.push(BigInt(hash!));
  }
  inClass.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  const slices = sampled.map(({ slice }) => slice);
  return { sample: smallest(of, slices, inClass[wanted - before - 1]) };
}

/** All rows of the slices. */
export function* selectEach<S>(rows: Rows<S>, slices: readonly S[]): Generator<Statement> {
  for (const slice of slices) {
    const params = new Params();
    yield { text: rows.select(slice, params), params: params.list };
  }
}

/** Queries the hashes of one slice; the result is small. */
async function queryHashes<S>(
  { session, rows, seed }: Sampled<S>,
  slice: S,
  select: (hash: string) => string,
  rest: string,
  where?: (hash: string) => string,
) {
  const params = new Params();
  const hash = rows.hash(params.add(int8(seed)));
  return await session.rows(`${select(hash)} ${rows.from(slice, params, { where: where?.(hash) })} ${rest}`, params);
}

function* smallest<S>({ rows, seed }: Sampled<S>, slices: readonly S[], threshold: bigint): Generator<Statement> {
  for (const slice of slices) {
    const params = new Params();
    const where = `${rows.hash(params.add(int8(seed)))} <= ${params.add(int8(threshold))}`;
    yield { text: rows.select(slice, params, where), params: params.list };
  }
}
