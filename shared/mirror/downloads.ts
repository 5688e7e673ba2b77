/** Downloads into `_partial`: resumed where they broke off, also by a later process, and hashed while they arrive. */
import { createHash, type Hash } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, open, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isDigest, MirrorFault, type NamedBytes } from './lake-manifest.ts';
import { BrokenAnswer, type OpenedFile, pauseAfter, type Source, type SourceOptions } from './source.ts';

/** An attempt that brings as much does not count as one that failed: a large file may break off any number of times. */
const PROGRESS_BYTES = 64 * 1024;
const CHUNK_BYTES = 1024 * 1024;

export interface DownloadsOptions extends Pick<SourceOptions, 'attempts' | 'pauseMs' | 'signal'> {
  readonly source: Source;
  /** The folder of partial files. */
  readonly partial: string;
  readonly onBytes: (bytes: number) => void;
}

export class Downloads {
  readonly #options: DownloadsOptions;

  constructor(options: DownloadsOptions) {
    this.#options = options;
  }

  /** A small file as a whole. @returns undefined if it is the one of `ifNoneMatch`. @throws MirrorFault */
  async document(
    path: string,
    limit: number,
    ifNoneMatch?: string,
  ): Promise<{ readonly bytes: Buffer; readonly etag: string | undefined } | undefined> {
    for (let failures = 0; ; ) {
      try {
        const opened = await this.#options.source.open(path, { ifNoneMatch });
        if (!opened) return undefined;
        const chunks: Uint8Array[] = [];
        let size = 0;
        for await (const chunk of opened.body) {
          size += chunk.length;
          if (size > limit) throw new MirrorFault('manifest', `${path} has more than ${limit} bytes`);
          chunks.push(chunk);
        }
        if (opened.total !== undefined && size < opened.total) {
          throw new BrokenAnswer(`The answer for ${path} ended after ${size} of ${opened.total} bytes`);
        }
        this.#options.onBytes(size);
        return { bytes: Buffer.concat(chunks), etag: opened.etag };
      } catch (error) {
        await this.#pauseOrThrow(error, ++failures, path);
      }
    }
  }

  /**
   * Downloads a file whose digest is known. Bytes with another digest are discarded; the file is downloaded once more, since what an
   * earlier attempt kept may be of another file. @returns the path of the partial file, synced. @throws MirrorFault
   */
  async file(wanted: NamedBytes): Promise<string> {
    // Of two files with the same bytes, each has its own: they are downloaded at the same time.
    const place = createHash('sha256').update(wanted.path).digest('hex').slice(0, 8);
    const partial = join(this.#options.partial, `${wanted.sha256}.${place}`);
    for (let isSecond = false; ; isSecond = true) {
      const found = await this.#fill(partial, wanted);
      if (found === wanted.sha256) {
        await rm(tagOf(partial), { force: true });
        return partial;
      }
      await rm(partial, { force: true });
      await rm(tagOf(partial), { force: true });
      if (isSecond) {
        const { path, bytes, sha256 } = wanted;
        const what = isDigest(found) ? `the sha256 ${found}` : found;
        throw new MirrorFault('altered', `${path} has ${what}; its manifest says ${bytes} bytes, sha256 ${sha256}`);
      }
    }
  }

  /** @returns the digest of the partial file once it has all bytes, or else what the source has instead */
  async #fill(partial: string, { path, bytes }: NamedBytes): Promise<string> {
    const file = await open(partial, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW, 0o644);
    try {
      const part = await PartialFile.read(file, partial, bytes, this.#options.signal);
      for (let failures = 0; part.size < bytes; ) {
        const before = part.size;
        try {
          const found = await this.#continue(part, path, bytes);
          if (found !== undefined) return found;
        } catch (error) {
          if (error instanceof MirrorFault && error.kind === 'altered') return 'fewer bytes';
          failures = part.size - before >= PROGRESS_BYTES ? 1 : failures + 1;
          await this.#pauseOrThrow(error, failures, path);
        }
      }
      await file.sync();
      return part.digest();
    } finally {
      await file.close();
    }
  }

  /** Asks for the rest of a file. @returns what the source has, if it cannot be the file */
  async #continue(part: PartialFile, path: string, bytes: number): Promise<string | undefined> {
    const { source, onBytes } = this.#options;
    const opened = (await source.open(path, { from: part.size, ifRange: part.tag }))!;
    const { total, body } = opened;
    if (total !== undefined && total !== bytes) {
      await leave(body);
      return `${total} bytes`;
    }
    await part.begin(opened);
    for await (const chunk of body) {
      if (part.size + chunk.length > bytes) return `more than ${bytes} bytes`;
      await part.append(chunk);
      onBytes(chunk.length);
    }
    if (part.size < bytes) throw new BrokenAnswer(`The answer for ${path} ended after ${part.size} of ${bytes} bytes`);
    return undefined;
  }

  async #pauseOrThrow(error: unknown, failures: number, path: string): Promise<void> {
    this.#options.signal?.throwIfAborted();
    if (!(error instanceof BrokenAnswer)) throw error;
    if (failures >= this.#options.attempts) throw new MirrorFault('unreachable', `${path}: ${error.message}`, error);
    await pauseAfter(failures, this.#options);
  }
}

async function leave(body: AsyncIterable<Uint8Array>): Promise<void> {
  // Leaving the loop ends the connection.
  for await (const _ of body) return;
}

/** The file that holds the tag of a partial one. */
const tagOf = (partial: string): string => `${partial}.etag`;

const READ_NO_LINK = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

class PartialFile {
  readonly #file: FileHandle;
  readonly #path: string;
  #hash: Hash = createHash('sha256');
  size = 0;
  /** The tag of the file whose beginning this is, if the source has strong tags. */
  tag: string | undefined;

  private constructor(file: FileHandle, path: string) {
    this.#file = file;
    this.#path = path;
  }

  /** What an earlier process kept, hashed again. */
  static async read(file: FileHandle, path: string, bytes: number, signal?: AbortSignal): Promise<PartialFile> {
    const part = new PartialFile(file, path);
    const { size } = await file.stat();
    if (size > bytes) await file.truncate(0);
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    for (let left = size > bytes ? 0 : size; left > 0; ) {
      signal?.throwIfAborted();
      const { bytesRead } = await file.read(chunk, 0, chunk.length, part.size);
      if (bytesRead === 0) break;
      part.#hash.update(chunk.subarray(0, bytesRead));
      part.size += bytesRead;
      left -= bytesRead;
    }
    if (part.size > 0)
      part.tag = await readFile(tagOf(path), { encoding: 'utf8', flag: READ_NO_LINK }).catch(() => undefined);
    return part;
  }

  /** Takes the answer's tag, and starts over where the answer does. */
  async begin({ start, etag }: OpenedFile): Promise<void> {
    if (start < this.size) {
      await this.#file.truncate(0);
      this.size = 0;
      this.#hash = createHash('sha256');
    }
    // A weak tag promises nothing about bytes.
    const tag = etag?.startsWith('"') ? etag : undefined;
    if (tag === this.tag) return;
    this.tag = tag;
    // Removed first: it may be a link, through which the tag would be written.
    await rm(tagOf(this.#path), { force: true });
    if (tag !== undefined) await writeFile(tagOf(this.#path), tag, { flag: 'wx' });
  }

  async append(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      const { bytesWritten } = await this.#file.write(bytes, at, bytes.length - at, this.size + at);
      at += bytesWritten;
    }
    this.#hash.update(bytes);
    this.size += bytes.length;
  }

  digest(): string {
    return this.#hash.digest('hex');
  }
}

/** Files that are downloaded at once. */
const PARALLEL = 4;

/** Works on several items at once. After an error it ends the others and throws the error. */
export async function inParallel<T>(
  items: Iterable<T>,
  stop: (error: unknown) => void,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const queue = [...items].values();
  let failed: { readonly error: unknown } | undefined;
  const worker = async () => {
    for (const item of queue) {
      if (failed) return;
      try {
        await work(item);
      } catch (error) {
        failed ??= { error };
        stop(failed.error);
      }
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, worker));
  if (failed) throw failed.error;
}
