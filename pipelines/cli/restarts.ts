/** A task that starts again after each fault, with pauses that grow, until the signal. */
import { setTimeout as sleep } from 'node:timers/promises';

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
