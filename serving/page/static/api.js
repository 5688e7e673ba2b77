/** Requests to this service, with the reader's key. Addresses are relative, so that the page works behind a path prefix. */

const KEPT_AS = 'tidemark-key';
/** The most rows that the page reads of an answer. */
export const MOST_ROWS = 10_000;

export const key = {
  get: () => sessionStorage.getItem(KEPT_AS) ?? '',
  /** @param {string} value */
  set: (value) => sessionStorage.setItem(KEPT_AS, value),
  forget: () => sessionStorage.removeItem(KEPT_AS),
};

/** An answer of the service that is not 2xx, or none at all. */
export class Fault extends Error {
  /**
   * @param {string} message
   * @param {{ status?: number, code?: string, errors?: { pointer: string, message: string }[], requestId?: string, cause?: unknown }} [facts]
   */
  constructor(message, facts = {}) {
    super(message, { cause: facts.cause });
    this.status = facts.status ?? 0;
    this.code = facts.code ?? 'UNREACHABLE';
    this.errors = facts.errors ?? [];
    this.requestId = facts.requestId;
  }

  /** Another key may help. */
  get isKey() {
    return ['AUTH_INVALID_API_KEY', 'AUTH_KEY_EXPIRED', 'AUTH_KEY_REVOKED'].includes(this.code);
  }
}

/**
 * @param {string} path
 * @param {{ body?: unknown, signal?: AbortSignal, accept?: string }} [request]
 * @returns {Promise<Response>} 2xx
 */
async function send(path, { body, signal, accept = 'application/json' } = {}) {
  /** @type {Response} */
  let response;
  try {
    response = await fetch(`.${path}`, {
      method: body === undefined ? 'GET' : 'POST',
      headers: { 'X-API-Key': latin1(key.get()), Accept: accept },
      ...(body !== undefined && { body: JSON.stringify(body) }),
      signal,
      cache: 'no-store',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Fault('The service does not answer.');
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => undefined);
  throw new Fault(answer?.detail ?? answer?.title ?? `The answer is ${response.status}.`, {
    status: response.status,
    code: answer?.code ?? `HTTP_${response.status}`,
    errors: answer?.errors,
    requestId: answer?.request_id,
  });
}

/**
 * @param {AbortSignal | undefined} signal
 * @param {() => Promise<any>} read
 */
async function whole(signal, read) {
  try {
    return await read();
  } catch (cause) {
    if (signal?.aborted) throw cause;
    throw new Fault('The answer broke off.', { cause });
  }
}

/**
 * @param {string} path
 * @param {{ body?: unknown, signal?: AbortSignal }} [request]
 * @returns {Promise<any>} its JSON
 */
export async function ask(path, request) {
  const response = await send(path, request);
  return await whole(request?.signal, () => response.json());
}

/**
 * Reads rows as they arrive, and stops when the page has as many as it can show.
 * @param {{ path: string, body?: object }} request
 * @param {AbortSignal} signal
 */
export async function readRows({ path, body }, signal) {
  const stop = new AbortController();
  const both = AbortSignal.any([signal, stop.signal]);
  const response = await send(path, { body, signal: both, accept: 'application/x-ndjson' });
  /** @type {any[]} */
  const rows = [];
  await whole(signal, () => readInto(rows, response.body, stop));
  return {
    rows: rows.slice(0, MOST_ROWS),
    isCut: rows.length > MOST_ROWS,
    warnings: JSON.parse(response.headers.get('X-Svc-Warnings') ?? '[]'),
    synthetic: response.headers.get('X-Svc-Synthetic') === 'true',
  };
}

/**
 * @param {any[]} rows
 * @param {ReadableStream} body
 * @param {AbortController} stop
 */
async function readInto(rows, body, stop) {
  let rest = '';
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) if (line !== '') rows.push(JSON.parse(line));
    if (rows.length > MOST_ROWS) return stop.abort();
  }
  // What follows the last end of a line is half a row, which does not parse.
  if (rest !== '') rows.push(JSON.parse(rest));
}

/**
 * Gives the whole answer to the reader as a file.
 * @param {{ path: string, body?: object, accept?: string }} request
 * @param {string} name of the file
 */
export async function download({ path, body, accept = 'text/csv' }, name) {
  const response = await send(path, { body, accept });
  const url = URL.createObjectURL(await whole(undefined, () => response.blob()));
  Object.assign(document.createElement('a'), { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

/** Headers hold bytes; a key is UTF-8. @param {string} text */
const latin1 = (text) => String.fromCharCode(...new TextEncoder().encode(text));

/** Asks of which only the latest counts: an answer that comes after the next ask began is nobody's. */
export class Latest {
  #own = new AbortController();

  /**
   * @template T
   * @param {(signal: AbortSignal) => Promise<T>} job
   * @returns {Promise<{ value?: T, fault?: Fault } | undefined>} undefined where another ask, or an end, came first
   */
  async ask(job) {
    this.stop();
    const own = new AbortController();
    this.#own = own;
    try {
      const value = await job(own.signal);
      return own.signal.aborted ? undefined : { value };
    } catch (error) {
      if (own.signal.aborted) return undefined;
      if (!(error instanceof Fault)) throw error;
      return { fault: error };
    }
  }

  stop() {
    this.#own.abort();
  }
}
