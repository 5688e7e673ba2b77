/**
 * Aligned rows of drawn ranks. A second holds a row or it does not, so trying seconds at random and keeping the hits is
 * uniform over the rows of a dense partition; the rows of a sparse one are numbered.
 */
import { array, Params, timestamptz } from '../db/params.ts';
import type { Statement } from '../db/wire-messages.ts';
import type { LiveContext } from './context.ts';
import { LostRows } from './faults.ts';
import { Prng } from './prng.ts';
import type { Relation } from './relation.ts';
import { batched, countOf, draw, type MakeLookup, type Partition, statementsOf } from './sample.ts';
import type { Slice } from './slices.ts';

const SECOND_MS = 1000;
/** Numbering as many rows takes as long as trying seconds (a few ms). */
const NUMBERED_ROWS = 10_000;
/** More places are found by numbering the rows once than by walking to each. */
const WALKED_PLACES = 4;
/** Of a large share of a partition most tries would repeat. */
const MAX_SHARE = 0.25;

export async function sampleAligned(
  context: LiveContext,
  partitions: readonly Partition[],
  wanted: number,
  seed: number,
): Promise<Iterable<Statement>> {
  const { relation } = context;
  const prng = new Prng(seed);
  const lookups = new Map<Partition, MakeLookup>();
  const trials: Trial[] = [];
  for (const { partition, ranks } of draw(partitions, prng.distinct(wanted, countOf(partitions)))) {
    const slice = sliceOf(partitions, partition);
    if (partition.rows <= NUMBERED_ROWS || ranks.length > partition.rows * MAX_SHARE) {
      const places = { numbers: ranks, numberedBy: 't.aligned_at_utc' };
      const few = ranks.length <= WALKED_PLACES;
      lookups.set(partition, (params) =>
        relation.lookup(slice, params, few ? { where: relation.atPlaces(slice, ranks) } : { places }),
      );
    } else {
      const seconds = Math.floor((partition.to - partition.from) / SECOND_MS);
      const trial = { partition, slice, seconds, missing: ranks.length, tried: new Set<number>(), hits: [] };
      trials.push(trial);
      lookups.set(partition, (params) => relation.lookup(slice, params, { where: isOneOf(trial.hits, params) }));
    }
  }
  await trySeconds(context, trials, prng);
  const drawn = partitions.filter((partition) => lookups.has(partition));
  return statementsOf(
    context,
    drawn.map((partition) => [lookups.get(partition)!]),
  );
}

interface Trial {
  readonly partition: Partition;
  readonly slice: Slice;
  readonly seconds: number;
  missing: number;
  readonly tried: Set<number>;
  /** Seconds that hold a row, as many as were drawn. */
  readonly hits: number[];
}

/** The partition, and the next one that holds rows: there the row after its last is looked for. */
function sliceOf(partitions: readonly Partition[], partition: Partition): Slice {
  const { from, to, part } = partition;
  const next = partitions.find((other) => other.from >= to && other.rows > 0);
  const following = next?.part === part ? { from: next.from, to: next.to } : { from: to, to };
  return { from, to, part, following };
}

/** Until every trial has its hits. */
async function trySeconds(context: LiveContext, trials: readonly Trial[], prng: Prng): Promise<void> {
  for (let open = trials; open.length > 0; open = open.filter((trial) => trial.missing > 0)) {
    for (const batch of batched(open.map((trial) => [trial]))) {
      const tries = batch.map((trial) => tryDraw(trial, prng));
      const present = await existing(context, batch, tries);
      batch.forEach((trial, index) => {
        const hits = tries[index].filter((ms) => present.has(ms)).slice(0, trial.missing);
        trial.hits.push(...hits);
        trial.missing -= hits.length;
      });
    }
  }
}

/** Seconds not tried before, a few more than should be needed. */
function tryDraw(trial: Trial, prng: Prng): number[] {
  const { partition, seconds, missing, tried } = trial;
  const count = Math.min(seconds - tried.size, Math.ceil((missing * seconds * 1.3) / partition.rows) + 3);
  if (count === 0) {
    const { key, from, to, rows } = partition;
    throw new LostRows(`${key} holds fewer aligned rows than were proved`, {
      rows,
      window: { from, to },
      partitions: [key],
    });
  }
  const drawn: number[] = [];
  while (drawn.length < count) {
    const ms = partition.from + prng.below(seconds) * SECOND_MS;
    if (tried.has(ms)) continue;
    tried.add(ms);
    drawn.push(ms);
  }
  return drawn;
}

/** Which of the tried seconds hold a row. */
async function existing(
  { session, relation }: LiveContext,
  trials: readonly Trial[],
  tries: readonly (readonly number[])[],
): Promise<ReadonlySet<number>> {
  const params = new Params();
  const selects = trials.map(({ slice }, index) => `select ${secondsOf(relation, slice, tries[index], params)}`);
  const rows = await session.rows(selects.join(' union all '), params);
  return new Set(rows.map(([ms]) => Number(ms)));
}

const secondsOf = (relation: Relation, slice: Slice, times: readonly number[], params: Params) =>
  `${relation.timeMs} ${relation.from(slice, params, { where: isOneOf(times, params), next: 'probe' })}`;

const isOneOf = (times: readonly number[], params: Params) =>
  `t.aligned_at_utc = any (${params.add(array(times.map((ms) => timestamptz(ms))))})`;
