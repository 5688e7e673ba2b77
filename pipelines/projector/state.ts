/**
 * The projector of one dataset as a table: what it does with each message in each state. projector.ts reads the log,
 * finds out by `classify` what a message is to the attempt that is open, and carries out the action of the cell.
 *
 * An action reports its outcome as the next message, so a cell has one next state. A store that fails is the message
 * `failure`: the projector ends, and run.ts starts another one at the checkpoint.
 */

import { assert } from '../../shared/errors.ts';
import type { Header } from '../../shared/frame/codec.ts';

export const STATES = [
  /** No attempt is open. Partitions that are loaded may wait for the commit of the transaction they share. */
  'idle',
  /** The first message of an attempt has arrived; the catalog decides whether the attempt is loaded. */
  'opening',
  /** The frames of an attempt are loaded, and its transaction holds nothing else. */
  'loading',
  /** The same, in a transaction that also holds loaded partitions. */
  'loading_shared',
  /** The manifest of the open load has arrived; the partition is being proved. */
  'proving',
  /** The messages of an attempt are skipped up to its manifest: it is damaged, a repetition or a late arrival. */
  'skipping',
  /** The end of a skipped attempt is being recorded. */
  'ending',
  /** A retraction is being carried out. */
  'retracting',
  /** An attempt fell silent and its load was rolled back; its frames lie after the checkpoint. */
  'set_aside',
  /** Everything uncommitted is rolled back, and the reader moves to the checkpoint. */
  'rewinding',
  /** The end: the operator stopped the projector, or a store failed. */
  'stopped',
] as const;
export type ProjectorState = (typeof STATES)[number];

/** Messages of the log, as `classify` names them. "Own" and "other" refer to the attempt that is open or set aside. */
export const LOG_MESSAGES = [
  /** Frame 0 of another attempt, or the manifest of one that is empty. */
  'first',
  /** Any further message of another attempt: its first frame is missing. */
  'later',
  /** The next frame of the own attempt; while it is skipped or set aside, any of its frames. */
  'own_frame',
  /** The same for its manifest. */
  'own_manifest',
  /** A frame or manifest of the own attempt that does not follow the last frame. */
  'wrong',
  /** A damaged message of the own attempt. */
  'unreadable_own',
  /** A damaged message of another attempt. */
  'unreadable_other',
  'retraction',
  /** A retraction that is damaged or was carried out before a rewind, or a message that belongs to no attempt. */
  'irrelevant',
] as const;

/** Messages of the clock. The first three say for how long the log has brought nothing. */
export const CLOCK_MESSAGES = [
  'quiet',
  /** Longer than a shared transaction may stay open. */
  'stalled',
  /** Longer than an attempt may be silent (`attemptSilenceMs`). */
  'silent',
  /** The shared transaction is large or old enough to be committed. */
  'due',
] as const;

/** Outcomes of actions. */
export const OUTCOMES = [
  'opened',
  'opened_shared',
  /** The catalog decided against loading the attempt. */
  'refused',
  /** The attempt cannot be completed: a frame is at fault. */
  'fault',
  'done',
  /** One of several partitions is at fault, or a load was rolled back: the log is read again from the checkpoint. */
  'rolled_back',
  /** The catalog has no copy of a manifest that cannot be read. */
  'not_found',
  /** The reader is at the checkpoint. */
  'sought',
] as const;

export const ENDS = ['stop', 'failure'] as const;

type LogMessage = (typeof LOG_MESSAGES)[number];
type ClockMessage = (typeof CLOCK_MESSAGES)[number];
type ActionOutcome = (typeof OUTCOMES)[number];
type End = (typeof ENDS)[number];
export type ProjectorMessage = LogMessage | ClockMessage | ActionOutcome | End;
export const MESSAGES: readonly ProjectorMessage[] = [...LOG_MESSAGES, ...CLOCK_MESSAGES, ...OUTCOMES, ...ENDS];

export type Action =
  /** Nothing; the next message is read. */
  | 'wait'
  /** Classifies the message again, in the new state. */
  | 'takeAgain'
  /** Asks the catalog, and opens the load. */
  | 'open'
  /** Adds a frame to the load. */
  | 'add'
  /** Proves the loaded partition and commits, or adds it to those that share the transaction. */
  | 'prove'
  /** Rolls the load back, and takes the message again. */
  | 'drop'
  /** Rolls the load back if there is one, notes why the attempt cannot be completed, and takes the message again. */
  | 'skip'
  /** Records the end of a skipped attempt. */
  | 'recordEnd'
  /** Asks the catalog whether a damaged message was a manifest, and records the end of its attempt. */
  | 'findEnd'
  /** Commits the partitions that wait. */
  | 'commit'
  /** The same after a long silence, when everything that was read is acknowledged as well. */
  | 'rest'
  /** Rolls the load back after a long silence. */
  | 'setAside'
  /** Carries out a retraction, and moves the checkpoint past it. */
  | 'retract'
  /** Carries out a retraction among the frames of an attempt, which are read again: the checkpoint stays. */
  | 'retractEarly'
  /** Rolls everything uncommitted back, and moves the reader to the checkpoint. */
  | 'rewind'
  /** The same. The open load gets a transaction of its own next time, so that it does not hold up the others. */
  | 'isolate'
  /** Rolls everything uncommitted back, and closes the reader. */
  | 'close';

export type Transition = { readonly next: ProjectorState; readonly action: Action } | { readonly impossible: string };
type Row<M extends ProjectorMessage> = Readonly<Record<M, Transition>>;
export type TransitionTable = Readonly<Record<ProjectorState, Row<ProjectorMessage>>>;

const to = (next: ProjectorState, action: Action): Transition => ({ next, action });

/** The same cell for each of a group of messages. */
const each = <M extends ProjectorMessage>(messages: readonly M[], cell: Transition): Row<M> =>
  Object.fromEntries(messages.map((message) => [message, cell])) as Record<M, Transition>;

const END = each(ENDS, to('stopped', 'close'));

/** In a state that waits for the log, no action is under way. */
const NO_OUTCOME = each(OUTCOMES, { impossible: 'no action is under way' });

/** In a state that waits for an outcome, neither the log nor the clock is read. */
const BUSY: Row<LogMessage | ClockMessage | ActionOutcome | End> = {
  ...each(LOG_MESSAGES, { impossible: 'the log is not read while an action is under way' }),
  ...each(CLOCK_MESSAGES, { impossible: 'the clock is not read while an action is under way' }),
  ...each(OUTCOMES, { impossible: 'the action under way has no such outcome' }),
  ...END,
};

const NO_OPEN = { impossible: 'a message is of the own attempt only while one is open' };
const UNORDERED = { impossible: 'the order of frames is checked only while they are loaded' };

export const TABLE: TransitionTable = {
  idle: {
    ...NO_OUTCOME,
    ...END,
    first: to('opening', 'open'),
    later: to('skipping', 'skip'),
    own_frame: NO_OPEN,
    own_manifest: NO_OPEN,
    wrong: NO_OPEN,
    unreadable_own: NO_OPEN,
    // The damaged message may be the only one of an empty partition, whose attempt nothing else would end.
    unreadable_other: to('idle', 'findEnd'),
    retraction: to('retracting', 'retract'),
    irrelevant: to('idle', 'wait'),
    quiet: to('idle', 'commit'),
    stalled: to('idle', 'commit'),
    silent: to('idle', 'rest'),
    due: to('idle', 'commit'),
    // Outcomes of `commit`, `rest` and `findEnd`.
    done: to('idle', 'wait'),
    not_found: to('idle', 'wait'),
    rolled_back: to('rewinding', 'rewind'),
  },
  opening: {
    ...BUSY,
    opened: to('loading', 'takeAgain'),
    opened_shared: to('loading_shared', 'takeAgain'),
    refused: to('skipping', 'takeAgain'),
    // Partitions that waited had to be committed first, and one of them is at fault.
    rolled_back: to('rewinding', 'rewind'),
  },
  loading: {
    ...NO_OUTCOME,
    ...END,
    // A publisher resumes an attempt only at the end of the log. A message of another attempt, damaged or not, shows that
    // this one is over.
    first: to('idle', 'drop'),
    later: to('idle', 'drop'),
    own_frame: to('loading', 'add'),
    own_manifest: to('proving', 'prove'),
    wrong: to('skipping', 'skip'),
    unreadable_own: to('skipping', 'skip'),
    unreadable_other: to('idle', 'drop'),
    retraction: to('retracting', 'retractEarly'),
    irrelevant: to('loading', 'wait'),
    quiet: to('loading', 'wait'),
    stalled: to('loading', 'wait'),
    silent: to('set_aside', 'setAside'),
    due: to('loading', 'wait'),
    fault: to('skipping', 'skip'),
  },
  loading_shared: {
    ...NO_OUTCOME,
    ...END,
    first: to('rewinding', 'isolate'),
    later: to('rewinding', 'isolate'),
    own_frame: to('loading_shared', 'add'),
    own_manifest: to('proving', 'prove'),
    wrong: to('rewinding', 'isolate'),
    unreadable_own: to('rewinding', 'isolate'),
    unreadable_other: to('rewinding', 'isolate'),
    retraction: to('rewinding', 'isolate'),
    irrelevant: to('loading_shared', 'wait'),
    quiet: to('loading_shared', 'wait'),
    stalled: to('rewinding', 'isolate'),
    silent: to('rewinding', 'isolate'),
    // A transaction is not committed during a load; the check is repeated after the manifest.
    due: to('loading_shared', 'wait'),
    fault: to('rewinding', 'isolate'),
  },
  proving: {
    ...BUSY,
    done: to('idle', 'wait'),
    rolled_back: to('rewinding', 'rewind'),
  },
  skipping: {
    ...NO_OUTCOME,
    ...END,
    first: to('idle', 'takeAgain'),
    later: to('idle', 'takeAgain'),
    own_frame: to('skipping', 'wait'),
    own_manifest: to('ending', 'recordEnd'),
    wrong: UNORDERED,
    unreadable_own: to('ending', 'findEnd'),
    unreadable_other: to('idle', 'takeAgain'),
    retraction: to('retracting', 'retractEarly'),
    irrelevant: to('skipping', 'wait'),
    quiet: to('skipping', 'commit'),
    stalled: to('skipping', 'commit'),
    silent: to('skipping', 'rest'),
    due: to('skipping', 'commit'),
    // Outcomes of `commit` and `rest`.
    done: to('skipping', 'wait'),
    rolled_back: to('rewinding', 'rewind'),
  },
  ending: {
    ...BUSY,
    done: to('idle', 'wait'),
    not_found: to('skipping', 'wait'),
    rolled_back: to('rewinding', 'rewind'),
  },
  retracting: {
    ...BUSY,
    done: to('idle', 'wait'),
    // Always the outcome of `retractEarly`: the frames that were dropped for it are read again.
    rolled_back: to('rewinding', 'rewind'),
  },
  set_aside: {
    ...NO_OUTCOME,
    ...END,
    first: to('idle', 'takeAgain'),
    later: to('idle', 'takeAgain'),
    own_frame: to('rewinding', 'rewind'),
    own_manifest: to('rewinding', 'rewind'),
    wrong: UNORDERED,
    unreadable_own: to('rewinding', 'rewind'),
    unreadable_other: to('idle', 'takeAgain'),
    // The checkpoint stays before the frames that were set aside.
    retraction: to('retracting', 'retractEarly'),
    irrelevant: to('set_aside', 'wait'),
    quiet: to('set_aside', 'wait'),
    stalled: to('set_aside', 'wait'),
    silent: to('set_aside', 'rest'),
    due: to('set_aside', 'wait'),
    done: to('set_aside', 'wait'),
  },
  rewinding: {
    ...BUSY,
    sought: to('idle', 'wait'),
  },
  stopped: each(MESSAGES, { impossible: 'the projector has ended' }),
};

/**
 * The cell of the table. @throws TidemarkError INTERNAL_INVARIANT when the cell is impossible: a fault of this program.
 */
export function transition(
  state: ProjectorState,
  message: ProjectorMessage,
): { readonly next: ProjectorState; readonly action: Action } {
  const cell = TABLE[state][message];
  if ('impossible' in cell) assert(false, `the projector met "${message}" in state "${state}": ${cell.impossible}`);
  return cell;
}

/** The functions that carry out the actions. Each returns the outcome if the table needs it. */
export type Handlers = Readonly<
  Record<Action, () => ProjectorMessage | undefined | Promise<ProjectorMessage | undefined>>
>;

/** Runs the table: takes one message after another, each followed by the outcomes of its actions. */
export class Machine {
  readonly #handlers: Handlers;
  #state: ProjectorState;

  constructor(handlers: Handlers, state: ProjectorState = 'idle') {
    this.#handlers = handlers;
    this.#state = state;
  }

  get state(): ProjectorState {
    return this.#state;
  }

  /** Takes a message and the outcomes that follow. A handler that throws leaves the state that the cell led to. */
  async take(message: ProjectorMessage): Promise<void> {
    for (let taken: ProjectorMessage | undefined = message; taken !== undefined; ) {
      const { next, action } = transition(this.#state, taken);
      this.#state = next;
      taken = await this.#handlers[action]();
    }
  }
}

export type AttemptId = Pick<Header, 'partition' | 'attempt'>;

/** What `classify` needs to know of a message of the log. */
export interface MessageFacts {
  readonly kind: 'frame' | 'manifest' | 'retraction' | 'unreadable';
  /** The attempt that the header names or, where it cannot be read, the subject; undefined where neither names one. */
  readonly of: AttemptId | undefined;
  readonly frame: number;
  /** Why the message or, where the header can be read, its body cannot be read. */
  readonly fault?: string;
}

/** What `classify` needs to know of the projector. */
export interface ProjectorFacts {
  /** The attempt that is open, skipped or set aside. */
  readonly open: AttemptId | undefined;
  /** The number of the frame that comes next; undefined unless a load is open. */
  readonly expected: number | undefined;
  /** Whether a partition of the dataset may be empty, so that its manifest is its first message. */
  readonly mayBeEmpty: boolean;
  /** Whether the message is a retraction that was carried out before a rewind. */
  readonly isCarriedOut: boolean;
}

export function classify(
  message: MessageFacts,
  { open, expected, mayBeEmpty, isCarriedOut }: ProjectorFacts,
): LogMessage {
  const { kind, of, frame, fault } = message;
  if (kind === 'retraction') return fault !== undefined || isCarriedOut ? 'irrelevant' : 'retraction';
  if (of === undefined) return 'irrelevant';
  const isOwn = open?.partition === of.partition && open.attempt === of.attempt;
  if (kind === 'unreadable') return isOwn ? 'unreadable_own' : 'unreadable_other';
  if (!isOwn) return frame === 0 && (kind === 'frame' || mayBeEmpty) ? 'first' : 'later';
  if (expected !== undefined && frame !== expected) return 'wrong';
  if (kind === 'frame') return 'own_frame';
  return fault === undefined ? 'own_manifest' : 'unreadable_own';
}
