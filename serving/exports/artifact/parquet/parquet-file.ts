/** Rows into a Parquet file: row groups gathered here, encoded in a thread of their own, held back while it is behind. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { BatchedRows } from '../../../rendering/arrow/batched-rows.ts';
import type { ColumnMemory } from '../../../rendering/arrow/column.ts';
import type { FileTarget, FileWriter } from '../formats.ts';
import type { EncoderFile, FromEncoder, ToEncoder } from './messages.ts';

/** A multiple of what DuckDB reads at a time, 2,048, and its own default; a column of it is 1 MB. */
export const GROUP_ROWS = 122_880;
/** A group ends early once its texts take this much: transactions are kilobytes each. */
export const GROUP_TEXT_BYTES = 8 * 1024 * 1024;
/** Groups that may wait or be encoded while the next is gathered. */
const MAX_GROUPS_AHEAD = 1;
/**
 * Of the encoder's heap. Nearly all it makes is garbage a column later; with Node's default the process peaked at 383 MiB
 * for 3.5 M trades and at 286 for one million, with this at 206 and 197, for a twentieth more processor time.
 */
const YOUNG_MB = 16;

export class ParquetFile extends BatchedRows implements FileWriter {
  readonly #target: FileTarget;
  readonly #worker: Worker;
  /** Memory of groups that are done: two or three sets of it serve any number of rows. */
  readonly #spare: (readonly ColumnMemory[])[] = [];
  #ahead = 0;
  #held = false;
  #fault: unknown;
  readonly #ended: Promise<unknown>;

  constructor(target: FileTarget) {
    super(target.shape, { firstRows: GROUP_ROWS, rows: GROUP_ROWS, textBytes: GROUP_TEXT_BYTES });
    this.#target = target;
    const file: EncoderFile = {
      columns: this.columns.map(({ field: { name, type, nullable } }, index) => ({
        name,
        type,
        nullable,
        isDocument: target.shape.columns[index].field.dtype === 'json',
      })),
      facts: Object.entries(target.facts),
    };
    this.#worker = new Worker(new URL('./encoder.ts', import.meta.url), {
      workerData: file,
      execArgv: [],
      resourceLimits: { maxYoungGenerationSizeMb: YOUNG_MB },
    });
    this.#ended = once(this.#worker, 'exit');
    this.#worker.on('message', (message: FromEncoder) => this.#take(message));
    this.#worker.on('error', (error) => {
      this.#fault = error;
      target.onFault(error);
    });
  }

  /** A group is whole or not there. */
  flush(): void {}

  async close(): Promise<void> {
    this.end();
    this.#send({ kind: 'end' }, []);
    await this.#ended;
    if (this.#fault !== undefined) throw this.#fault;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#worker.terminate();
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
    this.#ahead++;
    if (this.#held || this.#ahead <= MAX_GROUPS_AHEAD) return;
    this.#held = true;
    this.#target.flow.pause();
  }

  #send(message: ToEncoder, memory: readonly ArrayBuffer[]): void {
    this.#worker.postMessage(message, memory);
  }

  #take(message: FromEncoder): void {
    this.#target.sink.write(message.bytes);
    if (message.kind === 'end') return;
    this.#spare.push(message.memory);
    this.#ahead--;
    if (!this.#held || this.#ahead > MAX_GROUPS_AHEAD) return;
    this.#held = false;
    this.#target.flow.resume();
  }
}
