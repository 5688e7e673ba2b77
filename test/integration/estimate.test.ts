/** Estimates against the queries they are of: counts to the row, bytes of every representation, filters, time budgets. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { estimateAnswer, SHORT_NAMES } from '../../serving/discovery/estimate/bytes.ts';
import type { Json } from '../support/command.ts';
import {
  claimOther,
  DATASET,
  type DayOfTrades,
  loadBulk,
  loadDays,
  loadThird,
  randomDay,
} from '../support/load-rows.ts';
import { runs } from '../support/seed.ts';
import { type Answer, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';
import { createWorldsEnv, WORLDS } from '../support/worlds-env.ts';

const DAY_MS = 86_400_000;
const FIRST = Date.parse('2024-03-01T00:00:00Z');
const iso = (ms: number) => new Date(ms).toISOString();
const outcome = ({ status, json }: Answer) => [status, json.code];

let env: TestEnv;
let serving: Serving;
/** Another instrument: other days, of which two have ids of the default's. */
const OTHER = 'ETHUSDT';
/** Two days, a missing one, a day whose times are not in the order of ids, a day without an index of its frames. */
const days: DayOfTrades[] = [];

async function ask(body: object, on = serving): Promise<Json> {
  const answer = await on.send({ path: '/v1/raw/estimate', body: JSON.stringify({ sources: [DATASET], ...body }) });
  expect(answer.status, answer.text).toBe(200);
  return estimateAnswer.parse(answer.json);
}

/** Times that go back and forth by up to a minute, as of an exchange that numbers trades before it stamps them. */
function jumbled({ day, trades }: DayOfTrades): DayOfTrades {
  const start = Date.parse(`${day}T00:00:00Z`);
  const shifted = trades.map((trade, index) => {
    const timestamp = trade.timestamp + ((index * 7919) % 120_000) - 60_000;
    return { ...trade, timestamp: Math.min(start + DAY_MS - 1, Math.max(start, timestamp)) };
  });
  return { day, trades: shifted };
}

beforeAll(async () => {
  env = await createMigratedEnv();
  // Statistics come when a test asks for them.
  await execute(env.databaseUrl, 'alter table exchange_a_spot_trades set (autovacuum_enabled = off)');
  days.push(
    randomDay('2024-03-01', 3000, 1, 1),
    randomDay('2024-03-02', 2000, 3001, 2),
    jumbled(randomDay('2024-03-04', 2500, 5001, 3)),
    randomDay('2024-03-05', 1500, 7501, 4),
  );
  await loadDays(env.databaseUrl, days.slice(0, 3));
  await loadDays(env.databaseUrl, days.slice(3), { rowsPerFrame: 0 });
  const dataset = await claimOther(env.databaseUrl, DATASET, OTHER);
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 1200, 1, 11), randomDay('2024-03-03', 2500, 5001, 12)], {
    dataset,
  });
  await loadThird(env.databaseUrl, days);
  serving = await startServing({ databaseUrl: env.databaseUrl });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

/** What the query of the body answers: how many rows, or that there are none. */
async function truth(body: object, on = serving): Promise<number> {
  const answer = await on.query({ sources: [DATASET], ...body });
  if (answer.status === 404) return 0;
  expect(answer.status, answer.text.slice(0, 300)).toBe(200);
  return answer.json.row_count;
}

describe('without filters', () => {
  const moment = fc.oneof(
    fc.integer({ min: FIRST - DAY_MS, max: FIRST + 6 * DAY_MS }),
    fc.constantFrom(...[-1, 0, 1, 2, 3, 4, 5].map((day) => FIRST + day * DAY_MS)),
    fc
      .tuple(fc.nat(3), fc.nat(1400), fc.constantFrom(-1, 0, 1))
      .map(([day, row, by]) => (days[day]?.trades[row]?.timestamp ?? FIRST) + by),
  );

  test.each(['native', 'aligned_1s'])('%s rows of any window are counted to the row', async (mode) => {
    await fc.assert(
      fc.asyncProperty(moment, moment, fc.constantFrom(undefined, OTHER), async (a, b, instrument) => {
        fc.pre(a !== b);
        const body = { mode, instrument, time_range: [iso(Math.min(a, b)), iso(Math.max(a, b))] };
        const rows = await truth(body);
        const answer = await ask(body);
        expect(answer).toMatchObject({ rows, rows_is_exact: true, rows_at_most: rows, rows_basis: 'counted' });
        expect(answer.would_answer).toEqual(
          rows === 0 ? { status: 404, code: 'QUERY_NO_DATA' } : { status: 200, code: null },
        );
      }),
      {
        numRuns: runs(120),
        // The whole history; up to the last row of a frame, which a window that ends there leaves out.
        examples: [
          [FIRST, FIRST + 5 * DAY_MS, undefined],
          [FIRST, FIRST + 5 * DAY_MS, OTHER],
          [FIRST, days[0].trades[99].timestamp, undefined],
        ],
      },
    );
  });

  test('so are the history, the latest and a sample; warnings are those of the query', async () => {
    for (const mode of ['native', 'aligned_1s']) {
      for (const window of [
        {},
        { n_rows: 7 },
        { n_rows: 10 ** 6 },
        { n_random: 50, random_seed: 1 },
        { n_random: 10 ** 9 },
        { instrument: OTHER },
        { instrument: OTHER, n_rows: 7 },
        { instrument: OTHER, n_random: 50, random_seed: 1 },
      ]) {
        const body = { mode, ...window };
        const answer = await ask(body);
        const { json } = await serving.query({ sources: [DATASET], ...body });
        expect([answer.rows, answer.rows_is_exact], JSON.stringify(body)).toEqual([json.row_count, true]);
        const codes = (warnings: Json) => warnings.map(({ code }: Json) => code);
        const expected = codes(json.warnings).filter(
          (code: string) => !('n_rows' in window) || code !== 'WINDOW_EXCEEDS_PROVED_COVERAGE',
        );
        expect(codes(answer.warnings)).toEqual(expected);
      }
    }
  });

  test('partitions that hold the window are counted', async () => {
    const partitions = async (from: string, to: string) => (await ask({ time_range: [from, to] })).partitions;
    expect(await partitions('2024-03-01T23:00:00Z', '2024-03-02T01:00:00Z')).toBe(2);
    expect(await partitions('2024-03-01T23:00:00Z', '2024-03-02T00:00:00Z')).toBe(1);
    expect(await partitions('2024-03-03T00:00:00Z', '2024-03-04T00:00:00Z')).toBe(0);
    expect((await ask({})).partitions).toBe(4);
  });

  test('rows that are not proved do not count', async () => {
    const before = await ask({});
    await execute(env.databaseUrl, `update partitions set state = 'quarantined' where partition_key = '2024-03-02'`);
    const coverage = `int8multirange(int8range(${FIRST + DAY_MS}, ${FIRST + 2 * DAY_MS}))`;
    await execute(env.databaseUrl, `update coverage set proved = proved - ${coverage} where dataset_id = 1`);
    expect((await ask({})).rows).toBe(before.rows - 2000);
    expect(await truth({})).toBe(before.rows - 2000);
    await execute(env.databaseUrl, `update partitions set state = 'proved' where partition_key = '2024-03-02'`);
    await execute(env.databaseUrl, `update coverage set proved = proved + ${coverage} where dataset_id = 1`);
  });
});

describe('bytes', () => {
  test.each([
    [{}],
    [{ mode: 'aligned_1s' }],
    [{ fields: ['trade_id', 'price'] }],
    [{ time_range: ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'], fields: ['datetime', 'is_buyer_maker'] }],
    [{ mode: 'aligned_1s', n_random: 900, random_seed: 3 }],
  ])('of %j are those of the bodies, within a twentieth', async (body) => {
    const { bytes } = await ask(body);
    expect(Object.keys(bytes)).toEqual(['json', 'ndjson', 'csv', 'arrow']);
    for (const [mediaType, name] of Object.entries(SHORT_NAMES)) {
      const response = await serving.open({
        body: JSON.stringify({ sources: [DATASET], ...body }),
        headers: { Accept: mediaType },
      });
      let length = 0;
      for await (const chunk of response) length += chunk.length;
      expect(bytes[name] / length, `${name}: ${bytes[name]} of ${length}`).toBeGreaterThan(0.95);
      expect(bytes[name] / length, `${name}: ${bytes[name]} of ${length}`).toBeLessThan(1.05);
    }
  });

  test('of nothing are those of an empty body', async () => {
    const { bytes, rows } = await ask({ time_range: ['2024-03-03T00:00:00Z', '2024-03-03T01:00:00Z'] });
    expect([rows, bytes.ndjson]).toEqual([0, 0]);
    expect(bytes.json).toBeGreaterThan(100);
  });
});

describe('with filters', () => {
  const above = (value: number) => ({ filters: [{ field: 'price', op: 'gt', value }] });

  test('rows are guessed, and bounded by a count; on what basis is said', async () => {
    const blind = await ask(above(40_000));
    expect(blind).toMatchObject({
      rows_is_exact: false,
      rows_at_most: 9000,
      rows_searched: 9000,
      rows_basis: 'rules_of_thumb',
    });
    await execute(env.databaseUrl, 'analyze exchange_a_spot_trades; analyze canonical_aligned_1s_aggregates');
    for (const body of [
      above(40_000),
      above(39_900),
      { filters: [{ field: 'is_buyer_maker', op: 'eq', value: 1 }] },
      { mode: 'aligned_1s', filters: [{ field: 'open_price', op: 'lte', value: 40_100 }] },
      { filters: [{ field: 'timestamp', op: 'lt', value: FIRST + DAY_MS / 2 }] },
    ]) {
      const answer = await ask(body);
      const rows = await truth(body);
      expect(answer, JSON.stringify(body)).toMatchObject({ rows_is_exact: false, rows_basis: 'statistics' });
      expect(answer.rows_at_most).toBeGreaterThanOrEqual(rows);
      expect(answer.rows / rows, `${answer.rows} for ${rows}`).toBeGreaterThan(0.7);
      expect(answer.rows / rows, `${answer.rows} for ${rows}`).toBeLessThan(1.4);
    }
  });

  test('on times and ids they narrow what is searched', async () => {
    const half = await ask({ filters: [{ field: 'timestamp', op: 'lt', value: FIRST + DAY_MS }] });
    expect(half.rows_searched).toBe(3000);
    const one = await ask({ filters: [{ field: 'trade_id', op: 'eq', value: 5500 }] });
    // Its frame, which has no granules.
    expect([one.rows_searched, one.partitions, one.rows]).toEqual([100, 1, 1]);
    const none = await ask({ filters: [{ field: 'trade_id', op: 'eq', value: 10 ** 9 }] });
    expect([none.rows, none.rows_is_exact, none.would_answer.status]).toEqual([0, true, 404]);
  });

  test('what lies beyond all values is expected to match nothing', async () => {
    for (const filter of [
      { field: 'price', op: 'eq', value: -1 },
      { field: 'price', op: 'lt', value: 1 },
      { field: 'price', op: 'gt', value: 10 ** 9 },
      { field: 'quantity', op: 'gte', value: 1000 },
    ]) {
      const answer = await ask({ filters: [filter] });
      const foretold = [0, { status: 404, code: 'QUERY_NO_DATA' }];
      expect([answer.rows, answer.would_answer], JSON.stringify(filter)).toEqual(foretold);
      expect(await truth({ filters: [filter] })).toBe(0);
    }
    expect((await ask({ filters: [{ field: 'price', op: 'ne', value: -1 }] })).rows).toBeGreaterThan(8500);
  });
});

describe('the time budget', () => {
  test('a read that will find nothing in time is foretold', { tags: ['nightly'] }, async () => {
    await using own = await createMigratedEnv();
    // Of a million rows 250 ms are foretold. Filters that all rows pass make the read slower; an estimate looks at eight.
    await loadBulk(own.databaseUrl, { fromDay: '2024-01-01', days: 2, rowsPerDay: 500_000 });
    const passed = Array.from({ length: 7 }, (_, value) => ({ field: 'quantity', op: 'gt', value: -value }));
    await using on = await startServing({
      databaseUrl: own.databaseUrl,
      limits: { firstRowMs: 100, nextRowMs: 100 },
    });
    const codes = ({ warnings }: Json) => warnings.map(({ code }: Json) => code);
    for (const window of [{}, { n_rows: 5 }, { n_random: 5 }]) {
      const hopeless = { ...window, filters: [...passed, { field: 'price', op: 'eq', value: -1 }] };
      const answer = await ask(hopeless, on);
      expect(answer, JSON.stringify(window)).toMatchObject({
        rows: 0,
        will_exceed_time_budget: true,
        would_answer: { status: 503, code: 'QUERY_TIMEOUT' },
      });
      expect(answer.time.first_row_ms).toBeGreaterThan(100);
      expect(codes(answer)).toContain('QUERY_TIMEOUT_LIKELY');
      // The fastest such read took 140 ms here: a faster machine may get through the rows in time (query-limits.test.ts
      // tests the budget itself).
      const read = outcome(await on.query({ sources: [DATASET], ...hopeless }));
      expect([
        [503, 'QUERY_TIMEOUT'],
        [404, 'QUERY_NO_DATA'],
      ]).toContainEqual(read);
    }
    const common = { filters: [{ field: 'is_buyer_maker', op: 'eq', value: 1 }], n_rows: 5 };
    const fine = await ask(common, on);
    expect([fine.will_exceed_time_budget, codes(fine)]).toEqual([
      false,
      ['WINDOW_LATEST_ROWS_MUTABLE', 'QUERY_TIMEOUT_POSSIBLE'],
    ]);
    await using patient = await startServing({ databaseUrl: own.databaseUrl });
    expect((await patient.query({ sources: [DATASET], ...common })).status).toBe(200);
    const plain = await ask({}, on);
    expect([plain.will_exceed_time_budget, codes(plain), plain.time.scan_ms]).toEqual([false, [], 0]);
  });
});

describe('partitions that are no stretches of time', () => {
  test('any window of them is counted to the row, in both modes', { tags: ['nightly'] }, async () => {
    await using own = await createWorldsEnv();
    await using on = await startServing({ databaseUrl: own.databaseUrl });
    for (const world of WORLDS) {
      const sources = [world.dataset.key];
      const marks = [...world.rows, ...world.aligned].map(({ ms }) => ms).sort((a, b) => a - b);
      const windows = [
        {},
        { n_rows: 5 },
        ...[0.1, 0.35, 0.6].map((share) => {
          const from = marks[Math.floor(share * marks.length)];
          const to = marks[Math.floor((share + 0.3) * marks.length)] + 1;
          return { time_range: [iso(from), iso(Math.max(to, from + 1))] };
        }),
      ];
      for (const mode of ['native', 'aligned_1s']) {
        for (const window of windows) {
          const body = { sources, mode, ...window };
          const { rows, rows_is_exact } = await ask(body, on);
          expect([rows, rows_is_exact], JSON.stringify(body)).toEqual([await truth(body, on), true]);
        }
      }
    }
  });
});

describe('requests', () => {
  const post = (body: unknown, headers: Record<string, string> = {}) =>
    serving.send({ path: '/v1/raw/estimate', body: typeof body === 'string' ? body : JSON.stringify(body), headers });

  test('are checked as those of a query, to the word', async () => {
    for (const body of [
      '',
      '{',
      '[]',
      { sources: [] },
      { sources: ['nonesuch'] },
      { sources: [DATASET], n_rows: 0, n_random: 1.5, x: 1 },
      { sources: [DATASET], filters: [{ field: 'price', op: 'lt', value: null }] },
      { sources: [DATASET], fields: ['price', 'price'], view_id: 'x' },
      { sources: [DATASET], n_rows: 1, strict: true },
      { sources: [DATASET], time_range: ['2024-03-01T00:00:00Z', '2024-03-09T00:00:00Z'], strict: true },
    ]) {
      const [estimated, queried] = [await post(body), await serving.query(body)];
      const { request_id: _, ...problem } = estimated.json;
      expect(problem, JSON.stringify(body)).toEqual({ ...queried.json, request_id: undefined });
      expect(estimated.status).toBe(409);
    }
    const strict = { sources: [DATASET], time_range: ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'], strict: true };
    expect((await post(strict)).status).toBe(200);
  });
});
