/** When a command gives up waiting for a projector: it looks at proofs, and at whether anything moves. */
import { afterEach, expect, test, vi } from 'vitest';
import { ProjectorWatch } from '../../pipelines/publisher/await-proof.ts';
import type { Catalog, ProjectorActivity } from '../../shared/db/catalog.ts';
import { datasetOf } from '../../shared/registry/index.ts';

afterEach(() => void vi.restoreAllMocks());

const TIMEOUT_MS = 300_000;

/** A watch of a projector that shows this activity, and a clock that the test moves. */
async function watching(shown: ProjectorActivity) {
  let now = 1000;
  vi.spyOn(performance, 'now').mockImplementation(() => now);
  const activity = { ...shown };
  const catalog = { projectorActivity: async () => ({ ...activity }) } as unknown as Catalog;
  const watch = new ProjectorWatch(catalog, datasetOf('exchange_a_spot_trades'));
  await watch.poll();
  const pass = async (ms: number) => {
    now += ms;
    await watch.poll();
  };
  return { watch, activity, pass };
}

const HOLDER = { name: 'projector', pid: 7, since: new Date(0) };
const IDLE = { sequence: 5, holder: HOLDER, activity: '7', isBusy: false };

// A day that took longer than the timeout to load failed with "nothing has moved for 0 s".
test('a projector at work was given up because nothing was proved meanwhile', async () => {
  const { watch, activity, pass } = await watching({ ...IDLE, isBusy: true });
  await pass(2 * TIMEOUT_MS);
  expect([watch.sinceStepMs, watch.stillMs]).toEqual([2 * TIMEOUT_MS, 0]);
  expect(watch.limitOver(TIMEOUT_MS)).toBeUndefined();
  // Its COPY grows between two looks that find it idle.
  activity.isBusy = false;
  activity.activity = '7 1000';
  await pass(TIMEOUT_MS);
  expect(watch.limitOver(TIMEOUT_MS)).toBeUndefined();
  await pass(TIMEOUT_MS - 1);
  expect(watch.limitOver(TIMEOUT_MS)).toBeUndefined();
  await pass(1);
  expect(watch.limitOver(TIMEOUT_MS)).toBe(TIMEOUT_MS);
  expect(watch.describe()).toContain('nothing was proved for 1200 s, and nothing has moved for 300 s');
});

test('a projector that works in vain is awaited for twelve timeouts, and any proof begins them again', async () => {
  const { watch, activity, pass } = await watching({ ...IDLE, isBusy: true });
  await pass(12 * TIMEOUT_MS - 1);
  expect(watch.limitOver(TIMEOUT_MS)).toBeUndefined();
  await pass(1);
  expect(watch.limitOver(TIMEOUT_MS)).toBe(12 * TIMEOUT_MS);
  activity.sequence = 6;
  await pass(0);
  expect(watch.limitOver(TIMEOUT_MS)).toBeUndefined();
});
