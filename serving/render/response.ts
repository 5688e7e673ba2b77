/**
 * Sends a body to the client. It sends nothing before the first buffer is full or the rows have ended, so that every fault
 * until then still gets a proper answer; a small answer leaves in one piece. Over HTTP/1.0 a body whose form does not show its
 * own end is gathered first, and has a Content-Length.
 */

import { createHash, type Hash } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import { Writable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { finished } from 'node:stream/promises';
import { constants, createGzip, createZstdCompress, type Gzip, type ZstdCompress } from 'node:zlib';
import { assert } from '../../shared/errors.ts';
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
  /** Called when a body that must be gathered exceeds MAX_GATHERED_BYTES: nothing was sent, and the rest is dropped. */
  readonly onTooLarge?: () => void;
}

/** The longest body, as it is sent, that an answer over HTTP/1.0 may have; so much memory each such answer may take. */
export const MAX_GATHERED_BYTES = 8 * 1024 * 1024;

/** Keeps copies of what is written, up to a limit; beyond it, fails and keeps nothing. */
class Gatherer extends Writable {
  readonly pieces: Buffer[] = [];
  bytes = 0;

  override _write(piece: Buffer, _: BufferEncoding, done: (error?: Error) => void): void {
    this.bytes += piece.length;
    if (this.bytes <= MAX_GATHERED_BYTES) {
      // The body gives the buffer of the piece back to its pool.
      this.pieces.push(Buffer.from(piece));
      done();
      return;
    }
    this.pieces.length = 0;
    done(new Error(`the body exceeds ${MAX_GATHERED_BYTES} bytes`));
  }
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
  #hasBegun = false;
  #isTooLarge = false;
  #proof: Readonly<Record<string, string>> = {};
  /** Settles when a gathered body is on its way or has become too large. */
  #gathering: Promise<void> | undefined;

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

  digest(): Hash {
    assert(this.#digest !== undefined, 'only a body with trailers has a digest');
    return this.#digest.copy();
  }

  write(bytes: Buffer): void {
    if (this.#response.destroyed || this.#isTooLarge) return;
    this.#digest?.update(bytes);
    if (!this.#hasBegun) this.#begin();
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

  /**
   * Sends the rest of the body. The caller must not use `last` again. Where the body is gathered, the promise resolves when it
   * is on its way or known to be too large.
   */
  async end(last: Buffer, rows: number, closing: Readonly<Record<string, string>> = {}): Promise<void> {
    const response = this.#response;
    if (response.destroyed || this.#isTooLarge) return;
    const proof: Record<string, string> = this.#digest
      ? {
          [ROW_COUNT]: String(rows),
          [SHA256]: this.#digest.update(last).digest('hex'),
          ...Object.fromEntries(Object.entries(closing).map(([name, value]) => [headerName(name), value])),
        }
      : {};
    if (!this.#hasBegun) {
      this.#endWhole(last, proof);
      return;
    }
    this.#proof = proof;
    if (this.#hasTrailers) response.addTrailers(proof);
    this.#pass(last);
    this.#target.end();
    await this.#gathering;
  }

  /**
   * Over HTTP/1.0 the end of the connection would be the end of the body, and a dead process ends its connections like one that
   * is done. JSON shows its own end.
   */
  get mustBeGathered(): boolean {
    return this.#options.proved && !this.#response.useChunkedEncodingByDefault;
  }

  /** Whether the body has been gathered, and not only fitted into one buffer. */
  get wasGathered(): boolean {
    return this.#gathering !== undefined;
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
    this.#hasBegun = true;
    const response = this.#response;
    const sink = this.mustBeGathered ? this.#gather() : response;
    if (sink === response) response.writeHead(200, this.#headers());
    this.#target = sink;
    const encoder = this.#options.coding?.create();
    if (!encoder) return;
    this.#encoder = encoder;
    this.#target = encoder;
    encoder.on('data', (chunk: Buffer) => {
      this.#encoded += chunk.length;
      const hasRoom = sink.write(chunk, () => {
        this.#encoded -= chunk.length;
        this.#watch();
      });
      if (hasRoom) return;
      encoder.pause();
      sink.once('drain', () => encoder.resume());
    });
    encoder.once('end', () => sink.end());
    encoder.once('error', () => breakOff(response));
  }

  #gather(): Gatherer {
    const gatherer = new Gatherer();
    this.#response.once('close', () => gatherer.destroy());
    this.#gathering = finished(gatherer).then(
      () => this.#sendGathered(gatherer),
      () => this.#dropGathered(),
    );
    return gatherer;
  }

  #sendGathered({ pieces, bytes }: Gatherer): void {
    const response = this.#response;
    if (response.destroyed) return;
    response.writeHead(200, { ...this.#headers(), ...this.#proof, 'Content-Length': String(bytes) });
    this.#target = response;
    for (const piece of pieces.splice(0)) this.#pass(piece);
    response.end();
  }

  #dropGathered(): void {
    if (this.#response.destroyed) return;
    this.#isTooLarge = true;
    this.#encoder?.destroy();
    clearTimeout(this.#stall);
    this.#options.onTooLarge?.();
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
    if (this.#waiting + this.#encoded === 0 || this.#isTooLarge) return;
    this.#stall = setTimeout(() => breakOff(this.#response), this.#options.stallTimeoutMs);
  }
}
