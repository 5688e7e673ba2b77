/** A file being written: one write at a time, its digest made of the very bytes, durable when it is finished. */

import { createHash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import type { Flow } from '../../read/execute/answer.ts';
import type { Destination, RowShape, RowWriter } from '../../render/cells.ts';
import type { BufferPool } from '../../render/response.ts';
import { artifactFault } from './types.ts';

/** Bytes that may wait for the disk before whoever makes them is held back, and where that goes on. */
const HIGH_BYTES = 2 * 1024 * 1024;
const LOW_BYTES = 512 * 1024;

export interface FileSinkOptions {
  readonly buffers: BufferPool;
  /** Held back while the disk is behind. */
  readonly flow: Flow;
  /** The first fault, as soon as it is there. */
  readonly onFault: (error: unknown) => void;
}

export interface FileFacts {
  readonly bytes: number;
  readonly sha256: string;
  readonly modifiedMs: number;
}

export class FileSink implements Destination, AsyncDisposable {
  /** Taken so far, those on their way included. */
  bytes = 0;
  readonly #file: FileHandle;
  readonly #options: FileSinkOptions;
  readonly #digest = createHash('sha256');
  readonly #queue: Uint8Array[] = [];
  #waiting = 0;
  #paused = false;
  #fault: unknown;
  #writing: Promise<void> | undefined;
  #closed = false;

  private constructor(file: FileHandle, options: FileSinkOptions) {
    this.#file = file;
    this.#options = options;
  }

  /** Of a file that must not exist. @throws ArtifactFault */
  static async create(path: string, options: FileSinkOptions): Promise<FileSink> {
    try {
      return new FileSink(await open(path, 'wx', 0o640), options);
    } catch (error) {
      throw artifactFault(error);
    }
  }

  buffer(): Buffer {
    return this.#options.buffers.take();
  }

  write(bytes: Uint8Array): void {
    if (this.#fault !== undefined) return;
    this.bytes += bytes.length;
    this.#waiting += bytes.length;
    this.#queue.push(bytes);
    this.#writing ??= this.#writeAll();
    if (!this.#paused && this.#waiting > HIGH_BYTES) {
      this.#paused = true;
      this.#options.flow.pause();
    }
  }

  /** All of it is on the disk. @throws ArtifactFault */
  async finish(): Promise<FileFacts> {
    await this.#writing;
    if (this.#fault !== undefined) throw this.#fault;
    try {
      await this.#file.sync();
      const { mtimeMs } = await this.#file.stat();
      this.#closed = true;
      await this.#file.close();
      return { bytes: this.bytes, sha256: this.#digest.digest('hex'), modifiedMs: mtimeMs };
    } catch (error) {
      throw artifactFault(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#writing;
    if (this.#closed) return;
    this.#closed = true;
    await this.#file.close().catch(() => {});
  }

  async #writeAll(): Promise<void> {
    // Whoever wrote goes on first: a fault is told from outside its call.
    await Promise.resolve();
    try {
      for (let bytes = this.#queue.shift(); bytes; bytes = this.#queue.shift()) {
        this.#digest.update(bytes);
        for (let at = 0; at < bytes.length; ) at += (await this.#file.write(bytes, at)).bytesWritten;
        this.#waiting -= bytes.length;
        // A view of a whole buffer of the pool; anything else is left to the collector.
        if (bytes instanceof Buffer && bytes.byteOffset === 0) this.#options.buffers.give(Buffer.from(bytes.buffer));
        this.#letGo();
      }
    } catch (error) {
      this.#fault = artifactFault(error);
      this.#queue.length = 0;
      this.#waiting = 0;
      this.#options.onFault(this.#fault);
      this.#letGo();
    } finally {
      this.#writing = undefined;
    }
  }

  #letGo(): void {
    if (!this.#paused || this.#waiting > LOW_BYTES) return;
    this.#paused = false;
    this.#options.flow.resume();
  }
}

/* Holds rows back as long as any of several has a reason to. */

export class BackpressureGate {
  #flow: Flow | undefined;
  #reasons = 0;

  /** What is held back. */
  set flow(flow: Flow) {
    this.#flow = flow;
    if (this.#reasons > 0) flow.pause();
  }

  /** One reason: paused and resumed in turn. */
  lever(): Flow {
    let isOn = false;
    return {
      pause: () => {
        if (isOn) return;
        isOn = true;
        if (this.#reasons++ === 0) this.#flow?.pause();
      },
      resume: () => {
        if (!isOn) return;
        isOn = false;
        if (--this.#reasons === 0) this.#flow?.resume();
      },
    };
  }
}

/** Facts that a format may keep in the file; the same for the same request. */
export type FileMetadata = Readonly<Record<string, string>>;

export interface FileTarget {
  readonly sink: FileSink;
  /** Holds rows back while earlier ones are being made into bytes. */
  readonly flow: Flow;
  readonly shape: RowShape;
  readonly facts: FileMetadata;
  /** What goes wrong beside the calls. */
  readonly onFault: (error: unknown) => void;
}

export interface FileWriter extends RowWriter, AsyncDisposable {
  /** After the last row: all of the file's bytes are in its sink. */
  close(): Promise<void>;
}
