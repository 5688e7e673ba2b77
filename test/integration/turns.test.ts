/** Long results take turns, and slots are left to small reads: nobody waits for a read that takes minutes. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  FairScheduler,
  PAUSE_MS,
  PgConnection,
  RECENT_MS,
  type RowSink,
  WAIT_MS,
} from '../../serving/db/pg-connection.ts';
import { ConcurrencyLimiter, PARKED_PER_SLOT } from '../../serving/limits/concurrency-limiter.ts';
import { eventually } from '../support/serving.ts';
import { createTestEnv, execute, type TestEnv } from '../support/stack.ts';

/** Some 100 ms of reading: many slices on any machine. */
const ROWS = 1_000_000;

describe('a connection with a long read', () => {
  let env: TestEnv;
  beforeAll(async () => {
    env = await createTestEnv();
  });
  afterAll(() => env[Symbol.asyncDispose]());

  class Count implements RowSink {
    rows = 0;
    row(): void {
      this.rows++;
    }
  }

  /** Lets nobody go on by itself. */
  class HeldTurns extends FairScheduler {
    readonly held: (() => void)[] = [];
    override wait(goOn: () => void): void {
      this.held.push(goOn);
    }
  }

  const open = (scheduler: FairScheduler) =>
    PgConnection.open({ url: env.databaseUrl, name: 'test', connectTimeoutMs: 30_000, scheduler });
  const long = (sink: RowSink) => [{ statement: { text: `select n, n from generate_series(1, ${ROWS}) n` }, sink }];
  /** As many turns of the loop as a socket that is read would need to show it. */
  const turnsOfTheLoop = async (count: number) => {
    for (let i = 0; i < count; i++) await new Promise((resolve) => setImmediate(resolve));
  };

  test('stops after a slice until it is its turn, and is read to the end', async () => {
    const scheduler = new HeldTurns();
    const connection = await open(scheduler);
    const count = new Count();
    let ended = false;
    const running = connection.run(long(count)).then(() => (ended = true));
    let slices = 0;
    for (;;) {
      await eventually(async () => ended || scheduler.held.length > 0, 'a slice is read');
      if (ended) break;
      const { rows } = count;
      expect(scheduler.held).toHaveLength(1);
      if (slices++ < 3) {
        await turnsOfTheLoop(50);
        expect(count.rows).toBe(rows);
      }
      scheduler.held.shift()!();
    }
    await running;
    expect(slices).toBeGreaterThan(3);
    expect(count.rows).toBe(ROWS);
    connection.end();
  });

  test('that its receiver holds back does not go on when its turn comes', async () => {
    const scheduler = new HeldTurns();
    const connection = await open(scheduler);
    const count = new Count();
    const running = connection.run(long(count));
    await eventually(async () => scheduler.held.length > 0, 'a slice is read');
    const { rows } = count;
    connection.pause();
    scheduler.held.shift()!();
    await turnsOfTheLoop(50);
    expect([count.rows, connection.isPaused]).toEqual([rows, true]);
    connection.resume();
    const ended = running.then(() => true);
    const goOn = setInterval(() => scheduler.held.shift()?.(), 0);
    expect(await ended).toBe(true);
    clearInterval(goOn);
    expect(count.rows).toBe(ROWS);
    connection.end();
  });

  test('is short until it has taken a slice, and begins and ends with its transaction', async () => {
    const seen: string[] = [];
    class Noted extends FairScheduler {
      #isShort = false;
      override begin(read: object): void {
        this.#isShort = true;
        seen.push('short');
        super.begin(read);
      }
      override end(read: object, isLong?: boolean): void {
        if (this.#isShort) seen.push(isLong ? 'long' : 'ended');
        this.#isShort = false;
        super.end(read, isLong);
      }
    }
    const connection = await open(new Noted());
    const run = async (text: string) => {
      seen.length = 0;
      await connection.run([{ statement: { text }, sink: new Count() }]);
      return [...seen];
    };
    const million = long(new Count())[0].statement.text;
    expect(await run('select 1')).toEqual(['short', 'ended']);
    expect([await run('begin'), await run('select 1'), await run('commit')]).toEqual([['short'], [], ['ended']]);
    expect([await run('begin'), await run(million), await run('select 1')]).toEqual([['short'], ['long'], []]);
    connection.abandon();
  });

  test('that is held is read ahead to a bound, and passes its rows on when it is released', async () => {
    const connection = await open(new FairScheduler());
    const wide = `select n, repeat(n::text || '.', 100) from generate_series(1, ${ROWS / 10}) n`;
    const seen: Buffer[] = [];
    const sink: RowSink = {
      row: (_, bytes, at, length) => void seen.push(Buffer.from(bytes.subarray(at, at + length))),
    };
    connection.hold();
    const running = connection.run([{ statement: { text: wide }, sink }]);
    await eventually(async () => {
      const { rows } = await execute(
        env.databaseUrl,
        `select wait_event from pg_stat_activity where pid = ${connection.processId}`,
      );
      return rows[0].wait_event === 'ClientWrite';
    }, 'the backend waits');
    expect(seen).toHaveLength(0);
    connection.release();
    await running;
    expect(seen).toHaveLength(ROWS / 10);
    const textOf = (cells: Buffer) => cells.subarray(8 + cells.readInt32BE(0)).toString();
    expect(seen.every((cells, index) => textOf(cells) === `${index + 1}.`.repeat(100))).toBe(true);
    connection.end();
  });

  test('serves the next statement after one that ended', async () => {
    const connection = await open(new FairScheduler());
    const count = new Count();
    for (let i = 0; i < 2; i++) {
      await connection.run([...long(count), { statement: { text: 'select 1' }, sink: count }]);
    }
    expect(count.rows).toBe(2 * (ROWS + 1));
    connection.end();
  });
});

describe('turns', () => {
  beforeEach(() => void vi.useFakeTimers({ toFake: ['performance', 'setTimeout', 'clearTimeout', 'setImmediate'] }));
  afterEach(() => void vi.useRealTimers());

  const waiting = (scheduler: FairScheduler, ...names: string[]) => {
    const seen: string[] = [];
    for (const name of names) scheduler.wait(() => seen.push(name));
    return seen;
  };
  const nextTurn = () => vi.advanceTimersToNextTimer();

  test('come one in each turn of the loop, in order', () => {
    const seen = waiting(new FairScheduler(), 'a', 'b', 'c');
    const byTurn = Array.from({ length: 4 }, () => nextTurn() && seen.join(''));
    expect(byTurn).toEqual(['a', 'ab', 'abc', 'abc']);
  });

  test('come when the last short read has ended', () => {
    const scheduler = new FairScheduler();
    const startedAt = performance.now();
    const [first, second] = [{}, {}];
    scheduler.begin(first);
    const seen = waiting(scheduler, 'a', 'b');
    vi.advanceTimersByTime(WAIT_MS - 2);
    scheduler.begin(second);
    scheduler.end(first);
    vi.advanceTimersByTime(1);
    expect(seen).toEqual([]);
    scheduler.end(second);
    nextTurn();
    expect([seen, performance.now() - startedAt]).toEqual([['a'], WAIT_MS - 1 + PAUSE_MS]);
    nextTurn();
    expect([seen, vi.getTimerCount()]).toEqual([['a', 'b'], 0]);
  });

  // A long read slept between its slices, because its own first statement counted as a short read that had ended.
  test('come at once for a read that is alone: that it is long is no end of a short one', () => {
    const scheduler = new FairScheduler();
    const startedAt = performance.now();
    const own = {};
    scheduler.begin(own);
    scheduler.end(own, true);
    const seen = waiting(scheduler, 'a');
    nextTurn();
    expect([seen, performance.now() - startedAt]).toEqual([['a'], 0]);
  });

  test('come a pause apart while short reads keep coming, and at once again later', () => {
    const scheduler = new FairScheduler();
    const other = {};
    scheduler.begin(other);
    scheduler.end(other);
    const seen = waiting(scheduler, 'a', 'b');
    vi.advanceTimersByTime(PAUSE_MS / 2);
    expect(seen).toEqual([]);
    vi.advanceTimersByTime(PAUSE_MS);
    expect(seen).toEqual(['a']);
    vi.advanceTimersByTime(RECENT_MS);
    expect(seen).toEqual(['a', 'b']);
    const startedAt = performance.now();
    scheduler.wait(() => seen.push('c'));
    nextTurn();
    expect([seen, performance.now() - startedAt]).toEqual([['a', 'b', 'c'], 0]);
  });

  test('are not put off by the next short read of a connection, which begins as soon as the last has ended', () => {
    const scheduler = new FairScheduler();
    const read = {};
    scheduler.begin(read);
    const seen = waiting(scheduler, 'a');
    nextTurn();
    for (let step = 1; step < WAIT_MS; step++) {
      scheduler.end(read);
      scheduler.begin(read);
      vi.advanceTimersByTime(1);
      expect(seen).toEqual([]);
    }
    vi.advanceTimersByTime(1);
    expect(seen).toEqual(['a']);
  });

  test('come after a while, however many short reads begin', () => {
    const scheduler = new FairScheduler();
    const seen = waiting(scheduler, 'a', 'b');
    for (let ms = 0; ms < WAIT_MS; ms++) {
      expect(seen).toEqual([]);
      scheduler.begin({});
      vi.advanceTimersByTime(1);
    }
    expect(seen).toEqual(['a']);
    nextTurn();
    expect(seen).toEqual(['a', 'b']);
  });

  test('are not held by a read that takes longer: it is not short', () => {
    const scheduler = new FairScheduler();
    scheduler.begin({});
    vi.advanceTimersByTime(WAIT_MS);
    const seen = waiting(scheduler, 'a');
    nextTurn();
    expect(seen).toEqual(['a']);
  });
});

describe('slots', () => {
  const slotsOf = (running: number) =>
    new ConcurrencyLimiter({ running, waiting: 10, timeoutMs: 60_000, code: 'QUERY_QUEUE_LIMIT_REACHED' });
  const { signal } = new AbortController();

  test('a fourth of them is left to small reads by those of any size', async () => {
    const slots = slotsOf(8);
    const large = await Promise.all(Array.from({ length: 6 }, () => slots.acquire(signal)));
    const seventh = slots.acquire(signal);
    expect(slots.load).toEqual({ running: 6, waiting: 1, parked: 0 });
    const small = await Promise.all([slots.acquire(signal, 'small'), slots.acquire(signal, 'small')]);
    expect(slots.load).toEqual({ running: 8, waiting: 1, parked: 0 });
    // A small read's slot is not for the large one that waits, though it waits for longer than the next small one.
    const third = slots.acquire(signal, 'small');
    small[0].release();
    await third;
    small[1].release();
    expect(slots.load).toEqual({ running: 7, waiting: 1, parked: 0 });
    large[0].release();
    await seventh;
    expect(slots.load).toEqual({ running: 7, waiting: 0, parked: 0 });
  });

  test('small reads take all of them when nobody else wants any', async () => {
    const slots = slotsOf(8);
    const small = await Promise.all(Array.from({ length: 8 }, () => slots.acquire(signal, 'small')));
    const large = slots.acquire(signal);
    expect(slots.load).toEqual({ running: 8, waiting: 1, parked: 0 });
    small[0].release();
    await large;
  });

  test('a parked read that comes back takes none of the slots of small ones', async () => {
    const slots = slotsOf(4);
    const [parked, ...others] = await Promise.all(Array.from({ length: 3 }, () => slots.acquire(signal)));
    parked.park(() => {});
    const taken = await slots.acquire(signal);
    const back = parked.unpark();
    expect(slots.load).toEqual({ running: 3, waiting: 0, parked: 0 });
    taken.release();
    await back;
    for (const slot of [parked, ...others]) slot.release();
    expect(slots.load).toEqual({ running: 0, waiting: 0, parked: 0 });
  });

  test('of more parked reads than there may be, the one parked longest is ended', async () => {
    const slots = slotsOf(1);
    const ended: string[] = [];
    const parked = async (name: string) => {
      const slot = await slots.acquire(signal);
      slot.park(() => ended.push(name));
      return slot;
    };
    const first = await parked('first');
    await parked('second');
    // It went on in between: the other one is parked for longer.
    await first.unpark();
    first.park(() => ended.push('first again'));
    expect([ended, slots.load]).toEqual([[], { running: 0, waiting: 0, parked: PARKED_PER_SLOT }]);
    await parked('third');
    await parked('fourth');
    expect([ended, slots.load]).toEqual([
      ['second', 'first again'],
      { running: 0, waiting: 0, parked: PARKED_PER_SLOT },
    ]);
  });

  test('of few slots none is kept', async () => {
    const slots = slotsOf(2);
    await Promise.all([slots.acquire(signal), slots.acquire(signal)]);
    expect(slots.load).toEqual({ running: 2, waiting: 0, parked: 0 });
  });
});

// Files of one worker share globals: a spy on a simulated timer, restored by another file, made every later file wait forever.
test('leave the real timers to other files, whatever those restore', async () => {
  vi.restoreAllMocks();
  await new Promise((resolve) => setImmediate(resolve));
}, 10_000);
