/** Named keys without a database: their text, who is let through when, and the limits of a key. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { Problem } from '../../serving/contract/problems.ts';
import { Caller, Callers, KeyWatch } from '../../serving/http/caller.ts';
import { KeyLimits } from '../../serving/limits/key-limits.ts';
import { coversInstrument } from '../../shared/instrument-names.ts';
import { isKeyName, keyDigest, keyIdOf, newKey } from '../../shared/keys/key.ts';
import type { KeyRecord } from '../../shared/keys/store.ts';

const recordOf = (key: { id: string; digest: Buffer }, more: Partial<KeyRecord> = {}): KeyRecord => ({
  name: 'reader',
  state: 'active',
  scopes: ['read'],
  datasets: null,
  requestsPerMinute: null,
  concurrentReads: null,
  createdAt: new Date(0),
  expiresAt: null,
  rotatedAt: null,
  revokedAt: null,
  previousUntil: null,
  previousDigest: null,
  previousHolds: false,
  ...key,
  ...more,
});

const asking = (key: string) => ({ headers: { 'x-api-key': key } }) as unknown as IncomingMessage;
const codeOf = async (work: Promise<{ refusal?: Problem }>) => {
  try {
    return (await work).refusal?.code ?? 'passes';
  } catch (error) {
    return (error as Problem).code;
  }
};

describe('the text of a key', () => {
  test('names its id, has 256 random bits, and is kept as a digest', () => {
    const keys = Array.from({ length: 100 }, () => newKey());
    for (const { id, text, digest } of keys) {
      expect(text).toMatch(/^tmk_[0-9a-f]{12}_[A-Za-z0-9_-]{43}$/);
      expect(keyIdOf(text)).toBe(id);
      expect(digest).toEqual(keyDigest(text));
    }
    expect(new Set(keys.map(({ text }) => text.slice(-43))).size).toBe(keys.length);
    expect(new Set(keys.map(({ id }) => id)).size).toBe(keys.length);
  });

  test('of any other form has no id', () => {
    const { text } = newKey();
    fc.assert(
      fc.property(fc.nat(text.length - 1), fc.constantFrom('', '!', 'é', '__', ' '), (at, other) => {
        expect(keyIdOf(text.slice(0, at) + other + text.slice(at + 1))).toBeUndefined();
      }),
    );
  });

  test.each(['', 'owner', 'metrics', '-a', '.a', 'a b', 'a/b', 'é', 'a\n', 'x'.repeat(65)])('%j is no name', (name) => {
    expect(isKeyName(name)).toBe(false);
  });

  test.each(['a', '0', 'Desk.of_A-1', 'Owner', 'x'.repeat(64)])('%j is a name', (name) => {
    expect(isKeyName(name)).toBe(true);
  });
});

describe('a caller', () => {
  const key = newKey();
  const previous = newKey(key.id);
  const callersOf = (records: readonly KeyRecord[]) =>
    new Callers({ owner: ['the owner’s'], scraper: 'scrape', load: async () => records });

  test.each([
    ['holds', {}, 'passes', 'AUTH_INVALID_API_KEY'],
    ['was revoked', { state: 'revoked', revokedAt: new Date(0) }, 'AUTH_KEY_REVOKED', 'AUTH_INVALID_API_KEY'],
    ['expired', { state: 'expired', expiresAt: new Date(0) }, 'AUTH_KEY_EXPIRED', 'AUTH_INVALID_API_KEY'],
    ['was replaced', { previousDigest: previous.digest, rotatedAt: new Date(0) }, 'passes', 'AUTH_KEY_REVOKED'],
    ['was replaced with grace', { previousDigest: previous.digest, previousHolds: true }, 'passes', 'passes'],
    [
      'was replaced with grace, and revoked',
      { previousDigest: previous.digest, previousHolds: true, state: 'revoked', revokedAt: new Date(0) },
      'AUTH_KEY_REVOKED',
      'AUTH_KEY_REVOKED',
    ],
  ] as const)('whose key %s', async (_, more, current, before) => {
    const callers = callersOf([recordOf(key, more)]);
    expect(await codeOf(callers.identify(asking(key.text), 'read'))).toBe(current);
    expect(await codeOf(callers.identify(asking(previous.text), 'read'))).toBe(before);
  });

  test('learns nothing with a wrong secret: neither of an unknown id nor of a known one, whatever its state', async () => {
    const revoked = newKey();
    const callers = callersOf([recordOf(key), recordOf(revoked, { state: 'revoked', revokedAt: new Date(0) })]);
    const said = new Set<string>();
    const swapped = (text: string) => text.slice(0, 17) + newKey().text.slice(17);
    for (const text of [newKey().text, swapped(key.text), swapped(revoked.text), 'tmk_', 'x', `${key.text}x`]) {
      const error = await callers.identify(asking(text), 'read').catch((thrown: Problem) => thrown);
      expect(error).toBeInstanceOf(Problem);
      said.add(JSON.stringify([(error as Problem).code, (error as Problem).message]));
    }
    expect([...said]).toEqual([expect.stringContaining('AUTH_INVALID_API_KEY')]);
  });

  test('with the key of scrapers reads the metrics alone', async () => {
    const callers = callersOf([]);
    expect((await callers.identify(asking('scrape'), 'metrics')).caller).toBe(Caller.SCRAPER);
    expect(await codeOf(callers.identify(asking('scrape'), 'read'))).toBe('AUTH_INVALID_API_KEY');
    const bearer = { headers: { authorization: `Bearer ${key.text}` } } as IncomingMessage;
    expect(await codeOf(callersOf([recordOf(key)]).identify(bearer, 'metrics'))).toBe('passes');
    expect(await codeOf(callersOf([recordOf(key)]).identify(bearer, 'read'))).toBe('AUTH_INVALID_API_KEY');
  });
});

describe('the look-up of keys', () => {
  const key = newKey();

  test('is one for all requests of a second, and never for the owner’s key or a text that is no key', async () => {
    let [now, loads] = [0, 0];
    const load = async () => {
      loads++;
      return [recordOf(key)];
    };
    const callers = new Callers({ owner: ['own'], scraper: undefined, load, now: () => now });
    await callers.identify(asking('own'), 'read');
    await codeOf(callers.identify(asking('tmk_x'), 'read'));
    expect(loads).toBe(0);
    for (now = 0; now < 5000; now += 50) {
      await Promise.all(Array.from({ length: 5 }, () => callers.identify(asking(key.text), 'read')));
    }
    expect(loads).toBeGreaterThanOrEqual(5);
    expect(loads).toBeLessThanOrEqual(7);
  });

  test('is repeated before a key is refused as wrong, once for all that wait, whether its id is known or not', async () => {
    let [now, loads] = [0, 0];
    const records: KeyRecord[] = [];
    const load = async () => {
      loads++;
      return [...records];
    };
    const callers = new Callers({ owner: [], scraper: undefined, load, now: () => now });
    expect(await codeOf(callers.identify(asking(key.text), 'read'))).toBe('AUTH_INVALID_API_KEY');
    records.push(recordOf(key));
    now = 10;
    expect(await codeOf(callers.identify(asking(key.text), 'read'))).toBe('passes');
    for (const text of [newKey().text, newKey(key.id).text]) {
      now += 400;
      loads = 0;
      await Promise.all(Array.from({ length: 10 }, () => codeOf(callers.identify(asking(text), 'read'))));
      expect(loads).toBe(1);
    }
  });

  test('never decides by what is a second old, even if another request began the load long ago', async () => {
    let now = 0;
    let record = recordOf(key);
    const held: (() => void)[] = [];
    const load = () => {
      const seen = [record];
      return new Promise<KeyRecord[]>((resolve) => held.push(() => resolve(seen)));
    };
    const callers = new Callers({ owner: [], scraper: undefined, load, now: () => now });
    const first = codeOf(callers.identify(asking(key.text), 'read'));
    // It is revoked after the load began, and the load takes a second.
    record = recordOf(key, { state: 'revoked', revokedAt: new Date(0) });
    now = 1000;
    const late = codeOf(callers.identify(asking(key.text), 'read'));
    held.shift()!();
    expect(await first).toBe('passes');
    await expect.poll(() => held.length).toBe(1);
    held.shift()!();
    expect(await late).toBe('AUTH_KEY_REVOKED');
  });

  test('that fails is 503 for named keys, whether they are known or not, and is tried again', async () => {
    let isUp = false;
    const load = async () => {
      if (!isUp) throw new Error('down');
      return [recordOf(key)];
    };
    const callers = new Callers({ owner: ['own'], scraper: undefined, load });
    expect(await codeOf(callers.identify(asking(key.text), 'read'))).toBe('AUTH_KEYS_UNAVAILABLE');
    expect(await codeOf(callers.identify(asking(newKey().text), 'read'))).toBe('AUTH_KEYS_UNAVAILABLE');
    expect(await codeOf(callers.identify(asking('own'), 'read'))).toBe('passes');
    isUp = true;
    expect(await codeOf(callers.identify(asking(key.text), 'read'))).toBe('passes');
  });

  test('that fails ends no answer in progress; one that finds its key revoked does', async () => {
    let [isUp, loads] = [false, 0];
    const load = async () => {
      loads++;
      if (!isUp) throw new Error('down');
      return [recordOf(key, { state: 'revoked', revokedAt: new Date(0) })];
    };
    const watch = new KeyWatch(new Callers({ owner: [], scraper: undefined, load }));
    const ended: string[] = [];
    const stop = watch.watch(asking(key.text), 'read', ({ code }) => ended.push(code));
    await expect.poll(() => loads).toBeGreaterThan(2);
    expect(ended).toEqual([]);
    isUp = true;
    await expect.poll(() => ended).toContain('AUTH_KEY_REVOKED');
    stop();
  });
});

describe('requests a minute', () => {
  beforeEach(() => void vi.useFakeTimers({ toFake: ['performance'] }));
  afterEach(() => void vi.useRealTimers());

  /** Requests of a key that may make so many a minute. */
  function requests(perMinute: number) {
    const limits = new KeyLimits();
    const caller = new Caller('reader', recordOf(newKey(), { requestsPerMinute: perMinute }));
    return () => {
      const headers = new Map<string, string>();
      const response = { setHeader: (name: string, value: string) => headers.set(name, value) };
      let [passes, detail] = [true, ''];
      try {
        limits.countRequest(caller, response as unknown as ServerResponse);
      } catch (error) {
        [passes, detail] = [false, (error as Problem).message];
      }
      expect(headers.get('RateLimit-Policy')).toBe(`"requests";q=${perMinute};w=60`);
      const [, remaining, seconds] = /^"requests";r=(\d+);t=(\d+)$/.exec(headers.get('RateLimit')!)!;
      if (!passes) expect(detail).toContain(`${perMinute} requests a minute. Try again in ${seconds} s`);
      return { passes, remaining: Number(remaining), seconds: Number(seconds) };
    };
  }

  test('pass while there are tokens, which come evenly', () => {
    const ask = requests(3);
    expect(ask()).toEqual({ passes: true, remaining: 2, seconds: 20 });
    expect([ask(), ask()].map(({ passes }) => passes)).toEqual([true, true]);
    expect(ask()).toEqual({ passes: false, remaining: 0, seconds: 20 });
    vi.advanceTimersByTime(19_000);
    expect(ask()).toEqual({ passes: false, remaining: 0, seconds: 1 });
    vi.advanceTimersByTime(1000);
    expect(ask()).toEqual({ passes: true, remaining: 0, seconds: 20 });
    vi.advanceTimersByTime(10_000_000);
    expect(ask()).toEqual({ passes: true, remaining: 2, seconds: 20 });
  });

  test('are in any minute at most twice as many, and a caller that waits as it is told passes', () => {
    const waits = fc.array(fc.integer({ min: 0, max: 30_000 }), { minLength: 1, maxLength: 60 });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 100 }), waits, (perMinute, gaps) => {
        const ask = requests(perMinute);
        const passed: number[] = [];
        for (const gap of gaps) {
          vi.advanceTimersByTime(gap);
          const { passes, remaining, seconds } = ask();
          expect(remaining).toBeLessThan(perMinute);
          if (!passes) {
            // A hair more: tokens are fractions.
            vi.advanceTimersByTime(seconds * 1000 + 1);
            expect(ask().passes).toBe(true);
          }
          passed.push(performance.now());
        }
        for (const at of passed) {
          const within = passed.filter((other) => other >= at && other < at + 60_000).length;
          expect(within).toBeLessThanOrEqual(2 * perMinute);
        }
      }),
    );
  });

  test('of the owner are not counted', () => {
    new KeyLimits().countRequest(Caller.OWNER, undefined as unknown as ServerResponse);
  });
});

test('reads at once are counted by key, and by nothing but reads', () => {
  const limits = new KeyLimits();
  const callerOf = (name: string) => new Caller(name, recordOf(newKey(), { name, concurrentReads: 2 }));
  const [one, other] = [callerOf('one'), callerOf('other')];
  const ends = [limits.beginRead(one, 'read'), limits.beginRead(one, 'read')];
  expect(() => limits.beginRead(one, 'read')).toThrow(/2 reads at once/);
  limits.beginRead(one, 'export');
  limits.beginRead(other, 'read');
  ends[0]();
  limits.beginRead(one, 'read');
  expect(() => limits.beginRead(one, 'read')).toThrow();
});

describe('what a key covers', () => {
  const A = 'exchange_a_spot_trades';
  test.each([
    [null, A, 'ETHUSDT', true],
    [[A], A, 'ETHUSDT', true],
    [[A], A, 'BTCUSDT', true],
    [[`${A}:ETHUSDT`], A, 'ETHUSDT', true],
    [[`${A}:ETHUSDT`], A, 'BTCUSDT', false],
    [[`${A}:ETHUSDT`], A, 'ETHUSD', false],
    [[`${A}:ETHUSDT`], A, undefined, true],
    [[`${A}:BTCUSDT`], 'exchange_b_spot_trades', 'BTCUSDT', false],
    [['etf_daily_metrics'], 'etf_daily_metrics', undefined, true],
    [['etf_daily_metrics'], 'macro_series_metrics', undefined, false],
  ])('%j and %s %s: %s', (entries, dataset, instrument, covered) => {
    expect(coversInstrument(entries, dataset, instrument)).toBe(covered);
  });
});
