/**
 * The frame codec: one JetStream message of the log.
 *
 *     4 bytes  magic "TMK1"
 *     4 bytes  little-endian length of the header
 *     4 bytes  little-endian CRC-32 of all that follows
 *     n bytes  header, JSON (UTF-8)
 *     rest     body, one zstd frame (level 1)
 *
 * The CRC covers what the body's sha256 does not: the header, bits that zstd ignores and bytes behind its frame. It
 * runs at 7 GB/s, so it is checked wherever a header is read.
 *
 * A frame's body is a contiguous run of a partition's events: each its `payload_raw` followed by one LF (encoding
 * `lines`: payloads hold no LF), or records of any bytes (shared/frame/records.ts). A manifest's body is the manifest as JSON. zstd-1 of trade rows is a quarter of the
 * bytes at 400 MB/s; the stream itself is stored uncompressed.
 */
import { createHash } from 'node:crypto';
import { promisify } from 'node:util';
import { constants, crc32, zstdCompress, zstdDecompress } from 'node:zlib';
import { assert, TidemarkError } from '../errors.ts';

const MAGIC = 0x314b4d54; // "TMK1", little-endian
const CRC_AT = 8;
const PREFIX_BYTES = 12;

/** nats-server's default limit is 1 MiB with headers; the rest is room for the subject and protocol headers. */
export const MAX_MESSAGE_BYTES = 1024 * 1024 - 8 * 1024;
export const MAX_HEADER_BYTES = 8 * 1024;
/** A body never unpacks to more: bound on a reader's memory, whatever the bytes claim. */
export const MAX_RAW_BYTES = 4 * 1024 * 1024;

const ZSTD_OPTIONS = { params: { [constants.ZSTD_c_compressionLevel]: 1 } };
/** The least chunk size zlib takes. */
const MIN_CHUNK_BYTES = 64;
const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

interface CommonHeader {
  readonly version: 1;
  readonly dataset: string;
  readonly partition: string;
  readonly revision: number;
  readonly attempt: number;
  /** 0-based number of the frame within its attempt; the manifest has the number after the last frame. */
  readonly frame: number;
  readonly raw_bytes: number;
  readonly raw_sha256: string;
  readonly document_sha256: string;
  /** Of a sample; absent otherwise. */
  readonly synthetic?: true;
}

export interface FrameHeader extends CommonHeader {
  readonly kind: 'frame';
  readonly encoding: 'lines' | 'records';
  /** Events that end in this frame. */
  readonly rows: number;
  readonly first_offset: string;
  readonly last_offset: string;
  readonly first_ms: number;
  readonly last_ms: number;
  /** The body is this piece, counted from 1, of one record in so many pieces. */
  readonly part?: number;
  readonly parts?: number;
}

export interface ManifestHeader extends CommonHeader {
  readonly kind: 'manifest';
}

/**
 * The source no longer stands by an attempt that was proved; the body is a `WithheldMark` as JSON. It is of no attempt's
 * frames, and has no number among them.
 */
export interface WithheldHeader extends CommonHeader {
  readonly kind: 'withheld';
}

export interface WithheldMark {
  readonly reason: string;
}

export type Header = FrameHeader | ManifestHeader | WithheldHeader;

export interface Message<H extends Header = Header> {
  readonly header: H;
  /** Uncompressed body, verified against `raw_sha256`. */
  readonly raw: Buffer;
}

const KINDS: ReadonlySet<string> = new Set(['frame', 'manifest', 'withheld'] satisfies Header['kind'][]);

export const sha256Hex = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');

/** Packs a message; `raw_bytes` and `raw_sha256` are filled in here. */
export async function encodeMessage<H extends Header>(
  header: Omit<H, 'raw_bytes' | 'raw_sha256' | 'version'>,
  raw: Uint8Array,
): Promise<Buffer> {
  assert(raw.byteLength > 0 && raw.byteLength <= MAX_RAW_BYTES, `a body of ${raw.byteLength} bytes is not framed`);
  const full = { version: 1, ...header, raw_bytes: raw.byteLength, raw_sha256: sha256Hex(raw) };
  const head = Buffer.from(JSON.stringify(full));
  assert(head.length <= MAX_HEADER_BYTES, `a header of ${head.length} bytes is not framed`);
  // One output piece: the default of 16 KiB means a trip to the thread pool and a copy for each.
  const body = await compress(raw, { ...ZSTD_OPTIONS, chunkSize: Math.max(MIN_CHUNK_BYTES, raw.byteLength >> 1) });
  const message = Buffer.allocUnsafe(PREFIX_BYTES + head.length + body.length);
  message.writeUInt32LE(MAGIC, 0);
  message.writeUInt32LE(head.length, 4);
  head.copy(message, PREFIX_BYTES);
  body.copy(message, PREFIX_BYTES + head.length);
  message.writeUInt32LE(crc32(message.subarray(PREFIX_BYTES)), CRC_AT);
  assert(message.length <= MAX_MESSAGE_BYTES, `a message of ${message.length} bytes does not fit the log`);
  return message;
}

/**
 * The header alone; the body is not unpacked.
 * @throws TidemarkError LOG_FRAME_CORRUPT naming the place.
 */
export function decodeHeader(message: Uint8Array, place: string): Header {
  const bytes = Buffer.from(message.buffer, message.byteOffset, message.byteLength);
  if (bytes.length < PREFIX_BYTES || bytes.readUInt32LE(0) !== MAGIC) throw corrupt(place, 'it does not start as one');
  const length = bytes.readUInt32LE(4);
  if (length > MAX_HEADER_BYTES || PREFIX_BYTES + length >= bytes.length) throw corrupt(place, 'its header is cut off');
  if (bytes.readUInt32LE(CRC_AT) !== crc32(bytes.subarray(PREFIX_BYTES)))
    throw corrupt(place, 'its CRC does not match');
  let header: Header;
  try {
    header = JSON.parse(bytes.toString('utf8', PREFIX_BYTES, PREFIX_BYTES + length));
  } catch (cause) {
    throw corrupt(place, 'its header is not JSON', cause);
  }
  if (header?.version !== 1 || !KINDS.has(header.kind)) {
    throw corrupt(place, `it is of version ${header?.version}, kind ${header?.kind}`);
  }
  if (!Number.isInteger(header.raw_bytes) || header.raw_bytes < 1 || header.raw_bytes > MAX_RAW_BYTES) {
    throw corrupt(place, `it claims ${header.raw_bytes} bytes`);
  }
  if (header.kind === 'frame' && (header.part ?? header.parts) !== undefined) {
    const isCount = (value: unknown) => Number.isInteger(value) && (value as number) >= 1;
    if (!isCount(header.part) || !isCount(header.parts)) throw corrupt(place, 'its part has no number');
  }
  return header;
}

/**
 * Header and verified body.
 * @throws TidemarkError LOG_FRAME_CORRUPT when a length or digest does not match.
 */
export async function decodeMessage(message: Uint8Array, place: string): Promise<Message> {
  const header = decodeHeader(message, place);
  return { header, raw: await decodeBody(message, header, place) };
}

export async function decodeBody(message: Uint8Array, header: Header, place: string): Promise<Buffer> {
  const length = Buffer.from(message.buffer, message.byteOffset, 8).readUInt32LE(4);
  let raw: Buffer;
  try {
    raw = await decompress(message.subarray(PREFIX_BYTES + length), {
      maxOutputLength: header.raw_bytes,
      chunkSize: Math.max(MIN_CHUNK_BYTES, header.raw_bytes),
    });
  } catch (cause) {
    throw corrupt(place, 'its body does not unpack', cause);
  }
  if (raw.length !== header.raw_bytes) throw corrupt(place, `it holds ${raw.length} bytes of ${header.raw_bytes}`);
  if (sha256Hex(raw) !== header.raw_sha256) throw corrupt(place, 'its bytes do not match their digest');
  return raw;
}

function corrupt(place: string, why: string, cause?: unknown): TidemarkError {
  return new TidemarkError('LOG_FRAME_CORRUPT', `The message at ${place} is not a frame of this log: ${why}`, {
    cause,
    details: { place },
  });
}
