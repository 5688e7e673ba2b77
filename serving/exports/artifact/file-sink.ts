/** The sink of a file: it writes one buffer at a time, hashes the very bytes it writes, and syncs the file when it ends. */

import { createHash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import type { Flow } from '../../read/execute/answer.ts';
import type { Destination, RowShape, RowWriter } from '../../render/cells.ts';
import type { BufferPool } from '../../render/response.ts';
import { artifactFault } from './artifact.ts';

/** Above the first number of waiting bytes the sink pauses its producer; below the second it resumes it. */
const HIGH_BYTES = 2 * 1024 * 1024;
const LOW_BYTES = 512 * 1024;

interface FileSinkOptions {
  readonly buffers: BufferPool;
  /** The flow to pause while the disk is behind. */
  readonly flow: Flow;
  /** Called at once with the first fault. */
  readonly onFault: (error: unknown) => void;
}

interface FileFacts {
  readonly bytes: number;
  readonly sha256: string;
  readonly modifiedMs: number;
}

export class FileSink implements Destination, AsyncDisposable {
  /** Bytes accepted so far, including those that wait for the disk. */
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

  /** Creates a file that must not exist. @throws ArtifactFault */
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

  /** Waits until everything is on the disk. @throws ArtifactFault */
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
    // Returns to the caller first, so that a fault never arises inside its call.
    await Promise.resolve();
    try {
      for (let bytes = this.#queue.shift(); bytes; bytes = this.#queue.shift()) {
        this.#digest.update(bytes);
        for (let at = 0; at < bytes.length; ) at += (await this.#file.write(bytes, at)).bytesWritten;
        this.#waiting -= bytes.length;
        // A buffer of the pool returns to it; the garbage collector takes any other.
        if (bytes instanceof Buffer && bytes.byteOffset === 0) this.#options.buffers.give(Buffer.from(bytes.buffer));
        this.#resumeFlow();
      }
    } catch (error) {
      this.#fault = artifactFault(error);
      this.#queue.length = 0;
      this.#waiting = 0;
      this.#options.onFault(this.#fault);
      this.#resumeFlow();
    } finally {
      this.#writing = undefined;
    }
  }

  #resumeFlow(): void {
    if (!this.#paused || this.#waiting > LOW_BYTES) return;
    this.#paused = false;
    this.#options.flow.resume();
  }
}

/** Pauses a flow while at least one of several parts has a reason to. */
export class BackpressureGate {
  #flow: Flow | undefined;
  #reasons = 0;

  /** The flow to pause. */
  set flow(flow: Flow) {
    this.#flow = flow;
    if (this.#reasons > 0) flow.pause();
  }

  /** A flow that stands for one reason: pausing it adds the reason, resuming it removes the reason. */
  createReason(): Flow {
    let isActive = false;
    return {
      pause: () => {
        if (isActive) return;
        isActive = true;
        if (this.#reasons++ === 0) this.#flow?.pause();
      },
      resume: () => {
        if (!isActive) return;
        isActive = false;
        if (--this.#reasons === 0) this.#flow?.resume();
      },
    };
  }
}

/** Metadata that a format may store in the file; the same request has the same metadata. */
export type FileMetadata = Readonly<Record<string, string>>;

export interface FileTarget {
  readonly sink: FileSink;
  /** The flow to pause while earlier rows are being encoded. */
  readonly flow: Flow;
  readonly shape: RowShape;
  readonly facts: FileMetadata;
  readonly buffers: BufferPool;
  /** Called with faults that occur outside the calls. */
  readonly onFault: (error: unknown) => void;
}

export interface FileWriter extends RowWriter, AsyncDisposable {
  /** Call it after the last row. It resolves when all bytes of the file are in its sink. */
  close(): Promise<void>;
}
