/**
 * Samples by drawing: each number stands for a row, or for a position that may hold one. The sampler draws numbers without
 * repetition, finds their rows, and keeps those that pass the filters. The accepted rows are uniform over all rows that pass,
 * however few; a budget of draws decides when a scan is cheaper.
 */
import { SECOND_MS } from '../../../shared/dates.ts';
import { lengthOf, type Range } from '../../../shared/ranges.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { Params } from '../../db/pg-messages.ts';
import type { LiveContext } from '../plan/context.ts';
import { Relation } from '../sql/relation.ts';
import { batched, draw, Prng, readPartitions, rowsOf, type SampledPartition } from './draw.ts';
import { countRows, findByRank, keysOf, passing, type RowKey, rowsByKey } from './keyed.ts';
import { nativeLookups } from './native.ts';
import { unitsOf } from './seconds.ts';

/** Draws that take a second or two; a sampler that needs more is as good as stuck. */
const MAX_DRAWS = 5000;

/** A scan reads this many rows in the time of one draw. */
const ROWS_A_DRAW = 500;

/** Draws that show whether enough rows pass the filter to go on. */
const FIRST_DRAWS = 64;

/** Draws per wanted row, however short the history: enough for a filter that one row in twenty passes. */
const MIN_DRAWS_A_ROW = 20;

/** The population that the numbers stand for. */
interface Population {
  readonly count: number;
  /** The number of rows that they stand for, or a few more. */
  readonly rows: number;
  /** The share of their time that passes the filters on time. */
  readonly searched: number;
  /** The keys of the rows that the numbers stand for, in any order. A number may have no row. */
  find(numbers: readonly number[]): Promise<RowKey[]>;
}

/** When filters on time leave less than this share of the population, a scan of that share is cheaper. */
const MIN_SEARCHED = 0.25;

/** Undefined: scan the history instead. `all`: the history holds no more rows than wanted. */
export async function sampleDrawn(
  context: LiveContext,
  wanted: number,
  seed: number,
): Promise<Iterable<Statement> | 'all' | undefined> {
  const filtered = context.request.filters.length > 0;
  if (filtered && wanted > MAX_DRAWS) return undefined;
  const population = await populationOf(context);
  if (!population || (filtered && isScanned(population, wanted))) return undefined;
  if (wanted >= population.count) return 'all';
  const limit = filtered ? Math.min(MAX_DRAWS, budgetOf(population, wanted), population.count) : population.count;
  const first = filtered ? FIRST_DRAWS : wanted + 3;
  const prng = new Prng(seed);
  const tried = new Set<number>();
  const accepted: RowKey[] = [];
  while (accepted.length < wanted) {
    if (tried.size === limit) return limit === population.count ? 'all' : undefined;
    if (limit < population.count && tried.size >= drawsInVain(wanted, accepted.length, limit)) return undefined;
    const found = await population.find(
      fresh(prng, tried, population.count, nextDraws({ wanted, limit, first }, accepted.length, tried.size)),
    );
    accepted.push(...(filtered ? await passing(context, found) : found));
  }
  // All accepted rows are equally likely, and so is every choice among them.
  accepted.sort(compareKeys);
  return await rowsByKey(
    context,
    prng.distinct(wanted, accepted.length).map((index) => accepted[index]),
  );
}

/** The number of draws that should yield the missing rows, by the rate so far; limited while few draws support the rate. */
function nextDraws(
  { wanted, limit, first }: { readonly wanted: number; readonly limit: number; readonly first: number },
  accepted: number,
  tried: number,
): number {
  const share = (accepted + 1) / (tried + 1);
  const estimated = Math.ceil((wanted - accepted) / share) + 3;
  const left = tried === 0 ? first : Math.max(1, drawsInVain(wanted, accepted, limit) - tried);
  return Math.min(estimated, 4 * Math.max(tried, first), left, limit - tried);
}

/** Draws that turn out to be in vain cost no more than the scan that follows. */
const budgetOf = ({ rows }: Population, wanted: number): number =>
  Math.max(MIN_DRAWS_A_ROW * wanted, Math.ceil(rows / ROWS_A_DRAW));

/** Allowance for bad luck: if one row in 16 passes, 60 draws find none in 2 % of cases, 20 draws in 27 %. */
const SLACK_ROWS = 3;

/**
 * The number of draws after which, with so few rows accepted, the same rate would not finish within the limit. It depends only
 * on how many rows were accepted, not on which, so the sample stays uniform.
 */
const drawsInVain = (wanted: number, accepted: number, limit: number): number =>
  Math.ceil((limit * (accepted + SLACK_ROWS)) / wanted);

/** Decides by counts alone, so that the same history is always sampled the same way. */
const isScanned = ({ rows, searched }: Population, wanted: number): boolean =>
  searched < MIN_SEARCHED || rows <= ROWS_A_DRAW * wanted;

/** An arbitrary but fixed order. */
const compareKeys = (a: RowKey, b: RowKey) => a.ms - b.ms || (a.values.join(' ') < b.values.join(' ') ? -1 : 1);

/** Draws numbers that were not drawn before, in the order of drawing. */
function fresh(prng: Prng, tried: Set<number>, count: number, wanted: number): number[] {
  const numbers: number[] = [];
  while (numbers.length < wanted) {
    const number = prng.below(count);
    if (tried.has(number)) continue;
    tried.add(number);
    numbers.push(number);
  }
  return numbers;
}

async function populationOf(context: LiveContext): Promise<Population | undefined> {
  const { coverage, request } = context;
  const native = request.mode === 'native';
  switch (coverage.kind) {
    case 'file_day':
      return native ? await tradesOf(context) : await secondsOf(context);
    case 'height':
    case 'snapshot':
      return native ? await numberedOf(context) : await blockSecondsOf(context);
    default:
      // Captures and vintages have only a few hundred thousand rows.
      return undefined;
  }
}

async function tradesOf(context: LiveContext): Promise<Population> {
  const partitions = await searchedPartitions(context);
  const { request, session, searched } = context;
  // Filters would change which row of a frame is the n-th.
  const relation = new Relation({ ...request, fields: [], filters: [] }, context);
  const count = rowsOf(partitions);
  return {
    count,
    rows: count,
    searched: shareOf(searched, partitions),
    async find(numbers) {
      const draws = draw(
        partitions,
        numbers.toSorted((a, b) => a - b),
      );
      const lookups = await nativeLookups({ ...context, relation }, draws);
      const found: RowKey[] = [];
      for (const batch of batched(lookups)) {
        const params = new Params();
        found.push(...keysOf(await session.rows(relation.selectKeys(batch.map((make) => make(params))), params)));
      }
      return found;
    },
  };
}

/** The partitions that can hold rows that pass; all others hold none. */
async function searchedPartitions(context: LiveContext): Promise<SampledPartition[]> {
  const partitions = await readPartitions(context);
  return partitions.filter(({ from, to }) => context.searched.some((part) => part.from < to && from < part.to));
}

/** The share is 1 when there is no time to leave out. */
const shareOf = (searched: readonly Range[], all: readonly Range[]): number =>
  all.length === 0 ? 1 : lengthOf(searched) / lengthOf(all);

/** Every proved second that passes the filters on time; a second may hold a row. */
async function secondsOf(context: LiveContext): Promise<Population> {
  const partitions = await searchedPartitions(context);
  const ranges = context.searched.map(({ from, to }) => {
    const first = Math.ceil(from / SECOND_MS);
    return { first, count: Math.max(0, Math.ceil(to / SECOND_MS) - first) };
  });
  return {
    count: ranges.reduce((sum, { count }) => sum + count, 0),
    rows: Math.ceil(rowsOf(partitions) * shareOf(context.searched, partitions)),
    searched: 1,
    async find(numbers) {
      return numbers.map((number) => {
        let left = number;
        for (const { first, count } of ranges) {
          if (left < count) return secondKey((first + left) * SECOND_MS);
          left -= count;
        }
        throw new RangeError(`there are no ${number} seconds`);
      });
    },
  };
}

async function numberedOf(context: LiveContext): Promise<Population> {
  const count = await countRows(context);
  const searched = shareOf(context.searched, context.parts);
  return { count, rows: count, searched, find: (numbers) => findByRank(context, numbers) };
}

async function blockSecondsOf(context: LiveContext): Promise<Population> {
  const units = await unitsOf(context);
  return {
    count: units.count,
    rows: units.count,
    searched: shareOf(context.searched, context.parts),
    find: async (numbers) => (await units.lowest(numbers)).map(secondKey),
  };
}

const secondKey = (ms: number): RowKey => ({ ms, values: [new Date(ms).toISOString()] });
