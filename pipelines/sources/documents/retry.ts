/** Bounded tries of one document: exponential backoff with jitter, a server's Retry-After honoured. */
import { setTimeout as sleep } from 'node:timers/promises';
import { TidemarkError } from '../../../shared/errors.ts';

export interface Backoff {
  /** Mean wait before the second attempt; doubled for each further one. Default 500. */
  readonly firstMs?: number;
  /** Longest wait of our own. Default 30,000. */
  readonly maxMs?: number;
}

/** A source that asks for a longer wait than this is given up at once, saying so: 5 minutes. */
const MAX_RETRY_AFTER_MS = 300_000;

/** Thrown by an attempt that another one may outdo; `fault` is what the caller sees when there is none left. */
export class Retryable extends Error {
  readonly fault: TidemarkError;
  readonly retryAfterMs: number | undefined;

  constructor(fault: TidemarkError, retryAfterMs?: number) {
    super(fault.message);
    this.fault = fault;
    this.retryAfterMs = retryAfterMs;
  }
}

export interface AttemptsOptions {
  readonly maxAttempts: number;
  readonly backoff?: Backoff;
  readonly signal?: AbortSignal;
  /** Told before each wait. */
  readonly onRetry?: (fault: TidemarkError, attempt: number, waitMs: number) => void;
}

/** Runs `attempt` (numbered from 1) until it succeeds, fails for good, or the attempts are used up. */
export async function withAttempts<T>(options: AttemptsOptions, attempt: (n: number) => Promise<T>): Promise<T> {
  for (let n = 1; ; n++) {
    try {
      options.signal?.throwIfAborted();
      return await attempt(n);
    } catch (error) {
      if (!(error instanceof Retryable)) throw error;
      const { fault, retryAfterMs = 0 } = error;
      if (retryAfterMs > MAX_RETRY_AFTER_MS)
        throw exhausted(fault, n, ` (it asks to wait ${Math.ceil(retryAfterMs / 1000)} s)`);
      if (n >= options.maxAttempts) throw exhausted(fault, n, '');
      const waitMs = Math.max(retryAfterMs, backoffMs(n, options.backoff));
      options.onRetry?.(fault, n, waitMs);
      // An abort shows at the next attempt, before anything is sent.
      await sleep(waitMs, undefined, { signal: options.signal }).catch(() => {});
    }
  }
}

/** Wait after the n-th attempt: between half and one and a half times the doubled base, so that clients spread out. */
export function backoffMs(n: number, { firstMs = 500, maxMs = 30_000 }: Backoff = {}): number {
  return Math.min(maxMs, firstMs * 2 ** (n - 1)) * (0.5 + Math.random());
}

/** Milliseconds of a Retry-After header: seconds or an HTTP date. */
export function retryAfterMs(header: string | undefined): number | undefined {
  if (header === undefined) return undefined;
  if (/^\s*\d+\s*$/.test(header)) return Number(header) * 1000;
  const at = Date.parse(header);
  return Number.isNaN(at) ? undefined : Math.max(0, at - Date.now());
}

function exhausted(fault: TidemarkError, attempts: number, suffix: string): TidemarkError {
  const tries = attempts === 1 ? 'one attempt' : `${attempts} attempts`;
  return new TidemarkError(fault.code, `${fault.message}, after ${tries}${suffix}`, {
    details: { ...fault.details, attempts },
    cause: fault.cause,
  });
}
