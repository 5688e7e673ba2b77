/**
 * `follow`: what is new, as it comes, of every source on a rhythm of its own. Each feed is a task of its own that starts
 * again after a fault, with growing pauses; the others never notice. `runs` shows how each one does.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { RunRecorder } from '../../../shared/db/runs.ts';
import { codeOf, explain, outageCode, TidemarkError } from '../../../shared/errors.ts';
import type { UnitResult } from '../../publisher/backfill.ts';
import { feedOf } from '../../sources/index.ts';
import type { Feed } from '../../sources/types.ts';
import { startProjector } from '../child.ts';
import { type Context, openContext } from '../context.ts';
import { ingest, openRun } from '../ingest.ts';
import { EXIT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { ALL, selectedFeeds } from '../over-partitions.ts';
import { isNotYet } from '../source-failures.ts';
import { Summary } from '../summary.ts';

/* A task that starts again after each fault, with pauses that grow, until the signal. */

export interface Pauses {
  readonly firstMs: number;
  readonly longestMs: number;
  /** A fault this long after the last one counts as the first. */
  readonly forgottenMs: number;
  /** Tasks that failed together are not to try together for ever: this share more or less, at random. */
  readonly jitter: number;
}

const PAUSES: Pauses = { firstMs: 1000, longestMs: 300_000, forgottenMs: 600_000, jitter: 0.2 };

export interface Failure {
  readonly error: unknown;
  /** In a row, this one included. */
  readonly failures: number;
  readonly waitMs: number;
}

export interface Restarting {
  readonly signal: AbortSignal;
  /** Told of each fault before its pause. What it throws ends the task. */
  readonly onFailure: (failure: Failure) => Promise<void>;
  readonly pauses?: Pauses;
}

/** @param work it never ends but by a fault or the signal. */
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

/** What follows from one unit for all that come after it. */
const STOPPING: ReadonlySet<string> = new Set(['LOG_FULL', 'LOG_REWOUND']);
/** Process id of the supervisor that started it: without it nobody would stop it. */
export const PARENT_VARIABLE = 'TIDEMARK_PARENT';

export async function runFollow(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'follow');
  const names = command.positionals.length > 0 ? command.positionals : [ALL];
  const chosen = withCompanions(selectedFeeds(names, context.settings));
  const summary = new Summary('follow', chosen, context.output);
  context.stack.supervise();
  const keys = chosen.flatMap(({ datasets }) => datasets.map(({ key }) => key));
  await using _projector = startProjector(context, keys);
  // What is named is meant: a mistake in it ends the command. What is followed because it is set waits to be put right.
  const strict = !names.includes(ALL);
  const ending = new AbortController();
  const signal = AbortSignal.any([context.signal, ending.signal]);
  const parent = context.io.env[PARENT_VARIABLE];
  const watch = setInterval(() => {
    if (parent !== undefined && String(process.ppid) !== parent) ending.abort(new Error('its supervisor is gone'));
  }, 1000).unref();
  const tasks = chosen.map((feed) =>
    keepFollowing({ ...context, signal }, feed, { line: command.line, strict, summary }),
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

/** With the feeds of the same source that are taken along. */
const withCompanions = (feeds: readonly Feed[]): Feed[] => [
  ...new Set(feeds.flatMap((feed) => [feed, ...(feed.followedWith ?? []).map(feedOf)])),
];

interface Following {
  readonly line: string;
  readonly strict: boolean;
  readonly summary: Summary;
}

async function keepFollowing(context: Context, feed: Feed, { line, strict, summary }: Following): Promise<void> {
  const { signal, toldLog } = context;
  await using run = await openRun(context, feed, { kind: 'follow', line });
  let faulty = 0;
  let isFirst = true;
  /** Since it was started again. */
  let answers = true;
  let said: string | undefined;
  const follow = async () => {
    await run.write({ state: 'running', next_at: null });
    const request = { kind: 'follow', line, selection: undefined, synthetic: false, ownProjector: false, run } as const;
    for await (const unit of ingest(context, feed, request)) {
      // What is followed ends by being stopped: what was under way then is no failure.
      if (unit.code === 'INTERRUPTED') continue;
      if (isNotYet(feed, unit.code)) {
        // A vendor that has nothing new answers: what was wrong with it is over, hours before the next day is there.
        if (faulty > 0 || !answers) await run.write({ failures: 0, fault: null });
        if (unit.reason !== said) context.output.note(`${unit.partition}  not yet: ${unit.reason}`);
        [faulty, answers, said] = [0, true, unit.reason];
        continue;
      }
      summary.add(feed, unit);
      faulty = await tell(run, unit, faulty);
      answers = true;
      if (unit.code !== undefined && STOPPING.has(unit.code)) throw new StoppedByLog(unit);
    }
    if (!signal.aborted) throw new Error(`${feed.name} has come to an end`);
  };
  await keepRestarting(follow, {
    signal,
    onFailure: async ({ error, failures, waitMs }) => {
      const known = error instanceof TidemarkError ? error : undefined;
      if (strict && isFirst && known && !known.transient) throw error;
      [isFirst, answers] = [false, false];
      const fault = explain(error);
      const code = codeOf(error) ?? outageCode(error);
      toldLog.warn({ feed: feed.name, code, waitMs, fault }, 'following starts again');
      context.output.note(`${feed.name}  ${fault}; trying again in ${Math.round(waitMs / 1000)} s`);
      await run.write({ state: 'waiting', failures, fault, next_at: new Date(Date.now() + waitMs) });
    },
  });
  await run.end('interrupted');
}

/** Others see how it does: the last fault stays until something goes well. @returns faults in a row. */
async function tell(run: RunRecorder, { state, code, reason }: UnitResult, faulty: number): Promise<number> {
  if (state === 'proved' || state === 'unchanged') {
    run.note({ failures: 0, fault: null, succeeded_at: new Date() });
    return 0;
  }
  await run.write({ fault: `${code}: ${reason}`, failures: faulty + 1 });
  return faulty + 1;
}

class StoppedByLog extends Error {
  constructor({ code, reason }: UnitResult) {
    super(`${code}: ${reason}`);
  }
}
