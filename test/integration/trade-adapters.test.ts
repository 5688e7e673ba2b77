/** Every exchange that is listed, end to end by its own sample: the real commands, then every field over HTTP. */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DATASETS } from '../../shared/registry/index.ts';
import { System } from '../support/pipeline.ts';
import { type Serving, startServing } from '../support/serving.ts';

const DAYS = ['2024-03-01', '2024-03-02'];
const RANGE = ['--from', DAYS[0], '--to', DAYS[1]];
const ROWS = 500;

let system: System;
let serving: Serving;
beforeAll(async () => {
  system = await System.create();
  serving = await startServing({ databaseUrl: system.env.databaseUrl });
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

describe.each([...DATASETS.values()].filter(({ trades }) => trades))(
  '$key',
  ({ key, native, aligned, historicalPath }) => {
    test('its sample is proved, and a replay gives the same digests', async () => {
      const out = join(system.env.dir, key);
      const { json } = await system.run(['sample', key, ...RANGE, '--rows', `${ROWS}`, '--out', out]);
      const env = Object.fromEntries(json.settings.map(({ name, url }: { name: string; url: string }) => [name, url]));
      const proved = await system.run(['backfill', key, ...RANGE], env);
      expect([proved.exit, proved.json.units]).toEqual([
        0,
        DAYS.map((partition) => ({ dataset: key, partition, state: 'proved', rows: ROWS })),
      ]);
      const replayed = await system.run(['replay', key, ...RANGE], env);
      expect([replayed.exit, replayed.json.units]).toMatchObject([0, DAYS.map(() => ({ state: 'identical' }))]);
    });

    test('every field of both modes is served', async () => {
      const fields = native.fields.map(({ name }) => name);
      const rows = await serving.send({
        path: `/v1/historical/${historicalPath}`,
        body: JSON.stringify({ n_latest_rows: ROWS, fields }),
      });
      expect([rows.status, rows.json.rows.length]).toEqual([200, ROWS]);
      for (const row of rows.json.rows) expect(Object.keys(row)).toEqual(fields);
      const { status, json } = await serving.query({ sources: [key], mode: 'aligned_1s', n_rows: 86_400 });
      expect([status, Object.keys(json.rows[0])]).toEqual([200, aligned.fields.map(({ name }) => name)]);
      const counts = json.rows.map((row: { trade_count: number }) => row.trade_count);
      expect(counts.reduce((sum: number, count: number) => sum + count, 0)).toBe(ROWS * DAYS.length);
    });
  },
);
