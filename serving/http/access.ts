/** Which pages may call the service from a browser, and the log of refused requests. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from '../../shared/logger.ts';
import type { ProblemCode } from '../contract/problems.ts';
import { REQUEST_HEADERS } from './routes.ts';

/** The headers that a page may send beside those that every page may send. */
const ALLOWED_HEADERS = ['Accept', 'Content-Type', 'X-API-Key', ...Object.keys(REQUEST_HEADERS)].sort();
/** Seconds for which a browser caches the answer to a preflight. */
const PREFLIGHT_MAX_AGE_S = 600;

/**
 * Cross-origin requests: pages of the configured origins may call the service from a browser, others may not. No origin is
 * configured by default. The key travels in a header, so the service never allows the browser's own credentials.
 */
export class Cors {
  readonly #origins: ReadonlySet<string>;
  readonly #any: boolean;
  readonly #isShared: boolean;

  /** @param shared caches keep an answer to a request without an origin, and hand it to a page: it has the headers as well */
  constructor(origins: readonly string[], { shared = false } = {}) {
    this.#origins = new Set(origins);
    this.#any = this.#origins.has('*');
    this.#isShared = shared;
  }

  /** Sets the headers that every answer needs; without them a page could not read errors either. */
  allow(request: IncomingMessage, response: ServerResponse): void {
    const { origin } = request.headers;
    if (!this.#any) response.setHeader('Vary', 'Origin');
    if (!this.#isShared && !this.#isAllowed(origin)) return;
    response.setHeader('Access-Control-Allow-Origin', this.#any ? '*' : origin!);
    // `*` covers every name, X-Svc-* among them: it is a wildcard for requests without credentials, and these have none.
    response.setHeader('Access-Control-Expose-Headers', '*');
  }

  /** Whether the request is a browser's preflight. A preflight carries no key. */
  isPreflight({ method, headers }: IncomingMessage): boolean {
    return (
      method === 'OPTIONS' && this.#isAllowed(headers.origin) && headers['access-control-request-method'] !== undefined
    );
  }

  answerPreflight(response: ServerResponse, methods: readonly string[]): void {
    response.writeHead(204, {
      'Access-Control-Allow-Methods': methods.join(', '),
      'Access-Control-Allow-Headers': ALLOWED_HEADERS.join(', '),
      'Access-Control-Max-Age': String(PREFLIGHT_MAX_AGE_S),
    });
    response.end();
  }

  #isAllowed(origin: string | undefined): boolean {
    return origin !== undefined && (this.#any || this.#origins.has(origin));
  }
}

/** Codes of requests that are refused before a route handles them. */
const LOGGED: ReadonlySet<ProblemCode> = new Set([
  'HTTP_REQUEST_MALFORMED',
  'HTTP_REQUEST_TIMEOUT',
  'HTTP_LENGTH_REQUIRED',
  'HTTP_HEADERS_TOO_LARGE',
  'HTTP_CONNECTION_LIMIT_REACHED',
  'AUTH_INVALID_API_KEY',
  'AUTH_KEYS_UNAVAILABLE',
  'AUTH_KEY_EXPIRED',
  'AUTH_KEY_REVOKED',
  'AUTH_SCOPE_MISSING',
  'AUTH_DATASET_NOT_COVERED',
  'RATE_LIMITED',
  'AUTH_CONCURRENCY_LIMITED',
]);
/** Per code, key and interval, the log gets one line for the first refusal and one with the count of the others. */
const REFUSAL_LOG_MS = 60_000;

interface RefusedRequest {
  readonly requestId: string;
  readonly clientAddress: string | undefined;
  /** Name of the caller's key, if it is known. */
  readonly key?: string | null;
}

/** Logs refused requests at a bounded rate, because anybody can send any number of them. */
export class RefusalLog implements Disposable {
  readonly #log: Logger;
  readonly #intervalMs: number;
  /** By code and key: the number of refusals after the one that was logged. */
  readonly #followed = new Map<string, { readonly code: ProblemCode; readonly key?: string; refused: number }>();
  #timer: NodeJS.Timeout | undefined;

  constructor(log: Logger, intervalMs = REFUSAL_LOG_MS) {
    this.#log = log;
    this.#intervalMs = intervalMs;
  }

  /** Logs the first refusal of a code at once and counts those that follow. It ignores all other codes. */
  note(code: ProblemCode, detail: string, { requestId, clientAddress, key }: RefusedRequest): void {
    if (!LOGGED.has(code)) return;
    const named = key ? { key } : {};
    const kind = `${code} ${key ?? ''}`;
    const followed = this.#followed.get(kind);
    if (followed === undefined) {
      this.#log.warn({ code, ...named, requestId, clientAddress }, `the service refused a request: ${detail}`);
      this.#followed.set(kind, { code, ...named, refused: 0 });
    } else followed.refused++;
    this.#timer ??= setTimeout(() => this.#logFollowed(), this.#intervalMs).unref();
  }

  #logFollowed(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    for (const counted of this.#followed.values()) {
      if (counted.refused > 0) this.#log.warn({ ...counted }, 'the service refused more requests since');
    }
    this.#followed.clear();
  }

  [Symbol.dispose](): void {
    this.#logFollowed();
  }
}
