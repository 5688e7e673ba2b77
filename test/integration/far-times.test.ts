/** Times at the ends of what the contract can say: years 0001 and 9999, and what lies beyond them. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DATASETS } from '../../shared/registry/index.ts';
import { type ArtifactLab, artifactLab } from '../support/artifacts.ts';
import type { TestEnv } from '../support/stack.ts';
import { createWorldsEnv } from '../support/worlds-env.ts';

const FIRST = '0001-01-01T00:00:00Z';
const LAST = '9999-12-31T23:59:59.999999Z';

describe('the first and the last time that can be said', () => {
  let env: TestEnv;
  let lab: ArtifactLab;

  beforeAll(async () => {
    env = await createWorldsEnv();
    lab = await artifactLab({ databaseUrl: env.databaseUrl, dir: env.dir });
  });
  afterAll(async () => {
    await lab[Symbol.asyncDispose]();
    await env[Symbol.asyncDispose]();
  });

  const WINDOWS = [
    [FIRST, LAST],
    [FIRST, '0001-01-01T00:00:00.001Z'],
    ['9999-12-31T23:59:59.999Z', LAST],
  ] as const;
  // The three exchanges are read by the same code.
  const chosen = [...DATASETS.values()].filter(({ key }) => !/^exchange_[bc]/.test(key));

  test.each(chosen.map((dataset) => [dataset.key, dataset] as const))(
    '%s: python’s datetime.min as the start of a window was a fault of the database',
    async (key, dataset) => {
      for (const mode of ['native', 'aligned_1s']) {
        const all = await lab.serving.query({ sources: [key], mode });
        for (const time_range of WINDOWS) {
          const body = { sources: [key], mode, time_range };
          const answer = await lab.serving.query(body);
          const isAll = time_range === WINDOWS[0];
          expect([key, mode, time_range, answer.status]).toEqual([key, mode, time_range, isAll ? 200 : 404]);
          if (isAll)
            expect([answer.json.row_count, answer.json.rows[0]]).toEqual([all.json.row_count, all.json.rows[0]]);
          const estimate = await lab.serving.send({ path: '/v1/raw/estimate', body: JSON.stringify(body) });
          expect([200, 404], estimate.text).toContain(estimate.status);
          const artifact = lab.files.write(body, 'csv');
          if (isAll) expect((await artifact).manifest.row_count).toBe(all.json.row_count);
          else await expect(artifact).rejects.toMatchObject({ kind: 'no_rows' });
        }
        const path = `/v1/historical/${dataset.historicalPath}`;
        for (const [start_date, end_date, status] of [
          ['0001-01-01', '9999-12-31', 200],
          ['0001-01-01', '0001-01-01', 404],
          ['9999-12-31', '9999-12-31', 404],
          ['0000-12-31', '0001-01-01', 409],
        ]) {
          const answer = await lab.serving.send({ path, body: JSON.stringify({ mode, start_date, end_date }) });
          expect([key, mode, start_date, answer.status]).toEqual([key, mode, start_date, status]);
        }
      }
    },
  );

  test('filters and as_of take them too', async () => {
    for (const value of [FIRST, LAST]) {
      for (const [sources, mode, field] of [
        ['exchange_a_spot_trades', 'native', 'datetime'],
        ['macro_series_metrics', 'aligned_1s', 'valid_to_utc_exclusive'],
        ['macro_series_metrics', 'native', 'observed_at_utc'],
      ]) {
        for (const op of ['eq', 'gte', 'lt']) {
          const answer = await lab.serving.query({ sources: [sources], mode, filters: [{ field, op, value }] });
          expect([200, 404], answer.text).toContain(answer.status);
        }
      }
      for (const mode of ['native', 'aligned_1s']) {
        const answer = await lab.serving.query({ sources: ['macro_series_metrics'], mode, as_of: value });
        expect([value, mode, answer.status]).toEqual([value, mode, value === FIRST ? 404 : 200]);
      }
    }
  });
});
