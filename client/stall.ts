/** Bodies of answers. A body that breaks off or stalls fails with `IncompleteAnswerError`, and with nothing else. */
import { IncompleteAnswerError } from './errors.ts';

/**
 * Returns the answer with a body that fails with IncompleteAnswerError when a read gets no bytes for `stallTimeoutMs`. The
 * time between two reads does not count.
 */
export function withinStalls(response: Response, stallTimeoutMs: number, hangUp: () => void): Response {
  if (!response.body) return response;
  const reader = response.body.getReader();
  // Node 22.0 does not close the connection of a cancelled body.
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
      const error = new IncompleteAnswerError(`The answer broke off: no bytes came for ${stallTimeoutMs} ms`);
      reject(error);
      void drop(error).catch(() => {});
    }, stallTimeoutMs);
    reader
      .read()
      // fetch fails when a connection ends early, because the service ends complete answers with an empty chunk.
      .then(resolve, (cause: unknown) => reject(new IncompleteAnswerError('The answer broke off', { cause })))
      .finally(() => clearTimeout(timer));
  });
}

/**
 * Reads a whole body as bytes. `response.arrayBuffer()` would not do: Chromium replaces the error of the stream by one of
 * its own.
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

/** Reads a whole body as text. */
export async function textOf(response: Response): Promise<string> {
  return new TextDecoder().decode(await bytesOf(response));
}
