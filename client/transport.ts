/** One request over HTTP, with the attempts it takes. Reads change nothing, so each may be repeated. */
import { ConnectionError, HistoricalDataError, type Problem, ServiceError, serviceError } from './errors.ts';
import { withinStalls } from './stall.ts';

export interface TransportOptions {
  /** Where the service is, such as `http://127.0.0.1:8080`. A path in it is kept as a prefix. */
  readonly baseUrl: string | URL;
  /** Sent as `X-API-Key`. */
  readonly apiKey: string;
  /** Sent as `X-Backend-Token`: the caller's own storage credential, where a dataset's rights demand it. */
  readonly backendToken?: string;
  /** Attempts at a request until its answer begins; default 5. 1 = no retries. What cannot pass by itself gets one. */
  readonly maxAttempts?: number;
  /** Longest wait before the next attempt, ms; default 30,000. A longer Retry-After ends the attempts. */
  readonly maxRetryWaitMs?: number;
  /** Time for an attempt's answer to begin, ms; default 120,000. */
  readonly timeoutMs?: number;
  /** Longest silence within an answer while it is read, ms; default 120,000. Then it is an IncompleteAnswerError. */
  readonly stallTimeoutMs?: number;
  /** Replaces the global `fetch`, for proxies and agents. */
  readonly fetch?: typeof fetch;
}

export interface TransportRequest {
  readonly method: 'GET' | 'POST' | 'DELETE';
  readonly path: string;
  readonly body?: unknown;
  readonly headers: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal | undefined;
}

const FIRST_BACKOFF_MS = 250;
/** Statuses that say "not now" rather than "not". */
const PASSING = new Set([429, 502, 503, 504]);
/** But these codes of 503 last: the same read runs out of its time again, and the others need an operator. */
const LASTING =
  /^QUERY_TIMEOUT$|^ALIGNED_STORAGE_CONTRACT_VIOLATION$|^EXPORT_ARTIFACT_|_METADATA_ERROR$|_RUNTIME_ERROR$|_RIGHTS_RESOLUTION_ERROR$/;

export class Transport {
  readonly #options: TransportOptions;
  readonly #base: string;
  readonly #keys: Readonly<Record<string, string>>;

  /** @throws TypeError when baseUrl is no http(s) URL, or a key is empty or cannot be a header. */
  constructor(options: TransportOptions) {
    const base = new URL(options.baseUrl);
    if (!/^https?:$/.test(base.protocol)) throw new TypeError(`baseUrl must be http or https, not ${base.protocol}`);
    if (!options.apiKey) throw new TypeError('apiKey is empty: it is the SVC_INTERNAL_API_KEY of the service');
    this.#options = options;
    this.#keys = {
      'X-API-Key': headerOf('apiKey', options.apiKey),
      ...(options.backendToken !== undefined && { 'X-Backend-Token': headerOf('backendToken', options.backendToken) }),
    };
    this.#base = base.href.replace(/\/$/, '');
  }

  /** @returns an answer with status 200, its body unread. @throws HistoricalDataError, or the signal's reason. */
  post(path: string, body: unknown, accept: string, signal?: AbortSignal): Promise<Response> {
    return this.send({ method: 'POST', path, body, headers: { Accept: accept }, signal });
  }

  /** Attempts at a request, at most. */
  get maxAttempts(): number {
    return this.#options.maxAttempts ?? 5;
  }

  /** What is sent must be such that it can be sent again. @returns an answer with status 2xx, its body unread. */
  async send(request: TransportRequest): Promise<Response> {
    const { maxRetryWaitMs = 30_000, stallTimeoutMs = 120_000 } = this.#options;
    const { maxAttempts } = this;
    for (let attempt = 1; ; attempt++) {
      const outcome = await this.#attempt(request);
      if ('response' in outcome) return withinStalls(outcome.response, stallTimeoutMs, outcome.hangUp);
      const { error, retryAfterMs } = outcome;
      const waitMs = retryAfterMs ?? jittered(FIRST_BACKOFF_MS * 2 ** (attempt - 1));
      if (!outcome.passing || attempt >= maxAttempts || waitMs > maxRetryWaitMs) throw error;
      await sleep(waitMs, request.signal);
    }
  }

  async #attempt({ method, path, body, headers, signal }: TransportRequest): Promise<Answered | FailedAttempt> {
    const { timeoutMs = 120_000, fetch: doFetch = fetch } = this.#options;
    signal?.throwIfAborted();
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(new ConnectionError(`No answer within ${timeoutMs} ms`)), timeoutMs);
    let response: Response;
    try {
      response = await doFetch(this.#base + path, {
        method,
        headers: {
          ...(body !== undefined && { 'Content-Type': 'application/json' }),
          ...headers,
          ...this.#keys,
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
        signal: signal ? AbortSignal.any([signal, late.signal]) : late.signal,
      });
    } catch (cause) {
      signal?.throwIfAborted();
      const error =
        cause instanceof HistoricalDataError
          ? cause
          : new ConnectionError(`${this.#base} cannot be reached`, { cause });
      return { error, passing: true };
    } finally {
      clearTimeout(timer);
    }
    if (response.ok) return { response, hangUp: () => late.abort() };
    const error = await errorOf(response);
    return {
      error,
      passing: PASSING.has(response.status) && !(error instanceof ServiceError && LASTING.test(error.code)),
      retryAfterMs: retryAfterMs(response.headers.get('retry-after')),
    };
  }
}

/** Keys are any text, sent as UTF-8; `fetch` takes header bytes as latin1. */
function headerOf(option: string, value: string): string {
  const bytes = Array.from(new TextEncoder().encode(value), (byte) => String.fromCharCode(byte)).join('');
  try {
    // fetch would trim it, and another key would be sent.
    if (new Headers({ [option]: bytes }).get(option) === bytes) return bytes;
  } catch {
    // Said below, without the key.
  }
  throw new TypeError(`${option} cannot be sent as a header: it begins or ends with white space, or holds a line end`);
}

interface Answered {
  readonly response: Response;
  /** Closes the connection of an answer that is not read to its end. */
  readonly hangUp: () => void;
}

interface FailedAttempt {
  readonly error: HistoricalDataError;
  readonly passing: boolean;
  readonly retryAfterMs?: number;
}

async function errorOf(response: Response): Promise<HistoricalDataError> {
  const text = await response.text().catch(() => '');
  try {
    const problem = JSON.parse(text) as Problem;
    if (typeof problem.code === 'string') return serviceError(problem);
  } catch {
    // Not ours: a proxy's page.
  }
  return new ConnectionError(`HTTP ${response.status} without the service's problem document: ${text.slice(0, 200)}`);
}

/** Seconds or an HTTP date. */
function retryAfterMs(header: string | null): number | undefined {
  if (header === null) return undefined;
  const ms = /^\d+$/.test(header) ? Number(header) * 1000 : Date.parse(header) - Date.now();
  return Number.isNaN(ms) ? undefined : Math.max(0, ms);
}

/** Clients that were refused together do not come back together. */
export const jittered = (ms: number) => ms * (0.5 + Math.random());

export function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal?.addEventListener('abort', stop, { once: true });
  });
}
