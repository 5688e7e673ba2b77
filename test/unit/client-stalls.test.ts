/** Answers whose text never ends, most of them of an error, and callers who stop waiting meanwhile. */
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Changes } from '../../client/changes.ts';
import { ConnectionError } from '../../client/errors.ts';
import { Rows } from '../../client/rows.ts';
import { sleep, Transport, type TransportOptions } from '../../client/transport.ts';

let server: Server;
let asked = 0;
beforeAll(async () => {
  // Its path is the status, of any other path 200, and its text never ends.
  server = createServer(({ url }, response) => {
    asked++;
    response.writeHead(Number(url!.slice(1)) || 200, { 'Retry-After': '0' }).write('<html>');
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

const urlOf = (of: Server) => `http://127.0.0.1:${(of.address() as AddressInfo).port}`;

function send(status: number, options: Partial<TransportOptions>, signal?: AbortSignal): Promise<Response> {
  const transport = new Transport({ baseUrl: urlOf(server), apiKey: 'k', ...options });
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

test('a page of a proxy in the place of changes or rows was a SyntaxError, as of a fault of the program', async () => {
  const options = { baseUrl: urlOf(server), apiKey: 'k', fetch: async () => new Response('<html>') };
  await expect(new Changes(options).page()).rejects.toBeInstanceOf(ConnectionError);
  const rows = new Rows({ transport: new Transport(options), path: '/', body: {}, signal: undefined });
  await expect(rows.all()).rejects.toBeInstanceOf(ConnectionError);
});

test('a page of changes that stalls is given up', async () => {
  const changes = new Changes({ baseUrl: urlOf(server), apiKey: 'k', stallTimeoutMs: 50 });
  await expect(changes.page()).rejects.toBeInstanceOf(ConnectionError);
});

test('an abort while a page of changes is read threw another error than the reason of the signal', async () => {
  const stop = new AbortController();
  const reason = new Error('enough');
  const begun: typeof fetch = async (...request) => {
    const response = await fetch(...request);
    setTimeout(() => stop.abort(reason), 10);
    return response;
  };
  const changes = new Changes({ baseUrl: urlOf(server), apiKey: 'k', fetch: begun });
  await expect(changes.page({}, { signal: stop.signal })).rejects.toBe(reason);
});
