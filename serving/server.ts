/** The HTTP server around the application: its port, its connections, its time limits, and how it stops. */
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse, STATUS_CODES } from 'node:http';
import { Server as NetServer, type Socket } from 'node:net';
import type Koa from 'koa';
import { Problem, type ProblemCode } from './contract/problems.ts';
import type { RefusalLog } from './http/access.ts';
import { DEDICATED, LAST } from './http/answer.ts';
import { listenOnFree, urlOf } from './http/port.ts';
import { announcesBody, awaitUnreadBody, discardBody, lacksLength } from './http/unread-body.ts';

interface ConnectionRules {
  /** Connections that may wait for an answer at once. Beyond them the server answers only health and metrics. */
  readonly open: number;
  /** Connections in addition to those. */
  readonly reserved: number;
  /** Event streams in addition to those: so many clients may connect at once, as they do after a restart. */
  readonly streams: number;
  /** A connection without a request for this long is closed, ms. */
  readonly idleMs: number;
}

interface PendingRequest {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
}

/** The open connections: which are idle, which wait for an answer, and which to close when there are too many. */
export class Connections {
  readonly #rules: ConnectionRules;
  readonly #open = new Set<Socket>();
  /** Idle connections and since when, by `performance.now()`. The one that has been idle for longest comes first. */
  readonly #idle = new Map<Socket, number>();
  /** Connections with requests whose answer is not complete. */
  readonly #busy = new Map<Socket, Set<PendingRequest>>();
  /** Connections that became event streams: they have a limit of their own, so they neither count nor give way here. */
  readonly #dedicated = new Map<Socket, ServerResponse>();
  /** Connections that close after an answer that is known: whatever else they send is not answered. */
  readonly #lastAnswered = new WeakSet<Socket>();
  #closing = false;

  constructor(rules: ConnectionRules) {
    this.#rules = rules;
  }

  /** Adds a connection. Beyond the limit it closes the one that has been idle for longest, or the new one if none is idle. */
  add(socket: Socket): void {
    this.#open.add(socket);
    this.#idle.set(socket, performance.now());
    socket.once('close', () => this.#forget(socket));
    const { open, reserved, streams } = this.#rules;
    if (this.#open.size + this.#dedicated.size <= open + reserved + streams) return;
    const [oldest] = this.#idle.keys();
    this.#shed(oldest);
  }

  /**
   * Registers a request. When too many connections have one, it closes the oldest that is still sending its request.
   * @returns false when there is no such connection; the server may then answer only the reserved paths.
   */
  busy(exchange: PendingRequest): boolean {
    const { request, response } = exchange;
    const { socket } = request;
    // A connection kept alive would otherwise last as long as its client has requests.
    if (this.#closing) response.setHeader('Connection', 'close');
    this.#idle.delete(socket);
    const exchanges = this.#busy.get(socket) ?? new Set();
    this.#busy.set(socket, exchanges.add(exchange));
    response.once('close', () => {
      if (this.#done(exchange, socket) && this.#closing) socket.end();
    });
    return this.#busy.size <= this.#rules.open || this.#makeRoom(socket);
  }

  /** The server refused the request. Its connection counts as idle at once, although the rest of its body is still read. */
  refused(exchange: PendingRequest): void {
    const { socket } = exchange.request;
    this.#lastAnswered.add(socket);
    this.#done(exchange, socket);
  }

  /** The answer to this request is the last one of its connection, whatever bytes follow it. */
  closesAfter({ request, response }: PendingRequest): void {
    response.setHeader('Connection', 'close');
    this.#lastAnswered.add(request.socket);
  }

  /** Whether what the connection still sends, faulty or late, gets no answer of its own. */
  hasLastAnswer(socket: Socket): boolean {
    return this.#lastAnswered.has(socket);
  }

  /** The answer is an event stream. Its connection serves nothing else and closes with it. */
  dedicate({ request: { socket }, response }: PendingRequest): void {
    this.#forget(socket);
    this.#dedicated.set(socket, response);
    // What is written after the connection broke is lost; the client says where it was.
    response.on('error', () => {});
    response.once('close', () => {
      this.#dedicated.delete(socket);
      socket.destroySoon();
    });
    socket.setKeepAlive(true, DEDICATED_PROBE_MS);
    if (this.#closing) response.end();
  }

  /** @returns whether the connection is now idle */
  #done(exchange: PendingRequest, socket: Socket): boolean {
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

  /** Whether an answer is in progress that the bytes of another would corrupt, or be mistaken for. */
  isAnswering(socket: Socket): boolean {
    if (this.#dedicated.has(socket)) return true;
    return [...(this.#busy.get(socket) ?? [])].some((exchange) => !isStillSending(exchange));
  }

  /** Closes connections that have been idle for too long. */
  closeIdle(): void {
    const latest = performance.now() - this.#rules.idleMs;
    for (const [socket, since] of this.#idle) {
      if (since > latest) return;
      this.#shed(socket);
    }
  }

  /** Closes idle connections and ends event streams; the others close after their answers. */
  close(): void {
    this.#closing = true;
    for (const response of this.#dedicated.values()) response.end();
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

const isStillSending = ({ request, response }: PendingRequest) => !request.complete && !response.headersSent;

const HEADERS_TIMEOUT_MS = 15_000;
const REQUEST_TIMEOUT_MS = 60_000;
/** An event stream whose client is gone without a word is noticed by the kernel's probes, the first after this time. */
const DEDICATED_PROBE_MS = 30_000;
/** How often the server checks connections against these two limits. */
const CHECK_INTERVAL_MS = 1000;
/** Longer than the idle time-outs of common proxies, so that the proxy closes first. */
const KEEP_ALIVE_TIMEOUT_MS = 65_000;
/** Connections in addition to those, for supervisors and scrapers: a busy service still shows that it is healthy. */
const RESERVED_CONNECTIONS = 16;
const RESERVED_PATHS: ReadonlySet<string> = new Set(['/healthz', '/readyz', '/metrics']);
/** After a refusal the server keeps reading for this long, so that the client reads the answer before the connection closes. */
const LINGER_MS = 2000;

interface Listening {
  readonly url: string;
  /** Accepts no new connections, lets running answers finish for that long, then cuts them. */
  close(graceMs: number): Promise<void>;
}

export interface ConnectionLimits {
  /** Connections with a request at once; health and metrics have further ones. */
  readonly maxConnections?: number;
  /** Event streams in addition to those. */
  readonly maxEventStreams?: number;
  readonly headersTimeoutMs?: number;
  readonly requestTimeoutMs?: number;
  /** How long an idle connection is kept between requests. */
  readonly idleTimeoutMs?: number;
  /** How often the server checks connections against these limits. */
  readonly checkIntervalMs?: number;
  /** How long the server keeps reading after a refusal. */
  readonly lingerMs?: number;
  /** Logs requests that do not reach the application. */
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
    streams: limits.maxEventStreams ?? 0,
    // Node's timers ignore line ends before a request and half-open clients; after the sum both of its limits have passed.
    idleMs: idleTimeoutMs + headersTimeoutMs,
  });
  const server = createServer({
    headersTimeout: headersTimeoutMs,
    requestTimeout: limits.requestTimeoutMs ?? REQUEST_TIMEOUT_MS,
    keepAliveTimeout: idleTimeoutMs,
    connectionsCheckingInterval: checkIntervalMs,
    // `answering` checks the header: Node's own refusal has no envelope, and Node accepts two Host headers.
    requireHostHeader: false,
  });
  // Beyond this count Node, depending on its version, hides headers from `hostsOf` or refuses them. Their bytes are limited anyway.
  server.maxHeadersCount = 0;
  const refuser = new Refuser(limits);
  const handle = answering(koa.callback(), connections, refuser);
  server.on('request', handle);
  // The server asks for the body only when it will read it: see readJson.
  server.on('checkContinue', handle);
  // The server ignores every other expectation; Node would answer 417 without an envelope.
  server.on('checkExpectation', (request, response) => {
    delete request.headers.expect;
    handle(request, response);
  });
  server.on('clientError', (error, stream) => {
    const socket = stream as Socket;
    // More bytes behind the last request of a connection, which closes in a moment. A reset fails while the socket is being
    // ended (libuv: EINVAL), and its descriptor would stay open for good.
    if (socket.writableEnded) return;
    if (connections.hasLastAnswer(socket)) {
      // The answer is written, and no body follows that the client would have to be rid of first.
      if (!connections.isAnswering(socket)) socket.end();
      return;
    }
    // Node's 400 would end up inside the answer; a body that ends with its connection would then even look complete.
    if (connections.isAnswering(socket)) socket.resetAndDestroy();
    else refuser.broken(error, socket);
  });
  server.on('connection', (socket) => connections.add(socket));
  await listenOnFree(server, host, port);
  const sweep = setInterval(() => connections.closeIdle(), checkIntervalMs).unref();
  return {
    url: urlOf(server),
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

/** Passes on the requests that can be answered, and refuses the others. */
function answering(answer: RequestListener, connections: Connections, refuser: Refuser): RequestListener {
  const refuse = (exchange: PendingRequest, code: ProblemCode, detail: string) => {
    connections.refused(exchange);
    void refuser.request(exchange, code, detail);
  };
  return (request, response) => {
    const exchange = { request, response };
    const hasRoom = connections.busy(exchange);
    response.once(DEDICATED, () => connections.dedicate(exchange));
    response.once(LAST, () => connections.refused(exchange));
    // The body of such a request would be taken for the next request, and Node's refusal of it would break this answer.
    if (lacksLength(request)) connections.closesAfter(exchange);
    const hosts = hostsOf(request);
    if (hosts > 1 || (hosts === 0 && request.httpVersion === '1.1')) {
      refuse(exchange, 'HTTP_REQUEST_MALFORMED', `The request has ${hosts} Host headers. Send exactly one.`);
    } else if (!hasRoom && !RESERVED_PATHS.has(request.url!.split('?')[0])) {
      refuse(exchange, 'HTTP_CONNECTION_LIMIT_REACHED', 'The service answers other requests first. Try again later.');
    } else if (request.method !== 'POST' && announcesBody(request)) {
      // No route reads it. Answered before it arrived, the request would time out later: a second answer.
      void awaitUnreadBody(request).then(() => {
        if (!request.complete) connections.closesAfter(exchange);
        answer(request, response);
      });
    } else answer(request, response);
  };
}

const BROKEN_REQUESTS: Readonly<Record<string, ProblemCode>> = {
  HPE_HEADER_OVERFLOW: 'HTTP_HEADERS_TOO_LARGE',
  ERR_HTTP_REQUEST_TIMEOUT: 'HTTP_REQUEST_TIMEOUT',
};

/** The number of Host headers. With two, one hop may believe the first and the next hop the second (RFC 9112, 3.2). */
function hostsOf({ rawHeaders }: IncomingMessage): number {
  let hosts = 0;
  for (let at = 0; at < rawHeaders.length; at += 2) if (/^host$/i.test(rawHeaders[at])) hosts++;
  return hosts;
}

/** Answers requests that do not reach the application, with the same envelope, and closes the connection. */
class Refuser {
  readonly #log: RefusalLog | undefined;
  readonly #lingerMs: number;

  constructor({ refusals, lingerMs = LINGER_MS }: ConnectionLimits) {
    this.#log = refusals;
    this.#lingerMs = lingerMs;
  }

  /** Writes the whole answer at once. The connection closes after the request's body has arrived, or after 4 s. */
  async request({ request, response }: PendingRequest, code: ProblemCode, detail: string): Promise<void> {
    const { status, headers, body } = this.#refusal(new Problem(code, detail), request.socket);
    response.writeHead(status, headers);
    response.write(body);
    await discardBody(request);
    response.end();
  }

  /** Answers bytes that Node cannot parse as a request, so there is no response to write to. */
  broken(error: Error & { code?: string }, socket: Socket): void {
    if (error.code === 'ECONNRESET' || !socket.writable) {
      socket.destroy();
      return;
    }
    const code = BROKEN_REQUESTS[error.code ?? ''] ?? 'HTTP_REQUEST_MALFORMED';
    const { status, headers, body } = this.#refusal(
      new Problem(code, 'The server closes the connection. Send a valid HTTP request on a new one.'),
      socket,
    );
    const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${head.join('')}\r\n${body}`);
    // A client that does not close its side would keep the connection forever.
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
