/**
 * A month of all three exchanges by one command that is interrupted again and again, in order and not, with one day that
 * is no trade file; then an altered partition that is mended from the log while it is read.
 */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Json } from '../support/command.ts';
import { DATASET, dayNames, System } from '../support/pipeline.ts';
import { startServing } from '../support/serving.ts';
import { VENDORS } from '../support/vendors.ts';

const DAYS = dayNames('2024-01-01', 31);
const ROWS = 100;
const [A, B] = VENDORS;
const POISONED = DAYS[12];
const INTERRUPTIONS = 2;

let system: System;
const settings: Record<string, string> = {};
const baseOf = (dataset: string) => join(system.env.dir, dataset);
const command = ['backfill', 'all', '--from', DAYS[0], '--to', DAYS[30]];

beforeAll(async () => {
  system = await System.create();
  for (const vendor of VENDORS) {
    Object.assign(settings, vendor.settings(baseOf(vendor.dataset)));
    for (const [index, day] of DAYS.entries()) {
      const content = { day, rows: ROWS, seed: index + 1, firstId: 1 + index * 1000 };
      await vendor.put(baseOf(vendor.dataset), day, vendor.pack(day, vendor.plainDay(content)));
    }
  }
  await B.put(baseOf(B.dataset), POISONED, B.pack(POISONED, 'no trades here\n'));
});
afterAll(() => system[Symbol.asyncDispose]());

const proved = async (): Promise<number> => {
  const rows = await system
    .rows<{ n: number }>(`select count(*)::int4 n from partitions where state = 'proved'`)
    .catch(() => []);
  return rows[0]?.n ?? 0;
};

/** As the command says of itself: a projector that a killed one left behind goes on for a moment, too. */
const provedBy = async (pid: number | undefined): Promise<number> => {
  const rows = await system
    .rows<{ n: number }>('select coalesce(sum(proved), 0)::int4 n from runs where pid = $1', [pid])
    .catch(() => []);
  return rows[0]?.n ?? 0;
};

test('a month of three exchanges, interrupted in order and killed, comes to the same end; one bad day stops nothing', async () => {
  let interrupted = 0;
  for (; interrupted < INTERRUPTIONS; interrupted++) {
    const running = system.start(command, settings);
    let isOver = false;
    void running.done.finally(() => {
      isOver = true;
    });
    // Where little was left to do there is nothing to interrupt.
    await expect.poll(async () => isOver || (await provedBy(running.child.pid)) > 2, { interval: 20 }).toBe(true);
    running.child.kill(interrupted % 2 === 0 ? 'SIGINT' : 'SIGKILL');
    const { exit, signal } = await running.done;
    if (exit === 1) break; // It was faster than we were.
    expect(signal ?? exit).toBe(interrupted % 2 === 0 ? 130 : 'SIGKILL');
  }
  expect(interrupted).toBeGreaterThan(0);
  const { exit, json } = await system.run(command, settings);
  const bad = json.units.filter(({ state }: Json) => state !== 'proved' && state !== 'unchanged');
  expect([exit, bad.map(({ dataset, partition, code }: Json) => [dataset, partition, code])]).toEqual([
    1,
    [[B.dataset, POISONED, 'SOURCE_DOCUMENT_INVALID']],
  ]);
  expect(await proved()).toBe(VENDORS.length * DAYS.length - 1);
  await B.put(
    baseOf(B.dataset),
    POISONED,
    B.pack(POISONED, B.plainDay({ day: POISONED, rows: ROWS, seed: 13, firstId: 12_001 })),
  );
  expect((await system.run(command, settings)).json).toMatchObject({ ok: true, proved: 1 });
  for (const { dataset } of VENDORS) {
    expect(await system.rows(`select count(*)::int4 n from ${dataset}`)).toEqual([{ n: ROWS * DAYS.length }]);
    const log = await system.log(dataset);
    expect(new Set(log.map(({ subject }) => subject)).size).toBe(log.length);
  }
  expect(await system.leftovers()).toEqual([]);
  expect((await system.run(['verify', 'all'])).exit).toBe(0);
});

test('an altered partition is mended while it is read: every read is whole, as it was or as it is', async () => {
  await using serving = await startServing({ databaseUrl: system.env.databaseUrl });
  const read = async () => {
    const range = [`${DAYS[4]}T00:00:00Z`, `${DAYS[7]}T00:00:00Z`];
    const answer = await serving.query({ sources: [DATASET], fields: ['trade_id', 'price'], time_range: range });
    expect([answer.status, answer.json.row_count]).toEqual([200, 3 * ROWS]);
    return JSON.stringify(answer.json.rows);
  };
  const right = await read();
  await system.client.query(`update ${A.dataset} set price = price + 1 where trade_id = any ($1)`, [
    [4001, 5001, 6001],
  ]);
  const altered = await read();
  expect(altered).not.toBe(right);
  const seen: string[] = [];
  let done = false;
  const readers = Array.from({ length: 4 }, async () => {
    while (!done || seen.length < 5) seen.push(await read());
  });
  const { exit, json } = await system.run(['replay', A.dataset, '--from', DAYS[4], '--to', DAYS[6]]);
  done = true;
  await Promise.all(readers);
  expect([exit, json.units.map(({ state }: Json) => state)]).toEqual([0, ['replaced', 'replaced', 'replaced']]);
  // One day after the other is mended: each of them is whole in every answer.
  const versions = (text: string) =>
    [4001, 5001, 6001].map((id) => {
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
