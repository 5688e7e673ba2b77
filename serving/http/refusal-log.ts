/** Refused requests in the service's log, at a bounded rate: anybody can send them, as many as they like. */
import type { Logger } from '../../shared/log/logger.ts';
import type { ProblemCode } from '../contract/problems.ts';

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
