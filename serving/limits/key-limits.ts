/**
 * The limits of named keys: requests a minute and reads at once. Each process counts for itself, so that no request waits for
 * another process; with several processes (SVC_HTTP_PROCESSES) a key has as many times its limits. A share of them would refuse a
 * caller whose connections one process happens to hold.
 */
import type { ServerResponse } from 'node:http';
import { TokenBucket } from 'limiter';
import type { Scope } from '../../shared/keys/key.ts';
import { Problem } from '../contract/problems.ts';
import type { Caller } from '../http/caller.ts';

export class KeyLimits {
  /** Each holds a minute's requests and fills evenly. */
  readonly #buckets = new Map<string, TokenBucket>();
  readonly #reads = new Map<string, number>();

  /** Counts a request, and tells the caller in headers what is left. @throws Problem RATE_LIMITED */
  countRequest({ name, terms: { requestsPerMinute } }: Caller, response: ServerResponse): void {
    if (name === null || requestsPerMinute === null) return;
    const bucket = this.#buckets.get(name) ?? bucketOf(requestsPerMinute);
    this.#buckets.set(name, bucket);
    const passes = bucket.tryRemoveTokens(1);
    const remaining = Math.floor(bucket.content);
    const nextSeconds = Math.max(1, Math.ceil(bucket.getWaitTime(remaining + 1) / 1000));
    // Structured fields of draft-ietf-httpapi-ratelimit-headers.
    response.setHeader('RateLimit-Policy', `"requests";q=${requestsPerMinute};w=60`);
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

function bucketOf(perMinute: number): TokenBucket {
  const bucket = new TokenBucket({ bucketSize: perMinute, tokensPerInterval: perMinute, interval: 'minute' });
  // It would begin empty.
  bucket.content = perMinute;
  return bucket;
}
