/** The publisher's two tables, cell by cell, and the courses that documents take through a backfill. */
import { DatabaseError } from 'pg';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { Attempts } from '../../pipelines/publisher/attempts.ts';
import { type BackfillNeeds, backfill } from '../../pipelines/publisher/backfill.ts';
import type { DocumentEnd, PublishOutcome } from '../../pipelines/publisher/publisher.ts';
import {
  COURSE,
  Course,
  type FaultKind,
  faultOf,
  TRACK,
  transition,
} from '../../pipelines/publisher/publisher-states.ts';
import { type DocumentRequest, ReadAgain, type Source } from '../../pipelines/sources/feed-types.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import { codeOf, TidemarkError } from '../../shared/errors.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { testLogger } from '../support/stack.ts';

/** Every cell that has a next state: `state message -> next`. */
const CELLS = {
  track: [
    'between write -> writing',
    'between compare -> comparing',
    'between keep -> keeping',
    'between pass -> passing',
    'between document_end -> done',
    'writing frame -> writing',
    'writing end -> between',
    'comparing frame -> comparing',
    'comparing end -> between',
    'keeping frame -> keeping',
    'keeping write -> writing',
    'keeping pass -> passing',
    'keeping end -> between',
    'passing frame -> passing',
    'passing end -> between',
    ...['between', 'writing', 'comparing', 'keeping', 'passing'].flatMap((state) => [
      `${state} interruption -> interrupted`,
      `${state} fault -> ended`,
    ]),
    'done interruption -> done',
    'done fault -> done',
  ],
  course: [
    'planning opened -> publishing',
    'planning published -> awaiting_proof',
    'publishing published -> awaiting_proof',
    'publishing again -> planning',
    ...['planning', 'publishing'].flatMap((state) => [
      `${state} outage -> pausing`,
      `${state} fault -> failed`,
      `${state} stop -> stopping`,
      `${state} interruption -> interrupted`,
    ]),
    'pausing retry -> planning',
    'pausing interruption -> interrupted',
    'awaiting_proof settled -> finished',
  ],
};

describe.each([
  ['one dataset in a document', TRACK as unknown as Record<string, Record<string, string | null>>, CELLS.track, 8 * 9],
  ['a document', COURSE as unknown as Record<string, Record<string, string | null>>, CELLS.course, 8 * 9],
])('the table of %s', (_, table, cells, count) => {
  test('has these cells, and every other one is a defect', () => {
    const met: string[] = [];
    let visited = 0;
    for (const [state, row] of Object.entries(table)) {
      for (const message of Object.keys(row)) {
        visited++;
        try {
          met.push(`${state} ${message} -> ${transition(table, state, message)}`);
        } catch (error) {
          expect(codeOf(error)).toBe('INTERNAL_INVARIANT');
        }
      }
    }
    expect(met.toSorted()).toEqual(cells.toSorted());
    expect(visited).toBe(count);
  });

  test('leads to an end from everywhere', () => {
    const next = (state: string) => Object.values(table[state]).filter((one) => one !== null && one !== state);
    for (const start of Object.keys(table)) {
      const reached = new Set([start]);
      for (const state of reached) for (const one of next(state)) reached.add(one as string);
      expect([...reached].some((state) => next(state).length === 0)).toBe(true);
    }
  });
});

test('an error is a fault of a store, of the document, or neither', () => {
  const { signal } = new AbortController();
  const database = (code: string) => Object.assign(new DatabaseError('down', 4, 'error'), { code });
  const faults: readonly (readonly [FaultKind, unknown])[] = [
    ['outage', new Error('Connection terminated unexpectedly')],
    ['outage', database('57P01')],
    ['outage', database('08006')],
    ['defect', database('42703')],
    ['defect', new TypeError('undefined is not a function')],
    ['outage', new TidemarkError('LOG_UNAVAILABLE', '')],
    ['outage', new TidemarkError('DATABASE_UNAVAILABLE', '')],
    ['conflict', new TidemarkError('LOG_CONFLICT', '')],
    ['again', new ReadAgain('')],
    ['stop', new TidemarkError('LOG_FULL', '')],
    ['stop', new TidemarkError('WORK_HELD', '')],
    ['document', new TidemarkError('SOURCE_DOCUMENT_INVALID', '')],
    // It was a fault of the document, so its attempts were abandoned.
    ['defect', new TidemarkError('INTERNAL_INVARIANT', '')],
  ];
  for (const [kind, error] of faults) expect(faultOf(error, signal)).toEqual({ kind, error });
  const error = new TidemarkError('SOURCE_DOCUMENT_INVALID', '');
  expect(faultOf(error, AbortSignal.abort())).toEqual({ kind: 'interruption', error });
});

describe('a document in a backfill', () => {
  afterEach(() => vi.restoreAllMocks());

  const dataset = datasetOf('bitcoin_block_headers');
  const [first, second] = ['1', '2'];
  const unchanged = (partition: string): PublishOutcome => ({ kind: 'unchanged', dataset, partition, rows: 1 });
  const published = (partition: string): PublishOutcome => ({
    kind: 'published',
    dataset,
    partition,
    attempt: 1,
    rows: 1,
  });
  const end: DocumentEnd = { kind: 'published', checks: [] };
  const ends = (error: unknown, signal = new AbortController().signal): DocumentEnd => {
    return { kind: 'fault', fault: faultOf(error, signal) };
  };
  const document = (...keys: string[]): DocumentRequest => ({
    period: keys.join(),
    partitions: keys.map((key) => ({ key })),
  });

  /** One try: the outcomes it reports, and its end. */
  interface Try {
    readonly outcomes?: readonly PublishOutcome[];
    /** The catalog leaves nothing to fetch. */
    readonly isLeft?: boolean;
    readonly end: () => DocumentEnd;
  }

  async function run(requests: DocumentRequest[], tries: Try[], more: Partial<BackfillNeeds> = {}) {
    const courses = new Set<Course>();
    const needs: BackfillNeeds = {
      source: { datasets: [dataset] } as unknown as Source,
      publisher: {
        async *publish(_request, course) {
          courses.add(course);
          const { outcomes = [], isLeft, end: endOf } = tries.shift()!;
          if (!isLeft) course.enter('opened');
          yield* outcomes;
          return endOf();
        },
      },
      lease,
      wait: async () => ({ state: 'proved', reason: null }),
      recordCheck: async () => {},
      log: testLogger(),
      signal: new AbortController().signal,
      ...more,
    };
    const results: string[] = [];
    for await (const { partition, state, code } of backfill(requests, needs)) {
      results.push(`${partition} ${code ?? state}`);
    }
    expect(tries).toEqual([]);
    return { results: results.toSorted(), states: [...courses].map(({ state }) => state) };
  }
  const lease = {
    ensure: async () => {},
    check: async () => {},
    rest: async () => {},
    [Symbol.asyncDispose]: async () => {},
  };

  test('that is published and proved is finished', async () => {
    const { results, states } = await run(
      [document(first, second)],
      [{ outcomes: [published(first), unchanged(second)], end: () => end }],
    );
    expect([results, states]).toEqual([['1 proved', '2 unchanged'], ['finished']]);
  });

  test('whose partitions the catalog leaves alone is finished without being opened', async () => {
    const { results, states } = await run(
      [document(first)],
      [{ outcomes: [unchanged(first)], isLeft: true, end: () => end }],
    );
    expect([results, states]).toEqual([['1 unchanged'], ['finished']]);
  });

  test('that is at fault fails alone, and what had an outcome keeps it', async () => {
    const { results, states } = await run(
      [document(first, second), document('3')],
      [
        { outcomes: [published(first)], end: () => ends(new TidemarkError('SOURCE_DOCUMENT_INVALID', 'cut off')) },
        { outcomes: [unchanged('3')], end: () => end },
      ],
    );
    expect(results).toEqual(['1 proved', '2 SOURCE_DOCUMENT_INVALID', '3 unchanged']);
    expect(states).toEqual(['failed', 'finished']);
  });

  // The publisher was left suspended: the document stayed open, and a writer could go on sending.
  test('is closed when the consumer of the results ends early', async () => {
    let isClosed = false;
    const needs: BackfillNeeds = {
      ...{ source: { datasets: [dataset] } as unknown as Source, lease, log: testLogger() },
      publisher: {
        async *publish(_request, course) {
          course.enter('opened');
          try {
            yield unchanged(first);
            yield unchanged(second);
            return end;
          } finally {
            isClosed = true;
          }
        },
      },
      wait: async () => ({ state: 'proved', reason: null }),
      recordCheck: async () => {},
      signal: new AbortController().signal,
    };
    for await (const { partition } of backfill([document(first, second)], needs)) {
      expect(partition).toBe(first);
      break;
    }
    expect(isClosed).toBe(true);
  });

  test('is read again at once where its decoder asks for it', async () => {
    const { results, states } = await run(
      [document(first)],
      [{ end: () => ends(new ReadAgain('in another way')) }, { outcomes: [published(first)], end: () => end }],
    );
    expect([results, states]).toEqual([['1 proved'], ['finished']]);
  });

  test('whose decoder asks twice to be read again fails', async () => {
    const again = () => ends(new ReadAgain('in another way'));
    const { results, states } = await run([document(first)], [{ end: again }, { end: again }]);
    expect([results, states]).toEqual([['1 UNEXPECTED'], ['failed']]);
  });

  test('meets a full log: no further document is tried', async () => {
    const full = new TidemarkError('LOG_FULL', 'full');
    const { results, states } = await run([document(first), document(second)], [{ end: () => ends(full) }]);
    expect([results, states]).toEqual([['1 LOG_FULL', '2 LOG_FULL'], ['stopping']]);
  });

  test('whose lease another publisher has is not tried', async () => {
    const held = new TidemarkError('WORK_HELD', 'held');
    const { results } = await run([document(first), document(second)], [], {
      lease: { ...lease, ensure: () => Promise.reject(held) },
    });
    expect(results).toEqual(['1 WORK_HELD', '2 WORK_HELD']);
  });

  /** Lets the clock jump. */
  function clock() {
    let jumped = 0;
    const now = performance.now.bind(performance);
    vi.spyOn(performance, 'now').mockImplementation(() => now() + jumped);
    return (ms: number) => {
      jumped += ms;
    };
  }

  // Patience was counted from the start of the document: a month that takes longer than a minute was never tried again.
  test('is read again after an outage, however long it was read before', async () => {
    const jump = clock();
    const lost = () => {
      jump(600_000);
      return ends(new Error('Connection terminated unexpectedly'));
    };
    const { results, states } = await run(
      [document(first, second)],
      [
        { outcomes: [published(first)], end: lost },
        { outcomes: [published(first), published(second)], end: () => end },
      ],
    );
    expect([results, states]).toEqual([['1 proved', '2 proved'], ['finished']]);
  });

  test.each(['DATABASE_UNAVAILABLE', 'LOG_CONFLICT'] as const)('fails when %s lasts for a minute', async (code) => {
    const jump = clock();
    const fails = {
      end: () => {
        jump(31_000);
        return ends(new TidemarkError(code, 'again'));
      },
    };
    const { results, states } = await run([document(first)], [fails, fails, fails]);
    expect([results, states]).toEqual([[`1 ${code}`], ['failed']]);
  });

  test('is not read again when the writer has retried for a minute', async () => {
    const away = new TidemarkError('LOG_UNAVAILABLE', 'away');
    const { results } = await run([document(first)], [{ end: () => ends(away) }]);
    expect(results).toEqual(['1 LOG_UNAVAILABLE']);
  });

  test('that the operator ends while a store is unavailable is interrupted at once', async () => {
    const stop = new AbortController();
    const lost = () => {
      setTimeout(() => stop.abort(), 50);
      return ends(new Error('Connection terminated unexpectedly'), stop.signal);
    };
    const { results, states } = await run([document(first)], [{ end: lost }], { signal: stop.signal });
    expect([results, states]).toEqual([['1 INTERRUPTED'], ['interrupted']]);
  });

  test('of which a proof does not come reports that partition, and is finished', async () => {
    const late = new TidemarkError('PARTITION_TIMEOUT', 'no projector');
    const { results, states } = await run(
      [document(first, second)],
      [{ outcomes: [published(first), published(second)], end: () => end }],
      {
        wait: async (_, key) =>
          key === first ? { state: 'unknown', error: late } : { state: 'quarantined', reason: '' },
      },
    );
    expect([results, states]).toEqual([['1 PARTITION_TIMEOUT', '2 PARTITION_PROOF_FAILED'], ['finished']]);
  });
});

// What was left to be abandoned was forgotten before the first was, so a lost connection left the others open for good.
test('attempts that an outage kept from being abandoned are abandoned after it', async () => {
  const dataset = datasetOf('bitcoin_block_headers');
  const abandoned: string[] = [];
  let isAway = true;
  const catalog = {
    async abandonAttempt(_dataset: unknown, key: string) {
      if (key === '2' && isAway) throw new Error('Connection terminated unexpectedly');
      abandoned.push(key);
    },
  } as unknown as Catalog;
  const options = { frameRawBytes: 4096, window: 8, synthetic: false };
  const attempts = new Attempts(undefined as never, catalog, options, testLogger());
  const course = new Course(new AbortController().signal);
  for (const key of ['1', '2', '3']) course.open.set(key, { dataset, key, attempt: 1 });
  await expect(attempts.abandonOpen(course, 'gone')).rejects.toThrow('Connection terminated');
  isAway = false;
  await attempts.abandonOpen(course, 'gone');
  expect([abandoned, course.open.size]).toEqual([['1', '2', '3'], 0]);
});
