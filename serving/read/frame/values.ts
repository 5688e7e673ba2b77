/** The values of a frame's columns (eight bytes each, as PostgreSQL sends a float8 or an int8), and the rows that they become. */
import { createHash } from 'node:crypto';
import type { Range } from '../../../shared/ranges.ts';
import type { Field, PgType } from '../../../shared/registry/index.ts';
import type { FrameColumn, FrameRequest } from '../../contract/frame.ts';
import type { PgConnection, RowSink } from '../../db/pg-connection.ts';
import { OID } from '../../db/pg-messages.ts';
import type { RowWriter } from '../../render/cells.ts';
import type { Flow } from '../execute/answer.ts';

/** Only these two types leave the database: flags and times are integers. */
export function valueSql({ sql, pg }: Field): string {
  switch (pg) {
    case 'float8':
    case 'int8':
      return sql;
    case 'bool':
      return `(${sql})::int::int8`;
    case 'timestamptz':
      return `floor(extract(epoch from ${sql}) * 1000)::int8`;
    default:
      return `(${sql})::int8`;
  }
}

export const valueOid = ({ pg }: Field): number => (pg === 'float8' ? OID.float8 : OID.int8);

/** The type in which a frame's rows hold a field. */
export const valuePg = ({ dtype }: Pick<Field, 'dtype'>): PgType =>
  dtype === 'float64' ? 'float8' : dtype === 'bool01' ? 'bool' : 'int8';

export const VALUE_BYTES = 8;

/** The values of one row: two words of 32 bits each, the upper first; NaN for null. Small integers need no memory of their own. */
export type RowValues = readonly number[];

/** The values of the buckets of a window, by bucket and column. */
export class Values {
  /** The number of buckets of the window. */
  buckets: number;
  view: DataView;
  readonly #columns: number;
  #present: Uint8Array;

  constructor(buckets: number, columns: number) {
    this.buckets = buckets;
    this.#columns = columns;
    this.view = new DataView(new ArrayBuffer(buckets * columns * VALUE_BYTES));
    this.#present = new Uint8Array(buckets * columns);
  }

  /** Empties it for another window. Memory outside the heap is collected late, so that one for each window would pile up. */
  reset(buckets: number): void {
    this.buckets = buckets;
    const cells = buckets * this.#columns;
    if (cells <= this.#present.length) {
      this.#present.fill(0);
      return;
    }
    this.view = new DataView(new ArrayBuffer(cells * VALUE_BYTES));
    this.#present = new Uint8Array(cells);
  }

  set(bucket: number, column: number, upper: number, lower: number): void {
    const index = bucket * this.#columns + column;
    this.view.setInt32(index * VALUE_BYTES, upper);
    this.view.setInt32(index * VALUE_BYTES + 4, lower);
    this.#present[index] = 1;
  }

  /** Where the value begins in `view`; -1 for null. */
  at(bucket: number, column: number): number {
    const index = bucket * this.#columns + column;
    return this.#present[index] === 0 ? -1 : index * VALUE_BYTES;
  }

  /** A copy of a bucket's values in these columns. */
  rowOf(bucket: number, columns: readonly number[]): RowValues {
    return columns.flatMap((column) => {
      const at = this.at(bucket, column);
      return at < 0 ? [Number.NaN, 0] : [this.view.getInt32(at), this.view.getInt32(at + 4)];
    });
  }
}

/** An int8 below 2^53, without a big integer in between. */
export const integerAt = (view: DataView, at: number): number => view.getInt32(at) * 2 ** 32 + view.getUint32(at + 4);

/** Reads rows of integers and values, of which there are few: each becomes an object. */
export class ValueRows implements RowSink {
  readonly #integers: number;
  readonly #take: (integers: readonly (number | undefined)[], values: RowValues) => void;

  /** @param integers the number of int8 cells before the values */
  constructor(integers: number, take: (integers: readonly (number | undefined)[], values: RowValues) => void) {
    this.#integers = integers;
    this.#take = take;
  }

  row(view: DataView, _bytes: Buffer, start: number, length: number): void {
    const integers: (number | undefined)[] = [];
    let at = start;
    for (let index = 0; index < this.#integers; index++) {
      const size = view.getInt32(at);
      at += 4;
      integers.push(size < 0 ? undefined : integerAt(view, at));
      at += Math.max(size, 0);
    }
    const values: number[] = [];
    while (at < start + length) {
      const size = view.getInt32(at);
      at += 4;
      if (size < 0) values.push(Number.NaN, 0);
      else values.push(view.getInt32(at), view.getInt32(at + 4));
      at += Math.max(size, 0);
    }
    this.#take(integers, values);
  }
}

/** The time of a window of the frame, in whole buckets. */
export interface FrameWindow extends Range {
  readonly gridMs: number;
  /** When a bucket ends; the end of the request cuts the last one. */
  endOf(bucket: number): number;
}

/** What a group of columns with the same rows adds to a frame. */
export interface ColumnGroup {
  /** Fills the values of the window's buckets. Windows ascend. @throws LostRows */
  fill(window: FrameWindow, values: Values): Promise<void>;
  /** After the last window. @throws LostRows */
  finish?(): void;
  /** The longest window, unless a bucket is longer: no row leaves before its window is read, and a read has little time for that. */
  readonly maxWindowMs?: number;
}

/** The dtype of a column: of its field, unless the aggregate has another. */
export const dtypeOf = ({ field, aggregate }: FrameColumn): Field['dtype'] =>
  aggregate === 'count' ? 'int64' : aggregate === 'sum' || aggregate === 'vwap' ? sumDtype(field) : field.dtype;

/** The unit of a column; a count has none. */
export const unitOf = ({ field, aggregate }: FrameColumn): string | undefined =>
  aggregate === 'count' ? undefined : field.unit;

const sumDtype = ({ dtype }: Field): Field['dtype'] => (dtype === 'int64' ? 'int64' : 'float64');

/** Holds back the making of rows, and the database with it, while the receiver is behind. */
export class FrameFlow implements Flow {
  #connection: PgConnection | undefined;
  #behind: PromiseWithResolvers<void> | undefined;
  readonly #signal: AbortSignal;
  readonly #onAbort = () => this.end();

  /** @param signal aborted when the receiver goes away: nothing waits for it any more. */
  constructor(connection: PgConnection, signal: AbortSignal) {
    this.#connection = connection;
    this.#signal = signal;
    signal.addEventListener('abort', this.#onAbort);
  }

  pause(): void {
    this.#behind ??= Promise.withResolvers();
    this.#connection?.pause();
  }

  resume(): void {
    this.#connection?.resume();
    this.#behind?.resolve();
    this.#behind = undefined;
  }

  /** Resolves when the receiver takes rows; undefined when it does. */
  get behind(): Promise<void> | undefined {
    return this.#behind?.promise;
  }

  get hasEnded(): boolean {
    return this.#connection === undefined;
  }

  end(): void {
    this.#signal.removeEventListener('abort', this.#onAbort);
    this.resume();
    this.#connection = undefined;
  }
}

const ROWS_AT_ONCE = 1024;
const NULL = -1;

/**
 * Renders rows, and their digest: the sha256 of all cells in order, each as four bytes of length (-1 for null) and the value,
 * big-endian: a double, an integer of eight bytes (times in ms since 1970), or a flag of one byte.
 */
export class FrameRows {
  readonly #writer: RowWriter;
  readonly #flow: FrameFlow;
  readonly #times: number;
  readonly #isFlag: readonly boolean[];
  readonly #bytes: Buffer;
  readonly #view: DataView;
  readonly #digest = createHash('sha256');

  constructor({ columns, asOf }: FrameRequest, writer: RowWriter, flow: FrameFlow) {
    this.#writer = writer;
    this.#flow = flow;
    this.#times = asOf === 'row' ? 2 : 1;
    this.#isFlag = columns.map((column) => dtypeOf(column) === 'bool01');
    this.#bytes = Buffer.alloc(ROWS_AT_ONCE * (this.#times + columns.length) * (4 + VALUE_BYTES));
    this.#view = new DataView(this.#bytes.buffer, this.#bytes.byteOffset, this.#bytes.byteLength);
  }

  async write(window: FrameWindow, values: Values): Promise<void> {
    for (let first = 0; first < values.buckets; first += ROWS_AT_ONCE) {
      // Other requests get their turn between.
      await (this.#flow.behind ?? new Promise<void>((resolve) => setImmediate(resolve)));
      if (this.#flow.hasEnded) return;
      const end = Math.min(values.buckets, first + ROWS_AT_ONCE);
      let at = 0;
      for (let bucket = first; bucket < end; bucket++) {
        const next = this.#row(at, bucket, window, values);
        this.#writer.row(this.#view, this.#bytes, at, next - at);
        at = next;
      }
      this.#digest.update(this.#bytes.subarray(0, at));
    }
  }

  /** Ends `write` before its next rows. */
  stop(): void {
    this.#flow.end();
  }

  digest(): string {
    return this.#digest.digest('hex');
  }

  #row(start: number, bucket: number, window: FrameWindow, values: Values): number {
    const view = this.#view;
    let at = this.#time(start, window.from + bucket * window.gridMs);
    if (this.#times > 1) at = this.#time(at, window.endOf(bucket));
    for (let column = 0; column < this.#isFlag.length; column++) {
      const from = values.at(bucket, column);
      if (from < 0) {
        view.setInt32(at, NULL);
        at += 4;
        continue;
      }
      const isFlag = this.#isFlag[column];
      const size = isFlag ? 1 : VALUE_BYTES;
      view.setInt32(at, size);
      if (isFlag) view.setUint8(at + 4, values.view.getUint8(from + VALUE_BYTES - 1));
      else {
        view.setInt32(at + 4, values.view.getInt32(from));
        view.setInt32(at + 8, values.view.getInt32(from + 4));
      }
      at += 4 + size;
    }
    return at;
  }

  #time(at: number, ms: number): number {
    this.#view.setInt32(at, VALUE_BYTES);
    this.#view.setInt32(at + 4, Math.floor(ms / 2 ** 32));
    this.#view.setUint32(at + 8, ms >>> 0);
    return at + 4 + VALUE_BYTES;
  }
}
