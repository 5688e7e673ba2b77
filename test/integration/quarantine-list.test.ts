/** `quarantine` lists what is in quarantine, however many partitions are not proved. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { DATASET, System } from '../support/pipeline.ts';

const DAY = '2024-01-01';

let system: System;
beforeAll(async () => {
  system = await System.create();
});
afterAll(() => system?.[Symbol.asyncDispose]());

/** Partitions of earlier days, as many as are listed of a dataset. */
const earlier = (state: string) =>
  system.rows(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, synthetic, from_ms, to_ms)
     select 1, to_char(day, 'YYYY-MM-DD'), $1, 1, 1, false, extract(epoch from day) * 1000, extract(epoch from day) * 1000 + 86400000
     from generate_series(timestamptz '2024-01-01 00:00Z' - interval '1000 days', timestamptz '2023-12-31 00:00Z', interval '1 day') day
     on conflict (dataset_id, partition_key) do update set state = excluded.state`,
    [state],
  );

test('a quarantined partition behind a thousand that were only begun was not in quarantine', async () => {
  await earlier('publishing');
  const ms = Date.parse(DAY);
  await system.rows(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, synthetic, from_ms, to_ms, reason)
     values (1, $1, 'quarantined', 1, 1, false, $2, $3, 'rows differ')`,
    [DAY, ms, ms + 86_400_000],
  );
  for (const args of [[], [DATASET], [DATASET, DAY]]) {
    const { exit, json } = await system.run(['quarantine', ...args]);
    expect({ exit, total: json.total, partitions: json.partitions }).toMatchObject({
      exit: 0,
      total: 1,
      partitions: [{ dataset: DATASET, partition: DAY, reason: 'rows differ' }],
    });
  }
});

test('a list that is cut did not say so', async () => {
  await earlier('quarantined');
  const { json } = await system.run(['quarantine', DATASET]);
  expect([json.total, json.partitions.length]).toEqual([1001, 1000]);
  const named = await system.run(['quarantine', DATASET, DAY]);
  expect(named.json.partitions.map(({ partition }: { partition: string }) => partition)).toEqual([DAY]);
});
