/** Child processes that are restarted when they end before they are stopped. */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { explain } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { RestartPauses } from '../../shared/stack/processes.ts';
import { PROJECT_ROOT } from './io.ts';
import { TERMINAL_VARIABLE, type TerminalLog } from './terminal-log.ts';

export interface ChildOptions {
  readonly name: string;
  /** Module to run, relative to the project's root. */
  readonly module: string;
  readonly args?: readonly string[];
  /** Written to the child's standard input, which is then closed. */
  readonly input?: string;
  /** The environment that it inherits, which is the command's. */
  readonly inherits: Readonly<NodeJS.ProcessEnv>;
  /** Variables beyond the inherited ones. */
  readonly env?: Readonly<Record<string, string>>;
  readonly log: Logger;
  /** Receives the child's standard error. Default: the command's own. */
  readonly terminalLog?: TerminalLog;
  /**
   * Called when the child refuses its settings (exit code 2) and has never been up. Restarting it would not help. One that was
   * up is started again: another program may have its port for a moment, or somebody edits the settings.
   */
  readonly onRefusal?: () => void;
  /** Receives the child's standard output line by line. */
  readonly onLine?: (line: string) => void;
}

const STOP_GRACE_MS = 10_000;
/** The output of a child that ended is read for at most this long. */
const OUTPUT_MS = 1000;

type Exit = [code: number | null, signal: NodeJS.Signals | null];

/** How a process ended, or why it was not started. */
interface Ended {
  readonly code?: Exit[0];
  readonly signal?: Exit[1];
  readonly fault?: string;
}

interface StartedChild {
  readonly child: ChildProcess;
  /** The exit code or the signal. The child's last lines come before them. */
  readonly ended: Promise<Exit>;
}

/** A process that nobody reads or writes yet. */
export interface SpawnedChild {
  readonly child: ChildProcess;
  readonly exited: Promise<Exit>;
}

interface SpawnOptions extends Pick<ChildOptions, 'module' | 'args' | 'inherits' | 'env'> {
  /** Whether somebody will read its standard output, and its standard error, which is else the command's own. */
  readonly readsOutput: boolean;
  readonly readsErrors: boolean;
}

/** Starts a process whose standard input stays open. */
export function spawnChild(options: SpawnOptions): SpawnedChild {
  const { module, args = [], inherits, env, readsOutput, readsErrors } = options;
  const child = spawn(process.execPath, [...process.execArgv, join(PROJECT_ROOT, module), ...args], {
    stdio: ['pipe', readsOutput ? 'pipe' : 'ignore', readsErrors ? 'pipe' : 'inherit'],
    env: { ...inherits, ...(readsErrors && { [TERMINAL_VARIABLE]: '1' }), ...env },
    // Its own process group: Ctrl-C reaches only the command, which stops its children in order.
    detached: true,
  });
  child.stdin?.on('error', () => {});
  return { child, exited: once(child, 'exit') as Promise<Exit> };
}

/** Starts a child that nobody restarts. */
export function startChild(options: Omit<ChildOptions, 'log' | 'onRefusal'>): StartedChild {
  const readsOutput = options.onLine !== undefined;
  return attend(spawnChild({ ...options, readsOutput, readsErrors: options.terminalLog !== undefined }), options);
}

/** Gives a process its input, and reads what it says. */
function attend({ child, exited }: SpawnedChild, options: Omit<ChildOptions, 'log' | 'onRefusal'>): StartedChild {
  const { name, input = '', terminalLog, onLine } = options;
  child.stdin?.end(input);
  const lines = onLine && child.stdout && forEachLine(child.stdout, onLine);
  const output = terminalLog && child.stderr && forEachLine(child.stderr, (line) => terminalLog.writeOf(name, line));
  const ended = exited.then(async (exit) => {
    // A grandchild may hold the pipes open.
    await Promise.race([Promise.all([lines, output]), delay(OUTPUT_MS, undefined, { ref: false })]);
    return exit;
  });
  return { child, ended };
}

export class SupervisedChild implements AsyncDisposable {
  readonly #options: ChildOptions;
  #process: ChildProcess | undefined;
  #stopping = false;
  /** Whether it has said a line. */
  #hasSpoken = false;
  #done: Promise<void>;

  /** @param waiting a process of the same module, which becomes the child instead of a new one */
  constructor(options: ChildOptions, waiting?: SpawnedChild) {
    this.#options = options;
    this.#done = this.#keepRunning(waiting);
  }

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  async #keepRunning(waiting: SpawnedChild | undefined): Promise<void> {
    const pauses = new RestartPauses();
    const { name, log, onLine, onRefusal } = this.#options;
    let wasUp = false;
    for (let next = waiting; !this.#stopping; next = undefined) {
      const startedAt = performance.now();
      const { code, signal, fault } = await this.#run(next);
      if (this.#stopping) return;
      const isRefusal = code === 2 && onRefusal !== undefined;
      if (isRefusal && !wasUp) {
        onRefusal();
        return;
      }
      const waitMs = pauses.next(performance.now() - startedAt);
      if (isRefusal) log.error({ child: name, waitMs }, 'process refused its settings, trying again');
      else if (fault === undefined) log.warn({ child: name, code, signal, waitMs }, 'process ended, restarting it');
      else log.warn({ child: name, fault, waitMs }, 'process could not be started, trying again');
      // A process that refuses may say a line about that. Where nobody reads its lines, another end says that it was up.
      wasUp ||= !isRefusal && fault === undefined && (this.#hasSpoken || onLine === undefined);
      await delay(waitMs);
    }
  }

  /** Runs the process until its end. A machine without a free process or memory refuses to start one, usually for a while. */
  async #run(waiting: SpawnedChild | undefined): Promise<Ended> {
    const { onLine } = this.#options;
    const hear = (line: string) => {
      this.#hasSpoken = true;
      onLine?.(line);
    };
    const options = { ...this.#options, onLine: onLine && hear };
    try {
      const { child, ended } = waiting ? attend(waiting, options) : startChild(options);
      this.#process = child;
      const [code, signal] = await ended;
      return { code, signal };
    } catch (error) {
      return { fault: explain(error) };
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping = true;
    const child = this.#process;
    // Without a pid it was never started, and tells of no end.
    if (child?.pid !== undefined && child.exitCode === null && child.signalCode === null) {
      child.kill('SIGTERM');
      const timer = setTimeout(() => child.kill('SIGKILL'), STOP_GRACE_MS);
      await once(child, 'exit');
      clearTimeout(timer);
    }
    await Promise.race([this.#done, delay(100, undefined, { ref: false })]);
  }
}

/** @returns a promise that resolves at the end of the stream. */
function forEachLine(stream: NodeJS.ReadableStream, onLine: (line: string) => void): Promise<void> {
  let rest = '';
  stream.setEncoding('utf8');
  stream.on('data', (chunk: string) => {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) onLine(line);
  });
  return new Promise((resolve) => {
    stream.once('close', () => {
      if (rest !== '') onLine(rest);
      resolve();
    });
  });
}
