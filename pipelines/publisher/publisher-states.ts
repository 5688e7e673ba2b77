/**
 * The states of the publisher and the messages that change them, as two tables: TRACK for one dataset in the document at hand,
 * COURSE for the document. Beside them: what kind of fault an error is, which decides about the message that it becomes.
 */

import { DatabaseError } from 'pg';
import { assert, type ErrorCode, TidemarkError } from '../../shared/errors.ts';
import { ReadAgain } from '../sources/feed-types.ts';
import type { DocumentHistory } from './attempts.ts';

/** The next state by state and message. `null`: the message cannot come in this state, and is a defect if it does. */
type Table<S extends string, M extends string> = Readonly<Record<S, Readonly<Record<M, S | null>>>>;

/** @throws TidemarkError INTERNAL_INVARIANT when the message cannot come in this state. */
export function transition<S extends string, M extends string>(table: Table<S, M>, state: S, message: M): S {
  const next = table[state][message];
  assert(next !== null, `the publisher met "${message}" while ${state}`);
  return next;
}

export type TrackState = 'between' | 'writing' | 'comparing' | 'keeping' | 'passing' | 'done' | 'interrupted' | 'ended';
export type TrackMessage =
  /** The plan of the next partition, or of the one that a compared document turned out to be. */
  | 'write'
  | 'compare'
  | 'keep'
  | 'pass'
  /** Items of the document. */
  | 'frame'
  | 'end'
  | 'document_end'
  /** A fault after which the attempt may be resumed, and one after which it may not. */
  | 'interruption'
  | 'fault';

/** A state in which no message can come. */
const CLOSED = {
  write: null,
  compare: null,
  keep: null,
  pass: null,
  frame: null,
  end: null,
  document_end: null,
  interruption: null,
  fault: null,
} as const;
const FAULTS = { interruption: 'interrupted', fault: 'ended' } as const;

/**
 * One dataset in one document. `between` partitions nothing is open; `writing` has an open attempt. `comparing` drops the
 * frames and looks at the facts at the end; `keeping` keeps the frames, which are written if the facts differ. `passing`
 * drops the frames of a partition that is left alone.
 */
export const TRACK: Table<TrackState, TrackMessage> = {
  between: {
    ...CLOSED,
    write: 'writing',
    compare: 'comparing',
    keep: 'keeping',
    pass: 'passing',
    document_end: 'done',
    ...FAULTS,
  },
  writing: { ...CLOSED, frame: 'writing', end: 'between', ...FAULTS },
  comparing: { ...CLOSED, frame: 'comparing', end: 'between', ...FAULTS },
  keeping: { ...CLOSED, frame: 'keeping', write: 'writing', pass: 'passing', end: 'between', ...FAULTS },
  passing: { ...CLOSED, frame: 'passing', end: 'between', ...FAULTS },
  // The document is read to its end, but a store may still fail before the catalog has its manifests.
  done: { ...CLOSED, interruption: 'done', fault: 'done' },
  interrupted: CLOSED,
  ended: CLOSED,
};

type CourseState =
  | 'planning'
  | 'publishing'
  | 'pausing'
  | 'awaiting_proof'
  | 'finished'
  | 'failed'
  | 'interrupted'
  | 'stopping';
export type CourseMessage =
  /** The document is fetched. */
  | 'opened'
  /** Nothing of the document is left to be published. */
  | 'published'
  /** The projector has ended every attempt of the document. */
  | 'settled'
  /** The document is decoded in another way. */
  | 'again'
  /** A store is unavailable. */
  | 'outage'
  /** The pause is over. */
  | 'retry'
  | 'fault'
  /** A fault that every further document would meet, too. */
  | 'stop'
  /** The operator ends the command. */
  | 'interruption';

const OVER = {
  opened: null,
  published: null,
  settled: null,
  again: null,
  outage: null,
  retry: null,
  fault: null,
  stop: null,
  interruption: null,
} as const;
const ENDS = { fault: 'failed', stop: 'stopping', interruption: 'interrupted' } as const;

/** One document in one command. The publisher sends `opened`, and backfill.ts every other message. */
export const COURSE: Table<CourseState, CourseMessage> = {
  // What the catalog knows may leave nothing to fetch: then planning ends as publishing does.
  planning: { ...OVER, opened: 'publishing', published: 'awaiting_proof', outage: 'pausing', ...ENDS },
  publishing: { ...OVER, published: 'awaiting_proof', again: 'planning', outage: 'pausing', ...ENDS },
  pausing: { ...OVER, retry: 'planning', interruption: 'interrupted' },
  // A proof that fails is the end of its partition alone.
  awaiting_proof: { ...OVER, settled: 'finished' },
  finished: OVER,
  failed: OVER,
  interrupted: OVER,
  stopping: OVER,
};

/** A document on its way through the publisher, in one command. */
export class Course implements DocumentHistory {
  readonly signal: AbortSignal;
  readonly open: DocumentHistory['open'] = new Map();
  readonly started = new Map<string, number>();
  #state: CourseState = 'planning';

  constructor(signal: AbortSignal) {
    this.signal = signal;
  }

  get state(): CourseState {
    return this.#state;
  }

  enter(message: CourseMessage): void {
    this.#state = transition(COURSE, this.#state, message);
  }
}

export type FaultKind =
  /** What was decoded is wrong. The attempts are abandoned, and the document is read again at once. */
  | 'again'
  /** A store is unavailable. The attempt stays open, and the document is read again. */
  | 'outage'
  /** The log holds other messages than the attempt would write. A new attempt follows when the document is read again. */
  | 'conflict'
  /** The attempt stays open, but no document can be published for now. */
  | 'stop'
  /** The document cannot be published, and its attempts are abandoned. */
  | 'document'
  /** Neither a store nor the document is at fault. The attempt stays open. */
  | 'defect'
  | 'interruption';

export interface PublisherFault {
  readonly kind: FaultKind;
  readonly error: unknown;
}

const KINDS: Readonly<Partial<Record<ErrorCode, FaultKind>>> = {
  LOG_UNAVAILABLE: 'outage',
  // Of them, a lease that its lost connection held.
  DATABASE_UNAVAILABLE: 'outage',
  LOG_CONFLICT: 'conflict',
  // A full log stays full, and only the attempt at its end can be resumed.
  LOG_FULL: 'stop',
  LOG_REWOUND: 'stop',
  WORK_HELD: 'stop',
  INTERNAL_INVARIANT: 'defect',
};

/**
 * Tells faults of the stores from those of the document. The drivers report a lost connection as a bare Error; a fault of
 * the data has a class or a code.
 */
export function faultOf(error: unknown, signal: AbortSignal): PublisherFault {
  if (signal.aborted) return { kind: 'interruption', error };
  if (error instanceof ReadAgain) return { kind: 'again', error };
  if (error instanceof TidemarkError) return { kind: KINDS[error.code] ?? 'document', error };
  const isStore = error instanceof DatabaseError ? /^(57P0|08|53)/.test(error.code ?? '') : !isDefect(error);
  return { kind: isStore ? 'outage' : 'defect', error };
}

const isDefect = (error: unknown) =>
  error instanceof TypeError || error instanceof RangeError || error instanceof ReferenceError;
