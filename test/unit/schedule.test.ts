/** When `follow` looks again, and which file days it asks for again although they are proved. */
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { exchangeA } from '../../pipelines/sources/exchange_a/feed.ts';
import { mixedTurns, turns } from '../../pipelines/sources/feed-helpers.ts';
import { Rechecks } from '../../pipelines/sources/trades/rechecks.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { createLogger } from '../../shared/logger.ts';
import { faultOf } from '../support/faults.ts';

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

test('others come between them when they are due, and each turn all the same', async () => {
  const ending = new AbortController();
  const schedule = { everyMs: 40, jitterMs: 0, signal: ending.signal };
  const seen: string[] = [];
  let otherAt = performance.now() + 10;
  const times = (kind: string) => seen.filter((one) => one === kind).length;
  for await (const turn of mixedTurns(schedule, async () => otherAt - performance.now())) {
    seen.push(turn);
    if (turn === 'other') otherAt = performance.now() + 10;
    if (times('turn') >= 3 && times('other') >= 3) ending.abort();
  }
  expect(seen[0]).toBe('turn');
  for await (const turn of mixedTurns({ ...schedule, signal: AbortSignal.timeout(20) }, async () => undefined)) {
    expect(turn).toBe('turn');
  }
});

describe('proved file days', () => {
  const clock = { now: Date.parse('2025-01-10T00:30:00Z') };
  const at = (time: string) => {
    clock.now = Date.parse(time);
  };
  const rechecks = (days: number) => new Rechecks(days, () => clock.now);
  /** Looks once, and has every day that is due answered. */
  const look = async (checks: Rechecks, lastDay: string) => {
    const due = checks.due(lastDay);
    for (const day of due) await checks.note(day, Promise.resolve());
    return due;
  };

  test("are asked for at the first look, then yesterday's at each look and the others on the next day", async () => {
    const checks = rechecks(3);
    at('2025-01-10T00:30:00Z');
    expect(await look(checks, '2025-01-09')).toEqual(['2025-01-07', '2025-01-08', '2025-01-09']);
    for (const time of ['01:30', '12:00', '23:59']) {
      at(`2025-01-10T${time}:00Z`);
      expect([time, await look(checks, '2025-01-09')]).toEqual([time, ['2025-01-09']]);
    }
    at('2025-01-11T00:01:00Z');
    expect(await look(checks, '2025-01-10')).toEqual(['2025-01-08', '2025-01-09', '2025-01-10']);
    expect(await look(checks, '2025-01-10')).toEqual(['2025-01-10']);
    // A clock that is set back does not silence them.
    at('2025-01-10T00:30:00Z');
    expect(await look(checks, '2025-01-09')).toEqual(['2025-01-07', '2025-01-08', '2025-01-09']);
  });

  test('are never asked for with 0, and with 1 yesterday alone', async () => {
    at('2025-01-10T00:30:00Z');
    expect(await look(rechecks(0), '2025-01-09')).toEqual([]);
    expect(await look(rechecks(1), '2025-01-09')).toEqual(['2025-01-09']);
  });

  test("of a vendor whose days end before midnight are asked for at each look: yesterday's and that of today", async () => {
    const checks = rechecks(3);
    at('2025-01-10T17:00:00Z');
    expect(await look(checks, '2025-01-10')).toEqual(['2025-01-08', '2025-01-09', '2025-01-10']);
    expect(await look(checks, '2025-01-10')).toEqual(['2025-01-09', '2025-01-10']);
  });

  test('whose source failed are asked for at the next look; a document that is gone is an answer', async () => {
    const checks = rechecks(3);
    at('2025-01-10T00:30:00Z');
    await look(checks, '2025-01-09');
    at('2025-01-11T00:30:00Z');
    const fails = (code: 'SOURCE_UNREACHABLE' | 'SOURCE_NOT_FOUND') => Promise.reject(new TidemarkError(code, 'no'));
    await faultOf(checks.note('2025-01-08', fails('SOURCE_UNREACHABLE')), 'SOURCE_UNREACHABLE');
    await faultOf(checks.note('2025-01-09', fails('SOURCE_NOT_FOUND')), 'SOURCE_NOT_FOUND');
    expect(checks.due('2025-01-10')).toEqual(['2025-01-08', '2025-01-10']);
    // The digest of another document was answered, and the document was not.
    await checks.note('2025-01-08', Promise.resolve());
    await faultOf(checks.note('2025-01-08', fails('SOURCE_UNREACHABLE')), 'SOURCE_UNREACHABLE');
    expect(checks.due('2025-01-10')).toEqual(['2025-01-08', '2025-01-10']);
  });
});

describe('a look of an exchange', () => {
  const [feed] = exchangeA.feeds;
  const day = (before: number) => new Date(Date.now() - before * 86_400_000).toISOString().slice(0, 10);

  /** The days that one look asks for, in order; of the days that are not in `states` nothing is known. */
  const lookedFor = async (recheckDays: number, states: Record<string, 'proved' | 'quarantined'>) => {
    const ending = new AbortController();
    const settings = { ...loadSettings({ env: {}, cwd: '/', limits: { recheckDays } }) };
    Object.assign(settings, { SVC_FOLLOW_FILES_SECONDS: 0.001 });
    let looks = 0;
    const catalog = {
      firstKey: async () => Object.keys(states).sort()[0],
      lastAsked: async () => undefined,
      endedKeys: async () => {
        if (++looks === 2) ending.abort();
        return new Map(Object.entries(states));
      },
    };
    const needs = { settings, log: createLogger('silent', 'test'), signal: ending.signal };
    const location = new URL('file:///archive/');
    await using opened = await feed.open({ ...needs, location, catalog: catalog as unknown as Catalog });
    const events = await Array.fromAsync(opened.follow!());
    return events.map((event) => event.kind === 'document' && event.request.period);
  };

  test('asks for what is missing, then for what is proved within the last days, never for what is quarantined', async () => {
    const states = {
      [day(9)]: 'proved',
      [day(8)]: 'proved',
      [day(3)]: 'proved',
      [day(2)]: 'quarantined',
      [day(1)]: 'proved',
    } as const;
    const missing = [7, 6, 5, 4].map(day);
    expect(await lookedFor(8, states)).toEqual([...missing, day(8), day(3), day(1)]);
    expect(await lookedFor(1, states)).toEqual([...missing, day(1)]);
    expect(await lookedFor(0, states)).toEqual(missing);
    // More than the days that are looked for when they are missing.
    expect(await lookedFor(40, { [day(40)]: 'proved', ...states })).toContain(day(40));
  });
});
