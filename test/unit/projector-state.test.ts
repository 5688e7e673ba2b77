/** The projector's table: every cell, what the messages of a log are to it, and when a projector that failed starts again. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isOutage, restartPause } from '../../pipelines/projector/run.ts';
import {
  type Action,
  classify,
  LOG_MESSAGES,
  MESSAGES,
  type MessageFacts,
  type ProjectorMessage,
  type ProjectorState,
  STATES,
  TABLE,
  type TransitionTable,
  transition,
} from '../../pipelines/projector/state.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { attemptOfSubject, retractionSubject, subjectOf } from '../../shared/nats/stream.ts';

const CELLS = STATES.flatMap((state) => MESSAGES.map((message) => ({ state, message, cell: TABLE[state][message] })));

/** Where the next message comes from the log or the clock. */
const READING: readonly ProjectorState[] = ['idle', 'loading', 'loading_shared', 'skipping', 'set_aside'];

describe('the table', () => {
  test('has a cell for each state and message: the next state, or why the message cannot arrive', () => {
    for (const { state, message, cell } of CELLS) {
      expect(Object.keys(TABLE[state])).toHaveLength(MESSAGES.length);
      if ('impossible' in cell) {
        expect(cell.impossible).toMatch(/\w+ \w+/);
        expect(() => transition(state, message)).toThrow(`"${message}" in state "${state}": ${cell.impossible}`);
      } else {
        expect(STATES).toContain(cell.next);
        expect(transition(state, message)).toBe(cell);
      }
    }
    expect(CELLS).toHaveLength(STATES.length * MESSAGES.length);
  });

  test('is total by its type: a row without a cell, or with a state of no name, does not compile', () => {
    const { later: _later, ...incomplete } = TABLE.idle;
    // @ts-expect-error the cell `later` is missing
    const table: TransitionTable = { ...TABLE, idle: incomplete };
    // @ts-expect-error the state does not exist
    const other: TransitionTable = { ...TABLE, idle: { ...TABLE.idle, later: { next: 'lost', action: 'wait' } } };
    expect([table, other]).toHaveLength(2);
  });

  test('ends in every state that is told to stop or whose store fails', () => {
    for (const message of ['stop', 'failure'] as const) {
      for (const state of STATES.filter((one) => one !== 'stopped')) {
        expect(transition(state, message)).toEqual({ next: 'stopped', action: 'close' });
      }
    }
    expect(() => transition('stopped', 'first')).toThrow('the projector has ended');
  });

  test('proves on one condition: the manifest of the open load is in place', () => {
    const proving = CELLS.filter(({ cell }) => 'action' in cell && cell.action === 'prove');
    expect(proving.map(({ state, message }) => [state, message])).toEqual([
      ['loading', 'own_manifest'],
      ['loading_shared', 'own_manifest'],
    ]);
  });

  test('moves the reader whenever it rewinds, and rewinds whenever something was rolled back', () => {
    for (const { message, cell } of CELLS) {
      if ('impossible' in cell) continue;
      expect([cell.next === 'rewinding', cell]).toEqual([['rewind', 'isolate'].includes(cell.action), cell]);
      if (message === 'rolled_back') expect(cell.next).toBe('rewinding');
    }
  });

  test('takes messages of the log in every state that waits for them, and in no other', () => {
    for (const state of STATES) {
      const taken = LOG_MESSAGES.filter((message) => !('impossible' in TABLE[state][message]));
      expect([state, taken.length > 0]).toEqual([state, READING.includes(state)]);
    }
  });

  test.each<[string, ProjectorState, ProjectorMessage, { next: ProjectorState; action: Action }]>([
    // It rolled the load back without a rewind, and the attempt was quarantined: its first frame was missing.
    ['a damaged retraction leaves the load alone', 'loading', 'irrelevant', { next: 'loading', action: 'wait' }],
    // The checkpoint moved past the frames that were set aside, and the attempt was quarantined when it went on.
    [
      'a retraction after a silence keeps the checkpoint',
      'set_aside',
      'retraction',
      { next: 'retracting', action: 'retractEarly' },
    ],
    // It was passed over: a manifest that was damaged never ended its attempt.
    [
      'a damaged message of a silent attempt is read again',
      'set_aside',
      'unreadable_own',
      { next: 'rewinding', action: 'rewind' },
    ],
    ['so is that of an empty partition', 'idle', 'unreadable_other', { next: 'idle', action: 'findEnd' }],
    // It was passed over where an attempt was open that its publisher had given up: the empty partition never ended.
    ['so is the one after an unfinished load', 'loading', 'unreadable_other', { next: 'idle', action: 'drop' }],
    [
      'so is the one after an unfinished load that shares its transaction',
      'loading_shared',
      'unreadable_other',
      { next: 'rewinding', action: 'isolate' },
    ],
    ['so is the one after a skipped attempt', 'skipping', 'unreadable_other', { next: 'idle', action: 'takeAgain' }],
    ['so is the one after a silent attempt', 'set_aside', 'unreadable_other', { next: 'idle', action: 'takeAgain' }],
    // It made a new consumer first.
    ['a projector stops during a rewind', 'rewinding', 'stop', { next: 'stopped', action: 'close' }],
    ['a load that fails ends the projector', 'loading', 'failure', { next: 'stopped', action: 'close' }],
  ])('%s', (_name, state, message, cell) => {
    expect(transition(state, message)).toEqual(cell);
  });
});

describe('a message of the log', () => {
  const of = { partition: '7', attempt: 2 };
  const other = { partition: '7', attempt: 1 };
  const standing = { open: of, expected: 3 as number | undefined, mayBeEmpty: true, isCarriedOut: false };
  test.each<[MessageFacts, Partial<typeof standing> & { open?: undefined }, ProjectorMessage]>([
    [{ kind: 'frame', of, frame: 3 }, {}, 'own_frame'],
    [{ kind: 'frame', of, frame: 2 }, {}, 'wrong'],
    [{ kind: 'frame', of, frame: 2 }, { expected: undefined }, 'own_frame'],
    [{ kind: 'frame', of: other, frame: 3 }, {}, 'later'],
    [{ kind: 'frame', of: other, frame: 0 }, { mayBeEmpty: false }, 'first'],
    [{ kind: 'frame', of, frame: 0 }, { open: undefined, expected: undefined }, 'first'],
    [{ kind: 'manifest', of, frame: 3 }, {}, 'own_manifest'],
    [{ kind: 'manifest', of, frame: 4 }, {}, 'wrong'],
    [{ kind: 'manifest', of, frame: 3, fault: 'not JSON' }, {}, 'unreadable_own'],
    [{ kind: 'manifest', of: other, frame: 0 }, {}, 'first'],
    [{ kind: 'manifest', of: other, frame: 0 }, { mayBeEmpty: false }, 'later'],
    [{ kind: 'manifest', of: other, frame: 1 }, {}, 'later'],
    [{ kind: 'unreadable', of, frame: 0, fault: 'CRC' }, {}, 'unreadable_own'],
    [{ kind: 'unreadable', of: other, frame: 0, fault: 'CRC' }, {}, 'unreadable_other'],
    [{ kind: 'unreadable', of: undefined, frame: 0, fault: 'CRC' }, {}, 'irrelevant'],
    [{ kind: 'retraction', of: other, frame: 0 }, {}, 'retraction'],
    [{ kind: 'retraction', of: other, frame: 0 }, { isCarriedOut: true }, 'irrelevant'],
    [{ kind: 'retraction', of: other, frame: 0, fault: 'not JSON' }, {}, 'irrelevant'],
  ])('%j %j is %s', (envelope, differing, expected) => {
    expect(classify(envelope, { ...standing, ...differing })).toBe(expected);
  });

  test('whose header cannot be read belongs to the attempt of its subject', () => {
    fc.assert(
      fc.property(fc.string({ minLength: 1, unit: 'grapheme' }), fc.nat(), fc.nat(), (partition, attempt, frame) => {
        expect(attemptOfSubject(subjectOf('trades', partition, attempt, frame))).toEqual({ partition, attempt });
      }),
    );
    for (const subject of [retractionSubject('trades', '7', 1), 'trades.x', 'trades.7.x.y', 'trades._x_.1.0', '']) {
      expect(attemptOfSubject(subject)).toBeUndefined();
    }
  });
});

describe('the pause before a projector starts again', () => {
  const pauses = { firstMs: 200, longestMs: 5000 };

  test('doubles with each failure in a row, up to the longest', () => {
    const seen: number[] = [];
    for (let failures = 0; failures < 7; ) {
      const { failures: counted, waitMs } = restartPause(failures, 1000, pauses);
      failures = counted;
      seen.push(waitMs);
    }
    expect(seen).toEqual([200, 400, 800, 1600, 3200, 5000, 5000]);
  });

  test('is the first again after a projector that worked for more than a minute', () => {
    expect(restartPause(6, 60_001, pauses)).toEqual({ failures: 1, waitMs: 200 });
    expect(restartPause(6, 60_000, pauses)).toEqual({ failures: 7, waitMs: 5000 });
  });
});

// A consumer that left out messages again and again told nobody, and commands waited for their proof.
test('each failure of a projector is told to waiting commands but the outage of a store', () => {
  const outages = [
    new TidemarkError('LOG_UNAVAILABLE', 'the connection was lost'),
    new TidemarkError('DATABASE_UNAVAILABLE', 'the connection was lost'),
    Object.assign(new Error('no answer'), { name: 'TimeoutError' }),
    Object.assign(new Error('connect'), { syscall: 'connect', code: 'ECONNREFUSED' }),
  ];
  const failures = [
    new TidemarkError('LOG_MISCONFIGURED', 'delivered 3 after 1'),
    new TidemarkError('LOG_REWOUND', 'another log'),
    new Error('column does not exist'),
  ];
  expect([...outages, ...failures].map(isOutage)).toEqual([true, true, true, true, false, false, false]);
});
