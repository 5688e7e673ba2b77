/**
 * Writes a zip with one deflated member as a stream: the counterpart of `zip-reader.ts`, for synthetic documents in the
 * vendors' layout. The same input gives the same bytes.
 */
import { createWriteStream } from 'node:fs';
import { mkdir, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { ZipFile } from 'yazl';
import { sha256OfFile } from './locations.ts';

export interface ZipContent {
  readonly path: string;
  readonly memberName: string;
  readonly chunks: Iterable<Buffer> | AsyncIterable<Buffer>;
  /** Day (UTC) of the member's time stamp; a fixed one makes the archive's bytes reproducible. */
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

/** Writes to a partial file and renames it at the end, so that a reader never sees an incomplete archive. */
export async function writeZip(content: ZipContent): Promise<WrittenZip> {
  const { path, memberName, chunks, modified, level = 4 } = content;
  await mkdir(dirname(path), { recursive: true });
  const partial = `${path}.${process.pid}.partial`;
  let unpackedBytes = 0;
  async function* counted() {
    for await (const chunk of chunks) {
      unpackedBytes += chunk.length;
      yield chunk;
    }
  }
  const member = Readable.from(counted());
  const zip = new ZipFile();
  // The library does not hand on faults of what it reads.
  member.once('error', (error) => (zip.outputStream as Readable).destroy(error));
  zip.addReadStream(member, memberName, {
    mtime: asLocal(modified),
    mode: 0o100_644,
    compressionLevel: level,
    forceDosTimestamp: true,
  });
  zip.end();
  try {
    await pipeline(zip.outputStream, createWriteStream(partial));
    const { sha256, bytes } = await sha256OfFile(partial);
    await rename(partial, path);
    return { path, bytes, sha256, unpackedBytes };
  } catch (error) {
    member.destroy();
    await rm(partial, { force: true });
    throw error;
  }
}

/**
 * Times in a zip have no zone, and the library writes local ones. Noon of the UTC day is the same time stamp everywhere: no
 * zone changes its clock then.
 */
const asLocal = (date: Date) => new Date(date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate(), 12);
