/** An altered partition that is mended from the log while it is read. */
import { expect, test } from 'vitest';
import type { Json } from '../support/command.ts';
import { csvOf, DATASET, dayNames, System, writeDocument } from '../support/pipeline.ts';
import { startServing } from '../support/serving.ts';

const DAYS = dayNames('2024-01-05', 3);
const ROWS = 100;
/** A trade of each day. */
const IDS = DAYS.map((_, index) => 4001 + index * ROWS);

test('an altered partition is mended while it is read: every read is whole, as it was or as it is', async () => {
  await using system = await System.create();
  for (const [index, day] of DAYS.entries()) {
    await writeDocument(
      system.vendor,
      day,
      csvOf({ day, rows: ROWS, seed: 1, firstId: 4001 + index * ROWS, timeUnit: 'ms' }),
    );
  }
  expect((await system.run(['backfill', DATASET, '--from', DAYS[0], '--to', DAYS[2]])).exit).toBe(0);
  await using serving = await startServing({ databaseUrl: system.env.databaseUrl });
  const read = async () => {
    const range = [`${DAYS[0]}T00:00:00Z`, '2024-01-08T00:00:00Z'];
    const answer = await serving.query({ sources: [DATASET], fields: ['trade_id', 'price'], time_range: range });
    expect([answer.status, answer.json.row_count]).toEqual([200, 3 * ROWS]);
    return JSON.stringify(answer.json.rows);
  };
  const right = await read();
  await system.client.query(`update ${DATASET} set price = price + 1 where trade_id = any ($1)`, [IDS]);
  const altered = await read();
  expect(altered).not.toBe(right);
  const seen: string[] = [];
  let done = false;
  const readers = Array.from({ length: 4 }, async () => {
    while (!done || seen.length < 5) seen.push(await read());
  });
  const { exit, json } = await system.run(['replay', DATASET, '--from', DAYS[0], '--to', DAYS[2]]);
  done = true;
  await Promise.all(readers);
  expect([exit, json.units.map(({ state }: Json) => state)]).toEqual([0, ['replaced', 'replaced', 'replaced']]);
  // One day after the other is mended: each of them is whole in every answer.
  const versions = (text: string) =>
    IDS.map((id) => {
      const row = (JSON.parse(text) as Json[]).find(({ trade_id }) => trade_id === id);
      return JSON.stringify(row);
    });
  const [old, mended] = [versions(altered), versions(right)];
  for (const text of new Set(seen)) {
    const steps = versions(text).map((version, index) =>
      version === mended[index] ? 'mended' : version === old[index] ? 'old' : '?',
    );
    expect(['old old old', 'mended old old', 'mended mended old', 'mended mended mended']).toContain(steps.join(' '));
  }
  expect(await read()).toBe(right);
});
