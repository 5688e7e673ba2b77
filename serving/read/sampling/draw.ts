/**
 * Samples unfiltered history without a scan: the sampler draws ranks among the proved rows, the counts of partitions locate
 * each rank, and a look-up finds its row.
 */

import type { Statement } from '../../db/pg-messages.ts';
import { int2, Params } from '../../db/pg-messages.ts';
import type { LiveContext, PlanContext } from '../plan/context.ts';
import type { Part } from '../read-model.ts';

export interface SampledPartition {
  readonly key: string;
  readonly from: number;
  readonly to: number;
  readonly rows: number;
  readonly part: Part;
}

/** Ranks drawn in one partition, counted from its first row. */
export interface Draw {
  readonly partition: SampledPartition;
  readonly ranks: readonly number[];
}

/** Look-ups per statement; each costs the planner a fraction of a millisecond. */
const MAX_LOOKUPS = 64;

/** The proved partitions in order of time. */
export async function readPartitions({ session, request, parts }: LiveContext): Promise<SampledPartition[]> {
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

export const rowsOf = (partitions: readonly SampledPartition[]): number =>
  partitions.reduce((sum, partition) => sum + partition.rows, 0);

/** Assigns ascending ranks to the partitions that they lie in. */
export function draw(partitions: readonly SampledPartition[], ranks: readonly number[]): Draw[] {
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

/** Builds the SQL of a look-up and adds its values to the parameters of the statement that it becomes part of. */
export type MakeLookup = (params: Params) => string;

/**
 * Combines look-ups into statements. Partitions follow each other in time, and so do their statements; the look-ups of a
 * partition stay in one statement, in which the database orders the rows.
 */
export function* statementsOf(
  { relation }: PlanContext,
  partitions: Iterable<readonly MakeLookup[]>,
): Generator<Statement> {
  for (const batch of batched(partitions)) {
    const params = new Params();
    yield { text: relation.selectLookups(batch.map((make) => make(params))), params: params.list };
  }
}

export function* batched<T>(groups: Iterable<readonly T[]>): Generator<T[]> {
  let batch: T[] = [];
  for (const group of groups) {
    if (batch.length > 0 && batch.length + group.length > MAX_LOOKUPS) {
      yield batch;
      batch = [];
    }
    batch.push(...group);
  }
  if (batch.length > 0) yield batch;
}

/**
 * Seeded randomness: the same seed over the same proved rows draws the same sample on any machine. The generator is
 * xoshiro128**, seeded by splitmix32 (public domain, D. Blackman and S. Vigna).
 */
export class Prng {
  readonly #state = new Uint32Array(4);

  constructor(seed: number) {
    let low = seed >>> 0;
    const high = Math.floor(seed / 4294967296) >>> 0;
    for (let i = 0; i < 4; i++) {
      low = (low + 0x9e3779b9 + Math.imul(high, 0x85ebca6b)) >>> 0;
      let z = low;
      z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
      z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
      this.#state[i] = (z ^ (z >>> 15)) >>> 0;
    }
  }

  #next(): number {
    const s = this.#state;
    const product = Math.imul(s[1], 5);
    const result = Math.imul((product << 7) | (product >>> 25), 9) >>> 0;
    const t = s[1] << 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 11) | (s[3] >>> 21);
    return result;
  }

  /** A uniform integer 0 <= x < bound; bound is at most 2^53. */
  below(bound: number): number {
    const range = 2 ** 53;
    const limit = range - (range % bound);
    for (;;) {
      const x = (this.#next() >>> 5) * 67108864 + (this.#next() >>> 6);
      if (x < limit) return x % bound;
    }
  }

  /** `count` distinct integers below `bound`, ascending; every subset is equally likely (R. Floyd). */
  distinct(count: number, bound: number): number[] {
    const chosen = new Set<number>();
    for (let j = bound - count; j < bound; j++) {
      const x = this.below(j + 1);
      chosen.add(chosen.has(x) ? j : x);
    }
    return [...chosen].sort((a, b) => a - b);
  }
}
