/**
 * A body on its way to the client. Nothing is sent before the first buffer is full or the rows have ended, so that
 * every fault until then still gets a proper answer; small answers leave in one piece, with their length.
 */
import type { ServerResponse } from 'node:http';
import { BUFFER_BYTES, type Destination } from './out.ts';

/** Bytes that may wait for the client before the database is held back, and where it goes on. */
const HIGH_BYTES = 4 * BUFFER_BYTES;
const LOW_BYTES = 2 * BUFFER_BYTES;
/** Buffers kept for the next answer. */
const MAX_SPARE = 32;

/** Buffers in turn: a client that takes 100 MB is served from four of them. */
export class BufferPool {
  readonly #spare: Buffer[] = [];

  take(): Buffer {
    return this.#spare.pop() ?? Buffer.allocUnsafeSlow(BUFFER_BYTES);
  }

  give(bytes: Buffer): void {
    if (bytes.length === BUFFER_BYTES && this.#spare.length < MAX_SPARE) this.#spare.push(bytes);
  }
}

export interface BodyOptions {
  readonly headers: () => Record<string, string>;
  readonly buffers: BufferPool;
  /** The client takes nothing for this long: it is cut off. */
  readonly stallTimeoutMs: number;
}

export class ResponseBody implements Destination {
  readonly #response: ServerResponse;
  readonly #options: BodyOptions;
  #flow: { pause(): void; resume(): void } | undefined;
  #waiting = 0;
  #paused = false;
  #stall: NodeJS.Timeout | undefined;

  constructor(response: ServerResponse, options: BodyOptions) {
    this.#response = response;
    this.#options = options;
    response.once('close', () => clearTimeout(this.#stall));
  }

  /** What is held back while the client is behind. */
  set flow(flow: { pause(): void; resume(): void }) {
    this.#flow = flow;
  }

  buffer(): Buffer {
    return this.#options.buffers.take();
  }

  write(bytes: Buffer): void {
    const response = this.#response;
    if (response.destroyed) return;
    if (!response.headersSent) response.writeHead(200, this.#options.headers());
    this.#waiting += bytes.length;
    this.#watch();
    response.write(bytes, (error) => {
      this.#waiting -= bytes.length;
      // A view of a whole buffer of ours; one made for a single wide row is left to the collector.
      if (!error) this.#options.buffers.give(Buffer.from(bytes.buffer));
      this.#watch();
      if (this.#paused && this.#waiting <= LOW_BYTES) {
        this.#paused = false;
        this.#flow?.resume();
      }
    });
    if (!this.#paused && this.#waiting > HIGH_BYTES) {
      this.#paused = true;
      this.#flow?.pause();
    }
  }

  /** The rest of the body; `last` is not used again by the caller. */
  end(last: Buffer): void {
    const response = this.#response;
    if (!response.headersSent) {
      response.writeHead(200, { ...this.#options.headers(), 'Content-Length': String(last.length) });
    }
    this.#waiting += last.length;
    this.#watch();
    response.end(last, () => {
      this.#options.buffers.give(Buffer.from(last.buffer));
    });
  }

  #watch(): void {
    clearTimeout(this.#stall);
    if (this.#waiting === 0) return;
    this.#stall = setTimeout(() => this.#response.destroy(), this.#options.stallTimeoutMs);
  }
}
