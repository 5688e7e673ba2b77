/**
 * Samples of unfiltered history without scanning it: ranks are drawn among the proved rows, partitions' counts say in
 * which partition a rank lies, and a short look-up finds its row. Native rows are found through the frames index,
 * aligned rows by trying seconds.
 */
import { array, int2, int8, Params, text, timestamptz } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import type { LiveContext, PlanContext } from './context.ts';
import type { Part } from './coverage.ts';
import { ReadFault } from './faults.ts';
import { Prng } from './prng.ts';

export interface Partition {
  readonly key: string;
  readonly from: number;
  readonly to: number;
  readonly rows: number;
  readonly part: Part;
}

/** Ranks drawn in one partition, counted from its first row. */
interface Draw {
  readonly partition: Partition;
  readonly ranks: readonly number[];
}

/** Look-ups put into one statement: each costs the planner a fraction of a millisecond. */
const MAX_LOOKUPS_PER_STATEMENT = 64;

/** The proved partitions, in order of time. */
export async function readPartitions({ session, request, parts }: LiveContext): Promise<Partition[]> {
  const rows = request.mode === 'native' ? 'rows' : 'aligned_rows';
  const params = new Params();
  const found = await session.rows(
    `select partition_key, from_ms, to_ms, ${rows} from partitions
     where dataset_id = ${params.add(int2(request.dataset.number))} and state = 'proved' order by from_ms`,
    params,
  );
  let at = 0;
  return found.flatMap(([key, fromText, toText, count]) => {
    const [from, to] = [Number(fromText), Number(toText)];
    while (at < parts.length && parts[at].to < to) at++;
    const part = parts[at];
    return part && part.from <= from ? [{ key: key!, from, to, rows: Number(count), part }] : [];
  });
}

function draw(partitions: readonly Partition[], wanted: number, prng: Prng): Draw[] {
  const total = partitions.reduce((sum, partition) => sum + partition.rows, 0);
  const ranks = prng.distinct(wanted, total);
  const draws: Draw[] = [];
  let base = 0;
  let at = 0;
  for (const partition of partitions) {
    const end = base + partition.rows;
    const from = at;
    while (at < ranks.length && ranks[at] < end) at++;
    if (at > from) draws.push({ partition, ranks: ranks.slice(from, at).map((rank) => rank - base) });
    base = end;
  }
  return draws;
}

/** A frame that drawn rows lie in: where it is in time, and which of its rows are drawn. */
interface Hit {
  readonly partition: Partition;
  readonly firstMs: number;
  readonly lastMs: number;
  readonly firstOffset: string | undefined;
  readonly lastOffset: string | undefined;
  /** Numbers of rows within the frame. */
  readonly rows: number[];
}

export async function sampleNative(
  context: LiveContext,
  partitions: readonly Partition[],
  wanted: number,
  seed: number,
): Promise<Iterable<Statement>> {
  const draws = draw(partitions, wanted, new Prng(seed));
  const hits = await findFrames(context, draws);
  return nativeStatements(context, hits);
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
    const hits = new Map<string, Hit>();
    for (const rank of ranks) {
      const [firstMs, lastMs, firstOffset, lastOffset, base] = found[place++];
      // A partition without a frames index is one frame.
      const key = base ?? '';
      let hit = hits.get(key);
      if (!hit) {
        hit = {
          partition,
          firstMs: firstMs === null ? partition.from : Number(firstMs),
          lastMs: lastMs === null ? partition.to - 1 : Number(lastMs),
          firstOffset: firstOffset ?? undefined,
          lastOffset: lastOffset ?? undefined,
          rows: [],
        };
        hits.set(key, hit);
      }
      hit.rows.push(rank - Number(base ?? 0));
    }
    return [...hits.values()];
  });
}

/** Partitions follow each other in time, so their statements do; within one the database orders the rows. */
function* nativeStatements(context: PlanContext, partitions: readonly Hit[][]): Generator<Statement> {
  let batch: Hit[] = [];
  for (const hits of partitions) {
    if (batch.length > 0 && batch.length + hits.length > MAX_LOOKUPS_PER_STATEMENT) {
      yield lookupStatement(context, batch);
      batch = [];
    }
    batch.push(...hits);
  }
  if (batch.length > 0) yield lookupStatement(context, batch);
}

function lookupStatement({ request, relation }: PlanContext, hits: readonly Hit[]): Statement {
  const { identity } = request.dataset.native;
  const id = `t."${identity[0]}"`;
  const params = new Params();
  const lookups = hits.map((hit) => {
    const slice = { from: hit.firstMs, to: hit.lastMs + 1, part: hit.partition.part };
    if (hit.firstOffset !== undefined && request.dataset.offset.contiguous) {
      // Ids follow each other within a document: the n-th row of a frame has the n-th id.
      const first = BigInt(hit.firstOffset);
      const ids = array(hit.rows.map((row) => int8(first + BigInt(row))));
      const where = `${id} = any (${params.add(ids)})`;
      return `select ${relation.innerSelect()} ${relation.from(slice, params, { where })}`;
    }
    const inFrame =
      hit.firstOffset === undefined
        ? undefined
        : `${id} >= ${params.add(text(hit.firstOffset))}::text::int8 and ${id} <= ${params.add(text(hit.lastOffset!))}::text::int8`;
    const numbered = `select ${relation.innerSelect()}, row_number() over (order by ${id}) - 1 as place
      ${relation.from(slice, params, { where: inFrame })}`;
    const places = params.add(array(hit.rows.map((row) => int8(row))));
    return `select ${relation.innerSelect()} from (${numbered}) t where t.place = any (${places})`;
  });
  return { text: relation.selectFrom(lookups.join(' union all ')), params: params.list };
}

/** A second holds a row or it does not, so trying seconds at random and keeping the hits is uniform over the rows. */
const SECOND_MS = 1000;
/** Below this density, or for a larger share of a partition, numbering its rows is cheaper than trying seconds. */
const MIN_DENSITY = 0.02;
const MAX_SHARE = 0.25;

export async function sampleAligned(
  context: LiveContext,
  partitions: readonly Partition[],
  wanted: number,
  seed: number,
): Promise<Iterable<Statement>> {
  const prng = new Prng(seed);
  const draws = draw(partitions, wanted, prng);
  const chosen = new Map<Partition, number[]>();
  const sparse: Draw[] = [];
  let open: Trial[] = [];
  for (const one of draws) {
    const { partition, ranks } = one;
    const seconds = Math.floor((partition.to - partition.from) / SECOND_MS);
    if (partition.rows < seconds * MIN_DENSITY || ranks.length > partition.rows * MAX_SHARE) sparse.push(one);
    else open.push({ partition, seconds, missing: ranks.length, tried: new Set() });
  }
  for (const { partition, ranks } of sparse) chosen.set(partition, await secondsByRank(context, partition, ranks));
  while (open.length > 0) {
    const tries = open.map((trial) => tryDraw(trial, prng));
    if (tries.some((drawn) => drawn.length === 0)) {
      throw new ReadFault('runtime', 'a partition holds fewer aligned rows than were proved');
    }
    const present = await existing(context, open, tries);
    open = open.filter((trial, index) => {
      const hits = tries[index].filter((ms) => present.has(ms)).slice(0, trial.missing);
      chosen.set(trial.partition, [...(chosen.get(trial.partition) ?? []), ...hits]);
      trial.missing -= hits.length;
      return trial.missing > 0;
    });
  }
  return alignedStatements(
    context,
    partitions.filter((partition) => chosen.has(partition)),
    chosen,
  );
}

interface Trial {
  readonly partition: Partition;
  readonly seconds: number;
  missing: number;
  readonly tried: Set<number>;
}

/** Seconds not tried before, a few more than should be needed. */
function tryDraw(trial: Trial, prng: Prng): number[] {
  const { partition, seconds, missing, tried } = trial;
  const count = Math.min(seconds - tried.size, Math.ceil((missing * seconds * 1.3) / partition.rows) + 3);
  const drawn: number[] = [];
  while (drawn.length < count) {
    const ms = partition.from + prng.below(seconds) * SECOND_MS;
    if (tried.has(ms)) continue;
    tried.add(ms);
    drawn.push(ms);
  }
  return drawn;
}

/** Which of the tried seconds hold a row. One statement for each stretch of time that shares chunks. */
async function existing(
  { session, relation }: LiveContext,
  trials: readonly Trial[],
  tries: readonly (readonly number[])[],
): Promise<Set<number>> {
  const present = new Set<number>();
  for (const group of grouped(
    trials.map((trial) => trial.partition),
    relation.chunkMs,
  )) {
    const params = new Params();
    const times = group.flatMap((index) => tries[index]);
    if (times.length === 0) continue;
    const slice = spanOf(group.map((index) => trials[index].partition));
    const where = `t.aligned_at_utc = any (${params.add(array(times.map((ms) => timestamptz(ms))))})`;
    const rows = await session.rows(
      `select ${relation.timeMs} ${relation.from(slice, params, { where, next: 'probe' })}`,
      params,
    );
    for (const [ms] of rows) present.add(Number(ms));
  }
  return present;
}

async function secondsByRank({ session, relation }: LiveContext, partition: Partition, ranks: readonly number[]) {
  const params = new Params();
  const numbered = `select ${relation.timeMs} as ms, row_number() over (order by t.aligned_at_utc) - 1 as place
    ${relation.from(partition, params)}`;
  const places = params.add(array(ranks.map((rank) => int8(rank))));
  const rows = await session.rows(`select ms from (${numbered}) n where place = any (${places})`, params);
  return rows.map(([ms]) => Number(ms));
}

function* alignedStatements(
  { relation }: PlanContext,
  partitions: readonly Partition[],
  chosen: ReadonlyMap<Partition, readonly number[]>,
): Generator<Statement> {
  for (const group of grouped(partitions, relation.chunkMs)) {
    const params = new Params();
    const times = group.flatMap((index) => [...chosen.get(partitions[index])!]);
    const where = `t.aligned_at_utc = any (${params.add(array(times.map((ms) => timestamptz(ms))))})`;
    const slice = spanOf(group.map((index) => partitions[index]));
    yield { text: relation.select(slice, params, { where, next: 'probe' }), params: params.list };
  }
}

/** Indexes of neighbouring partitions of one chunk and one proved part. */
function* grouped(partitions: readonly Partition[], chunkMs: number): Generator<number[]> {
  let group: number[] = [];
  for (const [index, partition] of partitions.entries()) {
    const before = partitions[index - 1];
    const sameChunk = before && Math.floor(before.from / chunkMs) === Math.floor(partition.from / chunkMs);
    if (group.length > 0 && !(sameChunk && before.part === partition.part)) {
      yield group;
      group = [];
    }
    group.push(index);
  }
  if (group.length > 0) yield group;
}

function spanOf(partitions: readonly Partition[]) {
  return { from: partitions[0].from, to: partitions[partitions.length - 1].to, part: partitions[0].part };
}
