/**
 * Cross-origin requests: pages of the configured origins may call the service from a browser, others may not. Nothing
 * is configured by default. The key goes in a header, so no credentials of the browser's own are ever allowed.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { REQUEST_HEADERS } from './request-headers.ts';

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
