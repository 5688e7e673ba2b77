/** Child processes that are restarted when they end before they are stopped, and the projector as such a child. */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { DatabaseRole } from '../../shared/db/roles.ts';
import type { Logger } from '../../shared/logger.ts';
import { RestartPauses } from '../../shared/stack/processes.ts';
import { type Context, natsUrls, PROJECT_ROOT } from './context.ts';
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
  /** Called when the child refuses its settings (exit code 2). Restarting it would not help. */
  readonly onRefusal?: () => void;
  /** Receives the child's standard output line by line. */
  readonly onLine?: (line: string) => void;
}

const STOP_GRACE_MS = 10_000;
/** The output of a child that ended is read for at most this long. */
const OUTPUT_MS = 1000;

interface StartedChild {
  readonly child: ChildProcess;
  /** The exit code or the signal. The child's last lines come before them. */
  readonly ended: Promise<[code: number | null, signal: NodeJS.Signals | null]>;
}

/** Starts a child that nobody restarts. */
export function startChild({ input = '', ...options }: Omit<ChildOptions, 'log' | 'onRefusal'>): StartedChild {
  const started = startWaiting(options);
  started.child.stdin?.end(input);
  return started;
}

/** Starts a child whose standard input stays open. */
function startWaiting(options: Omit<ChildOptions, 'log' | 'onRefusal' | 'input'>): StartedChild {
  const { module, args, name, terminalLog, onLine, inherits, env } = options;
  const script = fileURLToPath(new URL(`../../${module}`, import.meta.url));
  const child = spawn(process.execPath, [...process.execArgv, script, ...(args ?? [])], {
    stdio: ['pipe', onLine ? 'pipe' : 'ignore', terminalLog ? 'pipe' : 'inherit'],
    env: { ...inherits, ...(terminalLog && { [TERMINAL_VARIABLE]: '1' }), ...env },
    // Its own process group: Ctrl-C reaches only the command, which stops its children in order.
    detached: true,
  });
  child.stdin?.on('error', () => {});
  const lines = onLine && child.stdout && forEachLine(child.stdout, onLine);
  const output = terminalLog && child.stderr && forEachLine(child.stderr, (line) => terminalLog.writeOf(name, line));
  const ended = once(child, 'exit').then(async ([code, signal]) => {
    // A grandchild may hold the pipes open.
    await Promise.race([Promise.all([lines, output]), delay(OUTPUT_MS, undefined, { ref: false })]);
    return [code, signal] as Awaited<StartedChild['ended']>;
  });
  return { child, ended };
}

export class SupervisedChild implements AsyncDisposable {
  readonly #options: ChildOptions;
  #process: ChildProcess | undefined;
  #stopping = false;
  #done: Promise<void>;

  /** @param waiting a process of the same module, which becomes the child instead of a new one */
  constructor(options: ChildOptions, waiting?: StartedChild) {
    this.#options = options;
    waiting?.child.stdin?.end(options.input ?? '');
    this.#done = this.#keepRunning(waiting);
  }

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  async #keepRunning(waiting: StartedChild | undefined): Promise<void> {
    const pauses = new RestartPauses();
    for (let next = waiting; !this.#stopping; next = undefined) {
      const startedAt = performance.now();
      const { name, log } = this.#options;
      const { child, ended } = next ?? startChild(this.#options);
      this.#process = child;
      const [code, signal] = await ended;
      if (this.#stopping) return;
      if (code === 2 && this.#options.onRefusal) {
        this.#options.onRefusal();
        return;
      }
      const waitMs = pauses.next(performance.now() - startedAt);
      log.warn({ child: name, code, signal, waitMs }, 'process ended, restarting it');
      await delay(waitMs);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping = true;
    const child = this.#process;
    if (child && child.exitCode === null && child.signalCode === null) {
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

const PROJECTOR = { name: 'projector', module: 'pipelines/projector/main.ts' } as const;

/**
 * A projector's process that loads its code while the command still looks for its servers, and waits for its options.
 * Without them it ends and has done nothing. A load begins a quarter of a second of CPU earlier than with a process that
 * starts when the first frame is published.
 */
export class WaitingProjector implements AsyncDisposable {
  #started: StartedChild | undefined;

  constructor({ io, terminalLog }: Pick<Context, 'io' | 'terminalLog'>) {
    this.#started = startWaiting({ ...PROJECTOR, inherits: io.env, terminalLog });
    this.#started.ended.catch(() => {}); // whoever takes it awaits it
  }

  /** The process, for the first caller. */
  take(): StartedChild | undefined {
    const started = this.#started;
    this.#started = undefined;
    return started;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const started = this.take();
    started?.child.kill('SIGKILL');
    await started?.ended.catch(() => {});
  }
}

/**
 * Starts a projector process, so that decoding and storing use one core and publishing the other. Several may run; a
 * lock lets one work, and another takes over when that one ends.
 */
export function startProjector(
  context: Context,
  datasets: readonly string[],
  waiting?: WaitingProjector,
): AsyncDisposable {
  const { io, settings, stack, log, terminalLog } = context;
  // By TCP: a unix socket holds 208 KiB, less than the rows of a frame, so the database waited for rows while the projector
  // converted the next frame. Loopback holds megabytes: a load of 3.5 M rows takes 1.5 s instead of 1.8, for the same CPU.
  const urls = { databaseUrl: context.databaseUrls.ingest, natsUrl: natsUrls(settings, stack).projector };
  if (io.project) return io.project({ ...urls, datasets, settings, log });
  const input = JSON.stringify({
    ...urls,
    datasets,
    cwd: PROJECT_ROOT,
    parent: process.pid,
    settings: context.settingFlags,
  });
  return new SupervisedChild({ ...PROJECTOR, inherits: io.env, log, terminalLog, input }, waiting?.take());
}

/** For processes that read: uses the unix socket if there is one. */
export function localUrl({ stack, databaseUrls }: Context, role: DatabaseRole): string {
  if (stack.databaseSocketDir === undefined) return databaseUrls[role];
  const url = new URL(databaseUrls[role]);
  url.searchParams.set('host', stack.databaseSocketDir);
  return url.href;
}
