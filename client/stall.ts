/** Bodies of answers: what breaks off or stops coming is an error of its own, and nothing else is taken for it. */
import { IncompleteAnswerError } from './errors.ts';

/**
 * The answer with a body that fails when nothing comes for so long while somebody waits for it; a reader that takes its
 * time costs nothing. Body errors: IncompleteAnswerError.
 */
export function withinStalls(response: Response, stallTimeoutMs: number, hangUp: () => void): Response {
  if (!response.body) return response;
  const reader = response.body.getReader();
  // Node 22.0 keeps the connection of a body that is cancelled.
  const drop = (reason: unknown) => reader.cancel(reason).finally(hangUp);
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const { done, value } = await readWithin(reader, stallTimeoutMs, drop);
        if (done) controller.close();
        else controller.enqueue(value);
      },
      cancel: drop,
    },
    { highWaterMark: 0 },
  );
  return new Response(body, { status: response.status, statusText: response.statusText, headers: response.headers });
}

type Reader = ReadableStreamDefaultReader<Uint8Array>;

function readWithin(
  reader: Reader,
  stallTimeoutMs: number,
  drop: (reason: unknown) => Promise<void>,
): ReturnType<Reader['read']> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      const error = new IncompleteAnswerError(`The answer broke off: nothing came for ${stallTimeoutMs} ms`);
      reject(error);
      void drop(error).catch(() => {});
    }, stallTimeoutMs);
    reader
      .read()
      // A connection that ends early is an error of fetch: the service ends whole answers with an empty chunk.
      .then(resolve, (cause: unknown) => reject(new IncompleteAnswerError('The answer broke off', { cause })))
      .finally(() => clearTimeout(timer));
  });
}

/**
 * The bytes of a body, whole. Not `response.arrayBuffer()`: Chromium puts an error of its own in the place of the
 * stream's.
 */
export async function bytesOf({ body }: Response): Promise<Uint8Array<ArrayBuffer>> {
  if (!body) return new Uint8Array();
  const reader = body.getReader();
  const parts: Uint8Array[] = [];
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    length += value.length;
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** The same as text. */
export async function textOf(response: Response): Promise<string> {
  return new TextDecoder().decode(await bytesOf(response));
}
