/** Writes rows to a Parquet file: gathers row groups, encodes them in a thread, and pauses the read while the thread is behind. */

import { Worker } from 'node:worker_threads';
import type { Compression } from '../../contract/export.ts';
import type { ColumnMemory } from '../../render/arrow-column.ts';
import type { ArrowType } from '../../render/arrow-messages.ts';
import { BatchedRows } from '../../render/arrow-rows.ts';
import type { FileTarget, FileWriter } from './file-sink.ts';

/** A column of the file. The messages between the two threads transfer their buffers and copy none. */
export interface EncoderColumn {
  readonly name: string;
  readonly type: ArrowType | 'timestamp_us_utc';
  readonly nullable: boolean;
  /** Whether texts are long and seldom equal. */
  readonly isDocument: boolean;
}

/** A file to encode. */
export interface EncoderFile {
  readonly columns: readonly EncoderColumn[];
  readonly compression: Compression;
  /** Times are microseconds, and all columns state how many values they lack. */
  readonly isOfTable: boolean;
  /** Key-value pairs for the file's footer. */
  readonly facts: readonly (readonly [key: string, value: string])[];
}

/** A column of a row group, in Arrow's layout. */
export interface EncoderBatch {
  /** The values, or the ends of texts. */
  readonly values: Uint8Array;
  /** One bit per row, set where there is a value; empty without nulls. */
  readonly validity: Uint8Array;
  readonly text: Uint8Array;
}

export type ToEncoder =
  | { readonly kind: 'begin'; readonly file: EncoderFile }
  | { readonly kind: 'group'; readonly rows: number; readonly columns: readonly EncoderBatch[] }
  | { readonly kind: 'end' };

export type FromEncoder =
  /** More bytes of the file. Its row group is encoded, and its memory returns. */
  | { readonly kind: 'bytes'; readonly bytes: Uint8Array; readonly memory: readonly ColumnMemory[] }
  /** The rest of the file. */
  | { readonly kind: 'end'; readonly bytes: Uint8Array };

/** A multiple of 2,048, the number of rows that DuckDB reads at a time, and DuckDB's own default; a column of it is 1 MB. */
export const GROUP_ROWS = 122_880;
/** A group ends early once its texts reach this size: a transaction takes kilobytes. */
export const GROUP_TEXT_BYTES = 8 * 1024 * 1024;
/** Groups that may wait or be encoded while the next one is gathered. */
const MAX_WAITING_GROUPS = 1;
/**
 * Limit of the encoder's young heap: nearly all it allocates is garbage a column later. With Node's default the process peaked
 * at 383 MiB for 3.5 M trades and at 286 for one million, with this limit at 206 and 197, for a twentieth more CPU time.
 */
const YOUNG_MB = 16;

/** A thread takes 40 ms to start, as long as a file of a day of blocks takes otherwise: idle threads serve the next file. */
const idle: { readonly worker: Worker; readonly timer: NodeJS.Timeout }[] = [];
const MAX_IDLE = 2;
const IDLE_MS = 10_000;

function takeEncoder(): Worker {
  const found = idle.pop();
  if (found) {
    clearTimeout(found.timer);
    found.worker.ref();
    return found.worker;
  }
  return new Worker(new URL('./parquet-encoder.ts', import.meta.url), {
    execArgv: [],
    resourceLimits: { maxYoungGenerationSizeMb: YOUNG_MB },
  });
}

/** Keeps a thread that has ended its file for the next one, for a while. */
function giveEncoder(worker: Worker): void {
  if (idle.length >= MAX_IDLE) {
    void worker.terminate();
    return;
  }
  const timer = setTimeout(() => {
    idle.splice(
      idle.findIndex((one) => one.worker === worker),
      1,
    );
    void worker.terminate();
  }, IDLE_MS);
  timer.unref();
  worker.unref();
  idle.push({ worker, timer });
}

export class ParquetFile extends BatchedRows implements FileWriter {
  readonly #target: FileTarget;
  readonly #worker: Worker;
  /** Memory of encoded groups: two or three sets of it serve any number of rows. */
  readonly #spare: (readonly ColumnMemory[])[] = [];
  #waiting = 0;
  #isPaused = false;
  #isEnded = false;
  readonly #ended = Promise.withResolvers<void>();
  readonly #onMessage = (message: FromEncoder) => this.#receive(message);
  readonly #onError = (error: unknown) => {
    this.#ended.reject(error);
    this.#target.onFault(error);
  };

  constructor(target: FileTarget, compression: Compression, isOfTable = false) {
    super(target.shape, { firstRows: GROUP_ROWS, rows: GROUP_ROWS, textBytes: GROUP_TEXT_BYTES });
    this.#target = target;
    const file: EncoderFile = {
      columns: this.columns.map(({ field: { name, type, nullable } }, index) => ({
        name,
        type: isOfTable && type === 'timestamp_ms_utc' ? 'timestamp_us_utc' : type,
        nullable,
        isDocument: target.shape.columns[index].field.dtype === 'json',
      })),
      compression,
      isOfTable,
      facts: Object.entries(target.facts),
    };
    this.#ended.promise.catch(() => {}); // `close` awaits it
    this.#worker = takeEncoder();
    this.#worker.on('message', this.#onMessage);
    this.#worker.on('error', this.#onError);
    this.#send({ kind: 'begin', file }, []);
  }

  /** A group is complete or absent, so there is nothing to flush. */
  flush(): void {}

  async close(): Promise<void> {
    this.end();
    this.#send({ kind: 'end' }, []);
    await this.#ended.promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#worker.off('message', this.#onMessage);
    this.#worker.off('error', this.#onError);
    if (this.#isEnded) giveEncoder(this.#worker);
    else await this.#worker.terminate();
  }

  protected emit(rows: number): void {
    const taken = this.columns.map((column) => {
      const [validity, values, text = new Uint8Array(0)] = column.take(rows).buffers;
      return { values, validity, text };
    });
    const memory = taken.flatMap(({ values, validity, text }) => [values.buffer, validity.buffer, text.buffer]);
    this.#send({ kind: 'group', rows, columns: taken }, memory as ArrayBuffer[]);
    const spare = this.#spare.pop();
    this.columns.forEach((column, index) => {
      column.renew(spare?.[index]);
    });
    this.#waiting++;
    if (this.#isPaused || this.#waiting <= MAX_WAITING_GROUPS) return;
    this.#isPaused = true;
    this.#target.flow.pause();
  }

  #send(message: ToEncoder, memory: readonly ArrayBuffer[]): void {
    this.#worker.postMessage(message, memory);
  }

  #receive(message: FromEncoder): void {
    this.#target.sink.write(message.bytes);
    if (message.kind === 'end') {
      this.#isEnded = true;
      this.#ended.resolve();
      return;
    }
    this.#spare.push(message.memory);
    this.#waiting--;
    if (!this.#isPaused || this.#waiting > MAX_WAITING_GROUPS) return;
    this.#isPaused = false;
    this.#target.flow.resume();
  }
}
