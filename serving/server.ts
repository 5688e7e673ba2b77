/** The HTTP server around the application: where it listens, how long it waits, how it stops. */
import { randomUUID } from 'node:crypto';
import { createServer, type RequestListener, type Server, type ServerResponse, STATUS_CODES } from 'node:http';
import { type AddressInfo, Server as NetServer, type Socket } from 'node:net';
import type Koa from 'koa';
import { TidemarkError } from '../shared/errors.ts';
import { Problem, type ProblemCode } from './contract/problems.ts';

const HEADERS_TIMEOUT_MS = 15_000;
const REQUEST_TIMEOUT_MS = 60_000;
/** How often connections are looked at for the two above. */
const TIMEOUT_CHECK_MS = 1000;
/** Longer than the idle time-outs of common proxies, so that it is they who close. */
const KEEP_ALIVE_TIMEOUT_MS = 65_000;
const DEFAULT_PORT = 8080;
const PORTS_TRIED = 100;

export interface Listening {
  readonly url: string;
  /** Takes no new connections, lets running answers end for so long, then cuts them. */
  close(graceMs: number): Promise<void>;
}

export interface ConnectionLimits {
  /** Connections open at once; one more is closed unanswered. */
  readonly maxConnections?: number;
  readonly headersTimeoutMs?: number;
  readonly requestTimeoutMs?: number;
}

export async function listen(
  koa: Koa,
  host: string,
  port: number | undefined,
  limits: ConnectionLimits = {},
): Promise<Listening> {
  const connections = new Connections();
  const answer = koa.callback();
  const handle: RequestListener = (request, response) => {
    if (request.headers.host === undefined && request.httpVersion === '1.1') {
      answerBrokenRequest(NO_HOST, request.socket);
      return;
    }
    connections.busy(request.socket, response);
    answer(request, response);
  };
  const server = createServer(
    {
      headersTimeout: limits.headersTimeoutMs ?? HEADERS_TIMEOUT_MS,
      requestTimeout: limits.requestTimeoutMs ?? REQUEST_TIMEOUT_MS,
      keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
      connectionsCheckingInterval: TIMEOUT_CHECK_MS,
      // Asked for below: Node's own refusal has no envelope.
      requireHostHeader: false,
    },
    handle,
  );
  if (limits.maxConnections !== undefined) server.maxConnections = limits.maxConnections;
  // The body is asked for only when it will be read: see readJson.
  server.on('checkContinue', handle);
  // Of what is expected beside that nothing is known here, which is no reason to refuse; Node's 417 has no envelope.
  server.on('checkExpectation', (request, response) => {
    delete request.headers.expect;
    handle(request, response);
  });
  server.on('clientError', answerBrokenRequest);
  server.on('connection', (socket) => connections.add(socket));
  await listenOnFree(server, host, port);
  const address = server.address() as AddressInfo;
  const name = address.family === 'IPv6' ? `[${address.address}]` : address.address;
  return {
    url: `http://${name}:${address.port}`,
    async close(graceMs) {
      // Not http's own close(): it cuts connections whose answer is complete but still on its way to a slow reader.
      const closed = new Promise<void>((resolve) => NetServer.prototype.close.call(server, () => resolve()));
      connections.close();
      const timer = setTimeout(() => server.closeAllConnections(), graceMs);
      await closed;
      clearTimeout(timer);
    },
  };
}

/** Which connections have an answer under way, so that a stop cuts none of those. */
class Connections {
  readonly #all = new Map<Socket, Set<ServerResponse>>();
  #closing = false;

  add(socket: Socket): void {
    this.#all.set(socket, new Set());
    socket.once('close', () => this.#all.delete(socket));
  }

  busy(socket: Socket, response: ServerResponse): void {
    // A connection kept alive would otherwise go on for as long as its client has requests.
    if (this.#closing) response.setHeader('Connection', 'close');
    const answers = this.#all.get(socket);
    answers?.add(response);
    response.once('close', () => {
      answers?.delete(response);
      if (this.#closing && answers?.size === 0) socket.end();
    });
  }

  close(): void {
    this.#closing = true;
    for (const [socket, answers] of this.#all) if (answers.size === 0) socket.destroy();
  }
}

async function listenOnFree(server: Server, host: string, port: number | undefined): Promise<void> {
  const first = port ?? DEFAULT_PORT;
  const last = port === undefined ? DEFAULT_PORT + PORTS_TRIED : first;
  for (let candidate = first; ; candidate++) {
    try {
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject);
        server.listen(candidate, host, () => {
          server.off('error', reject);
          resolve();
        });
      });
      return;
    } catch (cause) {
      const taken = (cause as NodeJS.ErrnoException).code === 'EADDRINUSE';
      if (taken && candidate < last) continue;
      throw new TidemarkError('CONFIGURATION_INVALID', `Cannot listen on ${host}, port ${candidate}`, { cause });
    }
  }
}

const BROKEN_REQUESTS: Readonly<Record<string, ProblemCode>> = {
  HPE_HEADER_OVERFLOW: 'HTTP_HEADERS_TOO_LARGE',
  ERR_HTTP_REQUEST_TIMEOUT: 'HTTP_REQUEST_TIMEOUT',
};

const NO_HOST = new Error('HTTP/1.1 asks for a Host header');

/** What is no HTTP request never reaches the application; it gets the same envelope. */
function answerBrokenRequest(error: Error & { code?: string }, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  const problem = new Problem(
    BROKEN_REQUESTS[error.code ?? ''] ?? 'HTTP_REQUEST_MALFORMED',
    error === NO_HOST ? `${error.message}; the connection is closed.` : 'The connection is closed.',
  );
  const requestId = randomUUID();
  const body = JSON.stringify(problem.body(requestId));
  socket.end(
    `HTTP/1.1 ${problem.status} ${STATUS_CODES[problem.status]}\r\nContent-Type: application/problem+json\r\n` +
      `X-Request-Id: ${requestId}\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
}
