/** The HTTP server around the application: where it listens, how long it waits, how it stops. */

import { randomUUID } from 'node:crypto';
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import { type AddressInfo, Server as NetServer, type Socket } from 'node:net';
import type Koa from 'koa';
import { TidemarkError } from '../shared/errors.ts';
import { Problem, type ProblemCode } from './contract/problems.ts';
import type { RefusalLog } from './http/access.ts';
import { discardBody } from './http/request.ts';

/* The open connections: which are idle, which wait for an answer, and which is closed when there are too many. */

export interface ConnectionRules {
  /** Connections that may wait for an answer at once; more are answered health and metrics alone. */
  readonly open: number;
  /** Connections beside those. */
  readonly reserved: number;
  /** A connection without a request for so long is closed, ms. */
  readonly idleMs: number;
}

export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
}

export class Connections {
  readonly #rules: ConnectionRules;
  readonly #open = new Set<Socket>();
  /** Since when, by `performance.now()`. The connection that has been idle longest comes first. */
  readonly #idle = new Map<Socket, number>();
  /** Requests whose answer is under way. */
  readonly #busy = new Map<Socket, Set<Exchange>>();
  #closing = false;

  constructor(rules: ConnectionRules) {
    this.#rules = rules;
  }

  /** Takes a new connection. Past the limit the one that has been idle longest is closed, or this one if none is. */
  add(socket: Socket): void {
    this.#open.add(socket);
    this.#idle.set(socket, performance.now());
    socket.once('close', () => this.#forget(socket));
    if (this.#open.size <= this.#rules.open + this.#rules.reserved) return;
    const [oldest] = this.#idle.keys();
    this.#shed(oldest);
  }

  /**
   * Takes a request. Of more connections with a request than there may be, the oldest that still sends its request is
   * closed.
   * @returns false when there is none: then only what the reserve is for may be answered.
   */
  busy(exchange: Exchange): boolean {
    const { request, response } = exchange;
    const { socket } = request;
    // A connection kept alive would otherwise go on for as long as its client has requests.
    if (this.#closing) response.setHeader('Connection', 'close');
    this.#idle.delete(socket);
    const exchanges = this.#busy.get(socket) ?? new Set();
    this.#busy.set(socket, exchanges.add(exchange));
    response.once('close', () => {
      if (this.#done(exchange, socket) && this.#closing) socket.end();
    });
    return this.#busy.size <= this.#rules.open || this.#makeRoom(socket);
  }

  /** The request was refused. Its connection counts as idle from now on, though the rest of its body is still read. */
  refused(exchange: Exchange): void {
    this.#done(exchange, exchange.request.socket);
  }

  /** @returns whether the connection has become idle */
  #done(exchange: Exchange, socket: Socket): boolean {
    const exchanges = this.#busy.get(socket);
    exchanges?.delete(exchange);
    if ((exchanges && exchanges.size > 0) || !this.#open.has(socket)) return false;
    this.#busy.delete(socket);
    this.#idle.delete(socket);
    this.#idle.set(socket, performance.now());
    return true;
  }

  #makeRoom(wanted: Socket): boolean {
    for (const [socket, exchanges] of this.#busy) {
      if (socket === wanted || ![...exchanges].every(isStillSending)) continue;
      this.#shed(socket);
      return true;
    }
    return false;
  }

  /** Whether an answer is under way that bytes of another would get into, or be taken for. */
  isAnswering(socket: Socket): boolean {
    return [...(this.#busy.get(socket) ?? [])].some((exchange) => !isStillSending(exchange));
  }

  /** Closes what has been idle for too long. */
  closeIdle(): void {
    const latest = performance.now() - this.#rules.idleMs;
    for (const [socket, since] of this.#idle) {
      if (since > latest) return;
      this.#shed(socket);
    }
  }

  /** Closes what is idle now; the others close when they have been answered. */
  close(): void {
    this.#closing = true;
    for (const socket of this.#idle.keys()) this.#shed(socket);
  }

  #shed(socket: Socket): void {
    this.#forget(socket);
    socket.destroy();
  }

  #forget(socket: Socket): void {
    this.#open.delete(socket);
    this.#idle.delete(socket);
    this.#busy.delete(socket);
  }
}

const isStillSending = ({ request, response }: Exchange) => !request.complete && !response.headersSent;

const HEADERS_TIMEOUT_MS = 15_000;
const REQUEST_TIMEOUT_MS = 60_000;
/** How often connections are looked at for the two above. */
const CHECK_INTERVAL_MS = 1000;
/** Longer than the idle time-outs of common proxies, so that it is they who close. */
const KEEP_ALIVE_TIMEOUT_MS = 65_000;
/** Connections beside those, for supervisors and scrapers: a service that is busy is still seen to be well. */
const RESERVED_CONNECTIONS = 16;
const RESERVED_PATHS: ReadonlySet<string> = new Set(['/healthz', '/readyz', '/metrics']);
/** A connection whose request was refused is read on for so long, so that its client reads the answer before it closes. */
const LINGER_MS = 2000;
const DEFAULT_PORT = 8080;
const PORTS_TRIED = 100;

export interface Listening {
  readonly url: string;
  /** Takes no new connections, lets running answers end for so long, then cuts them. */
  close(graceMs: number): Promise<void>;
}

export interface ConnectionLimits {
  /** Connections with a request at once; beside them there is room for health and metrics. */
  readonly maxConnections?: number;
  readonly headersTimeoutMs?: number;
  readonly requestTimeoutMs?: number;
  /** How long a connection is kept between requests. */
  readonly idleTimeoutMs?: number;
  /** How often connections are looked at for these times. */
  readonly checkIntervalMs?: number;
  /** How long a connection is read on after a refusal. */
  readonly lingerMs?: number;
  /** Told of requests that do not reach the application. */
  readonly refusals?: RefusalLog;
}

export async function listen(
  koa: Koa,
  host: string,
  port: number | undefined,
  limits: ConnectionLimits = {},
): Promise<Listening> {
  const { headersTimeoutMs = HEADERS_TIMEOUT_MS, idleTimeoutMs = KEEP_ALIVE_TIMEOUT_MS } = limits;
  const { checkIntervalMs = CHECK_INTERVAL_MS } = limits;
  const connections = new Connections({
    open: limits.maxConnections ?? Number.POSITIVE_INFINITY,
    reserved: RESERVED_CONNECTIONS,
    // Node counts neither line ends before a request nor what a client leaves half open; both of its times are over then.
    idleMs: idleTimeoutMs + headersTimeoutMs,
  });
  const server = createServer({
    headersTimeout: headersTimeoutMs,
    requestTimeout: limits.requestTimeoutMs ?? REQUEST_TIMEOUT_MS,
    keepAliveTimeout: idleTimeoutMs,
    connectionsCheckingInterval: checkIntervalMs,
    // Looked at in `answering`: Node's own refusal has no envelope, and it lets two of them pass.
    requireHostHeader: false,
  });
  // Past this count Node keeps headers from `hostsOf`, or refuses them, by version. Their bytes are limited anyway.
  server.maxHeadersCount = 0;
  const refusing = new Refusing(limits);
  const handle = answering(koa.callback(), connections, refusing);
  server.on('request', handle);
  // The body is asked for only when it will be read: see readJson.
  server.on('checkContinue', handle);
  // Of what is expected beside that nothing is known here, which is no reason to refuse; Node's 417 has no envelope.
  server.on('checkExpectation', (request, response) => {
    delete request.headers.expect;
    handle(request, response);
  });
  server.on('clientError', (error, socket) => {
    // Its 400 would get into the answer; a body that ends with its connection would then even look whole.
    if (connections.isAnswering(socket as Socket)) (socket as Socket).resetAndDestroy();
    else refusing.broken(error, socket as Socket);
  });
  server.on('connection', (socket) => connections.add(socket));
  await listenOnFree(server, host, port);
  const sweep = setInterval(() => connections.closeIdle(), checkIntervalMs).unref();
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
      clearInterval(sweep);
    },
  };
}

/** Passes on what can be answered, and refuses the rest. */
function answering(answer: RequestListener, connections: Connections, refusing: Refusing): RequestListener {
  const refuse = (exchange: Exchange, code: ProblemCode, detail: string) => {
    connections.refused(exchange);
    void refusing.request(exchange, code, detail);
  };
  return (request, response) => {
    const exchange = { request, response };
    const hasRoom = connections.busy(exchange);
    const hosts = hostsOf(request);
    if (hosts > 1 || (hosts === 0 && request.httpVersion === '1.1')) {
      refuse(exchange, 'HTTP_REQUEST_MALFORMED', `HTTP asks for one Host header; there are ${hosts}.`);
    } else if (!hasRoom && !RESERVED_PATHS.has(request.url!.split('?')[0])) {
      refuse(exchange, 'HTTP_CONNECTION_LIMIT_REACHED', 'Other requests are answered first.');
    } else answer(request, response);
  };
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

/** How many Host headers a request has; of two, one hop may believe the first and the next one the second (RFC 9112, 3.2). */
function hostsOf({ rawHeaders }: IncomingMessage): number {
  let hosts = 0;
  for (let at = 0; at < rawHeaders.length; at += 2) if (/^host$/i.test(rawHeaders[at])) hosts++;
  return hosts;
}

/** Answers what does not reach the application, with the same envelope, and closes the connection. */
class Refusing {
  readonly #log: RefusalLog | undefined;
  readonly #lingerMs: number;

  constructor({ refusals, lingerMs = LINGER_MS }: ConnectionLimits) {
    this.#log = refusals;
    this.#lingerMs = lingerMs;
  }

  /** The whole answer is written at once. The connection closes when the request's body has come, or takes too long. */
  async request({ request, response }: Exchange, code: ProblemCode, detail: string): Promise<void> {
    const { status, headers, body } = this.#refusal(new Problem(code, detail), request.socket);
    response.writeHead(status, headers);
    response.write(body);
    await discardBody(request);
    response.end();
  }

  /** What Node cannot read as a request: there is no response to write to. */
  broken(error: Error & { code?: string }, socket: Socket): void {
    // More of what was refused already: the connection closes in a moment.
    if (socket.writableEnded) return;
    if (error.code === 'ECONNRESET' || !socket.writable) {
      socket.destroy();
      return;
    }
    const code = BROKEN_REQUESTS[error.code ?? ''] ?? 'HTTP_REQUEST_MALFORMED';
    const { status, headers, body } = this.#refusal(new Problem(code, 'The connection is closed.'), socket);
    const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${head.join('')}\r\n${body}`);
    // A client that does not close its side would keep the connection for ever.
    const timer = setTimeout(() => socket.destroy(), this.#lingerMs).unref();
    socket.once('close', () => clearTimeout(timer));
  }

  #refusal(problem: Problem, { remoteAddress }: Socket) {
    const requestId = randomUUID();
    this.#log?.note(problem.code, problem.message, { requestId, clientAddress: remoteAddress });
    const body = JSON.stringify(problem.body(requestId));
    const headers = {
      ...problem.headers,
      'Content-Type': 'application/problem+json',
      'X-Request-Id': requestId,
      'Content-Length': Buffer.byteLength(body),
      Connection: 'close',
    };
    return { status: problem.status, headers, body };
  }
}
