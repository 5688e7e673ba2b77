/**
 * The projector's table: every cell, and a model that runs random logs through it. The model's log, catalog and
 * transaction are arrays; states, messages and their order are the product's.
 */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isOutage, restartPause } from '../../pipelines/projector/run.ts';
import {
  type Action,
  classify,
  type Handlers,
  LOG_MESSAGES,
  Machine,
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
import { runs } from '../support/seed.ts';

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

// ---- random logs
// -----------------------------------------------------------------------------------------------------

interface Logged extends MessageFacts {
  /** A frame whose rows the database refuses. */
  readonly refused?: boolean;
  /** Of a manifest: the digest of the frames it was made for. */
  readonly digest?: string;
  /** Of a damaged manifest: the catalog has a copy. */
  readonly copy?: boolean;
}

const nameOf = (of: MessageFacts['of']) => `${of!.partition}.${of!.attempt}`;

interface Load {
  readonly name: string;
  readonly first: number;
  readonly frames: { readonly sequence: number; readonly frame: number }[];
}

interface Member extends Load {
  readonly digest: string;
  readonly manifest: number;
}

const digestOf = (frames: readonly { readonly frame: number }[]) => frames.map(({ frame }) => frame).join();

/** The catalog, which outlives a projector. */
class Database {
  checkpoint = 0;
  readonly ends = new Map<string, 'proved' | 'quarantined' | 'retracted'>();
}

class ModelProjector {
  readonly machine: Machine;
  readonly log: readonly Logged[];
  readonly db: Database;
  readonly shares: boolean;
  /** The sequence of the message that was read last. */
  at: number;
  checkpoint: number;
  /** The reader is told to stop before the rewind that follows. */
  stopsInRewind = false;
  #arrived: Logged | undefined;
  #attempt: MessageFacts['of'];
  #broken = true;
  #load: Load | undefined;
  #members: Member[] = [];
  #alone = { from: 0, to: 0 };
  readonly #carriedOut = new Set<number>();

  constructor(log: readonly Logged[], db: Database, shares: boolean) {
    this.log = log;
    this.db = db;
    this.shares = shares;
    this.at = db.checkpoint;
    this.checkpoint = db.checkpoint;
    this.machine = new Machine(this.#handlers);
  }

  get isAtEnd(): boolean {
    return this.at === this.log.length;
  }

  get pending(): number {
    return this.#members.length;
  }

  async read(): Promise<void> {
    this.#arrived = this.log[this.at++];
    await this.machine.take(this.#classified());
    if (this.pending > 2) await this.machine.take('due');
  }

  #classified(): ProjectorMessage {
    return classify(this.#arrived!, {
      open: this.#attempt,
      expected: this.#load?.frames.length,
      mayBeEmpty: this.shares,
      isCarriedOut: this.#carriedOut.has(this.at),
    });
  }

  #forget(): void {
    if (this.machine.state === 'idle') this.#attempt = undefined;
  }

  #undo(): void {
    this.#load = undefined;
    this.#members = [];
  }

  #end(name: string, end: 'proved' | 'quarantined'): void {
    // A recorded end stays.
    expect([name, this.db.ends.get(name)]).toEqual([name, undefined]);
    this.db.ends.set(name, end);
  }

  #moveTo(sequence: number): void {
    expect(sequence).toBeGreaterThan(this.db.checkpoint);
    this.checkpoint = sequence;
    this.db.checkpoint = sequence;
  }

  #commit(): 'done' | 'rolled_back' {
    expect(this.#load).toBeUndefined();
    const members = this.#members;
    if (members.length === 0) return 'done';
    const isProved = ({ frames, digest }: Member) => {
      const refused = frames.some(({ sequence }) => this.log[sequence - 1].refused);
      return !refused && digestOf(frames) === digest;
    };
    if (members.length > 1 && !members.every(isProved)) return this.#isolate(this.checkpoint + 1, this.at);
    for (const member of members) this.#end(member.name, isProved(member) ? 'proved' : 'quarantined');
    this.#undo();
    this.#moveTo(members.at(-1)!.manifest);
    return 'done';
  }

  #isolate(from: number, to: number): 'rolled_back' {
    this.#alone = { from, to };
    this.#undo();
    return 'rolled_back';
  }

  #isAlone(first: number): boolean {
    return first >= this.#alone.from && first <= this.#alone.to;
  }

  #drop(): void {
    if (!this.#load) return;
    expect(this.#members).toEqual([]);
    this.#undo();
  }

  #open(): ProjectorMessage {
    this.#attempt = this.#arrived!.of;
    const name = nameOf(this.#attempt);
    if (this.#isAlone(this.at) && this.#commit() === 'rolled_back') return 'rolled_back';
    if (this.db.ends.has(name)) {
      this.#broken = false;
      return 'refused';
    }
    expect(this.#load).toBeUndefined();
    this.#load = { name, first: this.at, frames: [] };
    return this.pending > 0 ? 'opened_shared' : 'opened';
  }

  #prove(): ProjectorMessage {
    const load = this.#load!;
    this.#load = undefined;
    this.#members.push({ ...load, digest: this.#arrived!.digest!, manifest: this.at });
    return this.shares && !this.#isAlone(load.first) ? 'done' : this.#commit();
  }

  #recordEnd(name: string): ProjectorMessage {
    if (this.#commit() === 'rolled_back') return 'rolled_back';
    if (this.#broken && !this.db.ends.has(name)) this.#end(name, 'quarantined');
    this.#moveTo(this.at);
    return 'done';
  }

  #retract(early: boolean): ProjectorMessage {
    this.#drop();
    if (this.#commit() === 'rolled_back') return 'rolled_back';
    const name = nameOf(this.#arrived!.of);
    if (this.db.ends.get(name) === 'proved') this.db.ends.set(name, 'retracted');
    if (early) {
      this.#carriedOut.add(this.at);
      return 'rolled_back';
    }
    this.#moveTo(this.at);
    return 'done';
  }

  #rewind(undo: () => void): ProjectorMessage {
    undo();
    this.#undo();
    if (this.stopsInRewind) return 'stop';
    // After a rewind the reader starts at the checkpoint, and that is the one that is stored.
    expect(this.checkpoint).toBe(this.db.checkpoint);
    this.at = this.checkpoint;
    return 'sought';
  }

  readonly #handlers: Handlers = {
    wait: () => {
      this.#forget();
      return undefined;
    },
    takeAgain: () => {
      this.#forget();
      return this.#classified();
    },
    open: () => this.#open(),
    add: () => {
      const { frame, refused } = this.#arrived!;
      if (refused) return 'fault';
      expect(frame).toBe(this.#load!.frames.length);
      this.#load!.frames.push({ sequence: this.at, frame });
      return undefined;
    },
    prove: () => this.#prove(),
    drop: () => {
      this.#drop();
      this.#forget();
      return this.#classified();
    },
    skip: () => {
      this.#drop();
      this.#attempt = this.#arrived!.of;
      this.#broken = true;
      return this.#classified();
    },
    recordEnd: () => this.#recordEnd(nameOf(this.#attempt)),
    findEnd: () => {
      if (!this.#arrived!.copy) return 'not_found';
      if (this.machine.state === 'idle') this.#broken = true;
      return this.#recordEnd(nameOf(this.#arrived!.of));
    },
    commit: () => (this.#commit() === 'rolled_back' ? 'rolled_back' : undefined),
    rest: () => (this.#commit() === 'rolled_back' ? 'rolled_back' : undefined),
    setAside: () => {
      this.#drop();
      return undefined;
    },
    retract: () => this.#retract(false),
    retractEarly: () => this.#retract(true),
    rewind: () => this.#rewind(() => {}),
    isolate: () => this.#rewind(() => this.#isolate(this.#load!.first, this.#load!.first)),
    close: () => {
      this.#undo();
      return undefined;
    },
  };
}

// ---- their generators

type Spoil = 'none' | 'missing' | 'twice' | 'refused' | 'damaged' | 'other digest' | 'damaged manifest' | 'no manifest';

interface Script {
  /** 0: an empty partition. */
  readonly frames: number;
  readonly spoil: Spoil;
  /** Which frame is spoilt. */
  readonly at: number;
  /** A message between two of the attempt's: the retraction of an earlier attempt, a damaged one, or garbage. */
  readonly among: readonly { readonly at: number; readonly kind: 'retraction' | 'damaged retraction' | 'garbage' }[];
}

const scripts = fc.array(
  fc.record<Script>({
    frames: fc.integer({ min: 0, max: 3 }),
    spoil: fc.oneof(
      { weight: 5, arbitrary: fc.constant<Spoil>('none') },
      {
        weight: 4,
        arbitrary: fc.constantFrom<Spoil>(
          ...(['missing', 'twice', 'refused', 'damaged', 'other digest', 'damaged manifest', 'no manifest'] as const),
        ),
      },
    ),
    at: fc.nat(2),
    among: fc.array(
      fc.record({
        at: fc.nat(4),
        kind: fc.constantFrom('retraction' as const, 'damaged retraction' as const, 'garbage' as const),
      }),
      { maxLength: 2 },
    ),
  }),
  { minLength: 1, maxLength: 8 },
);

function messagesOf({ frames: count, spoil, at }: Script, index: number): Logged[] {
  const of = { partition: `${index}`, attempt: 1 };
  const frames: Logged[] = Array.from({ length: count }, (_, frame) => ({ kind: 'frame', of, frame }));
  const digest = spoil === 'other digest' ? 'other' : digestOf(frames);
  if (count > 0) {
    const spoilt = at % count;
    if (spoil === 'missing') frames.splice(spoilt, 1);
    if (spoil === 'twice') frames.splice(spoilt, 0, frames[spoilt]);
    if (spoil === 'refused') frames[spoilt] = { ...frames[spoilt], refused: true };
    if (spoil === 'damaged') frames[spoilt] = { kind: 'unreadable', of, frame: 0, fault: 'CRC' };
  }
  if (spoil === 'no manifest') return frames;
  if (spoil === 'damaged manifest') return [...frames, { kind: 'unreadable', of, frame: 0, fault: 'CRC', copy: true }];
  return [...frames, { kind: 'manifest', of, frame: count, digest }];
}

function logOf(attempts: readonly Script[]): { log: Logged[]; retracted: ReadonlySet<number> } {
  const retracted = new Set<number>();
  const log = attempts.flatMap((script, index) => {
    const messages = messagesOf(script, index);
    for (const { at, kind } of script.among) {
      const place = at % (messages.length + 1);
      if (kind === 'garbage') {
        messages.splice(place, 0, { kind: 'unreadable', of: undefined, frame: 0, fault: 'no message' });
      } else if (index > 0) {
        const earlier = at % index;
        const isDamaged = kind === 'damaged retraction';
        if (!isDamaged) retracted.add(earlier);
        const of = { partition: `${earlier}`, attempt: 1 };
        messages.splice(place, 0, { kind: 'retraction', of, frame: 0, ...(isDamaged ? { fault: 'not JSON' } : {}) });
      }
    }
    return messages;
  });
  return { log, retracted };
}

type Interruption =
  | 'read'
  | 'quiet'
  | 'stalled'
  | 'silent'
  | 'failure'
  | 'stop'
  | 'stop in a rewind'
  | 'checkpoint lost';
const interruptions = fc.array(
  fc.oneof(
    { weight: 10, arbitrary: fc.constant<Interruption>('read') },
    { weight: 4, arbitrary: fc.constant<Interruption>('silent') },
    {
      weight: 4,
      arbitrary: fc.constantFrom<Interruption>(
        ...(['quiet', 'stalled', 'failure', 'stop', 'stop in a rewind', 'checkpoint lost'] as const),
      ),
    },
  ),
  { maxLength: 40 },
);

/** Projects the whole log with these interruptions. A projector that has ended is replaced by a new one. */
async function project(log: readonly Logged[], steps: readonly Interruption[], shares: boolean): Promise<Database> {
  const db = new Database();
  let projector = new ModelProjector(log, db, shares);
  const limit = steps.length + 100 * (log.length + 1);
  for (let step = 0; ; step++) {
    expect(step, 'the log comes to an end').toBeLessThan(limit);
    if (projector.machine.state === 'stopped') {
      // The next projector starts at the checkpoint, so that everything uncommitted is delivered again.
      projector = new ModelProjector(log, db, shares);
    }
    const next = steps[step] ?? 'read';
    if (next === 'checkpoint lost') {
      await projector.machine.take('failure');
      db.checkpoint = 0;
    } else if (next === 'stop in a rewind') projector.stopsInRewind = true;
    else if (next !== 'read') await projector.machine.take(next);
    else if (!projector.isAtEnd) await projector.read();
    else if (step >= steps.length && projector.pending === 0) return db;
    else await projector.machine.take('stalled');
    expect([...READING, 'stopped']).toContain(projector.machine.state);
  }
}

describe('random logs, interrupted at random', () => {
  test('prove what is complete, quarantine what is not, and meet no impossible cell', async () => {
    await fc.assert(
      fc.asyncProperty(scripts, interruptions, fc.boolean(), async (attempts, steps, shares) => {
        const { log, retracted } = logOf(attempts);
        const { ends } = await project(log, steps, shares);
        const expected = attempts.map(({ frames, spoil }, index) => {
          if (spoil === 'no manifest') return undefined;
          // Where no partition is empty, a manifest without frames lacks its first frame.
          if (frames === 0 && !shares) return 'quarantined';
          const isSpoilt = frames > 0 ? spoil !== 'none' : ['other digest', 'damaged manifest'].includes(spoil);
          if (isSpoilt) return 'quarantined';
          return retracted.has(index) ? 'retracted' : 'proved';
        });
        expect(attempts.map((_, index) => ends.get(`${index}.1`))).toEqual(expected);
      }),
      { numRuns: runs(2000) },
    );
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
    new TidemarkError('LOG_GAP', 'delivered 3 after 1'),
    new TidemarkError('LOG_REWOUND', 'another log'),
    new Error('column does not exist'),
  ];
  expect([...outages, ...failures].map(isOutage)).toEqual([true, true, true, true, false, false, false]);
});
