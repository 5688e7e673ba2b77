/**
 * Reads of the datasets whose partitions are no stretches of time, against an oracle in plain JavaScript: native rows of
 * proved heights, snapshots, captures and vintages only, aligned rows with their validity, windows of states with what is
 * carried in. Storage also holds rows of partitions that are not proved, among and beside those that are.
 */
import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import { shapeOf } from '../../shared/registry/index.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { servedEnv } from '../support/served-env.ts';
import { createMigratedEnv } from '../support/stack.ts';
import { type Body, bodiesOf, expected, type Served } from '../support/world-oracle.ts';
import type { World } from '../support/worlds.ts';
import { worldsOf } from '../support/worlds-env.ts';

const served = servedEnv(createMigratedEnv);

async function check(world: World, body: Body): Promise<void> {
  const answer = await served.serving.query({ sources: [world.dataset.key], ...body });
  const rows = expected(world, body);
  if (rows.length === 0) {
    expect([answer.status, answer.json.code], answer.text.slice(0, 500)).toEqual([404, 'QUERY_NO_DATA']);
    return;
  }
  expect(answer.status, answer.text.slice(0, 500)).toBe(200);
  expect(answer.json.rows).toEqual(rows);
  expect(answer.json.row_count).toBe(rows.length);
}

describe.each([1, 2])('worlds of seed %i', (seed) => {
  const all = worldsOf(seed);
  beforeAll(async () => {
    for (const world of all) await loadWorld(served.env.databaseUrl, world);
  });

  describe.each(all.map((world) => [world.dataset.key, world] as const))('%s', (_key, world) => {
    test.each(['native', 'aligned_1s'] as const)('%s: any window, fields and filters', async (mode) => {
      expect(expected(world, { mode }).length).toBeGreaterThan(7);
      await check(world, { mode });
      await fc.assert(
        fc.asyncProperty(bodiesOf(world, mode), (body) => check(world, body)),
        { numRuns: 40 },
      );
    });

    test.each(['native', 'aligned_1s'] as const)(
      '%s: samples are rows of the history, in order, and come again',
      async (mode) => {
        const rows = expected(world, { mode }).map((row) => JSON.stringify(row));
        for (const n_random of [1, Math.floor(rows.length / 2), rows.length, rows.length + 1]) {
          const body = { sources: [world.dataset.key], mode, n_random, random_seed: seed };
          const { json } = await served.serving.query(body);
          const places = json.rows.map((row: Served) => rows.indexOf(JSON.stringify(row)));
          expect(places.length).toBe(Math.min(n_random, rows.length));
          expect(places).not.toContain(-1);
          expect(places).toEqual([...new Set(places)].sort((a, b) => Number(a) - Number(b)));
          expect((await served.serving.query(body)).json.rows).toEqual(json.rows);
        }
      },
    );
  });
});

describe('samples', () => {
  const SEED = 4;
  const all = worldsOf(SEED);
  beforeAll(async () => {
    for (const world of all) await loadWorld(served.env.databaseUrl, world);
  });

  test.each([
    ['bitcoin_block_transactions', 'native', undefined],
    ['bitcoin_block_transactions', 'native', { field: 'coinbase', op: 'eq', value: 1 }],
    ['bitcoin_mempool_state', 'native', undefined],
    ['bitcoin_mempool_state', 'native', { field: 'rbf_flag', op: 'eq', value: 0 }],
    ['bitcoin_block_headers', 'native', undefined],
    ['bitcoin_block_headers', 'aligned_1s', undefined],
    ['bitcoin_block_headers', 'aligned_1s', { field: 'latest_height', op: 'gt', value: 1020 }],
    ['bitcoin_mempool_state', 'aligned_1s', undefined],
    ['bitcoin_circulating_supply', 'aligned_1s', undefined],
    ['bitcoin_circulating_supply', 'aligned_1s', { field: 'metric_value_float', op: 'lt', value: 30 }],
    ['etf_daily_metrics', 'native', undefined],
    ['macro_series_metrics', 'aligned_1s', { field: 'source_id', op: 'eq', value: 'macro_dgs10' }],
  ] as const)('%s, %s, %o: every row is as likely', async (key, mode, clause) => {
    const world = all.find(({ dataset }) => dataset.key === key)!;
    const filters = clause ? [clause] : undefined;
    const rows = expected(world, { mode, filters }).map((row) => JSON.stringify(row));
    const counts = new Map(rows.map((row) => [row, 0]));
    const [draws, n_random] = [75, Math.ceil(rows.length / 6)];
    for (let random_seed = 1; random_seed <= draws; random_seed++) {
      const { json } = await served.serving.query({ sources: [key], mode, n_random, random_seed, filters });
      for (const row of json.rows) counts.set(JSON.stringify(row), counts.get(JSON.stringify(row))! + 1);
    }
    expect(counts.size).toBe(rows.length);
    // Each row is in a share of the draws: a binomial variance, and so a chi square of about as many degrees as rows.
    const share = n_random / rows.length;
    const sum = [...counts.values()].reduce((total, count) => total + (count - draws * share) ** 2, 0);
    const chiSquare = sum / (draws * share * (1 - share));
    expect(chiSquare).toBeLessThan(rows.length + 4 * Math.sqrt(2 * rows.length));
    expect(chiSquare).toBeGreaterThan(rows.length - 4 * Math.sqrt(2 * rows.length));
  });

  test('a sample does not depend on what is asked of its rows', async () => {
    for (const [key, mode] of [
      ['bitcoin_block_headers', 'aligned_1s'],
      ['bitcoin_block_fee_totals', 'aligned_1s'],
      ['bitcoin_block_transactions', 'native'],
    ] as const) {
      const body = { sources: [key], mode, n_random: 9, random_seed: 3 };
      const [field] = shapeOf(all.find(({ dataset }) => dataset.key === key)!.dataset, mode).order;
      const whole = (await served.serving.query(body)).json.rows;
      const some = (await served.serving.query({ ...body, fields: [field] })).json.rows;
      expect(some).toEqual(whole.map((row: Served) => ({ [field]: row[field] })));
    }
  });
});
