/**
 * Samples by drawing: numbers that each stand for a row, or for a place where one may be, are drawn without repeating any;
 * what stands there is found, and kept if it passes the filters. What is kept is uniform over the rows that pass, however
 * few they are; a budget of draws tells when a scan is the better way.
 */
import type { Range } from '../../../shared/ranges.ts';
import { Params } from '../../db/params.ts';
import type { Statement } from '../../db/pg-messages.ts';
import type { LiveContext } from '../plan/context.ts';
import { Relation } from '../sql/relation.ts';
import { batched, draw, type Partition, Prng, readPartitions, rowsOf } from './draw.ts';
import { countRows, findByRank, keysOf, passing, type RowKey, rowsByKey } from './keyed.ts';
import { nativeLookups } from './native.ts';
import { unitsOf } from './seconds.ts';

/** A second or two of draws; past it they are as good as in vain. */
const MAX_DRAWS = 5000;

const SECOND_MS = 1000;

/** As many rows are scanned in the time of one draw. */
const ROWS_A_DRAW = 500;

/** Draws that show whether a filter passes enough of them to go on. */
const FIRST_DRAWS = 64;

/** Draws for each row that is wanted, however short the history: enough for filters that one row in twenty passes. */
const MIN_DRAWS_A_ROW = 20;

/** What numbers stand for. */
interface Population {
  readonly count: number;
  /** Rows they stand for, or a few more. */
  readonly rows: number;
  /** How much of their time the filters on time leave. */
  readonly searched: number;
  /** Keys of the rows that the numbers stand for, in any order; there may be none at some. */
  find(numbers: readonly number[]): Promise<RowKey[]>;
}

/** Filters on time that leave less than this share of what would be drawn from: what they leave is better scanned. */
const MIN_SEARCHED = 0.25;

/** Undefined: the history is to be scanned. `all`: it holds no more rows than wanted. */
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
  const kept: RowKey[] = [];
  while (kept.length < wanted) {
    if (tried.size === limit) return limit === population.count ? 'all' : undefined;
    if (limit < population.count && tried.size >= inVain(wanted, kept.length, limit)) return undefined;
    const found = await population.find(
      fresh(prng, tried, population.count, nextDraws({ wanted, limit, first }, kept.length, tried.size)),
    );
    kept.push(...(filtered ? await passing(context, found) : found));
  }
  // All that were drawn and pass are as likely: so is every choice among them.
  kept.sort(compareKeys);
  return await rowsByKey(
    context,
    prng.distinct(wanted, kept.length).map((index) => kept[index]),
  );
}

/** As many as should give what is missing, by what they gave so far; not too many on the word of a few. */
function nextDraws(
  { wanted, limit, first }: { readonly wanted: number; readonly limit: number; readonly first: number },
  kept: number,
  tried: number,
): number {
  const share = (kept + 1) / (tried + 1);
  const guess = Math.ceil((wanted - kept) / share) + 3;
  const left = tried === 0 ? first : Math.max(1, inVain(wanted, kept, limit) - tried);
  return Math.min(guess, 4 * Math.max(tried, first), left, limit - tried);
}

/** Draws are to cost no more than the scan that follows when they are in vain. */
const budgetOf = ({ rows }: Population, wanted: number): number =>
  Math.max(MIN_DRAWS_A_ROW * wanted, Math.ceil(rows / ROWS_A_DRAW));

/** Rows that chance may have held back: 60 draws of which one in 16 would pass bring none in 2 % of cases, 20 draws in 27 %. */
const SLACK_ROWS = 3;

/**
 * After so many draws of which so few were kept, going on at that rate would not end within the limit. Which rows were kept
 * does not matter, only how many, so that the sample stays uniform.
 */
const inVain = (wanted: number, kept: number, limit: number): number =>
  Math.ceil((limit * (kept + SLACK_ROWS)) / wanted);

/** By counts alone: the same history is always sampled the same way. */
const isScanned = ({ rows, searched }: Population, wanted: number): boolean =>
  searched < MIN_SEARCHED || rows <= ROWS_A_DRAW * wanted;

const lengthOf = (parts: readonly Range[]) => parts.reduce((sum, { from, to }) => sum + to - from, 0);

/** Any order that is always the same. */
const compareKeys = (a: RowKey, b: RowKey) => a.ms - b.ms || (a.values.join(' ') < b.values.join(' ') ? -1 : 1);

/** Numbers that were not drawn before, in the order they are drawn. */
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
      // Captures and vintages are a few hundred thousand rows.
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

/** The others hold no row that passes. */
async function searchedPartitions(context: LiveContext): Promise<Partition[]> {
  const partitions = await readPartitions(context);
  return partitions.filter(({ from, to }) => context.searched.some((part) => part.from < to && from < part.to));
}

/** Of no time at all there is nothing to leave out. */
const shareOf = (searched: readonly Range[], all: readonly Range[]): number =>
  all.length === 0 ? 1 : lengthOf(searched) / lengthOf(all);

/** Every proved second that the filters on time leave: there may be a row. */
async function secondsOf(context: LiveContext): Promise<Population> {
  const partitions = await searchedPartitions(context);
  const stretches = context.searched.map(({ from, to }) => {
    const first = Math.ceil(from / SECOND_MS);
    return { first, count: Math.max(0, Math.ceil(to / SECOND_MS) - first) };
  });
  return {
    count: stretches.reduce((sum, { count }) => sum + count, 0),
    rows: Math.ceil(rowsOf(partitions) * shareOf(context.searched, partitions)),
    searched: 1,
    async find(numbers) {
      return numbers.map((number) => {
        let left = number;
        for (const { first, count } of stretches) {
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
