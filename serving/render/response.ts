/**
 * Sends a body to the client. It sends nothing before the first buffer is full or the rows have ended, so that every fault
 * until then still gets a proper answer; a small answer leaves in one piece.
 */

import { createHash, type Hash } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import type { Writable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { constants, createGzip, createZstdCompress, type Gzip, type ZstdCompress } from 'node:zlib';
import { BUFFER_BYTES, type Destination } from './cells.ts';
import { headerName } from './json-rows.ts';

/** A content coding. */
export interface Coding {
  /** The name in Content-Encoding. */
  readonly name: string;
  create(): Gzip | ZstdCompress;
}

const OUTPUT_BYTES = 64 * 1024;

/**
 * In order of preference. Levels are the fastest: for a day of trades as JSON, zstd-1 compresses 700 MB/s to a seventh and
 * gzip-1 300 MB/s to a sixth, where gzip's usual level 6 takes 120 MB/s to save the last tenth of that. Both run on the thread
 * pool, not on the thread that renders.
 */
export const CODINGS: readonly Coding[] = [
  {
    name: 'zstd',
    create: () =>
      createZstdCompress({
        chunkSize: OUTPUT_BYTES,
        // The checksum lets a decoder notice damage, as gzip's checksum always does.
        params: { [constants.ZSTD_c_compressionLevel]: 1, [constants.ZSTD_c_checksumFlag]: 1 },
      }),
  },
  { name: 'gzip', create: () => createGzip({ chunkSize: OUTPUT_BYTES, level: constants.Z_BEST_SPEED }) },
];

/** Above the first number of waiting bytes the body pauses the database; below the second it resumes it. */
const HIGH_BYTES = 4 * BUFFER_BYTES;
const LOW_BYTES = 2 * BUFFER_BYTES;
/** Buffers kept for later answers. */
const MAX_SPARE = 32;

/** Reuses buffers: four of them serve a client that takes 100 MB. */
export class BufferPool {
  readonly #spare: Buffer[] = [];

  take(): Buffer {
    return this.#spare.pop() ?? Buffer.allocUnsafeSlow(BUFFER_BYTES);
  }

  give(bytes: Buffer): void {
    if (bytes.length === BUFFER_BYTES && this.#spare.length < MAX_SPARE) this.#spare.push(bytes);
  }
}

interface BodyOptions {
  readonly headers: () => Record<string, string>;
  readonly buffers: BufferPool;
  /** A client that takes nothing for this long is cut off. */
  readonly stallTimeoutMs: number;
  /** Undefined: the body is not encoded. */
  readonly coding: Coding | undefined;
  /** Whether trailers carry the number of rows and the digest of the body before its coding. */
  readonly proved: boolean;
  /** Names of further members that the trailers carry. */
  readonly closing?: readonly string[];
}

const ROW_COUNT = headerName('row_count');
const SHA256 = headerName('sha256');
const TRAILER = `${ROW_COUNT}, ${SHA256}`;

/** Ends an incomplete answer such that no client takes it for complete, even where the connection's end ends the body. */
export function breakOff(response: ServerResponse): void {
  // Only TCP has a reset; a Unix socket has no address.
  if (response.socket?.remoteAddress !== undefined) response.socket.resetAndDestroy();
  else response.destroy();
}

export class ResponseBody implements Destination {
  readonly #response: ServerResponse;
  readonly #options: BodyOptions;
  readonly #digest: Hash | undefined;
  #flow: { pause(): void; resume(): void } | undefined;
  /** The stream that the body is written to: the response, or the encoder before it. */
  #target: Writable;
  #encoder: ReturnType<Coding['create']> | undefined;
  /** Bytes written whose memory is still in use. */
  #waiting = 0;
  /** Encoded bytes that the client has not taken yet. */
  #encoded = 0;
  #paused = false;
  #stall: NodeJS.Timeout | undefined;

  constructor(response: ServerResponse, options: BodyOptions) {
    this.#response = response;
    this.#options = options;
    this.#target = response;
    if (options.proved) this.#digest = createHash('sha256');
    response.once('close', () => {
      clearTimeout(this.#stall);
      this.#encoder?.destroy();
    });
  }

  /** The flow that the body pauses while the client is behind. */
  set flow(flow: { pause(): void; resume(): void }) {
    this.#flow = flow;
  }

  buffer(): Buffer {
    return this.#options.buffers.take();
  }

  write(bytes: Buffer): void {
    if (this.#response.destroyed) return;
    this.#digest?.update(bytes);
    if (!this.#response.headersSent) this.#begin();
    this.#pass(bytes);
    if (!this.#paused && this.#waiting > HIGH_BYTES) {
      this.#paused = true;
      this.#flow?.pause();
    }
  }

  /** Sends what has been written so far, if the client keeps up. */
  flush(): void {
    if (this.#waiting === 0) this.#encoder?.flush();
  }

  /** Sends the rest of the body. The caller must not use `last` again. */
  end(last: Buffer, rows: number, closing: Readonly<Record<string, string>> = {}): void {
    const response = this.#response;
    if (response.destroyed) return;
    const proof: Record<string, string> = this.#digest
      ? {
          [ROW_COUNT]: String(rows),
          [SHA256]: this.#digest.update(last).digest('hex'),
          ...Object.fromEntries(Object.entries(closing).map(([name, value]) => [headerName(name), value])),
        }
      : {};
    if (!response.headersSent) {
      this.#endWhole(last, proof);
      return;
    }
    if (this.#hasTrailers) response.addTrailers(proof);
    this.#pass(last);
    this.#target.end();
  }

  /** Only chunked bodies have trailers; HTTP/1.0 has neither. */
  get #hasTrailers(): boolean {
    return this.#options.proved && this.#response.useChunkedEncodingByDefault;
  }

  #headers(): Record<string, string> {
    const { headers, coding } = this.#options;
    return {
      ...headers(),
      ...(coding && { 'Content-Encoding': coding.name }),
      ...(this.#hasTrailers && { Trailer: [TRAILER, ...(this.#options.closing ?? []).map(headerName)].join(', ') }),
    };
  }

  #begin(): void {
    const response = this.#response;
    response.writeHead(200, this.#headers());
    const encoder = this.#options.coding?.create();
    if (!encoder) return;
    this.#encoder = encoder;
    this.#target = encoder;
    encoder.on('data', (chunk: Buffer) => {
      this.#encoded += chunk.length;
      const hasRoom = response.write(chunk, () => {
        this.#encoded -= chunk.length;
        this.#watch();
      });
      if (hasRoom) return;
      encoder.pause();
      response.once('drain', () => encoder.resume());
    });
    encoder.once('end', () => response.end());
    encoder.once('error', () => breakOff(response));
  }

  #pass(bytes: Buffer): void {
    this.#waiting += bytes.length;
    this.#watch();
    this.#target.write(bytes, (error) => {
      this.#waiting -= bytes.length;
      // Pooled buffers return to the pool; the garbage collector takes one that was allocated for a single wide row.
      if (!error) this.#options.buffers.give(Buffer.from(bytes.buffer));
      this.#watch();
      if (this.#paused && this.#waiting <= LOW_BYTES) {
        this.#paused = false;
        this.#flow?.resume();
      }
    });
  }

  /** Sends a small answer. Its trailers are known beforehand, so they are headers too, for clients without trailers. */
  #endWhole(whole: Buffer, proof: Record<string, string>): void {
    const response = this.#response;
    const send = (body: Buffer) => {
      if (response.destroyed) return;
      const length = this.#hasTrailers ? undefined : { 'Content-Length': String(body.length) };
      response.writeHead(200, { ...this.#headers(), ...proof, ...length });
      if (this.#hasTrailers) response.addTrailers(proof);
      this.#waiting = body.length;
      this.#watch();
      response.end(body, () => this.#options.buffers.give(Buffer.from(whole.buffer)));
    };
    const encoder = this.#options.coding?.create();
    if (!encoder) {
      send(whole);
      return;
    }
    encoder.end(whole);
    buffer(encoder).then(send, () => breakOff(response));
  }

  /** Restarts the client's timer whenever it takes something. */
  #watch(): void {
    clearTimeout(this.#stall);
    if (this.#waiting + this.#encoded === 0) return;
    this.#stall = setTimeout(() => breakOff(this.#response), this.#options.stallTimeoutMs);
  }
}
