/**
 * Writes a zip with one deflated member as a stream: the counterpart of `zip-reader.ts`, for synthetic documents in the
 * vendors' layout. The same input gives the same bytes.
 */
import { mkdir, open, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { crc32, createDeflateRaw } from 'node:zlib';
import { TidemarkError } from '../../../shared/errors.ts';
import { sha256OfFile } from './locations.ts';

export interface ZipContent {
  readonly path: string;
  readonly memberName: string;
  readonly chunks: Iterable<Buffer> | AsyncIterable<Buffer>;
  /** Time stamp of the member; a fixed one makes the archive's bytes reproducible. */
  readonly modified: Date;
  /** zlib level. Default 4: at most a fifth larger than level 6, in half the time. */
  readonly level?: number;
}

export interface WrittenZip {
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
  readonly unpackedBytes: number;
}

/** Without the zip64 extension sizes are 32-bit; synthetic documents are never larger. */
const MAX_ZIP_BYTES = 0xffff_fffe;
const LOCAL_HEADER = 0x0403_4b50;
const CENTRAL_HEADER = 0x0201_4b50;
const END_OF_DIRECTORY = 0x0605_4b50;
/** Unix, format 2.0; a plain file that all may read. */
const VERSION_MADE_BY = (3 << 8) | 20;
const FILE_MODE = 0o100_644;

/** Writes to a partial file and renames it at the end, so that a reader never sees an incomplete archive. */
export async function writeZip(content: ZipContent): Promise<WrittenZip> {
  const { path, memberName, chunks, modified, level = 4 } = content;
  await mkdir(dirname(path), { recursive: true });
  const partial = `${path}.${process.pid}.partial`;
  const name = Buffer.from(memberName, 'utf8');
  const entry: Entry = { name, modified, crc: 0, compressedBytes: 0, unpackedBytes: 0 };
  const headerBytes = localHeader(entry).length;
  try {
    await using file = await open(partial, 'w');
    const deflate = createDeflateRaw({ level, memLevel: 9, chunkSize: 256 * 1024 });
    let at = headerBytes;
    await pipeline(Readable.from(measured(chunks, entry)), deflate, async (packed: AsyncIterable<Buffer>) => {
      for await (const chunk of packed) {
        await file.write(chunk, 0, chunk.length, at);
        at += chunk.length;
      }
    });
    entry.compressedBytes = at - headerBytes;
    if (Math.max(entry.unpackedBytes, at) > MAX_ZIP_BYTES - 1024)
      throw new TidemarkError('SOURCE_TOO_LARGE', `${memberName} is too large for a zip without zip64 extension`);
    const directory = centralDirectory(entry, at);
    await file.write(directory, 0, directory.length, at);
    await file.write(localHeader(entry), 0, headerBytes, 0);
    at += directory.length;
    const { sha256 } = await sha256OfFile(partial);
    await rename(partial, path);
    return { path, bytes: at, sha256, unpackedBytes: entry.unpackedBytes };
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
}

interface Entry {
  readonly name: Buffer;
  readonly modified: Date;
  crc: number;
  compressedBytes: number;
  unpackedBytes: number;
}

async function* measured(chunks: Iterable<Buffer> | AsyncIterable<Buffer>, entry: Entry): AsyncGenerator<Buffer> {
  for await (const chunk of chunks) {
    entry.crc = crc32(chunk, entry.crc);
    entry.unpackedBytes += chunk.length;
    yield chunk;
  }
}

/** Written twice: first as a placeholder, at the end with sizes and checksum, as the vendor's archives have them. */
function localHeader(entry: Entry): Buffer {
  const header = Buffer.alloc(30 + entry.name.length);
  header.writeUInt32LE(LOCAL_HEADER, 0);
  writeCommon(header, 4, entry);
  entry.name.copy(header, 30);
  return header;
}

function centralDirectory(entry: Entry, at: number): Buffer {
  const size = 46 + entry.name.length;
  const directory = Buffer.alloc(size + 22);
  directory.writeUInt32LE(CENTRAL_HEADER, 0);
  directory.writeUInt16LE(VERSION_MADE_BY, 4);
  writeCommon(directory, 6, entry);
  directory.writeUInt32LE((FILE_MODE << 16) >>> 0, 38);
  entry.name.copy(directory, 46);
  directory.writeUInt32LE(END_OF_DIRECTORY, size);
  directory.writeUInt16LE(1, size + 8);
  directory.writeUInt16LE(1, size + 10);
  directory.writeUInt32LE(size, size + 12);
  directory.writeUInt32LE(at, size + 16);
  return directory;
}

/** Writes the fields that both headers share: version needed, flags, method, time, checksum, sizes, name length. */
function writeCommon(header: Buffer, at: number, { name, modified, crc, compressedBytes, unpackedBytes }: Entry): void {
  header.writeUInt16LE(20, at);
  header.writeUInt16LE(8, at + 4);
  header.writeUInt16LE((modified.getUTCHours() << 11) | (modified.getUTCMinutes() << 5), at + 6);
  const yearsSince1980 = modified.getUTCFullYear() - 1980;
  header.writeUInt16LE((yearsSince1980 << 9) | ((modified.getUTCMonth() + 1) << 5) | modified.getUTCDate(), at + 8);
  header.writeUInt32LE(crc, at + 10);
  header.writeUInt32LE(compressedBytes, at + 14);
  header.writeUInt32LE(unpackedBytes, at + 18);
  header.writeUInt16LE(name.length, at + 22);
}
