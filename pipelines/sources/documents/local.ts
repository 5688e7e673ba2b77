/** Documents of a `file://` base: read where they are, never copied and never removed. */
import type { BigIntStats } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { type ErrorDetails, TidemarkError } from '../../../shared/errors.ts';
import { sha256OfFile } from './digest.ts';
import { documentName, localPath } from './urls.ts';

export interface LocalDocument {
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
  /** Throws SOURCE_CHECKSUM_MISMATCH when the file is no longer the one whose digest was taken. */
  assertUnchanged(): Promise<void>;
}

export interface LocalOptions {
  readonly url: URL;
  readonly maxBytes: number;
  readonly limitName: string;
  readonly signal?: AbortSignal;
  readonly onProgress?: (bytes: number, total: number | undefined) => void;
}

export async function localDocument(options: LocalOptions): Promise<LocalDocument> {
  const { url, signal, onProgress } = options;
  const path = localPath(url);
  const before = await checkedStat(path, options);
  const total = Number(before.size);
  const { sha256, bytes } = await sha256OfFile(path, {
    signal,
    onProgress: onProgress && ((read) => onProgress(read, total)),
  }).catch((cause) => {
    signal?.throwIfAborted();
    throw unreadable(url, path, cause);
  });
  const assertUnchanged = async () => {
    const now = await checkedStat(path, options);
    if (now.ino !== before.ino || now.size !== before.size || now.mtimeNs !== before.mtimeNs || bytes !== total)
      throw new TidemarkError('SOURCE_CHECKSUM_MISMATCH', `${path} was changed while it was read`, {
        details: { document: documentName(url), path },
      });
  };
  return { path, bytes, sha256, assertUnchanged };
}

/** A small local document as text. */
export async function localText(options: LocalOptions): Promise<string> {
  return (await localBytes(options)).toString('utf8');
}

/** A small local document as it is. */
export async function localBytes(options: LocalOptions): Promise<Buffer> {
  const path = localPath(options.url);
  await checkedStat(path, options);
  try {
    await using file = await open(path, 'r');
    return await file.readFile({ signal: options.signal });
  } catch (cause) {
    options.signal?.throwIfAborted();
    throw unreadable(options.url, path, cause);
  }
}

async function checkedStat(path: string, { url, maxBytes, limitName }: LocalOptions): Promise<BigIntStats> {
  const document = documentName(url);
  const found = await stat(path, { bigint: true }).catch(async (cause) => {
    if (!isMissing(cause)) throw unreadable(url, path, cause);
    throw await missing(url, path);
  });
  if (!found.isFile()) {
    const details = { document, path };
    throw new TidemarkError('SOURCE_NOT_FOUND', `${path} is not a file`, { details });
  }
  if (found.size > BigInt(maxBytes))
    throw new TidemarkError('SOURCE_TOO_LARGE', `${path} is larger than ${limitName} allows (${maxBytes} bytes)`, {
      details: { document, path, limit: limitName, maxBytes, bytes: Number(found.size) },
    });
  return found;
}

/** Tells a missing file from a missing folder, and then which of the folders above is the first that is not there. */
async function missing(url: URL, path: string): Promise<TidemarkError> {
  let absent = path;
  for (let above = dirname(path); above !== dirname(above) && !(await isDirectory(above)); above = dirname(above))
    absent = above;
  const what = absent === path ? 'file' : 'directory';
  const message = what === 'file' ? `${path} does not exist` : `${path} does not exist: there is no folder ${absent}`;
  const details: ErrorDetails = { document: documentName(url), path, missing: what, missingPath: absent };
  return new TidemarkError('SOURCE_NOT_FOUND', message, { details });
}

const isMissing = (error: unknown) => ['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '');

const isDirectory = (path: string) =>
  stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );

function unreadable(url: URL, path: string, cause: unknown): TidemarkError {
  const details = { document: documentName(url), path };
  return new TidemarkError('SOURCE_UNREACHABLE', `${path} cannot be read`, { details, cause });
}
