/**
 * Bodies of encoding `records`: events of any bytes, one after the other.
 *
 *     4 bytes  little-endian length of payload_raw
 *     4 bytes  little-endian length of the side facts
 *     2 bytes  little-endian length of the offset
 *     offset (UTF-8), payload_raw, side facts
 *
 * Side facts are what the row needs and payload_raw does not hold: a transaction's bytes say neither their block nor
 * what the outputs they spend are worth. `payload_sha256_raw` is of payload_raw alone, `events_sha256` of all bytes.
 *
 * A record larger than a frame travels as parts 1..n, each the next piece of its bytes in a frame of its own.
 */
import { TidemarkError } from '../errors.ts';
import type { FrameHeader } from './codec.ts';

const PREFIX_BYTES = 10;
const MAX_OFFSET_BYTES = 1024;

/** Largest record, with its offset and side facts: what a reader of parts holds in memory at most. */
const MAX_RECORD_BYTES = 16 * 1024 * 1024;

/** Largest body of a frame of records: it fits a message even where zstd finds nothing to save. */
export const MAX_RECORD_FRAME_BYTES = 960 * 1024;

export interface EventRecord {
  readonly offset: string;
  readonly payload: Buffer;
  readonly side: Buffer;
}

const NOTHING = Buffer.alloc(0);

/** Bytes that a record takes. @throws TidemarkError SOURCE_TOO_LARGE naming the offset. */
export function recordBytes(offset: string, payload: Uint8Array, side: Uint8Array = NOTHING): number {
  const name = Buffer.byteLength(offset);
  const bytes = PREFIX_BYTES + name + payload.length + side.length;
  if (name === 0 || name > MAX_OFFSET_BYTES || bytes > MAX_RECORD_BYTES) {
    throw new TidemarkError('SOURCE_TOO_LARGE', `The event ${offset.slice(0, 100)} takes ${bytes} bytes in the log`, {
      details: { offset: offset.slice(0, 100), bytes, max_bytes: MAX_RECORD_BYTES },
    });
  }
  return bytes;
}

/** Writes a record at `at`, where `recordBytes` are free. */
export function writeRecord(
  target: Buffer,
  at: number,
  offset: string,
  payload: Uint8Array,
  side: Uint8Array = NOTHING,
): void {
  const name = target.write(offset, at + PREFIX_BYTES);
  target.writeUInt32LE(payload.length, at);
  target.writeUInt32LE(side.length, at + 4);
  target.writeUInt16LE(name, at + 8);
  target.set(payload, at + PREFIX_BYTES + name);
  target.set(side, at + PREFIX_BYTES + name + payload.length);
}

/** @throws TidemarkError SOURCE_TOO_LARGE naming the offset. */
export function encodeRecord(offset: string, payload: Uint8Array, side: Uint8Array = NOTHING): Buffer {
  const record = Buffer.allocUnsafe(recordBytes(offset, payload, side));
  writeRecord(record, 0, offset, payload, side);
  return record;
}

/**
 * The records of a whole body; their bytes are views of it.
 * @throws TidemarkError LOG_FRAME_CORRUPT where lengths do not come out even.
 */
export function* recordsOf(raw: Buffer): Generator<EventRecord> {
  for (let at = 0; at < raw.length; ) {
    if (raw.length - at < PREFIX_BYTES) throw uneven(at);
    const payloadAt = at + PREFIX_BYTES + raw.readUInt16LE(at + 8);
    const sideAt = payloadAt + raw.readUInt32LE(at);
    const end = sideAt + raw.readUInt32LE(at + 4);
    if (end > raw.length) throw uneven(at);
    yield {
      offset: raw.toString('utf8', at + PREFIX_BYTES, payloadAt),
      payload: raw.subarray(payloadAt, sideAt),
      side: raw.subarray(sideAt, end),
    };
    at = end;
  }
}

const uneven = (at: number) =>
  new TidemarkError('LOG_FRAME_CORRUPT', `A frame's records do not come out even at byte ${at}`);

/** The record of an offset, and its number within the body. */
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

/** Puts parts together again, in the order of their frames. */
export class RecordAssembler {
  #parts: Buffer[] = [];
  #bytes = 0;
  #count = 0;

  /**
   * @returns the body to read events from; undefined while parts are missing.
   * @throws TidemarkError LOG_FRAME_CORRUPT when a part is out of its order, or they are more than a record may be.
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

  /** Nothing may be left over. @throws TidemarkError LOG_FRAME_CORRUPT */
  end(): void {
    if (this.#parts.length > 0) throw broken(`an event ends after ${this.#parts.length} of ${this.#count} parts`);
  }
}

const broken = (why: string) => new TidemarkError('LOG_FRAME_CORRUPT', `Parts of an event do not fit: ${why}`);
