/**
 * The frame codec. Each JetStream message of the log has this form:
 *
 *     4 bytes  magic "TMK1"
 *     4 bytes  little-endian length of the header
 *     4 bytes  little-endian CRC-32 of all that follows
 *     n bytes  header, JSON (UTF-8)
 *     rest     body, one zstd frame (level 1)
 *
 * The CRC covers what the body's sha256 does not: the header, bits that zstd ignores, and bytes after the zstd frame. It
 * runs at 7 GB/s, so every reader of a header checks it.
 *
 * The body of a frame is a contiguous run of a partition's events. With the encoding `lines` each event is its
 * `payload_raw` followed by one LF (payloads hold no LF); with `records` it may be any bytes (shared/frame/records.ts).
 * The body of a manifest is the manifest as JSON. zstd level 1 reduces trade rows to a quarter of their bytes at
 * 500 MB/s; the stream itself is stored uncompressed.
 */
import { createHash } from 'node:crypto';
import { promisify } from 'node:util';
import { constants, crc32, zstdCompress, zstdDecompress } from 'node:zlib';
import { assert, TidemarkError } from '../errors.ts';

const MAGIC = 0x314b4d54; // "TMK1", little-endian
const CRC_OFFSET = 8;
const PREFIX_BYTES = 12;

/** nats-server's default limit is 1 MiB; 8 KiB of it stay free for the subject and the protocol headers. */
export const MAX_MESSAGE_BYTES = 1024 * 1024 - 8 * 1024;
export const MAX_HEADER_BYTES = 8 * 1024;
/** Limit of an unpacked body; it bounds a reader's memory, whatever the header claims. */
export const MAX_RAW_BYTES = 4 * 1024 * 1024;

const { ZSTD_c_compressionLevel, ZSTD_c_hashLog, ZSTD_c_minMatch } = constants;
const ZSTD_PARAMS = { [ZSTD_c_compressionLevel]: 1 };
/**
 * Rows of a CSV repeat the rows just before them. A small table forgets all others, so matches are near and cost few bits:
 * rows of trades take 6 to 12 % fewer bytes than with level 1's own table (2^14 entries, matches of 7 bytes), and 12 to 24 %
 * less CPU. Blocks and other payloads without rows gain nothing.
 */
const ZSTD_ROW_PARAMS = { ...ZSTD_PARAMS, [ZSTD_c_hashLog]: 8, [ZSTD_c_minMatch]: 6 };
/** The smallest chunk size that zlib accepts. */
const MIN_CHUNK_BYTES = 64;
const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

interface CommonHeader {
  readonly version: 1;
  readonly dataset: string;
  readonly partition: string;
  readonly revision: number;
  readonly attempt: number;
  /** Number of the frame within its attempt, from 0; the manifest has the number after the last frame. */
  readonly frame: number;
  readonly raw_bytes: number;
  readonly raw_sha256: string;
  readonly document_sha256: string;
  /** Set for synthetic sample data, absent otherwise. */
  readonly synthetic?: true;
}

/** How lines are written, where that differs between the documents of a dataset. */
export interface WrittenAs {
  /** The name of the layout (`EventShape`); absent: the dataset's first. */
  readonly layout?: string;
  /** By column, what all rows of the document have and none of its lines states. */
  readonly constants?: Readonly<Record<string, string>>;
}

export interface FrameHeader extends CommonHeader, WrittenAs {
  readonly kind: 'frame';
  readonly encoding: 'lines' | 'records';
  /** Events that end in this frame. */
  readonly rows: number;
  readonly first_offset: string;
  readonly last_offset: string;
  readonly first_ms: number;
  readonly last_ms: number;
  /** Set where one record spans several frames: the body is part `part`, from 1, of `parts`. */
  readonly part?: number;
  readonly parts?: number;
}

export interface ManifestHeader extends CommonHeader {
  readonly kind: 'manifest';
}

/**
 * A retraction: the source withdraws a proved attempt. The body is a `Retraction` as JSON. The message is
 * not one of the attempt's frames, so `frame` does not count it.
 */
export interface RetractionHeader extends CommonHeader {
  readonly kind: 'withheld';
}

export interface Retraction {
  readonly reason: string;
}

export type Header = FrameHeader | ManifestHeader | RetractionHeader;

export interface Message<H extends Header = Header> {
  readonly header: H;
  /** Uncompressed body, verified against `raw_sha256`. */
  readonly raw: Buffer;
}

const KINDS: ReadonlySet<string> = new Set(['frame', 'manifest', 'withheld'] satisfies Header['kind'][]);

export const sha256Hex = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');

/** Packs a message and fills in `raw_bytes` and `raw_sha256`. */
export async function encodeMessage<H extends Header>(
  header: Omit<H, 'raw_bytes' | 'raw_sha256' | 'version'>,
  raw: Uint8Array,
): Promise<Buffer> {
  assert(
    raw.byteLength > 0 && raw.byteLength <= MAX_RAW_BYTES,
    `a frame's body has 1 to ${MAX_RAW_BYTES} bytes, not ${raw.byteLength}`,
  );
  const full = { version: 1, ...header, raw_bytes: raw.byteLength, raw_sha256: sha256Hex(raw) };
  const head = Buffer.from(JSON.stringify(full));
  assert(head.length <= MAX_HEADER_BYTES, `a frame's header has at most ${MAX_HEADER_BYTES} bytes, not ${head.length}`);
  const params = 'encoding' in header && header.encoding === 'lines' ? ZSTD_ROW_PARAMS : ZSTD_PARAMS;
  // One output chunk: with the default of 16 KiB, each chunk costs a trip to the thread pool and a copy.
  const body = await compress(raw, { params, chunkSize: Math.max(MIN_CHUNK_BYTES, raw.byteLength >> 1) });
  const message = Buffer.allocUnsafe(PREFIX_BYTES + head.length + body.length);
  message.writeUInt32LE(MAGIC, 0);
  message.writeUInt32LE(head.length, 4);
  head.copy(message, PREFIX_BYTES);
  body.copy(message, PREFIX_BYTES + head.length);
  message.writeUInt32LE(crc32(message.subarray(PREFIX_BYTES)), CRC_OFFSET);
  assert(
    message.length <= MAX_MESSAGE_BYTES,
    `a message has at most ${MAX_MESSAGE_BYTES} bytes, not ${message.length}`,
  );
  return message;
}

/**
 * Decodes the header without unpacking the body.
 * @param position names the message in faults: its stream and sequence.
 * @throws TidemarkError LOG_DAMAGED
 */
export function decodeHeader(message: Uint8Array, position: string): Header {
  const bytes = Buffer.from(message.buffer, message.byteOffset, message.byteLength);
  if (bytes.length < PREFIX_BYTES || bytes.readUInt32LE(0) !== MAGIC)
    throw corrupt(position, 'it does not start with the magic bytes');
  const length = bytes.readUInt32LE(4);
  if (length > MAX_HEADER_BYTES || PREFIX_BYTES + length >= bytes.length)
    throw corrupt(position, 'its header is cut off');
  if (bytes.readUInt32LE(CRC_OFFSET) !== crc32(bytes.subarray(PREFIX_BYTES)))
    throw corrupt(position, 'its CRC does not match');
  let header: Header;
  try {
    header = JSON.parse(bytes.toString('utf8', PREFIX_BYTES, PREFIX_BYTES + length));
  } catch (cause) {
    throw corrupt(position, 'its header is not JSON', cause);
  }
  if (header?.version !== 1 || !KINDS.has(header.kind)) {
    throw corrupt(position, `it has the version ${shown(header?.version)} and the kind ${shown(header?.kind)}`);
  }
  if (!Number.isInteger(header.raw_bytes) || header.raw_bytes < 1 || header.raw_bytes > MAX_RAW_BYTES) {
    throw corrupt(position, `it claims ${shown(header.raw_bytes)} bytes`);
  }
  if (header.kind === 'frame' && (header.part ?? header.parts) !== undefined) {
    const isCount = (value: unknown) => Number.isInteger(value) && (value as number) >= 1;
    if (!isCount(header.part) || !isCount(header.parts)) throw corrupt(position, 'its part has no number');
  }
  if (header.kind === 'frame' && !isByName(header.constants)) throw corrupt(position, 'its constants are not texts');
  return header;
}

/**
 * Decodes the header, and unpacks and verifies the body.
 * @throws TidemarkError LOG_DAMAGED when a length or digest does not match.
 */
export async function decodeMessage(message: Uint8Array, position: string): Promise<Message> {
  const header = decodeHeader(message, position);
  return { header, raw: await decodeBody(message, header, position) };
}

export async function decodeBody(message: Uint8Array, header: Header, position: string): Promise<Buffer> {
  const length = Buffer.from(message.buffer, message.byteOffset, 8).readUInt32LE(4);
  let raw: Buffer;
  try {
    raw = await decompress(message.subarray(PREFIX_BYTES + length), {
      maxOutputLength: header.raw_bytes,
      // One byte more than the body: zlib allocates another chunk as soon as one is full.
      chunkSize: Math.max(MIN_CHUNK_BYTES, header.raw_bytes + 1),
    });
  } catch (cause) {
    throw corrupt(position, 'its body does not unpack', cause);
  }
  if (raw.length !== header.raw_bytes) throw corrupt(position, `it holds ${raw.length} bytes of ${header.raw_bytes}`);
  if (sha256Hex(raw) !== header.raw_sha256) throw corrupt(position, 'its bytes do not match their digest');
  return raw;
}

const isByName = (value: unknown): boolean =>
  value === undefined ||
  (typeof value === 'object' && value !== null && Object.values(value).every((one) => typeof one === 'string'));

/** A value of a header for messages; a text without its quotes. */
const shown = (value: unknown): string =>
  (typeof value === 'object' ? JSON.stringify(value) : String(value)).slice(0, 80);

function corrupt(position: string, why: string, cause?: unknown): TidemarkError {
  return new TidemarkError('LOG_DAMAGED', `The message at ${position} is not a frame of this log: ${why}`, {
    cause,
    details: { place: position },
  });
}
