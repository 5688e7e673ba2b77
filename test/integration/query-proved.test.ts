/** What an answer says of what is proved: warnings, strict, and coverage looked at in the snapshot of the read. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DATASET } from '../support/load-rows.ts';
import { startServing } from '../support/serving.ts';
import {
  at,
  type Body,
  DAYS,
  iso,
  nativeRow,
  PROVED_FROM,
  PROVED_TO,
  type SmallHistory,
  serveSmallHistory,
} from '../support/small-history.ts';
import { execute, type TestEnv } from '../support/stack.ts';

let history: SmallHistory;
let env: TestEnv;
const ask = (body: Omit<Body, 'sources'>) => history.ask(body);

beforeAll(async () => {
  history = await serveSmallHistory();
  ({ env } = history);
});
afterAll(() => history[Symbol.asyncDispose]());

describe('warnings', () => {
  const codes = (answer: { json: { warnings: { code: string }[] } }) => answer.json.warnings.map(({ code }) => code);

  test('an interior gap is named, with and without a window; the end only with one', async () => {
    const gap = { start: '2024-03-03T00:00:00.000Z', end: '2024-03-04T00:00:00.000Z' };
    const history = await ask({});
    expect(history.json.warnings).toEqual([
      {
        code: 'WINDOW_EXCEEDS_PROVED_COVERAGE',
        message: expect.any(String),
        details: { gaps: [gap], gaps_total: 1, proved_from: iso(PROVED_FROM), proved_through: iso(PROVED_TO) },
      },
    ]);
    const past = await ask({ time_range: ['2024-02-29T12:00:00Z', '2024-03-06T01:00:00Z'] });
    expect(past.json.warnings[0].details.gaps).toEqual([
      { start: '2024-02-29T12:00:00.000Z', end: '2024-03-01T00:00:00.000Z' },
      gap,
      { start: '2024-03-06T00:00:00.000Z', end: '2024-03-06T01:00:00.000Z' },
    ]);
    const within = await ask({ time_range: ['2024-03-01T00:00:00Z', '2024-03-03T00:00:00Z'] });
    expect(within.json.warnings).toEqual([]);
  });

  test('n_rows names the gaps its rows reach across, and only those', async () => {
    expect(codes(await ask({ n_rows: 700 }))).toEqual(['WINDOW_LATEST_ROWS_MUTABLE']);
    const across = ['WINDOW_LATEST_ROWS_MUTABLE', 'WINDOW_EXCEEDS_PROVED_COVERAGE'];
    expect(codes(await ask({ n_rows: 701 }))).toEqual(across);
    // A filter leaves the newest days out of the search, not out of what the answer reaches across.
    const early = { filters: [{ field: 'trade_id', op: 'lt', value: 1100 }] };
    expect(codes(await ask({ n_rows: 5, ...early }))).toEqual(across);
    expect(codes(await ask({ n_rows: 5000, ...early }))).toEqual(across);
    expect(
      codes(
        await ask({
          mode: 'aligned_1s',
          n_rows: 5,
          filters: [{ field: 'aligned_at_utc', op: 'gte', value: '2024-03-05T00:00:00Z' }],
        }),
      ),
    ).toEqual(['WINDOW_LATEST_ROWS_MUTABLE', 'ALIGNED_FRESHNESS_STALE']);
  });

  test('a 404 for a window inside a gap said that a range is proved which contains the window', async () => {
    const gap = '2024-03-03T00:00:00.000Z to 2024-03-04T00:00:00.000Z';
    const proved = `what is proved lies between ${iso(PROVED_FROM)} and ${iso(PROVED_TO)}`;
    const details: string[] = [];
    for (const body of [
      { time_range: ['2024-03-03T06:00:00Z', '2024-03-03T07:00:00Z'] as const },
      { mode: 'aligned_1s', time_range: ['2024-03-03T00:00:00Z', '2024-03-04T00:00:00Z'] as const },
      { time_range: ['2024-03-02T23:59:59.999Z', '2024-03-03T07:00:00Z'] as const },
      { time_range: ['2024-02-01T00:00:00Z', '2024-02-02T00:00:00Z'] as const },
      { filters: [{ field: 'price', op: 'lt', value: 0 }] },
    ] as Omit<Body, 'sources'>[]) {
      const { status, json } = await ask(body);
      expect(status).toBe(404);
      details.push(json.detail);
    }
    expect(details).toEqual([
      `Nothing of ${DATASET} is proved in the window; missing there is ${gap}.`,
      `Nothing of ${DATASET} is proved in the window; missing there is ${gap}.`,
      `No proved row of ${DATASET} lies in the window; missing there is ${gap}.`,
      `Nothing of ${DATASET} is proved in the window; ${proved}.`,
      `No proved row of ${DATASET} lies in the window and passes the filters; ${proved}.`,
    ]);
  });

  test('stale aligned rows: by the lag, for windows that reach past what is proved', async () => {
    const stale = await ask({ mode: 'aligned_1s', n_rows: 5 });
    expect(codes(stale)).toEqual(['WINDOW_LATEST_ROWS_MUTABLE', 'ALIGNED_FRESHNESS_STALE']);
    const fixed = await ask({ mode: 'aligned_1s', time_range: ['2024-03-04T00:00:00Z', '2024-03-06T00:00:00Z'] });
    expect(codes(fixed)).toEqual([]);
    const past = await ask({ mode: 'aligned_1s', time_range: ['2024-03-04T00:00:00Z', '2024-03-06T00:00:00.001Z'] });
    expect(codes(past)).toEqual(['WINDOW_EXCEEDS_PROVED_COVERAGE', 'ALIGNED_FRESHNESS_STALE']);
    await using fresh = await startServing({ databaseUrl: env.databaseUrl, now: () => PROVED_TO + 172_800_000 });
    expect(codes(await fresh.query({ sources: [DATASET], mode: 'aligned_1s', n_rows: 5 }))).toEqual([
      'WINDOW_LATEST_ROWS_MUTABLE',
    ]);
    await using before = await startServing({ databaseUrl: env.databaseUrl, now: () => PROVED_TO - 5000 });
    const early = await before.query({ sources: [DATASET], mode: 'aligned_1s', n_rows: 5 });
    expect(early.json.freshness.lag_seconds).toBe(0);
  });

  test('strict: a warning is a 409 that carries it, and a clean answer is the same answer', async () => {
    for (const body of [
      { n_rows: 5 },
      { n_random: 5 },
      {},
      { time_range: ['2024-03-05T00:00:00Z', '2024-03-07T00:00:00Z'] as const },
      { time_range: ['2024-03-06T00:00:00Z', '2024-03-07T00:00:00Z'] as const },
    ]) {
      const answer = await ask({ ...body, strict: true });
      expect([answer.status, answer.json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
      expect(answer.json.warnings.length).toBeGreaterThan(0);
    }
    const range = { time_range: ['2024-03-04T00:00:00Z', '2024-03-06T00:00:00Z'] as const };
    const strict = await ask({ ...range, strict: true });
    expect(strict.json).toEqual((await ask(range)).json);
  });
});

describe('coverage is looked at in the snapshot of the read', () => {
  test('a partition that is no longer proved is not served again, nor one served before it is proved', async () => {
    const last = { n_rows: 3 };
    const before = await ask(last);
    expect((await ask(last)).json.rows).toEqual(before.json.rows);
    await execute(
      env.databaseUrl,
      `begin; update partitions set state = 'quarantined' where partition_key = '2024-03-05';
       update coverage set proved = proved - int8multirange(int8range(${at('2024-03-05')}, ${at('2024-03-06')})), version = version + 1; commit`,
    );
    try {
      const after = await ask(last);
      expect(after.json.rows).toEqual(DAYS[2].trades.slice(-3).map(nativeRow));
      expect((await ask({ time_range: ['2024-03-05T00:00:00Z', '2024-03-06T00:00:00Z'] })).status).toBe(404);
      const aligned = await ask({ mode: 'aligned_1s', n_rows: 1 });
      expect(aligned.json.rows[0].valid_to_utc_exclusive).toBe('2024-03-05T00:00:00.000Z');
      expect(aligned.json.freshness.as_of_utc).toBe('2024-03-05T00:00:00.000Z');
    } finally {
      await execute(
        env.databaseUrl,
        `begin; update partitions set state = 'proved' where partition_key = '2024-03-05';
         update coverage set proved = proved + int8multirange(int8range(${at('2024-03-05')}, ${at('2024-03-06')})), version = version + 1; commit`,
      );
    }
    expect((await ask(last)).json.rows).toEqual(before.json.rows);
  });

  test('the newest rows named the checkpoint of the first read for as long as nothing was proved', async () => {
    const sign = (size: number) =>
      execute(
        env.databaseUrl,
        `insert into proof_head (size, root, checkpoint) values (${size}, sha256(''), 'of ${size} leaves')
         on conflict (is_only) do update set size = excluded.size, checkpoint = excluded.checkpoint`,
      );
    for (const mode of ['native', 'aligned_1s'] as const) {
      for (const size of [1, 2, 3]) {
        await sign(size);
        const { headers } = await ask({ mode, n_rows: 2 });
        const checkpoint = Buffer.from(String(headers['x-svc-checkpoint']), 'base64').toString();
        expect([mode, checkpoint]).toEqual([mode, `of ${size} leaves`]);
      }
    }
    await execute(env.databaseUrl, 'delete from proof_head');
    expect((await ask({ n_rows: 2 })).headers['x-svc-checkpoint']).toBe(undefined);
  });

  test('a reader sees a revision whole or not at all, whatever it asks', async () => {
    const [from, to] = [at('2024-03-05'), at('2024-03-06')];
    const aligned = `canonical_aligned_1s_aggregates where aligned_at_utc >= '2024-03-05Z' and aligned_at_utc < '2024-03-06Z'`;
    const native = `exchange_a_spot_trades where timestamp >= ${from} and timestamp < ${to}`;
    await execute(
      env.databaseUrl,
      `create table kept_native as select * from ${native}; create table kept_aligned as select * from ${aligned}`,
    );
    const coverage = (sign: string) =>
      `update coverage set proved = proved ${sign} int8multirange(int8range(${from}, ${to})), version = version + 1`;
    const state = (name: string) => `update partitions set state = '${name}' where partition_key = '2024-03-05'`;
    const out = `begin; delete from ${native}; delete from ${aligned}; ${state('quarantined')}; ${coverage('-')}; commit`;
    const back = `begin; insert into exchange_a_spot_trades table kept_native; insert into canonical_aligned_1s_aggregates table kept_aligned;
      ${state('proved')}; ${coverage('+')}; commit`;
    const bodies: Omit<Body, 'sources'>[] = [
      { n_rows: 3 },
      { mode: 'aligned_1s', n_rows: 3 },
      { mode: 'aligned_1s', n_rows: 3, filters: [{ field: 'trade_count', op: 'gte', value: 1 }] },
      {},
      { n_random: 5, random_seed: 1 },
      { mode: 'aligned_1s', n_random: 5, random_seed: 1 },
      { n_random: 60, random_seed: 1, filters: [{ field: 'price', op: 'gt', value: 0 }] },
    ];
    const rowsOf = async (body: Omit<Body, 'sources'>) => {
      const answer = await ask(body);
      return answer.status === 200 ? JSON.stringify(answer.json.rows) : `${answer.status} ${answer.text}`;
    };
    const withDay = await Promise.all(bodies.map(rowsOf));
    await execute(env.databaseUrl, out);
    const withoutDay = await Promise.all(bodies.map(rowsOf));
    for (const [index, rows] of withDay.entries()) expect(withoutDay[index]).not.toBe(rows);
    let flips = 0;
    let done = false;
    const flipping = (async () => {
      while (!done) {
        await execute(env.databaseUrl, flips % 2 === 0 ? back : out);
        flips++;
      }
    })();
    const seen = new Set<string>();
    for (let round = 0; round < 60 || (seen.size < bodies.length * 2 && round < 1000); round++) {
      await Promise.all(
        bodies.map(async (body, index) => {
          const rows = await rowsOf(body);
          expect([withDay[index], withoutDay[index]]).toContain(rows);
          seen.add(`${index} ${rows === withDay[index]}`);
        }),
      );
    }
    done = true;
    await flipping;
    if (flips % 2 === 0) await execute(env.databaseUrl, back);
    await execute(env.databaseUrl, 'drop table kept_native, kept_aligned');
    // Both were met by every kind of read.
    expect(seen.size).toBe(bodies.length * 2);
  });
});
