/** Reads the rows of an answer as they arrive, and stops when the page has as many as it can show. */
import { Fault, key } from './api.js';

const MOST_ROWS = 10_000;

/**
 * @param {{ path: string, body: object }} request
 * @param {AbortSignal} signal
 */
export async function readRows({ path, body }, signal) {
  const stop = new AbortController();
  const response = await fetch(path, {
    method: 'POST',
    headers: {
      'X-API-Key': String.fromCharCode(...new TextEncoder().encode(key.get())),
      Accept: 'application/x-ndjson',
    },
    body: JSON.stringify(body),
    signal: AbortSignal.any([signal, stop.signal]),
  }).catch((error) => {
    if (signal.aborted) throw error;
    throw new Fault('The service does not answer.');
  });
  if (!response.ok) {
    const answer = await response.json().catch(() => undefined);
    throw new Fault(answer?.detail ?? `The answer is ${response.status}.`, {
      status: response.status,
      code: answer?.code,
      errors: answer?.errors,
      requestId: answer?.request_id,
    });
  }
  /** @type {any[]} */
  const rows = [];
  try {
    await readInto(rows, response.body, stop);
  } catch (cause) {
    if (signal.aborted) throw cause;
    throw new Fault('The answer broke off.', { cause });
  }
  return {
    rows: rows.slice(0, MOST_ROWS),
    isCut: rows.length > MOST_ROWS,
    warnings: parsed(response.headers.get('X-Svc-Warnings')) ?? [],
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

/** @param {string | null} text */
function parsed(text) {
  try {
    return text === null ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}
