/** When to look again: every so often, and a little later at random, so that nobody is asked by the clock. */
import { setTimeout as sleep } from 'node:timers/promises';

export interface Schedule {
  readonly everyMs: number;
  /** Most that is added to each wait. */
  readonly jitterMs: number;
  readonly signal: AbortSignal;
  /** Between 0 and 1; for tests. */
  readonly random?: () => number;
}

/** Now, and then again and again, until the signal. What takes longer than the wait puts the next off, never two up. */
export async function* turns({ everyMs, jitterMs, signal, random = Math.random }: Schedule): AsyncGenerator<number> {
  for (let turn = 0; !signal.aborted; turn++) {
    const due = performance.now() + everyMs + random() * jitterMs;
    yield turn;
    const left = due - performance.now();
    if (left > 0) await sleep(left, undefined, { signal }).catch(() => {});
  }
}
