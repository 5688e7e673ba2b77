/**
 * `follow`: publishes new data of every source as it appears, at each source's own interval. Each feed is a task that
 * restarts after a fault with growing pauses and does not affect the others. `status --runs` shows their state.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { RunRecorder } from '../../../shared/db/runs.ts';
import { codeOf, explain, outageCode, TidemarkError } from '../../../shared/errors.ts';
import { hasInstruments } from '../../../shared/registry/instruments.ts';
import type { UnitResult } from '../../publisher/backfill.ts';
import type { Feed } from '../../sources/feed-types.ts';
import { feedOf } from '../../sources/index.ts';
import { ALL_INSTRUMENTS } from '../../sources/trades/instruments.ts';
import { type Context, openContext } from '../context.ts';
import { ingest, openRun } from '../ingest.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { Summary } from '../output.ts';
import { ALL, selectedFeeds } from '../over-partitions.ts';
import { settingsFor } from '../pinned.ts';
import { startProjector } from '../projector.ts';
import { isNotYet } from '../source-failures.ts';

export interface Pauses {
  readonly firstMs: number;
  readonly longestMs: number;
  /** A fault that comes this long after the previous one counts as the first. */
  readonly forgottenMs: number;
  /** Pauses vary by this share at random, so that tasks that failed together do not retry together. */
  readonly jitter: number;
}

const PAUSES: Pauses = { firstMs: 1000, longestMs: 300_000, forgottenMs: 600_000, jitter: 0.2 };

export interface Failure {
  readonly error: unknown;
  /** Consecutive failures, including this one. */
  readonly failures: number;
  readonly waitMs: number;
}

export interface Restarting {
  readonly signal: AbortSignal;
  /** Called for each fault before the pause. If it throws, the task ends. */
  readonly onFailure: (failure: Failure) => Promise<void>;
  readonly pauses?: Pauses;
}

/**
 * Restarts `work` after each fault, with growing pauses, until the signal.
 * @param work ends only by a fault or the signal.
 */
export async function keepRestarting(
  work: () => Promise<void>,
  { signal, onFailure, pauses = PAUSES }: Restarting,
): Promise<void> {
  const { firstMs, longestMs, forgottenMs, jitter } = pauses;
  for (let failures = 0, failedAt = Number.NEGATIVE_INFINITY; !signal.aborted; ) {
    try {
      await work();
    } catch (error) {
      if (signal.aborted) return;
      failures = performance.now() - failedAt > forgottenMs ? 1 : failures + 1;
      failedAt = performance.now();
      const pauseMs = Math.min(firstMs * 2 ** (failures - 1), longestMs);
      const waitMs = Math.round(pauseMs * (1 + jitter * (2 * Math.random() - 1)));
      await onFailure({ error, failures, waitMs });
      await sleep(waitMs, undefined, { signal }).catch(() => {});
    }
  }
}

/** Codes of a unit that make every later unit fail, too. */
const STOPPING: ReadonlySet<string> = new Set(['LOG_FULL', 'LOG_REWOUND', 'CONFIGURATION_INVALID']);
/**
 * Process id of the supervisor that started this process. The process ends with its supervisor, which alone would stop it.
 */
export const PARENT_VARIABLE = 'TIDEMARK_PARENT';

export async function runFollow(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'follow');
  const names = command.positionals.length > 0 ? command.positionals : [ALL];
  const chosen = withCompanions(selectedFeeds(names, context.settings));
  await settingsFor(context, chosen);
  const summary = new Summary('follow', chosen, context.output);
  context.stack.supervise();
  const keys = chosen.flatMap(({ datasets }) => datasets.map(({ key }) => key));
  await using _projector = startProjector(context, keys);
  // A fault of a feed that was named ends the command. A feed that is followed because its source is set waits until it
  // is fixed.
  const strict = !names.includes(ALL);
  const ending = new AbortController();
  const signal = AbortSignal.any([context.signal, ending.signal]);
  const parent = context.io.env[PARENT_VARIABLE];
  const watch = setInterval(() => {
    if (parent !== undefined && String(process.ppid) !== parent) ending.abort(new Error('its supervisor is gone'));
  }, 1000).unref();
  const { instrument: instruments } = command.values as { instrument?: string };
  if (instruments !== undefined && instruments !== ALL_INSTRUMENTS) {
    const without = chosen.find(({ datasets }) => !hasInstruments(datasets[0]));
    if (without) throw new TidemarkError('USAGE', `${without.name} has no instruments: leave --instrument out`);
  }
  const tasks = chosen.map((feed) =>
    keepFollowing({ ...context, signal }, feed, { line: command.line, instruments, strict, summary }),
  );
  try {
    await Promise.all(tasks);
  } finally {
    clearInterval(watch);
    ending.abort();
    await Promise.allSettled(tasks);
  }
  return summary.answer(false) ? EXIT.DONE : EXIT.FAILED;
}

/** Adds the feeds that are followed together with a source's feed. */
const withCompanions = (feeds: readonly Feed[]): Feed[] => [
  ...new Set(feeds.flatMap((feed) => [feed, ...(feed.followedWith ?? []).map(feedOf)])),
];

interface Following {
  readonly line: string;
  /** As `--instrument` names them. */
  readonly instruments: string | undefined;
  readonly strict: boolean;
  readonly summary: Summary;
}

async function keepFollowing(
  context: Context,
  feed: Feed,
  { line, instruments, strict, summary }: Following,
): Promise<void> {
  const { signal, reportedLog } = context;
  await using run = await openRun(context, feed, { kind: 'follow', line });
  const isFiles = feed.datasets[0].partition.kind === 'file_day';
  let faulty = 0;
  let isFirst = true;
  /** Whether the source has answered since the last restart. */
  let answers = true;
  /** The partition that failed last. */
  let failing: string | undefined;
  /** Why a document is not there, by partition: each reason is printed once. */
  const missing = new Map<string, string | undefined>();
  const follow = async () => {
    await run.write({ state: 'running', next_at: null });
    const base = { kind: 'follow', line, selection: undefined, synthetic: false } as const;
    const request = { ...base, instruments, ownProjector: false, run };
    for await (const unit of ingest(context, feed, request)) {
      // A follow ends by being stopped, so an interrupted unit is not a failure.
      if (unit.code === 'INTERRUPTED') continue;
      if (isNotYet(feed, unit.code)) {
        // "Not yet" is an answer of the source, so earlier faults are over, even if the next day is hours away.
        if (faulty > 0 || !answers) await run.write({ failures: 0, fault: null });
        const isNew = unit.reason !== missing.get(unit.partition);
        if (isNew) context.output.note(`${unit.partition}  not published: ${unit.reason}`);
        missing.set(unit.partition, unit.reason);
        [faulty, answers] = [0, true];
        continue;
      }
      // A proved file day that is asked for again says nothing of the other days, and is no news while it is as it was.
      const isAsBefore = isFiles && (unit.state === 'unchanged' || unit.repeated === true);
      if (!unit.repeated) summary.add(feed, unit, isAsBefore);
      if (!isAsBefore || !answers || unit.partition === failing) {
        faulty = await recordUnit(run, unit, faulty);
        failing = faulty > 0 ? unit.partition : undefined;
      }
      answers = true;
      if (unit.code !== undefined && STOPPING.has(unit.code)) throw new StoppedByUnit(unit);
    }
    if (!signal.aborted) throw new Error(`${feed.name} ended unexpectedly`);
  };
  await keepRestarting(follow, {
    signal,
    onFailure: async ({ error, failures, waitMs }) => {
      const known = error instanceof TidemarkError ? error : undefined;
      if (strict && isFirst && known && !known.transient) throw error;
      [isFirst, answers] = [false, false];
      const fault = explain(error);
      const code = codeOf(error) ?? outageCode(error);
      reportedLog.warn({ feed: feed.name, code, waitMs, fault }, 'the feed restarts');
      context.output.note(`${feed.name}  ${fault}; retrying in ${Math.round(waitMs / 1000)} s`);
      await run.write({ state: 'waiting', failures, fault, next_at: new Date(Date.now() + waitMs) });
    },
  });
  await run.end('interrupted');
}

/** Records the state for `status --runs`: the last fault stays until a unit succeeds. @returns consecutive faults. */
async function recordUnit(run: RunRecorder, unit: UnitResult, faulty: number): Promise<number> {
  const { state, code, reason, repeated } = unit;
  if (state === 'proved' || state === 'unchanged' || repeated) {
    run.note({ failures: 0, fault: null, succeeded_at: new Date() });
    return 0;
  }
  await run.write({ fault: `${code}: ${reason}`, failures: faulty + 1 });
  return faulty + 1;
}

class StoppedByUnit extends Error {
  constructor({ code, reason }: UnitResult) {
    super(`${code}: ${reason}`);
  }
}
