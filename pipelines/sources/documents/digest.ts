/** sha256 of a file, streamed. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import type { FileHandle } from 'node:fs/promises';

/** Large reads: with the default of 64 KiB the event loop costs more than the hash. */
const READ_BYTES = 1024 * 1024;

export interface DigestOptions {
  readonly signal?: AbortSignal;
  readonly onProgress?: (bytes: number) => void;
}

/** Of the file at a path, or of one that is open, which is read from its start and stays open. */
export async function sha256OfFile(
  source: string | FileHandle,
  options: DigestOptions = {},
): Promise<{ sha256: string; bytes: number }> {
  const hash = createHash('sha256');
  let bytes = 0;
  const reading = { highWaterMark: READ_BYTES };
  const stream =
    typeof source === 'string'
      ? createReadStream(source, reading)
      : source.createReadStream({ ...reading, start: 0, autoClose: false });
  for await (const chunk of stream) {
    // Not given to the stream: that of an open file ends the process when the signal is aborted before it is made.
    options.signal?.throwIfAborted();
    hash.update(chunk as Buffer);
    bytes += (chunk as Buffer).length;
    options.onProgress?.(bytes);
  }
  return { sha256: hash.digest('hex'), bytes };
}
