/** The caller's key, compared without telling by the time taken how much of it was right. */

import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from '../../shared/logger.ts';
import { Problem, type ProblemCode } from '../contract/problems.ts';
import { REQUEST_HEADERS } from './routes.ts';

const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest();

export class KeyCheck {
  readonly #accepted: readonly Buffer[];

  /** The key, and during a rotation the one before it. */
  constructor(keys: readonly (string | undefined)[]) {
    // A blank key would let in whoever sends none.
    this.#accepted = keys.filter((key) => key !== undefined && key !== '').map((key) => digest(Buffer.from(key!)));
  }

  /** @throws Problem AUTH_INVALID_API_KEY */
  check(request: IncomingMessage): void {
    this.#check(request.headers['x-api-key']);
  }

  /** The same for callers that can send no header of their own but `Authorization: Bearer`. @throws as check */
  checkWithBearer({ headers }: IncomingMessage): void {
    this.#check(headers['x-api-key'] ?? /^Bearer (.+)$/i.exec(headers.authorization ?? '')?.[1]);
  }

  #check(given: string | string[] | undefined): void {
    const offered = digest(headerBytes(typeof given === 'string' ? given : ''));
    let accepted = false;
    for (const key of this.#accepted) accepted = timingSafeEqual(key, offered) || accepted;
    if (typeof given !== 'string') {
      throw new Problem('AUTH_INVALID_API_KEY', 'Send the service’s key in the X-API-Key header.');
    }
    if (!accepted) throw new Problem('AUTH_INVALID_API_KEY', 'The key that was sent is not the service’s.');
  }
}

/** Node reads header bytes as latin1; keys and passwords are UTF-8. */
const headerBytes = (value: string): Buffer => Buffer.from(value, 'latin1');

/** The caller's own storage credential, if it sent one. */
export function backendToken(request: IncomingMessage): string | undefined {
  const token = request.headers['x-backend-token'];
  return typeof token === 'string' ? headerBytes(token).toString() : undefined;
}

/*
 * Cross-origin requests: pages of the configured origins may call the service from a browser, others may not. Nothing
 * is configured by default. The key goes in a header, so no credentials of the browser's own are ever allowed.
 */

/** What a page may send beside what every page may. */
const ALLOWED_HEADERS = ['Accept', 'Content-Type', 'X-API-Key', ...Object.keys(REQUEST_HEADERS)].sort();
/** Seconds a browser keeps the answer to a preflight. */
const PREFLIGHT_MAX_AGE_S = 600;

export class Cors {
  readonly #origins: ReadonlySet<string>;
  readonly #any: boolean;

  constructor(origins: readonly string[]) {
    this.#origins = new Set(origins);
    this.#any = this.#origins.has('*');
  }

  /** Sets what every answer needs, errors too: a page could not read them otherwise. */
  allow(request: IncomingMessage, response: ServerResponse): void {
    if (this.#origins.size === 0) return;
    const { origin } = request.headers;
    if (!this.#any) response.setHeader('Vary', 'Origin');
    if (!this.#isAllowed(origin)) return;
    response.setHeader('Access-Control-Allow-Origin', this.#any ? '*' : origin!);
    // Any name, X-Svc-* among them: it is a wildcard wherever no credentials are sent, and none are.
    response.setHeader('Access-Control-Expose-Headers', '*');
  }

  /** Whether a browser asks what its page may send. It comes without a key. */
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

/* Refused requests in the service's log, at a bounded rate: anybody can send them, as many as they like. */

/** Codes of requests that are refused before a route looks at them. */
const LOGGED: ReadonlySet<ProblemCode> = new Set([
  'HTTP_REQUEST_MALFORMED',
  'HTTP_REQUEST_TIMEOUT',
  'HTTP_HEADERS_TOO_LARGE',
  'HTTP_CONNECTION_LIMIT_REACHED',
  'AUTH_INVALID_API_KEY',
]);
/** One line a code in so long for the first refusal, and one for how many followed. */
const REFUSAL_LOG_MS = 60_000;

export interface Refusal {
  readonly requestId: string;
  readonly clientAddress: string | undefined;
}

export class RefusalLog implements Disposable {
  readonly #log: Logger;
  readonly #intervalMs: number;
  /** How many of a code followed the one that was logged. */
  readonly #followed = new Map<ProblemCode, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(log: Logger, intervalMs = REFUSAL_LOG_MS) {
    this.#log = log;
    this.#intervalMs = intervalMs;
  }

  /** Logs the first of a code at once and counts those that follow it. Other codes are not logged. */
  note(code: ProblemCode, detail: string, { requestId, clientAddress }: Refusal): void {
    if (!LOGGED.has(code)) return;
    const followed = this.#followed.get(code);
    if (followed === undefined) {
      this.#log.warn({ code, requestId, clientAddress }, `a request was refused: ${detail}`);
      this.#followed.set(code, 0);
    } else this.#followed.set(code, followed + 1);
    this.#timer ??= setTimeout(() => this.#tell(), this.#intervalMs).unref();
  }

  #tell(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    for (const [code, refused] of this.#followed) {
      if (refused > 0) this.#log.warn({ code, refused }, 'more requests were refused since');
    }
    this.#followed.clear();
  }

  [Symbol.dispose](): void {
    this.#tell();
  }
}
