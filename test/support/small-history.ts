/**
 * A history of four proved days of two instruments of exchange A with a day that is not proved amid them, and an oracle of what a query
 * answers of it in plain JavaScript: what was loaded, filtered and cut as the contract says. Storage also holds rows that
 * nothing has proved, before, between and after the proved days.
 */
import { expect } from 'vitest';
import { compares } from './comparisons.ts';
import {
  alignedOf,
  claimOther,
  DATASET,
  insertUnproved,
  loadDays,
  loadThird,
  randomDay,
  type Trade,
} from './load-rows.ts';
import { type Answer, type Serving, startServing } from './serving.ts';
import { createMigratedEnv, type TestEnv } from './stack.ts';

export const NOW = Date.parse('2024-03-10T12:00:00Z');
export const iso = (ms: number) => new Date(ms).toISOString();
export const at = (text: string) => Date.parse(text);

// 3 March is not proved: an interior gap. The rest of storage is rows that must never come out.
export const DAYS = [
  randomDay('2024-03-01', 400, 1000, 1),
  randomDay('2024-03-02', 300, 1400, 2),
  randomDay('2024-03-04', 500, 2100, 3),
  randomDay('2024-03-05', 200, 2600, 4),
];
export const UNPROVED = [
  randomDay('2024-02-29', 300, 700, 5),
  randomDay('2024-03-03', 400, 1700, 6),
  randomDay('2024-03-06', 300, 2800, 7),
];
/** Another instrument beside it: the same days and ids, other trades. */
export const OTHER = 'ETHUSDT';
const again = (list: typeof DAYS, seed: number) =>
  list.map(({ day, trades }, index) => randomDay(day, trades.length, trades[0].trade_id, seed + index));
export const OTHER_DAYS = again(DAYS, 11);
const OTHER_UNPROVED = again(UNPROVED, 15);
export const RANGES = [
  { from: at('2024-03-01'), to: at('2024-03-03') },
  { from: at('2024-03-04'), to: at('2024-03-06') },
];
export const PROVED_FROM = RANGES[0].from;
export const PROVED_TO = RANGES[1].to;

export const TRADES = DAYS.flatMap((day) => day.trades);

export type Cell = number | string;
export type Row = Record<string, Cell>;

export const nativeRow = (trade: Trade): Row => ({ ...trade, datetime: iso(trade.timestamp) });
const storedOf = (days: typeof DAYS) => ({
  native: days.flatMap((day) => day.trades).map(nativeRow),
  /** Second, and the row without its validity, which depends on the window. */
  aligned: days.flatMap((day) => alignedOf(day.trades)),
});
const STORED = { '': storedOf(DAYS), [OTHER]: storedOf(OTHER_DAYS) };

export const NATIVE_FIELDS = {
  trade_id: 'int64',
  timestamp: 'int64',
  price: 'float64',
  quantity: 'float64',
  quote_quantity: 'float64',
  is_buyer_maker: 'bool01',
  is_best_match: 'bool01',
  datetime: 'timestamp_utc',
} as const;
const ALIGNED_FIELDS = {
  aligned_at_utc: 'timestamp_utc',
  open_price: 'float64',
  high_price: 'float64',
  low_price: 'float64',
  close_price: 'float64',
  quantity_sum: 'float64',
  quote_volume_sum: 'float64',
  trade_count: 'int64',
  valid_from_utc: 'timestamp_utc',
  valid_to_utc_exclusive: 'timestamp_utc',
} as const;
export type Mode = 'native' | 'aligned_1s';
export const FIELDS: Record<Mode, Record<string, string>> = { native: NATIVE_FIELDS, aligned_1s: ALIGNED_FIELDS };

export interface Clause {
  readonly field: string;
  readonly op: string;
  readonly value: unknown;
}
export interface Body {
  readonly sources: readonly string[];
  readonly instrument?: typeof OTHER;
  readonly mode?: Mode;
  readonly fields?: readonly string[];
  readonly time_range?: readonly [string, string];
  readonly n_rows?: number;
  readonly n_random?: number;
  readonly random_seed?: number;
  readonly filters?: readonly Clause[];
  readonly strict?: boolean;
}

/** All rows of a window, before filters, as the contract describes them. */
export function windowRows(body: Body): Row[] {
  const [from, to] = body.time_range?.map(at) ?? [PROVED_FROM, PROVED_TO];
  const { native, aligned } = STORED[body.instrument ?? ''];
  if (body.mode !== 'aligned_1s') return native.filter((row) => +row.timestamp >= from && +row.timestamp < to);
  return aligned.flatMap(({ aligned_at_ms, ...cells }, index) => {
    if (aligned_at_ms < from || aligned_at_ms >= to) return [];
    const range = RANGES.find((one) => aligned_at_ms >= one.from && aligned_at_ms < one.to)!;
    const next = aligned[index + 1]?.aligned_at_ms ?? Number.POSITIVE_INFINITY;
    const second = iso(aligned_at_ms);
    const validTo = iso(Math.min(next, range.to, to));
    return [{ aligned_at_utc: second, ...cells, valid_from_utc: second, valid_to_utc_exclusive: validTo }];
  });
}

function passes(row: Row, mode: Mode, { field, op, value }: Clause): boolean {
  const isTime = FIELDS[mode][field] === 'timestamp_utc';
  const cell = isTime ? at(row[field] as string) : (row[field] as number);
  // Times of the tests have at most milliseconds; what is finer is tested by hand below.
  const of = (one: unknown) => (isTime ? at(one as string) : (one as number));
  return compares(cell, op, value, of);
}

export function expected(body: Body): Row[] {
  const mode = body.mode ?? 'native';
  let rows = windowRows(body).filter((row) => (body.filters ?? []).every((clause) => passes(row, mode, clause)));
  if (body.n_rows !== undefined) rows = rows.slice(-body.n_rows);
  const names = body.fields ?? Object.keys(FIELDS[mode]);
  return rows.map((row) => Object.fromEntries(names.map((name) => [name, row[name]])));
}

export interface SmallHistory extends AsyncDisposable {
  readonly env: TestEnv;
  readonly serving: Serving;
  ask(body: Omit<Body, 'sources'>): Promise<Answer>;
  /** Asks, and compares with the oracle. */
  check(body: Omit<Body, 'sources'>): Promise<void>;
}

export async function serveSmallHistory(): Promise<SmallHistory> {
  const env = await createMigratedEnv();
  await loadDays(env.databaseUrl, DAYS, { rowsPerFrame: 60 });
  for (const day of UNPROVED) await insertUnproved(env.databaseUrl, day.trades);
  const other = await claimOther(env.databaseUrl, DATASET, OTHER);
  await loadDays(env.databaseUrl, OTHER_DAYS, { rowsPerFrame: 60, dataset: other });
  for (const day of OTHER_UNPROVED) await insertUnproved(env.databaseUrl, day.trades, other);
  await loadThird(env.databaseUrl, DAYS);
  const serving = await startServing({
    databaseUrl: env.databaseUrl,
    now: () => NOW,
    limits: { granuleLookupRows: 1 },
  });
  const ask = (body: Omit<Body, 'sources'>) => serving.query({ sources: [DATASET], ...body });
  return {
    env,
    serving,
    ask,
    async check(body) {
      const answer = await ask(body);
      const rows = expected({ sources: [DATASET], ...body });
      if (rows.length === 0) {
        expect([answer.status, answer.json.code]).toEqual([404, 'QUERY_NO_DATA']);
        return;
      }
      expect(answer.status, answer.text.slice(0, 500)).toBe(200);
      expect(answer.json.rows).toEqual(rows);
      expect(answer.json.row_count).toBe(rows.length);
    },
    async [Symbol.asyncDispose]() {
      await serving[Symbol.asyncDispose]();
      await env[Symbol.asyncDispose]();
    },
  };
}
