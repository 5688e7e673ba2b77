/** Answers of an error whose text never ends, and callers who stop waiting meanwhile. */
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ConnectionError } from '../../client/errors.ts';
import { sleep, Transport, type TransportOptions } from '../../client/transport.ts';

let server: Server;
let asked = 0;
beforeAll(async () => {
  // Its path is the status, and its text never ends.
  server = createServer(({ url }, response) => {
    asked++;
    response.writeHead(Number(url!.slice(1)), { 'Retry-After': '0' }).write('<html>');
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

function send(status: number, options: Partial<TransportOptions>, signal?: AbortSignal): Promise<Response> {
  const { port } = server.address() as AddressInfo;
  const transport = new Transport({ baseUrl: `http://127.0.0.1:${port}`, apiKey: 'k', ...options });
  return transport.send({ method: 'GET', path: `/${status}`, headers: {}, signal });
}

test('an error answer whose text stalls is given up, and tried again where its error may pass', async () => {
  for (const [status, attempts] of [
    [400, 1],
    [502, 2],
  ]) {
    asked = 0;
    const error = await send(status, { stallTimeoutMs: 50, maxAttempts: 2 }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ConnectionError);
    expect([(error as Error).message, asked]).toEqual([expect.stringContaining(`HTTP ${status} without`), attempts]);
  }
});

test('an abort while the text of an error answer is awaited throws the reason of the signal, and nothing is tried again', async () => {
  for (const status of [400, 503]) {
    asked = 0;
    const stop = new AbortController();
    const reason = new Error('enough');
    const begun: typeof fetch = async (...request) => {
      const response = await fetch(...request);
      stop.abort(reason);
      return response;
    };
    await expect(send(status, { fetch: begun }, stop.signal)).rejects.toBe(reason);
    expect(asked).toBe(1);
  }
});

test('a pause does not begin for a signal that is aborted already', async () => {
  const reason = new Error('enough');
  await expect(sleep(2 ** 30, AbortSignal.abort(reason))).rejects.toBe(reason);
});
