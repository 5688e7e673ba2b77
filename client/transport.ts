/** Sends requests over HTTP and retries them. Every request that this client sends may be repeated. */
import {
  ConnectionError,
  HistoricalDataError,
  IncompleteAnswerError,
  type Problem,
  ServiceError,
  serviceError,
} from './errors.ts';
import { textOf, withinStalls } from './stall.ts';

export interface TransportOptions {
  /** URL of the service, such as `http://127.0.0.1:8080`. Its path is a prefix of every request. */
  readonly baseUrl: string | URL;
  /** Sent as `X-API-Key`. */
  readonly apiKey: string;
  /** Sent as `X-Backend-Token`: the caller's own storage credential, for datasets whose rights require it. */
  readonly backendToken?: string;
  /** Most attempts until an answer begins; default 5, and 1 means no retries. A lasting error is not retried. */
  readonly maxAttempts?: number;
  /** Longest wait before the next attempt, ms; default 30,000. After a longer Retry-After the request fails. */
  readonly maxRetryWaitMs?: number;
  /** Longest wait for the answer to an attempt to begin, ms; default 120,000. */
  readonly timeoutMs?: number;
  /** Longest silence within an answer that is being read, ms; default 120,000. Then it fails with IncompleteAnswerError. */
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
/** Statuses of errors that may pass by themselves. */
export const PASSING = new Set([429, 502, 503, 504]);
/** Codes of a 503 that do not pass: the same read would exceed its time again, and the others need an operator. */
const LASTING =
  /^QUERY_TIMEOUT$|^ALIGNED_STORAGE_CONTRACT_VIOLATION$|^EXPORT_ARTIFACT_|_METADATA_ERROR$|_RUNTIME_ERROR$|_RIGHTS_RESOLUTION_ERROR$/;

export class Transport {
  readonly #options: TransportOptions;
  readonly #base: string;
  readonly #keys: Readonly<Record<string, string>>;

  /** @throws TypeError when baseUrl is not an http(s) URL or has more than a path, or a key is empty or not valid as a header. */
  constructor(options: TransportOptions) {
    const base = new URL(options.baseUrl);
    if (!/^https?:$/.test(base.protocol)) throw new TypeError(`baseUrl must be http or https, not ${base.protocol}`);
    if (base.username !== '' || base.password !== '' || base.search !== '' || base.hash !== '')
      throw new TypeError('baseUrl must have no user, query or fragment');
    if (!options.apiKey)
      throw new TypeError('apiKey is empty: set it to the key of the service, the TIDEMARK_KEY of `./tidemark env`');
    this.#options = options;
    this.#keys = {
      'X-API-Key': headerOf('apiKey', options.apiKey),
      ...(options.backendToken !== undefined && { 'X-Backend-Token': headerOf('backendToken', options.backendToken) }),
    };
    this.#base = base.origin + base.pathname.replace(/\/$/, '');
  }

  /** @returns an answer with status 200 and an unread body. @throws HistoricalDataError, or the reason of the signal. */
  post(path: string, body: unknown, accept: string, signal?: AbortSignal): Promise<Response> {
    return this.send({ method: 'POST', path, body, headers: { Accept: accept }, signal });
  }

  /** Most attempts at a request. */
  get maxAttempts(): number {
    return this.#options.maxAttempts ?? 5;
  }

  /** Sends a request, which must be safe to repeat. @returns an answer with status 2xx and an unread body. */
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

  /** Sends a request whose answer is one small document. @throws HistoricalDataError, or the reason of the signal. */
  async json<T>(request: TransportRequest): Promise<T> {
    const response = await this.send(request);
    try {
      return JSON.parse(await textOf(response)) as T;
    } catch (cause) {
      request.signal?.throwIfAborted();
      if (!(cause instanceof IncompleteAnswerError || cause instanceof SyntaxError)) throw cause;
      throw new ConnectionError('The answer broke off, or is not one of the service', { cause });
    }
  }

  async #attempt({ method, path, body, headers, signal }: TransportRequest): Promise<Answered | FailedAttempt> {
    const { timeoutMs = 120_000, stallTimeoutMs = 120_000, fetch: doFetch = fetch } = this.#options;
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
        // `fetch` would send the keys to whatever host it is led to, and a POST as a GET without its body.
        redirect: 'manual',
      });
    } catch (cause) {
      signal?.throwIfAborted();
      const error =
        cause instanceof HistoricalDataError ? cause : new ConnectionError(`Cannot reach ${this.#base}`, { cause });
      return { error, passing: true };
    } finally {
      clearTimeout(timer);
    }
    const hangUp = () => late.abort();
    if (response.ok) return { response, hangUp };
    if (isRedirect(response)) {
      hangUp();
      const to = response.headers.get('location');
      const where = to === null ? 'elsewhere' : `to ${to.slice(0, 200)}`;
      const message = `${this.#base} redirects ${where}, where the keys are not sent: set baseUrl to the address of the service`;
      return { error: new ConnectionError(message), passing: false };
    }
    const error = await errorOf(withinStalls(response, stallTimeoutMs, hangUp));
    // After an abort the caller gets the abort's reason, and nothing is tried again.
    signal?.throwIfAborted();
    return {
      error,
      passing: PASSING.has(response.status) && !(error instanceof ServiceError && LASTING.test(error.code)),
      retryAfterMs: retryAfterMs(response.headers.get('retry-after')),
    };
  }
}

/** A browser shows neither the status nor the target of a redirect. */
const isRedirect = ({ type, status }: Response): boolean =>
  type === 'opaqueredirect' || [301, 302, 303, 307, 308].includes(status);

/** The value of a header. A key may be any text and is sent as UTF-8; `fetch` expects header bytes as latin1. */
function headerOf(option: string, value: string): string {
  const bytes = Array.from(new TextEncoder().encode(value), (byte) => String.fromCharCode(byte)).join('');
  try {
    // `fetch` trims a value, and would so send another key.
    if (new Headers({ [option]: bytes }).get(option) === bytes) return bytes;
  } catch {
    // The error below does not show the key.
  }
  throw new TypeError(
    `${option} is not valid as a header: it begins or ends with white space, or contains a line break`,
  );
}

interface Answered {
  readonly response: Response;
  /** Closes the connection, for an answer that is not read to its end. */
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
    // Not an answer of the service: a page of a proxy.
  }
  return new ConnectionError(`HTTP ${response.status} without the service's problem document: ${text.slice(0, 200)}`);
}

/** Parses Retry-After: seconds or an HTTP date. */
function retryAfterMs(header: string | null): number | undefined {
  if (header === null) return undefined;
  const ms = /^\d+$/.test(header) ? Number(header) * 1000 : Date.parse(header) - Date.now();
  return Number.isNaN(ms) ? undefined : Math.max(0, ms);
}

/** Varies a wait at random, so that clients that were refused together do not retry together. */
export const jittered = (ms: number) => ms * (0.5 + Math.random());

export function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    // A signal that is aborted already tells its listeners nothing.
    signal?.throwIfAborted();
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
