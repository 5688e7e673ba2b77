/**
 * What a campaign does, drawn from its seed alone: the documents of each round, and the faults with their targets and times.
 * Nothing here looks at a clock or at the system, so that the same seed gives the same schedule on every machine.
 */
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';

/** Processes that are killed, stopped and restarted. `backfill` is whichever command of a round runs at that time. */
export const PROCESSES = [
  'up',
  'projector',
  'serving',
  'lake',
  'follow',
  'export-worker',
  'backfill',
  'postgres',
  'nats',
  'bitcoind',
] as const;
export type ProcessName = (typeof PROCESSES)[number];

/** Connections that go through a proxy. */
export const LINKS = ['postgres', 'nats', 'projector', 'vendor', 'http', 'bitcoind'] as const;
export type LinkName = (typeof LINKS)[number];

/** Every kind of fault, and what it strikes. */
const TARGETS = {
  /** SIGKILL. */
  kill: PROCESSES,
  /** SIGSTOP, and SIGCONT after a while. */
  stop: PROCESSES,
  /** SIGTERM. */
  restart: ['up', 'projector', 'serving', 'lake', 'follow', 'export-worker', 'postgres', 'nats'],
  /** All connections break. */
  cut: LINKS,
  /** Bytes arrive later. */
  delay: LINKS,
  /** Connections stay and one side hears nothing; at the end they break. */
  'half-open': LINKS,
  /** Connections break, and new ones are refused for a while. */
  refuse: LINKS,
  /** The log delivers each message twice for a while. */
  duplicate: ['projector'],
  /** The clock of every Tidemark process jumps by an hour, and later back. */
  clock: ['forward', 'back'],
  /** The vendor answers with a damaged document for a while. */
  corrupt: ['exchange_a', 'exchange_b', 'exchange_c'],
  /** The disk of both servers and of the lake is full for a while. */
  'full-disk': ['disk'],
  /** The log loses what it took since a moment ago; the operator recovers it. */
  'lost-tail': ['log'],
} as const satisfies Readonly<Record<string, readonly string[]>>;

export type FaultKind = keyof typeof TARGETS;
export const FAULT_KINDS = Object.keys(TARGETS) as readonly FaultKind[];

export interface Fault {
  readonly kind: FaultKind;
  readonly target: string;
  /** How long it lasts, where it lasts. */
  readonly forMs: number;
  /** A number for what the fault itself draws: which byte is damaged, which side is silent. */
  readonly draw: number;
}

export interface Step extends Fault {
  /** After the step before it began. */
  readonly afterMs: number;
}

export const EXCHANGES = ['exchange_a', 'exchange_b', 'exchange_c'] as const;
export type Exchange = (typeof EXCHANGES)[number];

/** A version of a file day: the first one, or one that the vendor publishes in its place. */
export interface Version {
  readonly exchange: Exchange;
  /** Counts the exchange's days of an epoch. */
  readonly index: number;
  readonly rows: number;
  readonly seed: number;
}

export interface Round {
  readonly number: number;
  /** Whether it begins with empty stores; otherwise it goes on with those of the round before. */
  readonly isFresh: boolean;
  readonly days: readonly Version[];
  readonly revisions: readonly Version[];
  /** Blocks that the chain grows by, after this many were taken off its end. */
  readonly blocks: number;
  readonly reorganised: number;
  readonly steps: readonly Step[];
}

/** Rounds with the same stores. */
const EPOCH = 3;
const STEPS = 48;
/** Steps follow each other after up to this time. */
const PAUSE_MS = 700;
const LONGEST_MS = 2500;

const ALL = FAULT_KINDS.flatMap((kind) => TARGETS[kind].map((target) => ({ kind, target })));

/** Rounds without an end. */
export function* roundsOf(seed: number): Generator<Round, never> {
  const random = seededRandom(seed);
  const below = (limit: number) => Math.floor(random() * limit);
  const cards = dealt(random);
  const next: Record<Exchange, number> = { exchange_a: 0, exchange_b: 0, exchange_c: 0 };
  for (let number = 1; ; number++) {
    const isFresh = (number - 1) % EPOCH === 0;
    if (isFresh) for (const exchange of EXCHANGES) next[exchange] = 0;
    const versionOf = (exchange: Exchange, index: number): Version => ({
      ...{ exchange, index },
      rows: 300 + below(1500),
      seed: 1 + below(1_000_000),
    });
    const days = EXCHANGES.flatMap((exchange) =>
      Array.from({ length: exchange === 'exchange_a' ? 3 : 2 }, () => versionOf(exchange, next[exchange]++)),
    );
    const revisions = [...new Set([below(days.length), below(days.length)])].map((at) =>
      versionOf(days[at].exchange, below(next[days[at].exchange])),
    );
    const steps = Array.from({ length: STEPS }, () => ({
      ...(cards.next().value as (typeof ALL)[number]),
      afterMs: 20 + below(PAUSE_MS),
      forMs: 100 + below(LONGEST_MS),
      draw: below(2 ** 31),
    }));
    yield { number, isFresh, days, revisions, blocks: 3 + below(4), reorganised: isFresh ? 0 : below(3), steps };
  }
}

/** Every fault with every target once, in a new order each time. */
function* dealt(random: () => number): Generator<(typeof ALL)[number], never> {
  for (;;) {
    yield* ALL.map((card) => [random(), card] as const)
      .sort(([a], [b]) => a - b)
      .map(([, card]) => card);
  }
}

/** The first rounds as text, a line a step. */
export function planText(seed: number, rounds: number): string {
  const lines: string[] = [];
  for (const round of roundsOf(seed)) {
    if (round.number > rounds) break;
    const versions = (of: readonly Version[]) =>
      of.map(({ exchange, index, rows }) => `${exchange}[${index}] ${rows} rows`).join(', ');
    lines.push(`round ${round.number}${round.isFresh ? ', with empty stores' : ''}`);
    lines.push(`  days: ${versions(round.days)}`, `  revisions: ${versions(round.revisions)}`);
    lines.push(`  blocks: ${round.blocks} new after ${round.reorganised} taken off`);
    for (const [at, { afterMs, kind, target, forMs }] of round.steps.entries()) {
      lines.push(`  ${String(at + 1).padStart(3)}  +${afterMs} ms  ${kind} ${target}, ${forMs} ms`);
    }
  }
  return lines.join('\n');
}
