/** The operator's command: in the test's own process, or as a process where a process is the point. */
import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Io, ProjectorOptions } from '../../pipelines/cli/io.ts';
import { run } from '../../pipelines/cli/run.ts';
import { keepProjected } from '../../pipelines/projector/run.ts';
import { keepRecounted } from '../../pipelines/projector/verify.ts';
import { projectionOf } from '../../pipelines/sources/index.ts';
import type { Settings } from '../../shared/config/settings.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { limitsIn } from './small-limits.ts';

export const ROOT = join(import.meta.dirname, '..', '..');

/** The one object that a command prints with --json; its fields are looked at by name. */
// biome-ignore lint/suspicious/noExplicitAny: the shape differs by command and is what the tests check
export type Json = any;

export interface Answer {
  readonly exit: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly json: Json;
}

export interface Running {
  readonly child: ChildProcess;
  readonly done: Promise<Answer>;
}

type Environment = Readonly<Record<string, string>>;

/** Before `--`: what follows it is no option. */
const withJson = (args: readonly string[]) => {
  const end = args.indexOf('--');
  return end < 0 ? [...args, '--json'] : args.toSpliced(end, 0, '--json');
};

/** What a command finds in its environment: nothing of the test's but PATH. */
const environmentOf = (env: Environment): NodeJS.ProcessEnv => ({
  PATH: process.env.PATH,
  // By this the processes of a run are found should it be killed (reaper.ts).
  TIDEMARK_TEST_RUN: process.env.TIDEMARK_TEST_RUN,
  SVC_LOG_LEVEL: process.env.TIDEMARK_TEST_LOG ?? 'warn',
  ...env,
});

function answerOf(exit: number | null, signal: NodeJS.Signals | null, stdout: string, stderr: string): Answer {
  let json: Json;
  try {
    json = JSON.parse(stdout);
  } catch {
    json = undefined;
  }
  return { exit, signal, stdout, stderr, json };
}

/** As the projector's process does (pipelines/projector/main.ts). */
function project({ datasets, ...needs }: ProjectorOptions): AsyncDisposable {
  const stopping = new AbortController();
  const { signal } = stopping;
  const definitions = datasets.map(datasetOf);
  const working = Promise.allSettled([
    ...definitions.map((dataset) => keepProjected(dataset, { ...needs, projection: projectionOf(dataset), signal })),
    keepRecounted({ ...needs, datasets: definitions, projectionOf, signal }),
  ]);
  return {
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await working;
    },
  };
}

/** `./tidemark ARGS --json` in this process, its projector too. */
export const runCommand = (args: readonly string[], env: Environment): Promise<Answer> => beginCommand(args, env).done;

export interface Begun {
  readonly done: Promise<Answer>;
  /** It has written to standard output. */
  readonly answered: Promise<void>;
  /** As a signal does it. */
  stop(): void;
}

/** The same, to be told to stop. `settings` win: intervals that are shorter than an environment can say. */
export function beginCommand(args: readonly string[], env: Environment, settings: Partial<Settings> = {}): Begun {
  const { io, ...begun } = commandIo(env, settings);
  const done = run(withJson(args), io).then((exit) => answerOf(exit, null, begun.written.stdout, begun.written.stderr));
  return { done, answered: begun.answered, stop: begun.stop };
}

/** What a command in this process is given, and what it wrote. */
export function commandIo(env: Environment, settings: Partial<Settings> = {}) {
  const listeners = new Set<() => void>();
  const written = { stdout: '', stderr: '' };
  const answered = Promise.withResolvers<void>();
  const streamOf = (name: keyof typeof written) => ({
    write(text: string) {
      written[name] += text;
      if (name === 'stdout') answered.resolve();
      if (name === 'stderr' && process.env.TIDEMARK_TEST_LOG) process.stderr.write(text);
    },
  });
  const io: Io = {
    env: environmentOf(env),
    settings,
    limits: limitsIn(env),
    stdout: streamOf('stdout'),
    stderr: streamOf('stderr'),
    log: streamOf('stderr'),
    project,
    onStop(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
  };
  return {
    io,
    written,
    answered: answered.promise,
    stop: () => {
      for (const listener of listeners) listener();
    },
  };
}

/**
 * What a process wrote before it ended lies in its pipes by then, read or not: another child's end may have been what the
 * loop woke up for. Between these two turns of the loop it is read.
 */
async function pipesRead(): Promise<void> {
  await nextTurn();
  await nextTurn();
}

/** Starts `./tidemark ARGS --json` with nothing in its environment but PATH and `env`. */
export function startCommand(args: readonly string[], env: Environment): Running {
  const child = spawn(join(ROOT, 'tidemark'), withJson(args), {
    env: environmentOf(env),
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text) => {
    stdout += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text) => {
    stderr += text;
    if (process.env.TIDEMARK_TEST_LOG) process.stderr.write(text);
  });
  const done = new Promise<Answer>((resolve, reject) => {
    child.once('error', reject);
    // 'exit', not 'close': a projector that outlives its parent for a moment holds the pipes.
    child.once('exit', async (exit, signal) => {
      await pipesRead();
      resolve(answerOf(exit, signal, stdout, stderr));
    });
  });
  return { child, done };
}

// Child processes, found in /proc.

/** The processes below `parent` whose command line has `words`. */
export function childrenOf(parent: number, words: string): number[] {
  return readdirSync('/proc')
    .filter((name) => {
      try {
        const [, , ppid] = readFileSync(`/proc/${name}/stat`, 'utf8')
          .replace(/^.*\) /, 'x ')
          .split(' ');
        return Number(ppid) === parent && readFileSync(`/proc/${name}/cmdline`, 'utf8').includes(words);
      } catch {
        return false;
      }
    })
    .map(Number);
}
