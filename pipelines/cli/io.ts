/** What a command has of the process it runs in. Tests hand in their own, and run commands in their own process. */
import type { Settings } from '../../shared/config/settings.ts';
import type { Logger } from '../../shared/logger.ts';

/** Told to stop: by Ctrl-C, by a supervisor, by the end of the terminal. */
export const STOP_SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Exit codes of the operator's command (docs/cli.md). */
export const EXIT = {
  DONE: 0,
  /** Some unit failed, or the command as a whole. */
  FAILED: 1,
  /** Usage or settings. */
  USAGE: 2,
  /** Somebody else is at the same work. */
  HELD: 3,
  /** Told to stop before the end; the same command goes on. */
  INTERRUPTED: 130,
} as const;

interface Stream {
  readonly isTTY?: boolean;
  readonly columns?: number;
  write(text: string): unknown;
}

/** What a projector is started with. */
export interface ProjectorOrder {
  readonly databaseUrl: string;
  readonly natsUrl: string;
  /** Keys of the datasets it projects. */
  readonly datasets: readonly string[];
  readonly settings: Settings;
  readonly log: Logger;
}

export interface Io {
  /** The settings; children inherit it. */
  readonly env: Readonly<NodeJS.ProcessEnv>;
  /** In place of what the environment says: intervals shorter than the second that a setting has at least. */
  readonly settings?: Partial<Settings>;
  readonly stdout: Stream;
  readonly stderr: Stream;
  /** Takes the lines of the log in place of the process's standard error. */
  readonly log?: { write(line: string): void };
  /** Starts a projector in place of a process of its own. */
  readonly project?: (order: ProjectorOrder) => AsyncDisposable;
  /** Calls the listener when the user stops the command. @returns a function that removes the listener. */
  onStop(listener: () => void): () => void;
}

/** The process itself. */
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
