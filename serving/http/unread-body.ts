/** Where the body of a request ends, and what becomes of one that its answer does not need. */
import type { IncomingMessage } from 'node:http';

/** How long an answer that needs no body waits for it: with the body received, the connection can serve the next request. */
const BODY_WAIT_MS = 1000;
/** How long the server reads on after the answer, so that the client reads the answer before the connection closes. */
const DISCARD_MS = 4000;

/**
 * Discards the unread rest of the body: a client that is cut off while it still sends does not get to read the answer.
 * It stops in time, so that a client that keeps sending cannot hold the connection.
 */
export async function discardBody(request: IncomingMessage, withinMs = DISCARD_MS): Promise<void> {
  if (request.complete || request.destroyed) return;
  request.resume();
  await new Promise<void>((resolve) => {
    const timer = setTimeout(done, withinMs);
    function done() {
      clearTimeout(timer);
      resolve();
    }
    request.once('end', done);
    request.once('close', done);
  });
}

/** Waits a moment for a body that nobody reads. A client that waits for 100-continue sends none. */
export async function awaitUnreadBody(request: IncomingMessage): Promise<void> {
  if (request.headers.expect === undefined) await discardBody(request, BODY_WAIT_MS);
}

/** Whether the head announces a body. A request without either header has none (RFC 9112, 6.3). */
export const announcesBody = ({ headers }: IncomingMessage): boolean =>
  headers['transfer-encoding'] !== undefined || !/^0*$/.test(headers['content-length'] ?? '');

/** Methods that take a body, of a route or not. */
const WITH_BODY: ReadonlySet<string | undefined> = new Set(['POST', 'PUT', 'PATCH']);

/** Whether the method takes a body and the head does not say where it ends: what follows would be read as another request. */
export const lacksLength = ({ method, headers }: IncomingMessage): boolean =>
  WITH_BODY.has(method) && headers['transfer-encoding'] === undefined && headers['content-length'] === undefined;
