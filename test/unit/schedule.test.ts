/** When `follow` looks again. */
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { turns } from '../../pipelines/sources/feed-helpers.ts';

/** Times of the turns, ms after the first; the consumer takes `busyMs` over each. */
async function timesOf(options: { everyMs: number; jitterMs: number; random?: () => number }, busyMs = 0) {
  const ending = new AbortController();
  const times: number[] = [];
  for await (const turn of turns({ ...options, signal: ending.signal })) {
    times.push(performance.now());
    if (turn === 3) ending.abort();
    await delay(busyMs);
  }
  return times.map((time) => time - times[0]);
}

/** Node counts a timer from the last turn of its event loop, so that each may fire some milliseconds early. */
const EARLY_MS = 8;

test('now, then after the wait and the jitter that was drawn, until it is stopped', async () => {
  const drawn = [0, 1, 0.5, 0.9];
  const times = await timesOf({ everyMs: 20, jitterMs: 40, random: () => drawn.shift()! });
  expect(times).toHaveLength(4);
  for (const [index, after] of [0, 20, 80, 120].entries())
    expect(times[index]).toBeGreaterThanOrEqual(after - index * EARLY_MS);
});

test('what takes longer than the wait is followed at once, and by one turn alone', async () => {
  const times = await timesOf({ everyMs: 5, jitterMs: 0 }, 30);
  for (const [index, time] of times.entries()) expect(time).toBeGreaterThanOrEqual(index * (30 - EARLY_MS));
});

test('a signal ends the wait', async () => {
  const ending = new AbortController();
  const startedAt = performance.now();
  for await (const _turn of turns({ everyMs: 3_600_000, jitterMs: 0, signal: ending.signal })) {
    setTimeout(() => ending.abort(), 10);
  }
  expect(performance.now() - startedAt).toBeLessThan(600_000);
});
