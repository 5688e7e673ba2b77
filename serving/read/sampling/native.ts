/**
 * Native rows of drawn ranks: the frames index tells which few hundred rows to search. Also the sampler by scans, for
 * populations that cannot be drawn from.
 */
import { GRANULE_ROWS, gappedIds } from '../../../shared/proof/value-ranges.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { array, int2, int8, Params, text } from '../../db/pg-messages.ts';
import type { LiveContext } from '../plan/context.ts';
import type { Rows } from '../read-model.ts';
import type { Session } from '../snapshot/session.ts';
import type { Place } from '../sql/relation.ts';
import { type Draw, draw, type MakeLookup, Prng, rowsOf, type SampledPartition, statementsOf } from './draw.ts';

/** The drawn rows of one partition. */
interface Hits {
  readonly partition: SampledPartition;
  readonly places: Place[];
  /** Ranks in a partition whose frames are not listed. */
  readonly ranks: number[];
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

/** Look-ups of the drawn rows by partition. They run without filters, which would change the n-th row of a granule. */
export async function nativeLookups(context: LiveContext, draws: readonly Draw[]): Promise<MakeLookup[][]> {
  const hits = await findPlaces(context, draws);
  return hits.map((ofPartition) => lookupsOf(context, ofPartition));
}

/** The places of the drawn ranks: the frames index tells which granule each lies in. */
async function findPlaces({ session, request }: LiveContext, draws: readonly Draw[]): Promise<Hits[]> {
  const params = new Params();
  const keys = array(draws.flatMap(({ partition, ranks }) => ranks.map(() => text(partition.key))));
  const ranks = array(draws.flatMap((one) => one.ranks.map((rank) => int8(rank))));
  const id = params.add(int2(request.dataset.number));
  const isGapped = gappedIds(request.dataset) !== undefined;
  // Ids are consecutive within a document, or those of a granule are between its first and the next one's.
  const place = isGapped
    ? `coalesce(f.granule_offsets[g.at], f.first_offset::int8), coalesce(f.granule_offsets[g.at + 1] - 1, f.last_offset::int8),
       (case when f.granule_offsets is null then g.row else g.row % ${GRANULE_ROWS} end)`
    : 'f.first_offset::int8 + g.row, null, null';
  const found = await session.rows(
    `select f.first_ms + coalesce(f.granule_first_ms[g.at], 0), coalesce(f.first_ms + f.granule_last_ms[g.at], f.last_ms), ${place}
     from unnest(${params.add(keys)}, ${params.add(ranks)}) with ordinality as r (key, rank, position)
     left join lateral (select * from frames f where f.dataset_id = ${id} and f.partition_key = r.key
       and f.rows > 0 and f.row_base <= r.rank order by f.row_base desc limit 1) f on r.rank < f.row_base + f.rows
     left join lateral (select r.rank - f.row_base as row, ((r.rank - f.row_base) / ${GRANULE_ROWS})::int4 + 1 as at) g on true
     order by r.position`,
    params,
  );
  let next = 0;
  return draws.map(({ partition, ranks }) => {
    const hits: Hits = { partition, places: [], ranks: [] };
    for (const rank of ranks) {
      const [firstMs, lastMs, first, last, number] = found[next++];
      if (first === null) {
        hits.ranks.push(rank);
        continue;
      }
      const numbered = isGapped ? { last: Number(last), number: Number(number) } : undefined;
      hits.places.push({ from: Number(firstMs), to: Number(lastMs) + 1, id: Number(first), numbered });
    }
    return hits;
  });
}

/** Places of one chunk are looked up together: the search for one in several chunks takes many times as long. */
function lookupsOf({ relation, request }: LiveContext, { partition, places, ranks }: Hits): MakeLookup[] {
  const { part } = partition;
  const chunkOf = (ms: number) => Math.floor(ms / relation.chunkMs);
  const groups = Map.groupBy(places, ({ from, to }) => (chunkOf(from) === chunkOf(to - 1) ? chunkOf(from) : undefined));
  const lookups = [...groups.values()].map((together): MakeLookup => {
    const from = together.reduce((least, place) => Math.min(least, place.from), Number.POSITIVE_INFINITY);
    const to = together.reduce((greatest, place) => Math.max(greatest, place.to), Number.NEGATIVE_INFINITY);
    return (params) => relation.lookup({ from, to, part }, params, { places: together });
  });
  if (ranks.length === 0) return lookups;
  const slice = { from: partition.from, to: partition.to, part };
  const positions = { numbers: ranks, numberedBy: `t."${request.dataset.native.identity[0]}"` };
  return [...lookups, (params) => relation.lookup(slice, params, { positions })];
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
