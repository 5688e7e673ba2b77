/** What is stored and who may have it, as a test set it up; and what an answer must be, given that. */

import { compares } from '../comparisons.ts';
import { alignedOf, DAY_MS, type DayOfTrades } from '../load-rows.ts';
import type { Asked, Clause } from './body.ts';
import { type Columns, type Dataset, EXCHANGES } from './fields.ts';
import { parseTime } from './time.ts';

/** A row by column; times as epoch ms. */
export type Row = ReadonlyMap<string, number | string>;

interface Range {
  readonly from: number;
  readonly to: number;
}

/** Proved rows of one dataset, in order. */
export interface Stored {
  readonly coverage: readonly Range[];
  readonly native: readonly Row[];
  /** Without the ends of validity: those depend on the window. */
  readonly aligned: readonly Row[];
}

export type Verdict =
  | { readonly kind: 'served' }
  | { readonly kind: 'refused'; readonly code: string; readonly status?: number }
  /** Served to who sends this password. */
  | { readonly kind: 'byok'; readonly password: string };

export interface World {
  /** Datasets whose rows are known here; the others may have some all the same, of which nothing is foreseen. */
  readonly stored: ReadonlyMap<Dataset, Stored>;
  verdict(dataset: Dataset): Verdict;
  /** Whether as-of is older than the setting says. */
  isStale(asOfMs: number): boolean;
}

export interface Refusal {
  readonly status: number;
  readonly code: string;
}

export type Expected =
  | Refusal
  | {
      readonly status: 200;
      /** Rows that may be in the answer, in order, and how many of them are; undefined where that is not foreseen. */
      readonly among: readonly Row[] | undefined;
      readonly count: number | undefined;
      /** Which warnings there must be, and which there may be; undefined: any. */
      readonly warnings: { readonly certain: readonly string[]; readonly possible: readonly string[] | undefined };
    };

/** Days of exchange A as `loadDays` stores them. */
export function storedTrades(days: readonly DayOfTrades[]): Stored {
  const trades = days.flatMap((day) => day.trades);
  const coverage: Range[] = [];
  for (const { day } of days) {
    const from = Date.parse(`${day}T00:00:00Z`);
    const last = coverage.at(-1);
    if (last?.to === from) coverage[coverage.length - 1] = { from: last.from, to: from + DAY_MS };
    else coverage.push({ from, to: from + DAY_MS });
  }
  return {
    coverage,
    native: trades
      .map((trade): Row => new Map<string, number>([...Object.entries(trade), ['datetime', trade.timestamp]]))
      .toSorted((a, b) => num(a, 'timestamp') - num(b, 'timestamp') || num(a, 'trade_id') - num(b, 'trade_id')),
    aligned: alignedOf(trades)
      .map(
        ({ aligned_at_ms, ...rest }): Row =>
          new Map([...Object.entries(rest), ['aligned_at_utc', aligned_at_ms], ['valid_from_utc', aligned_at_ms]]),
      )
      .toSorted((a, b) => num(a, 'aligned_at_utc') - num(b, 'aligned_at_utc')),
  };
}

const num = (row: Row, name: string): number => row.get(name) as number;

/**
 * What a valid request may be answered with: mostly one thing, several where the contract leaves it open. `family` is what
 * the route's own codes begin with.
 */
export function expectedOf(world: World, asked: Asked, token: string | undefined, family: string): Expected[] {
  const { dataset, strict } = asked;
  const verdict = world.verdict(dataset);
  if (verdict.kind === 'refused') return [{ status: verdict.status ?? 409, code: verdict.code }];
  if (verdict.kind === 'byok' && !token?.trim()) return [{ status: 409, code: 'QUERY_RIGHTS_BYOK_REQUIRED' }];
  const { certain, possible } = warningsOf(world, asked);
  const strictRefusal = { status: 409, code: 'STRICT_MODE_WARNING_FAILURE' };
  const mutable = asked.window.kind === 'latest' || asked.window.kind === 'random';
  if (strict && mutable) return [strictRefusal];
  if (verdict.kind === 'byok' && token !== verdict.password)
    return [{ status: 409, code: 'QUERY_RIGHTS_BYOK_REFUSED' }];
  if (strict && certain.length > 0) return [strictRefusal];
  const open = strict && possible?.length !== 0 ? [strictRefusal] : [];
  const noRows = { status: 404, code: `${family}_NO_DATA` };
  const served = (rows: readonly Row[] | undefined, count: number | undefined): Expected => ({
    status: 200,
    among: rows,
    count,
    warnings: { certain, possible },
  });
  const stored = world.stored.get(dataset);
  const among = stored && (asked.klineMs === undefined ? matching(stored, asked) : klinesOf(stored, asked));
  if (!among) return [...open, noRows, served(undefined, undefined)];
  if (among.length === 0) return [...open, noRows];
  const { window } = asked;
  const count =
    window.kind === 'latest' || window.kind === 'random' ? Math.min(window.rows, among.length) : among.length;
  return [...open, served(window.kind === 'latest' ? among.slice(-count) : among, count)];
}

function warningsOf(world: World, { dataset, mode, window, warnsOfSilences }: Asked) {
  const stored = world.stored.get(dataset);
  const certain: string[] = [];
  if (window.kind === 'latest') certain.push('WINDOW_LATEST_ROWS_MUTABLE');
  if (window.kind === 'random') certain.push('WINDOW_RANDOM_SAMPLE');
  if (!stored) return { certain, possible: undefined };
  const possible = ['WINDOW_EXCEEDS_PROVED_COVERAGE'];
  const asOf = stored.coverage.at(-1)!.to;
  const [from, to] = window.kind === 'range' ? [window.fromMs, window.toMs] : [undefined, undefined];
  if (mode === 'aligned_1s' && (to === undefined || to > asOf) && world.isStale(asOf))
    certain.push('ALIGNED_FRESHNESS_STALE');
  if (window.kind === 'range' || window.kind === 'history') {
    const [start, end] = [from ?? stored.coverage[0].from, to ?? asOf];
    const proved = stored.coverage.reduce(
      (sum, range) => sum + Math.max(0, Math.min(end, range.to) - Math.max(start, range.from)),
      0,
    );
    possible.length = 0;
    // A window that is open to one side and lies wholly outside to the other: nothing is said about it.
    if (start < end && proved < end - start) certain.push('WINDOW_EXCEEDS_PROVED_COVERAGE');
    else if (start >= end) possible.push('WINDOW_EXCEEDS_PROVED_COVERAGE');
  }
  if (warnsOfSilences && EXCHANGES.includes(dataset)) possible.push('SILENCE_WITHIN_WINDOW');
  return { certain, possible };
}

function inWindow({ window }: Asked, ms: number): boolean {
  if (window.kind !== 'range') return true;
  return ms >= (window.fromMs ?? Number.NEGATIVE_INFINITY) && ms < (window.toMs ?? Number.POSITIVE_INFINITY);
}

function matching(stored: Stored, asked: Asked): Row[] {
  if (asked.mode === 'native') {
    return stored.native.filter(
      (row) => inWindow(asked, num(row, 'timestamp')) && passes(row, asked.filters, asked.columns),
    );
  }
  return withValidity(stored, asked).filter(
    (row) => inWindow(asked, num(row, 'aligned_at_utc')) && passes(row, asked.filters, asked.columns),
  );
}

/** A row is valid until the next of its series, until a gap begins, or until what is proved or asked for ends. */
function withValidity({ aligned, coverage }: Stored, { window }: Asked): Row[] {
  const asOf = coverage.at(-1)!.to;
  const end = window.kind === 'range' ? (window.toMs ?? asOf) : asOf;
  return aligned.map((row, index) => {
    const at = num(row, 'aligned_at_utc');
    const range = coverage.find(({ from, to }) => at >= from && at < to)!;
    const next = aligned[index + 1];
    const following =
      next && num(next, 'aligned_at_utc') < range.to ? num(next, 'aligned_at_utc') : Number.POSITIVE_INFINITY;
    const proved = range.to === asOf ? Math.max(asOf, at + 1000) : range.to;
    return new Map([...row, ['valid_to_utc_exclusive', Math.min(following, proved, end)]]);
  });
}

/** Columns of klines that are worked out here; of a filter on another one the outcome is not foreseen. */
const FORESEEN = ['datetime', 'open', 'high', 'low', 'close', 'no_of_trades'];

function klinesOf(stored: Stored, asked: Asked): Row[] | undefined {
  const native = asked.mode === 'native';
  const time = native ? 'timestamp' : 'aligned_at_utc';
  const rows = (native ? stored.native : stored.aligned).filter((row) => inWindow(asked, num(row, time)));
  const size = asked.klineMs!;
  const buckets = Map.groupBy(rows, (row) => Math.floor(num(row, time) / size) * size);
  const klines = [...buckets].map(([start, group]): Row => {
    const ordered = native ? group.toSorted((a, b) => num(a, 'trade_id') - num(b, 'trade_id')) : group;
    const column = (name: string, aligned: string) => ordered.map((row) => num(row, native ? name : aligned));
    return new Map([
      ['datetime', start],
      ['open', column('price', 'open_price')[0]],
      ['high', Math.max(...column('price', 'high_price'))],
      ['low', Math.min(...column('price', 'low_price'))],
      ['close', column('price', 'close_price').at(-1)!],
      ['no_of_trades', native ? group.length : column('', 'trade_count').reduce((sum, count) => sum + count, 0)],
    ]);
  });
  if (klines.length === 0) return [];
  if (!asked.filters.every(({ field }) => FORESEEN.includes(field))) return undefined;
  return klines.filter((row) => passes(row, asked.filters, asked.columns));
}

function passes(row: Row, filters: readonly Clause[], columns: Columns): boolean {
  return filters.every(({ field, op, value }) => {
    const isTime = columns.get(field) === 'timestamp_utc';
    // Times may be finer than rows: compared as what they are, in units of 1e-18 s.
    const cell = isTime ? BigInt(row.get(field)!) * 10n ** 15n : row.get(field)!;
    const read = (given: unknown) => (isTime ? parseTime(given as string)!.ns : (given as number | string));
    return compares(cell, op, value, read);
  });
}
