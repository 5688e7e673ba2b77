/**
 * Bodies of encoding `records`: events of any bytes, one after the other.
 *
 *     4 bytes  little-endian length of payload_raw
 *     4 bytes  little-endian length of the auxiliary data
 *     2 bytes  little-endian length of the offset
 *     offset (UTF-8), payload_raw, auxiliary data
 *
 * The auxiliary data holds what the row needs and payload_raw lacks: the bytes of a transaction contain neither its block
 * nor the values of the outputs that it spends. `payload_sha256_raw` covers payload_raw alone, `events_sha256` all bytes.
 *
 * A record larger than a frame is split into parts 1..n; each part is the next piece of its bytes in a frame of its own.
 */
import { TidemarkError } from '../errors.ts';
import type { FrameHeader } from './codec.ts';

const PREFIX_BYTES = 10;
const MAX_OFFSET_BYTES = 1024;

/** Largest record, with its offset and auxiliary data: a reader of parts holds at most this much in memory. */
const MAX_RECORD_BYTES = 16 * 1024 * 1024;

/** Largest body of a frame of records: it fits into a message even where zstd saves nothing. */
export const MAX_RECORD_FRAME_BYTES = 960 * 1024;

export interface EventRecord {
  readonly offset: string;
  readonly payload: Buffer;
  readonly auxiliary: Buffer;
}

const NOTHING = Buffer.alloc(0);

/** The size of a record in bytes. @throws TidemarkError SOURCE_DOCUMENT_INVALID naming the offset. */
export function recordBytes(offset: string, payload: Uint8Array, auxiliary: Uint8Array = NOTHING): number {
  const offsetBytes = Buffer.byteLength(offset);
  const bytes = PREFIX_BYTES + offsetBytes + payload.length + auxiliary.length;
  if (offsetBytes === 0 || offsetBytes > MAX_OFFSET_BYTES || bytes > MAX_RECORD_BYTES) {
    throw new TidemarkError(
      'SOURCE_DOCUMENT_INVALID',
      `The event ${offset.slice(0, 100)} takes ${bytes} bytes in the log, which takes ${MAX_RECORD_BYTES}`,
      {
        details: { offset: offset.slice(0, 100), bytes, max_bytes: MAX_RECORD_BYTES },
      },
    );
  }
  return bytes;
}

/** Writes a record at the byte `at` of a buffer that has room for `recordBytes`. */
export function writeRecord(
  target: Buffer,
  at: number,
  offset: string,
  payload: Uint8Array,
  auxiliary: Uint8Array = NOTHING,
): void {
  const offsetBytes = target.write(offset, at + PREFIX_BYTES);
  target.writeUInt32LE(payload.length, at);
  target.writeUInt32LE(auxiliary.length, at + 4);
  target.writeUInt16LE(offsetBytes, at + 8);
  target.set(payload, at + PREFIX_BYTES + offsetBytes);
  target.set(auxiliary, at + PREFIX_BYTES + offsetBytes + payload.length);
}

/** @throws TidemarkError SOURCE_DOCUMENT_INVALID naming the offset. */
export function encodeRecord(offset: string, payload: Uint8Array, auxiliary: Uint8Array = NOTHING): Buffer {
  const record = Buffer.allocUnsafe(recordBytes(offset, payload, auxiliary));
  writeRecord(record, 0, offset, payload, auxiliary);
  return record;
}

/**
 * Reads the records of a whole body; their bytes are views of it.
 * @throws TidemarkError LOG_DAMAGED where a record runs past the end of the body.
 */
export function* recordsOf(raw: Buffer): Generator<EventRecord> {
  for (let at = 0; at < raw.length; ) {
    if (raw.length - at < PREFIX_BYTES) throw overrun(at);
    const payloadAt = at + PREFIX_BYTES + raw.readUInt16LE(at + 8);
    const auxiliaryAt = payloadAt + raw.readUInt32LE(at);
    const end = auxiliaryAt + raw.readUInt32LE(at + 4);
    if (end > raw.length) throw overrun(at);
    yield {
      offset: raw.toString('utf8', at + PREFIX_BYTES, payloadAt),
      payload: raw.subarray(payloadAt, auxiliaryAt),
      auxiliary: raw.subarray(auxiliaryAt, end),
    };
    at = end;
  }
}

const overrun = (at: number) =>
  new TidemarkError('LOG_DAMAGED', `The record at byte ${at} of a frame runs past the frame's end`);

/** Finds the record of an offset; `position` is its number within the body. */
export function findRecord(
  raw: Buffer,
  offset: string,
): { readonly position: number; readonly payload: Buffer } | undefined {
  let position = 0;
  for (const record of recordsOf(raw)) {
    if (record.offset === offset) return { position, payload: record.payload };
    position++;
  }
  return undefined;
}

/** Joins the parts of a record in the order of their frames. */
export class RecordAssembler {
  #parts: Buffer[] = [];
  #bytes = 0;
  #count = 0;

  /**
   * @returns the body to read events from; undefined while parts are missing.
   * @throws TidemarkError LOG_DAMAGED when a part is out of order, or the parts exceed the largest record.
   */
  take(header: Pick<FrameHeader, 'frame' | 'part' | 'parts'>, raw: Buffer): Buffer | undefined {
    const { part, parts } = header;
    if (part === undefined || parts === undefined) {
      this.end();
      return raw;
    }
    if (part !== this.#parts.length + 1 || part > parts || (part > 1 && parts !== this.#count)) {
      throw broken(`frame ${header.frame} holds part ${part} of ${parts}, after ${this.#parts.length} parts`);
    }
    this.#count = parts;
    this.#bytes += raw.length;
    if (this.#bytes > MAX_RECORD_BYTES) throw broken(`an event takes more than ${MAX_RECORD_BYTES} bytes`);
    this.#parts.push(raw);
    if (part < parts) return undefined;
    const whole = Buffer.concat(this.#parts, this.#bytes);
    this.#parts = [];
    this.#bytes = 0;
    return whole;
  }

  /** Checks that no part is left over. @throws TidemarkError LOG_DAMAGED */
  end(): void {
    if (this.#parts.length > 0) throw broken(`an event ends after ${this.#parts.length} of ${this.#count} parts`);
  }
}

const broken = (why: string) => new TidemarkError('LOG_DAMAGED', `The parts of an event do not fit together: ${why}`);
