/** What a command has of the process it runs in. Tests hand in their own, and run commands in their own process. */
import type { Settings } from '../../shared/config/settings.ts';
import type { Logger } from '../../shared/log/logger.ts';
import { STOP_SIGNALS } from './exit.ts';

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
