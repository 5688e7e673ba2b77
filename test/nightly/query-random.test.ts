/** Random samples of POST /v1/raw/query: of the rows there are, each as likely, the same for the same seed. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { alignedOf, DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import { startServing } from '../support/serving.ts';
import {
  at,
  type Body,
  expected,
  iso,
  type Row,
  type SmallHistory,
  serveSmallHistory,
  TRADES,
} from '../support/small-history.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

let history: SmallHistory;
let env: TestEnv;
const ask = (body: Omit<Body, 'sources'>) => history.ask(body);

beforeAll(async () => {
  history = await serveSmallHistory();
  ({ env } = history);
});
afterAll(() => history[Symbol.asyncDispose]());

describe('random samples', () => {
  const cases = {
    'native, by the frames index': {},
    'native, filtered': { filters: [{ field: 'is_buyer_maker', op: 'eq', value: 1 }] },
    'aligned, by seconds': { mode: 'aligned_1s' },
    'aligned, filtered': { mode: 'aligned_1s', filters: [{ field: 'trade_count', op: 'gte', value: 1 }] },
  } as const;

  test.each(Object.entries(cases))('%s: distinct proved rows in order, replayed by the seed', async (_, body) => {
    const all = expected({ sources: [DATASET], ...body });
    const texts = all.map((row) => JSON.stringify(row));
    for (const n_random of [1, 2, 7, 100, all.length - 1, all.length, all.length + 5, 5_000_000]) {
      const answer = await ask({ ...body, n_random, random_seed: 42 });
      expect(answer.status, answer.text.slice(0, 300)).toBe(200);
      const places = answer.json.rows.map((row: Row) => texts.indexOf(JSON.stringify(row)));
      expect(places).not.toContain(-1);
      expect(places).toEqual([...new Set<number>(places)].sort((a, b) => a - b));
      expect(places.length).toBe(Math.min(n_random, all.length));
      const again = await ask({ ...body, n_random, random_seed: 42 });
      expect(again.json.rows).toEqual(answer.json.rows);
    }
    const other = await ask({ ...body, n_random: 100, random_seed: 43 });
    const first = await ask({ ...body, n_random: 100, random_seed: 42 });
    expect(other.json.rows).not.toEqual(first.json.rows);
  });

  test.each(Object.entries(cases))('%s: every row is as likely', async (_, body) => {
    const all = expected({ sources: [DATASET], ...body });
    const key = 'mode' in body ? 'aligned_at_utc' : 'trade_id';
    const place = new Map(all.map((row, index) => [row[key], index]));
    const size = new Array<number>(50).fill(0);
    for (let index = 0; index < all.length; index++) size[Math.floor((index * 50) / all.length)]++;
    // Many rows of few samples, and few of many: they are found in different ways.
    for (const [n_random, draws] of [
      [50, 30],
      [4, 250],
    ]) {
      // Fifty classes of neighbouring rows, so that dense and sparse stretches would show.
      const classes = new Array<number>(50).fill(0);
      for (let seed = 0; seed < draws; seed++) {
        const { json } = await ask({ ...body, n_random, random_seed: seed, fields: [key] });
        for (const row of json.rows) classes[Math.floor((place.get(row[key])! * 50) / all.length)]++;
      }
      const chi = classes.reduce((sum, count, index) => {
        const mean = (draws * n_random * size[index]) / all.length;
        return sum + (count - mean) ** 2 / mean;
      }, 0);
      // 49 degrees of freedom: 99.99 % of samples lie below 95 (less still without replacement). Seeds are fixed.
      expect(chi).toBeLessThan(95);
    }
  });

  test('the server draws a seed, says which, and it replays', async () => {
    const drawn = await ask({ n_random: 20 });
    const { code, details } = drawn.json.warnings[0];
    expect(code).toBe('WINDOW_RANDOM_SAMPLE');
    expect(Number.isSafeInteger(details.random_seed)).toBe(true);
    const again = await ask({ n_random: 20, random_seed: details.random_seed });
    expect(again.json.rows).toEqual(drawn.json.rows);
    expect((await ask({ n_random: 20 })).json.rows).not.toEqual(drawn.json.rows);
  });

  test('a partition without a frames index is sampled too', async () => {
    await execute(
      env.databaseUrl,
      `create table frames_kept as table frames; delete from frames where partition_key = '2024-03-04'`,
    );
    try {
      const answer = await ask({ n_random: 700, random_seed: 3 });
      const known = new Set(TRADES.map((trade) => trade.trade_id));
      expect(answer.json.row_count).toBe(700);
      expect(answer.json.rows.every((row: Row) => known.has(row.trade_id as number))).toBe(true);
    } finally {
      await execute(env.databaseUrl, 'truncate frames; insert into frames table frames_kept; drop table frames_kept');
    }
  });
});

describe('random samples of dense aligned days', () => {
  test('are rows as they are, valid until the next one, and every row is as likely', async () => {
    await using own = await createMigratedEnv();
    const days = [randomDay('2024-04-01', 30_000, 1, 11), randomDay('2024-04-02', 20_000, 30_001, 12)];
    await loadDays(own.databaseUrl, days);
    await using dense = await startServing({ databaseUrl: own.databaseUrl, limits: { granuleLookupRows: 1 } });
    const rows = days.flatMap((day) => alignedOf(day.trades));
    // Few enough seconds to be tried, more than are numbered.
    expect(rows.length).toBeGreaterThan(20_000);
    expect(rows.length).toBeLessThan(60_000);
    const place = new Map(rows.map((row, index) => [iso(row.aligned_at_ms), index]));
    const classes = new Array<number>(50).fill(0);
    const draws = 40;
    for (let random_seed = 0; random_seed < draws; random_seed++) {
      const body = { sources: [DATASET], mode: 'aligned_1s', n_random: 100, random_seed };
      const { json } = await dense.query(body);
      const places = json.rows.map((row: Row) => place.get(row.aligned_at_utc as string));
      expect(places).toEqual([...new Set<number>(places)].sort((a, b) => a - b));
      expect(places.length).toBe(100);
      for (const row of json.rows as Record<string, string>[]) {
        const index = place.get(row.aligned_at_utc)!;
        const { aligned_at_ms: _, ...cells } = rows[index];
        expect(row).toMatchObject(cells);
        expect(row.valid_to_utc_exclusive).toBe(iso(rows[index + 1]?.aligned_at_ms ?? at('2024-04-03')));
        classes[Math.floor((index * 50) / rows.length)]++;
      }
      if (random_seed === 0) expect((await dense.query(body)).json.rows).toEqual(json.rows);
    }
    const mean = (draws * 100) / 50;
    expect(classes.reduce((sum, count) => sum + (count - mean) ** 2 / mean, 0)).toBeLessThan(95);
  });
});
