/** Requests to this service, with the key that the reader entered. */

const KEPT_AS = 'tidemark-key';

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
 * @param {{ body?: unknown, signal?: AbortSignal }} [request]
 * @returns {Promise<any>} its JSON
 */
export async function ask(path, { body, signal } = {}) {
  /** @type {Response} */
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? 'GET' : 'POST',
      headers: { 'X-API-Key': latin1(key.get()), Accept: 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
      signal,
      cache: 'no-store',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Fault('The service does not answer.');
  }
  const answer = await response.json().catch((error) => {
    if (signal?.aborted) throw error;
    if (response.ok) throw new Fault('The answer broke off.', { cause: error });
  });
  if (response.ok) return answer;
  throw new Fault(answer?.detail ?? answer?.title ?? `The answer is ${response.status}.`, {
    status: response.status,
    code: answer?.code ?? `HTTP_${response.status}`,
    errors: answer?.errors,
    requestId: answer?.request_id,
  });
}

/**
 * Headers hold bytes; a key is UTF-8.
 * @param {string} text
 */
const latin1 = (text) => String.fromCharCode(...new TextEncoder().encode(text));
