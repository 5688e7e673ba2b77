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
