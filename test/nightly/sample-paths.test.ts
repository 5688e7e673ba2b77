/**
 * Which way a filtered sample of file days goes, and that each way gives what a plain reading of the rows says. Statements
 * are noted on their way to a real database: a scan is told by the hashes it takes.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseQuery } from '../../serving/contract/query.ts';
import type { PgConnection } from '../../serving/db/pg-connection.ts';
import type { Params } from '../../serving/db/pg-messages.ts';
import { PgPool, poolOptions } from '../../serving/db/pool.ts';
import { planRead } from '../../serving/read/execute/plan-read.ts';
import { contextOf } from '../../serving/read/plan/context.ts';
import { CoverageProbe, Session } from '../../serving/read/snapshot/session.ts';
import type { Json } from '../../shared/strict-json.ts';
import { alignedOf, DAY_MS, loadDays, randomDay, type Trade } from '../support/load-rows.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const DATASET = 'exchange_a_spot_trades';
const ROWS = 12_000;
const DAYS = ['2024-05-01', '2024-05-02', '2024-05-03', '2024-05-05'];

let env: TestEnv;
let serving: Serving;
let pool: PgPool;
let trades: readonly Trade[];
/** Seconds that hold a row, with the end of their validity. */
let seconds: readonly { readonly ms: number; readonly validTo: number; readonly count: number }[];

beforeAll(async () => {
  env = await createMigratedEnv();
  const days = DAYS.map((day, index) => randomDay(day, ROWS, 1 + index * ROWS, index));
  trades = days.flatMap((day) => day.trades);
  const ends = DAYS.map(
    (day) => Date.parse(day) + (day < '2024-05-04' ? Date.parse('2024-05-04') - Date.parse(day) : DAY_MS),
  );
  seconds = days.flatMap((_, index) => {
    const next = alignedOf(days[index + 1]?.trades ?? []);
    const own = alignedOf(days[index].trades);
    return own.map((row, place) => {
      const following = own[place + 1] ?? next[0];
      const validTo = Math.min(following?.aligned_at_ms ?? ends[index], ends[index]);
      return { ms: row.aligned_at_ms, validTo, count: row.trade_count };
    });
  });
  await loadDays(env.databaseUrl, days, { rowsPerFrame: 900 });
  serving = await startServing({ databaseUrl: env.databaseUrl });
  pool = new PgPool(poolOptions(env.databaseUrl));
});
afterAll(async () => {
  await pool[Symbol.asyncDispose]();
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

interface Filter {
  readonly field: string;
  readonly op: string;
  readonly value: Json;
}

interface Asked {
  readonly mode: 'native' | 'aligned_1s';
  readonly n_random: number;
  readonly random_seed: number;
  readonly filters: readonly Filter[];
}

/** A session that keeps the texts of what it asks. */
class NotedSession extends Session {
  readonly texts: string[] = [];

  override async rows(text: string, params?: Params) {
    this.texts.push(text);
    return await super.rows(text, params);
  }
}

async function isScanned(asked: Asked): Promise<boolean> {
  const parsed = parseQuery({ sources: [DATASET], ...asked } as unknown as Json);
  if (!('value' in parsed)) throw new Error(JSON.stringify(parsed.faults));
  const request = parsed.value.read;
  const { connection }: { connection: PgConnection } = await pool.acquire();
  const session = new NotedSession(connection);
  const look = new CoverageProbe(request);
  await session.begin(look);
  const plan = await planRead({ ...contextOf(request, look.snapshot()), session });
  const scanned = session.texts.some((text) => text.includes('hash'));
  expect(plan.expectedRows).toBe(scanned ? undefined : asked.n_random);
  await session.commit();
  pool.release(connection);
  return scanned;
}

/** The places of the drawn rows among those that pass. */
async function placesOf(asked: Asked, passing: readonly (string | number)[]): Promise<number[]> {
  const key = asked.mode === 'native' ? 'trade_id' : 'aligned_at_utc';
  const { status, json } = await serving.query({ sources: [DATASET], fields: [key], ...asked });
  expect(status, JSON.stringify(json)).toBe(200);
  const place = new Map(passing.map((row, index) => [row, index]));
  return json.rows.map((row: Record<string, string | number>) => place.get(row[key]) ?? -1);
}

const iso = (ms: number) => new Date(ms).toISOString();
const DAY_3 = Date.parse('2024-05-03');
const DAY_3_EVENING = Date.parse('2024-05-03T20:00:00Z');
const NOON_2 = Date.parse('2024-05-02T12:00:00Z');
/** They leave more than one second in twenty with a row, which is what draws are kept up for. */
const NOON_FIRST = Date.parse('2024-05-01T12:00:00Z');
const NOON_LAST = Date.parse('2024-05-05T12:00:00Z');

interface Case extends Omit<Asked, 'random_seed'> {
  readonly name: string;
  readonly scanned: boolean;
  /** Fewer where each takes thousands of draws. */
  readonly draws?: number;
  readonly passing: () => readonly (string | number)[];
}

const tradesThat = (test: (trade: Trade) => boolean) => () => trades.filter(test).map((trade) => trade.trade_id);
const secondsThat = (test: (second: (typeof seconds)[number]) => boolean) => () =>
  seconds.filter(test).map(({ ms }) => iso(ms));
const by = (field: string, op: string, value: Json): Filter => ({ field, op, value });

const CASES: readonly Case[] = [
  {
    name: 'half of the trades',
    mode: 'native',
    n_random: 20,
    filters: [by('is_buyer_maker', 'eq', 1)],
    scanned: false,
    passing: tradesThat((trade) => trade.is_buyer_maker === 1),
  },
  {
    name: 'half of the trades, so many that a scan is as good',
    mode: 'native',
    n_random: 100,
    filters: [by('is_buyer_maker', 'eq', 1)],
    scanned: true,
    passing: tradesThat((trade) => trade.is_buyer_maker === 1),
  },
  {
    name: 'half of the trades of most of a day: drawn from that day alone',
    mode: 'native',
    n_random: 20,
    filters: [by('is_buyer_maker', 'eq', 1), by('timestamp', 'gte', DAY_3), by('timestamp', 'lt', DAY_3_EVENING)],
    scanned: false,
    passing: tradesThat(
      ({ is_buyer_maker, timestamp }) => is_buyer_maker === 1 && timestamp >= DAY_3 && timestamp < DAY_3_EVENING,
    ),
  },
  {
    name: 'an hour',
    mode: 'native',
    n_random: 20,
    filters: [by('timestamp', 'gte', NOON_2), by('timestamp', 'lt', NOON_2 + 3_600_000)],
    scanned: true,
    passing: tradesThat(({ timestamp }) => timestamp >= NOON_2 && timestamp < NOON_2 + 3_600_000),
  },
  {
    name: 'from noon of a day on',
    mode: 'native',
    n_random: 20,
    filters: [by('timestamp', 'gte', NOON_2)],
    scanned: false,
    passing: tradesThat(({ timestamp }) => timestamp >= NOON_2),
  },
  {
    name: 'seconds of one trade',
    mode: 'aligned_1s',
    n_random: 20,
    filters: [by('trade_count', 'eq', 1)],
    scanned: false,
    passing: secondsThat(({ count }) => count === 1),
  },
  {
    name: 'seconds of several trades: nearly none of the seconds',
    mode: 'aligned_1s',
    n_random: 45,
    filters: [by('trade_count', 'gt', 6)],
    scanned: true,
    draws: 3,
    passing: secondsThat(({ count }) => count > 6),
  },
  {
    name: 'seconds from noon of a day on',
    mode: 'aligned_1s',
    n_random: 20,
    filters: [by('aligned_at_utc', 'gte', iso(NOON_2))],
    scanned: false,
    passing: secondsThat(({ ms }) => ms >= NOON_2),
  },
  {
    name: 'seconds by the end of their validity, which the next row tells',
    mode: 'aligned_1s',
    n_random: 20,
    filters: [by('valid_to_utc_exclusive', 'lte', iso(NOON_LAST))],
    scanned: false,
    draws: 8,
    passing: secondsThat(({ validTo }) => validTo <= NOON_LAST),
  },
  {
    name: 'seconds valid beyond a moment: not those that another row ends',
    mode: 'aligned_1s',
    n_random: 20,
    filters: [by('valid_to_utc_exclusive', 'gt', iso(NOON_FIRST))],
    scanned: false,
    draws: 8,
    passing: secondsThat(({ validTo }) => validTo > NOON_FIRST),
  },
];

describe.each(CASES)('$mode: $name', ({ mode, n_random, filters, scanned, draws = 15, passing }) => {
  test(`is ${scanned ? 'scanned' : 'drawn'}, uniform, and the same again with the seed`, async () => {
    const rows = passing();
    expect(rows.length).toBeGreaterThan(n_random);
    const asked = { mode, n_random, filters };
    expect(await isScanned({ ...asked, random_seed: 1 })).toBe(scanned);
    const classes = 20;
    const counts = new Array<number>(classes).fill(0);
    const samples = new Set<string>();
    for (let random_seed = 1; random_seed <= draws; random_seed++) {
      const places = await placesOf({ ...asked, random_seed }, rows);
      expect(places.length).toBe(n_random);
      expect(places[0]).toBeGreaterThanOrEqual(0);
      expect(places).toEqual([...new Set(places)].sort((a, b) => a - b));
      for (const place of places) counts[Math.floor((place * classes) / rows.length)]++;
      samples.add(places.join());
    }
    expect(samples.size).toBe(draws);
    samples.add((await placesOf({ ...asked, random_seed: draws }, rows)).join());
    expect(samples.size).toBe(draws);
    // Classes may differ by a row where rows do not divide evenly.
    const sizes = new Array<number>(classes).fill(0);
    for (let place = 0; place < rows.length; place++) sizes[Math.floor((place * classes) / rows.length)]++;
    const chi = counts.reduce((sum, count, index) => {
      const mean = (draws * n_random * sizes[index]) / rows.length;
      return sum + (count - mean) ** 2 / mean;
    }, 0);
    // 19 degrees of freedom: 99.99 % of samples lie below 52. Seeds are fixed.
    expect(chi).toBeLessThan(52);
  });
});
