/**
 * Turns events of the encoding `records` into storage rows, for every dataset with fewer than millions of rows a day.
 */
import { dayKey, parseDay } from '../../shared/dates.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import { type EventRecord, recordsOf } from '../../shared/frame/records.ts';
import type { StoredValue } from '../../shared/proof/row-facts.ts';
import type { DatasetDefinition, NativeShape, PgType } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import { POSTGRES_EPOCH_US, type Projection, REUSE_FROM_BYTES, type RowProjector } from './binary-copy.ts';

/**
 * The values of one event's row in the order of the table's columns; texts given as bytes are valid until the next
 * call.
 * @throws TidemarkError LOG_DAMAGED
 */
export type RecordRow = (record: EventRecord) => readonly StoredValue[];

export class RecordRows implements RowProjector {
  readonly #columns: NativeShape['columns'];
  readonly #toRow: RecordRow;
  /** Buffers that are reused in turn, as in binary-copy.ts. */
  readonly #kept: Buffer[] = [];
  #next = 0;

  constructor(native: NativeShape, toRow: RecordRow) {
    this.#columns = native.columns;
    this.#toRow = toRow;
  }

  rows(raw: Buffer, rows: number): { copy: Buffer; readonly rows: number } {
    const slot = this.#next++ % 3;
    const writer = new RowWriter(this.#columns, this.#kept[slot]);
    let found = 0;
    for (const record of recordsOf(raw)) {
      found++;
      writer.row(this.#toRow(record));
    }
    if (found !== rows) {
      throw new TidemarkError('LOG_DAMAGED', `A frame holds ${found} events, its header says ${rows}`);
    }
    const copy = writer.bytes();
    if (copy.length < REUSE_FROM_BYTES) return { copy: Buffer.from(copy), rows };
    this.#kept[slot] = writer.room;
    return { copy, rows };
  }
}

/** Writes rows of any column types in PostgreSQL's binary COPY format. */
class RowWriter {
  readonly #columns: NativeShape['columns'];
  #bytes: Buffer;
  #at = 0;

  /** Writes into `room`, or into a larger buffer where that is too small. */
  constructor(columns: NativeShape['columns'], room: Buffer = Buffer.allocUnsafe(64 * 1024)) {
    this.#columns = columns;
    this.#bytes = room;
  }

  get room(): Buffer {
    return this.#bytes;
  }

  row(values: readonly StoredValue[]): void {
    if (values.length !== this.#columns.length)
      assert(false, `a row has ${this.#columns.length} values, not ${values.length}`);
    this.#reserve(2);
    this.#at = this.#bytes.writeInt16BE(values.length, this.#at);
    for (let index = 0; index < values.length; index++) this.#value(this.#columns[index].pg, values[index]);
  }

  /** The rows that were written. */
  bytes(): Buffer {
    return this.#bytes.subarray(0, this.#at);
  }

  #value(pg: PgType, value: StoredValue): void {
    if (value === null) {
      this.#reserve(4);
      this.#at = this.#bytes.writeInt32BE(-1, this.#at);
      return;
    }
    if (value instanceof Uint8Array) {
      this.#reserve(4 + value.length);
      this.#at = this.#bytes.writeInt32BE(value.length, this.#at);
      this.#bytes.set(value, this.#at);
      this.#at += value.length;
      return;
    }
    if (pg === 'text') {
      // A UTF-16 unit takes at most three bytes of UTF-8.
      this.#reserve(4 + 3 * (value as string).length);
      const length = this.#bytes.write(value as string, this.#at + 4);
      this.#bytes.writeInt32BE(length, this.#at);
      this.#at += 4 + length;
      return;
    }
    const write = WRITERS[pg];
    if (!write) assert(false, `columns of the type ${pg} cannot be written`);
    this.#reserve(12);
    this.#bytes.writeInt32BE(write.bytes, this.#at);
    write.write(this.#bytes, this.#at + 4, value as number);
    this.#at += 4 + write.bytes;
  }

  #reserve(bytes: number): void {
    if (this.#at + bytes <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(this.#at + bytes, this.#bytes.length * 2));
    this.#bytes.copy(larger, 0, 0, this.#at);
    this.#bytes = larger;
  }
}

/** Writes an integer of up to 2^53. */
function int8(bytes: Buffer, at: number, value: number): void {
  bytes.writeInt32BE(Math.floor(value / 4294967296), at);
  bytes.writeUInt32BE(value >>> 0, at + 4);
}

const WRITERS: Partial<Record<PgType, { bytes: number; write: (bytes: Buffer, at: number, value: number) => void }>> = {
  int2: { bytes: 2, write: (bytes, at, value) => bytes.writeInt16BE(value, at) },
  int4: { bytes: 4, write: (bytes, at, value) => bytes.writeInt32BE(value, at) },
  int8: { bytes: 8, write: int8 },
  float8: { bytes: 8, write: (bytes, at, value) => bytes.writeDoubleBE(value, at) },
  bool: { bytes: 1, write: (bytes, at, value) => bytes.writeUInt8(value ? 1 : 0, at) },
  /** The value is in epoch ms. */
  timestamptz: { bytes: 8, write: (bytes, at, value) => int8(bytes, at, value * 1000 - POSTGRES_EPOCH_US) },
};

/** The values of the columns after the partition's key; undefined if the event belongs to another day. */
type OwnColumns = (payload: Payload, day: string) => readonly StoredValue[] | undefined;

type Payload = Readonly<Record<string, unknown>>;

const NUMBER = /^-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

/** Whether a text is a value of the kind. */
const TEXTS: Readonly<Record<string, (text: unknown) => boolean>> = {
  int: (text) => typeof text === 'string' && /^-?\d+$/.test(text) && Number.isSafeInteger(Number(text)),
  float: (text) => typeof text === 'string' && NUMBER.test(text) && Number.isFinite(Number(text)),
  string: (text) => typeof text === 'string',
  bool: (text) => text === 'true' || text === 'false',
  null: (text) => text === null,
};

/** The rows of metrics, for the ETF and macro datasets: a payload is a JSON object whose texts are stored unchanged. */
function metricRow(dataset: DatasetDefinition, key: string, own: OwnColumns): RecordRow {
  const { sourceId, span } = keyFacts(dataset, key);
  const day = dayKey(span?.from ?? 0);
  return ({ offset, payload: bytes }) => {
    const fault = (what: string, cause?: unknown) =>
      new TidemarkError('LOG_DAMAGED', `The event ${offset} of ${key} cannot be read: ${what}`, { cause });
    const payload = parse(bytes, fault);
    const text = (name: string): string => {
      const value = payload[name];
      if (typeof value !== 'string' || value === '') throw fault(`${name} is not text`);
      return value;
    };
    const object = (name: string): string => {
      const value = payload[name];
      if (typeof value !== 'object' || value === null) throw fault(`${name} is not an object`);
      return JSON.stringify(value);
    };
    const unit = payload.metric_unit;
    if (unit !== null && typeof unit !== 'string') throw fault('metric_unit is not text');
    const { metric_value_text: value } = payload;
    const kind = text('metric_value_kind');
    if (!Object.hasOwn(TEXTS, kind) || !TEXTS[kind](value)) throw fault(`its value is not of the kind ${kind}`);
    if (text('metric_id') !== offset) throw fault(`it belongs to ${text('metric_id')}`);
    if (text('source_id') !== sourceId) throw fault(`it belongs to ${text('source_id')}`);
    const observed = text('observed_at_utc');
    const atMs = parseDay(observed.slice(0, 10));
    if (atMs === undefined || new Date(atMs).toISOString() !== observed)
      throw fault('observed_at_utc is not a midnight');
    const owned = own(payload, day);
    if (owned === undefined) throw fault(`it does not belong to ${day}`);
    return [
      atMs,
      offset,
      sourceId,
      text('metric_name'),
      unit,
      kind,
      value as string | null,
      object('dimensions'),
      object('provenance'),
      key,
      ...owned,
    ];
  };
}

function parse(bytes: Buffer, fault: (what: string, cause?: unknown) => TidemarkError): Payload {
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString());
  } catch (cause) {
    throw fault('it is not JSON', cause);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw fault('it is not a JSON object');
  return value as Payload;
}

export function metricProjection(dataset: DatasetDefinition, own: OwnColumns): Projection {
  const { native, aligned } = dataset;
  const { seconds } = aligned;
  if (!seconds) throw new TypeError(`${dataset.key} declares no seconds`);
  return { createRows: ({ key }) => new RecordRows(native, metricRow(dataset, key, own)), seconds };
}
