/** Plans the statements that answer a request for klines. A window selects time or klines, never the rows they aggregate. */
import { KLINE_DATETIME } from '../../../shared/registry/trades.ts';
import type { Statement } from '../../db/pg-messages.ts';
import { int2, Params } from '../../db/pg-messages.ts';
import { boundsOfFilters, type CountedStatement, type LiveContext, type ReadPlan } from '../plan/context.ts';
import { countWithin, wholeFileDays } from '../plan/counted.ts';
import { findStart } from '../plan/latest.ts';
import type { Part } from '../read-model.ts';
import { Prng } from '../sampling/draw.ts';
import { sampleByHash, selectEach } from '../sampling/native.ts';
import { boundsOf, gapsSince, gapsWithin, within } from '../snapshot/proved-runs.ts';
import { KlineRelation } from './relation.ts';
import {
  bucketSlice,
  countedKlineSlices,
  type Grid,
  type KlineSlice,
  klineSlices,
  klineSlicesBackward,
} from './slices.ts';
import { ceilTo, floorTo, klineSources, newestMs } from './sources.ts';

interface KlineContext extends LiveContext {
  readonly klines: KlineRelation;
  readonly grid: Grid;
}

/** All klines of the parts, checked against the row counts of the whole file days that they aggregate. */
async function klinesInOrder(
  context: KlineContext,
  parts: readonly Part[],
): Promise<Pick<ReadPlan, 'statements' | 'count'>> {
  const partitions = await wholeFileDays(context, parts);
  const slices = countedKlineSlices(parts, partitions, context.grid);
  // The read checks the sum once more: when a bucket crosses days, no single slice knows the count of all rows.
  return { statements: statementsOf(context, slices), count: countWithin(partitions, parts) };
}

function* statementsOf({ klines }: KlineContext, slices: Iterable<KlineSlice>): Generator<CountedStatement> {
  for (const slice of slices) {
    const params = new Params();
    const { count } = slice;
    yield { text: klines.select(slice, params), params: params.list, prepared: klines.isRecurring(slice), count };
  }
}

/** Limits the tries to about a second. */
const MAX_TRIES = 4000;
/** Buckets queried in one statement. */
const BATCH = 64;
/** A scan reads about this many rows in the time of one try, so a short history is scanned at once. */
const ROWS_A_TRY = 1000;

/**
 * A uniform sample of klines. The index does not tell which buckets hold rows, so the sampler tries random buckets and keeps
 * those that yield a kline that passes the filters. Beyond a budget of tries it scans the history instead.
 */
async function sampleKlines(
  context: KlineContext,
  wanted: number,
  seed: number,
): Promise<Pick<ReadPlan, 'statements' | 'count'>> {
  const { session, searched, klines, grid, request } = context;
  const buckets = new Buckets(searched, grid.sizeMs);
  if (wanted >= buckets.count) return await klinesInOrder(context, searched);
  const tries = Math.min(MAX_TRIES, Math.max(BATCH, Math.floor((await countRows(context)) / ROWS_A_TRY)));
  const accepted = wanted > tries ? undefined : await tryBuckets(context, buckets, { wanted, tries }, new Prng(seed));
  if (accepted) return { statements: byBatch(context, accepted) };
  const slices = () => klineSlices(searched, grid);
  const found = await sampleByHash({ session, rows: klines, slices, seed }, wanted);
  if ('sample' in found) return { statements: found.sample };
  if (request.filters.length === 0) return await klinesInOrder(context, searched);
  return { statements: selectEach(klines, found.all) };
}

/** The number of proved rows that klines aggregate. */
async function countRows({ session, request }: KlineContext): Promise<number> {
  const params = new Params();
  const [[count]] = await session.rows(
    `select coalesce(sum(${request.mode === 'native' ? 'rows' : 'aligned_rows'}), 0) from partitions
     where dataset_id = ${params.add(int2(request.dataset.number))} and state = 'proved'`,
    params,
  );
  return Number(count);
}

/** Starts of the accepted buckets, ascending; undefined when the tries did not find enough. */
async function tryBuckets(
  context: KlineContext,
  buckets: Buckets,
  { wanted, tries }: { readonly wanted: number; readonly tries: number },
  prng: Prng,
): Promise<number[] | undefined> {
  const tried = new Set<number>();
  const accepted: number[] = [];
  while (accepted.length < wanted && tried.size < buckets.count) {
    // At this rate the remaining tries would not find as many klines as wanted.
    const isInVain = wanted * (tried.size + 1) > tries * (accepted.length + 1);
    if (tried.size >= tries || (tried.size > 0 && isInVain)) return undefined;
    const share = (accepted.length + 1) / (tried.size + 1);
    const estimated = Math.ceil(((wanted - accepted.length) / share) * 1.2) + 3;
    const count = Math.min(estimated, buckets.count - tried.size, tries - tried.size);
    const drawn: number[] = [];
    while (drawn.length < count) {
      const number = prng.below(buckets.count);
      if (tried.has(number)) continue;
      tried.add(number);
      drawn.push(buckets.startOf(number));
    }
    const present = await makingKlines(context, drawn);
    accepted.push(...drawn.filter((ms) => present.has(ms)).slice(0, wanted - accepted.length));
  }
  return accepted.sort((a, b) => a - b);
}

/** The buckets that hold a row or, with filters, yield a kline that passes them. */
async function makingKlines(context: KlineContext, starts: readonly number[]): Promise<ReadonlySet<number>> {
  const { session, klines, request, searched, grid } = context;
  const found = new Set<number>();
  for (let at = 0; at < starts.length; at += BATCH) {
    const params = new Params();
    const selects = starts.slice(at, at + BATCH).map((ms) => {
      const slice = bucketSlice(searched, grid, ms);
      // A row is found at once; to check that a kline exists would take all rows of the bucket.
      if (request.filters.length === 0) return `select ${ms}::int8 where ${klines.exists(slice, params)}`;
      return `select ${klines.timeMs} ${klines.from(slice, params)}`;
    });
    for (const [ms] of await session.rows(selects.join(' union all '), params)) found.add(Number(ms));
  }
  return found;
}

function* byBatch({ klines, searched, grid }: KlineContext, starts: readonly number[]): Generator<Statement> {
  for (let at = 0; at < starts.length; at += BATCH) {
    const slices: KlineSlice[] = starts.slice(at, at + BATCH).map((ms) => bucketSlice(searched, grid, ms));
    const params = new Params();
    yield { text: klines.selectAll(slices, params), params: params.list };
  }
}

/** The buckets that overlap proved parts, numbered from 0. */
class Buckets {
  readonly count: number;
  readonly #sizeMs: number;
  /** Runs of adjacent buckets, each with the number of its first bucket. */
  readonly #runs: { readonly from: number; readonly first: number }[] = [];

  constructor(parts: readonly Part[], sizeMs: number) {
    let count = 0;
    let end = Number.NEGATIVE_INFINITY;
    for (const part of parts) {
      // The part's first bucket may be the last bucket of the part before it.
      const from = Math.max(end, floorTo(sizeMs, part.from));
      end = ceilTo(sizeMs, part.to);
      this.#runs.push({ from, first: count });
      count += (end - from) / sizeMs;
    }
    this.count = count;
    this.#sizeMs = sizeMs;
  }

  startOf(number: number): number {
    let low = 0;
    let high = this.#runs.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#runs[middle].first <= number) low = middle;
      else high = middle - 1;
    }
    const { from, first } = this.#runs[low];
    return from + (number - first) * this.#sizeMs;
  }
}

export async function planKlines(live: LiveContext, sizeMs: number): Promise<ReadPlan> {
  const { request, coverage, parts } = live;
  const klines = new KlineRelation(live, sizeMs);
  // A filter on a kline's start time selects whole buckets.
  const stamps = boundsOfFilters(request, (field) => field.name === KLINE_DATETIME);
  const searched = within(parts, { from: ceilTo(sizeMs, stamps.from), to: ceilTo(sizeMs, stamps.to) });
  const over = async (some: readonly Part[]): Promise<KlineContext> => {
    const sources = await klineSources(live, sizeMs, some);
    return { ...live, searched: some, klines, grid: { sizeMs, chunkMs: klines.chunkMs, sources } };
  };
  const { window } = request;
  if (window.kind === 'latest') {
    const tail = request.filters.length > 0 ? searched : newestOf(searched, sizeMs, window.rows);
    const plan = await planLatest(await over(tail), window.rows);
    return plan.since || tail === searched ? plan : await planLatest(await over(searched), window.rows);
  }
  const context = await over(searched);
  const gaps = gapsWithin(coverage, boundsOf(coverage, window));
  const klinesOfWindow =
    window.kind === 'random'
      ? await sampleKlines(context, window.rows, window.seed)
      : await klinesInOrder(context, context.searched);
  return { gaps, parts, ...klinesOfWindow };
}

/** The parts that mostly hold the newest klines. */
function newestOf(parts: readonly Part[], sizeMs: number, buckets: number): readonly Part[] {
  const end = parts.at(-1)?.to ?? 0;
  const from = floorTo(sizeMs, end - newestMs(sizeMs, buckets));
  return from <= (parts[0]?.from ?? 0) ? parts : within(parts, { from, to: end });
}

async function planLatest(context: KlineContext, wanted: number): Promise<ReadPlan> {
  const { parts, searched, klines, grid, session, coverage, request } = context;
  const { start, held } = await findStart(session, klines, klineSlicesBackward(searched, grid, wanted), wanted);
  const partsWithRows = request.filters.length > 0 ? held.toReversed().flatMap((slice) => slice.parts) : searched;
  const sinceStart = { from: start?.ms ?? Number.NEGATIVE_INFINITY, to: Number.POSITIVE_INFINITY };
  return {
    gaps: gapsSince(coverage, sinceStart.from),
    since: start && { ms: start.ms, key: [] },
    parts: within(parts, sinceStart),
    ...(await klinesInOrder(context, within(partsWithRows, sinceStart))),
  };
}
