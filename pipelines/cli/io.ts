/** The parts of the process that a command uses. Tests pass their own and run commands in the test process. */
import { fileURLToPath } from 'node:url';
import type { Limits } from '../../shared/config/limits.ts';
import type { Settings } from '../../shared/config/settings.ts';
import type { Logger } from '../../shared/logger.ts';

/**
 * The project's root. `.env`, `.tidemark` and relative paths are resolved from here, not from the working directory.
 */
export const PROJECT_ROOT = fileURLToPath(new URL('../../', import.meta.url));

/** Signals that stop a command: Ctrl-C, a supervisor, the end of the terminal. */
export const STOP_SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Exit codes of the operator's command (docs/cli.md). */
export const EXIT = {
  DONE: 0,
  /** A unit failed, or the command as a whole. */
  FAILED: 1,
  /** Wrong usage or settings. */
  USAGE: 2,
  /** Another process does the same work. */
  HELD: 3,
  /** Stopped before the end; the same command continues. */
  INTERRUPTED: 130,
} as const;

interface Stream {
  readonly isTTY?: boolean;
  readonly columns?: number;
  write(text: string): unknown;
}

/** The arguments of a projector. */
export interface ProjectorOptions {
  readonly databaseUrl: string;
  readonly natsUrl: string;
  /** Keys of the datasets that it projects. */
  readonly datasets: readonly string[];
  readonly settings: Settings;
  readonly log: Logger;
}

export interface Io {
  /** Settings as environment variables; children inherit them. */
  readonly env: Readonly<NodeJS.ProcessEnv>;
  /** Replaces settings of the environment, for tests with intervals below the setting's minimum of a second. */
  readonly settings?: Partial<Settings>;
  readonly stdout: Stream;
  readonly stderr: Stream;
  /** The same of limits. */
  readonly limits?: Partial<Limits>;
  /** Receives the log lines instead of standard error. */
  readonly log?: { write(line: string): void };
  /** Starts a projector instead of a separate process. */
  readonly project?: (options: ProjectorOptions) => AsyncDisposable;
  /** Calls the listener when the user stops the command. @returns a function that removes the listener. */
  onStop(listener: () => void): () => void;
}

/** The real process. */
export const PROCESS_IO: Io = {
  env: process.env,
  stdout: process.stdout,
  stderr: process.stderr,
  onStop(listener) {
    for (const signal of STOP_SIGNALS) process.on(signal, listener);
    return () => {
      for (const signal of STOP_SIGNALS) process.off(signal, listener);
    };
  },
};
