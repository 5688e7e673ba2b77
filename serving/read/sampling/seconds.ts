/**
 * Aligned rows of drawn ranks. A second may or may not hold a row, so the sampler tries random seconds and keeps the hits,
 * which is uniform over the rows of a dense partition. The rows of a sparse partition are numbered.
 */

import { SECOND_MS } from '../../../shared/dates.ts';
import type { Range } from '../../../shared/ranges.ts';
import { nativeRows } from '../../../shared/registry/instruments.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { array, int2, int8, Params, timestamptz } from '../../db/pg-messages.ts';
import type { LiveContext } from '../plan/context.ts';
import { LostRows, type Slice } from '../read-model.ts';
import type { Relation } from '../sql/relation.ts';
import { batched, draw, type MakeLookup, Prng, rowsOf, type SampledPartition, statementsOf } from './draw.ts';

/** Numbering this many rows takes as long as trying seconds (a few ms). */
const NUMBERED_ROWS = 10_000;
/** Up to this many positions, walking the index to each is faster than numbering all rows once. */
const WALKED_POSITIONS = 4;
/** When more than this share of a partition's rows is wanted, most tries would repeat an earlier one. */
const MAX_SHARE = 0.25;

export async function sampleAligned(
  context: LiveContext,
  partitions: readonly SampledPartition[],
  wanted: number,
  seed: number,
): Promise<Iterable<Statement>> {
  const { relation } = context;
  const prng = new Prng(seed);
  const lookups = new Map<SampledPartition, MakeLookup>();
  const trials: Trial[] = [];
  for (const { partition, ranks } of draw(partitions, prng.distinct(wanted, rowsOf(partitions)))) {
    const slice = sliceOf(partitions, partition);
    if (partition.rows <= NUMBERED_ROWS || ranks.length > partition.rows * MAX_SHARE) {
      const positions = { numbers: ranks, numberedBy: 't.aligned_at_utc' };
      const few = ranks.length <= WALKED_POSITIONS;
      lookups.set(partition, (params) =>
        relation.lookup(slice, params, few ? { where: relation.atPositions(slice, ranks) } : { positions }),
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
  readonly partition: SampledPartition;
  readonly slice: Slice;
  readonly seconds: number;
  missing: number;
  readonly tried: Set<number>;
  /** The seconds that hold a row, as many as ranks were drawn. */
  readonly hits: number[];
}

/** The slice of a partition. The row after its last one is in the next partition that holds rows. */
function sliceOf(partitions: readonly SampledPartition[], partition: SampledPartition): Slice {
  const { from, to, part } = partition;
  const next = partitions.find((other) => other.from >= to && other.rows > 0);
  const following = next?.part === part ? { from: next.from, to: next.to } : { from: to, to };
  return { from, to, part, following };
}

/** Tries seconds until every trial has its hits. */
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

/** Draws seconds not tried before, a few more than should be needed. */
function tryDraw(trial: Trial, prng: Prng): number[] {
  const { partition, seconds, missing, tried } = trial;
  const count = Math.min(seconds - tried.size, Math.ceil((missing * seconds * 1.3) / partition.rows) + 3);
  if (count === 0) {
    const { key, from, to, rows } = partition;
    throw new LostRows(`${key} holds fewer aligned rows than are proved`, {
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

/** The tried seconds that hold a row. */
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

/**
 * The units that aligned rows are drawn by where partitions are heights or snapshots. The number of seconds with a row is
 * unknown, since several blocks may share a second; but exactly one of them is the lowest. So the sampler draws blocks and
 * keeps those that are the lowest of their second: every second is equally likely. A unit is a height, or the index of a
 * snapshot among those with rows.
 */
interface Units {
  readonly count: number;
  /** The seconds, in epoch ms, of those drawn units that are the lowest of their second, in the order of drawing. */
  lowest(numbers: readonly number[]): Promise<number[]>;
}

export const unitsOf = async (context: LiveContext): Promise<Units> =>
  context.coverage.kind === 'height' ? heights(context) : await snapshots(context);

function heights(context: LiveContext): Units {
  const { coverage } = context;
  const count = coverage.proved.reduce((sum, { from, to }) => sum + to - from, 0);
  return {
    count,
    async lowest(numbers) {
      const wanted = numbers.map((number) => heightAt(coverage.proved, number));
      const windows = await windowsOf(context, wanted);
      const order = new Map(wanted.map((height, index) => [height, index]));
      const found: { readonly height: number; readonly ms: number }[] = [];
      for (const batch of batched(windows.map((window) => [window]))) {
        const params = new Params();
        const selects = batch.map((window) => lowestOfSecond(context, window, params));
        for (const [height, ms] of await context.session.rows(selects.join(' union all '), params)) {
          found.push({ height: Number(height), ms: Number(ms) });
        }
      }
      // The result keeps the order of drawing, since the caller may take only some of them.
      return found.sort((a, b) => order.get(a.height)! - order.get(b.height)!).map(({ ms }) => ms);
    },
  };
}

function heightAt(proved: readonly Range[], number: number): number {
  let left = number;
  for (const { from, to } of proved) {
    if (left < to - from) return from + left;
    left -= to - from;
  }
  throw new RangeError(`there are no ${number} proved heights`);
}

interface HeightWindow extends Range {
  readonly height: number;
}

/** The times of the partitions that hold the heights. */
async function windowsOf({ session, request }: LiveContext, wanted: readonly number[]): Promise<HeightWindow[]> {
  const params = new Params();
  const found = await session.rows(
    `select h.height, p.from_ms, p.to_ms from unnest(${params.add(array(wanted.map((height) => int8(height))))}) h (height)
     join partitions p on p.dataset_id = ${params.add(int2(request.dataset.number))} and p.state = 'proved'
       and p.span @> h.height`,
    params,
  );
  return found.map(([height, from, to]) => ({ height: Number(height), from: Number(from), to: Number(to) }));
}

/** Selects the second of a block, unless a lower proved block shares it. */
function lowestOfSecond(
  { relation, request }: LiveContext,
  { height, from, to }: HeightWindow,
  params: Params,
): string {
  const { native } = request.dataset;
  const time = `t."${native.time.column}"`;
  const column = native.scope.kind === 'column' ? `t."${native.scope.column}"` : 'null';
  const second = `${time} - ${time} % ${SECOND_MS}`;
  const within = { from: from - SECOND_MS, to: to + SECOND_MS };
  const near = (alias: string) =>
    `${nativeRows(request.dataset)} t where ${time} >= ${within.from} and ${time} < ${within.to} ${alias}`;
  const proved = relation.provedNative(within, params);
  return `(select ${height}, ms from (select ${second} as ms from ${near(`and ${column} = ${height}`)} limit 1) b
    where not exists (select from ${near(`and ${column} < ${height} and ${second} = b.ms${proved ? ` and ${proved}` : ''}`)}))`;
}

async function snapshots({ session, request }: LiveContext): Promise<Units> {
  const held = `from partitions p where p.dataset_id = ${request.dataset.number} and p.state = 'proved' and p.rows > 0`;
  const [[count]] = await session.rows(`select count(*) ${held}`);
  return {
    count: Number(count),
    async lowest(numbers) {
      const params = new Params();
      const indexes = params.add(array(numbers.map((number) => int8(number))));
      const second = `ms - ms % ${SECOND_MS}`;
      const found = await session.rows(
        `select ${second} from (select lower(p.span) as ms, lag(lower(p.span)) over w as before, row_number() over w - 1 as position
           ${held} window w as (order by p.span)) p
         join unnest(${indexes}) with ordinality d (position, n) using (position)
         where before is null or before < ${second} order by d.n`,
        params,
      );
      return found.map(([ms]) => Number(ms));
    },
  };
}
