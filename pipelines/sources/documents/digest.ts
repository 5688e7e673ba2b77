/** sha256 of a file, streamed. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';

/** Large reads: with the default of 64 KiB the event loop costs more than the hash. */
const READ_BYTES = 1024 * 1024;

export interface DigestOptions {
  readonly signal?: AbortSignal;
  readonly onProgress?: (bytes: number) => void;
}

export async function sha256OfFile(
  path: string,
  options: DigestOptions = {},
): Promise<{ sha256: string; bytes: number }> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of createReadStream(path, { highWaterMark: READ_BYTES, signal: options.signal })) {
    hash.update(chunk as Buffer);
    bytes += (chunk as Buffer).length;
    options.onProgress?.(bytes);
  }
  return { sha256: hash.digest('hex'), bytes };
}
