/** Bodies that stop coming: a connection that stays open and silent would otherwise be waited on for ever. */
import { IncompleteAnswerError } from './errors.ts';

/**
 * The answer with a body that fails when nothing comes for so long while somebody waits for it; a reader that takes its
 * time costs nothing. Body errors: IncompleteAnswerError.
 */
export function withinStalls(response: Response, stallTimeoutMs: number): Response {
  if (!response.body) return response;
  const reader = response.body.getReader();
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const stalled = Promise.withResolvers<never>();
        const timer = setTimeout(() => {
          const error = new IncompleteAnswerError(`The answer broke off: nothing came for ${stallTimeoutMs} ms`);
          stalled.reject(error);
          void reader.cancel(error).catch(() => {});
        }, stallTimeoutMs);
        try {
          const { done, value } = await Promise.race([reader.read(), stalled.promise]);
          if (done) controller.close();
          else controller.enqueue(value);
        } finally {
          clearTimeout(timer);
        }
      },
      cancel: (reason) => reader.cancel(reason),
    },
    { highWaterMark: 0 },
  );
  return new Response(body, { status: response.status, statusText: response.statusText, headers: response.headers });
}
