/** The open connections: which are idle, which wait for an answer, and which is closed when there are too many. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

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
