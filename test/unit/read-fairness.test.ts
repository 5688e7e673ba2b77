/** The slots of reads between callers: whoever floods the queue gets its share, and nobody else waits for it. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ConcurrencyLimiter, type Slot } from '../../serving/limits/concurrency-limiter.ts';
import { OWNER } from '../../shared/keys/key.ts';

const { signal } = new AbortController();
const limiterOf = (running: number, waiting: number) =>
  new ConcurrencyLimiter({ running, waiting, timeoutMs: 60_000, code: 'QUERY_QUEUE_LIMIT_REACHED' });
/** Promises that a release resolved have called back by then. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

/** A limiter, and who runs, in order of admission, and who was refused. */
class Callers {
  readonly limiter: ConcurrencyLimiter;
  readonly admitted: string[] = [];
  readonly refused: string[] = [];
  /** Positions of the refused reads among all. */
  readonly refusedAt: number[] = [];
  #asked = 0;
  readonly running: { readonly caller: string; readonly slot: Slot }[] = [];

  constructor(running: number, waiting: number) {
    this.limiter = limiterOf(running, waiting);
  }

  async read(caller: string, size: 'small' | 'any' = 'any'): Promise<void> {
    const at = this.#asked++;
    this.limiter.acquire(signal, size, caller).then(
      (slot) => {
        this.admitted.push(caller);
        this.running.push({ caller, slot });
      },
      () => {
        this.refused.push(caller);
        this.refusedAt.push(at);
      },
    );
    await settled();
  }

  async end(at = 0): Promise<void> {
    this.running.splice(at, 1)[0]?.slot.release();
    await settled();
  }

  runs(caller: string): number {
    return this.running.filter((one) => one.caller === caller).length;
  }
}

describe('a free slot', () => {
  test('goes to the caller with the fewest running reads, however long the others have waited', async () => {
    const callers = new Callers(2, 20);
    for (let at = 0; at < 12; at++) await callers.read('flood');
    await callers.read('single');
    await callers.end();
    expect(callers.admitted).toEqual(['flood', 'flood', 'single']);
  });

  test('goes round among callers with as many', async () => {
    const callers = new Callers(1, 20);
    for (const caller of ['a', 'a', 'a', 'b', 'b', 'b', 'c', 'c']) await callers.read(caller);
    for (let at = 0; at < 8; at++) await callers.end();
    expect(callers.admitted.join('')).toBe('abcabcab');
  });

  test('is not for a caller whose next read is too large for it: for its small one, or for another caller', async () => {
    const callers = new Callers(4, 20);
    for (let at = 0; at < 3; at++) await callers.read('flood');
    await callers.read('flood', 'small');
    await callers.read('large');
    await callers.read('flood', 'small');
    await callers.end(3);
    expect(callers.admitted).toEqual(['flood', 'flood', 'flood', 'flood', 'flood']);
    await callers.end(0);
    expect(callers.admitted.at(-1)).toBe('large');
  });
});

describe('a full queue', () => {
  test('takes the read of a caller that holds less than its share, and refuses the newest of the one that holds most', async () => {
    const callers = new Callers(1, 4);
    for (let at = 0; at < 5; at++) await callers.read('flood');
    await callers.read('single');
    expect([callers.refused, callers.limiter.load.waiting]).toEqual([['flood'], 4]);
    expect(callers.limiter.rejected.full).toBe(1);
    expect(callers.refusedAt).toEqual([4]);
    await callers.end();
    expect(callers.admitted).toEqual(['flood', 'single']);
  });

  test('refuses the newcomer of a caller that holds as much as the others', async () => {
    const callers = new Callers(1, 4);
    for (const caller of ['a', 'a', 'a', 'b', 'b']) await callers.read(caller);
    await callers.read('a');
    await callers.read('b');
    expect(callers.refused).toEqual(['a', 'b']);
  });

  test('takes the read of the owner where another holds more, however little that is', async () => {
    const callers = new Callers(1, 2);
    for (const caller of ['a', 'b', 'c']) await callers.read(caller);
    await callers.read('d');
    expect(callers.refused).toEqual(['d']);
    await callers.read(OWNER);
    await callers.read(OWNER);
    expect(callers.refused).toEqual(['d', 'b', OWNER]);
    await callers.end();
    await callers.end();
    expect(callers.admitted).toContain(OWNER);
  });

  test('of one place is not taken from each other in turn', async () => {
    const callers = new Callers(1, 1);
    for (const caller of ['a', 'a', 'b', 'a', 'a']) await callers.read(caller);
    expect(callers.refused).toEqual(['a', 'a', 'a']);
    await callers.end();
    expect(callers.admitted).toEqual(['a', 'b']);
  });
});

// Its client went away; a slot that was given to it then would never be given back.
test('a parked read that ends while it waits to go on gets no slot', async () => {
  const callers = new Callers(1, 4);
  await callers.read('slow');
  const [{ slot }] = callers.running.splice(0, 1);
  slot.park(() => {});
  await callers.read('other');
  let wentOn = false;
  void slot.unpark().then(() => {
    wentOn = true;
  });
  await callers.read('next');
  slot.release();
  await callers.end();
  expect([wentOn, callers.admitted]).toEqual([false, ['slow', 'other', 'next']]);
  await callers.end();
  expect(callers.limiter.load).toEqual({ running: 0, waiting: 0, parked: 0 });
});

const steps = fc.array(
  fc.oneof(
    {
      weight: 3,
      arbitrary: fc.record({
        caller: fc.constantFrom('a', 'b', 'c', 'd'),
        size: fc.constantFrom('any', 'any', 'small'),
      }),
    },
    { weight: 2, arbitrary: fc.record({ end: fc.nat(20) }) },
  ),
  { maxLength: 60 },
);
type Step = { caller: string; size: 'any' | 'small' } | { end: number };

test('at any time: slots and queue are bounded, a refused caller held its share, and all that waits is served in the end', async () => {
  const property = fc.asyncProperty(
    fc.integer({ min: 1, max: 6 }),
    fc.integer({ min: 0, max: 8 }),
    steps,
    async (running, waiting, all) => {
      const callers = new Callers(running, waiting);
      const asked = new Map<string, number>();
      const waits = (caller: string) => {
        const over = [...callers.admitted, ...callers.refused].filter((one) => one === caller).length;
        return (asked.get(caller) ?? 0) - over;
      };
      for (const step of all as Step[]) {
        const refusedBefore = callers.refused.length;
        if ('end' in step) await callers.end(callers.running.length === 0 ? 0 : step.end % callers.running.length);
        else {
          asked.set(step.caller, (asked.get(step.caller) ?? 0) + 1);
          await callers.read(step.caller, step.size);
          const own = callers.refused[refusedBefore] === step.caller;
          const holders = new Set([...asked.keys()].filter((caller) => waits(caller) > 0 || caller === step.caller));
          if (own && waiting > 0) expect(waits(step.caller)).toBeGreaterThanOrEqual(Math.floor(waiting / holders.size));
        }
        const { load } = callers.limiter;
        expect(load.running).toBe(callers.running.length);
        expect(load.running).toBeLessThanOrEqual(running);
        expect(load.waiting).toBeLessThanOrEqual(waiting);
        expect(load.waiting).toBe([...asked.keys()].reduce((sum, caller) => sum + waits(caller), 0));
      }
      while (callers.running.length > 0) await callers.end();
      expect([...asked.keys()].map(waits).every((count) => count === 0)).toBe(true);
      expect(callers.limiter.load).toEqual({ running: 0, waiting: 0, parked: 0 });
    },
  );
  await fc.assert(property, { numRuns: 200 });
});

test('under floods each caller with reads waiting runs its share of the slots, give or take one', async () => {
  const property = fc.asyncProperty(
    fc.integer({ min: 1, max: 8 }),
    fc.integer({ min: 2, max: 4 }),
    fc.array(fc.nat(100), { minLength: 40, maxLength: 80 }),
    async (running, count, ends) => {
      const callers = new Callers(running, 400);
      const names = Array.from({ length: count }, (_, at) => `caller ${at}`);
      for (const name of names) for (let at = 0; at < 100; at++) await callers.read(name, 'small');
      // The first caller took all slots, before the others came; each end passes one on.
      for (let at = 0; at < running; at++) await callers.end();
      for (const end of ends) {
        await callers.end(end % running);
        const shares = names.map((name) => callers.runs(name));
        expect(Math.max(...shares) - Math.min(...shares)).toBeLessThanOrEqual(1);
      }
    },
  );
  await fc.assert(property, { numRuns: 20 });
});
