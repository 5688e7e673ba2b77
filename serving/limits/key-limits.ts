/**
 * The limits of named keys: requests a minute and reads at once. Each process counts for itself, so that no request waits for
 * another process; with several processes (SVC_HTTP_PROCESSES) a key has as many times its limits. A share of them would refuse a
 * caller whose connections one process happens to hold.
 */
import type { ServerResponse } from 'node:http';
import type { Scope } from '../../shared/keys/key.ts';
import { Problem } from '../contract/problems.ts';
import type { Caller } from '../http/caller.ts';

const WINDOW_MS = 60_000;

/** A bucket that holds a minute's requests and fills evenly. */
export class RateBucket {
  readonly #perMinute: number;
  readonly #now: () => number;
  /** In units of which a request takes `WINDOW_MS` and a millisecond gives `perMinute`: whole numbers, which add up exactly. */
  #held: number;
  #at: number;

  /** @param now a clock that only moves forward, ms. */
  constructor(perMinute: number, now: () => number) {
    this.#perMinute = perMinute;
    this.#now = now;
    this.#held = perMinute * WINDOW_MS;
    this.#at = Math.floor(now());
  }

  /** @returns whether the request may pass, how many more may follow now, and in how many seconds there is one more. */
  take(): { readonly passes: boolean; readonly remaining: number; readonly nextSeconds: number } {
    const at = Math.floor(this.#now());
    this.#held = Math.min(this.#perMinute * WINDOW_MS, this.#held + (at - this.#at) * this.#perMinute);
    this.#at = at;
    const passes = this.#held >= WINDOW_MS;
    if (passes) this.#held -= WINDOW_MS;
    const remaining = Math.floor(this.#held / WINDOW_MS);
    const lacking = (remaining + 1) * WINDOW_MS - this.#held;
    return { passes, remaining, nextSeconds: Math.ceil(lacking / this.#perMinute / 1000) };
  }
}

export class KeyLimits {
  readonly #now: () => number;
  readonly #buckets = new Map<string, RateBucket>();
  readonly #reads = new Map<string, number>();

  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /** Counts a request, and tells the caller in headers what is left. @throws Problem RATE_LIMITED */
  countRequest({ name, terms: { requestsPerMinute } }: Caller, response: ServerResponse): void {
    if (name === null || requestsPerMinute === null) return;
    const bucket = this.#buckets.get(name) ?? new RateBucket(requestsPerMinute, this.#now);
    this.#buckets.set(name, bucket);
    const { passes, remaining, nextSeconds } = bucket.take();
    // Structured fields of draft-ietf-httpapi-ratelimit-headers.
    response.setHeader('RateLimit-Policy', `"requests";q=${requestsPerMinute};w=${WINDOW_MS / 1000}`);
    response.setHeader('RateLimit', `"requests";r=${remaining};t=${nextSeconds}`);
    if (passes) return;
    throw new Problem(
      'RATE_LIMITED',
      `The key ${name} may make ${requestsPerMinute} requests a minute. Try again in ${nextSeconds} s.`,
      { headers: { 'Retry-After': String(nextSeconds) } },
    );
  }

  /**
   * Counts a read until the returned function is called.
   * @throws Problem AUTH_CONCURRENCY_LIMITED
   */
  beginRead({ name, terms: { concurrentReads } }: Caller, scope: Scope): () => void {
    if (scope !== 'read' || name === null || concurrentReads === null) return () => {};
    const running = this.#reads.get(name) ?? 0;
    if (running >= concurrentReads) {
      throw new Problem(
        'AUTH_CONCURRENCY_LIMITED',
        `The key ${name} may have ${concurrentReads} reads at once, waiting ones and event streams included. Try again when one has ended.`,
        { headers: { 'Retry-After': '1' } },
      );
    }
    this.#reads.set(name, running + 1);
    return () => this.#reads.set(name, this.#reads.get(name)! - 1);
  }
}
