/**
 * Where klines come from. Klines that the projector keeps are read as they are stored, or added up to longer ones. Of a size that no
 * kept one divides, some columns are added up from aligned rows. Klines of time that has neither, and klines that a window or a gap
 * cuts, are computed from rows.
 */
import { DAY_MS, SECOND_MS } from '../../../shared/dates.ts';
import { clip, gapsBetween, joined, parseMultirange, type Range } from '../../../shared/ranges.ts';
import type { Mode } from '../../../shared/registry/definition.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { isWholeSize, KEPT_SIZES_MS, KLINE_TABLES } from '../../../shared/registry/kept-klines.ts';
import { KLINE_DATETIME } from '../../../shared/registry/trades.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { int2, int4, int8, Params } from '../../db/pg-messages.ts';
import type { LiveContext } from '../plan/context.ts';
import { fileDays } from '../plan/counted.ts';
import type { Part } from '../read-model.ts';
import type { AskedDays, FileDay } from '../snapshot/file-days.ts';
import { SECONDS_NATIVE } from './sums.ts';

export type KlineSource =
  /** Computed from rows. */
  | 'rows'
  /** Native ones, added up from aligned rows. */
  | 'seconds'
  /** Kept in the requested size, each within one partition. */
  | 'stored'
  /** Kept in the requested size, each made of two partitions. */
  | 'shared'
  /** Added up from kept klines of a shorter size. */
  | 'added';

/** Parts of whole buckets whose klines come from one source. */
export interface Segment {
  readonly source: KlineSource;
  readonly parts: readonly Part[];
}

interface SourceRange extends Range {
  readonly source: KlineSource;
}

/** The columns that no kept klines of a shorter size can be added up to. */
export const QUARTILE_COLUMNS: readonly string[] = ['median', 'iqr'];

/** Kept klines per statement: 70 days of minutes. */
const MAX_KEPT_KLINES = 100_000;
/** The time whose seconds one statement reads. */
const MAX_SECONDS_MS = 7 * DAY_MS;
/** The trades of C are ordered by day and id, and a statement tells at most 8,192 days apart. */
const MAX_KEPT_DAYS = 3660;

/** The size of the kept klines that klines of this size are or are added up from; undefined where there is none. */
export function keptSizeFor(dataset: DatasetDefinition, sizeMs: number): number | undefined {
  return KEPT_SIZES_MS.findLast((kept) => sizeMs % kept === 0 && isWholeSize(dataset, kept));
}

/** Whether aligned rows determine all columns that the request needs. */
const isOfSeconds = ({ dataset, mode, fields, filters }: ReadRequest): boolean =>
  mode === 'native' &&
  isWholeSize(dataset, SECOND_MS) &&
  [...fields, ...filters.map(({ field }) => field)].every(
    ({ name }) => name === KLINE_DATETIME || name in SECONDS_NATIVE,
  );

/** The size of what klines of this size are or are added up from: kept klines, or seconds. Undefined where there is none. */
export const sourceSizeOf = (request: ReadRequest, sizeMs: number): number | undefined =>
  keptSizeFor(request.dataset, sizeMs) ?? (isOfSeconds(request) ? SECOND_MS : undefined);

/** Whether two partitions can share a kept kline of this size. Only native ones are kept. */
const isSharedSize = (dataset: DatasetDefinition, mode: Mode, sizeMs: number) =>
  mode === 'native' && KEPT_SIZES_MS.includes(sizeMs) && !isWholeSize(dataset, sizeMs);

/** What is kept of the time that a read searches. */
export interface KeptTime {
  /** Times of partitions with kept klines, ascending and disjoint. They begin and end at multiples of the kept size. */
  readonly ranges: readonly Range[];
  /** Starts of the kept klines of the requested size that two proved partitions share, ascending. */
  readonly sharedStarts: readonly number[];
}

/** The sources of the klines of some parts. */
export class KlineSources {
  readonly #ranges: readonly SourceRange[];
  readonly #keptMs: number;
  readonly #needsQuartiles: boolean;

  constructor(
    parts: readonly Part[],
    kept: KeptTime,
    { sizeMs, keptMs, needsQuartiles }: { sizeMs: number; keptMs: number; needsQuartiles: boolean },
  ) {
    this.#keptMs = keptMs;
    this.#needsQuartiles = needsQuartiles;
    const bucketsOf = (ranges: readonly Range[]) =>
      joined(ranges.map(({ from, to }) => ({ from: floorTo(sizeMs, from), to: ceilTo(sizeMs, to) })));
    // Parts that touch are one run of time: no kline is cut where they meet.
    const runs = joined(parts);
    const source = keptMs === SECOND_MS ? 'seconds' : keptMs === sizeMs ? 'stored' : 'added';
    const all = bucketsOf(runs).map((range): SourceRange => ({ ...range, source }));
    const shared = sharedWithin(runs, kept.sharedStarts, sizeMs);
    const unkept = bucketsOf([...notKept(runs, kept.ranges, keptMs)]);
    this.#ranges = [...overlay([...overlay(all, unkept, 'rows')], shared, 'shared')];
  }

  /** The parts by the source of their klines, ascending. They must be parts of those given, cut where buckets begin. */
  cut(parts: readonly Part[]): Segment[] {
    const segments: { source: KlineSource; parts: Part[] }[] = [];
    let next = 0;
    for (const { from, to, source } of this.#ranges) {
      while (next < parts.length && parts[next].to <= from) next++;
      for (let index = next; index < parts.length && parts[index].from < to; index++) {
        const part = parts[index];
        const clipped = { ...part, from: Math.max(from, part.from), to: Math.min(to, part.to) };
        if (segments.at(-1)?.source === source) segments.at(-1)!.parts.push(clipped);
        else segments.push({ source, parts: [clipped] });
      }
    }
    return segments;
  }

  /** The source of the kline that begins at this time. */
  at(ms: number): KlineSource {
    let low = 0;
    let high = this.#ranges.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#ranges[middle].from <= ms) low = middle;
      else high = middle - 1;
    }
    return this.#ranges[low].source;
  }

  /** The time that one statement may read; undefined where it also reads rows, whose chunks limit it. */
  reachMs(source: KlineSource): number | undefined {
    if (source === 'rows' || (source === 'added' && this.#needsQuartiles)) return undefined;
    return source === 'seconds' ? MAX_SECONDS_MS : Math.min(MAX_KEPT_KLINES * this.#keptMs, MAX_KEPT_DAYS * DAY_MS);
  }
}

/** The ranges of the runs that kept klines do not cover: outside the ranges that are kept, and where a run cuts a kept kline. */
function* notKept(runs: readonly Range[], kept: readonly Range[], keptMs: number): Generator<Range> {
  let next = 0;
  for (const { from, to } of runs) {
    if (from % keptMs !== 0) yield { from, to: from + 1 };
    if (to % keptMs !== 0) yield { from: to - 1, to };
    while (next < kept.length && kept[next].to <= from) next++;
    let at = from;
    for (let index = next; index < kept.length && kept[index].from < to; index++) {
      if (at < kept[index].from) yield { from: at, to: kept[index].from };
      at = kept[index].to;
    }
    if (at < to) yield { from: at, to };
  }
}

/** The time of the shared klines that lie wholly in the runs: a window may cut the others. */
function sharedWithin(runs: readonly Range[], starts: readonly number[], sizeMs: number): Range[] {
  let next = 0;
  const within = starts.filter((start) => {
    while (next < runs.length && runs[next].to <= start) next++;
    return next < runs.length && runs[next].from <= start && start + sizeMs <= runs[next].to;
  });
  return joined(within.map((start) => ({ from: start, to: start + sizeMs })));
}

/** The ranges with another source where they overlap `over`. Both ascend. */
function* overlay(ranges: readonly SourceRange[], over: readonly Range[], source: KlineSource): Generator<SourceRange> {
  let next = 0;
  for (const range of ranges) {
    let at = range.from;
    while (next < over.length && over[next].to <= at) next++;
    for (let index = next; index < over.length && over[index].from < range.to; index++) {
      const from = Math.max(at, over[index].from);
      const to = Math.min(range.to, over[index].to);
      if (at < from) yield { ...range, from: at, to: from };
      yield { from, to, source };
      at = to;
    }
    if (at < range.to) yield { ...range, from: at };
  }
}

/** The sources of the klines of the parts in the read's snapshot; undefined where all come from rows. */
export async function klineSources(
  context: LiveContext,
  sizeMs: number,
  parts: readonly Part[],
): Promise<KlineSources | undefined> {
  const { dataset, mode, fields, filters } = context.request;
  const keptMs = sourceSizeOf(context.request, sizeMs);
  if (keptMs === undefined || parts.length === 0) return undefined;
  const window = { from: floorTo(sizeMs, parts[0].from), to: ceilTo(sizeMs, parts[parts.length - 1].to) };
  const days = await fileDays(context, { from: parts[0].from, to: parts[parts.length - 1].to });
  const ranges = keptMs === SECOND_MS ? exactSeconds(days) : joined(days.filter(({ isKept }) => isKept));
  const sharedStarts = isSharedSize(dataset, mode, sizeMs) ? await sharedStartsOf(context, sizeMs, window) : [];
  if (ranges.length === 0 && sharedStarts.length === 0) return undefined;
  const names = [...fields, ...filters.map((filter) => filter.field)].map(({ name }) => name);
  const needsQuartiles = names.some((name) => QUARTILE_COLUMNS.includes(name));
  return new KlineSources(parts, { ranges, sharedStarts }, { sizeMs, keptMs, needsQuartiles });
}

/** Of a history of years, the catalog need not be read to its start: most buckets hold trades. */
const TAIL_MS = 7 * DAY_MS;
/** Beyond all times. */
const FAR_MS = 8.64e15;

/** The time up to the end of what is proved that mostly holds that many buckets with trades. */
export const newestMs = (sizeMs: number, buckets: number): number => Math.min(2 * buckets * sizeMs + TAIL_MS, FAR_MS);

/** The file days that a read of klines asks for, as far as its request tells; undefined if all its klines come from rows. */
export function askedDays(request: ReadRequest): AskedDays | undefined {
  const { klineMs, window, filters } = request;
  if (klineMs === undefined || sourceSizeOf(request, klineMs) === undefined) return undefined;
  if (window.kind === 'latest' && filters.length === 0) {
    return { newestMs: newestMs(klineMs, window.rows) + klineMs + DAY_MS };
  }
  const { fromMs = -FAR_MS, toMs = FAR_MS } = window.kind === 'range' ? window : {};
  return { from: fromMs, to: toMs };
}

/** Times of file days whose seconds add up to native klines: within each day, and from one to the next. */
function exactSeconds(days: readonly FileDay[]): Range[] {
  const known = days.filter((day) => day.isKept && day.inexactSeconds !== null);
  const inexact = known.flatMap((day) => parseMultirange(day.inexactSeconds!));
  let endId = Number.NEGATIVE_INFINITY;
  known.forEach(({ from, ids }, index) => {
    if (!ids) return;
    // An exchange may list an instrument again with ids that it had.
    if (ids.from < endId) inexact.push({ from: known[index - 1].to - 1, to: from + 1 });
    endId = Math.max(endId, ids.to);
  });
  const between = joined(inexact);
  return joined(known).flatMap(({ from, to }) => {
    const cut = [{ from, to: from }, ...clip(between, from, to), { from: to, to }];
    return gapsBetween(cut).filter((range) => range.from < range.to);
  });
}

/** The starts of the shared klines in the window whose two partitions are proved in the revisions that they were made of. */
async function sharedStartsOf(
  { session, request }: LiveContext,
  sizeMs: number,
  { from, to }: Range,
): Promise<number[]> {
  const params = new Params();
  const isProved = (which: string) => `exists (select from partitions p where p.dataset_id = k.dataset_id
    and p.partition_key = k.${which}_partition and p.revision = k.${which}_revision and p.state = 'proved')`;
  const starts = await session.rows(
    `select k.start_ms from ${KLINE_TABLES.shared} k where k.dataset_id = ${params.add(int2(request.dataset.number))}
       and k.size_s = ${params.add(int4(sizeMs / 1000))} and k.start_ms >= ${params.add(int8(from))}
       and k.start_ms < ${params.add(int8(to))} and ${isProved('first')} and ${isProved('second')} order by 1`,
    params,
  );
  return starts.map(([ms]) => Number(ms));
}

export const floorTo = (size: number, ms: number): number => Math.floor(ms / size) * size;
export const ceilTo = (size: number, ms: number): number => Math.ceil(ms / size) * size;
